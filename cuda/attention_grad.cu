/*
 * attention_grad.cu - the backward of attention, without atomics (after Dao 2023, section
 * 3.1.2)
 *
 * Three kernels, each of which writes what is its own, once:
 *
 *   delta   a warp a row and head: the sum of dout * out, kept in scratch
 *   dkv     a block is a tile of keys of one kv head, which its warps have as rows, and walks the
 *           head's query heads and the tiles of queries that see it: S' = K Q' and V dO' in
 *           registers become P' and dS', then dV += P' dO and dK += dS' Q
 *   dq      a block is a tile of queries, as in the forward: S and dO V', then dQ += dS K
 *
 * So scores are made twice and there are seven products for the usual five; in exchange sums have
 * one order, need no fp32 copy of dq in memory and neither P nor dS ever goes through shared
 * memory. Scores are made by the same products in the same order as in the forward, so P is its P.
 *
 * Heads wider than 128 do not leave room for both gradients: there a block of dkv has a half of
 * their columns.
 */
#include "cuda/attention.cuh"

/* Operands of the kernels; delta [T x n_heads] is scratch. */
template <typename T> struct grad_rows {
    rows_of<T> dout, q, k, v, out, dq, dk, dv;
    rows_of<float> lse;
    float *delta;
};

/* ---- delta ---- */

enum { DELTA_WARPS = 8 };

template <typename T>
__global__ void __launch_bounds__(DELTA_WARPS * 32)
    delta_kernel(attention_args a, grad_rows<T> rows, int64_t n_pairs)
{
    constexpr int EACH = 16 / (int)sizeof(T);
    int64_t pair = (int64_t)blockIdx.x * DELTA_WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    float sum = 0;

    if (pair >= n_pairs)
        return;
    int64_t row = pair / a.n_heads, col = pair % a.n_heads * a.value_dim;
    const T *x = rows.dout.row(row) + col, *y = rows.out.row(row) + col;
    for (int i = lane * EACH; i < a.value_dim; i += 32 * EACH) {
        packed<T, EACH> u = {}, v = {};

        if (a.wide) {
            u = *(const packed<T, EACH> *)(x + i);
            v = *(const packed<T, EACH> *)(y + i);
        } else {
            for (int j = 0; j < EACH && i + j < a.value_dim; j++) {
                u.at[j] = x[i + j];
                v.at[j] = y[i + j];
            }
        }
        for (int j = 0; j < EACH; j++)
            sum = fmaf(to_float(u.at[j]), to_float(v.at[j]), sum);
    }
    sum = warp_sum(sum);
    if (!lane)
        rows.delta[pair] = sum;
}

/* ---- dk and dv ---- */

/*
 * Keys of a block, 16-row parts of a warp, queries of a tile, columns of the gradients: with 128
 * keys a block what is read from L2 is some 10 bytes a clock and multiprocessor. Wider heads have
 * fewer, so that an A100's 163 KiB of shared memory suffice. SMALL: so that the 99 KiB of sm_86 and
 * sm_89 do.
 */
template <typename T, int WIDTH, int SMALL> struct dkv_tile {
    enum {
        KEYS = WIDTH > 128 ? 64 : 128,
        M = WIDTH > 64 ? 1 : 2,
        QUERIES = SMALL ? 16 : 32,
        COLS = WIDTH > 128 ? 128 : WIDTH
    };
};

template <int WIDTH, int SMALL> struct dkv_tile<float, WIDTH, SMALL> {
    enum {
        KEYS = WIDTH > 128 || SMALL ? 32 : 64,
        M = 1,
        QUERIES = WIDTH > 128 || SMALL ? 16 : 32,
        COLS = WIDTH > 128 ? 128 : WIDTH
    };
};

