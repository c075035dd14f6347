/*
 * slice_heads.c - keys and values that are gathered travel in slices of heads, each but the first
 * while attention computes the slice before it
 *
 * Heads do not depend on each other, so no bit changes. Of two slices (a slice's heads are
 * ring-flash-attention's heads_k_stride):
 *
 *     F  %k = gather_sequence %5                  F  %k0 = gather_sequence %5[:,0:64]
 *     F  %out, .. = attention %q, %k, ...   ->    F  %k1 = gather_sequence %5[:,64:128]
 *                                                 F  %out[:,0:256], .. = attention %q[:,0:256], %k0
 *                                                 F  %out[:,256:512], .. = attention .., %k1
 *
 * In the backward a slice's gradients of keys and values are summed over ranks while those of the
 * next are computed, as far as these do not lie in one value. Gathers are issued one slice ahead,
 * so that two slices exist at a time.
 */
#include "layout/axes.h"
#include "program/passes.h"

struct slicing {
    struct program *program;
    int function; /* that is emitted into */
    int n;        /* slices */
    int n_values;
    int *part;   /* by value: what a gather over cp makes it of; 0: none does */
    int *sliced; /* by value: the first of the n values that replace a gathered one; 0: it stays */
    int *home;   /* by value: where a scatter over cp puts its sum; 0: none does */
};

/* Of values of before the pass; all others have none. */
static int entry(const struct slicing *s, const int *of, int v)
{
    return v < s->n_values ? of[v] : 0;
}

static void emit(const struct slicing *s, const struct op *like, struct op op)
{
    op.phase = like->phase;
    op.layer = like->layer;
    program_emit(s->program, s->function, &op);
}

/* Columns of slice i; 0 of an absent operand. */
static int columns(const struct slicing *s, int x, int i)
{
    struct value v = s->program->values[x];
    int64_t n = v.cols / s->n;

    return x ? program_view(s->program, x, i * n, v.rows, n, v.stride) : 0;
}

static struct op_attributes slice_attributes(const struct slicing *s, const struct op *op)
{
    struct op_attributes attributes = op->attributes;

    attributes.n_heads /= s->n;
    attributes.n_kv_heads /= s->n;
    return attributes;
}

/* Random numbers and slopes go by the number of a head, and a slice's heads begin with 0. */
static bool is_sliceable(const struct slicing *s, const struct op *op)
{
    const struct op_attributes *a = &op->attributes;

    return op->kind == OP_ATTENTION && entry(s, s->part, op->in[ATTENTION_K]) &&
           a->n_kv_heads % s->n == 0 && !(a->p > 0) && !a->alibi;
}

static int new_slices(const struct slicing *s, int whole)
{
    struct value v = s->program->values[whole];
    int first = program_value(s->program, v.rows, v.cols / s->n, v.dtype);

    for (int i = 1; i < s->n; i++)
        program_value(s->program, v.rows, v.cols / s->n, v.dtype);
    return first;
}

/* Slice i of the keys, or of the values, of all ranks. */
static void gather(const struct slicing *s, const struct op *op, int whole, int i)
{
    emit(s, op,
         (struct op){
             .kind = OP_GATHER_SEQUENCE,
             .attributes = { .axis = axes_keys(), .seq_len = op->attributes.seq_len, .zigzag = 1 },
             .in = { [GATHER_SEQUENCE_PART] = columns(s, s->part[whole], i) },
             .out = { [GATHER_SEQUENCE_WHOLE] = s->sliced[whole] + i },
             .stream = STREAM_CP });
}

static void attend(const struct slicing *s, const struct op *op)
{
    int k = op->in[ATTENTION_K], v = op->in[ATTENTION_V];

    for (int i = 0; i <= s->n; i++) {
        if (i < s->n) {
            gather(s, op, k, i);
            gather(s, op, v, i);
        }
        if (i == 0)
            continue;
        struct op slice = *op;
        slice.attributes = slice_attributes(s, op);
        slice.in[ATTENTION_Q] = columns(s, op->in[ATTENTION_Q], i - 1);
        slice.in[ATTENTION_K] = s->sliced[k] + i - 1;
        slice.in[ATTENTION_V] = s->sliced[v] + i - 1;
        slice.out[ATTENTION_OUT] = columns(s, op->out[ATTENTION_OUT], i - 1);
        slice.out[ATTENTION_LSE] = columns(s, op->out[ATTENTION_LSE], i - 1);
        emit(s, op, slice);
    }
}

