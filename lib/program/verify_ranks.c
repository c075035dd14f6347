/*
 * verify_ranks.c - the programs of a mesh's ranks, executed against each other without their
 * numbers
 *
 * A replay (replay.h): if it comes to its end there is no deadlock, with any communicator, because
 * in it nothing is buffered. Transfers that meet must be of one kind, dtype and size. An exchange
 * of two equal transfers would not deadlock but give wrong numbers, so transfers that meet must
 * also be the same thing: of one micro-batch, and, where the ranks run one program, of one function
 * and the same operands; a send meets the same receive op each time.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "layout/axes.h"
#include "program/passes.h"
#include "program/replay.h"
#include "program/verify_impl.h"

#define TEXT_BYTES 256
#define MAX_WAITS 8   /* waiting ranks that a deadlock's message lists */
#define MAX_AWAITED 3 /* ranks listed that one of them waits for */

struct checking {
    const struct replay *replay;
    int is_whole; /* the mesh is that of the programs */
    struct err *err;
};

/* ---- text of messages ---- */

/* "tp rank 1, pp rank 0 (world rank 1)" */
static const char *rank_text(const struct checking *c, int rank, char text[TEXT_BYTES])
{
    size_t n = 0;

    text[0] = 0;
    for (int i = 0; i < N_AXES; i++) {
        enum mesh_axis axis = mesh_nth_axis(c->replay->mesh, i);

        if (c->replay->mesh->size[axis] > 1)
            n += (size_t)snprintf(text + n, TEXT_BYTES - n, "%s%s rank %d", n ? ", " : "",
                                  axis_name(axis), mesh_coordinate(c->replay->mesh, rank, axis));
    }
    if (c->is_whole)
        snprintf(text + n, TEXT_BYTES - n, n ? " (world rank %d)" : "rank %d", rank);
    return text;
}

/* "reduce_scatter over tp of 4096 bytes (bf16) %17 -> %18 in backward 0, layer 1, micro-batch 2" */
static const char *op_text(const struct checking *c, const struct replay_transfer *t,
                           char text[TEXT_BYTES])
{
    const struct program *p = c->replay->list[t->rank].program;
    const struct op *op = t->op;
    int id = op->in[OPS_FIRST] ? op->in[OPS_FIRST] : op->out[OPS_FIRST];
    char in[96] = "", out[96] = "", layer[24] = "", micro_batch[32] = "";

    if (op->layer >= 0)
        snprintf(layer, sizeof layer, ", layer %d", op->layer);
    if (t->micro_batch >= 0)
        snprintf(micro_batch, sizeof micro_batch, ", micro-batch %d", t->micro_batch);
    snprintf(text, TEXT_BYTES, "%s over %s of %zu bytes (%s) %s%s%s in %s%s%s",
             op_info(op->kind)->name, axis_name(op->attributes.axis), program_value_bytes(p, id),
             dtype_name(p->values[id].dtype),
             op->in[OPS_FIRST] ? verify_value_text(p, op->in[OPS_FIRST], in, sizeof in) : "",
             op->in[OPS_FIRST] && op->out[OPS_FIRST] ? " -> " : "",
             op->out[OPS_FIRST] ? verify_value_text(p, op->out[OPS_FIRST], out, sizeof out) : "",
             p->functions[t->function].name, layer, micro_batch);
    return text;
}

static int fail(const struct checking *c, const struct replay_transfer *t, const char *what)
{
    char rank[TEXT_BYTES], op[TEXT_BYTES];

    return err_set(c->err, ERR_FAILED, "program: %s: %s, %s: %s", entry_name(c->replay->entry),
                   rank_text(c, t->rank, rank), op_text(c, t, op), what);
}

static int mismatch(const struct checking *c, const struct replay_transfer *t,
                    const struct replay_transfer *other, const char *what)
{
    char a[TEXT_BYTES], b[TEXT_BYTES], x[TEXT_BYTES], y[TEXT_BYTES];

    return err_set(c->err, ERR_FAILED, "program: %s: %s: %s enters %s where %s enters %s",
                   entry_name(c->replay->entry), what, rank_text(c, t->rank, a), op_text(c, t, x),
                   rank_text(c, other->rank, b), op_text(c, other, y));
}

/* ---- transfers that meet ---- */

static size_t bytes_of(const struct program *p, int id)
{
    return id ? program_value_bytes(p, id) : 0;
}

