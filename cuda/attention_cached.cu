/*
 * attention_cached.cu - attention over a cache of keys and values: prefill, decoding, and texts
 * whose beginnings are there once
 *
 * First k and v of all rows are written to the cache. Then a block is a span: up to as many rows
 * that continue one text as, times the query heads of one kv head, fill PAIRS rows of a tile. Where
 * spans begin is in device memory; there is a block for each row that might begin one, and those
 * that do not are gone after a look at two rows. The walk is attention.cu's. In decoding, where a
 * span is one row, it is bound by reading the cache.
 *
 * Positions are cut into chunks, by cache_len alone. A row's output is made of chunk after chunk,
 * each with sums of its own, joined in order: by the block that walks them all or, where there are
 * few rows (by shapes), by a kernel of its own after one block for each chunk (Dao et al. 2023,
 * "Flash-Decoding"). Both do the same arithmetic, so a row's bits are the same in a prefill and in
 * a step of decoding.
 */
#include "cuda/attention.cuh"

enum {
    PAIRS = GPU_PAIRS,
    N_THREADS = PAIRS / 16 * 32,
};

struct cached_args {
    attention_args a;
    int64_t n_rows;
    int span_rows, n_packs; /* rows of a span at most; blocks for its pairs */
    int chunk, n_chunks;    /* n_chunks is 1 where a block walks them all */
    int64_t cache_len, cache_rows;
    const int32_t *position, *segment, *segments;
    int64_t position_stride, segment_stride, segments_stride;
    float *parts; /* of chunks: [row x head x chunk x (value_dim outputs, maximum, sum)] */
};

/* ---- texts ---- */

static __device__ __forceinline__ int position_of(const cached_args &c, int64_t row)
{
    return c.position[row * c.position_stride];
}

static __device__ __forceinline__ int text_of(const cached_args &c, int64_t row)
{
    return c.segments ? c.segment[row * c.segment_stride] : (int)(row / c.a.seq_len);
}

/* The cache's row of a text's position; -1: there is none. */
static __device__ __forceinline__ int64_t cache_row(const cached_args &c, int text, int position)
{
    if (!c.segments)
        return position < c.cache_len ? text * c.cache_len + position : -1;
    const int32_t *segment = c.segments + text * c.segments_stride;
    while (position < segment[1] && segment[2] >= 0)
        segment = c.segments + segment[2] * c.segments_stride;
    int64_t row = (int64_t)segment[0] + position - segment[1];
    return row >= 0 && row < c.cache_rows ? row : -1;
}

/* Whether a span begins at the row, or is no token. */
static __device__ __forceinline__ int is_begin(const cached_args &c, int64_t row)
{
    if (row >= c.n_rows || row % c.span_rows == 0)
        return 1;
    int before = position_of(c, row - 1), position = position_of(c, row);
    return before < 0 || position != before + 1 || text_of(c, row) != text_of(c, row - 1);
}

/* Rows of the span that begins at row; all lanes of a warp. */
static __device__ __forceinline__ int span_length(const cached_args &c, int64_t row)
{
    int lane = (int)threadIdx.x % 32;

    for (int n = 1;; n += 32) {
        unsigned ends = __ballot_sync(0xffffffffu, is_begin(c, row + n + lane));

        if (ends)
            return n + __ffs((int)ends) - 1;
    }
}

/* ---- writing ---- */

template <typename T> struct cached_rows {
    rows_of<T> q, k, v, keys, values, out;
};

template <typename T, int EACH>
static __device__ __forceinline__ void write_heads(T *to, const T *from, int n_cols)
{
    for (int i = (int)threadIdx.x * EACH; i < n_cols; i += N_THREADS * EACH)
        *(packed<T, EACH> *)(to + i) = *(const packed<T, EACH> *)(from + i);
}

