/*
 * ring.c - keys and values go from rank to rank instead of being gathered
 *
 * The model emits attention over gathered keys, which differentiate takes apart as any op. This
 * pass replaces both gathers, attention, its gradient and the sums of dk and dv by n steps, one for
 * each rank of the axis (Liu et al. 2023, Ring Attention with Blockwise Transformers). At step s a
 * rank has the keys of the rank s places before it; it passes them on while it attends to them:
 *
 *     F  %k1 = rotate %k                       F  %k_all = gather_sequence %k
 *     F  %s0 = attention_part -, %q, %k, ..    F  %out, %lse = attention %q, %k_all, ...
 *     F  %s1 = attention_part %s0, %q, %k1, .. <-
 *     F  %out, %lse = attention_end %s1
 *
 * In the backward keys go round once more; the gradients of what is at hand follow one step behind,
 * each rank adds its own in fp32, and after n steps they are home. What a query sees of the keys of
 * each step are inputs (ports.ring_first, ring_last). Keys are folded in another order than
 * attention's, so this is a numerics of its own (cp_kind ring).
 */
#include "layout/axes.h"
#include "program/passes.h"

struct ring_steps {
    struct program *program;
    int function; /* that is emitted into */
    int n;        /* ranks */
    int layer;
    int n_values;
    int *part; /* by value: of gathered keys or values those of the rank; 0: it is none */
    int *sum;  /* by value: of gradients of gathered keys the rank's sums; 0: it is none */
};

static int at(const int *of, int n, int v)
{
    return v && v < n ? of[v] : 0;
}

static int new_value(const struct ring_steps *r, int64_t rows, int64_t cols, enum dtype dtype)
{
    return program_value(r->program, rows, cols, dtype);
}

static void emit_in(const struct ring_steps *r, struct op op, enum phase phase)
{
    op.phase = phase;
    op.layer = r->layer;
    program_emit(r->program, r->function, &op);
}

/* x of the rank before, into y, or a new value if y is 0. */
static int rotate(const struct ring_steps *r, int x, int y, enum phase phase)
{
    struct value v = r->program->values[x];

    y = y ? y : new_value(r, v.rows, v.cols, v.dtype);
    emit_in(r,
            (struct op){ .kind = OP_ROTATE,
                         .attributes = { .axis = axes_keys(), .peer = -1 },
                         .in = { [ROTATE_X] = x },
                         .out = { [ROTATE_Y] = y },
                         .stream = STREAM_CP },
            phase);
    return y;
}

/* The rows of a ring input that step s reads. */
static int of_step(const struct ring_steps *r, int input, int s)
{
    int64_t rows = r->program->values[input].rows / r->n;

    return program_view(r->program, input, s * rows, rows, 1, 1);
}

/* Keys and values at hand, which the next step's replace: those are under way from `pass_on` on. */
struct at_hand {
    int k, v, next_k, next_v;
};

static void pass_on(const struct ring_steps *r, struct at_hand *h, int s, enum phase phase)
{
    if (s + 1 == r->n)
        return;
    h->next_k = rotate(r, h->k, 0, phase);
    h->next_v = rotate(r, h->v, 0, phase);
}

static void take_next(struct at_hand *h)
{
    h->k = h->next_k;
    h->v = h->next_v;
}

static struct op_attributes part_attributes(const struct op *op)
{
    return (struct op_attributes){ .n_heads = op->attributes.n_heads,
                                   .n_kv_heads = op->attributes.n_kv_heads,
                                   .head_dim = op->attributes.head_dim,
                                   .seq_len = op->attributes.seq_len,
                                   .scale = op->attributes.scale };
}

static void attend(const struct ring_steps *r, const struct op *op)
{
    struct program *p = r->program;
    const struct ports *ports = &p->ports;
    struct value out = p->values[op->out[ATTENTION_OUT]];
    struct op_attributes attributes = part_attributes(op);
    struct at_hand h = { .k = at(r->part, r->n_values, op->in[ATTENTION_K]),
                         .v = at(r->part, r->n_values, op->in[ATTENTION_V]) };
    int state = 0;

    for (int s = 0; s < r->n; s++, take_next(&h)) {
        int next = new_value(r, out.rows, out.cols + 2 * (int64_t)attributes.n_heads, DTYPE_F32);

        pass_on(r, &h, s, op->phase);
        emit_in(r,
                (struct op){ .kind = OP_ATTENTION_PART,
                             .attributes = attributes,
                             .in = { [ATTENTION_PART_STATE] = state,
                                     [ATTENTION_PART_Q] = op->in[ATTENTION_Q],
                                     [ATTENTION_PART_K] = h.k,
                                     [ATTENTION_PART_V] = h.v,
                                     [ATTENTION_PART_FIRST] = of_step(r, ports->ring_first, s),
                                     [ATTENTION_PART_LAST] = of_step(r, ports->ring_last, s) },
                             .out = { [ATTENTION_PART_NEXT] = next } },
                op->phase);
        state = next;
    }
    emit_in(r,
            (struct op){ .kind = OP_ATTENTION_END,
                         .attributes = attributes,
                         .in = { [ATTENTION_END_STATE] = state },
                         .out = { [ATTENTION_END_OUT] = op->out[ATTENTION_OUT],
                                  [ATTENTION_END_LSE] = op->out[ATTENTION_LSE] } },
            op->phase);
}