static void scatter(const struct slicing *s, const struct op *op, int whole, int out, int i)
{
    emit(s, op,
         (struct op){
             .kind = OP_SCATTER_SEQUENCE,
             .attributes = { .axis = axes_keys(), .seq_len = op->attributes.seq_len, .zigzag = 1 },
             .in = { [SCATTER_SEQUENCE_WHOLE] = whole },
             .out = { [SCATTER_SEQUENCE_PART] = columns(s, out, i) },
             .stream = STREAM_CP });
}

static void attend_backward(const struct slicing *s, const struct op *op)
{
    int dk_home = s->home[op->out[ATTENTION_GRAD_DK]],
        dv_home = s->home[op->out[ATTENTION_GRAD_DV]];
    int dk = new_slices(s, op->out[ATTENTION_GRAD_DK]);
    int dv = new_slices(s, op->out[ATTENTION_GRAD_DV]);
    static const int per_head[] = { ATTENTION_GRAD_DOUT, ATTENTION_GRAD_Q, ATTENTION_GRAD_OUT,
                                    ATTENTION_GRAD_LSE };

    for (int i = 0; i < s->n; i++) {
        struct op slice = *op;

        slice.attributes = slice_attributes(s, op);
        for (size_t k = 0; k < sizeof per_head / sizeof *per_head; k++)
            slice.in[per_head[k]] = columns(s, op->in[per_head[k]], i);
        slice.in[ATTENTION_GRAD_K] = s->sliced[op->in[ATTENTION_GRAD_K]] + i;
        slice.in[ATTENTION_GRAD_V] = s->sliced[op->in[ATTENTION_GRAD_V]] + i;
        slice.out[ATTENTION_GRAD_DQ] = columns(s, op->out[ATTENTION_GRAD_DQ], i);
        slice.out[ATTENTION_GRAD_DK] = dk + i;
        slice.out[ATTENTION_GRAD_DV] = dv + i;
        emit(s, op, slice);
        scatter(s, op, dk + i, dk_home, i);
        scatter(s, op, dv + i, dv_home, i);
    }
}

static bool is_over_keys(const struct op *op, enum op_kind kind)
{
    return op->kind == kind && op->attributes.axis == axes_keys();
}

/* Find what is gathered and summed, and what of it attention reads in slices. */
static void find(struct slicing *s, int function)
{
    const struct function *f = &s->program->functions[function];

    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];

        if (is_over_keys(op, OP_GATHER_SEQUENCE))
            s->part[op->out[GATHER_SEQUENCE_WHOLE]] = op->in[GATHER_SEQUENCE_PART];
        if (is_over_keys(op, OP_SCATTER_SEQUENCE))
            s->home[op->in[SCATTER_SEQUENCE_WHOLE]] = op->out[SCATTER_SEQUENCE_PART];
        if (!is_sliceable(s, op))
            continue;
        s->sliced[op->in[ATTENTION_K]] = new_slices(s, op->in[ATTENTION_K]);
        s->sliced[op->in[ATTENTION_V]] = new_slices(s, op->in[ATTENTION_V]);
    }
}

static void replace_in(struct slicing *s, int function)
{
    struct function *f = &s->program->functions[function];
    int *scattered = arena_array(&s->program->arena, int, s->n_values);
    const struct op *old = f->ops;
    int n_ops = f->n_ops;

    f->ops = NULL;
    f->n_ops = f->capacity = 0;
    s->function = function;
    for (int i = 0; i < n_ops; i++) {
        const struct op *op = &old[i];

        if (is_over_keys(op, OP_GATHER_SEQUENCE) && s->sliced[op->out[GATHER_SEQUENCE_WHOLE]])
            continue;
        if (is_over_keys(op, OP_SCATTER_SEQUENCE) && scattered[op->in[SCATTER_SEQUENCE_WHOLE]])
            continue;
        if (op->kind == OP_ATTENTION && entry(s, s->sliced, op->in[ATTENTION_K])) {
            attend(s, op);
        } else if (op->kind == OP_ATTENTION_GRAD && entry(s, s->sliced, op->in[ATTENTION_GRAD_K])) {
            attend_backward(s, op);
            scattered[op->out[ATTENTION_GRAD_DK]] = scattered[op->out[ATTENTION_GRAD_DV]] = 1;
        } else {
            program_emit(s->program, function, op);
        }
    }
}

void slice_heads(struct program *program, int forward, int backward, int n_slices)
{
    struct slicing s = { .program = program, .n = n_slices, .n_values = program->n_values };

    s.part = arena_array(&program->arena, int, s.n_values);
    s.sliced = arena_array(&program->arena, int, s.n_values);
    s.home = arena_array(&program->arena, int, s.n_values);
    find(&s, forward);
    replace_in(&s, forward);
    if (backward < 0)
        return;
    find(&s, backward);
    replace_in(&s, backward);
}
