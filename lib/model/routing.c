/*
 * routing.c - the experts that tokens go to
 *
 * In training a job may give experts a capacity (Lepikhin et al. 2021, as Megatron Core has it): of
 * a rank's choices in a micro-batch each keeps so many, and those beyond add nothing; weights of
 * the others stay as they are. Losses and statistics of routers are of all choices.
 */
#include "model/routing_impl.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

/* The view of the layer in a cell with n numbers of each, one for all sizes of micro-batches; 0 if
 * they are not needed. */
static int of_layer(const struct emitter *e, int cell, int64_t n)
{
    struct program *p = e->b->program;
    int64_t at = model_spec_n_expert_layers(e->b->spec, e->layer) * n;

    if (e->end != MODEL_TRAIN)
        return 0;
    for (int id = 1; id < p->n_values; id++)
        if (p->values[id].base == cell && p->values[id].offset == at)
            return id;
    return program_view(p, cell, at, 1, n, n);
}

static int has_balance(const struct emitter *e, enum router_balance_kind kind)
{
    const struct model_spec *s = e->b->spec;

    return e->end == MODEL_TRAIN && s->router_balance > 0 && s->router_balance_kind == kind;
}

/* The losses are means over the global batch; of the parts of sequences, too. */
static struct op_attributes router_attributes(const struct emitter *e)
{
    const struct model_spec *s = e->b->spec;
    struct op_attributes a = { .normalize = s->router_normalize,
                               .score = s->router_score,
                               .scale = s->router_scaling,
                               .groups = s->router_groups,
                               .groups_kept = s->router_groups_kept };

    if (e->end != MODEL_TRAIN)
        return a;
    if (s->router_balance > 0)
        a.balance = s->router_balance * (double)e->b->n_sequences / (double)e->b->global_batch /
                    (e->ulysses * e->keys);
    if (s->router_z > 0)
        a.z = s->router_z * (double)e->b->n_sequences / (double)e->b->global_batch /
              (e->ulysses * e->keys);
    if (has_balance(e, ROUTER_BALANCE_PER_SEQUENCE)) {
        a.by_sequence = 1;
        a.seq_len = (int)(e->rows / e->b->n_sequences);
    }
    return a;
}

/*
 * The value of the experts that a layer's rows are routed to. If the balance loss is pooled over
 * layers they are rows of one value, which the gradient of each router reads in full: the chunk
 * must have all layers.
 */
static int choices_of_layer(const struct emitter *e, int logits)
{
    struct model_builder *b = e->b;
    const struct model_spec *s = b->spec;
    int64_t rows = b->program->values[logits].rows, cols = s->n_active_experts;
    int n_layers = model_spec_n_expert_layers(s, s->n_layers);
    int before = model_spec_n_expert_layers(s, e->layer);

    if (!has_balance(e, ROUTER_BALANCE_POOLED))
        return value(e, logits, cols, DTYPE_I32);
    if (!b->choices) {
        b->choices = program_value(b->program, n_layers * rows, cols, DTYPE_I32);
        memcpy(b->program->values[b->choices].spread, b->program->values[logits].spread,
               sizeof b->program->values[logits].spread);
    }
    return program_view(b->program, b->choices, before * rows * cols, rows, cols, cols);
}

int64_t routing_capacity(const struct emitter *e)
{
    const struct model_spec *s = e->b->spec;
    double even = (double)e->rows * s->n_active_experts / s->n_experts;

    if (e->end != MODEL_TRAIN || !(e->b->capacity_factor > 0))
        return 0;
    /* Not one more for the rounding of a factor such as 1.1. */
    int64_t n = (int64_t)ceil(e->b->capacity_factor * even * (1 - 1e-12));
    return max_i64(1, min_i64(n, e->rows));
}

/* The choices that are kept. */
static int limited(const struct emitter *e, int expert, int weight)
{
    int64_t capacity = routing_capacity(e);

    if (!capacity)
        return expert;
    int kept = value(e, expert, cols_of(e, expert), DTYPE_I32);
    emit(e, (struct op){ .kind = OP_LIMIT_CHOICES,
                         .attributes = { .n_experts = e->b->spec->n_experts, .capacity = capacity },
                         .in = { [LIMIT_CHOICES_EXPERT] = expert,
                                 [LIMIT_CHOICES_WEIGHT] = e->b->drops_by_weight ? weight : 0 },
                         .out = { [LIMIT_CHOICES_KEPT] = kept,
                                  [LIMIT_CHOICES_DROPPED] =
                                      of_layer(e, e->b->program->ports.dropped, 1) } });
    return kept;
}

/* The balance loss is over all rows of the micro-batch, or of
 * each sequence; or its shares are of what all ranks have counted so far. */
struct routes routing_emit(const struct emitter *e, int y)
{
    struct model_builder *b = e->b;
    const struct model_spec *s = b->spec;
    int logits = value(e, y, s->n_experts, DTYPE_F32);

    emit(e, (struct op){ .kind = OP_LINEAR,
                         .in = { [LINEAR_X] = y, [LINEAR_W] = weight_of(e, MODULE_ROUTER) },
                         .out = { [LINEAR_Y] = logits } });
    logits = enter_tp_region(e, logits);
    struct routes r = { .weight = value(e, logits, s->n_active_experts, DTYPE_F32),
                        .expert = choices_of_layer(e, logits),
                        .place = program_value(b->program, routing_rows(e), s->n_active_experts,
                                               DTYPE_I32),
                        .ends = program_value(e->b->program, 1, s->n_experts, DTYPE_I32) };
    int expert = r.expert;
    int counts = has_balance(e, ROUTER_BALANCE_GLOBAL)
                     ? program_value(e->b->program, 1, s->n_experts, DTYPE_F64)
                     : 0;
    emit(e,
         (struct op){ .kind = OP_ROUTER,
                      .attributes = router_attributes(e),
                      .in = { [ROUTER_LOGITS] = logits, [ROUTER_BIAS] = bias_of(e, MODULE_ROUTER) },
                      .out = { [ROUTER_WEIGHT] = r.weight,
                               [ROUTER_EXPERT] = expert,
                               [ROUTER_STATS] =
                                   of_layer(e, b->program->ports.router_stats, 1 + s->n_experts),
                               [ROUTER_COUNTS] = counts } });
    r.expert = limited(e, expert, r.weight);
    int begin = r.expert == expert ? 0 : b->parts.none;
    /* With whole experts tp ranks have routed all of their rows, and each sends its own. */
    int own = b->whole_experts ? program_local_shard(b->program, NULL, r.expert, axes_tensor())
                               : r.expert;
    emit(e, (struct op){ .kind = OP_EXPERT_ORDER,
                         .attributes.n_experts = begin ? s->n_experts : 0,
                         .in = { [EXPERT_ORDER_EXPERT] = own, [EXPERT_ORDER_BEGIN] = begin },
                         .out = { [EXPERT_ORDER_PLACE] = r.place, [EXPERT_ORDER_ENDS] = r.ends } });
    return r;
}
