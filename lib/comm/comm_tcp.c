/*
 * comm_tcp.c - ranks that are processes, without MPI
 *
 * Calls of all are built from transfers between two (tcp_impl.h), of which a rank has at most one
 * each way with any other in one call, so a call's number tells them apart:
 *   barrier    in step k a rank tells the one 2^k further on that it has come, and waits for the one
 *              2^k before it (dissemination);
 *   all-gather in step k a rank gets the parts of up to 2^k ranks from the one 2^k further on, which
 *              has them from the steps before (Bruck), straight to their place;
 *   broadcast  a binomial tree, each rank passing on what has come so far;
 *   all-to-all every rank with every other;
 *   rotate     a receive from one neighbour and a send to the other;
 *   exchange   as all-to-all, but for ranks that have nothing for each other.
 * So but for all-to-all a rank talks to log2(n) others, and has so many connections.
 *
 * An all-gather of five ranks, as rank 0 sees it (it holds the parts in brackets):
 *   step 0  from rank 1 its part                [0 1]
 *   step 1  from rank 2 the parts of 2, 3       [0 1 2 3]
 *   step 2  from rank 4 its part, the last one  [0 1 2 3 4]
 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "comm/tcp_impl.h"

enum { PIECE_BYTES = 256 << 10 };

/* For so long after the last bytes more are expected at once: less than a sleep is then lost. */
static const double moving_seconds = 0.0005;

enum tcp_use { ALL_RECEIVE, ALL_SEND, PAIR_RECEIVE, PAIR_SEND, N_USES };

struct tcp_group {
    struct comm_group base;
    uint64_t key;           /* equal on all its ranks, and no other group's */
    uint32_t number;        /* of the call of all under way */
    int step;               /* of it: how many are done */
    struct tcp_flow *flows; /* of each use, by rank */
};

static struct tcp_comm *tcp_comm_of(const struct comm_group *group)
{
    return (struct tcp_comm *)group->comm;
}

static struct tcp_group *tcp_group_of(const struct comm_group *group)
{
    return (struct tcp_group *)group;
}

static struct tcp_flow *flow_of(const struct comm_group *group, enum tcp_use use, int rank)
{
    return &tcp_group_of(group)->flows[(int)use * group->size + rank];
}

static struct tcp_peer *peer_of(const struct comm_group *group, int rank)
{
    return tcp_peer_of(tcp_comm_of(group), group->ranks[rank]);
}

static int n_steps_of(const struct comm_group *group)
{
    int n = 0;

    while (1 << n < group->size)
        n++;
    return n;
}

/* ---- transfers of the call under way ---- */

static void begin(const struct comm_group *group, enum tcp_use use, int rank,
                  const struct tcp_flow *what)
{
    struct tcp_flow *flow = flow_of(group, use, rank);
    struct tcp_tag tag = { tcp_group_of(group)->key, tcp_group_of(group)->number, 0 };

    if (use == PAIR_RECEIVE || use == PAIR_SEND) {
        tag.is_pair = 1;
        tag.number = flow->tag.number + 1;
    }
    *flow = *what;
    flow->tag = tag;
    if (use == PAIR_SEND || use == ALL_SEND)
        tcp_begin_send(tcp_comm_of(group), peer_of(group, rank), flow);
    else
        tcp_begin_receive(tcp_comm_of(group), peer_of(group, rank), flow);
}

/* n_bytes at a place of a buffer. */
static struct tcp_flow part(const void *buffer, size_t first, size_t n_bytes)
{
    return (struct tcp_flow){ .buffer = (unsigned char *)(uintptr_t)buffer,
                              .first = first,
                              .wrap = SIZE_MAX,
                              .n_bytes = n_bytes };
}

static void copy_own(const struct comm_call *call, size_t from, size_t to)
{
    unsigned char *receive = (unsigned char *)call->receive + to;
    const unsigned char *send = (const unsigned char *)call->send + from;

    if (send != receive)
        memcpy(receive, send, call->n_bytes);
}

/* All parts of the ranks from first on, cyclically. */
static struct tcp_flow ring_part(const struct comm_group *group, const struct comm_call *call,
                                 int first, int n_ranks)
{
    return (struct tcp_flow){ .buffer = call->receive,
                              .first = (size_t)first * call->n_bytes,
                              .wrap = (size_t)group->size * call->n_bytes,
                              .n_bytes = (size_t)n_ranks * call->n_bytes };
}