/* A block a row of tokens. EACH elements at once. */
template <typename T, int EACH>
__global__ void __launch_bounds__(N_THREADS) write_kernel(cached_args c, cached_rows<T> rows)
{
    int64_t row = blockIdx.x;
    int position = position_of(c, row);
    int64_t to = position < 0 ? -1 : cache_row(c, text_of(c, row), position);

    if (to < 0)
        return;
    write_heads<T, EACH>(rows.keys.row(to), rows.k.row(row), c.a.n_kv_heads * c.a.head_dim);
    write_heads<T, EACH>(rows.values.row(to), rows.v.row(row), c.a.n_kv_heads * c.a.value_dim);
}

/* ---- joining chunks ---- */

/* What has been joined, and what comes to it: how either's sums and outputs are multiplied. */
struct join {
    float max, before, here;
};

static __device__ __forceinline__ join join_of(float max, float part_max, float factor)
{
    float top = fmaxf(max, part_max);

    return join{ top, max == top ? 1.0f : attention_exp2((max - top) * factor),
                 part_max == top ? 1.0f : attention_exp2((part_max - top) * factor) };
}

template <int WIDTH>
static __device__ __forceinline__ void join_walk(attention_walk<WIDTH, 1> &all,
                                                 const attention_walk<WIDTH, 1> &part, float factor)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = attention_row_sum(part.sum[0][i]);

        if (part.max[0][i] == -CUDART_INF_F)
            continue;
        join j = join_of(all.max[0][i], part.max[0][i], factor);
        all.max[0][i] = j.max;
        all.sum[0][i] = fmaf(all.sum[0][i], j.before, sum * j.here);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int k = 2 * i; k < 2 * i + 2; k++)
                all.out[ATTENTION_CACHED_OUT][n][k] =
                    fmaf(all.out[ATTENTION_CACHED_OUT][n][k], j.before,
                         part.out[ATTENTION_CACHED_OUT][n][k] * j.here);
    }
}

/* A warp a row and head. */
template <typename T>
__global__ void __launch_bounds__(N_THREADS)
    join_kernel(cached_args c, rows_of<T> out, int64_t n_pairs)
{
    int64_t pair = (int64_t)blockIdx.x * (N_THREADS / 32) + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, value_dim = c.a.value_dim;

    if (pair >= n_pairs)
        return;
    int64_t row = pair / c.a.n_heads;
    T *to = out.row(row) + pair % c.a.n_heads * value_dim;
    const float *parts = c.parts + pair * c.n_chunks * (value_dim + 2);
    int position = position_of(c, row);
    float factor = attention_scale_of(c.a, (int)(pair % c.a.n_heads)).factor;

    for (int col = lane; col < value_dim; col += 32) {
        float max = -CUDART_INF_F, sum = 0, all = 0;

        for (int i = 0; i < c.n_chunks && position >= 0; i++) {
            const float *part = parts + (int64_t)i * (value_dim + 2);

            if (part[value_dim] == -CUDART_INF_F)
                continue;
            join j = join_of(max, part[value_dim], factor);
            max = j.max;
            sum = fmaf(sum, j.before, part[value_dim + 1] * j.here);
            all = fmaf(all, j.before, part[col] * j.here);
        }
        to[col] = from_float<T>(position < 0 ? 0.0f : all * (1.0f / sum));
    }
}

/* ---- attending ---- */

template <typename T, int WIDTH> struct cached_shape {
    enum {
        KEYS = attention_keys<T, WIDTH>::N,
        STRIDE = tile_stride<T>(WIDTH),
        QUERY_ELEMENTS = PAIRS * STRIDE,
        KEY_ELEMENTS = KEYS * STRIDE,
        SHARED_BYTES = (QUERY_ELEMENTS + 4 * KEY_ELEMENTS) * (int)sizeof(T),
    };
};

/* A block's pairs of head and row: pair i is of head i / n_rows, row i % n_rows. */
struct query_rows {
    int64_t row;
    int n_rows, position, text, kv_head, pair, n_pairs;
};

