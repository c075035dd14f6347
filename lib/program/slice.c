/*
 * slice.c - slices of rows, each of which travels while the next is computed
 *
 * A row of a product, a norm or an activation depends on that row alone, so an op can be cut into
 * slices of rows, and the collective behind it as well. Of two slices:
 *
 *     F  %41 = linear %39, out.weight             F  %41[0] = linear %39[0], out.weight
 *     F  %42 = reduce_scatter %41  over tp        F  %42[0] = reduce_scatter %41[0]  over tp
 *     F  %44, .. = add_rmsnorm %29, %42     ->    F  %41[1] = linear %39[1], out.weight
 *     F  %46 = all_gather %44  over tp            F  %42[1] = reduce_scatter %41[1]  over tp
 *     F  %47 = linear %46, gate_up.weight         F  %44[0], .. = add_rmsnorm %29[0], %42[0]
 *                                                 F  %46[0] = all_gather %44[0]  over tp
 *                                                 ...
 *
 * Fine-grained execution of AccTFM (TPDS 2022), here along tokens; with two slices of whole
 * sequences, which attention is cut into as well, Domino (arXiv:2409.15241). What sums over rows (a
 * weight's gradient) reads all rows behind the last slice.
 *
 * Keys and values that attention reads are gathered over cp slice by slice, too, behind the product
 * and the rotation of the slice; so are sums of their gradients ahead of the products behind them,
 * and heads are exchanged for rows behind qkv's product and ahead of attention_out's. Where in all
 * ranks' rows those of a slice are, the op knows: each slice is a group of the gathered value
 * (program.h). Products of gathered rows (fastseq) have the groups of each slice as it arrives.
 *
 * What goes to experts on other ranks, and comes back, is cut by experts instead of by rows:
 * slice_experts.c.
 *
 * With sequence parallelism a rank has a period of rows. Slice i of all rows is the i-th part of
 * each rank's period, as many pieces as there are ranks. No row changes its rank or its place, so
 * that sums over rows stay as they are. Collectives, and products, take all pieces of a slice at
 * once, as a view each of whose rows is a piece; other ops are one a piece. Values are cut into
 * views; which ops wait for which slice is said by their parts (program.h).
 *
 * A *site* is what lies between two ops that need all rows, such as attention's: how many slices
 * are best for it does not depend on other sites, so that the dynamic programme of AccTFM comes
 * down to a choice for each (slice_order.c plays them).
 */
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "program/order.h"
#include "program/slice_impl.h"

/* What a plan must gain by the times, in per cent. */
#define GAIN_MIN 2

static const int counts[] = { 2, 4, 8 };

/* ---- how many slices ---- */

/* Rows of the period in each of n slices: whole tiles, or whole sequences. */
static int64_t rows_for(const struct slicer *s, int n, int unit)
{
    int64_t rows = (s->period + n - 1) / n;

    return (rows + unit - 1) / unit * unit;
}

/* Groups of a piece of a slice: the runs that it is for the products of all ranks' rows. */
static int n_groups(const struct slicer *s, const struct op *op, int64_t rows)
{
    bool is_read_joined = s->n_joined > 1 && op->attributes.axis == axes_heads();

    return is_read_joined || slice_is_joined(s, op) ? max_int(1, slice_n_runs(s, rows)) : 1;
}

/* These are not any number. */
static bool has_groups(const struct slicer *s, const struct op *op, int64_t rows)
{
    return !(slice_is_of_sequences(op) || slice_is_joined(s, op)) ||
           ceil_div(s->period, rows) * s->n_pieces * n_groups(s, op, rows) <= PROGRAM_MAX_PARTS;
}

static bool is_cut(const struct slicer *s, const struct op *op, int64_t rows)
{
    return rows < s->period && slice_is_cut(s, op, rows) && has_groups(s, op, rows);
}

/* Cut ops begin .. end - 1 as far as they can be, those of experts into at most n groups; whether a
 * collective is. Where none of rows is, rows stay whole. */
