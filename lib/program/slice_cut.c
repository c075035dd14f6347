/*
 * slice_cut.c - which ops can be cut into slices of rows
 */
#include "base/num.h"
#include "layout/axes.h"
#include "program/order.h"
#include "program/slice_impl.h"

const struct op_operand *slice_operand_info(const struct op *op, int k)
{
    const struct op_info *info = op_info(op->kind);

    if (k < OPS_MAX_INPUTS)
        return k < info->n_inputs ? &info->inputs[k] : NULL;
    k -= OPS_MAX_INPUTS;
    return k < info->n_outputs ? &info->outputs[k] : NULL;
}

static bool is_sum(const struct op *op, int k)
{
    return slice_operand(op, k) && (slice_operand_info(op, k)->flags & OPERAND_ACCUMULATED);
}

bool slice_is_split(const struct op *op)
{
    bool has_sums = false, is_optional = true;

    for (int k = OPS_MAX_INPUTS; k < ORDER_N_OPERANDS; k++) {
        has_sums |= is_sum(op, k);
        is_optional &=
            !slice_operand(op, k) || (slice_operand_info(op, k)->flags & OPERAND_OPTIONAL);
    }
    return has_sums && is_optional && op->out[OPS_FIRST];
}

/* One of the two ops: of rows, or of sums, which do not read what is only added to rows. */
static struct op half_of(const struct op *op, bool is_of_sums)
{
    struct op half = *op;

    for (int k = 0; k < ORDER_N_OPERANDS; k++) {
        int *id = k < OPS_MAX_INPUTS ? &half.in[k] : &half.out[k - OPS_MAX_INPUTS];
        bool is_input = k < OPS_MAX_INPUTS;

        if (!*id ||
            (is_input && !(is_of_sums && slice_operand_info(op, k)->flags & OPERAND_OPTIONAL)))
            continue;
        if (is_input || is_sum(op, k) != is_of_sums)
            *id = 0;
    }
    if (is_of_sums)
        half.phase = PHASE_W;
    return half;
}

int64_t slice_cut_rows(const struct slicer *s, const struct op *op)
{
    int64_t rows = 0;
    bool split = slice_is_split(op);

    for (int k = 0; k < ORDER_N_OPERANDS; k++) {
        const struct op_operand *info = slice_operand_info(op, k);
        const struct value *v = &s->program->values[slice_operand(op, k)];

        if (!slice_operand(op, k) || (split && is_sum(op, k)))
            continue;
        if ((info->flags & OPERAND_ACCUMULATED) || v->shard_axis || info->rows == DIM_SEQUENCES)
            return 0;
        if (!slice_has_rows(info->rows))
            continue;
        if (rows && v->rows != rows)
            return 0;
        rows = v->rows;
    }
    bool is_joined = rows == s->period * s->n_pieces * s->n_joined;

    return rows == s->period || rows == s->period * s->n_pieces || is_joined ? rows : 0;
}

static bool is_dense(const struct program *p, int id)
{
    return p->values[id].stride == p->values[id].cols && !p->values[id].shard_axis;
}

/* Of an exchange of parts of sequences: the operand with a rank's rows, and that with all. */
static int part_of(const struct op *op)
{
    return ops_makes_whole(op->kind) ? op->in[OPS_FIRST] : op->out[OPS_FIRST];
}

static int whole_of(const struct op *op)
{
    return ops_makes_whole(op->kind) ? op->out[OPS_FIRST] : op->in[OPS_FIRST];
}

static bool joins_sequences(enum op_kind kind)
{
    return kind == OP_GATHER_SEQUENCE || kind == OP_SCATTER_SEQUENCE;
}

bool slice_is_of_sequences(const struct op *op)
{
    return joins_sequences(op->kind) || op->kind == OP_ROWS_TO_HEADS ||
           op->kind == OP_HEADS_TO_ROWS;
}

/* ---- rows of several ranks ---- */

/* Slices of fewer rows would leave products' tiles empty. */
enum { SLICE_ROWS_MIN = 32 };

void slice_find_joined(struct slicer *s)
{
    s->n_joined = 1;
    s->unit = SLICE_ROWS_MIN;
    for (int i = 0; i < s->function->n_ops; i++) {
        const struct op *op = &s->function->ops[i];

        if (!joins_sequences(op->kind) || op->attributes.axis != axes_heads())
            continue;
        s->n_joined = mesh_size(&s->program->mesh, axes_heads());
        s->joined_rows = op->attributes.seq_len;
    }
    /* Whole sequences, if a rank has more than one. */
    if (s->n_joined > 1 && s->period > s->joined_rows)
        s->unit = (int)round_up(SLICE_ROWS_MIN, s->joined_rows);
}

bool slice_is_joined(const struct slicer *s, const struct op *op)
{
    return s->n_joined > 1 && !op_is_collective(op->kind) &&
           slice_cut_rows(s, op) == s->period * s->n_pieces * s->n_joined;
}

int slice_n_runs(const struct slicer *s, int64_t rows)
{
    if (s->joined_rows % s->period == 0)
        return s->n_joined;
    return s->period % s->joined_rows == 0 && rows % s->joined_rows == 0;
}