static __device__ __forceinline__ int pair_head(const cached_args &c, const query_rows &s, int i)
{
    return s.kv_head * c.a.group + (s.pair + i) / s.n_rows;
}

/* Outputs of rows that are no tokens. */
template <typename T>
static __device__ __forceinline__ void clear_row(const cached_args &c, rows_of<T> out, int64_t row,
                                                 int kv_head)
{
    T *to = out.row(row) + (int64_t)kv_head * c.a.group * c.a.value_dim;

    for (int i = (int)threadIdx.x; i < c.a.group * c.a.value_dim; i += N_THREADS)
        to[i] = from_float<T>(0.0f);
}

/* What the block has is the whole, or one chunk's part. */
template <typename T, int WIDTH>
static __device__ __forceinline__ void store_pairs(const cached_args &c, const query_rows &s,
                                                   const attention_walk<WIDTH, 1> &w,
                                                   rows_of<T> out, int own, int chunk)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, value_dim = c.a.value_dim;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        int pair = own + g + 8 * i;

        if (pair >= s.n_pairs)
            continue;
        int head = pair_head(c, s, pair);
        int64_t row = s.row + (s.pair + pair) % s.n_rows;
        if (c.n_chunks == 1) {
            T *to = out.row(row) + (int64_t)head * value_dim;
            float inverse = 1.0f / w.sum[0][i];

#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++)
                tile_store_pair(to, 8 * n + 2 * t, value_dim, c.a.wide,
                                w.out[ATTENTION_CACHED_OUT][n][2 * i] * inverse,
                                w.out[ATTENTION_CACHED_OUT][n][2 * i + 1] * inverse);
            continue;
        }
        float *to = c.parts + ((row * c.a.n_heads + head) * c.n_chunks + chunk) * (value_dim + 2);

#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
            tile_store_pair(to, 8 * n + 2 * t, value_dim, 0, w.out[ATTENTION_CACHED_OUT][n][2 * i],
                            w.out[ATTENTION_CACHED_OUT][n][2 * i + 1]);
        if (!t) {
            to[value_dim] = w.max[0][i];
            to[value_dim + 1] = w.sum[0][i];
        }
    }
}

/* The warp's rows: pairs `own` .. */
static __device__ __forceinline__ void see_pairs(const cached_args &c, const query_rows &s,
                                                 attention_pairs &sight, int own)
{
    for (int i = 0; i < 2; i++) {
        int pair = own + (int)threadIdx.x % 32 / 4 + 8 * i, is_pair = pair < s.n_pairs;

        pair = is_pair ? pair : 0;
        sight.own[i] = s.position + (s.pair + pair) % s.n_rows;
        sight.first[0][i] = is_pair ? attention_first(c.a.window, sight.own[i], 0) : NOTHING_SEEN;
        sight.slope[i] = attention_slope(c.a, pair_head(c, s, pair));
    }
    attention_bound<1>(sight);
}

/* Blocks: kv head, then chunk, then pack of pairs, then row, the last first. Returns whether there
 * is something to do. */
