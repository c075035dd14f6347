/*
 * spread.c - how an op's outputs lie over one mesh axis, given how its inputs do
 *
 * A rule says what a kind can take and nothing else passes: a sum that is owed is never read as if
 * it had been added up. Most kinds share a form: their data operands lie alike (same, by rows, by
 * columns) and their parameters are the same everywhere; what they sum over rows is then owed where
 * rows are split.
 */
#include <string.h>

#include "ops/ops.h"

#define IN(i) (1u << (i))

enum { MAY_ROWS = 1, MAY_COLS = 2, MAY_PARTIAL = 4 };

struct query {
    const struct op_shape *op;
    const struct op_info *info;
    const enum spread *in;
    enum spread *out;
    struct err *err;
};

const char *spread_name(enum spread spread)
{
    static const char *const names[N_SPREADS] = { "same", "split(rows)", "split(cols)", "partial" };

    CHECK((unsigned)spread < N_SPREADS);
    return names[spread];
}

static int given(const struct query *q, int input)
{
    return tensor_given(&q->op->in[input]);
}

static int refuse(const struct query *q, int input, const char *wanted)
{
    return err_set(q->err, ERR_FAILED, "%s: %s is %s, wanted %s", q->info->name,
                   q->info->inputs[input].name, spread_name(q->in[input]), wanted);
}

static int want(const struct query *q, int input, enum spread spread)
{
    if (!given(q, input) || q->in[input] == spread)
        return 0;
    return refuse(q, input, spread_name(spread));
}

static void give_all(const struct query *q, enum spread spread)
{
    for (int i = 0; i < q->info->n_outputs; i++)
        q->out[i] = spread;
}

static const char *allowed_text(int allowed)
{
    static const char *const texts[] = {
        "same",
        "same or split(rows)",
        "same or split(cols)",
        "same, split(rows) or split(cols)",
        "same or partial",
        "same, split(rows) or partial",
        "same, split(cols) or partial",
        "same, split(rows), split(cols) or partial",
    };

    return texts[allowed];
}

/*
 * The common form. `data` is a set of inputs that must lie alike in one of the allowed ways,
 * `rowwise` one of inputs with one column a row, that follow them where rows are split and are the
 * same otherwise; all others must be the same. Outputs lie as the data, accumulated ones are owed
 * where rows are split.
 */
static int alike(const struct query *q, unsigned data, unsigned rowwise, int allowed)
{
    static const int bit[N_SPREADS] = { 0, MAY_ROWS, MAY_COLS, MAY_PARTIAL };
    int lead = __builtin_ctz(data);
    enum spread spread = q->in[lead];
    enum spread of_rows = spread == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME;

    if (spread != SPREAD_SAME && !(allowed & bit[spread]))
        return refuse(q, lead, allowed_text(allowed));
    for (int i = 0; i < q->info->n_inputs; i++) {
        enum spread wanted = data >> i & 1 ? spread : rowwise >> i & 1 ? of_rows : SPREAD_SAME;

        if (want(q, i, wanted))
            return -1;
    }
    for (int i = 0; i < q->info->n_outputs; i++) {
        int summed = q->info->outputs[i].flags & OPERAND_ACCUMULATED && spread == SPREAD_ROWS;

        q->out[i] = summed ? SPREAD_PARTIAL : spread;
    }
    return 0;
}

/* Rows of the table are split: each rank looks up what it has, from its own `begin` on. */
static int is_part_of_table(const struct query *q, int begin)
{
    return given(q, begin) && q->in[begin] == SPREAD_COLS;
}

static int spread_embed(const struct query *q)
{
    if (q->in[1] != SPREAD_ROWS && !is_part_of_table(q, 3))
        return alike(q, IN(0) | IN(2), 0, MAY_ROWS);
    give_all(q, SPREAD_PARTIAL);
    if (want(q, 1, SPREAD_ROWS) || want(q, 0, SPREAD_SAME) || want(q, 2, SPREAD_PARTIAL))
        return -1;
    return given(q, 3) ? want(q, 3, SPREAD_COLS)
                       : err_set(q->err, ERR_FAILED, "embed: table is split(rows), wanted begin");
}

