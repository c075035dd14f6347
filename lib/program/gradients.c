/*
 * gradients.c - the gradient rule of each op kind
 *
 * A rule takes the gradients of its op's outputs (take: the sum so far) and contributes to those of
 * its inputs. The B ops lie on the path to the inputs' gradients, the W ops accumulate a
 * parameter's; zero bubble schedules may run them apart. A norm's gradient is one op for both,
 * class B, and folds in what the residual path has brought already, so that no separate add runs
 * over the stream.
 */
#include "program/gradients.h"

/* Is g a sum that is still owed over the axis, though v is none? */
static int is_partial(const struct gradient_walk *walk, int v, int g, enum mesh_axis axis)
{
    const struct value *values = walk->program->values;

    return g && walk->program->mesh.size[axis] > 1 && values[g].spread[axis] == SPREAD_PARTIAL &&
           values[v].spread[axis] != SPREAD_PARTIAL;
}

/* The axes on which it is, as a set. */
static unsigned partial_axes(const struct gradient_walk *walk, int v, int g)
{
    unsigned axes = 0;

    for (int axis = 0; axis < N_AXES; axis++)
        axes |= (unsigned)is_partial(walk, v, g, (enum mesh_axis)axis) << axis;
    return axes;
}

static int needs(const struct gradient_walk *walk, int v)
{
    return v && walk->needs[v];
}

static int like(struct gradient_walk *walk, int v, enum dtype dtype)
{
    const struct value *value = &walk->program->values[v];

    return program_value(walk->program, value->rows, value->cols, dtype);
}

static void emit(struct gradient_walk *walk, struct op op)
{
    op.layer = walk->layer;
    program_emit(walk->program, walk->backward, &op);
}

static enum dtype dtype_of(const struct gradient_walk *walk, int v)
{
    return walk->program->values[v].dtype;
}

/* The gradient of v seen so far, which the caller now stands for; 0 if none. */
static int take_summands(struct gradient_walk *walk, int v)
{
    int gradient = walk->gradient[v];

    walk->gradient[v] = 0;
    return gradient;
}

static void emit_collective(struct gradient_walk *walk, enum op_kind kind, enum mesh_axis axis,
                            int in, int out)
{
    emit(walk, (struct op){ .kind = kind,
                            .attributes.axis = axis,
                            .in = { in },
                            .out = { out },
                            .phase = PHASE_B,
                            .stream = stream_of_axis(axis) });
}

/* g, reduced over every axis on which it is partial and v is not. */
static int reduce_if_partial(struct gradient_walk *walk, int v, int g)
{
    for (int axis = 0; axis < N_AXES; axis++) {
        if (!is_partial(walk, v, g, (enum mesh_axis)axis))
            continue;
        int sum = like(walk, g, dtype_of(walk, g));
        emit_collective(walk, OP_ALL_REDUCE, (enum mesh_axis)axis, g, sum);
        g = sum;
    }
    return g;
}

/* The same, added up over ranks: what is the same everywhere has such a gradient. */
static int take(struct gradient_walk *walk, int v)
{
    return reduce_if_partial(walk, v, take_summands(walk, v));
}

/* v, or a copy of it in that dtype. */
static int as_dtype(struct gradient_walk *walk, int v, enum dtype dtype)
{
    if (dtype_of(walk, v) == dtype)
        return v;
    int copy = like(walk, v, dtype);
    emit(walk, (struct op){ .kind = OP_CAST, .in = { v }, .out = { copy }, .phase = PHASE_B });
    return copy;
}

/*
 * v's gradient grows by g. Read several times are the residual stream and, by router and
 * experts or by matrices and their adapters, a norm's output: the gradient of one may be a summand
 * of the rank's where that of the other is the same on all of them.
 */