template <typename T>
static __device__ __forceinline__ int find_span(const cached_args &c, rows_of<T> out, query_rows &s,
                                                int &chunk)
{
    unsigned block = blockIdx.x;

    s.kv_head = (int)(block % (unsigned)c.a.n_kv_heads);
    block /= (unsigned)c.a.n_kv_heads;
    chunk = (int)(block % (unsigned)c.n_chunks);
    block /= (unsigned)c.n_chunks;
    s.pair = (int)(block % (unsigned)c.n_packs) * PAIRS;
    s.row = c.n_rows - 1 - block / (unsigned)c.n_packs;
    s.position = position_of(c, s.row);
    if (s.position < 0) {
        if (!chunk && !s.pair)
            clear_row(c, out, s.row, s.kv_head);
        return 0;
    }
    if (!is_begin(c, s.row))
        return 0;
    s.text = text_of(c, s.row);
    s.n_rows = span_length(c, s.row);
    s.n_pairs = min(PAIRS, s.n_rows * c.a.group - s.pair);
    return s.n_pairs > 0;
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(N_THREADS) cached_kernel(cached_args c, cached_rows<T> rows)
{
    typedef cached_shape<T, WIDTH> shape;
    constexpr int KEYS = shape::KEYS;
    int head_dim = c.a.head_dim, own = (int)threadIdx.x / 32 * 16, chunk;
    query_rows s;
    CUDA_SHARED(T, q);
    T *stages = q + shape::QUERY_ELEMENTS;
    attention_walk<WIDTH, 1> w, all;
    attention_pairs sight;

    if (!find_span(c, rows.out, s, chunk))
        return;
    int end = s.position + s.n_rows, key = attention_first(c.a.window, s.position, 0) / KEYS * KEYS;
    if (c.n_chunks > 1) {
        key = max(key, chunk * c.chunk);
        end = min(end, (chunk + 1) * c.chunk);
    }
    attention_scale scale = attention_scale_of(c.a, s.kv_head * c.a.group);
    const T *head_keys = rows.keys.at + (int64_t)s.kv_head * head_dim;
    const T *head_values = rows.values.at + (int64_t)s.kv_head * c.a.value_dim;
    auto load = [&](int from, int stage) {
        T *to = stages + stage * 2 * shape::KEY_ELEMENTS;
        auto row_of = [&](const T *at, int64_t stride, int r) {
            int64_t row = from + r < end ? cache_row(c, s.text, from + r) : -1;

            return row < 0 ? (const T *)NULL : at + row * stride;
        };

        tile_load<T, KEYS, WIDTH, N_THREADS>(to, head_keys, head_dim, c.a.wide, [&](int r) {
            return row_of(head_keys, rows.keys.stride, r);
        });
        tile_load<T, KEYS, WIDTH, N_THREADS>(
            to + shape::KEY_ELEMENTS, head_values, c.a.value_dim, c.a.wide,
            [&](int r) { return row_of(head_values, rows.values.stride, r); });
    };
    tile_load<T, PAIRS, WIDTH, N_THREADS>(q, rows.q.at, head_dim, c.a.wide, [&](int i) {
        return i < s.n_pairs ? rows.q.row(s.row + (s.pair + i) % s.n_rows) +
                                   (int64_t)pair_head(c, s, i) * head_dim
                             : (const T *)NULL;
    });
    load(key, 0);
    copy_async_commit();
    see_pairs(c, s, sight, own);
    attention_begin(w);
    attention_begin(all);
    for (int stage = 0; key < end; key += KEYS, stage ^= 1) {
        const T *tile = stages + stage * 2 * shape::KEY_ELEMENTS;

        if (key + KEYS < end)
            load(key + KEYS, stage ^ 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        attention_attend<T, WIDTH, KEYS, 1>(w, q + own * shape::STRIDE, tile,
                                            tile + shape::KEY_ELEMENTS, key, sight, scale, NULL);
        if (key + KEYS >= end || (key + KEYS) % c.chunk == 0) {
            join_walk(all, w, scale.factor);
            attention_begin(w);
        }
        __syncthreads();
    }
    store_pairs(c, s, all, rows.out, own, chunk);
}

/* ---- launching ---- */

/* Chunks by cache_len; whether each has its block by the number of blocks else. */
static struct cached_args cached_args_of(const struct op_shape *op)
{
    const struct op_attributes *at = &op->attributes;
    const struct tensor *in = op->in;
    struct cached_args c = {};

    c.a = attention_args_of(op, ATTENTION_CACHED_HEAD_OFFSET);
    c.n_rows = in[ATTENTION_CACHED_Q].rows;
    c.span_rows = c.a.group < PAIRS ? PAIRS / c.a.group : 1;
    c.n_packs = (int)ceil_div(c.a.group, PAIRS);
    c.cache_len = at->cache_len;
    c.cache_rows = in[ATTENTION_CACHED_KEYS].rows;
    c.chunk = gpu_cached_chunk(at);
    c.n_chunks = gpu_cached_chunks(op);
    c.position = (const int32_t *)in[ATTENTION_CACHED_POSITION].data;
    c.position_stride = in[ATTENTION_CACHED_POSITION].stride;
    if (tensor_given(&in[ATTENTION_CACHED_SEGMENTS])) {
        c.segment = (const int32_t *)in[ATTENTION_CACHED_SEGMENT].data;
        c.segment_stride = in[ATTENTION_CACHED_SEGMENT].stride;
        c.segments = (const int32_t *)in[ATTENTION_CACHED_SEGMENTS].data;
        c.segments_stride = in[ATTENTION_CACHED_SEGMENTS].stride;
    }
    return c;
}

template <typename T>
static void cached_launch(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    const struct op_shape *op = &call->op;
    struct cached_args c = cached_args_of(op);
    struct cached_rows<T> rows = {
        cuda_rows<T>(&op->in[ATTENTION_CACHED_Q]), cuda_rows<T>(&op->in[ATTENTION_CACHED_K]),
            cuda_rows<T>(&op->in[ATTENTION_CACHED_V]), cuda_rows<T>(&op->in[ATTENTION_CACHED_KEYS]),
            cuda_rows<T>(&op->in[ATTENTION_CACHED_VALUES]),
            cuda_rows<T>(&op->out[ATTENTION_CACHED_OUT])
    };
    int64_t n_pairs = c.n_rows * c.a.n_heads;
    struct cuda_shape each_row = cuda_shape_of(c.n_rows, N_THREADS);

    c.parts = (float *)call->scratch;
    c.a.wide = attention_is_wide(&op->in[ATTENTION_CACHED_Q], c.a.n_heads) &&
               attention_is_wide(&op->in[ATTENTION_CACHED_K], c.a.n_kv_heads) &&
               attention_is_wide(&op->in[ATTENTION_CACHED_V], c.a.n_kv_heads) &&
               attention_is_wide(&op->in[ATTENTION_CACHED_KEYS], c.a.n_kv_heads) &&
               attention_is_wide(&op->in[ATTENTION_CACHED_VALUES], c.a.n_kv_heads) &&
               attention_is_wide(&op->out[ATTENTION_CACHED_OUT], c.a.n_heads);
    attention_launch(kernels, call, shared, each_row,
                     c.a.wide ? write_kernel<T, 16 / (int)sizeof(T)> : write_kernel<T, 1>, c, rows);
    attention_with_width(op, [&](auto width) {
        enum { WIDTH = decltype(width)::VALUE };

        attention_launch(kernels, call, shared,
                         cuda_shape_of(c.n_rows * c.n_packs * c.n_chunks * c.a.n_kv_heads,
                                       N_THREADS, cached_shape<T, WIDTH>::SHARED_BYTES),
                         cached_kernel<T, WIDTH>, c, rows);
    });
    if (c.n_chunks > 1)
        attention_launch(kernels, call, shared,
                         cuda_shape_of(ceil_div(n_pairs, N_THREADS / 32), N_THREADS),
                         join_kernel<T>, c, rows.out, n_pairs);
}

static void cached(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    cuda_with_act(call->op.in[ATTENTION_CACHED_Q].dtype,
                  [&](auto zero) { cached_launch<decltype(zero)>(kernels, call, shared); });
}

static void cached_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    cached(kernels, call, NULL);
}

static int cached_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    size_t shared = 0;

    cached(kernels, call, &shared);
    return cuda_want_shared(kernels, call, shared, err);
}

void cuda_register_attention_cached(struct kernels_backend *table)
{
    struct kernel_entry *entry = &table->entries[OP_ATTENTION_CACHED];

    entry->run = cached_run;
    entry->prepare = cached_prepare;
}