static bool cut(struct slicer *s, int begin, int end, int64_t rows, int n)
{
    bool moves_rows = false, moves_groups = false;

    for (int i = begin; i < end && !s->options->experts_alone; i++)
        moves_rows |=
            op_is_collective(s->function->ops[i].kind) && is_cut(s, &s->function->ops[i], rows);
    for (int i = begin; i < end; i++) {
        const struct op *op = &s->function->ops[i];
        int groups = slice_groups_for(slice_experts(s, op), n);

        s->slice_rows[i] = groups ? -groups : moves_rows && is_cut(s, op, rows) ? rows : 0;
        moves_groups |= groups && op_is_collective(op->kind);
    }
    return moves_rows || moves_groups;
}

/* How long they take. */
static int64_t play(struct slicer *s, int begin, int end)
{
    struct slice_tasks t = slice_list_tasks(s, begin, end);
    int64_t ns = slice_order(t.list, t.n, arena_array(&t.arena, int, t.n));

    slice_release_tasks(&t);
    return ns;
}

/* The end of the site that begins there: behind the next op that needs all rows. */
static int end_of_site(const struct slicer *s, int begin)
{
    int i = begin;

    while (i < s->function->n_ops) {
        const struct op *op = &s->function->ops[i++];

        if (!order_is_async(op) && !slice_is_cut(s, op, s->unit) &&
            !slice_is_between_experts(s, op) && !slice_only_accumulates(s->program, op))
            break;
    }
    return i;
}

static void choose_of_site(struct slicer *s, int begin, int end)
{
    int64_t least;
    int best = 1;

    cut(s, begin, end, s->period, 1);
    least = play(s, begin, end) * (100 - GAIN_MIN) / 100;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (!cut(s, begin, end, rows_for(s, counts[i], s->unit), counts[i]))
            continue;
        int64_t ns = play(s, begin, end);
        if (ns < least) {
            least = ns;
            best = counts[i];
        }
    }
    cut(s, begin, end, best > 1 ? rows_for(s, best, s->unit) : s->period, best);
}

static bool is_like(const struct slicer *s, int a, int b)
{
    const struct op *x = &s->function->ops[a], *y = &s->function->ops[b];
    bool like = x->kind == y->kind && x->phase == y->phase && x->stream == y->stream;

    for (int k = 0; k < ORDER_N_OPERANDS && like; k++) {
        const struct value *v = &s->program->values[slice_operand(x, k)],
                           *w = &s->program->values[slice_operand(y, k)];

        like = v->rows == w->rows && v->cols == w->cols && v->dtype == w->dtype;
    }
    return like;
}

/* The site that ends where this one begins, or that before it, if it is of the same ops on operands
 * of the same shapes, as in the layer before: its begin; -1: neither. */
static int find_like(const struct slicer *s, const int begins[2], int begin, int end)
{
    for (int i = 0; i < 2; i++) {
        int n = end - begin, at = begins[i];

        if (at < 0 || at + n > begin)
            continue;
        while (n > 0 && is_like(s, at + n - 1, begin + n - 1))
            n--;
        if (!n)
            return at;
    }
    return -1;
}

static void cut_sites(struct slicer *s)
{
    int n = s->options->n_slices, n_ops = s->function->n_ops;

    if (n) {
        cut(s, 0, n_ops, rows_for(s, n, s->unit), n);
        return;
    }
    int begins[2] = { -1, -1 };
    for (int begin = 0, end; begin < n_ops; begin = end) {
        end = end_of_site(s, begin);
        int like = find_like(s, begins, begin, end);
        if (like >= 0)
            memcpy(s->slice_rows + begin, s->slice_rows + like,
                   sizeof *s->slice_rows * (size_t)(end - begin));
        else
            choose_of_site(s, begin, end);
        begins[1] = begins[0];
        begins[0] = begin;
    }
}

/* Into so many slices of whole sequences, if there are any. */
static void cut_sequences(struct slicer *s, int n)
{
    int seq_len = s->options->seq_len;

    s->has_sequences = true;

    if (seq_len && s->period % seq_len == 0)
        cut(s, 0, s->function->n_ops, rows_for(s, n, seq_len), 1);
    else
        cut(s, 0, s->function->n_ops, s->period, 1);
}

