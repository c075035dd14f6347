/*
 * mixture.c - experts in the place of an FFN: routing, exchange, their products, shared experts
 *
 *     routing_emit       weights and experts of each token; their order
 *       gather             of the choices of all ranks that divide experts
 *       send_rows          tokens to the ranks that have their experts
 *       dispatch           a row for each choice of one of the rank's, by expert
 *       expert_linear, expert_swiglu, expert_linear
 *       return_rows        to the ranks of the tokens
 *       combine            the sum of a token's
 */
#include "model/mixture_impl.h"

#include "base/num.h"
#include "model/lora_impl.h"
#include "model/routing_impl.h"

static int n_expert_ranks(const struct emitter *e)
{
    return mesh_size(&e->b->program->mesh, model_expert_axis(e->b));
}

/* v, which has rows of all that tp ranks send, of all ranks of ep: so those of all that have
 * experts, in their order. */
static int gather_experts_rows(const struct emitter *e, int v)
{
    const struct value part = e->b->program->values[v];
    int ep = e->b->program->mesh.size[axes_experts()];

    if (ep == 1)
        return v;
    int all = program_value(e->b->program, part.rows * ep, part.cols, part.dtype);

    emit(e, (struct op){ .kind = OP_ALL_GATHER,
                         .attributes.axis = axes_experts(),
                         .in = { [ALL_GATHER_SHARD] = v },
                         .out = { [ALL_GATHER_FULL] = all },
                         .stream = STREAM_EP });
    return all;
}

/* The tokens of all ranks, with the order of the rank's experts. */
static struct routes routes_of_experts(const struct emitter *e, const struct routes *own)
{
    int m = e->b->spec->n_experts, n = n_expert_ranks(e);

    if (n == 1)
        return *own;
    struct routes all = { .weight = gather_experts_rows(e, own->weight),
                          .expert = gather_experts_rows(e, own->expert),
                          .ends = program_value(e->b->program, 1, m / n, DTYPE_I32) };
    all.place = value(e, all.expert, e->b->spec->n_active_experts, DTYPE_I32);
    emit(e, (struct op){
                .kind = OP_EXPERT_ORDER,
                .attributes.n_experts = m,
                .in = { [EXPERT_ORDER_EXPERT] = all.expert,
                        [EXPERT_ORDER_BEGIN] = e->b->parts.experts },
                .out = { [EXPERT_ORDER_PLACE] = all.place, [EXPERT_ORDER_ENDS] = all.ends } });
    return all;
}

/* Where all experts are chosen alike, the rank's get as many rows as its tokens have choices. */
static struct op_attributes routed(const struct emitter *e)
{
    int64_t n_rows = routing_rows(e) * e->b->spec->n_active_experts;

    return (struct op_attributes){ .n_rows = n_expert_ranks(e) > 1 ? n_rows : 0 };
}

static struct op exchange_op(const struct emitter *e, enum op_kind kind)
{
    struct op op = { .kind = kind, .attributes = routed(e), .stream = STREAM_EP };

    op.attributes.axis = model_expert_axis(e->b);
    op.attributes.n_experts = e->b->spec->n_experts;
    return op;
}

/* x's rows, and those of other ranks that go to experts of this one. */
static int send_rows(const struct emitter *e, const struct routes *own, const struct routes *all,
                     int x)
{
    struct op op = exchange_op(e, OP_SEND_ROWS);
    struct program *p = e->b->program;

    if (n_expert_ranks(e) == 1)
        return x;
    op.in[SEND_ROWS_X] = x;
    op.in[SEND_ROWS_CHOICES] = all->expert;
    op.in[SEND_ROWS_PLACE] = own->place;
    op.out[SEND_ROWS_Y] =
        program_value(p, p->values[all->expert].rows, p->values[x].cols, p->values[x].dtype);
    emit(e, op);
    return op.out[SEND_ROWS_Y];
}

/* What experts make of the rows of the rank's own tokens. */
static int return_rows(const struct emitter *e, const struct routes *own, const struct routes *all,
                       int y)
{
    struct op op = exchange_op(e, OP_RETURN_ROWS);
    struct program *p = e->b->program;
    const struct value place = p->values[own->place], rows = p->values[y];

    if (n_expert_ranks(e) == 1)
        return y;
    op.in[RETURN_ROWS_Y] = y;
    op.in[RETURN_ROWS_CHOICES] = all->expert;
    op.in[RETURN_ROWS_PLACE] = all->place;
    op.out[RETURN_ROWS_X] = program_value(p, place.rows * place.cols, rows.cols, rows.dtype);
    emit(e, op);
    return op.out[RETURN_ROWS_X];
}

/* Rows that the rank's experts may get: any token chooses each of them once, and of each rank's
 * choices no more than the capacity are kept. */
static int64_t n_rows_of_experts(const struct emitter *e)
{
    int64_t n = n_expert_ranks(e), k = e->b->spec->n_active_experts, m = e->b->spec->n_experts;
    int64_t n_rows = n * routing_rows(e) * min_i64(k, m / n), capacity = routing_capacity(e);

    return capacity ? min_i64(n_rows, m * capacity * e->b->program->mesh.size[axes_experts()] / n)
                    : n_rows;
}

double model_balanced_share(const struct model_spec *s, int n)
{
    int k = s->n_active_experts;

    return n > 1 && s->n_experts > 0 ? (double)k / (n * (double)min_i64(k, s->n_experts / n)) : 1;
}

