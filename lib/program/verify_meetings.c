/*
 * verify_meetings.c - where ranks meet: collectives of groups, sends and their receives
 *
 * The n-th collective that a rank begins over an axis and stream meets the n-th of each rank of its
 * group, the n-th send of a channel its n-th receive. They must be of one kind, type and size; and
 * because what is swapped for its like would hang nobody and give wrong numbers, they must also be
 * the same thing: of one micro-batch, and where the ranks run one program, of one function and the
 * same operands; a send meets the same receive's op each time.
 */
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"
#include "layout/axes.h"
#include "program/verify_impl.h"
#include "program/verify_ranks_impl.h"

#define TEXT_BYTES 256
#define MAX_WAITS 8   /* listed where nobody can go on */
#define MAX_AWAITED 3 /* listed of those whom one waits for */

/* ---- in words ---- */

/* "tp rank 1, pp rank 0 (world rank 1)" */
static const char *rank_text(const struct ranks *r, int rank, char text[TEXT_BYTES])
{
    size_t n = 0;

    text[0] = 0;
    for (int i = 0; i < N_AXES; i++) {
        enum mesh_axis axis = mesh_nth_axis(i);

        if (r->mesh->size[axis] > 1)
            n += (size_t)snprintf(text + n, TEXT_BYTES - n, "%s%s rank %d", n ? ", " : "",
                                  axis_name(axis), mesh_coordinate(r->mesh, rank, axis));
    }
    if (r->is_whole)
        snprintf(text + n, TEXT_BYTES - n, n ? " (world rank %d)" : "rank %d", rank);
    return text;
}

/* "reduce_scatter over tp of 4096 bytes (bf16) %17 -> %18 in backward 0, layer 1, micro-batch 2" */
static const char *op_text(const struct ranks *r, const struct transfer *t, char text[TEXT_BYTES])
{
    const struct program *p = r->list[t->rank].program;
    const struct op *op = t->op;
    int id = op->in[0] ? op->in[0] : op->out[0];
    char in[96] = "", out[96] = "", layer[24] = "", micro_batch[32] = "";

    if (op->layer >= 0)
        snprintf(layer, sizeof layer, ", layer %d", op->layer);
    if (t->micro_batch >= 0)
        snprintf(micro_batch, sizeof micro_batch, ", micro-batch %d", t->micro_batch);
    snprintf(text, TEXT_BYTES, "%s over %s of %zu bytes (%s) %s%s%s in %s%s%s",
             op_info(op->kind)->name, axis_name(op->attributes.axis), program_value_bytes(p, id),
             dtype_name(p->values[id].dtype),
             op->in[0] ? verify_value_text(p, op->in[0], in, sizeof in) : "",
             op->in[0] && op->out[0] ? " -> " : "",
             op->out[0] ? verify_value_text(p, op->out[0], out, sizeof out) : "",
             p->functions[t->function].name, layer, micro_batch);
    return text;
}

int meetings_fail(const struct ranks *r, const struct transfer *t, const char *what)
{
    char rank[TEXT_BYTES], op[TEXT_BYTES];

    return err_set(r->err, ERR_FAILED, "program: %s: %s, %s: %s", entry_name(r->entry),
                   rank_text(r, t->rank, rank), op_text(r, t, op), what);
}

static int mismatch(const struct ranks *r, const struct transfer *t, const struct transfer *other,
                    const char *what)
{
    char a[TEXT_BYTES], b[TEXT_BYTES], x[TEXT_BYTES], y[TEXT_BYTES];

    return err_set(r->err, ERR_FAILED, "program: %s: %s: %s enters %s where %s enters %s",
                   entry_name(r->entry), what, rank_text(r, t->rank, a), op_text(r, t, x),
                   rank_text(r, other->rank, b), op_text(r, other, y));
}

/* ---- groups ---- */

static int is_alone(const struct ranks *r, const struct op *op)
{
    return r->mesh->size[op->attributes.axis] == 1;
}

/* The rank of its group that is first on the axis. */
static int first_of(const struct ranks *r, int rank, enum mesh_axis axis)
{
    return rank - mesh_coordinate(r->mesh, rank, axis) * r->stride[axis];
}