static int spread_embed_dw(const struct query *q)
{
    if (!is_part_of_table(q, 2))
        return alike(q, IN(0) | IN(1), 0, MAY_ROWS);
    give_all(q, SPREAD_ROWS);
    return want(q, 0, SPREAD_SAME) || want(q, 1, SPREAD_SAME) ? -1 : 0;
}

/* Rows are split as sequences are, or, with a `begin` of the rank's own, within the micro-batch. */
static int spread_dropout(const struct query *q)
{
    if (q->op->attributes.by_columns && given(q, 2) && q->in[2] == SPREAD_COLS)
        return alike(q, IN(0) | IN(2), IN(1), MAY_COLS);
    /* A gradient's summands may be dropped one by one. */
    if (q->op->kind == OP_DROPOUT_GRAD && q->in[0] == SPREAD_PARTIAL && !given(q, 2))
        return alike(q, IN(0), IN(1), MAY_PARTIAL);
    if (!given(q, 2) || q->in[2] != SPREAD_COLS)
        return alike(q, IN(0), IN(1), MAY_ROWS);
    give_all(q, SPREAD_ROWS);
    return want(q, 0, SPREAD_ROWS) || want(q, 1, SPREAD_SAME) ? -1 : 0;
}

/*
 * Where heads are split and drop probabilities, or have slopes, each rank must know which heads are
 * its own. drops: the input that is there where they drop, or a kind's -1.
 */
static int spread_attention(const struct query *q, unsigned data, unsigned rowwise, int drops,
                            int begin)
{
    int heads_split = q->in[__builtin_ctz(data)] == SPREAD_COLS;
    int numbered = q->op->attributes.alibi || (drops >= 0 && given(q, drops));

    if (heads_split && (numbered || given(q, begin))) {
        if (!given(q, begin))
            return err_set(q->err, ERR_FAILED, "%s: heads are split(cols), wanted begin",
                           q->info->name);
        if (want(q, begin, SPREAD_COLS))
            return -1;
        return alike(q, data | IN(begin), rowwise, MAY_COLS);
    }
    return alike(q, data, rowwise, MAY_ROWS | MAY_COLS);
}

/* Segments are of all rows. */
static int spread_cached(const struct query *q)
{
    enum { SEGMENT = 5, SEGMENTS };

    if (given(q, SEGMENTS) && q->in[0] == SPREAD_ROWS)
        return err_set(q->err, ERR_FAILED, "%s: rows are split(rows), segments are of all",
                       q->info->name);
    if (given(q, SEGMENTS) && (want(q, SEGMENT, SPREAD_SAME) || want(q, SEGMENTS, SPREAD_SAME)))
        return -1;
    return spread_attention(q, IN(0) | IN(2) | IN(3), IN(1), -1, 4);
}

/* Weights are of all heads: where these are split, each rank has a summand of their gradients. */
static int spread_head_norm_grad(const struct query *q)
{
    if (alike(q, IN(0) | IN(1) | IN(4), 0, MAY_ROWS | MAY_COLS))
        return -1;
    if (q->in[0] == SPREAD_COLS)
        q->out[1] = q->out[2] = SPREAD_PARTIAL;
    return 0;
}

/* Row by row; linear in dy, so that it may take a summand for the sum. */
static int spread_normalize_rows_grad(const struct query *q)
{
    enum spread rows = q->in[0] == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME;

    if (q->in[0] == SPREAD_COLS)
        return refuse(q, 0, allowed_text(MAY_ROWS | MAY_PARTIAL));
    give_all(q, q->in[0]);
    return want(q, 1, rows) || want(q, 2, rows) ? -1 : 0;
}