static void contribute(struct gradient_walk *walk, int v, int g)
{
    int before = walk->gradient[v];

    if (!needs(walk, v))
        return;
    if (before) {
        if (partial_axes(walk, v, before) != partial_axes(walk, v, g)) {
            before = reduce_if_partial(walk, v, before);
            g = reduce_if_partial(walk, v, g);
        }
        /* Of one type they are added in one op: the same bits. */
        int alike =
            dtype_of(walk, before) == dtype_of(walk, g) && dtype_of(walk, g) == dtype_of(walk, v);
        before = alike ? before : as_dtype(walk, before, DTYPE_F32);
        int sum = like(walk, v, alike ? dtype_of(walk, v) : DTYPE_F32);
        emit(walk,
             (struct op){ .kind = OP_ADD, .in = { before, g }, .out = { sum }, .phase = PHASE_B });
        g = as_dtype(walk, sum, dtype_of(walk, v));
    }
    walk->gradient[v] = g;
}

/* The accumulator for this use of a parameter's weight; 0 if it is frozen or no parameter. */
static int accumulator(struct gradient_walk *walk, int weight)
{
    int parameter = weight ? program_parameter_of(walk->program, weight) : -1;

    return parameter < 0 ? 0 : program_add_gradient(walk->program, parameter);
}

static void embed_rule(struct gradient_walk *walk, const struct op *op)
{
    int dx = take(walk, op->out[0]);
    int dtable = accumulator(walk, op->in[1]);

    if (dtable)
        emit(walk, (struct op){ .kind = OP_EMBED_DW,
                                .in = { dx, op->in[0], op->in[3] },
                                .out = { dtable },
                                .phase = PHASE_W });
    if (op->in[2])
        contribute(walk, op->in[2], dx);
}

static void rmsnorm_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), x = op->in[0], w = op->in[1];
    int add = take(walk, x), dx = like(walk, x, dtype_of(walk, x));

    emit(walk, (struct op){ .kind = OP_RMSNORM_GRAD,
                            .attributes = op->attributes,
                            .in = { dy, x, w, op->out[1], add },
                            .out = { dx, accumulator(walk, w) },
                            .phase = PHASE_B });
    contribute(walk, x, dx);
}

static void layernorm_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), x = op->in[0], w = op->in[1], b = op->in[2];
    int add = take(walk, x), dx = like(walk, x, dtype_of(walk, x));
    int dw = accumulator(walk, w), db = accumulator(walk, b);

    emit(walk, (struct op){ .kind = OP_LAYERNORM_GRAD,
                            .attributes = op->attributes,
                            .in = { dy, x, w, op->out[1], op->out[2], add },
                            .out = { dx, dw, db },
                            .phase = PHASE_B });
    contribute(walk, x, dx);
}

/* Is w the same on all ranks, over every axis on which the gradient of y is partial? */
static int is_whole(const struct gradient_walk *walk, int w, int y)
{
    unsigned axes = partial_axes(walk, y, walk->gradient[y]);

    for (int axis = 0; axis < N_AXES; axis++)
        if ((axes >> axis & 1) && walk->program->values[w].spread[axis] != SPREAD_SAME)
            return 0;
    return 1;
}

/*
 * Where every rank has all of w, its summand of dy gives it a summand of each gradient: x's is added
 * up where others' of x are, w's at the update. So adapters' small products meet no other rank.
 */
static void linear_rule(struct gradient_walk *walk, const struct op *op)
{
    int x = op->in[0], w = op->in[1];
    int keeps = !op->in[2] && is_whole(walk, w, op->out[0]);
    int dy = keeps ? take_summands(walk, op->out[0]) : take(walk, op->out[0]);

    dy = as_dtype(walk, dy, dtype_of(walk, x));
    if (needs(walk, x)) {
        int dx = like(walk, x, dtype_of(walk, x));

        emit(walk,
             (struct op){ .kind = OP_LINEAR_DX, .in = { dy, w }, .out = { dx }, .phase = PHASE_B });
        contribute(walk, x, dx);
    }
    int dw = accumulator(walk, w), db = accumulator(walk, op->in[2]);
    if (dw)
        emit(walk,
             (struct op){
                 .kind = OP_LINEAR_DW, .in = { dy, x }, .out = { dw, db }, .phase = PHASE_W });
    else if (db)
        emit(walk,
             (struct op){ .kind = OP_BIAS_GRAD, .in = { dy }, .out = { db }, .phase = PHASE_W });
}

