/*
 * nccl.cu - ranks with a GPU each: moves by NCCL, in the order of the device's queues
 *
 * A comm_nccl stands on a comm of the host (MPI's, threads'), which has its world, its meetings and
 * all calls over host memory, and over which NCCL's ids are told. A group gets NCCL communicators
 * when it is connected: one of all its ranks, and for neighbours one of two ranks each way, since
 * NCCL does the calls over a communicator one after the other, whatever their streams: a send that
 * waits for its receive would hold up the receive that its peer waits for.
 *
 * Communicators are blocking: calls that don't block hand each launch to a thread of its own, which
 * costs more than the launch, and must be polled before a mark may be set behind it. What blocks
 * without end is the making and the first use, which sets up the connections; comm_connect does
 * both, on the comm thread, where who watches sees a rank wait in it and ends the run when a peer
 * is gone.
 *
 * Only bytes are moved, but for the sums of `reductions: fast`. Communicators end by ncclCommAbort, which waits for nobody.
 */
#include "cuda/library.cuh"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "comm/comm_impl.h"
}

struct api {
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRankConfig) init_rank;
    decltype(&ncclCommAbort) abort;
    decltype(&ncclCommGetAsyncError) get_async_error;
    decltype(&ncclGetErrorString) error_string;
    decltype(&ncclGetLastError) last_error;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) receive;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclBroadcast) broadcast;
    decltype(&ncclReduceScatter) reduce_scatter;
    decltype(&ncclAllReduce) all_reduce;
};

struct nccl_comm {
    struct comm base;
    struct comm *host;
    struct cuda_device *device;
    struct api api;
    struct err failure; /* the first; no code: none yet */
};

/* What a group's communicators are for. Pairs: rank 0 sends, rank 1 receives. */
enum link { TOGETHER, TO_NEXT, FROM_PREVIOUS, TO_PREVIOUS, FROM_NEXT, N_LINKS };

struct nccl_group {
    struct comm_group base;
    struct comm_group *host; /* NULL for one rank */
    ncclComm_t links[N_LINKS];
};

static struct nccl_comm *nccl_comm_of(struct comm *comm)
{
    return (struct nccl_comm *)comm;
}

static struct nccl_group *nccl_group_of(struct comm_group *group)
{
    return (struct nccl_group *)group;
}

static cudaStream_t stream_of(const struct nccl_comm *comm, int queue)
{
    return cuda_stream_of(comm->device, queue);
}

/* 0, or -1 with NCCL's words for the result. link may be NULL. */
static int check(struct nccl_comm *comm, ncclComm_t link, ncclResult_t result, const char *call,
                 struct err *err)
{
    if (result == ncclSuccess)
        return 0;
    const char *more = comm->api.last_error ? comm->api.last_error(link) : "";
    err_set(err, ERR_PEER, "%s: %s%s%s", call, comm->api.error_string(result),
            more && *more ? ": " : "", more ? more : "");
    if (!comm->failure.code)
        comm->failure = *err;
    return -1;
}

/* ---- the host's side ---- */

static int nccl_group_open(struct comm_group *base, struct err *err)
{
    struct nccl_comm *comm = nccl_comm_of(base->comm);

    return comm_group_create(&nccl_group_of(base)->host, comm->host, base->ranks, base->size,
                             base->channel, err);
}

static void nccl_group_close(struct comm_group *base)
{
    struct nccl_group *group = nccl_group_of(base);

    for (int i = 0; i < N_LINKS; i++)
        if (group->links[i])
            nccl_comm_of(base->comm)->api.abort(group->links[i]);
}

static void nccl_destroy(struct comm *base)
{
    struct nccl_comm *comm = nccl_comm_of(base);

    comm_destroy(comm->host);
    free(comm);
}

/* From here on the request is the host's. */
static int nccl_start(struct comm_request *request, struct err *err)
{
    request->group = nccl_group_of(request->group)->host;
    return request->group->comm->ops->start(request, err);
}

static int nccl_test(struct comm_request *, struct err *)
{
    CHECK(!"a request of the host's");
}

/* ---- connecting ---- */

/* What each rank tells the others: the ids of what begins with it. */
struct ids {
    int is_made;
    ncclUniqueId together, to_next, to_previous;
};