static int n_ranks_in(const struct comm_group *group, int step)
{
    int left = group->size - (1 << step);

    return left < 1 << step ? left : 1 << step;
}

static void gather_step(const struct comm_group *group, const struct comm_call *call, int step)
{
    struct tcp_flow own = ring_part(group, call, group->rank, n_ranks_in(group, step));

    begin(group, ALL_SEND, group_rank_at(group, -(1 << step)), &own);
}

static void begin_all_gather(const struct comm_group *group, const struct comm_call *call)
{
    copy_own(call, 0, (size_t)group->rank * call->n_bytes);
    for (int step = 0; step < n_steps_of(group); step++) {
        int from = group_rank_at(group, 1 << step);
        struct tcp_flow theirs = ring_part(group, call, from, n_ranks_in(group, step));

        begin(group, ALL_RECEIVE, from, &theirs);
    }
    gather_step(group, call, 0);
}

static void begin_all_to_all(const struct comm_group *group, const struct comm_call *call)
{
    size_t n = call->n_bytes, own = (size_t)group->rank * n;

    copy_own(call, own, own);
    for (int k = 1; k < group->size; k++) {
        int to = group_rank_at(group, k), from = group_rank_at(group, -k);
        struct tcp_flow theirs = part(call->receive, (size_t)from * n, n);
        struct tcp_flow ours = part(call->send, (size_t)to * n, n);

        begin(group, ALL_RECEIVE, from, &theirs);
        begin(group, ALL_SEND, to, &ours);
    }
}

static void begin_exchange(const struct comm_group *group, const struct comm_call *call)
{
    for (int k = 1; k < group->size; k++) {
        int to = group_rank_at(group, k), from = group_rank_at(group, -k);
        const struct comm_part *parts = comm_parts_of(call);
        struct tcp_flow theirs = part(parts[from].receive, 0, parts[from].receive_bytes);
        struct tcp_flow ours = part(parts[to].send, 0, parts[to].send_bytes);

        if (theirs.n_bytes)
            begin(group, ALL_RECEIVE, from, &theirs);
        if (ours.n_bytes)
            begin(group, ALL_SEND, to, &ours);
    }
}

static void begin_rotate(const struct comm_group *group, const struct comm_call *call)
{
    int from = group_rank_at(group, call->peer), to = group_rank_at(group, -call->peer);
    struct tcp_flow theirs = part(call->receive, 0, call->n_bytes);
    struct tcp_flow ours = part(call->send, 0, call->n_bytes);

    begin(group, ALL_RECEIVE, from, &theirs);
    begin(group, ALL_SEND, to, &ours);
}

/* Place i of the tree, counted from the root, has its parent where i's lowest bit is not set. */
static void begin_broadcast(const struct comm_group *group, const struct comm_call *call)
{
    int n = group->size, root = call->peer, place = (group->rank - root + n) % n;
    int reach = place ? place & -place : 1 << n_steps_of(group);
    int parent = (place - reach + root + n) % n;
    struct tcp_flow whole = part(call->receive, 0, call->n_bytes);

    if (place)
        begin(group, ALL_RECEIVE, parent, &whole);
    if (place)
        whole.source = flow_of(group, ALL_RECEIVE, parent);
    for (int bit = reach / 2; bit; bit /= 2)
        if (place + bit < n)
            begin(group, ALL_SEND, (place + bit + root) % n, &whole);
}

/* Tell the next; in the place of a send is kept where the news ends, and whether it is out. */
static void barrier_step(const struct comm_group *group, int step)
{
    int to = group_rank_at(group, 1 << step);
    struct tcp_tag tag = { tcp_group_of(group)->key, tcp_group_of(group)->number, 0 };
    struct tcp_flow *flow = flow_of(group, ALL_SEND, to);

    /* Whoever waits may be the one who connects. */
    tcp_dial_begin(tcp_comm_of(group), peer_of(group, group_rank_at(group, -(1 << step))));
    *flow = (struct tcp_flow){ .peer = peer_of(group, to), .is_open = true };
    flow->n_bytes = (size_t)tcp_tell(tcp_comm_of(group), flow->peer, tag);
}

