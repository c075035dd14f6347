/*
 * replay_rendezvous.c - where ranks meet: collectives of groups, sends and their receives
 *
 * The n-th collective that a rank begins over an axis and stream meets the n-th of each rank of its
 * group, the n-th send of a channel its n-th receive (order.h).
 */
#include "program/replay_impl.h"

/* ---- groups ---- */

int replay_is_local(const struct replay *r, const struct op *op)
{
    return !op_is_collective(op->kind) || mesh_size(r->mesh, op->attributes.axis) == 1;
}

int replay_first_of(const struct replay *r, int rank, enum mesh_axis axis)
{
    return r->first_of[axis] ? r->first_of[axis][rank] : rank;
}

static struct replay_group *group_of(const struct replay *r, const struct replay_transfer *t)
{
    enum mesh_axis axis = t->op->attributes.axis;

    return &r->groups[((int)axis * N_STREAMS + (int)t->op->stream) * r->n +
                      replay_first_of(r, t->rank, axis)];
}

static int begin_collective(struct replay *r, struct replay_transfer *t)
{
    struct replay_group *group = group_of(r, t);

    t->number = r->list[t->rank].n_begun[t->op->attributes.axis][t->op->stream]++;
    if (t->number == group->n) {
        group->rendezvous = arena_grow(&r->arena, group->rendezvous, sizeof *group->rendezvous,
                                       &group->capacity, group->n + 1);
        group->rendezvous[group->n++] = (struct replay_rendezvous){ replay_number(r, t), 0 };
    }
    struct replay_rendezvous *rendezvous = &group->rendezvous[t->number];
    rendezvous->n_begun++;
    return r->watch->on_begin(r->watch->context, t, replay_at(r, rendezvous->first));
}

/* ---- sends and receives ---- */

static int way_of(enum stream stream)
{
    enum stream group = order_group_of(stream);

    return group == STREAM_F_TO_NEXT ? 0 : group == STREAM_B_TO_NEXT ? 1 : 2;
}

/* The coordinate on the axis of the rank at the other end. */
static int other_end(const struct replay *r, const struct replay_transfer *t)
{
    enum mesh_axis axis = t->op->attributes.axis;
    int size = mesh_size(r->mesh, axis), at = mesh_coordinate(r->mesh, t->rank, axis);

    return ((at + t->op->attributes.peer) % size + size) % size;
}

int replay_other_rank(const struct replay *r, const struct replay_transfer *t)
{
    enum mesh_axis axis = t->op->attributes.axis;
    struct mesh_place own = mesh_place(r->mesh, t->rank);
    struct mesh_place other = mesh_place_at(r->mesh, &own, axis, other_end(r, t));

    return mesh_rank_at(r->mesh, &other);
}

/* The channels from a rank, axis by axis, in the order of the receiving ranks. */
static struct replay_channel *channel_of(const struct replay *r, const struct replay_transfer *t)
{
    enum mesh_axis axis = t->op->attributes.axis;
    int sends = t->op->kind == OP_SEND;
    int from = sends ? t->rank : replay_other_rank(r, t);
    int to = sends ? other_end(r, t) : mesh_coordinate(r->mesh, t->rank, axis);
    int at = r->channels_at[axis] + to;

    return &r->channels[(from * r->n_channels + at) * N_WAYS + way_of(t->op->stream)];
}

static void join_channel(struct replay *r, struct replay_transfer *t)
{
    int sends = t->op->kind == OP_SEND;
    struct replay_channel *channel = channel_of(r, t);
    struct replay_queue *end = &channel->ends[sends];

    t->number = end->n;
    replay_queue_push(&r->arena, end, replay_number(r, t));
}

/* A send and its receive are complete when both have begun. */
static int complete_pair(struct replay *r, struct replay_transfer *t)
{
    int sends = t->op->kind == OP_SEND;
    struct replay_queue *others = &channel_of(r, t)->ends[!sends];

    if (t->number >= others->n)
        return 0;
    struct replay_transfer *other = replay_at(r, others->transfers[t->number]);
    if (!other->has_begun)
        return 0;
    t->is_done = other->is_done = 1;
    if (r->watch->on_end(r->watch->context, t, other) < 0)
        return -1;
    t->posted->partner = other->posted;
    other->posted->partner = t->posted;
    return 0;
}