static struct group *group_of(const struct ranks *r, const struct transfer *t)
{
    enum mesh_axis axis = t->op->attributes.axis;

    return &r->groups[((int)axis * N_STREAMS + (int)t->op->stream) * r->n +
                      first_of(r, t->rank, axis)];
}

static size_t bytes_of(const struct program *p, int id)
{
    return id ? program_value_bytes(p, id) : 0;
}

static const char *base_name(const struct program *p, int id)
{
    const char *name = p->values[id].name;

    return name ? name : p->values[program_base(p, id)].name;
}

/* What two ranks give to one collective, operand by operand; NULL if it is the same. */
static const char *operands_differ(const struct program *p, int a, const struct program *q, int b,
                                   int is_one_program)
{
    if (p->values[a].dtype != q->values[b].dtype)
        return "other types";
    if (bytes_of(p, a) != bytes_of(q, b))
        return "other sizes";
    if (is_one_program)
        return a != b ? "other operands" : NULL;
    const char *x = base_name(p, a), *y = base_name(q, b);
    return x && y && strcmp(x, y) != 0 ? "other operands" : NULL;
}

/* Why these two can't be one collective; NULL if they can. */
static const char *differ(const struct ranks *r, const struct transfer *t, const struct transfer *u)
{
    const struct program *p = r->list[t->rank].program, *q = r->list[u->rank].program;
    int is_one_program = axis_role(t->op->attributes.axis, PARAMETER_DENSE) != SPLITS_LAYERS;

    if (t->op->kind != u->op->kind || t->op->attributes.group != u->op->attributes.group)
        return "other kinds of collective at one place";
    const char *why = operands_differ(p, t->op->in[0], q, u->op->in[0], is_one_program);
    if (!why)
        why = operands_differ(p, t->op->out[0], q, u->op->out[0], is_one_program);
    if (!why && t->micro_batch != u->micro_batch)
        why = "other micro-batches";
    if (!why && is_one_program &&
        strcmp(p->functions[t->function].name, q->functions[u->function].name) != 0)
        why = "other functions";
    return why;
}

static int begin_collective(struct ranks *r, struct transfer *t)
{
    struct group *group = group_of(r, t);

    t->number = r->list[t->rank].n_met[t->op->attributes.axis][t->op->stream]++;
    if (t->number == group->n) {
        group->meetings = arena_grow(&r->arena, group->meetings, sizeof *group->meetings,
                                     &group->capacity, group->n + 1);
        group->meetings[group->n++] = (struct meeting){ (int)(t - r->transfers), 0 };
    }
    struct meeting *meeting = &group->meetings[t->number];
    const struct transfer *first = &r->transfers[meeting->first];
    const char *why = differ(r, t, first);
    meeting->n_begun++;
    return why ? mismatch(r, t, first, why) : 0;
}

/* ---- sends and receives ---- */

static int way_of(enum stream stream)
{
    if (stream >= STREAM_F_TO_NEXT && stream <= STREAM_F_FROM_PREVIOUS)
        return 0;
    return stream >= STREAM_B_TO_NEXT && stream <= STREAM_B_FROM_PREVIOUS ? 1 : 2;
}

/* The coordinate on the axis of the rank at the other end. */
static int other_end(const struct ranks *r, const struct transfer *t)
{
    enum mesh_axis axis = t->op->attributes.axis;
    int size = r->mesh->size[axis], at = mesh_coordinate(r->mesh, t->rank, axis);

    return ((at + t->op->attributes.peer) % size + size) % size;
}

static int other_rank(const struct ranks *r, const struct transfer *t)
{
    enum mesh_axis axis = t->op->attributes.axis;

    return first_of(r, t->rank, axis) + other_end(r, t) * r->stride[axis];
}

/* Channels from a rank: those of one axis after those of the other, by the end that receives. */
static struct channel *channel_of(const struct ranks *r, const struct transfer *t)
{
    enum mesh_axis axis = t->op->attributes.axis;
    int sends = t->op->kind == OP_SEND;
    int from = sends ? t->rank : other_rank(r, t);
    int to = sends ? other_end(r, t) : mesh_coordinate(r->mesh, t->rank, axis);
    int at = r->channels_at[axis] + to;

