/*
 * attention_cached.c - attention over a cache of keys and values, for prefill and decoding
 *
 * A tile of work is one kv head of one sequence: it writes the new rows' keys and values first,
 * then each row's heads attend in turn, in two passes over the cache. Bound by reading the cache.
 * Rows of a prefill would read it again each: from PREFILL_ROWS on they attend in attention.c's
 * tiles of 64 queries, behind this file's writing.
 */
#include "kernels/cpu/attention_impl.h"

#define PREFILL_ROWS 16 /* of a sequence: a tile of so few costs what they do one by one */

enum cached_input { CACHED_QKV, POSITION, KEYS, VALUES, BEGIN, SEGMENT, SEGMENTS };

struct cached {
    const struct op_shape *op;
    float *scratch;
    size_t thread_floats;
};

/* Scores of the cache, one query and one output row. */
static size_t cached_thread_floats(const struct op_attributes *a)
{
    return (size_t)(round_up(a->cache_len, WIDTH_STEP) + 2 * tile_width(a));
}

static void write_cache(const struct cached *c, int64_t row, int64_t cache_row, int kv_head)
{
    const struct op_attributes *at = &c->op->attributes;
    size_t element = dtype_bytes(c->op->in[CACHED_QKV].dtype);
    size_t bytes = (size_t)at->head_dim * element;
    const char *key = (const char *)cpu_row(&c->op->in[CACHED_QKV], row) +
                      (size_t)(at->n_heads + kv_head) * bytes;
    const char *value = key + (size_t)at->n_kv_heads * bytes;

    memcpy((char *)cpu_row(&c->op->in[KEYS], cache_row) + (size_t)kv_head * bytes, key, bytes);
    memcpy((char *)cpu_row(&c->op->in[VALUES], cache_row) + (size_t)kv_head * bytes, value, bytes);
}

/* One query head over n cached rows from `cache_row` on, the last of which is its own. */
CPU_INLINE void attend_cached(const struct cached *c, int64_t row, int head, int kv_head,
                              int64_t cache_row, int64_t n, float *scratch, int bf16)
{
    const struct op_attributes *at = &c->op->attributes;
    int64_t width = tile_width(at), e = at->head_dim, kv_col = (int64_t)kv_head * e;
    float *q = scratch, *sum = scratch + width, *scores = scratch + 2 * width;
    const void *qkv = cpu_row(&c->op->in[CACHED_QKV], row);
    void *out = cpu_row(&c->op->out[0], row);
    float top = -INFINITY, total = 0, inverse, slope = slope_of(c->op, BEGIN, head);

    for (int64_t i = 0; i < width; i++) {
        q[i] = i < e ? act_get(qkv, head * e + i, bf16) * (float)at->scale : 0;
        sum[i] = 0;
    }
    for (int64_t j = 0; j < n; j++) {
        const void *key = cpu_row(&c->op->in[KEYS], cache_row + j);
        float lanes[WIDTH_STEP] = { 0 };
        int64_t i = 0;

        for (; i + WIDTH_STEP <= e; i += WIDTH_STEP)
            for (int l = 0; l < WIDTH_STEP; l++)
                lanes[l] = __builtin_fmaf(q[i + l], act_get(key, kv_col + i + l, bf16), lanes[l]);
        for (int l = 0; i + l < e; l++)
            lanes[l] = __builtin_fmaf(q[i + l], act_get(key, kv_col + i + l, bf16), lanes[l]);
        for (int half = WIDTH_STEP / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++)
                lanes[l] += lanes[l + half];
        if (slope > 0)
            lanes[0] = __builtin_fmaf(slope, (float)(int)(j - (n - 1)), lanes[0]);
        scores[j] = lanes[0];
        top = top > lanes[0] ? top : lanes[0];
    }
    for (int64_t j = 0; j < n; j++)
        scores[j] = vec_exp(scores[j] - top);
    for (int64_t j = 0; j < n; j++) {
        const void *value = cpu_row(&c->op->in[VALUES], cache_row + j);

        total += scores[j];
        for (int64_t i = 0; i < e; i++)
            sum[i] = __builtin_fmaf(scores[j], act_get(value, kv_col + i, bf16), sum[i]);
    }
    inverse = 1.0f / total;
    for (int64_t i = 0; i < e; i++)
        act_put(out, head * e + i, sum[i] * inverse, bf16);
}

CPU_INLINE void cached_tile_body(void *context, int64_t tile, int thread)
{
    const struct cached *c = context;
    const struct op_attributes *at = &c->op->attributes;
    int kv_head = (int)(tile % at->n_kv_heads), group = at->n_heads / at->n_kv_heads;
    int64_t sequence = tile / at->n_kv_heads, start = sequence * at->seq_len;
    int64_t cache = sequence * at->cache_len;
    float *scratch = c->scratch + (size_t)thread * c->thread_floats;
    int bf16 = is_bf16(&c->op->in[CACHED_QKV]);
    size_t element = bf16 ? 2 : 4;

    for (int64_t row = start; row < start + at->seq_len; row++) {
        int32_t position = *(const int32_t *)cpu_row(&c->op->in[POSITION], row);

        CHECK(position < at->cache_len);
        if (position >= 0)
            write_cache(c, row, cache + position, kv_head);
    }
    if (at->seq_len >= PREFILL_ROWS)
        return;
    for (int64_t row = start; row < start + at->seq_len; row++) {
        int32_t position = *(const int32_t *)cpu_row(&c->op->in[POSITION], row);
        int64_t first = at->window ? max_i64(0, position - (int64_t)at->window + 1) : 0;
        int64_t n = position + 1 - first;

        for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
            if (position < 0)
                memset((char *)cpu_row(&c->op->out[0], row) +
                           (size_t)(head * at->head_dim) * element,
                       0, (size_t)at->head_dim * element);
            else if (bf16)
                attend_cached(c, row, head, kv_head, cache + first, n, scratch, 1);
            else
                attend_cached(c, row, head, kv_head, cache + first, n, scratch, 0);
    }
}

CPU_VARIANTS(cached_tile, (void *context, int64_t tile, int thread), (context, tile, thread));

static size_t cached_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    if (tensor_given(&op->in[SEGMENTS]))
        return attention_segments_scratch(kernels, op);
    if (op->attributes.seq_len >= PREFILL_ROWS)
        return attention_tiles_bytes(kernels, op);
    return cached_thread_floats(&op->attributes) * sizeof(float) *
           (size_t)pool_n_threads(kernels->pool);
}

static void cached_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    const struct op_attributes *at = &call->op.attributes;
    struct cached c = { .op = &call->op,
                        .scratch = call->scratch,
                        .thread_floats = cached_thread_floats(at) };

    (void)first;
    if (tensor_given(&call->op.in[SEGMENTS])) {
        attention_segments_run(kernels, call);
        return;
    }
    pool_run(kernels->pool, call->op.in[0].rows / at->seq_len * at->n_kv_heads,
             cached_tile[cpu_of(kernels)->isa], &c);
    if (at->seq_len >= PREFILL_ROWS)
        attention_prefill(kernels, call);
}

void cpu_register_attention_cached(struct kernels_backend *table)
{
    table->entries[OP_ATTENTION_CACHED] =
        (struct kernel_entry){ .run = cached_run, .scratch_bytes = cached_scratch_bytes };
}