/* Statistics of parts of the vocabulary are stacked: a rank's are its rows of all of them. */
static int spread_logit_stats(const struct query *q)
{
    enum spread logits = q->in[0];

    if (logits != SPREAD_COLS)
        return alike(q, IN(0) | IN(1), 0, MAY_ROWS);
    if (want(q, 1, SPREAD_SAME) || !given(q, 2))
        return refuse(q, 0, "same or split(rows), or target the same and begin");
    give_all(q, SPREAD_ROWS);
    return want(q, 2, SPREAD_COLS);
}

static int spread_cross_entropy(const struct query *q)
{
    if (q->in[0] != SPREAD_COLS)
        return alike(q, IN(0) | IN(1) | IN(2), 0, MAY_ROWS);
    if (!given(q, 4))
        return refuse(q, 0, "same or split(rows), or begin");
    if (want(q, 1, SPREAD_SAME) || want(q, 2, SPREAD_SAME) || want(q, 3, SPREAD_SAME) ||
        want(q, 4, SPREAD_COLS))
        return -1;
    q->out[0] = SPREAD_COLS;
    q->out[1] = SPREAD_SAME;
    return 0;
}

/* b belongs to the columns: added to a sum that is still owed it would count once a rank. */
static int spread_add_bias(const struct query *q)
{
    enum spread x = q->in[0];

    if (x == SPREAD_PARTIAL)
        return refuse(q, 0, allowed_text(MAY_ROWS | MAY_COLS));
    give_all(q, x);
    return want(q, 1, x == SPREAD_COLS ? SPREAD_COLS : SPREAD_SAME);
}

/* y = x w' + b */
static int spread_linear(const struct query *q)
{
    enum spread x = q->in[0], w = q->in[1];

    if (x != SPREAD_COLS && x != SPREAD_SAME && x != SPREAD_ROWS)
        return refuse(q, 0, allowed_text(MAY_ROWS | MAY_COLS));
    if (x == SPREAD_COLS) {
        if (want(q, 1, SPREAD_COLS))
            return -1;
        if (given(q, 2))
            return err_set(
                q->err, ERR_FAILED,
                "linear: y is partial, so every rank would add b (hint: add it after the sum)");
        give_all(q, SPREAD_PARTIAL);
        return 0;
    }
    if (w == SPREAD_ROWS && x == SPREAD_SAME) {
        give_all(q, SPREAD_COLS);
        return want(q, 2, SPREAD_COLS);
    }
    give_all(q, x);
    if (want(q, 1, SPREAD_SAME))
        return -1;
    return want(q, 2, SPREAD_SAME);
}

/* dx = dy w: of a summand of dy a summand of dx */
static int spread_linear_dx(const struct query *q)
{
    enum spread dy = q->in[0], w = q->in[1];

    if (dy == SPREAD_COLS) {
        give_all(q, SPREAD_PARTIAL);
        return want(q, 1, SPREAD_ROWS);
    }
    if (dy == SPREAD_SAME && w == SPREAD_COLS) {
        give_all(q, SPREAD_COLS);
        return 0;
    }
    give_all(q, dy);
    return want(q, 1, SPREAD_SAME);
}

/* dw = dy' x, db = column sums of dy */
static int spread_linear_dw(const struct query *q)
{
    enum spread dy = q->in[0], x = q->in[1];

    switch (dy) {
    case SPREAD_PARTIAL: /* a summand's */
        give_all(q, SPREAD_PARTIAL);
        return want(q, 1, SPREAD_SAME);
    case SPREAD_ROWS:
        give_all(q, SPREAD_PARTIAL);
        return want(q, 1, SPREAD_ROWS);
    case SPREAD_COLS:
        q->out[0] = SPREAD_ROWS;
        q->out[1] = SPREAD_COLS;
        return want(q, 1, SPREAD_SAME);
    default:
        if (x == SPREAD_ROWS)
            return refuse(q, 1, allowed_text(MAY_COLS | MAY_PARTIAL));
        q->out[0] = x;
        q->out[1] = SPREAD_SAME;
        return 0;
    }
}

