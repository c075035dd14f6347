/*
 * lora.c - low-rank adapters: y + scale (dropout(x) A') B'
 *
 * Hu et al. 2021. For a matrix whose outputs are divided over tp, B's rows are divided in the same
 * way and each rank has all of A. For one whose inputs are divided, A's columns are and each rank
 * has all of B: x A' is then partial, as y is, and the one reduction of y covers both. With fastseq
 * ranks along ulysses have all rows of x, and divide B again. Experts' rows are sorted by expert,
 * and meet its A and B.
 */
#include "model/lora_impl.h"

#include <stdbool.h>

#include "base/num.h"
#include "layout/axes.h"

struct adapting {
    struct model_builder *b;
    const struct lora_site *site;
};

static void emit(const struct adapting *a, struct op op)
{
    op.phase = PHASE_F;
    op.layer = a->site->layer;
    program_emit(a->b->program, a->site->function, &op);
}

static int weight_of(const struct adapting *a, enum lora_module module, enum lora_matrix matrix)
{
    int handle = a->b->adapters[a->site->layer][module][matrix];

    CHECK(handle);
    return a->b->program->parameters[handle - 1].weight;
}

/* Whether x has the rows of all ranks along ulysses. */
static bool has_gathered_rows(const struct adapting *a)
{
    return a->b->fastseq && a->site->module == MODULE_QKV;
}

/* The first rng site of adapters' dropout, after all sites of model.c. */
#define SITE_LORA 64

/* Over tp the columns may be a part of all: the op then needs the offset of the rank's columns. */
static int dropped(const struct adapting *a, enum lora_module module)
{
    struct program *p = a->b->program;
    int x = a->site->x;
    struct value v = p->values[x];
    int is_part = p->mesh.size[axes_tensor()] > 1 && v.spread[axes_tensor()] == SPREAD_COLS;
    int begin = a->site->module == MODULE_SHARED_DOWN ? a->b->parts.shared_cols
                : module == LORA_DOWN                 ? a->b->parts.ffn_cols
                                                      : a->b->parts.attention_cols;

    if (!a->b->dropout || a->b->tuning->dropout <= 0)
        return x;
    int y = program_value(p, v.rows, v.cols, v.dtype);
    emit(a, (struct op){ .kind = OP_DROPOUT,
                         .attributes = { .p = a->b->tuning->dropout,
                                         .seed = a->b->seed,
                                         .rng_site = (uint64_t)(a->site->layer + 1) << 8 |
                                                     (uint64_t)(SITE_LORA + (int)module),
                                         .seq_len = a->b->seq_len,
                                         .by_columns = is_part },
                         .in = { [DROPOUT_X] = x,
                                 [DROPOUT_SAMPLE] = p->ports.samples,
                                 [DROPOUT_OFFSET] = is_part ? begin : 0,
                                 [DROPOUT_ROW] = has_gathered_rows(a) ? 0 : p->ports.rows },
                         .out = { [DROPOUT_Y] = y } });
    return y;
}

/* scale dropout(x) A' */
static int inner(const struct adapting *a, enum lora_module module, struct lora_place place)
{
    struct program *p = a->b->program;
    int x = a->site->ends ? a->site->x : dropped(a, module), w = weight_of(a, module, LORA_A);
    int h = program_value(p, p->values[x].rows, place.rank, a->b->dtype);
    int scaled = program_value(p, p->values[x].rows, place.rank, a->b->dtype);

    if (a->site->ends)
        emit(a, (struct op){ .kind = OP_EXPERT_LINEAR,
                             .attributes.n_rows = a->site->n_rows,
                             .in = { [EXPERT_LINEAR_X] = x,
                                     [EXPERT_LINEAR_ENDS] = a->site->ends,
                                     [EXPERT_LINEAR_W] = w },
                             .out = { [EXPERT_LINEAR_Y] = h } });
    else
        emit(a, (struct op){ .kind = OP_LINEAR,
                             .in = { [LINEAR_X] = x, [LINEAR_W] = w },
                             .out = { [LINEAR_Y] = h } });
    emit(a, (struct op){ .kind = OP_SCALE,
                         .attributes.scale = place.scale,
                         .in = { [SCALE_X] = h },
                         .out = { [SCALE_Y] = scaled } });
    return scaled;
}

/* The columns of each piece on the rank, as parameter_split divides the rows of the matrix. */
static void list_parts(const struct adapting *a, int *parts)
{
    const struct model_builder *b = a->b;
    const struct lora_site *site = a->site;
    int is_whole = site->ends && b->whole_experts;
    int64_t n = is_whole ? 1 : b->program->mesh.size[axes_tensor()];
    struct parameter_spec q;

    if (has_gathered_rows(a))
        n *= b->program->mesh.size[axes_heads()];
    CHECK(parameters_find(b->spec, parameters_id(b->spec, site->module, PART_WEIGHT, site->layer),
                          &q));
    for (int i = 0; i < q.n_pieces; i++)
        parts[i] = (int)ceil_div(q.pieces[i], n);
}

int lora_emit(struct model_builder *b, const struct lora_site *site)
{
    const struct adapting a = { b, site };
    struct program *p = b->program;
    struct op op = { .kind = site->ends ? OP_EXPERT_LORA : OP_LORA,
                     .attributes.n_rows = site->n_rows,
                     .in = { [LORA_Y] = site->y } };
    int n = 0, h0 = site->ends ? EXPERT_LORA_H0 : LORA_H0;

    for (int m = 0; m < N_LORA_MODULES; m++) {
        enum lora_module module = (enum lora_module)m;
        struct lora_place place = tuning_place(b->tuning, site->layer, module);
        struct lora_target target = lora_target_of(b->spec, site->layer, module);

        if (target.module != site->module || !place.rank)
            continue;
        int at = max_int(target.piece, 0);
        op.in[h0 + 2 * at] = inner(&a, module, place);
        op.in[h0 + 2 * at + 1] = weight_of(&a, module, LORA_B);
        n++;
        if (target.piece < 0)
            op.attributes.parts[0] = (int)p->values[site->y].cols;
    }
    if (!n)
        return site->y;
    if (!op.attributes.parts[0])
        list_parts(&a, op.attributes.parts);
    if (site->ends)
        op.in[EXPERT_LORA_ENDS] = site->ends;
    int out = program_value(p, p->values[site->y].rows, p->values[site->y].cols, b->dtype);
    op.out[LORA_OUT] = out;
    emit(&a, op);
    return out;
}