static const char *base_name(const struct program *p, int id)
{
    const char *name = p->values[id].name;

    return name ? name : p->values[program_base(p, id)].name;
}

/* How the operands of two ranks' parts of one collective differ; NULL if they do not. */
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

/* Why these two cannot be one collective; NULL if they can. */
static const char *differ(const struct checking *c, const struct replay_transfer *t,
                          const struct replay_transfer *u)
{
    const struct program *p = c->replay->list[t->rank].program;
    const struct program *q = c->replay->list[u->rank].program;
    int is_one_program = axis_role(t->op->attributes.axis, PARAMETER_DENSE) != SPLITS_LAYERS;

    if (t->op->kind != u->op->kind || t->op->attributes.group != u->op->attributes.group ||
        t->op->attributes.peer != u->op->attributes.peer ||
        t->op->attributes.n_experts != u->op->attributes.n_experts)
        return "other kinds of collective at one place";
    const char *why =
        operands_differ(p, t->op->in[OPS_FIRST], q, u->op->in[OPS_FIRST], is_one_program);
    if (!why)
        why = operands_differ(p, t->op->out[OPS_FIRST], q, u->op->out[OPS_FIRST], is_one_program);
    if (!why && t->micro_batch != u->micro_batch)
        why = "other micro-batches";
    if (!why && is_one_program &&
        strcmp(p->functions[t->function].name, q->functions[u->function].name) != 0)
        why = "other functions";
    return why;
}

static int check_pair(const struct checking *c, const struct replay_transfer *sends,
                      const struct replay_transfer *receives)
{
    const struct program *from = c->replay->list[sends->rank].program;
    const struct program *to = c->replay->list[receives->rank].program;
    int a = sends->op->in[SEND_X], b = receives->op->out[RECEIVE_Y];
    const struct replay_posted_op *x = sends->posted, *y = receives->posted;

    if (sends->micro_batch != receives->micro_batch)
        return mismatch(c, receives, sends, "other micro-batches");
    if (from->values[a].dtype != to->values[b].dtype)
        return mismatch(c, receives, sends, "other types");
    if (program_value_bytes(from, a) != program_value_bytes(to, b))
        return mismatch(c, receives, sends, "other sizes");
    if ((x->partner && x->partner != y) || (y->partner && y->partner != x))
        return mismatch(c, receives, sends, "one of them met another before");
    return 0;
}

/* ---- deadlock ---- */

/* Add the ranks that have not reached the gate. */
static void add_awaited(const struct checking *c, int rank, int n, struct str *out)
{
    char text[TEXT_BYTES];

    if (n < MAX_AWAITED)
        str_printf(out, "%s%s%s", n ? " and " : " for ", rank_text(c, rank, text),
                   replay_is_over(c->replay, rank) ? ", which is at its end" : "");
    else if (n == MAX_AWAITED)
        str_add(out, " and others");
}

static void add_wait(const struct checking *c, const struct replay_transfer *t, struct str *out)
{
    enum mesh_axis axis = t->op->attributes.axis;
    char rank[TEXT_BYTES], op[TEXT_BYTES];
    int n = 0, size = mesh_size(c->replay->mesh, axis);
    int *group = calloc((size_t)size, sizeof *group);

    CHECK(group);
    mesh_group(c->replay->mesh, t->rank, axis, group);
    str_printf(out, "%s waits in %s", rank_text(c, t->rank, rank), op_text(c, t, op));
    if (replay_is_point_to_point(t->op))
        add_awaited(c, replay_other_rank(c->replay, t), n++, out);
    for (int i = 0; !replay_is_point_to_point(t->op) && i < size; i++)
        if (c->replay->list[group[i]].n_begun[axis][t->op->stream] <= t->number)
            add_awaited(c, group[i], n++, out);
    free(group);
}

static void add_gate(const struct checking *c, int rank, struct str *out)
{
    char text[TEXT_BYTES];
    int n = 0;

    str_printf(out, "%s waits at the gate", rank_text(c, rank, text));
    for (int i = 0; i < c->replay->n; i++)
        if (c->replay->list[i].n_gates < c->replay->list[rank].n_gates)
            add_awaited(c, i, n++, out);
}

/*
 * The first transfer of a stream, if it has begun, waits for other ranks. If it has not begun it
 * waits for one of its own rank, which is listed.
 */
