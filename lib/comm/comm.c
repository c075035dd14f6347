/*
 * comm.c - the front door: argument checks, the list of groups, and what needs no peer
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"
#include "comm/pause.h"

int comm_world_rank(const struct comm *comm)
{
    return comm->world_rank;
}

int comm_world_size(const struct comm *comm)
{
    return comm->world_size;
}

static void group_free(struct comm_group *group)
{
    if (group->size > 1 && group->comm->ops->group_close)
        group->comm->ops->group_close(group);
    free(group->ranks);
    free(group);
}

void comm_destroy(struct comm *comm)
{
    if (!comm)
        return;
    while (comm->groups) {
        struct comm_group *group = comm->groups;

        comm->groups = group->next;
        group_free(group);
    }
    comm->ops->destroy(comm);
}

/* The place of the caller in ranks, after checking that they are distinct ranks of the world. */
static int check_ranks(const struct comm *comm, const int *ranks, int n_ranks)
{
    int me = -1;
    unsigned char *seen = calloc((size_t)comm->world_size, 1);

    CHECK(seen);
    for (int i = 0; i < n_ranks; i++) {
        CHECK(ranks[i] >= 0);
        CHECK(ranks[i] < comm->world_size);
        CHECK(!seen[ranks[i]]);
        seen[ranks[i]] = 1;
        if (ranks[i] == comm->world_rank)
            me = i;
    }
    free(seen);
    CHECK(me >= 0);
    return me;
}

int comm_group_create(struct comm_group **group, struct comm *comm, const int *ranks, int n_ranks,
                      int channel, struct err *err)
{
    CHECK(n_ranks > 0);
    CHECK(channel >= 0);

    int me = check_ranks(comm, ranks, n_ranks);
    struct comm_group *made = calloc(1, comm->ops->group_bytes);
    int *copy = malloc(sizeof *copy * (size_t)n_ranks);

    CHECK(made);
    CHECK(copy);
    memcpy(copy, ranks, sizeof *copy * (size_t)n_ranks);
    made->comm = comm;
    made->rank = me;
    made->size = n_ranks;
    made->channel = channel;
    made->ranks = copy;
    if (n_ranks > 1 && comm->ops->group_open(made, err)) {
        group_free(made);
        return -1;
    }
    made->next = comm->groups;
    comm->groups = made;
    *group = made;
    return 0;
}

int comm_group_rank(const struct comm_group *group)
{
    return group->rank;
}

int comm_group_size(const struct comm_group *group)
{
    return group->size;
}

struct comm *comm_of_group(const struct comm_group *group)
{
    return group->comm;
}

/* ---- calls ---- */

/* What needs no peer: groups of one, and nothing to move. 1 if it was that, and is done. */
static bool is_trivial(const struct comm_group *group, const struct comm_call *call)
{
    int copies =
        call->kind == COMM_ALL_GATHER || call->kind == COMM_ALL_TO_ALL || call->kind == COMM_ROTATE;

    if (group->size > 1 && (call->n_bytes || call->kind == COMM_BARRIER))
        return false;
    if (group->size == 1 && copies && call->n_bytes && call->send != call->receive)
        memcpy(call->receive, call->send, call->n_bytes);
    return true;
}

static void check_call(const struct comm_group *group, const struct comm_call *call)
{
    int names_peer = call->kind == COMM_SEND || call->kind == COMM_RECEIVE;

    if (call->kind == COMM_ROTATE)
        CHECK(call->peer == 1 || call->peer == -1);
    for (int i = 0; call->kind == COMM_EXCHANGE && i < group->size; i++) {
        CHECK(comm_parts_of(call)[i].send_bytes <= call->n_bytes);
        CHECK(comm_parts_of(call)[i].receive_bytes <= call->n_bytes);
    }
    if (!names_peer && call->kind != COMM_BROADCAST)
        return;
    CHECK(call->peer >= 0);
    CHECK(call->peer < group->size);
    CHECK(!names_peer || call->peer != group->rank);
}

int comm_start(struct comm_request *request, struct comm_group *group, const struct comm_call *call,
               struct err *err)
{
    check_call(group, call);
    *request = (struct comm_request){ .call = *call };
    if (is_trivial(group, call))
        return 0;
    request->group = group;
    return group->comm->ops->start(request, err);
}

int comm_test(struct comm_request *request, struct err *err)
{
    int progress = COMM_DONE;

    if (request->group)
        progress = request->group->comm->ops->test(request, err);
    if (progress == COMM_DONE || progress < 0)
        request->group = NULL;
    return progress;
}

/* ---- on a device's queue ---- */

int comm_enqueues(const struct comm *comm)
{
    return comm->ops->enqueue != NULL;
}

