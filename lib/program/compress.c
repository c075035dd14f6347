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
 * The order of sums is that of reduce_scatter. Codes are of blocks of elements within parameters'
 * norm blocks, so bits depend neither on how parameters are put into buckets nor on stages or the
 * stage of ZeRO.
 */
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

/* The last place of the function at which what `after` exchanges may be waited for: behind it there
 * is another op of its stream, or nothing. */
static int later_than(const struct function *f, int after)
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

void compress_emit(struct program *p, int function, int index, const struct bucket_reduction *r,
                   int number, int whole)
{
    const struct bucket *b = &p->buckets[r->bucket];
    int cell = b->left[r->use], shard = b->shards[r->use], n_ranks = program_n_shards(p, r->bucket);
    int64_t n_bytes = ops_code_bytes(b->n_elements / n_ranks);
    int codes = program_value(p, n_ranks, n_bytes, DTYPE_U8);
    int exchanged = program_value(p, n_ranks, n_bytes, DTYPE_U8);

    struct op op = op_of(OP_ACCUMULATE);
    op.in[ACCUMULATE_X] = b->errors[r->use];
    op.out[ACCUMULATE_Y] = cell;
    op.first = FIRST_NEVER;
    program_insert(p, function, ++index, &op);

    op = op_of(OP_ENCODE);
    op.attributes.codec = p->codec;
    op.in[ENCODE_X] = cell;
    op.out[ENCODE_CODES] = codes;
    op.out[ENCODE_SUMS] = program_view(p, p->ports.codec_sums, 2 * number, 1, 2, 2);
    program_insert(p, function, ++index, &op);

    op = op_of(OP_EXCHANGE_CODES);
    op.attributes.axis = b->axis;
    op.in[EXCHANGE_CODES_X] = codes;
    op.out[EXCHANGE_CODES_Y] = exchanged;
    op.stream = stream_of_axis(b->axis);
    program_insert(p, function, ++index, &op);

    index = later_than(&p->functions[function], index);
    op = op_of(OP_DECODE);
    op.attributes.codec = p->codec;
    op.in[DECODE_CODES] = exchanged;
    op.out[DECODE_Y] = shard;
    program_insert(p, function, index, &op);
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

void compress_keep(struct program *p, int update)
{
    for (int i = 0; i < p->n_buckets; i++)
        for (int use = 0; use < p->buckets[i].n_uses; use++) {
            const struct bucket *b = &p->buckets[i];

            if (!b->errors[use])
                continue;
            struct op op = { .kind = OP_KEEP_ERROR, .phase = PHASE_U, .layer = -1 };
            op.in[KEEP_ERROR_LEFT] = b->left[use];
            op.in[KEEP_ERROR_SKIP_UPDATE] = p->ports.skip_update;
            op.in[KEEP_ERROR_ERROR] = b->errors[use];
            program_emit(p, update, &op);
        }
}