template <typename T, int WIDTH, int SMALL> struct dkv_shape : dkv_tile<T, WIDTH, SMALL> {
    typedef dkv_tile<T, WIDTH, SMALL> tile;
    enum {
        N_THREADS = tile::KEYS / (16 * tile::M) * 32,
        STRIDE = tile_stride<T>(WIDTH),
        KEY_ELEMENTS = tile::KEYS * STRIDE,
        QUERY_ELEMENTS = tile::QUERIES * STRIDE,
        N_PARTS = WIDTH / tile::COLS,
        /* Of a stage: queries and dout, then lse, delta and range of keys of each. */
        STAGE_BYTES = 2 * QUERY_ELEMENTS * (int)sizeof(T) + 4 * tile::QUERIES * 4,
        SHARED_BYTES = 2 * KEY_ELEMENTS * (int)sizeof(T) + 2 * STAGE_BYTES,
    };
};

/* A tile of queries as a stage has it. */
template <typename T> struct query_stage {
    T *queries, *dout;
    float *lse, *delta;
    int *first, *last; /* given ones */
};

template <typename T, typename shape>
static __device__ __forceinline__ query_stage<T> query_stage_of(T *shared, int stage)
{
    unsigned char *at =
        (unsigned char *)(shared + 2 * shape::KEY_ELEMENTS) + stage * (int)shape::STAGE_BYTES;
    query_stage<T> s;

    s.queries = (T *)at;
    s.dout = s.queries + shape::QUERY_ELEMENTS;
    s.lse = (float *)(s.dout + shape::QUERY_ELEMENTS);
    s.delta = s.lse + shape::QUERIES;
    s.first = (int *)(s.delta + shape::QUERIES);
    s.last = s.first + shape::QUERIES;
    return s;
}

/* Where a walk over tiles of queries is, head by head. */
struct query_cursor {
    int head, query;
};

/* Start to bring queries `query` .. of a head. */
template <typename T, int WIDTH, typename shape>
static __device__ __forceinline__ void
query_stage_load(const query_stage<T> &s, const attention_args &a, const grad_rows<T> &rows,
                 int64_t begin, int query, int head)
{
    head_rows<T> queries = { rows.q.row(begin) + (int64_t)head * a.head_dim, rows.q.stride,
                             a.head_dim, a.wide };
    head_rows<T> dout = { rows.dout.row(begin) + (int64_t)head * a.value_dim, rows.dout.stride,
                          a.value_dim, a.wide };
    int n = a.seq_len - query;

    tile_load_rows<T, shape::QUERIES, WIDTH, shape::N_THREADS>(s.queries, queries, query, n);
    tile_load_rows<T, shape::QUERIES, WIDTH, shape::N_THREADS>(s.dout, dout, query, n);
    for (int i = (int)threadIdx.x; i < shape::QUERIES; i += shape::N_THREADS) {
        int64_t row = begin + query + (i < n ? i : 0);

        copy_async4(s.lse + i, rows.lse.row(row) + head, i < n);
        copy_async4(s.delta + i, rows.delta + row * a.n_heads + head, i < n);
        copy_async4(s.first + i,
                    a.first ? (const void *)(a.first + row * a.first_stride) : rows.delta,
                    i < n && a.first);
        if (a.last)
            copy_async4(s.last + i, a.last + row * a.last_stride, i < n);
    }
}

/* The position of a tile's query, which is row `query` + col of its sequence. */
template <typename T>
static __device__ __forceinline__ int own_of(const query_stage<T> &s, const attention_args &a,
                                             int query, int col)
{
    return a.last ? min(s.last[col], a.key_len - 1) : query + col;
}

/*
 * Products of the warp's keys, from `key` on, and a tile's queries become what exp2 is taken of,
 * -infinity where a query does not see a key.
 */
template <typename T, int M, int N>
static __device__ __forceinline__ void dkv_see(float (&p)[M][N][4], const query_stage<T> &s,
                                               const attention_args &a,
                                               const attention_scale &scale, int key, int query)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int is_plain =
        own_of(s, a, query, 0) >= key + 16 * M - 1 && query + 8 * N <= a.seq_len &&
        attention_first(a.window, own_of(s, a, query, 8 * N - 1), s.first[8 * N - 1]) <= key;

    if (is_plain && !scale.is_made)
        return;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int col = 8 * n + 2 * t + j, at = own_of(s, a, query, col);
            int first = query + col < a.seq_len ? attention_first(a.window, at, s.first[col])
                                                : NOTHING_SEEN;