static void rope_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), dx = like(walk, op->in[0], dtype_of(walk, op->in[0]));

    emit(walk, (struct op){ .kind = OP_ROPE_GRAD,
                            .attributes = op->attributes,
                            .in = { dy, op->in[1], op->in[2] },
                            .out = { dx },
                            .phase = PHASE_B });
    contribute(walk, op->in[0], dx);
}

static void head_norm_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), qkv = op->in[0], wq = op->in[1], wk = op->in[2];
    int dqkv = like(walk, qkv, dtype_of(walk, qkv)), dwq = accumulator(walk, wq);

    emit(walk, (struct op){ .kind = OP_HEAD_NORM_GRAD,
                            .attributes = op->attributes,
                            .in = { dy, qkv, wq, wk, op->out[1] },
                            .out = { dqkv, dwq, accumulator(walk, wk) },
                            .phase = PHASE_B });
    contribute(walk, qkv, dqkv);
}

static void attention_rule(struct gradient_walk *walk, const struct op *op)
{
    int dout = take(walk, op->out[0]), qkv = op->in[0];
    int dqkv = like(walk, qkv, dtype_of(walk, qkv));

    emit(walk,
         (struct op){ .kind = OP_ATTENTION_GRAD,
                      .attributes = op->attributes,
                      .in = { dout, qkv, op->out[0], op->out[1], op->in[1], op->in[2], op->in[3] },
                      .out = { dqkv },
                      .phase = PHASE_B });
    contribute(walk, qkv, dqkv);
}

/* dx from dy and x, the kind's own gradient op. */
static void activation_rule(struct gradient_walk *walk, const struct op *op, enum op_kind kind)
{
    int dy = take(walk, op->out[0]), x = op->in[0], dx = like(walk, x, dtype_of(walk, x));

    emit(walk, (struct op){ .kind = kind, .in = { dy, x }, .out = { dx }, .phase = PHASE_B });
    contribute(walk, x, dx);
}

/* Summands may be scaled and dropped one by one. */
static void scale_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take_summands(walk, op->out[0]), x = op->in[0];
    int dx = like(walk, x, dtype_of(walk, x));

    emit(walk, (struct op){ .kind = OP_SCALE,
                            .attributes = op->attributes,
                            .in = { dy },
                            .out = { dx },
                            .phase = PHASE_B });
    contribute(walk, x, dx);
}

/* The part of dy that a pair of h and b has made, from its column `col` on. */
static void lora_part(struct gradient_walk *walk, const struct op *op, int part, int dy, int col)
{
    struct program *p = walk->program;
    int h = op->in[1 + 2 * part], b = op->in[2 + 2 * part];
    const struct value *v = &p->values[dy];

    if (!h)
        return;
    int columns = program_view(p, dy, col, v->rows, op->attributes.parts[part], v->stride);
    if (needs(walk, h)) {
        int dh = like(walk, h, dtype_of(walk, h));

        emit(walk,
             (struct op){
                 .kind = OP_LINEAR_DX, .in = { columns, b }, .out = { dh }, .phase = PHASE_B });
        contribute(walk, h, dh);
    }
    int db = accumulator(walk, b);
    if (db)
        emit(walk,
             (struct op){
                 .kind = OP_LINEAR_DW, .in = { columns, h }, .out = { db }, .phase = PHASE_W });
}

static void lora_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), col = 0;

    for (int part = 0; part < OPS_LORA_PARTS; part++) {
        lora_part(walk, op, part, dy, col);
        col += op->attributes.parts[part];
    }
    contribute(walk, op->in[0], dy);
}