/* What is best of what was tried. */
struct chosen {
    int64_t *slice_rows, least;
    bool has_sequences;
};

static void keep_if_better(struct slicer *s, struct chosen *chosen)
{
    int64_t ns = play(s, 0, s->function->n_ops);

    if (chosen->least && ns >= chosen->least * (100 - GAIN_MIN) / 100)
        return;
    chosen->least = ns;
    chosen->has_sequences = s->has_sequences;
    memcpy(chosen->slice_rows, s->slice_rows, sizeof *s->slice_rows * (size_t)s->function->n_ops);
}

/* Whether it is a collective that can be cut. */
static bool is_cut_collective(const struct slicer *s, int op)
{
    const struct op *o = &s->function->ops[op];

    return op_is_collective(o->kind) && (slice_experts(s, o) > 1 || slice_is_cut(s, o, s->unit));
}

static void choose(struct slicer *s)
{
    struct chosen chosen = { .slice_rows = arena_array(&s->arena, int64_t, s->function->n_ops) };

    if (s->options->kind == OVERLAP_SLICES) {
        cut_sites(s);
        return;
    }
    if (s->options->kind == OVERLAP_HALVES) {
        cut_sequences(s, 2);
        return;
    }
    cut(s, 0, s->function->n_ops, s->period, 1);
    keep_if_better(s, &chosen);
    cut_sites(s);
    keep_if_better(s, &chosen);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        cut_sequences(s, counts[i]);
        keep_if_better(s, &chosen);
    }
    s->has_sequences = chosen.has_sequences;
    memcpy(s->slice_rows, chosen.slice_rows, sizeof *s->slice_rows * (size_t)s->function->n_ops);
}

/* ---- what is said of it ---- */

/* Whether it is an exchange of parts of sequences that stays whole: a ring's, a window's. */
static bool is_whole_exchange(const struct slicer *s, int op)
{
    return s->function->ops[op].stream == STREAM_CP && !is_cut_collective(s, op);
}

/* like: what was said of a site of the same ops, or NULL. */
static struct slice_site *record(struct slicer *s, int begin, int end,
                                 const struct slice_site *like)
{
    struct slice_site *site = arena_new(&s->program->arena, struct slice_site), **last;
    int64_t *rows = s->slice_rows;

    if (like)
        *site = *like;
    else
        *site = (struct slice_site){ .has_sequences = s->has_sequences, .ns = play(s, begin, end) };
    site->function = s->number;
    site->next = NULL;
    site->layer = -1;
    site->n_slices = 1;
    for (int i = end - 1; i >= begin; i--)
        if (is_whole_exchange(s, i)) {
            site->layer = s->function->ops[i].layer;
            site->has_ring |= s->function->ops[i].kind == OP_ROTATE;
        } else if (is_cut_collective(s, i)) {
            site->layer = s->function->ops[i].layer;
            site->n_slices = slice_count(s, i);
            site->has_experts = s->slice_rows[i] < 0;
        }
    for (last = &s->program->slice_sites; *last; last = &(*last)->next)
        ;
    *last = site;
    if (like)
        return site;
    s->slice_rows = arena_array(&s->arena, int64_t, s->function->n_ops);
    site->whole_ns = play(s, begin, end);
    struct slice_tasks t = slice_list_tasks(s, begin, end);
    for (int i = 0; i < t.n; i++)
        *(t.list[i].stream == STREAM_COMPUTE ? &site->compute_ns : &site->moved_ns) += t.list[i].ns;
    slice_release_tasks(&t);
    s->slice_rows = rows;
    return site;
}

/* Those with a collective. */
static void record_sites(struct slicer *s)
{
    int n = s->function->n_ops, begins[2] = { -1, -1 };
    const struct slice_site *sites[2] = { NULL, NULL };

    for (int begin = 0, end; begin < n; begin = end) {
        bool moves = false;

        end = s->has_sequences ? n : end_of_site(s, begin);
        for (int i = begin; i < end; i++)
            moves |= is_cut_collective(s, i) || is_whole_exchange(s, i);
        int like = find_like(s, begins, begin, end);
        const struct slice_site *of_like = like < 0 ? NULL : sites[like == begins[0] ? 0 : 1];
        begins[1] = begins[0];
        sites[1] = sites[0];
        begins[0] = begin;
        sites[0] = moves ? record(s, begin, end, of_like) : NULL;
    }
}