#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = j; i < 4; i += 2) {
                    int row = key + 16 * m + g + 8 * (i / 2);

                    if (scale.is_made)
                        p[m][n][i] = attention_make(scale, scale.slope, p[m][n][i], row - at);
                    if (row < first || row > at)
                        p[m][n][i] = -CUDART_INF_F;
                }
        }
}

/* P' and dS', in p and dp, from what exp2 is taken of and the products V dout'. */
template <typename T, int M, int N>
static __device__ __forceinline__ void
dkv_scores(float (&p)[M][N][4], float (&dp)[M][N][4], const query_stage<T> &s,
           const attention_args &a, float factor, const attention_mask *mask, int key, int query)
{
    int t = (int)threadIdx.x % 4;

#pragma unroll
    for (int n = 0; n < N; n++) {
        packed<float, 2> lse = *(const packed<float, 2> *)(s.lse + 8 * n + 2 * t);
        packed<float, 2> delta = *(const packed<float, 2> *)(s.delta + 8 * n + 2 * t);

        lse.at[0] *= LOG2_E;
        lse.at[1] *= LOG2_E;
#pragma unroll
        for (int m = 0; m < M; m++) {
            float kept[4];

            if (mask)
                attention_keep_columns(
                    kept, *mask, [&](int col) { return own_of(s, a, query, 8 * n + col); },
                    key + 16 * m);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float e = attention_exp2(fmaf(p[m][n][i], factor, -lse.at[i % 2]));
                float d = mask ? dp[m][n][i] * kept[i] : dp[m][n][i];

                dp[m][n][i] = e * (d - delta.at[i % 2]);
                p[m][n][i] = mask ? e * kept[i] : e;
            }
        }
    }
}