static int make_ids(struct nccl_comm *comm, const struct comm_group *group, unsigned uses,
                    struct ids *ids, struct err *err)
{
    struct {
        int is_wanted;
        ncclUniqueId *id;
    } wanted[] = { { (uses & COMM_TOGETHER) && group->rank == 0, &ids->together },
                   { (uses & COMM_TO_NEXT) != 0, &ids->to_next },
                   { (uses & COMM_TO_PREVIOUS) != 0, &ids->to_previous } };

    memset(ids, 0, sizeof *ids);
    for (auto &w : wanted)
        if (w.is_wanted && check(comm, NULL, comm->api.get_unique_id(w.id), "ncclGetUniqueId", err))
            return -1;
    ids->is_made = 1;
    return 0;
}

/* Everybody gets everybody's ids; who could not make his has all fail. */
static int exchange_ids(struct nccl_comm *comm, struct comm_group *group, unsigned uses,
                        struct ids *all, struct err *err)
{
    struct ids own;
    struct err first;
    int status = make_ids(comm, group, uses, &own, &first);

    if (comm_all_gather(nccl_group_of(group)->host, &own, all, sizeof own, err))
        return -1;
    if (status)
        *err = first;
    for (int r = 0; r < group->size && !status; r++)
        if (!all[r].is_made)
            return err_set(err, ERR_PEER, "rank %d has no NCCL", group->ranks[r]);
    return status;
}

static int open_link(struct nccl_comm *comm, ncclComm_t *link, int size, const ncclUniqueId *id,
                     int rank, int max_blocks, struct err *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 1;
    config.maxCTAs = max_blocks; /* $NCCL_MAX_CTAS goes first */
    return check(comm, NULL, comm->api.init_rank(link, size, *id, rank, &config),
                 "ncclCommInitRankConfig", err);
}

/*
 * Every rank's two pairs, all ranks in one order (even sources, then odd ones), so that none waits
 * in a circle, and few wait for more than one other.
 */
static int open_pairs(struct nccl_comm *comm, struct comm_group *group, int step,
                      const struct ids *all, struct err *err)
{
    ncclComm_t *links = nccl_group_of(group)->links;
    int n = group->size, is_next = step > 0;

    for (int parity = 0; parity < 2; parity++)
        for (int from = parity; from < n; from += 2) {
            int to = (from + step + n) % n;
            const ncclUniqueId *id = is_next ? &all[from].to_next : &all[from].to_previous;
            ncclComm_t *link = NULL;

            if (from == group->rank)
                link = &links[is_next ? TO_NEXT : TO_PREVIOUS];
            else if (to == group->rank)
                link = &links[is_next ? FROM_PREVIOUS : FROM_NEXT];
            if (link && open_link(comm, link, 2, id, to == group->rank, COMM_BLOCKS_PAIR, err) < 0)
                return -1;
        }
    return 0;
}

static int open_links(struct nccl_comm *comm, struct comm_group *group, unsigned uses,
                      const struct ids *all, struct err *err)
{
    if ((uses & COMM_TOGETHER) &&
        open_link(comm, &nccl_group_of(group)->links[TOGETHER], group->size, &all[0].together,
                  group->rank, COMM_BLOCKS_TOGETHER, err) < 0)
        return -1;
    if ((uses & COMM_TO_NEXT) && open_pairs(comm, group, 1, all, err) < 0)
        return -1;
    if ((uses & COMM_TO_PREVIOUS) && open_pairs(comm, group, -1, all, err) < 0)
        return -1;
    return 0;
}

static int nccl_enqueue(struct comm_group *base, const struct comm_call *call, int queue,
                        struct err *err);
static int nccl_enqueue_sum(struct comm_group *base, const struct comm_sum *sum, int queue,
                            struct err *err);

/* The queues of a group's first calls: one, and for each pair another, as a send may wait for its
 * receive. */
static int open_queues(struct nccl_comm *comm, const struct nccl_group *group, struct err *err)
{
    struct device *device = &comm->device->base;

    for (int i = 0; i < N_LINKS; i++)
        if ((i == TOGETHER || group->links[i]) &&
            device->ops->open_queue(device, DEVICE_TRAFFIC + i, err) < 0)
            return -1;
    return 0;
}