/* The gradient that came with the keys, and this rank's of them. */
static int sum_of(const struct ring_steps *r, int travelled, int own)
{
    struct value v = r->program->values[own];

    if (!travelled)
        return own;
    int sum = new_value(r, v.rows, v.cols, DTYPE_F32);
    emit_in(r,
            (struct op){ .kind = OP_ADD,
                         .in = { [ADD_A] = travelled, [ADD_B] = own },
                         .out = { [ADD_Y] = sum } },
            PHASE_B);
    return sum;
}

static void attend_backward(const struct ring_steps *r, const struct op *op)
{
    const struct ports *ports = &r->program->ports;
    const struct value q = r->program->values[op->in[ATTENTION_GRAD_Q]];
    struct op_attributes attributes = part_attributes(op);
    struct at_hand h = { .k = at(r->part, r->n_values, op->in[ATTENTION_GRAD_K]),
                         .v = at(r->part, r->n_values, op->in[ATTENTION_GRAD_V]) };
    const struct value k = r->program->values[h.k], v = r->program->values[h.v];
    int dq = 0, dk = 0, dv = 0;

    for (int s = 0; s < r->n; s++, take_next(&h)) {
        int sum = new_value(r, q.rows, q.cols, DTYPE_F32);
        int own_dk = new_value(r, k.rows, k.cols, DTYPE_F32);
        int own_dv = new_value(r, v.rows, v.cols, DTYPE_F32);

        dk = dk ? rotate(r, dk, 0, PHASE_B) : 0;
        dv = dv ? rotate(r, dv, 0, PHASE_B) : 0;
        pass_on(r, &h, s, PHASE_B);
        emit_in(r,
                (struct op){ .kind = OP_ATTENTION_PART_GRAD,
                             .attributes = attributes,
                             .in = { [ATTENTION_PART_GRAD_SUM] = dq,
                                     [ATTENTION_PART_GRAD_DOUT] = op->in[ATTENTION_GRAD_DOUT],
                                     [ATTENTION_PART_GRAD_Q] = op->in[ATTENTION_GRAD_Q],
                                     [ATTENTION_PART_GRAD_K] = h.k,
                                     [ATTENTION_PART_GRAD_V] = h.v,
                                     [ATTENTION_PART_GRAD_OUT] = op->in[ATTENTION_GRAD_OUT],
                                     [ATTENTION_PART_GRAD_LSE] = op->in[ATTENTION_GRAD_LSE],
                                     [ATTENTION_PART_GRAD_FIRST] = of_step(r, ports->ring_first, s),
                                     [ATTENTION_PART_GRAD_LAST] = of_step(r, ports->ring_last, s) },
                             .out = { [ATTENTION_PART_GRAD_DQ] = sum,
                                      [ATTENTION_PART_GRAD_DK] = own_dk,
                                      [ATTENTION_PART_GRAD_DV] = own_dv } },
                PHASE_B);
        dq = sum;
        dk = sum_of(r, dk, own_dk);
        dv = sum_of(r, dv, own_dv);
    }
    emit_in(r,
            (struct op){ .kind = OP_ATTENTION_DQ_END,
                         .attributes.scale = attributes.scale,
                         .in = { [ATTENTION_DQ_END_SUM] = dq },
                         .out = { [ATTENTION_DQ_END_DQ] = op->out[ATTENTION_GRAD_DQ] } },
            PHASE_B);
    r->sum[op->out[ATTENTION_GRAD_DK]] = dk;
    r->sum[op->out[ATTENTION_GRAD_DV]] = dv;
}

/* The last step home, and the rounding to the gradient's dtype. */
static void bring_home(const struct ring_steps *r, int sum, int out)
{
    if (r->program->values[out].dtype == DTYPE_F32) {
        rotate(r, sum, out, PHASE_B);
        return;
    }
    int home = rotate(r, sum, 0, PHASE_B);
    emit_in(r, (struct op){ .kind = OP_CAST, .in = { [CAST_X] = home }, .out = { [CAST_Y] = out } },
            PHASE_B);
}

static void replace(struct ring_steps *r, const struct op *op)
{
    bool is_over_keys = op->attributes.axis == axes_keys();

    r->layer = op->layer;
    if (op->kind == OP_GATHER_SEQUENCE && is_over_keys)
        r->part[op->out[GATHER_SEQUENCE_WHOLE]] = op->in[GATHER_SEQUENCE_PART];
    else if (op->kind == OP_ATTENTION && at(r->part, r->n_values, op->in[ATTENTION_K]))
        attend(r, op);
    else if (op->kind == OP_ATTENTION_GRAD && at(r->part, r->n_values, op->in[ATTENTION_GRAD_K]))
        attend_backward(r, op);
    else if (op->kind == OP_SCATTER_SEQUENCE &&
             at(r->sum, r->n_values, op->in[SCATTER_SEQUENCE_WHOLE]))
        bring_home(r, r->sum[op->in[SCATTER_SEQUENCE_WHOLE]], op->out[SCATTER_SEQUENCE_PART]);
    else
        program_emit(r->program, r->function, op);
}

static void replace_in(struct ring_steps *r, int function)
{
    struct function *f = &r->program->functions[function];
    const struct op *old = f->ops;
    int n = f->n_ops;

    f->ops = NULL;
    f->n_ops = f->capacity = 0;
    r->function = function;
    for (int i = 0; i < n; i++)
        replace(r, &old[i]);
}

void ring(struct program *program, int forward, int backward)
{
    struct ring_steps r = { .program = program,
                            .n = program->mesh.size[axes_keys()],
                            .n_values = program->n_values,
                            .part = arena_array(&program->arena, int, program->n_values),
                            .sum = arena_array(&program->arena, int, program->n_values) };

    replace_in(&r, forward);
    if (backward >= 0)
        replace_in(&r, backward);
}
