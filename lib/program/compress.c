/*
 * compress.c - gradients are reduced over ranks in fewer bytes
 *
 * Each rank adds to its sums of all micro-batches what it has lost of earlier steps' (error
 * feedback), and encodes that. Codes are exchanged, each rank decodes and adds its part of all
 * ranks' in the order of ranks, and what is lost stays in the place of the sums, until it is known
 * that the step counts.
 *
 *     W  bucket.0 += accumulate bucket.0:error
 *     W  %80, codec_sums = encode ~bucket.0                bucket.0: what is lost
 *     W  %81 = exchange_codes %80  over dp
 *        ...                                               the backward goes on meanwhile
 *     W  bucket.0:shard = decode %81
 *     U  keep_error bucket.0, skip_update, ~bucket.0:error
 *
 * This is int8 and fp8; topk is below, powersgd in low_rank.c. The order of sums is that of
 * reduce_scatter. Codes are of blocks of elements within parameters' norm blocks, so bits depend
 * neither on how parameters are put into buckets nor on stages or the stage of ZeRO.
 *
 * The axis is the one that ZeRO shards over, for experts another one where ranks divide them. Over
 * other axes of tokens (cp) the decoded sums are summed as they are, as shards are without a codec:
 * a rank's error is of its own summands, and a codec that loses nothing has the bits of none.
 * Gradients of fp16 are encoded with their scale, a power of two that no code hangs on; errors are
 * kept without it, so that the next step's may be another.
 */
#include <stdlib.h>
#include <string.h>

#include "layout/axes.h"
#include "program/shard_impl.h"

int compress_make_cells(const struct sharding *s, const struct bucket_reduction *r, int zero)
{
    struct program *p = s->program;
    struct bucket *b = &p->buckets[r->bucket];
    int cell = b->gradients[r->use], whole = 0;
    const char *name = p->values[cell].name;
    int64_t n = b->n_elements;

    CHECK(p->values[cell].dtype == DTYPE_F32);
    int error =
        program_cell(p, ROLE_ERROR, arena_printf(&p->arena, "%s:error", name), 1, n, DTYPE_F32);
    memcpy(p->values[error].spread, p->values[cell].spread, sizeof p->values[cell].spread);
    b->errors[r->use] = error;
    b->left[r->use] = cell;
    if (!zero) {
        whole = program_cell(p, ROLE_GRADIENT, arena_printf(&p->arena, "%s:sum", name), 1, n,
                             DTYPE_F32);
        memcpy(p->values[whole].spread, p->values[cell].spread, sizeof p->values[cell].spread);
        program_spread_over(p, whole, b->axis, SPREAD_SAME);
    }
    return whole;
}

void compress_make_sums(struct program *p, int n_reductions)
{
    int cell = program_cell(p, ROLE_SCALAR, "codec_sums", 1, 2 * n_reductions, DTYPE_F64);

    for (int axis = 0; axis < N_AXES; axis++)
        p->values[cell].spread[axis] = SPREAD_PARTIAL;
    p->ports.codec_sums = cell;
}

int compress_wait_place(const struct function *f, int after)
{
    int later = after + 1;

    while (later < f->n_ops && f->ops[later].stream != f->ops[after].stream)
        later++;
    return later;
}

static struct op op_of(enum op_kind kind)
{
    return (struct op){ .kind = kind, .phase = PHASE_W, .layer = -1 };
}

struct part {
    int32_t first, n;
};

static int by_first(const void *a, const void *b)
{
    const struct part *x = a, *y = b;

    return x->first < y->first ? -1 : x->first > y->first;
}

/* Where in the flat cell parameters lie, in its order; and how many pairs are sent of all. */
static int parts_of(struct program *p, const struct bucket_reduction *r, int64_t *n_pairs)
{
    struct part *parts = arena_array(&p->arena, struct part, p->n_parameters * TENSOR_MAX_USES);
    int error = p->buckets[r->bucket].errors[r->use], n = 0;

    CHECK(p->buckets[r->bucket].n_elements <= INT32_MAX);
    for (int i = 0; i < p->n_parameters; i++)
        for (int use = 0; use < TENSOR_MAX_USES; use++) {
            const struct value *v = &p->values[p->parameters[i].errors[use]];

            if (v->base == error)
                parts[n++] = (struct part){ (int32_t)v->offset, (int32_t)(v->rows * v->cols) };
        }
    qsort(parts, (size_t)n, sizeof *parts, by_first);
    *n_pairs = 0;
    for (int i = 0; i < n; i++)
        *n_pairs += ops_top_k(p->codec.ratio, parts[i].n);
    const char *name = arena_printf(&p->arena, "%s:parts", p->values[error].name);
    int cell = program_cell(p, ROLE_CONSTANT, name, 1, 2 * n, DTYPE_I32);
    p->values[cell].content = parts;
    return cell;
}