/* The first query whose position is at or beyond `key`; seq_len: there is none. */
static __device__ __forceinline__ int queries_begin(const attention_args &a, int64_t sequence,
                                                    int key)
{
    int low = 0, high = a.seq_len; /* of queries before low none is, those from high on are */

    if (!a.last)
        return key;
    while (low < high) {
        int middle = low + (high - low) / 2;

        if (attention_last_of(a, sequence, middle) >= key)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* One past the last query, from `low` on, whose first key is at or before `key`. */
static __device__ __forceinline__ int queries_end(const attention_args &a, int64_t sequence,
                                                  int low, int key)
{
    int high = a.seq_len;

    if (a.window && !a.last)
        high = a.window < high - key ? key + a.window : high;
    if (!a.first && !a.last)
        return high;
    while (low < high) {
        int middle = low + (high - low) / 2;

        if (attention_first_of(a, sequence, middle) <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return high;
}

/* A warp's rows of a gradient: columns col .. of the head at `at`, times scale. */
template <typename T, int COLS, int M>
static __device__ __forceinline__ void grad_store(const float (&sums)[M][COLS / 8][4], T *at,
                                                  int64_t stride, int n_rows, int col, int n_cols,
                                                  int wide, float scale)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = 16 * m + g + 8 * i;

            if (row >= n_rows)
                continue;
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                tile_store_pair(at + row * stride, col + 8 * n + 2 * t, n_cols, wide,
                                sums[m][n][2 * i] * scale, sums[m][n][2 * i + 1] * scale);
        }
}

template <typename T, int WIDTH, int DROPS, int SMALL>
__global__ void __launch_bounds__(dkv_shape<T, WIDTH, SMALL>::N_THREADS)
    dkv_kernel(attention_args a, grad_rows<T> rows)
{
    typedef dkv_shape<T, WIDTH, SMALL> shape;
    constexpr int KEYS = shape::KEYS, QUERIES = shape::QUERIES, N = QUERIES / 8;
    constexpr int COLS = shape::COLS, M = shape::M, N_THREADS = shape::N_THREADS;
    /* The first tiles have the most queries: they go first. */
    int part = (int)blockIdx.x % shape::N_PARTS;
    int kv_head = (int)(blockIdx.x / shape::N_PARTS % (unsigned)a.n_kv_heads);
    int of_head = (int)(blockIdx.x / shape::N_PARTS / (unsigned)a.n_kv_heads);
    int64_t sequence = of_head / a.n_tiles, begin = sequence * a.seq_len;
    int64_t keys_begin = sequence * a.key_len;
    int key = of_head % a.n_tiles * KEYS, last = min(key + KEYS, a.key_len) - 1;
    int own = key + (int)threadIdx.x / 32 * 16 * M; /* the warp's first */
    int64_t k_col = (int64_t)kv_head * a.head_dim, v_col = (int64_t)kv_head * a.value_dim;
    head_rows<T> keys = { rows.k.row(keys_begin) + k_col, rows.k.stride, a.head_dim, a.wide };
    head_rows<T> values = { rows.v.row(keys_begin) + v_col, rows.v.stride, a.value_dim, a.wide };
    CUDA_SHARED(T, shared);
    T *own_keys = shared + (own - key) * shape::STRIDE;
    T *own_values = own_keys + shape::KEY_ELEMENTS;
    int first_query = queries_begin(a, sequence, key);
    int end_query = queries_end(a, sequence, first_query, last), end_head = (kv_head + 1) * a.group;
    query_cursor at = { first_query < end_query ? kv_head * a.group : end_head,
                        first_query / QUERIES * QUERIES };
    float dkeys[M][COLS / 8][4], dvalues[M][COLS / 8][4];

    auto load = [&](query_cursor at, int stage) {
        query_stage_load<T, WIDTH, shape>(query_stage_of<T, shape>(shared, stage), a, rows, begin,
                                          at.query, at.head);
    };
    tile_load_rows<T, KEYS, WIDTH, N_THREADS>(shared, keys, key, last + 1 - key);
    tile_load_rows<T, KEYS, WIDTH, N_THREADS>(shared + shape::KEY_ELEMENTS, values, key,
                                              last + 1 - key);
    if (at.head < end_head)
        load(at, 0);
    copy_async_commit();
    tile_clear(dkeys);
    tile_clear(dvalues);
    for (int stage = 0; at.head < end_head; stage ^= 1) {
        query_stage<T> s = query_stage_of<T, shape>(shared, stage);
        int query = at.query, head = at.head;

        at.query += QUERIES;
        if (at.query >= end_query)
            at = query_cursor{ head + 1, first_query / QUERIES * QUERIES };
        if (at.head < end_head)
            load(at, stage ^ 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        /* Ranges never decrease: the last query sees the latest key, the first the earliest. */
        if (own <= last && own_of(s, a, query, min(QUERIES, a.seq_len - query) - 1) >= own &&
            attention_first(a.window, own_of(s, a, query, 0), s.first[0]) < own + 16 * M) {
            attention_scale scale = attention_scale_of(a, head);
            attention_mask mask;
            float p[M][N][4], dp[M][N][4];

            if (DROPS)
                mask = attention_mask_of(a, sequence, head);
            tile_clear(p);
            tile_clear(dp);
            tile_scores<T, M, N, WIDTH>::add(p, own_keys, s.queries);
            tile_scores<T, M, N, WIDTH>::add(dp, own_values, s.dout);
            dkv_see(p, s, a, scale, own, query);
            dkv_scores(p, dp, s, a, scale.factor, DROPS ? &mask : NULL, own, query);
            tile_weighted<T, M, N, WIDTH, COLS>::add(dvalues, p, s.dout + part * COLS);
            tile_weighted<T, M, N, WIDTH, COLS>::add(dkeys, dp, s.queries + part * COLS);
        }
        __syncthreads();
    }
    grad_store<T, COLS>(dkeys, rows.dk.row(keys_begin + own) + k_col, rows.dk.stride,
                        last + 1 - own, part * COLS, a.head_dim, a.wide, a.scale);
    grad_store<T, COLS>(dvalues, rows.dv.row(keys_begin + own) + v_col, rows.dv.stride,
                        last + 1 - own, part * COLS, a.value_dim, a.wide, 1.0f);
}

/* ---- dq ---- */

/* Queries of a block, 16-row parts of a warp. */
template <typename T, int WIDTH, int DROPS, int SMALL> struct dq_tile {
    enum { QUERIES = WIDTH > 128 || SMALL ? 64 : 128, M = WIDTH > 128 || DROPS || SMALL ? 1 : 2 };
};

template <int WIDTH, int DROPS, int SMALL> struct dq_tile<float, WIDTH, DROPS, SMALL> {
    enum { QUERIES = WIDTH > 128 || SMALL ? 32 : 64, M = 1 };
};

template <typename T, int WIDTH, int DROPS, int SMALL>
struct dq_shape : dq_tile<T, WIDTH, DROPS, SMALL> {
    typedef dq_tile<T, WIDTH, DROPS, SMALL> tile;
    enum {
        KEYS = attention_keys<T, WIDTH>::N,
        N_THREADS = tile::QUERIES / (16 * tile::M) * 32,
        STRIDE = tile_stride<T>(WIDTH),
        QUERY_ELEMENTS = tile::QUERIES * STRIDE,
        KEY_ELEMENTS = KEYS * STRIDE,
        SHARED_BYTES = (2 * QUERY_ELEMENTS + 4 * KEY_ELEMENTS) * (int)sizeof(T),
    };
};

/* dS of the warp's queries and a tile's keys: products p and dp become it, in dp. */
template <int M, int N>
static __device__ __forceinline__ void
dq_scores(float (&p)[M][N][4], float (&dp)[M][N][4], const float (&lse)[M][2],
          const float (&delta)[M][2], float factor, const attention_mask *mask,
          const attention_rows<M> &sight, int key)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
        int upper = mask ? sight.own_of(m, 0) : 0, lower = mask ? sight.own_of(m, 1) : 0;

#pragma unroll
        for (int n = 0; n < N; n++) {
            float kept[4];

            if (mask)
                attention_keep_rows(kept, *mask, upper, lower, key + 8 * n);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float e = attention_exp2(fmaf(p[m][n][i], factor, -lse[m][i / 2]));
                float d = mask ? dp[m][n][i] * kept[i] : dp[m][n][i];

                dp[m][n][i] = e * (d - delta[m][i / 2]);
            }
        }
    }
}