static void router_rule(struct gradient_walk *walk, const struct op *op)
{
    int dweight = take(walk, op->out[0]), logits = op->in[0];
    int dlogits = like(walk, logits, DTYPE_F32);
    int balances = op->attributes.balance > 0;
    int reads = !op->attributes.normalize || balances;
    /* Where the layer's choices are a part of all layers', the balance is of all. */
    int choices = balances ? walk->program->values[op->out[1]].base : 0;

    emit(walk, (struct op){ .kind = OP_ROUTER_GRAD,
                            .attributes = op->attributes,
                            .in = { dweight, op->out[0], op->out[1], reads ? logits : 0,
                                    balances ? walk->program->ports.gradient_scale : 0, choices },
                            .out = { dlogits },
                            .phase = PHASE_B });
    contribute(walk, logits, dlogits);
}

/* Each is the other's gradient. */
static void moving_rule(struct gradient_walk *walk, const struct op *op, enum op_kind kind)
{
    int dy = take_summands(walk, op->out[0]), x = op->in[1];
    int dx = like(walk, x, dtype_of(walk, x));

    emit(walk,
         (struct op){ .kind = kind, .in = { op->in[0], dy }, .out = { dx }, .phase = PHASE_B });
    contribute(walk, x, dx);
}

static void expert_linear_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), x = op->in[0], ends = op->in[1], w = op->in[2];

    if (needs(walk, x)) {
        int dx = like(walk, x, dtype_of(walk, x));

        emit(walk, (struct op){ .kind = OP_EXPERT_LINEAR_DX,
                                .in = { dy, ends, w },
                                .out = { dx },
                                .phase = PHASE_B });
        contribute(walk, x, dx);
    }
    int dw = accumulator(walk, w);
    if (dw)
        emit(walk, (struct op){ .kind = OP_EXPERT_LINEAR_DW,
                                .in = { dy, x, ends },
                                .out = { dw },
                                .phase = PHASE_W });
}

static void expert_swiglu_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), weight = op->in[0], gu = op->in[2];
    int dgu = like(walk, gu, dtype_of(walk, gu)), dweight = like(walk, weight, DTYPE_F32);

    emit(walk, (struct op){ .kind = OP_EXPERT_SWIGLU_GRAD,
                            .in = { weight, op->in[1], dy, gu },
                            .out = { dgu, dweight },
                            .phase = PHASE_B });
    contribute(walk, gu, dgu);
    contribute(walk, weight, dweight);
}

static void adapter_rule(struct gradient_walk *walk, const struct op *op)
{
    if (op->kind == OP_SCALE)
        scale_rule(walk, op);
    else
        lora_rule(walk, op);
}

static void dropout_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = op->in[2] ? take(walk, op->out[0]) : take_summands(walk, op->out[0]);
    int x = op->in[0], dx = like(walk, x, dtype_of(walk, x));

    emit(walk, (struct op){ .kind = OP_DROPOUT_GRAD,
                            .attributes = op->attributes,
                            .in = { dy, op->in[1], op->in[2] },
                            .out = { dx },
                            .phase = PHASE_B });
    contribute(walk, x, dx);
}

static void add_bias_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), db = accumulator(walk, op->in[1]);

    if (db)
        emit(walk,
             (struct op){ .kind = OP_BIAS_GRAD, .in = { dy }, .out = { db }, .phase = PHASE_W });
    contribute(walk, op->in[0], dy);
}

/*
 * Where every reader of the gathered rows has a part of what follows, each rank's gradient is a
 * summand: they are added up, and each takes its rows of the sum. Where they all do the same, they
 * have the same gradient, and each takes its rows.
 */
static void all_gather_rule(struct gradient_walk *walk, const struct op *op)
{
    enum mesh_axis axis = op->attributes.axis;
    int x = op->in[0], dy = take_summands(walk, op->out[0]);

    if (!is_partial(walk, op->out[0], dy, axis)) {
        contribute(walk, x, program_own_part(walk->program, NULL, dy, axis));
        return;
    }
    int dx = like(walk, x, dtype_of(walk, dy));
    emit_collective(walk, OP_REDUCE_SCATTER, axis, dy, dx);
    contribute(walk, x, dx);
}