int comm_connect(struct comm_group *all, struct comm_group *group, unsigned uses, struct err *err)
{
    CHECK(comm_enqueues(all->comm));
    CHECK(group || !uses);
    CHECK(!group || group->comm == all->comm);
    return all->comm->ops->connect(all, group, uses, err);
}

void comm_disconnect(struct comm_group *group)
{
    if (group->comm->ops->disconnect)
        group->comm->ops->disconnect(group);
}

int comm_enqueue(struct comm_group *group, const struct comm_call *call, int queue, struct err *err)
{
    CHECK(call->kind != COMM_BARRIER);
    check_call(group, call);
    return call->n_bytes ? group->comm->ops->enqueue(group, call, queue, err) : 0;
}

int comm_sums(const struct comm *comm)
{
    return comm->ops->enqueue_sum != NULL;
}

int comm_enqueue_sum(struct comm_group *group, const struct comm_sum *sum, int queue,
                     struct err *err)
{
    CHECK(comm_sums(group->comm));
    CHECK(sum->dtype == DTYPE_F32 || sum->dtype == DTYPE_BF16);
    return sum->n ? group->comm->ops->enqueue_sum(group, sum, queue, err) : 0;
}

int comm_check(struct comm *comm, struct err *err)
{
    return comm->ops->check ? comm->ops->check(comm, err) : 0;
}

__attribute__((weak)) int comm_nccl_is_there(void)
{
    return 0;
}

__attribute__((weak)) int comm_nccl_create(struct comm **comm, struct comm *host,
                                           struct device *device, struct err *err)
{
    (void)comm;
    (void)device;
    comm_destroy(host);
    return err_set(err, ERR_FAILED, "this lmtrain was built without CUDA (hint: `make CUDA=1`)");
}

/* ---- and waited for ---- */

static int call_and_wait(struct comm_group *group, const struct comm_call *call, struct err *err)
{
    struct comm_request request;
    struct comm_pause pause;
    int progress;

    if (comm_start(&request, group, call, err))
        return -1;
    comm_pause_begin(&pause);
    while ((progress = comm_test(&request, err)) > COMM_DONE)
        comm_pause(&pause, progress);
    return progress;
}

int comm_all_gather(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                    struct err *err)
{
    struct comm_call call = { COMM_ALL_GATHER, send, receive, n_bytes, 0 };

    return call_and_wait(group, &call, err);
}

int comm_all_to_all(struct comm_group *group, const void *send, void *receive, size_t n_bytes,
                    struct err *err)
{
    struct comm_call call = { COMM_ALL_TO_ALL, send, receive, n_bytes, 0 };

    return call_and_wait(group, &call, err);
}

int comm_broadcast(struct comm_group *group, void *buffer, size_t n_bytes, int root,
                   struct err *err)
{
    struct comm_call call = { COMM_BROADCAST, NULL, buffer, n_bytes, root };

    return call_and_wait(group, &call, err);
}

int comm_send(struct comm_group *group, const void *buffer, size_t n_bytes, int to, struct err *err)
{
    struct comm_call call = { COMM_SEND, buffer, NULL, n_bytes, to };

    return call_and_wait(group, &call, err);
}

int comm_receive(struct comm_group *group, void *buffer, size_t n_bytes, int from, struct err *err)
{
    struct comm_call call = { COMM_RECEIVE, NULL, buffer, n_bytes, from };

    return call_and_wait(group, &call, err);
}

int comm_send_receive(struct comm_group *group, const void *send, int to, void *receive, int from,
                      size_t n_bytes, struct err *err)
{
    struct comm_call calls[2] = { { COMM_RECEIVE, NULL, receive, n_bytes, from },
                                  { COMM_SEND, send, NULL, n_bytes, to } };
    struct comm_request requests[2];
    int progress[2] = { COMM_WAITING, COMM_WAITING };
    struct comm_pause pause;

    for (int i = 0; i < 2; i++)
        if (comm_start(&requests[i], group, &calls[i], err))
            return -1;
    comm_pause_begin(&pause);
    while (progress[0] > COMM_DONE || progress[1] > COMM_DONE) {
        for (int i = 0; i < 2; i++) {
            progress[i] = progress[i] > COMM_DONE ? comm_test(&requests[i], err) : COMM_DONE;
            if (progress[i] < 0)
                return -1;
        }
        if (progress[0] > COMM_DONE || progress[1] > COMM_DONE)
            comm_pause(&pause, progress[0] > progress[1] ? progress[0] : progress[1]);
    }
    return 0;
}

int comm_barrier(struct comm_group *group, struct err *err)
{
    struct comm_call call = { .kind = COMM_BARRIER };

    return call_and_wait(group, &call, err);
}
