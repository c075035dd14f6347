/*
 * emitter_impl.h - the emitter of a chunk's forward, and the functions that all parts of a forward
 * use
 *
 * Values are named by ids of the program. Functions here append ops to the emitter's function and
 * return the last op's output.
 */
#ifndef MODEL_EMITTER_IMPL_H
#define MODEL_EMITTER_IMPL_H

#include "layout/axes.h"
#include "model/model.h"

struct emitter {
    struct model_builder *b;
    int function, layer;
    int64_t rows; /* of a micro-batch, that the rank has */
    int tp;       /* ranks that divide heads, FFN columns and vocabulary */
    int ulysses;  /* ranks that exchange rows for heads around attention */
    int keys;     /* ranks that gather keys and values */
    enum model_end end;
};

/* A module's weight or bias, of the current layer if it belongs to layers; 0 if there is none. */
static inline int parameter(const struct emitter *e, enum module_id module, enum module_part part)
{
    int at = model_parameter(e->b, parameters_id(e->b->spec, module, part, e->layer));

    return at < 0 ? 0 : e->b->program->parameters[at].weight;
}

static inline int weight_of(const struct emitter *e, enum module_id module)
{
    return parameter(e, module, PART_WEIGHT);
}

static inline int bias_of(const struct emitter *e, enum module_id module)
{
    return parameter(e, module, PART_BIAS);
}

/* A new value with as many rows as v. */
static inline int value(const struct emitter *e, int v, int64_t cols, enum dtype dtype)
{
    return program_value(e->b->program, e->b->program->values[v].rows, cols, dtype);
}

static inline void emit(const struct emitter *e, struct op op)
{
    op.phase = PHASE_F;
    op.layer = e->layer;
    program_emit(e->b->program, e->function, &op);
}

static inline int64_t cols_of(const struct emitter *e, int v)
{
    return e->b->program->values[v].cols;
}

static inline enum dtype dtype_of(const struct emitter *e, int v)
{
    return e->b->program->values[v].dtype;
}

/* The sites of dropout in a layer: part of the key of random numbers, so they are never
 * renumbered. */
enum dropout_site { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_FFN_OUT };

static inline uint64_t rng_site_of(const struct emitter *e, enum dropout_site site)
{
    return (uint64_t)(e->layer + 1) << 8 | (uint64_t)site;
}

/* ---- tensor-parallel regions (operators f and g of Shoeybi et al. 2019) ---- */

static inline void emit_tp(const struct emitter *e, enum op_kind kind, int x, int y)
{
    emit(e, (struct op){ .kind = kind,
                         .attributes.axis = axes_tensor(),
                         .in = { [OPS_FIRST] = x },
                         .out = { [OPS_FIRST] = y },
                         .stream = STREAM_TP });
}

/* x as input of ops that are divided over tp: with sequence parallelism its rows are gathered. */
static inline int enter_tp_region(const struct emitter *e, int x)
{
    if (e->tp == 1 || !e->b->sequence_parallel)
        return x;
    int all = program_value(e->b->program, e->rows, cols_of(e, x), dtype_of(e, x));
    emit_tp(e, OP_ALL_GATHER, x, all);
    return all;
}

/* The sum over tp of a partial output: with sequence parallelism a reduce_scatter, of which a rank
 * has its rows, else an all_reduce. */
static inline int leave_tp_region(const struct emitter *e, int x)
{
    int64_t rows = e->b->sequence_parallel ? e->rows / e->tp : e->rows;

    if (e->tp == 1)
        return x;
    int sum = program_value(e->b->program, rows, cols_of(e, x), dtype_of(e, x));
    emit_tp(e, e->b->sequence_parallel ? OP_REDUCE_SCATTER : OP_ALL_REDUCE, x, sum);
    return sum;
}

/* ---- model.c ---- */

/* Whether the job has products with the layer's matrix of this module in fp8, of which a rank has
 * so many rows and columns, which libraries want to be multiples; the parameter is marked. */
bool emit_in_fp8(const struct emitter *e, enum module_id module, int64_t rows, int64_t cols);

/* The product of x and the module's matrix, plus bias if it is not 0; in fp8 where the job has this
 * layer so, in training. */
int emit_linear(const struct emitter *e, enum module_id module, int x, int bias);

/* y, the product of x and the module's matrix, plus the adapters of this matrix. */
int emit_with_lora(const struct emitter *e, enum module_id module, int x, int y);

/* The stream x plus delta. */
int emit_residual_add(const struct emitter *e, int x, int delta);

#endif
