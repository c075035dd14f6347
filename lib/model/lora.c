/*
 * lora.c - low-rank adapters: y + scale (dropout(x) A') B'
 *
 * Of a matrix whose outputs are divided over tp, B's rows are divided alike and each rank has all
 * of A; of one whose inputs are, A's columns are and each rank has all of B: there x A' is a summand
 * of the rank's, as y is, and nothing is added up before y is.
 */
#include "model/lora_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"

/* Matrices that an up without gate shares its place with. */
static int is_of(const struct model_spec *s, enum lora_module module, const char *matrix)
{
    if (module == LORA_UP && s->activation != ACTIVATION_SWIGLU)
        return !strcmp(matrix, "up");
    return !strcmp(matrix, lora_module_matrix(module));
}

/* Which of the matrix' parts, or -1: all of it. */
static int part_of(const struct model_spec *s, enum lora_module module)
{
    return module == LORA_UP && s->activation != ACTIVATION_SWIGLU ? -1 : lora_module_part(module);
}

static const char *name_of(char *buffer, size_t size, int layer, enum lora_module module,
                           char which)
{
    snprintf(buffer, size, "layers.%d.%s.lora_%c", layer, lora_module_name(module), which);
    return buffer;
}

static void declare_one(const struct model_builder *b, int layer, enum lora_module module, int rank,
                        int64_t rows, int64_t cols, const struct parameter_split *parts)
{
    struct program *p = b->program;
    struct parameter_split split = *parts,
                           inner = { .along = parts->along, .n_pieces = 1, .pieces = { cols } };
    int part = part_of(b->spec, module);
    char name[96];

    if (part >= 0) {
        rows = parts->pieces[part];
        split.n_pieces = 1;
        split.pieces[0] = rows;
    }
    int a = program_parameter(p, name_of(name, sizeof name, layer, module, 'a'), 2, rank, cols,
                              b->dtype, INIT_UNIFORM, 1 / sqrt((double)cols));
    if (parts->along == SPREAD_COLS)
        program_split_parameter(p, a, axes_tensor(), &inner);
    int w = program_parameter(p, name_of(name, sizeof name, layer, module, 'b'), 2, rows, rank,
                              b->dtype, INIT_ZEROS, 0);
    if (parts->along == SPREAD_ROWS)
        program_split_parameter(p, w, axes_tensor(), &split);
}

void lora_declare(const struct model_builder *b, int layer, const char *matrix, int64_t rows,
                  int64_t cols, const struct parameter_split *parts)
{
    for (int m = 0; m < N_LORA_MODULES; m++) {
        enum lora_module module = (enum lora_module)m;
        struct lora_place place = tuning_place(b->tuning, layer, module);

        if (place.rank && is_of(b->spec, module, matrix))
            declare_one(b, layer, module, place.rank, rows, cols, parts);
    }
}

/* ---- the forward ---- */

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

static int weight_of(const struct adapting *a, enum lora_module module, char which)
{
    const struct program *p = a->b->program;
    char name[96];

    name_of(name, sizeof name, a->site->layer, module, which);
    for (int i = 0; i < p->n_parameters; i++) {
        int at = (a->b->parameter_asked + i) % p->n_parameters;

        if (strcmp(p->parameters[at].name, name) != 0)
            continue;
        a->b->parameter_asked = at;
        return p->parameters[at].weight;
    }
    CHECK(!"an adapter that was declared");
    return 0;
}

/* Where dropout is drawn: behind all places of the model's own (model.c). */
#define PLACE_LORA 64

/* Over tp the columns may be the rank's part of all: then it must know which. */
static int dropped(const struct adapting *a, enum lora_module module)
{
    struct program *p = a->b->program;
    int x = a->site->x;
    struct value v = p->values[x];
    int is_part = p->mesh.size[axes_tensor()] > 1 && v.spread[axes_tensor()] == SPREAD_COLS;
    int begin = module == LORA_DOWN ? a->b->parts.ffn_cols : a->b->parts.attention_cols;

    if (!a->b->dropout || a->b->tuning->dropout <= 0)
        return x;
    int y = program_value(p, v.rows, v.cols, v.dtype);
    emit(a, (struct op){ .kind = OP_DROPOUT,
                         .attributes = { .p = a->b->tuning->dropout,
                                         .seed = a->b->seed,
                                         .place = (uint64_t)(a->site->layer + 1) << 8 |
                                                  (uint64_t)(PLACE_LORA + (int)module),
                                         .seq_len = a->b->seq_len,
                                         .by_columns = is_part },
                         .in = { [DROPOUT_X] = x,
                                 [DROPOUT_SAMPLE] = p->ports.samples,
                                 [DROPOUT_OFFSET] = is_part ? begin : 0 },
                         .out = { y } });
    return y;
}

/* scale dropout(x) A' */
static int inner(const struct adapting *a, enum lora_module module, struct lora_place place)
{
    struct program *p = a->b->program;
    int x = dropped(a, module);
    int h = program_value(p, p->values[x].rows, place.rank, a->b->dtype);
    int scaled = program_value(p, p->values[x].rows, place.rank, a->b->dtype);

    emit(a, (struct op){ .kind = OP_LINEAR, .in = { x, weight_of(a, module, 'a') }, .out = { h } });
    emit(a,
         (struct op){
             .kind = OP_SCALE, .attributes.scale = place.scale, .in = { h }, .out = { scaled } });
    return scaled;
}

/* Of the rank's columns, as parameter_split divides the matrix' rows. */
static void list_parts(const struct model_builder *b, const char *matrix, int *parts)
{
    const struct model_spec *s = b->spec;
    int64_t tp = b->program->mesh.size[axes_tensor()];
    int kv = (int)ceil_div((int64_t)s->n_kv_heads * s->head_dim, tp);

    if (!strcmp(matrix, "qkv")) {
        parts[0] = (int)ceil_div((int64_t)s->n_heads * s->head_dim, tp);
        parts[1] = parts[2] = kv;
    } else {
        parts[0] = parts[1] = (int)ceil_div(s->ffn_size, tp);
    }
}

int lora_emit(struct model_builder *b, const struct lora_site *site)
{
    const struct adapting a = { b, site };
    struct program *p = b->program;
    struct op op = { .kind = OP_LORA, .in = { [LORA_Y] = site->y } };
    int n = 0;

    for (int m = 0; m < N_LORA_MODULES; m++) {
        enum lora_module module = (enum lora_module)m;
        struct lora_place place = tuning_place(b->tuning, site->layer, module);
        int part = part_of(b->spec, module);

        if (!is_of(b->spec, module, site->matrix) || !place.rank)
            continue;
        int at = max_int(part, 0);
        op.in[LORA_H0 + 2 * at] = inner(&a, module, place);
        op.in[LORA_B0 + 2 * at] = weight_of(&a, module, 'b');
        n++;
        if (part < 0)
            op.attributes.parts[0] = (int)p->values[site->y].cols;
    }
    if (!n)
        return site->y;
    if (!op.attributes.parts[0])
        list_parts(b, site->matrix, op.attributes.parts);
    int out = program_value(p, p->values[site->y].rows, p->values[site->y].cols, b->dtype);
    op.out[LORA_OUT] = out;
    emit(&a, op);
    return out;
}
