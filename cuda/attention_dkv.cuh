/*
 * attention_dkv.cuh - the kernel that makes dk and dv: a block's keys against all queries that see
 * them
 *
 *     P' = exp2(K Q' - lse)   dS' = P' (V dO' - delta)   dV += P' dO   dK += dS' Q   (Dao 2023, alg. 2)
 *
 * A warp owns 16 M keys: scores, and both gradients, stay in its registers. Queries and dO come in
 * tiles of two stages by cp.async, one under way while the other is multiplied. Bound by the four
 * products; 128 keys a block keep what is read from L2 at some 10 bytes a clock and multiprocessor.
 */
#ifndef CUDA_ATTENTION_DKV_CUH
#define CUDA_ATTENTION_DKV_CUH

#include "cuda/attention_grad_impl.cuh"

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

/* A block's walk; D: the dtype that gradients are stored in. */
template <typename T, int WIDTH, int DROPS, int SMALL, typename D>
static __device__ __forceinline__ void dkv_walk(const attention_args &a, const grad_rows<T> &rows,
                                                rows_of<D> dk, rows_of<D> dv)
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
    grad_store<D, COLS>(dkeys, dk.row(keys_begin + own) + k_col, dk.stride, last + 1 - own,
                        part * COLS, a.head_dim, a.wide, a.scale);
    grad_store<D, COLS>(dvalues, dv.row(keys_begin + own) + v_col, dv.stride, last + 1 - own,
                        part * COLS, a.value_dim, a.wide, 1.0f);
}

template <typename T, int WIDTH, int DROPS, int SMALL>
__global__ void __launch_bounds__(dkv_shape<T, WIDTH, SMALL>::N_THREADS)
    dkv_kernel(attention_args a, grad_rows<T> rows)
{
    dkv_walk<T, WIDTH, DROPS, SMALL>(a, rows, rows.dk, rows.dv);
}

/* In fp32, of a part of the keys; others are dkv_kernel's. */
template <typename T, int WIDTH, int SMALL>
__global__ void __launch_bounds__(dkv_shape<T, WIDTH, SMALL>::N_THREADS)
    part_dkv_kernel(attention_args a, grad_rows<T> rows, rows_of<float> dk, rows_of<float> dv)
{
    dkv_walk<T, WIDTH, 0, SMALL>(a, rows, dk, dv);
}

#endif