/* The summands of a sum have its gradient: all of it, also where each rank has its rows alone. */
static void reduce_scatter_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), dx = like(walk, op->in[0], dtype_of(walk, dy));

    emit_collective(walk, OP_ALL_GATHER, op->attributes.axis, dy, dx);
    contribute(walk, op->in[0], dx);
}

static void gather_heads_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]), dx = like(walk, op->in[0], dtype_of(walk, dy));

    emit(walk, (struct op){ .kind = OP_GATHER_HEADS_GRAD,
                            .attributes = op->attributes,
                            .in = { dy },
                            .out = { dx },
                            .phase = PHASE_B,
                            .stream = op->stream });
    contribute(walk, op->in[0], dx);
}

static void add_rule(struct gradient_walk *walk, const struct op *op)
{
    int dy = take(walk, op->out[0]);

    contribute(walk, op->in[0], dy);
    if (needs(walk, op->in[1]))
        contribute(walk, op->in[1], as_dtype(walk, dy, dtype_of(walk, op->in[1])));
}

int gradient_known(enum op_kind kind)
{
    switch (kind) {
    case OP_EMBED:
    case OP_RMSNORM:
    case OP_LAYERNORM:
    case OP_LINEAR:
    case OP_ROPE:
    case OP_HEAD_NORM:
    case OP_ATTENTION:
    case OP_SWIGLU:
    case OP_GELU:
    case OP_SCALE:
    case OP_LORA:
    case OP_ROUTER:
    case OP_DISPATCH:
    case OP_COMBINE:
    case OP_EXPERT_LINEAR:
    case OP_EXPERT_SWIGLU:
    case OP_DROPOUT:
    case OP_ADD:
    case OP_ADD_BIAS:
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
    case OP_ALL_REDUCE:
    case OP_GATHER_HEADS:
        return 1;
    default:
        return 0;
    }
}

void gradient_rule(struct gradient_walk *walk, const struct op *op)
{
    switch (op->kind) {
    case OP_EMBED:
        embed_rule(walk, op);
        break;
    case OP_RMSNORM:
        rmsnorm_rule(walk, op);
        break;
    case OP_LAYERNORM:
        layernorm_rule(walk, op);
        break;
    case OP_LINEAR:
        linear_rule(walk, op);
        break;
    case OP_ROPE:
        rope_rule(walk, op);
        break;
    case OP_HEAD_NORM:
        head_norm_rule(walk, op);
        break;
    case OP_ATTENTION:
        attention_rule(walk, op);
        break;
    case OP_SWIGLU:
    case OP_GELU:
        activation_rule(walk, op, op->kind == OP_SWIGLU ? OP_SWIGLU_GRAD : OP_GELU_GRAD);
        break;
    case OP_SCALE:
    case OP_LORA:
        adapter_rule(walk, op);
        break;
    case OP_ROUTER:
        router_rule(walk, op);
        break;
    case OP_DISPATCH:
    case OP_COMBINE:
        moving_rule(walk, op, op->kind == OP_DISPATCH ? OP_COMBINE : OP_DISPATCH);
        break;
    case OP_EXPERT_LINEAR:
        expert_linear_rule(walk, op);
        break;
    case OP_EXPERT_SWIGLU:
        expert_swiglu_rule(walk, op);
        break;
    case OP_DROPOUT:
        dropout_rule(walk, op);
        break;
    case OP_ADD:
        add_rule(walk, op);
        break;
    case OP_ADD_BIAS:
        add_bias_rule(walk, op);
        break;
    case OP_ALL_GATHER:
        all_gather_rule(walk, op);
        break;
    case OP_REDUCE_SCATTER:
        reduce_scatter_rule(walk, op);
        break;
    case OP_ALL_REDUCE:
        contribute(walk, op->in[0], take(walk, op->out[0]));
        break;
    case OP_GATHER_HEADS:
        gather_heads_rule(walk, op);
        break;
    default:
        CHECK(!"an op with a gradient rule");
    }
}
