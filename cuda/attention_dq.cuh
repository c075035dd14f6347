/*
 * attention_dq.cuh - the kernel that makes dq: a block's queries against all keys that they see
 *
 *     P = exp2(Q K' - lse)   dS = P (dO V' - delta)   dQ += dS K   (Dao 2023, algorithm 2)
 *
 * Blocks, warps and stages are the forward's (attention.cu), with dO beside Q. A kernel of its own
 * computes scores a second time, but needs no atomics and no fp32 copy of dq. Bound by the three
 * products. Over a part of the keys it begins with the sums of the part before, and leaves sums.
 */
#ifndef CUDA_ATTENTION_DQ_CUH
#define CUDA_ATTENTION_DQ_CUH

#include "cuda/attention_grad_impl.cuh"
#include "cuda/attention_part.cuh"

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

/* Where a warp's rows are in dq: the first, how many, and the head's first column. */
struct dq_place {
    int64_t row, col;
    int n_rows;
};

/* A block's walk: begin(dq, place) says what dq is before the first key, end(dq, place, sight)
 * stores it. */
template <typename T, int WIDTH, int DROPS, typename shape, typename B, typename E>
static __device__ __forceinline__ void dq_walk(const attention_args &a, const grad_rows<T> &rows,
                                               B begin_sums, E end_sums)
{
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
    begin_sums(dq, dq_place{ begin + own, col, a.seq_len - own });
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
    end_sums(dq, dq_place{ begin + own, col, a.seq_len - own }, sight);
}

template <typename T, int WIDTH, int DROPS, int SMALL>
__global__ void __launch_bounds__(dq_shape<T, WIDTH, DROPS, SMALL>::N_THREADS)
    dq_kernel(attention_args a, grad_rows<T> rows)
{
    dq_walk<T, WIDTH, DROPS, dq_shape<T, WIDTH, DROPS, SMALL>>(
        a, rows, [](auto &dq, const dq_place &) { tile_clear(dq); },
        [&](const auto &dq, const dq_place &at, const auto &) {
            grad_store<T, WIDTH>(dq, rows.dq.row(at.row) + at.col, rows.dq.stride, at.n_rows, 0,
                                 a.head_dim, a.wide, a.scale);
        });
}

/* Over a part of the keys: from the sums of the part before, or none, to the next. */
template <typename T, int WIDTH, int SMALL>
__global__ void __launch_bounds__(dq_shape<T, WIDTH, 1, SMALL>::N_THREADS)
    part_dq_kernel(attention_args a, grad_rows<T> rows, rows_of<float> sum, rows_of<float> next)
{
    dq_walk<T, WIDTH, 0, dq_shape<T, WIDTH, 1, SMALL>>(
        a, rows,
        [&](auto &dq, const dq_place &at) {
            part_load<WIDTH>(dq, part_rows_of(sum, at.row, at.col, at.n_rows, a.head_dim));
        },
        [&](const auto &dq, const dq_place &at, const auto &sight) {
            part_store<WIDTH>(dq, part_rows_of(next, at.row, at.col, at.n_rows, a.head_dim),
                              part_rows_of(sum, at.row, at.col, at.n_rows, a.head_dim), sight);
        });
}

#endif