/* ---- how far it is ---- */

/* Whether the call still needs rank i of the group. */
static bool needs_rank(const struct comm_group *group, enum comm_kind kind, int i)
{
    int step = tcp_group_of(group)->step;

    if (flow_of(group, ALL_RECEIVE, i)->is_open || flow_of(group, ALL_SEND, i)->is_open)
        return true;
    return kind == COMM_BARRIER && step < n_steps_of(group) &&
           i == group_rank_at(group, -(1 << step));
}

/* The first of the call's peers that is gone and has not done its part; NULL if none. */
static const struct tcp_peer *missing_peer(const struct comm_request *request)
{
    const struct comm_group *group = request->group;
    enum comm_kind kind = request->call.kind;
    int peer = request->call.peer;

    if (kind == COMM_SEND || kind == COMM_RECEIVE)
        return peer_of(group, peer)->state == TCP_GONE ? peer_of(group, peer) : NULL;
    for (int i = 0; i < group->size; i++) {
        const struct tcp_peer *other = tcp_comm_of(group)->peers[group->ranks[i]];

        if (other && other->state == TCP_GONE && needs_rank(group, kind, i))
            return other;
    }
    return NULL;
}

/* Whether all transfers of the call that were begun are done; offset: of so many that is known. */
static bool are_flows_done(struct comm_request *request)
{
    const struct comm_group *group = request->group;

    while (request->offset < 2 * (size_t)group->size &&
           !tcp_group_of(group)->flows[request->offset].is_open)
        request->offset++;
    return request->offset == 2 * (size_t)group->size;
}

static int test_gather(struct comm_request *request)
{
    struct comm_group *group = request->group;
    struct tcp_group *own = tcp_group_of(group);

    while (own->step < n_steps_of(group) &&
           !flow_of(group, ALL_RECEIVE, group_rank_at(group, 1 << own->step))->is_open)
        if (++own->step < n_steps_of(group))
            gather_step(group, &request->call, own->step);
    return own->step == n_steps_of(group) && are_flows_done(request);
}

static int test_barrier(struct comm_request *request)
{
    struct comm_group *group = request->group;
    struct tcp_group *own = tcp_group_of(group);
    struct tcp_tag tag = { own->key, own->number, 0 };

    while (own->step < n_steps_of(group) &&
           tcp_was_told(peer_of(group, group_rank_at(group, -(1 << own->step))), tag))
        if (++own->step < n_steps_of(group))
            barrier_step(group, own->step);
    for (int step = 0; step <= own->step && step < n_steps_of(group); step++) {
        struct tcp_flow *flow = flow_of(group, ALL_SEND, group_rank_at(group, 1 << step));

        flow->is_open = flow->peer->control_sent < flow->n_bytes;
    }
    return own->step == n_steps_of(group) && are_flows_done(request);
}

static bool is_done(struct comm_request *request)
{
    const struct comm_group *group = request->group;
    int peer = request->call.peer;

    switch (request->call.kind) {
    case COMM_SEND:
        return !flow_of(group, PAIR_SEND, peer)->is_open;
    case COMM_RECEIVE:
        return !flow_of(group, PAIR_RECEIVE, peer)->is_open;
    case COMM_BARRIER:
        return test_barrier(request);
    case COMM_ALL_GATHER:
        return test_gather(request);
    default:
        return are_flows_done(request);
    }
}

static int tcp_test(struct comm_request *request, struct err *err)
{
    struct tcp_comm *comm = tcp_comm_of(request->group);

    tcp_progress(comm);
    if (comm->failure.code) {
        *err = comm->failure;
        return -1;
    }
    if (is_done(request))
        return COMM_DONE;
    const struct tcp_peer *missing = comm->n_gone ? missing_peer(request) : NULL;
    if (missing)
        return tcp_link_explain(comm, missing, err);
    return clock_seconds() - comm->moved_at < moving_seconds ? COMM_MOVING : COMM_WAITING;
}