/* Like a linear's: of split columns of w, which all experts' are, a part of y or a summand of it. */
static int spread_expert_linear(const struct query *q)
{
    enum spread x = q->in[0], w = q->in[2];
    int dx = q->op->kind == OP_EXPERT_LINEAR_DX;
    enum spread inputs = dx ? SPREAD_ROWS : SPREAD_COLS; /* of w: where its inputs are split */
    enum spread outputs = dx ? SPREAD_COLS : SPREAD_ROWS;

    if (x == SPREAD_PARTIAL)
        return refuse(q, 0, allowed_text(MAY_ROWS | MAY_COLS));
    if (want(q, 1, x == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME))
        return -1;
    if (x == SPREAD_COLS) {
        give_all(q, SPREAD_PARTIAL);
        return want(q, 2, inputs);
    }
    if (w == outputs && x == SPREAD_SAME) {
        give_all(q, SPREAD_COLS);
        return 0;
    }
    give_all(q, x);
    return want(q, 2, SPREAD_SAME);
}

static int spread_expert_linear_dw(const struct query *q)
{
    enum spread dy = q->in[0];

    if (dy == SPREAD_PARTIAL || q->in[1] == SPREAD_PARTIAL)
        return refuse(q, dy == SPREAD_PARTIAL ? 0 : 1, allowed_text(MAY_ROWS | MAY_COLS));
    if (want(q, 2, dy == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME))
        return -1;
    return spread_linear_dw(q);
}

/* A weight's gradient is a sum along the columns. */
static int spread_expert_swiglu_grad(const struct query *q)
{
    if (alike(q, IN(2) | IN(3), IN(0) | IN(1), MAY_ROWS | MAY_COLS))
        return -1;
    if (q->in[2] == SPREAD_COLS)
        q->out[1] = SPREAD_PARTIAL;
    return 0;
}

/* What a gather joins, or what a reduce_scatter leaves: parts of rows, or of a flat cell. */
static enum spread parts_of(const struct query *q)
{
    return q->op->in[0].cols == q->op->out[0].cols ? SPREAD_ROWS : SPREAD_COLS;
}

static int spread_collective(const struct query *q, int on_axis)
{
    enum spread wanted = SPREAD_PARTIAL, result = SPREAD_SAME;

    if (!on_axis) {
        give_all(q, q->in[0]);
        return 0;
    }
    if (q->op->kind == OP_ALL_GATHER)
        wanted = parts_of(q);
    if (q->op->kind == OP_REDUCE_SCATTER)
        result = parts_of(q);
    if (q->op->kind == OP_GATHER_HEADS || q->op->kind == OP_GATHER_HEADS_GRAD)
        wanted = result = SPREAD_COLS;
    give_all(q, result);
    return want(q, 0, wanted);
}

/* Columns are split as b's rows, or y is a sum that is owed, and so is every h. */
static int spread_lora(const struct query *q)
{
    enum spread y = q->in[0];

    for (int i = 0; i < OPS_LORA_PARTS; i++) {
        if (want(q, 1 + 2 * i, y == SPREAD_COLS ? SPREAD_SAME : y) ||
            want(q, 2 + 2 * i, y == SPREAD_COLS ? SPREAD_ROWS : SPREAD_SAME))
            return -1;
    }
    give_all(q, y);
    return 0;
}

static int spread_select_rows(const struct query *q)
{
    enum spread x = q->in[0];

    if (x == SPREAD_PARTIAL)
        return refuse(q, 0, allowed_text(MAY_ROWS | MAY_COLS));
    give_all(q, x);
    return want(q, 1, x == SPREAD_ROWS ? SPREAD_ROWS : SPREAD_SAME);
}