    return &r->channels[(from * r->n_channels + at) * N_WAYS + way_of(t->op->stream)];
}

static int join_channel(struct ranks *r, struct transfer *t)
{
    int sends = t->op->kind == OP_SEND;
    struct channel *channel = channel_of(r, t);
    struct queue *end = &channel->ends[sends];

    if (!end->n)
        channel->streams[sends] = t->op->stream;
    if (channel->streams[sends] != t->op->stream)
        return meetings_fail(r, t, "a channel has transfers on two streams, whose order is open");
    t->number = end->n;
    queue_push(&r->arena, end, (int)(t - r->transfers));
    return 0;
}

static int check_pair(const struct ranks *r, const struct transfer *sends,
                      const struct transfer *receives)
{
    const struct program *from = r->list[sends->rank].program;
    const struct program *to = r->list[receives->rank].program;
    int a = sends->op->in[0], b = receives->op->out[0];
    struct given *x = sends->given, *y = receives->given;

    if (sends->micro_batch != receives->micro_batch)
        return mismatch(r, receives, sends, "other micro-batches");
    if (from->values[a].dtype != to->values[b].dtype)
        return mismatch(r, receives, sends, "other types");
    if (program_value_bytes(from, a) != program_value_bytes(to, b))
        return mismatch(r, receives, sends, "other sizes");
    if ((x->partner && x->partner != y) || (y->partner && y->partner != x))
        return mismatch(r, receives, sends, "one of them met another before");
    x->partner = y;
    y->partner = x;
    return 0;
}

/* Where a send and a receive have both begun, they are done. */
static int meet(struct ranks *r, struct transfer *t)
{
    int sends = t->op->kind == OP_SEND;
    struct queue *others = &channel_of(r, t)->ends[!sends];

    if (t->number >= others->n)
        return 0;
    struct transfer *other = &r->transfers[others->transfers[t->number]];
    if (!other->has_begun)
        return 0;
    if (sends ? check_pair(r, t, other) : check_pair(r, other, t))
        return -1;
    t->is_done = other->is_done = 1;
    return 0;
}

/* ---- all of them ---- */

void meetings_open(struct ranks *r)
{
    int *group = arena_array(&r->arena, int, r->n);

    for (int axis = 0; axis < N_AXES; axis++) {
        mesh_group(r->mesh, 0, (enum mesh_axis)axis, group);
        r->stride[axis] = r->mesh->size[axis] > 1 ? group[1] - group[0] : 0;
        r->channels_at[axis] = r->n_channels;
        r->n_channels += r->mesh->size[axis];
    }
    r->channels = arena_array(&r->arena, struct channel, r->n * r->n_channels * N_WAYS);
    r->groups = arena_array(&r->arena, struct group, N_AXES * N_STREAMS * r->n);
}

int meetings_join(struct ranks *r, struct transfer *t)
{
    if (is_alone(r, t->op))
        return 0;
    if (is_transfer_of_two(t->op))
        return join_channel(r, t);
    /* Run has one communicator for them. */
    if (way_of(t->op->stream) < 2)
        return meetings_fail(r, t, "a collective on a stream of sends and receives");
    return 0;
}

int meetings_begin(struct ranks *r, struct transfer *t)
{
    t->has_begun = 1;
    return is_alone(r, t->op) || is_transfer_of_two(t->op) ? 0 : begin_collective(r, t);
}

int meetings_poll(struct ranks *r, struct transfer *t)
{
    if (is_alone(r, t->op)) {
        t->is_done = 1;
        return 0;
    }
    if (is_transfer_of_two(t->op))
        return meet(r, t);
    int size = r->mesh->size[t->op->attributes.axis];
    t->is_done = group_of(r, t)->meetings[t->number].n_begun == size;
    return 0;
}

/* ---- as seen by who compares two times ---- */

int meetings_distance(const struct ranks *r, const struct transfer *t)
{
    if (is_alone(r, t->op))
        return 0;
    if (is_transfer_of_two(t->op))
        return t->number - channel_of(r, t)->ends[t->op->kind != OP_SEND].n;
    return t->has_begun ? t->number - group_of(r, t)->n : 0;
}