/* Behind op index, which has made the sum over the bucket's axis. */
void compress_take_shard(struct program *p, int function, int index,
                         const struct bucket_reduction *r, int sum, int whole)
{
    const struct bucket *b = &p->buckets[r->bucket];
    struct op op = op_of(OP_ACCUMULATE);

    if (!whole) {
        op.in[ACCUMULATE_X] = program_local_shard(p, NULL, sum, b->axis);
        op.out[ACCUMULATE_Y] = b->shards[r->use];
        op.first = FIRST_ALWAYS;
        program_insert(p, function, ++index, &op);
    }
    sum_what_is_left(p, function, &index, whole ? whole : b->shards[r->use], b->axis);
}

/*
 *     W  %80, codec_sums = top_k ~bucket.0, parts
 *     W  %81 = gather_codes %80  over dp
 *     W  %82 = add_pairs %81                               under zero 0: bucket.0:sum
 *     W  bucket.0:shard = accumulate %82's shard           where optimizers are sharded
 */
static void emit_top_k(struct program *p, int function, int index, const struct bucket_reduction *r,
                       int sums, int whole)
{
    const struct bucket *b = &p->buckets[r->bucket];
    int64_t n_pairs;
    int parts = parts_of(p, r, &n_pairs);
    int pairs = program_value(p, 1, 2 * n_pairs, DTYPE_I32);
    int gathered = program_value(p, program_n_shards(p, r->bucket), 2 * n_pairs, DTYPE_I32);
    int sum = whole ? whole : program_value(p, 1, b->n_elements, DTYPE_F32);

    struct op op = op_of(OP_TOP_K);
    op.attributes.ratio = p->codec.ratio;
    op.in[TOP_K_X] = b->left[r->use];
    op.in[TOP_K_PARTS] = parts;
    op.out[TOP_K_PAIRS] = pairs;
    op.out[TOP_K_SUMS] = sums;
    program_insert(p, function, ++index, &op);

    op = op_of(OP_GATHER_CODES);
    op.attributes.axis = b->axis;
    op.in[GATHER_CODES_X] = pairs;
    op.out[GATHER_CODES_Y] = gathered;
    op.stream = stream_of_axis(b->axis);
    program_insert(p, function, ++index, &op);

    index = compress_wait_place(&p->functions[function], index);
    op = op_of(OP_ADD_PAIRS);
    op.in[ADD_PAIRS_PAIRS] = gathered;
    op.out[ADD_PAIRS_Y] = sum;
    program_insert(p, function, index, &op);
    compress_take_shard(p, function, index, r, sum, whole);
}

/* Gradients of fp16 have a factor, which errors are without. */
static void add_error(struct program *p, int function, int index, int error, int cell)
{
    struct op op = op_of(p->ports.gradient_scale ? OP_ADD_ERROR : OP_ACCUMULATE);

    if (p->ports.gradient_scale) {
        op.in[ADD_ERROR_ERROR] = error;
        op.in[ADD_ERROR_SCALE] = p->ports.gradient_scale;
        op.in[ADD_ERROR_X] = cell;
    } else {
        op.in[ACCUMULATE_X] = error;
        op.out[ACCUMULATE_Y] = cell;
        op.first = FIRST_NEVER;
    }
    program_insert(p, function, index, &op);
}

void compress_emit(struct program *p, int function, int index, const struct bucket_reduction *r,
                   int number, int whole)
{
    const struct bucket *b = &p->buckets[r->bucket];
    int cell = b->left[r->use], shard = b->shards[r->use], n_ranks = program_n_shards(p, r->bucket);
    int64_t n_bytes = ops_code_bytes(b->n_elements / n_ranks);
    struct op op;

    add_error(p, function, ++index, b->errors[r->use], cell);
    int sums = program_view(p, p->ports.codec_sums, 2 * number, 1, 2, 2);
    if (p->codec.codec == CODEC_TOP_K) {
        emit_top_k(p, function, index, r, sums, whole);
        return;
    }
    if (p->codec.codec == CODEC_POWERSGD) {
        low_rank_emit(p, function, index, r, sums, whole);
        return;
    }
    int codes = program_value(p, n_ranks, n_bytes, DTYPE_U8);
    int exchanged = program_value(p, n_ranks, n_bytes, DTYPE_U8);
    op = op_of(OP_ENCODE);
    op.attributes.codec = p->codec.codec;
    op.in[ENCODE_X] = cell;
    op.out[ENCODE_CODES] = codes;
    op.out[ENCODE_SUMS] = sums;
    program_insert(p, function, ++index, &op);

    op = op_of(OP_EXCHANGE_CODES);
    op.attributes.axis = b->axis;
    op.in[EXCHANGE_CODES_X] = codes;
    op.out[EXCHANGE_CODES_Y] = exchanged;
    op.stream = stream_of_axis(b->axis);
    program_insert(p, function, ++index, &op);

    index = compress_wait_place(&p->functions[function], index);
    op = op_of(OP_DECODE);
    op.attributes.codec = p->codec.codec;
    op.in[DECODE_CODES] = exchanged;
    op.out[DECODE_Y] = shard;
    program_insert(p, function, index, &op);
    shard = sum_what_is_left(p, function, &index, shard, b->axis);
    if (!whole)
        return;
    op = op_of(OP_ALL_GATHER);
    op.attributes.axis = b->axis;
    op.in[ALL_GATHER_SHARD] = shard;
    op.out[ALL_GATHER_FULL] = whole;
    op.stream = STREAM_DP_GATHER;
    program_insert(p, function, index + 1, &op);
}