static int fail_stuck(void *context)
{
    const struct checking *c = context;
    struct str text = { 0 };
    char count[48] = "";
    int n = 0;

    for (int i = 0; i < c->replay->n; i++) {
        const struct replay_rank *rank = &c->replay->list[i];

        for (int s = 0; s < N_STREAMS; s++) {
            const struct replay_queue *q = &rank->streams[s];
            const struct replay_transfer *t =
                q->n_done < q->n ? replay_at(c->replay, q->transfers[q->n_done]) : NULL;

            if (!t || !t->has_begun || n++ >= MAX_WAITS)
                continue;
            str_add(&text, n > 1 ? "; " : "");
            add_wait(c, t, &text);
        }
        if (rank->is_at_gate && n++ < MAX_WAITS) {
            str_add(&text, n > 1 ? "; " : "");
            add_gate(c, i, &text);
        }
    }
    if (n > MAX_WAITS)
        snprintf(count, sizeof count, " (%d of %d waits)", MAX_WAITS, n);
    err_set(c->err, ERR_FAILED, "program: %s: deadlock%s: %s", entry_name(c->replay->entry), count,
            str_text(&text));
    str_release(&text);
    return -1;
}

/* ---- all ranks ---- */

/* The transfers of a channel are on one stream, without collectives between them. */
static int check_posted(void *context, const struct replay_transfer *t)
{
    const struct checking *c = context;

    if (t->n_after > ORDER_MAX_AFTER)
        return fail(c, t, "comes after too many others");
    if (replay_is_local(c->replay, t->op))
        return 0;
    if (replay_is_point_to_point(t->op))
        return replay_first_sent(c->replay, t)->op->stream == t->op->stream
                   ? 0
                   : fail(c, t, "a channel has transfers on two streams, whose order is open");
    /* Both would share one communicator. */
    enum stream group = order_group_of(t->op->stream);
    if (group == STREAM_F_TO_NEXT || group == STREAM_B_TO_NEXT)
        return fail(c, t, "a collective on a stream of sends and receives");
    return 0;
}

static int check_begun(void *context, const struct replay_transfer *t,
                       const struct replay_transfer *first)
{
    const struct checking *c = context;
    const char *why = t == first ? NULL : differ(c, t, first);

    return why ? mismatch(c, t, first, why) : 0;
}

static int check_ended(void *context, const struct replay_transfer *t,
                       const struct replay_transfer *other)
{
    if (t == other)
        return 0;
    return t->op->kind == OP_SEND ? check_pair(context, t, other) : check_pair(context, other, t);
}

/* Check that the mesh's axes have the sizes of the programs'. Returns whether it has all of their
 * axes. */
static int check_mesh(const struct program *const *programs, const struct mesh *mesh)
{
    int is_whole = 1;

    for (int i = 0; i < mesh_world_size(mesh); i++)
        for (int axis = 0; axis < N_AXES; axis++) {
            int size = programs[i]->mesh.size[axis];

            CHECK(mesh->size[axis] == 1 || mesh->size[axis] == size);
            is_whole &= mesh->size[axis] == size;
        }
    return is_whole;
}

static bool is_run(const struct program *const *programs, const struct mesh *mesh,
                   enum entry_kind e)
{
    for (int i = 0; i < mesh_world_size(mesh); i++)
        if (programs[i]->entries[e].n_actions)
            return true;
    return false;
}

int verify_ranks_in_way(const struct program *const *programs, const struct mesh *mesh,
                        struct verify_way *way, struct err *err)
{
    struct checking checking = { .is_whole = check_mesh(programs, mesh), .err = err };
    const struct replay_watch watch = { &checking, check_posted, check_begun, check_ended,
                                        fail_stuck };
    int status = 0;

    for (int e = 0; e < N_ENTRIES && !status; e++) {
        struct replay replay = { .mesh = mesh, .entry = (enum entry_kind)e, .watch = &watch };

        if (!is_run(programs, mesh, (enum entry_kind)e))
            continue;
        checking.replay = &replay;
        status = replay_run(&replay, programs, way->in_full);
        way->n_walked += replay.n_walked;
        replay_release(&replay);
    }
    return status;
}

int verify_ranks(const struct program *const *programs, const struct mesh *mesh, struct err *err)
{
    return verify_ranks_in_way(programs, mesh, &(struct verify_way){ 0 }, err);
}