/* ---- emission ---- */

struct view_entry {
    int64_t row, rows;
    bool is_flat;
    int id;
    struct view_entry *next;
};

/* What of a base ops wait for apart; where sites differ, by the smaller slices. */
static void set_parts(struct slicer *s, int id, int64_t rows)
{
    struct value *base = &s->program->values[program_whole(s->program, id)];
    int64_t is = base->part_rows;

    if (base->rows % s->period || base->n_groups || (is && base->part_period != s->period))
        return;
    base->part_period = s->period;
    base->part_rows = !is || (is % rows == 0) ? rows : rows % is == 0 ? is : s->period;
}

/* Rows of a value; flat: as columns, of those of each period one row. */
static int view(struct slicer *s, int id, int64_t row, int64_t rows, bool is_flat)
{
    const struct value v = s->program->values[id];
    int64_t n = v.rows / s->period;
    struct view_entry *e = s->views[id];

    while (e && (e->row != row || e->rows != rows || e->is_flat != is_flat))
        e = e->next;
    if (e)
        return e->id;
    int made = is_flat ? program_view(s->program, id, row * v.stride, n, rows * v.cols,
                                      s->period * v.stride)
                       : program_view(s->program, id, row * v.stride, rows, v.cols, v.stride);
    e = arena_new(&s->arena, struct view_entry);
    *e = (struct view_entry){ row, rows, is_flat, made, s->views[id] };
    s->views[id] = e;
    return made;
}

/* Parts of sequences: the slice's rows, and the group of all that they are. */
static void emit_of_sequences(struct slicer *s, int function, const struct slice_task *task,
                              int piece)
{
    struct op op = slice_op(s, task->op, task->slice);
    bool makes_whole = ops_makes_whole(op.kind);
    int *part = makes_whole ? &op.in[OPS_FIRST] : &op.out[OPS_FIRST];
    int *whole = makes_whole ? &op.out[OPS_FIRST] : &op.in[OPS_FIRST];
    int64_t rows = slice_n_rows(s, task->op, task->slice);
    int64_t size = s->program->values[*whole].rows / s->program->values[*part].rows;
    int n = n_groups(s, &op, s->slice_rows[task->op]);

    op.attributes.part_rows = s->period * s->n_pieces;
    op.attributes.first = piece * s->period + task->slice * s->slice_rows[task->op];
    set_parts(s, *part, s->slice_rows[task->op]);
    *part = view(s, *part, op.attributes.first, rows, false);
    *whole = program_groups(s->program, *whole, slice_count(s, task->op) * s->n_pieces * n,
                            (task->slice * s->n_pieces + piece) * n, n, size * rows);
    program_emit(s->program, function, &op);
}

/* Rows of a group; where what wrote them has other groups, of all of these. */
static int rows_of_group(struct slicer *s, int id, int of, int group, struct slice_rows at)
{
    const struct value v = s->program->values[id];

    if (v.n_groups && v.n_groups != of)
        return program_view(s->program, id, at.first * v.stride, at.n, v.cols, v.stride);
    return program_rows_of_group(s->program, id, of, group, at.first, at.n);
}

/* An op on rows of several ranks: one for each run. */
static void emit_joined(struct slicer *s, int function, const struct slice_task *task, int piece)
{
    const struct op whole = slice_op(s, task->op, task->slice);
    int64_t cut_rows = s->slice_rows[task->op], first = piece * s->period + task->slice * cut_rows;
    int64_t rows = slice_n_rows(s, task->op, task->slice);
    int n = slice_n_runs(s, cut_rows), of = slice_count(s, task->op) * s->n_pieces * n;

    for (int run = 0; run < n; run++) {
        struct slice_rows at = slice_run(s, first, rows, run);
        int group = (task->slice * s->n_pieces + piece) * n + run;
        struct op op = whole;

        for (int k = 0; k < ORDER_N_OPERANDS; k++) {
            int *id = k < OPS_MAX_INPUTS ? &op.in[k] : &op.out[k - OPS_MAX_INPUTS];

            if (*id && slice_has_rows(slice_operand_info(&op, k)->rows))
                *id = rows_of_group(s, *id, of, group, at);
        }
        program_emit(s->program, function, &op);
    }
}