static int first_of_pairs(struct nccl_comm *comm, const struct nccl_group *group,
                          unsigned char *byte, struct err *err)
{
    for (int i = TO_NEXT; i < N_LINKS; i++) {
        int sends = i == TO_NEXT || i == TO_PREVIOUS;
        ncclComm_t link = group->links[i];

        if (!link)
            continue;
        cudaStream_t stream = stream_of(comm, DEVICE_TRAFFIC + i);
        ncclResult_t result = sends ? comm->api.send(byte, 1, ncclUint8, 1, link, stream)
                                    : comm->api.receive(byte + i, 1, ncclUint8, 0, link, stream);
        if (check(comm, link, result, "a first call", err))
            return -1;
    }
    for (int i = TO_NEXT; i < N_LINKS; i++)
        if (comm->device->base.ops->wait(&comm->device->base, DEVICE_TRAFFIC + i, err) < 0)
            return -1;
    return 0;
}

/* room: size + 1 of the device. */
static int first_sums(struct comm_group *group, float *room, struct err *err)
{
    for (int is_scattered = 0; is_scattered < 2; is_scattered++) {
        struct comm_sum sum = { is_scattered, DTYPE_F32, room, room + group->size, 1 };

        if (nccl_enqueue_sum(group, &sum, DEVICE_TRAFFIC, err) < 0)
            return -1;
    }
    return 0;
}

/* Of what calls at first want on the device. */
static size_t room_bytes(const struct comm_group *group)
{
    return (2 * (size_t)group->size + N_LINKS) * sizeof(float);
}

/* Each call once, so that NCCL's connections stand. */
static int first_calls(struct comm_group *group, unsigned uses, unsigned char *room,
                       struct err *err)
{
    static const enum comm_kind kinds[] = { COMM_ALL_GATHER, COMM_ALL_TO_ALL, COMM_BROADCAST };
    struct nccl_comm *comm = nccl_comm_of(group->comm);

    for (enum comm_kind kind : kinds) {
        struct comm_call call = { kind, room, room + group->size, 1, 0 };

        if ((uses & COMM_TOGETHER) && nccl_enqueue(group, &call, DEVICE_TRAFFIC, err) < 0)
            return -1;
    }
    if ((uses & COMM_SUMS) && first_sums(group, (float *)room, err) < 0)
        return -1;
    if (comm->device->base.ops->wait(&comm->device->base, DEVICE_TRAFFIC, err) < 0)
        return -1;
    return first_of_pairs(comm, nccl_group_of(group), room + 2 * (size_t)group->size, err);
}

static int nccl_connect(struct comm_group *group, unsigned uses, struct err *err)
{
    struct nccl_comm *comm = nccl_comm_of(group->comm);
    struct device *device = &comm->device->base;
    void *room;

    if (group->size == 1)
        return 0;
    /* Next and previous are one rank of two. */
    if (group->size == 2 && (uses & COMM_TO_PREVIOUS))
        uses = (uses & ~(unsigned)COMM_TO_PREVIOUS) | COMM_TO_NEXT;
    struct ids *all = (struct ids *)calloc((size_t)group->size, sizeof *all);
    if (!all)
        return err_set(err, ERR_DEVICE, "out of host memory");
    cuda_check(comm->device, "cudaSetDevice", cudaSetDevice(comm->device->index));
    int status = exchange_ids(comm, group, uses, all, err);
    if (!status)
        status = open_links(comm, group, uses, all, err);
    free(all);
    if (status || device->ops->allocate(device, room_bytes(group), &room, err) < 0)
        return -1;
    status = open_queues(comm, nccl_group_of(group), err);
    if (!status)
        status = first_calls(group, uses, (unsigned char *)room, err);
    device->ops->release(device, room);
    return status;
}

/* ---- calls ---- */

static int all_to_all(struct nccl_comm *comm, const struct comm_group *group, ncclComm_t link,
                      const struct comm_call *call, cudaStream_t stream, struct err *err)
{
    const char *send = (const char *)call->send;
    char *receive = (char *)call->receive;
    size_t n = call->n_bytes, own = (size_t)group->rank * n;

    if (check(comm, link, comm->api.group_start(), "ncclGroupStart", err))
        return -1;
    for (int k = 1; k < group->size; k++) {
        int to = (group->rank + k) % group->size,
            from = (group->rank - k + group->size) % group->size;
        ncclResult_t result = comm->api.send(send + (size_t)to * n, n, ncclUint8, to, link, stream);

        if (result == ncclSuccess)
            result =
                comm->api.receive(receive + (size_t)from * n, n, ncclUint8, from, link, stream);
        if (check(comm, link, result, "all_to_all", err)) {
            comm->api.group_end();
            return -1;
        }
    }
    if (check(comm, link, comm->api.group_end(), "all_to_all", err))
        return -1;
    cuda_check(comm->device, "copy",
               cudaMemcpyAsync(receive + own, send + own, n, cudaMemcpyDefault, stream));
    return 0;
}