const struct replay_transfer *replay_first_sent(const struct replay *r,
                                                const struct replay_transfer *t)
{
    return replay_at(r, channel_of(r, t)->ends[t->op->kind == OP_SEND].transfers[0]);
}

int replay_is_point_to_point(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_RECEIVE;
}

/* ---- all of them ---- */

/* Of each rank, the rank at the first place of its group. */
static int *list_firsts(struct replay *r, enum mesh_axis axis)
{
    int *firsts = arena_array(&r->arena, int, r->n);

    for (int rank = 0; rank < r->n; rank++) {
        struct mesh_place own = mesh_place(r->mesh, rank);
        struct mesh_place first = mesh_place_at(r->mesh, &own, axis, 0);

        firsts[rank] = mesh_rank_at(r->mesh, &first);
    }
    return firsts;
}

void replay_open_rendezvous(struct replay *r)
{
    for (int axis = 0; axis < N_GROUP_AXES; axis++) {
        int size = mesh_size(r->mesh, (enum mesh_axis)axis);

        r->channels_at[axis] = r->n_channels;
        r->n_channels += size;
        if (size > 1)
            r->first_of[axis] = list_firsts(r, (enum mesh_axis)axis);
    }
    r->channels = arena_array(&r->arena, struct replay_channel, r->n * r->n_channels * N_WAYS);
    r->groups = arena_array(&r->arena, struct replay_group, N_GROUP_AXES * N_STREAMS * r->n);
}

void replay_join(struct replay *r, struct replay_transfer *t)
{
    if (!replay_is_local(r, t->op) && replay_is_point_to_point(t->op))
        join_channel(r, t);
}

int replay_begin(struct replay *r, struct replay_transfer *t)
{
    t->has_begun = 1;
    if (!replay_is_local(r, t->op) && !replay_is_point_to_point(t->op))
        return begin_collective(r, t);
    return r->watch->on_begin(r->watch->context, t, t);
}

int replay_poll(struct replay *r, struct replay_transfer *t)
{
    if (!replay_is_local(r, t->op) && replay_is_point_to_point(t->op))
        return complete_pair(r, t);
    int size = mesh_size(r->mesh, t->op->attributes.axis);
    t->is_done = replay_is_local(r, t->op) || group_of(r, t)->rendezvous[t->number].n_begun == size;
    return t->is_done ? r->watch->on_end(r->watch->context, t, t) : 0;
}

/* ---- numbers of a snapshot ---- */

int replay_distance(const struct replay *r, const struct replay_transfer *t)
{
    if (replay_is_local(r, t->op))
        return 0;
    if (replay_is_point_to_point(t->op))
        return t->number - channel_of(r, t)->ends[t->op->kind != OP_SEND].n;
    return t->has_begun ? t->number - group_of(r, t)->n : 0;
}

/* The rendezvous that not all ranks of the group have begun: how many have, and which rank was
 * first. */
static void add_group(const struct replay *r, const struct replay_group *group, int size,
                      struct replay_snapshot *snapshot)
{
    for (int i = group->n - 1; i >= 0 && group->rendezvous[i].n_begun < size; i--) {
        const struct replay_transfer *first = replay_at(r, group->rendezvous[i].first);

        replay_snapshot_add(snapshot, group->rendezvous[i].n_begun);
        replay_snapshot_add(snapshot, first->rank);
        replay_snapshot_add(snapshot,
                            first->place - r->list[first->rank].streams[first->op->stream].n_done);
    }
    replay_snapshot_add(snapshot, 0);
}

void replay_snapshot_peers(const struct replay *r, int rank, struct replay_snapshot *snapshot)
{
    for (int i = 0; i < r->n_channels * N_WAYS; i++) {
        const struct replay_channel *channel = &r->channels[rank * r->n_channels * N_WAYS + i];

        replay_snapshot_add(snapshot, channel->ends[0].n - channel->ends[1].n);
    }
    for (int axis = 0; axis < N_GROUP_AXES; axis++)
        for (int s = 0; s < N_STREAMS && r->first_of[axis]; s++) {
            int first = replay_first_of(r, rank, (enum mesh_axis)axis);
            const struct replay_group *group = &r->groups[(axis * N_STREAMS + s) * r->n + first];

            replay_snapshot_add(snapshot, group->n - r->list[rank].n_begun[axis][s]);
            if (rank == first)
                add_group(r, group, mesh_size(r->mesh, (enum mesh_axis)axis), snapshot);
        }
}