/* Element by element: what is added up lies as it did, a sum that is owed included. */
static int spread_accumulate(const struct query *q)
{
    give_all(q, q->in[0]);
    return 0;
}

/* Sums of blocks follow the shard, whose edges lie on blocks' edges. */
static int spread_sumsq(const struct query *q)
{
    if (q->in[0] == SPREAD_PARTIAL)
        return refuse(q, 0, allowed_text(MAY_ROWS | MAY_COLS));
    give_all(q, q->in[0] == SPREAD_SAME ? SPREAD_SAME : SPREAD_COLS);
    return 0;
}

/* The kinds of the common form: alike()'s arguments. */
static const struct form {
    unsigned data, rowwise;
    int allowed;
} forms[N_OP_KINDS] = {
    [OP_RMSNORM] = { IN(0), 0, MAY_ROWS },
    [OP_RMSNORM_GRAD] = { IN(0) | IN(1) | IN(3) | IN(4), 0, MAY_ROWS },
    [OP_LAYERNORM] = { IN(0), 0, MAY_ROWS },
    [OP_LAYERNORM_GRAD] = { IN(0) | IN(1) | IN(3) | IN(4) | IN(5), 0, MAY_ROWS },
    [OP_ADD_RMSNORM] = { IN(0) | IN(1), 0, MAY_ROWS },
    [OP_ADD_LAYERNORM] = { IN(0) | IN(1), 0, MAY_ROWS },
    [OP_ROPE] = { IN(0), IN(1), MAY_ROWS | MAY_COLS },
    [OP_ROPE_GRAD] = { IN(0), IN(1), MAY_ROWS | MAY_COLS },
    [OP_HEAD_NORM] = { IN(0), 0, MAY_ROWS | MAY_COLS },
    [OP_NORMALIZE_ROWS] = { IN(0), 0, MAY_ROWS },
    [OP_SWIGLU] = { IN(0), 0, MAY_ROWS | MAY_COLS },
    [OP_SWIGLU_GRAD] = { IN(0) | IN(1), 0, MAY_ROWS | MAY_COLS },
    [OP_GELU] = { IN(0), 0, MAY_ROWS | MAY_COLS },
    [OP_GELU_GRAD] = { IN(0) | IN(1), 0, MAY_ROWS | MAY_COLS },
    [OP_SCALE] = { IN(0), 0, MAY_ROWS | MAY_COLS | MAY_PARTIAL },
    [OP_ROUTER] = { IN(0), 0, MAY_ROWS },
    [OP_ROUTER_GRAD] = { IN(0) | IN(1) | IN(2) | IN(3) | IN(5), 0, MAY_ROWS },
    [OP_EXPERT_ORDER] = { IN(0), 0, MAY_ROWS },
    [OP_DISPATCH] = { IN(1), IN(0), MAY_ROWS | MAY_COLS | MAY_PARTIAL },
    [OP_COMBINE] = { IN(1), IN(0), MAY_ROWS | MAY_COLS | MAY_PARTIAL },
    [OP_EXPERT_SWIGLU] = { IN(2), IN(0) | IN(1), MAY_ROWS | MAY_COLS },
    [OP_ADD] = { IN(0) | IN(1), 0, MAY_ROWS | MAY_COLS | MAY_PARTIAL },
    [OP_BIAS_GRAD] = { IN(0), 0, MAY_ROWS | MAY_COLS },
    [OP_CAST] = { IN(0), 0, MAY_ROWS | MAY_COLS },
    [OP_HEAD_CROSS_ENTROPY] = { IN(0) | IN(2), 0, MAY_ROWS },
    [OP_HEAD_LOSS] = { IN(0) | IN(2), 0, MAY_ROWS },
    [OP_SUM_RUNS] = { IN(0), 0, MAY_COLS }, /* by tables that all have: parts alike */
    [OP_GRADIENT_NORM] = { IN(0), 0, 0 },
};