struct slice_rows slice_run(const struct slicer *s, int64_t first, int64_t rows, int k)
{
    int64_t sequence = first / s->joined_rows;

    if (s->joined_rows % s->period)
        return (struct slice_rows){ first * s->n_joined, rows * s->n_joined };
    return (struct slice_rows){ first + (sequence * (s->n_joined - 1) + k) * s->joined_rows, rows };
}

bool slice_is_in_runs(const struct slicer *s, const struct op *op)
{
    bool in_runs = s->n_pieces > 1 && (op_info(op->kind)->traits & TRAIT_ROW_RUNS) &&
                   slice_cut_rows(s, op) == s->period * s->n_pieces;

    for (int k = 0; k < ORDER_N_OPERANDS && in_runs; k++)
        if (slice_operand(op, k) && slice_has_rows(slice_operand_info(op, k)->rows))
            in_runs = is_dense(s->program, slice_operand(op, k));
    return in_runs;
}

int slice_n_pieces(const struct slicer *s, const struct op *op)
{
    if (slice_is_in_runs(s, op))
        return 1;
    if (slice_is_of_sequences(op) || slice_is_joined(s, op))
        return s->n_pieces;
    return !op_is_collective(op->kind) && slice_cut_rows(s, op) > s->period ? s->n_pieces : 1;
}

/* Rows that go from, or to, their places among all ranks': each slice's is a group. */
static bool is_cut_exchange(const struct slicer *s, const struct op *op)
{
    const struct value *values = s->program->values, *whole = &values[whole_of(op)];

    return !op->attributes.part_rows && values[part_of(op)].rows == s->period * s->n_pieces &&
           !whole->base && !whole->over && whole->stride == whole->cols;
}

static bool is_cut_collective(const struct slicer *s, const struct op *op)
{
    const struct program *p = s->program;
    int64_t in = p->values[op->in[OPS_FIRST]].rows, out = p->values[op->out[OPS_FIRST]].rows;
    int64_t whole = s->period * s->n_pieces;

    if (op->attributes.axis != axes_tensor() || !is_dense(p, op->in[OPS_FIRST]) ||
        !is_dense(p, op->out[OPS_FIRST]))
        return false;
    return (op->kind == OP_ALL_GATHER && in == s->period && out == whole && s->n_pieces > 1) ||
           (op->kind == OP_REDUCE_SCATTER && in == whole && out == s->period && s->n_pieces > 1) ||
           (op->kind == OP_ALL_REDUCE && in == whole && s->n_pieces == 1);
}

/* Whether an input has numbers of rows in the micro-batch: those in a slice are others. */
static bool reads_numbers(const struct op *op)
{
    bool is_attention = op->kind == OP_ATTENTION, is_gradient = op->kind == OP_ATTENTION_GRAD;

    return (is_attention && (op->in[ATTENTION_FIRST] || op->in[ATTENTION_LAST])) ||
           (is_gradient && (op->in[ATTENTION_GRAD_FIRST] || op->in[ATTENTION_GRAD_LAST]));
}

/* All that has rows of several ranks is in groups. */
static bool is_cut_joined(const struct slicer *s, const struct op *op, int64_t rows)
{
    bool is_cut = slice_n_runs(s, rows) > 0 && !slice_is_split(op);

    for (int k = 0; k < ORDER_N_OPERANDS && is_cut; k++)
        if (slice_operand(op, k) && slice_has_rows(slice_operand_info(op, k)->rows))
            is_cut = slice_can_be_groups(s->program, slice_operand(op, k));
    return is_cut;
}

bool slice_is_cut(const struct slicer *s, const struct op *op, int64_t rows)
{
    const struct op_info *info = op_info(op->kind);
    int seq_len = s->options->seq_len;

    if (slice_is_of_sequences(op) ? is_cut_exchange(s, op) : is_cut_collective(s, op))
        return true;
    if (!(info->traits & TRAIT_BY_ROWS) || order_is_async(op) || !slice_cut_rows(s, op) ||
        op->attributes.fp8 == FP8_TENSOR)
        return false;
    if (slice_is_joined(s, op) && !is_cut_joined(s, op, rows))
        return false;
    if (!(info->attributes & ATTRIBUTE_SEQ_LEN))
        return true;
    return s->has_sequences && rows % seq_len == 0 && s->period % seq_len == 0 &&
           !(op->attributes.p > 0) && !reads_numbers(op);
}

bool slice_only_accumulates(const struct program *p, const struct op *op)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && p->values[program_base(p, op->out[k])].role == ROLE_NONE)
            return false;
    return true;
}

struct op slice_op(const struct slicer *s, int op, int slice)
{
    const struct op *o = &s->function->ops[op];

    return s->slice_rows[op] && slice_is_split(o) ? half_of(o, slice < 0) : *o;
}

int slice_count(const struct slicer *s, int op)
{
    int64_t rows = s->slice_rows[op];

    if (rows < 0)
        return (int)-rows;
    return rows ? (int)((s->period + rows - 1) / rows) : 1;
}

int64_t slice_n_rows(const struct slicer *s, int op, int slice)
{
    int64_t begin = slice * s->slice_rows[op];

    return min_i64(s->slice_rows[op], s->period - begin);
}
