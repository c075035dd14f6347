/*
 * nccl.cu - ranks with a GPU each: moves by NCCL, in the order of the device's queues
 *
 * A comm_nccl stands on a comm of the host (MPI's, sockets', threads'), which has its world, its
 * barriers and all calls over host memory. How its groups get NCCL communicators: nccl_connect.cu.
 *
 * Only bytes are moved, but for the sums of `reductions: fast`. Communicators end by ncclCommAbort,
 * which waits for no peer.
 */
#include "cuda/nccl.cuh"

#include <stdlib.h>
#include <string.h>

int nccl_result(struct nccl_comm *comm, ncclComm_t link, ncclResult_t result, const char *call,
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

/* The root stays: links of later groups are split from it. */
static void nccl_disconnect(struct comm_group *base)
{
    const struct nccl_api *api = &nccl_comm_of(base->comm)->api;
    struct nccl_group *group = nccl_group_of(base);

    for (int i = 0; i < N_LINKS; i++)
        if (group->links[i])
            api->abort(group->links[i]);
    memset(group->links, 0, sizeof group->links);
}

static void nccl_group_close(struct comm_group *base)
{
    const struct nccl_api *api = &nccl_comm_of(base->comm)->api;
    struct nccl_group *group = nccl_group_of(base);

    nccl_disconnect(base);
    if (group->root)
        api->abort(group->root);
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

/* ---- calls ---- */

static int all_to_all(struct nccl_comm *comm, const struct comm_group *group, ncclComm_t link,
                      const struct comm_call *call, cudaStream_t stream, struct err *err)
{
    const char *send = (const char *)call->send;
    char *receive = (char *)call->receive;
    size_t n = call->n_bytes, own = (size_t)group->rank * n;

    if (nccl_result(comm, link, comm->api.group_start(), "ncclGroupStart", err))
        return -1;
    for (int k = 1; k < group->size; k++) {
        int to = (group->rank + k) % group->size,
            from = (group->rank - k + group->size) % group->size;
        ncclResult_t result = comm->api.send(send + (size_t)to * n, n, ncclUint8, to, link, stream);

        if (result == ncclSuccess)
            result =
                comm->api.receive(receive + (size_t)from * n, n, ncclUint8, from, link, stream);
        if (nccl_result(comm, link, result, "all_to_all", err)) {
            comm->api.group_end();
            return -1;
        }
    }
    if (nccl_result(comm, link, comm->api.group_end(), "all_to_all", err))
        return -1;
    cuda_check(comm->device, "copy",
               cudaMemcpyAsync(receive + own, send + own, n, cudaMemcpyDefault, stream));
    return 0;
}

/* What each rank sends this one, and what it is sent: the host knows how much. */
static int exchange(struct nccl_comm *comm, const struct comm_group *group, ncclComm_t link,
                    const struct comm_call *call, cudaStream_t stream, struct err *err)
{
    const struct comm_part *parts = comm_parts_of(call);

    if (nccl_result(comm, link, comm->api.group_start(), "ncclGroupStart", err))
        return -1;
    for (int k = 1; k < group->size; k++) {
        int to = group_rank_at(group, k), from = group_rank_at(group, -k);
        const struct comm_part *ours = &parts[to], *theirs = &parts[from];
        ncclResult_t result = ncclSuccess;

        if (ours->send_bytes)
            result = comm->api.send(ours->send, ours->send_bytes, ncclUint8, to, link, stream);
        if (theirs->receive_bytes && result == ncclSuccess)
            result = comm->api.receive(theirs->receive, theirs->receive_bytes, ncclUint8, from,
                                       link, stream);
        if (nccl_result(comm, link, result, "exchange", err)) {
            comm->api.group_end();
            return -1;
        }
    }
    return nccl_result(comm, link, comm->api.group_end(), "exchange", err);
}

static int rotate(struct nccl_comm *comm, const struct comm_group *group, ncclComm_t link,
                  const struct comm_call *call, cudaStream_t stream, struct err *err)
{
    int from = group_rank_at(group, call->peer), to = group_rank_at(group, -call->peer);

    if (nccl_result(comm, link, comm->api.group_start(), "ncclGroupStart", err))
        return -1;
    ncclResult_t result = comm->api.send(call->send, call->n_bytes, ncclUint8, to, link, stream);
    if (result == ncclSuccess)
        result = comm->api.receive(call->receive, call->n_bytes, ncclUint8, from, link, stream);
    if (nccl_result(comm, link, result, "rotate", err)) {
        comm->api.group_end();
        return -1;
    }
    return nccl_result(comm, link, comm->api.group_end(), "rotate", err);
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
    int copies =
        call->kind == COMM_ALL_GATHER || call->kind == COMM_ALL_TO_ALL || call->kind == COMM_ROTATE;

    if (copies && call->send != call->receive)
        cuda_check(
            comm->device, "copy",
            cudaMemcpyAsync(call->receive, call->send, call->n_bytes, cudaMemcpyDefault, stream));
    return 0;
}

int nccl_enqueue(struct comm_group *base, const struct comm_call *call, int queue, struct err *err)
{
    struct nccl_comm *comm = nccl_comm_of(base->comm);
    struct nccl_group *group = nccl_group_of(base);
    cudaStream_t stream = nccl_stream(comm, queue);
    int is_pair = call->kind == COMM_SEND || call->kind == COMM_RECEIVE;
    size_t n = call->n_bytes;

    if (base->size == 1)
        return copy_alone(comm, call, stream);
    ncclComm_t link = is_pair ? link_to(group, call) : group->links[TOGETHER];
    CHECK(link);
    switch (call->kind) {
    case COMM_ALL_GATHER:
        return nccl_result(
            comm, link, comm->api.all_gather(call->send, call->receive, n, ncclUint8, link, stream),
            "ncclAllGather", err);
    case COMM_ALL_TO_ALL:
        return all_to_all(comm, base, link, call, stream, err);
    case COMM_ROTATE:
        return rotate(comm, base, link, call, stream, err);
    case COMM_EXCHANGE:
        return exchange(comm, base, link, call, stream, err);
    case COMM_BROADCAST:
        return nccl_result(comm, link,
                           comm->api.broadcast(call->receive, call->receive, n, ncclUint8,
                                               call->peer, link, stream),
                           "ncclBroadcast", err);
    case COMM_SEND:
        return nccl_result(comm, link, comm->api.send(call->send, n, ncclUint8, 1, link, stream),
                           "ncclSend", err);
    case COMM_RECEIVE:
        return nccl_result(comm, link,
                           comm->api.receive(call->receive, n, ncclUint8, 0, link, stream),
                           "ncclRecv", err);
    default:
        CHECK(!"a call of a queue");
    }
}

/* In NCCL's order. Over the communicator that moves, too: calls come one after the other there. */
int nccl_enqueue_sum(struct comm_group *base, const struct comm_sum *sum, int queue,
                     struct err *err)
{
    struct nccl_comm *comm = nccl_comm_of(base->comm);
    ncclComm_t link = nccl_group_of(base)->links[TOGETHER];
    cudaStream_t stream = nccl_stream(comm, queue);
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
        return nccl_result(
            comm, link,
            comm->api.reduce_scatter(sum->send, sum->receive, n, type, ncclSum, link, stream),
            "ncclReduceScatter", err);
    return nccl_result(
        comm, link, comm->api.all_reduce(sum->send, sum->receive, n, type, ncclSum, link, stream),
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
            nccl_result(comm, group->links[i], result, "NCCL", &ignored);
    }
}

static void give_up(struct nccl_comm *comm)
{
    for (struct comm_group *g = comm->base.groups; g; g = g->next) {
        if (g->size > 1)
            nccl_group_close(g);
        memset(nccl_group_of(g)->links, 0, sizeof nccl_group_of(g)->links);
        nccl_group_of(g)->root = NULL;
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

static int open_library(struct nccl_api *api, struct err *err)
{
    void *handle;

    if (cuda_library_open(&handle, "libnccl.so.2", err) < 0)
        return -1;
    (void)CUDA_SYMBOL(handle, api->last_error, ncclGetLastError); /* not in old ones */
    if (CUDA_SYMBOL(handle, api->get_unique_id, ncclGetUniqueId) &&
        CUDA_SYMBOL(handle, api->init_rank, ncclCommInitRankConfig) &&
        CUDA_SYMBOL(handle, api->split, ncclCommSplit) &&
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
    return err_set(err, ERR_DEVICE, "libnccl.so.2 is too old (hint: 2.18 or later)");
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
        .disconnect = nccl_disconnect,
        .enqueue = nccl_enqueue,
        .check = nccl_check_all,
        .enqueue_sum = nccl_enqueue_sum,
    };

    return &ops;
}

extern "C" int comm_nccl_is_there(void)
{
    struct nccl_api api;
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