/* The pair that a send or receive goes over. */
static ncclComm_t link_to(const struct nccl_group *group, const struct comm_call *call)
{
    int n = group->base.size, sends = call->kind == COMM_SEND;
    int is_next = call->peer == (group->base.rank + 1) % n;
    int is_previous = call->peer == (group->base.rank + n - 1) % n;
    ncclComm_t forward = group->links[sends ? TO_NEXT : FROM_PREVIOUS];
    ncclComm_t backward = group->links[sends ? TO_PREVIOUS : FROM_NEXT];

    CHECK(is_next || is_previous);
    /* What is sent to the next is received from the previous. */
    return (sends ? is_next : is_previous) && forward ? forward : backward;
}

static int copy_alone(struct nccl_comm *comm, const struct comm_call *call, cudaStream_t stream)
{
    int gathers = call->kind == COMM_ALL_GATHER || call->kind == COMM_ALL_TO_ALL;

    if (gathers && call->send != call->receive)
        cuda_check(
            comm->device, "copy",
            cudaMemcpyAsync(call->receive, call->send, call->n_bytes, cudaMemcpyDefault, stream));
    return 0;
}

static int nccl_enqueue(struct comm_group *base, const struct comm_call *call, int queue,
                        struct err *err)
{
    struct nccl_comm *comm = nccl_comm_of(base->comm);
    struct nccl_group *group = nccl_group_of(base);
    cudaStream_t stream = stream_of(comm, queue);
    int is_pair = call->kind == COMM_SEND || call->kind == COMM_RECEIVE;
    size_t n = call->n_bytes;

    if (base->size == 1)
        return copy_alone(comm, call, stream);
    ncclComm_t link = is_pair ? link_to(group, call) : group->links[TOGETHER];
    CHECK(link);
    switch (call->kind) {
    case COMM_ALL_GATHER:
        return check(comm, link,
                     comm->api.all_gather(call->send, call->receive, n, ncclUint8, link, stream),
                     "ncclAllGather", err);
    case COMM_ALL_TO_ALL:
        return all_to_all(comm, base, link, call, stream, err);
    case COMM_BROADCAST:
        return check(comm, link,
                     comm->api.broadcast(call->receive, call->receive, n, ncclUint8, call->peer,
                                         link, stream),
                     "ncclBroadcast", err);
    case COMM_SEND:
        return check(comm, link, comm->api.send(call->send, n, ncclUint8, 1, link, stream),
                     "ncclSend", err);
    case COMM_RECEIVE:
        return check(comm, link, comm->api.receive(call->receive, n, ncclUint8, 0, link, stream),
                     "ncclRecv", err);
    default:
        CHECK(!"a call of a queue");
    }
}

/* In NCCL's order. Over the communicator that moves, too: calls come one after the other there. */
static int nccl_enqueue_sum(struct comm_group *base, const struct comm_sum *sum, int queue,
                            struct err *err)
{
    struct nccl_comm *comm = nccl_comm_of(base->comm);
    ncclComm_t link = nccl_group_of(base)->links[TOGETHER];
    cudaStream_t stream = stream_of(comm, queue);
    ncclDataType_t type = sum->dtype == DTYPE_BF16 ? ncclBfloat16 : ncclFloat32;
    size_t n = (size_t)sum->n;

    if (base->size == 1) {
        cuda_check(comm->device, "copy",
                   cudaMemcpyAsync(sum->receive, sum->send, n * dtype_bytes(sum->dtype),
                                   cudaMemcpyDefault, stream));
        return 0;
    }
    CHECK(link);
    if (sum->is_scattered)
        return check(
            comm, link,
            comm->api.reduce_scatter(sum->send, sum->receive, n, type, ncclSum, link, stream),
            "ncclReduceScatter", err);
    return check(comm, link,
                 comm->api.all_reduce(sum->send, sum->receive, n, type, ncclSum, link, stream),
                 "ncclAllReduce", err);
}