static int tcp_start(struct comm_request *request, struct err *err)
{
    struct comm_group *group = request->group;
    const struct comm_call *call = &request->call;
    struct tcp_flow whole;

    (void)err;
    if (call->kind != COMM_SEND && call->kind != COMM_RECEIVE) {
        tcp_group_of(group)->number++;
        tcp_group_of(group)->step = 0;
    }
    switch (call->kind) {
    case COMM_ALL_GATHER:
        begin_all_gather(group, call);
        break;
    case COMM_ALL_TO_ALL:
        begin_all_to_all(group, call);
        break;
    case COMM_BROADCAST:
        begin_broadcast(group, call);
        break;
    case COMM_SEND:
        whole = part(call->send, 0, call->n_bytes);
        begin(group, PAIR_SEND, call->peer, &whole);
        break;
    case COMM_RECEIVE:
        whole = part(call->receive, 0, call->n_bytes);
        begin(group, PAIR_RECEIVE, call->peer, &whole);
        break;
    case COMM_BARRIER:
        barrier_step(group, 0);
        break;
    case COMM_ROTATE:
        begin_rotate(group, call);
        break;
    case COMM_EXCHANGE:
        begin_exchange(group, call);
    }
    return 0;
}

/* ---- groups ---- */

/* Groups of equal ranks and channel are told apart by their order. */
static uint64_t key_of(const struct comm_group *group)
{
    uint32_t head[3] = { (uint32_t)group->size, (uint32_t)group->channel, 0 };
    size_t n_bytes = (size_t)group->size * sizeof *group->ranks;

    for (const struct comm_group *other = group->comm->groups; other; other = other->next)
        head[2] += other->size == group->size && other->channel == group->channel &&
                   !memcmp(other->ranks, group->ranks, n_bytes);
    return XXH3_64bits_withSeed(group->ranks, n_bytes, XXH3_64bits(head, sizeof head));
}

static int tcp_group_open(struct comm_group *base, struct err *err)
{
    struct tcp_group *group = tcp_group_of(base);

    group->key = key_of(base);
    for (const struct comm_group *other = base->comm->groups; other; other = other->next)
        CHECK(other->size == 1 || tcp_group_of(other)->key != group->key);
    group->flows = calloc((size_t)base->size * N_USES, sizeof *group->flows);
    if (!group->flows)
        return err_set(err, ERR_DEVICE, "no memory for a group of %d ranks", base->size);
    return comm_barrier(base, err);
}

static void tcp_group_close(struct comm_group *base)
{
    free(tcp_group_of(base)->flows);
}

static void tcp_destroy(struct comm *base)
{
    struct tcp_comm *comm = (struct tcp_comm *)base;

    tcp_accept_close(comm);
    tcp_dials_close(comm);
    tcp_links_close(comm);
    if (comm->epoll >= 0)
        close(comm->epoll);
    free(comm);
}

static const struct comm_ops tcp_ops = {
    .group_bytes = sizeof(struct tcp_group),
    .group_open = tcp_group_open,
    .group_close = tcp_group_close,
    .destroy = tcp_destroy,
    .start = tcp_start,
    .test = tcp_test,
};

int comm_tcp_create_as(struct comm **comm, const struct comm_wireup *wireup,
                       const struct tcp_settings *settings, struct err *err)
{
    struct tcp_comm *made = calloc(1, sizeof *made);

    CHECK(settings->piece_bytes > 0);
    CHECK(made);
    made->base.ops = &tcp_ops;
    made->base.world_rank = wireup->world_rank;
    made->base.world_size = wireup->world_size;
    made->wireup = wireup;
    made->piece_bytes = settings->piece_bytes;
    made->peers = calloc((size_t)wireup->world_size, sizeof *made->peers);
    CHECK(made->peers);
    made->epoll = epoll_create1(EPOLL_CLOEXEC);
    int status = made->epoll < 0 ? err_set_errno(err, ERR_FAILED, "cannot watch connections")
                                 : tcp_accept_open(made, settings, err);
    if (status) {
        tcp_destroy(&made->base);
        return -1;
    }
    *comm = &made->base;
    return 0;
}

int comm_tcp_create(struct comm **comm, const struct comm_wireup *wireup, struct err *err)
{
    return comm_tcp_create_as(comm, wireup, &(struct tcp_settings){ .piece_bytes = PIECE_BYTES },
                              err);
}