/* Each rank may be told which part it has, of what is split. */
static int spread_adamw(const struct query *q)
{
    enum { GRADIENT = 0, MASTER = 4, M, V, DECAY, PLACE, PART };
    enum spread in[OPS_MAX_INPUTS];
    struct query others = *q;

    memcpy(in, q->in, (size_t)q->info->n_inputs * sizeof *in);
    others.in = in;
    if (given(q, PART) && in[GRADIENT] != SPREAD_SAME && in[PART] == SPREAD_COLS)
        in[PART] = SPREAD_SAME;
    return alike(&others, IN(GRADIENT) | IN(MASTER) | IN(M) | IN(V) | IN(DECAY) | IN(PLACE), 0,
                 MAY_ROWS | MAY_COLS);
}

static int spread_rule(const struct query *q, int on_axis)
{
    const struct form *form;

    CHECK((unsigned)q->op->kind < N_OP_KINDS);
    form = &forms[q->op->kind];
    if (form->data)
        return alike(q, form->data, form->rowwise, form->allowed);
    switch (q->op->kind) {
    case OP_EMBED:
        return spread_embed(q);
    case OP_EMBED_DW:
        return spread_embed_dw(q);
    case OP_LINEAR:
        return spread_linear(q);
    case OP_LINEAR_DX:
        return spread_linear_dx(q);
    case OP_LINEAR_DW:
        return spread_linear_dw(q);
    case OP_EXPERT_LINEAR:
    case OP_EXPERT_LINEAR_DX:
        return spread_expert_linear(q);
    case OP_EXPERT_LINEAR_DW:
        return spread_expert_linear_dw(q);
    case OP_EXPERT_SWIGLU_GRAD:
        return spread_expert_swiglu_grad(q);
    case OP_ATTENTION:
        return spread_attention(q, IN(0), IN(1) | IN(3), 1, 2);
    case OP_ATTENTION_GRAD:
        return spread_attention(q, IN(0) | IN(1) | IN(2) | IN(3), IN(4) | IN(6), 4, 5);
    case OP_ATTENTION_CACHED:
        return spread_cached(q);
    case OP_HEAD_NORM_GRAD:
        return spread_head_norm_grad(q);
    case OP_NORMALIZE_ROWS_GRAD:
        return spread_normalize_rows_grad(q);
    case OP_LORA:
        return spread_lora(q);
    case OP_DROPOUT:
    case OP_DROPOUT_GRAD:
        return spread_dropout(q);
    case OP_ADD_BIAS:
        return spread_add_bias(q);
    case OP_SELECT_ROWS:
        return spread_select_rows(q);
    case OP_LOGIT_STATS:
        return spread_logit_stats(q);
    case OP_CROSS_ENTROPY:
        return spread_cross_entropy(q);
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
    case OP_ALL_REDUCE:
    case OP_ALL_REDUCE_SCALAR:
    case OP_GATHER_HEADS:
    case OP_GATHER_HEADS_GRAD:
        return spread_collective(q, on_axis);
    case OP_SEND:
    case OP_RECEIVE: /* as it was sent, which is the program's to know */
        return 0;
    case OP_ACCUMULATE:
        return spread_accumulate(q);
    case OP_SUMSQ:
        return spread_sumsq(q);
    case OP_ADAMW:
        return spread_adamw(q);
    default:
        return err_set(q->err, ERR_FAILED, "%s: has no rule of spreads", q->info->name);
    }
}

int op_spread(const struct op_shape *op, int on_axis, const enum spread *in, enum spread *out,
              struct err *err)
{
    enum spread result[OPS_MAX_OUTPUTS] = { SPREAD_SAME };
    struct query q = { .op = op, .info = op_info(op->kind), .in = in, .out = result, .err = err };

    if (spread_rule(&q, on_axis))
        return -1;
    memcpy(out, result, (size_t)q.info->n_outputs * sizeof *out);
    return 0;
}