/* ---- what goes wrong later ---- */

static void check_group(struct nccl_comm *comm, struct nccl_group *group)
{
    struct err ignored;

    for (int i = 0; i < N_LINKS; i++) {
        ncclResult_t result = ncclSuccess;

        if (!group->links[i] || comm->failure.code)
            continue;
        comm->api.get_async_error(group->links[i], &result);
        if (result != ncclInProgress)
            check(comm, group->links[i], result, "NCCL", &ignored);
    }
}

static void give_up(struct nccl_comm *comm)
{
    for (struct comm_group *g = comm->base.groups; g; g = g->next) {
        if (g->size > 1)
            nccl_group_close(g);
        memset(nccl_group_of(g)->links, 0, sizeof nccl_group_of(g)->links);
    }
}

static int nccl_check_all(struct comm *base, struct err *err)
{
    struct nccl_comm *comm = nccl_comm_of(base);

    for (struct comm_group *g = base->groups; g; g = g->next)
        check_group(comm, nccl_group_of(g));
    if (!comm->failure.code)
        return 0;
    give_up(comm);
    *err = comm->failure;
    return -1;
}

/* ---- making one ---- */

static int open_library(struct api *api, struct err *err)
{
    void *handle;

    if (cuda_library_open(&handle, "libnccl.so.2", err) < 0)
        return -1;
    (void)CUDA_SYMBOL(handle, api->last_error, ncclGetLastError); /* not in old ones */
    if (CUDA_SYMBOL(handle, api->get_unique_id, ncclGetUniqueId) &&
        CUDA_SYMBOL(handle, api->init_rank, ncclCommInitRankConfig) &&
        CUDA_SYMBOL(handle, api->abort, ncclCommAbort) &&
        CUDA_SYMBOL(handle, api->get_async_error, ncclCommGetAsyncError) &&
        CUDA_SYMBOL(handle, api->error_string, ncclGetErrorString) &&
        CUDA_SYMBOL(handle, api->group_start, ncclGroupStart) &&
        CUDA_SYMBOL(handle, api->group_end, ncclGroupEnd) &&
        CUDA_SYMBOL(handle, api->send, ncclSend) && CUDA_SYMBOL(handle, api->receive, ncclRecv) &&
        CUDA_SYMBOL(handle, api->all_gather, ncclAllGather) &&
        CUDA_SYMBOL(handle, api->broadcast, ncclBroadcast) &&
        CUDA_SYMBOL(handle, api->reduce_scatter, ncclReduceScatter) &&
        CUDA_SYMBOL(handle, api->all_reduce, ncclAllReduce))
        return 0;
    return err_set(err, ERR_DEVICE, "libnccl.so.2 is too old (hint: 2.14 or later)");
}

static const struct comm_ops *nccl_ops(void)
{
    static const struct comm_ops ops = {
        .group_bytes = sizeof(struct nccl_group),
        .group_open = nccl_group_open,
        .group_close = nccl_group_close,
        .destroy = nccl_destroy,
        .start = nccl_start,
        .test = nccl_test,
        .connect = nccl_connect,
        .enqueue = nccl_enqueue,
        .check = nccl_check_all,
        .enqueue_sum = nccl_enqueue_sum,
    };

    return &ops;
}

extern "C" int comm_nccl_is_there(void)
{
    struct api api;
    struct err ignored;

    return open_library(&api, &ignored) == 0;
}

extern "C" int comm_nccl_create(struct comm **out, struct comm *host, struct device *device,
                                struct err *err)
{
    struct nccl_comm *comm = (struct nccl_comm *)calloc(1, sizeof *comm);

    if (!comm || open_library(&comm->api, err) < 0) {
        comm_destroy(host);
        if (!comm)
            err_set(err, ERR_DEVICE, "out of host memory");
        free(comm);
        return -1;
    }
    comm->base.ops = nccl_ops();
    comm->base.world_rank = comm_world_rank(host);
    comm->base.world_size = comm_world_size(host);
    comm->host = host;
    comm->device = cuda_device_of(device);
    *out = &comm->base;
    return 0;
}