template <typename T, int WIDTH, int DROPS, int SMALL>
__global__ void __launch_bounds__(dq_shape<T, WIDTH, DROPS, SMALL>::N_THREADS)
    dq_kernel(attention_args a, grad_rows<T> rows)
{
    typedef dq_shape<T, WIDTH, DROPS, SMALL> shape;
    constexpr int KEYS = shape::KEYS, N = KEYS / 8, M = shape::M;
    constexpr int N_THREADS = shape::N_THREADS;
    int head = (int)(blockIdx.x % (unsigned)a.n_heads);
    int of_head = (int)(blockIdx.x / (unsigned)a.n_heads);
    int64_t sequence = of_head / a.n_tiles, begin = sequence * a.seq_len;
    int64_t keys_begin = sequence * a.key_len;
    int query = (a.n_tiles - 1 - of_head % a.n_tiles) * shape::QUERIES;
    int last_query = min(a.seq_len, query + shape::QUERIES) - 1;
    int last = attention_last_of(a, sequence, last_query);
    int own = query + (int)threadIdx.x / 32 * 16 * M; /* the warp's first */
    int key = attention_first_of(a, sequence, query) / KEYS * KEYS;
    int64_t col = (int64_t)head * a.head_dim, kv_head = head / a.group;
    head_rows<T> queries = { rows.q.row(begin) + col, rows.q.stride, a.head_dim, a.wide };
    head_rows<T> dout = { rows.dout.row(begin) + (int64_t)head * a.value_dim, rows.dout.stride,
                          a.value_dim, a.wide };
    head_rows<T> keys = { rows.k.row(keys_begin) + kv_head * a.head_dim, rows.k.stride, a.head_dim,
                          a.wide };
    head_rows<T> values = { rows.v.row(keys_begin) + kv_head * a.value_dim, rows.v.stride,
                            a.value_dim, a.wide };
    CUDA_SHARED(T, q);
    T *d = q + shape::QUERY_ELEMENTS, *stages = d + shape::QUERY_ELEMENTS;
    attention_scale scale = attention_scale_of(a, head);
    attention_mask mask;
    attention_rows<M> sight;
    float lse[M][2], delta[M][2];
    float dq[M][WIDTH / 8][4];

    auto load = [&](int from, int stage) {
        T *to = stages + stage * 2 * shape::KEY_ELEMENTS;

        tile_load_rows<T, KEYS, WIDTH, N_THREADS>(to, keys, from, a.key_len - from);
        tile_load_rows<T, KEYS, WIDTH, N_THREADS>(to + shape::KEY_ELEMENTS, values, from,
                                                  a.key_len - from);
    };
    tile_load_rows<T, shape::QUERIES, WIDTH, N_THREADS>(q, queries, query, last_query + 1 - query);
    tile_load_rows<T, shape::QUERIES, WIDTH, N_THREADS>(d, dout, query, last_query + 1 - query);
    load(key, 0);
    copy_async_commit();
    if (DROPS)
        mask = attention_mask_of(a, sequence, head);
    attention_see_rows(sight, a, scale.slope, sequence, own);
    for (int m = 0; m < M; m++)
        for (int i = 0; i < 2; i++) {
            int query_row = own + 16 * m + (int)threadIdx.x % 32 / 4 + 8 * i;
            int64_t row = begin + min(a.seq_len - 1, query_row);

            lse[m][i] = rows.lse.row(row)[head] * LOG2_E;
            delta[m][i] = rows.delta[row * a.n_heads + head];
        }
    tile_clear(dq);
    for (int stage = 0; key <= last; key += KEYS, stage ^= 1) {
        const T *tile = stages + stage * 2 * shape::KEY_ELEMENTS;

        if (key + KEYS <= last)
            load(key + KEYS, stage ^ 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        if (key <= sight.last && key + KEYS > sight.least) {
            float p[M][N][4], dp[M][N][4];

            tile_clear(p);
            tile_clear(dp);
            tile_scores<T, M, N, WIDTH>::add(p, q + (own - query) * shape::STRIDE, tile);
            tile_scores<T, M, N, WIDTH>::add(dp, d + (own - query) * shape::STRIDE,
                                             tile + shape::KEY_ELEMENTS);
            attention_see(p, sight, scale, key);
            dq_scores(p, dp, lse, delta, scale.factor, DROPS ? &mask : NULL, sight, key);
            tile_weighted<T, M, N, WIDTH>::add(dq, dp, tile);
        }
        __syncthreads();
    }
    grad_store<T, WIDTH>(dq, rows.dq.row(begin + own) + col, rows.dq.stride, a.seq_len - own, 0,
                         a.head_dim, a.wide, a.scale);
}

/* ---- launching ---- */

enum { SMALL_BYTES = 99 << 10 }; /* that every GPU since sm_80 has for a block */

template <typename T> static grad_rows<T> grad_rows_of(const struct kernel_call *call)
{
    const struct tensor *in = call->op.in, *out = call->op.out;

    return grad_rows<T>{
        cuda_rows<T>(&in[ATTENTION_GRAD_DOUT]),    cuda_rows<T>(&in[ATTENTION_GRAD_Q]),
        cuda_rows<T>(&in[ATTENTION_GRAD_K]),       cuda_rows<T>(&in[ATTENTION_GRAD_V]),
        cuda_rows<T>(&in[ATTENTION_GRAD_OUT]),     cuda_rows<T>(&out[ATTENTION_GRAD_DQ]),
        cuda_rows<T>(&out[ATTENTION_GRAD_DK]),     cuda_rows<T>(&out[ATTENTION_GRAD_DV]),
        cuda_rows<float>(&in[ATTENTION_GRAD_LSE]), (float *)call->scratch
    };
}

/* Call f(width_of<1>()) for small tiles where there are some (for heads of up to 128) and the device
 * has no room for others, else f(width_of<0>()). */
template <int WIDTH, int SHARED_BYTES, typename F>
static void with_size(struct kernels *kernels, F f)
{
    if constexpr (WIDTH <= 128 && SHARED_BYTES > SMALL_BYTES)
        if ((size_t)SHARED_BYTES > cuda_shared_bytes_max(kernels)) {
            f(width_of<1>());
            return;
        }
    f(width_of<0>());
}

template <typename T, int WIDTH, int DROPS>
static void grad_launch(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    const struct op_shape *op = &call->op;
    int64_t n_sequences = op->in[ATTENTION_GRAD_Q].rows / op->attributes.seq_len;
    int64_t n_pairs = op->in[ATTENTION_GRAD_Q].rows * op->attributes.n_heads;
    struct attention_args a = attention_args_of(op, ATTENTION_GRAD_HEAD_OFFSET);
    grad_rows<T> rows = grad_rows_of<T>(call);

    a.wide = 1;
    for (int i = ATTENTION_GRAD_DOUT; i <= ATTENTION_GRAD_OUT; i++)
        a.wide =
            a.wide && attention_is_wide(&op->in[i], i == ATTENTION_GRAD_K || i == ATTENTION_GRAD_V
                                                        ? a.n_kv_heads
                                                        : a.n_heads);
    for (int i = ATTENTION_GRAD_DQ; i <= ATTENTION_GRAD_DV; i++)
        a.wide = a.wide &&
                 attention_is_wide(&op->out[i], i == ATTENTION_GRAD_DQ ? a.n_heads : a.n_kv_heads);
    attention_launch(kernels, call, shared,
                     cuda_shape_of(ceil_div(n_pairs, DELTA_WARPS), DELTA_WARPS * 32),
                     delta_kernel<T>, a, rows, n_pairs);
    with_size<WIDTH, dkv_shape<T, WIDTH, 0>::SHARED_BYTES>(kernels, [&](auto small) {
        enum { SMALL = decltype(small)::VALUE };
        typedef dkv_shape<T, WIDTH, SMALL> dkv;

        a.n_tiles = (int)ceil_div(a.key_len, dkv::KEYS);
        attention_launch(kernels, call, shared,
                         cuda_shape_of(n_sequences * a.n_tiles * a.n_kv_heads * dkv::N_PARTS,
                                       dkv::N_THREADS, dkv::SHARED_BYTES),
                         dkv_kernel<T, WIDTH, DROPS, SMALL>, a, rows);
    });
    with_size<WIDTH, dq_shape<T, WIDTH, DROPS, 0>::SHARED_BYTES>(kernels, [&](auto small) {
        enum { SMALL = decltype(small)::VALUE };
        typedef dq_shape<T, WIDTH, DROPS, SMALL> dq;

        a.n_tiles = (int)ceil_div(a.seq_len, dq::QUERIES);
        attention_launch(
            kernels, call, shared,
            cuda_shape_of(n_sequences * a.n_tiles * a.n_heads, dq::N_THREADS, dq::SHARED_BYTES),
            dq_kernel<T, WIDTH, DROPS, SMALL>, a, rows);
    });
}

static void grad(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    const struct op_attributes *at = &call->op.attributes;

    cuda_with_act(call->op.in[ATTENTION_GRAD_Q].dtype, [&](auto zero) {
        typedef decltype(zero) T;

        attention_with_width(&call->op, [&](auto width) {
            if (at->p > 0)
                grad_launch<T, decltype(width)::VALUE, 1>(kernels, call, shared);
            else
                grad_launch<T, decltype(width)::VALUE, 0>(kernels, call, shared);
        });
    });
}

static void attention_grad_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    if (call->state)
        cudnn_attention_run(cuda_of(kernels), call, (struct cudnn_attention *)call->state);
    else
        grad(kernels, call, NULL);
}

static int attention_grad_prepare(struct kernels *kernels, struct kernel_call *call,
                                  struct err *err)
{
    int is_taken = attention_prepare_cudnn(kernels, call, err);
    size_t shared = 0;

    if (is_taken)
        return is_taken < 0 ? -1 : 0;
    grad(kernels, call, &shared);
    return cuda_want_shared(kernels, call, shared, err);
}

void cuda_register_attention_grad(struct kernels_backend *table)
{
    struct kernel_entry *entry = &table->entries[OP_ATTENTION_GRAD];

    entry->run = attention_grad_run;
    entry->prepare = attention_grad_prepare;
    entry->release = attention_release_cudnn;
}