/* The newest meetings, to which not all have come: the first to come is one of the rank's group. */
static void tell_group(const struct ranks *r, const struct group *group, int size,
                       struct story *story)
{
    for (int i = group->n - 1; i >= 0 && group->meetings[i].n_begun < size; i--) {
        const struct transfer *first = &r->transfers[group->meetings[i].first];

        story_add(story, group->meetings[i].n_begun);
        story_add(story, first->rank);
        story_add(story, first->place - r->list[first->rank].streams[first->op->stream].n_done);
    }
    story_add(story, 0);
}

void meetings_tell(const struct ranks *r, int rank, struct story *story)
{
    for (int i = 0; i < r->n_channels * N_WAYS; i++) {
        const struct channel *channel = &r->channels[rank * r->n_channels * N_WAYS + i];

        story_add(story, channel->ends[0].n - channel->ends[1].n);
    }
    for (int axis = 0; axis < N_AXES; axis++)
        for (int s = 0; s < N_STREAMS && r->mesh->size[axis] > 1; s++) {
            int first = first_of(r, rank, (enum mesh_axis)axis);
            const struct group *group = &r->groups[(axis * N_STREAMS + s) * r->n + first];

            story_add(story, group->n - r->list[rank].n_met[axis][s]);
            if (rank == first)
                tell_group(r, group, r->mesh->size[axis], story);
        }
}

/* ---- nobody can go on ---- */

/* Awaited is a rank that has not come. */
static void add_awaited(const struct ranks *r, int rank, int n, struct str *out)
{
    char text[TEXT_BYTES];

    if (n < MAX_AWAITED)
        str_printf(out, "%s%s%s", n ? " and " : " for ", rank_text(r, rank, text),
                   is_rank_over(r, rank) ? ", which is at its end" : "");
    else if (n == MAX_AWAITED)
        str_add(out, " and others");
}

static void add_wait(const struct ranks *r, const struct transfer *t, struct str *out)
{
    enum mesh_axis axis = t->op->attributes.axis;
    char rank[TEXT_BYTES], op[TEXT_BYTES];
    int n = 0, first = first_of(r, t->rank, axis);

    str_printf(out, "%s waits in %s", rank_text(r, t->rank, rank), op_text(r, t, op));
    if (is_transfer_of_two(t->op))
        add_awaited(r, other_rank(r, t), n++, out);
    for (int i = 0; !is_transfer_of_two(t->op) && i < r->mesh->size[axis]; i++)
        if (r->list[first + i * r->stride[axis]].n_met[axis][t->op->stream] <= t->number)
            add_awaited(r, first + i * r->stride[axis], n++, out);
}

static void add_gate(const struct ranks *r, int rank, struct str *out)
{
    char text[TEXT_BYTES];
    int n = 0;

    str_printf(out, "%s waits at the gate", rank_text(r, rank, text));
    for (int i = 0; i < r->n; i++)
        if (r->list[i].n_gates < r->list[rank].n_gates)
            add_awaited(r, i, n++, out);
}

/*
 * What is first on a stream and has begun waits for others; what has not begun waits for such a
 * one of its own rank, and is no news.
 */
int meetings_fail_stuck(const struct ranks *r)
{
    struct str text = { 0 };
    char count[48] = "";
    int n = 0;

    for (int i = 0; i < r->n; i++) {
        const struct rank *rank = &r->list[i];

        for (int s = 0; s < N_STREAMS; s++) {
            const struct queue *q = &rank->streams[s];
            const struct transfer *t =
                q->n_done < q->n ? &r->transfers[q->transfers[q->n_done]] : NULL;

            if (!t || !t->has_begun || n++ >= MAX_WAITS)
                continue;
            str_add(&text, n > 1 ? "; " : "");
            add_wait(r, t, &text);
        }
        if (rank->is_at_gate && n++ < MAX_WAITS) {
            str_add(&text, n > 1 ? "; " : "");
            add_gate(r, i, &text);
        }
    }
    if (n > MAX_WAITS)
        snprintf(count, sizeof count, " (%d of %d waits)", MAX_WAITS, n);
    err_set(r->err, ERR_FAILED, "program: %s: ranks wait for ever%s: %s", entry_name(r->entry),
            count, str_text(&text));
    str_release(&text);
    return -1;
}