/* ---- in the update ---- */

static int table_of_ends(struct program *p, int64_t n)
{
    int32_t *ends = arena_array(&p->arena, int32_t, 2);
    int cell = program_cell(p, ROLE_CONSTANT, "codec_ends", 1, 2, DTYPE_I32);

    ends[0] = (int32_t)(n / 2);
    ends[1] = (int32_t)n;
    p->values[cell].content = ends;
    return cell;
}

/* The numbers of all squares of what was to be sent, then of what was lost of it. */
static int table_of_order(struct program *p, int64_t n)
{
    int32_t *order = arena_array(&p->arena, int32_t, n);
    int cell = program_cell(p, ROLE_CONSTANT, "codec_order", 1, n, DTYPE_I32);

    for (int64_t i = 0; i < n; i++)
        order[i] = (int32_t)(i < n / 2 ? 2 * i : 2 * (i - n / 2) + 1);
    p->values[cell].content = order;
    return cell;
}

void compress_sum(struct program *p, int update)
{
    int own = p->ports.codec_sums;
    int64_t n = p->values[own].cols;

    if (!own)
        return;
    int sum = program_value(p, 1, 2, DTYPE_F64);
    struct op op = { .kind = OP_SUM_RUNS, .phase = PHASE_U, .layer = -1 };
    op.in[SUM_RUNS_X] = own;
    op.in[SUM_RUNS_ENDS] = table_of_ends(p, n);
    op.in[SUM_RUNS_ORDER] = table_of_order(p, n);
    op.out[SUM_RUNS_Y] = sum;
    program_emit(p, update, &op);
    for (int axis = 0; axis < N_AXES; axis++) {
        if (p->mesh.size[axis] == 1)
            continue;
        p->values[sum].spread[axis] = SPREAD_PARTIAL; /* stages have cells of their own */
        int total =
            program_cell(p, ROLE_SCALAR,
                         arena_printf(&p->arena, "codec_total.%s", axis_name((enum mesh_axis)axis)),
                         1, 2, DTYPE_F64);
        op = (struct op){ .kind = OP_ALL_REDUCE_SCALAR, .phase = PHASE_U, .layer = -1 };
        op.attributes.axis = (enum mesh_axis)axis;
        op.in[ALL_REDUCE_SCALAR_X] = sum;
        op.out[ALL_REDUCE_SCALAR_Y] = total;
        op.stream = stream_of_sums((enum mesh_axis)axis);
        program_emit(p, update, &op);
        sum = total;
    }
    p->ports.codec_total = sum;
}

/* scale: the factor of what is left, or 0. */
static void emit_keep(struct program *p, int update, int left, int scale, int kept)
{
    struct op op = { .kind = OP_KEEP_ERROR, .phase = PHASE_U, .layer = -1 };

    op.in[KEEP_ERROR_LEFT] = left;
    op.in[KEEP_ERROR_SKIP_UPDATE] = p->ports.skip_update;
    op.in[KEEP_ERROR_ERROR] = kept;
    op.in[KEEP_ERROR_SCALARS] = p->codec.start ? p->ports.scalars : 0;
    op.in[KEEP_ERROR_SCALE] = scale;
    op.attributes.start = p->codec.start;
    program_emit(p, update, &op);
}

void compress_keep(struct program *p, int update)
{
    for (int i = 0; i < p->n_buckets; i++)
        for (int use = 0; use < p->buckets[i].n_uses; use++) {
            const struct bucket *b = &p->buckets[i];

            if (!b->errors[use])
                continue;
            emit_keep(p, update, b->left[use], p->ports.gradient_scale, b->errors[use]);
            /* Of factors the directions alone are used. */
            if (b->factors[use].kept)
                emit_keep(p, update, b->factors[use].found, 0, b->factors[use].kept);
        }
}

void uncompressed_step(struct program *p, const struct chunk_functions *chunks, int n)
{
    const struct entry *step = &p->entries[ENTRY_STEP];
    struct entry *e = &p->entries[ENTRY_UNCOMPRESSED];

    if (!p->codec.start)
        return;
    e->actions = arena_array(&p->arena, struct action, step->n_actions);
    e->n_actions = step->n_actions;
    memcpy(e->actions, step->actions, sizeof *e->actions * (size_t)e->n_actions);
    for (int i = 0; i < e->n_actions; i++)
        for (int c = 0; c < n; c++)
            if (step->actions[i].kind == ACTION_RUN && chunks[c].uncompressed &&
                step->actions[i].function == chunks[c].last)
                e->actions[i].function = (int16_t)chunks[c].uncompressed;
}