/* Rows of one piece; of collectives, and of ops in runs, of all pieces. */
static void emit_piece(struct slicer *s, int function, const struct slice_task *task, int piece)
{
    struct op op = slice_op(s, task->op, task->slice);
    int64_t row = task->slice * s->slice_rows[task->op];
    int64_t rows = slice_n_rows(s, task->op, task->slice);
    bool moves = op_is_collective(op.kind), in_runs = slice_is_in_runs(s, &op);
    bool is_flat = (moves || in_runs) && s->n_pieces > 1;

    if (in_runs)
        op.attributes.run_rows = rows;
    for (int k = 0; k < ORDER_N_OPERANDS; k++) {
        const struct op_operand *info = slice_operand_info(&op, k);
        int *id = k < OPS_MAX_INPUTS ? &op.in[k] : &op.out[k - OPS_MAX_INPUTS];

        if (!*id || !(moves || slice_has_rows(info->rows)))
            continue;
        set_parts(s, *id, s->slice_rows[task->op]);
        *id = view(s, *id, piece * s->period + row, rows, is_flat);
    }
    program_emit(s->program, function, &op);
}

static void emit_task(struct slicer *s, int function, const struct slice_task *task)
{
    const struct op own = slice_op(s, task->op, task->slice), *op = &own;

    if (task->slice < 0) {
        program_emit(s->program, function, op);
        return;
    }
    if (s->slice_rows[task->op] < 0) {
        slice_emit_group(s, function, task);
        return;
    }
    for (int piece = 0; piece < slice_n_pieces(s, op); piece++)
        if (slice_is_of_sequences(op))
            emit_of_sequences(s, function, task, piece);
        else if (slice_is_joined(s, op))
            emit_joined(s, function, task, piece);
        else
            emit_piece(s, function, task, piece);
}

static bool is_any_cut(const struct slicer *s)
{
    for (int i = 0; i < s->function->n_ops; i++)
        if (s->slice_rows[i])
            return true;
    return false;
}

bool slice(struct program *program, int function, const struct slice_options *options)
{
    struct function *f = &program->functions[function];
    struct function old = *f;
    struct slicer s = {
        .program = program, .function = &old, .number = function, .options = options
    };
    int tp = program->mesh.size[axes_tensor()];
    bool has_parts = false, has_prices = options->times.context;

    for (int i = 0; i < f->n_ops; i++)
        has_parts |=
            f->ops[i].kind == OP_REDUCE_SCATTER && f->ops[i].attributes.axis == axes_tensor();
    s.n_pieces = has_parts ? tp : 1;
    s.period = options->rows / s.n_pieces;
    s.slice_rows = arena_array(&s.arena, int64_t, f->n_ops);
    s.of_base = arena_array(&s.arena, struct slice_access *, program->n_values);
    s.views = arena_array(&s.arena, struct view_entry *, program->n_values);
    slice_find_joined(&s);
    slice_find_experts(&s);
    if (options->kind != OVERLAP_NONE && (options->kind != OVERLAP_AUTO || has_prices) &&
        (tp > 1 || program->mesh.size[axes_keys()] > 1 || program->mesh.size[axes_heads()] > 1 ||
         s.has_exchange) &&
        options->rows % s.n_pieces == 0) {
        choose(&s);
        if (has_prices && !options->is_rerun)
            record_sites(&s);
    }
    bool is_cut = is_any_cut(&s);
    if (is_cut) {
        struct slice_tasks t = slice_list_tasks(&s, 0, old.n_ops);
        int *order = arena_array(&s.arena, int, t.n);

        slice_order(t.list, t.n, order);
        f->ops = NULL;
        f->n_ops = f->capacity = 0;
        for (int i = 0; i < t.n; i++)
            emit_task(&s, function, &t.list[order[i]]);
        slice_release_tasks(&t);
    }
    arena_release(&s.arena);
    return is_cut;
}