/* Of each expert's matrix, and the adapters of each. */
static int expert_linear(const struct emitter *e, int x, int ends, enum module_id module)
{
    const struct value *values = e->b->program->values;
    int weight = weight_of(e, module);
    int64_t n = values[weight].rows / values[ends].cols;
    int y = value(e, x, n, e->b->dtype);
    struct op_attributes attributes = routed(e);
    bool in_fp8 =
        e->b->fp8.has_experts && emit_in_fp8(e, module, n, e->b->program->values[weight].cols);

    if (in_fp8) {
        attributes.fp8 = e->b->fp8.recipe;
        attributes.wide_dw = e->b->fp8.wide_dw;
    }
    emit(e, (struct op){ .kind = in_fp8 ? OP_EXPERT_LINEAR_FP8 : OP_EXPERT_LINEAR,
                         .attributes = attributes,
                         .in = { [EXPERT_LINEAR_X] = x,
                                 [EXPERT_LINEAR_ENDS] = ends,
                                 [EXPERT_LINEAR_W] = weight },
                         .out = { [EXPERT_LINEAR_Y] = y } });
    return lora_emit(
        e->b, &(struct lora_site){ e->function, e->layer, module, x, y, ends, routed(e).n_rows });
}

/* What the experts that all rows go to give, times their gate: y is the norm's output, x of it what
 * the tp region has. As experts' their sum over tp is still owed. */
static int shared_experts(const struct emitter *e, int y, int x)
{
    const struct model_spec *s = e->b->spec;
    int gate = weight_of(e, MODULE_SHARED_GATE);
    int ffn_hidden = emit_linear(e, MODULE_SHARED_GATE_UP, x, 0);

    ffn_hidden = emit_with_lora(e, MODULE_SHARED_GATE_UP, x, ffn_hidden);
    int h = value(e, ffn_hidden, s->shared_ffn_size / e->tp, e->b->dtype);

    emit(e, (struct op){
                .kind = OP_SWIGLU, .in = { [SWIGLU_GU] = ffn_hidden }, .out = { [SWIGLU_Y] = h } });
    if (gate) {
        int logit = value(e, y, 1, DTYPE_F32);
        emit(e, (struct op){ .kind = OP_LINEAR,
                             .in = { [LINEAR_X] = y, [LINEAR_W] = gate },
                             .out = { [LINEAR_Y] = logit } });
        int gated = value(e, h, cols_of(e, h), dtype_of(e, h));
        emit(e,
             (struct op){ .kind = OP_GATE_ROWS,
                          .in = { [GATE_ROWS_X] = h, [GATE_ROWS_GATE] = enter_tp_region(e, logit) },
                          .out = { [GATE_ROWS_Y] = gated } });
        h = gated;
    }
    int down = emit_linear(e, MODULE_SHARED_DOWN, h, 0);
    return emit_with_lora(e, MODULE_SHARED_DOWN, h, down);
}

/* What experts give, plus that of shared ones: where tp divides them all, the sum over tp is owed
 * for both at once. y, x: as shared_experts'. */
static int with_shared(const struct emitter *e, int sum, int y, int x)
{
    if (e->b->whole_experts)
        return emit_residual_add(e, sum,
                                 leave_tp_region(e, shared_experts(e, y, enter_tp_region(e, y))));
    return emit_residual_add(e, sum, shared_experts(e, y, x));
}

/* Shazeer et al. 2017, without noise; without a capacity, too, unless the job gives one. */
int mixture_emit(const struct emitter *e, int y)
{
    const struct model_spec *s = e->b->spec;
    struct program *p = e->b->program;
    struct routes own = routing_emit(e, y), r = routes_of_experts(e, &own);
    int x = e->b->whole_experts ? y : enter_tp_region(e, y);
    int rows = program_value(p, n_rows_of_experts(e), s->hidden_size, e->b->dtype);

    emit(e, (struct op){
                .kind = OP_DISPATCH,
                .attributes = routed(e),
                .in = { [DISPATCH_PLACE] = r.place, [DISPATCH_X] = send_rows(e, &own, &r, x) },
                .out = { [DISPATCH_Y] = rows } });
    int ffn_hidden = expert_linear(e, rows, r.ends, MODULE_EXPERTS_GATE_UP);
    int tp = e->b->whole_experts ? 1 : e->tp;
    int h = value(e, ffn_hidden, s->expert_ffn_size / tp, e->b->dtype);
    emit(e, (struct op){ .kind = OP_EXPERT_SWIGLU,
                         .attributes = routed(e),
                         .in = { [EXPERT_SWIGLU_WEIGHT] = r.weight,
                                 [EXPERT_SWIGLU_PLACE] = r.place,
                                 [EXPERT_SWIGLU_GU] = ffn_hidden },
                         .out = { [EXPERT_SWIGLU_Y] = h } });
    int out = expert_linear(e, h, r.ends, MODULE_EXPERTS_DOWN);
    out = return_rows(e, &own, &r, out);
    int sum = program_value(p, routing_rows(e), s->hidden_size, e->b->dtype);
    emit(e, (struct op){ .kind = OP_COMBINE,
                         .in = { [COMBINE_PLACE] = own.place, [COMBINE_Y] = out },
                         .out = { [COMBINE_X] = sum } });
    if (model_spec_has_shared(s, e->layer))
        sum = with_shared(e, sum, y, x);
    return e->b->whole_experts ? sum : leave_tp_region(e, sum);
}
