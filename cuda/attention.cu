/*
 * attention.cu - attention to ranges of keys (Dao 2023, algorithm 1)
 *
 * A block is a tile of queries of one head; its warps have 16 M rows each, queries in shared memory
 * and output in registers, and walk the tiles of keys and values that the block sees, the next tile
 * being under way while one is worked on (two stages). A warp passes over tiles that none of its
 * rows sees; masks are looked at only in tiles that have something to hide. Bound by the two
 * products: 128 queries a block keep what is read from L2 at 16 bytes a clock and multiprocessor.
 *
 * fp32 goes the same way with fused multiply-adds in the place of matrix instructions: it is there
 * to be right.
 *
 * A call that cuDNN takes (attention_cudnn.cu) is its own: kernel_call.state is then its plan.
 *
 * Over a part of the keys the walk begins with the state that the part before has left, and leaves
 * one. As maxima in a state are of scaled scores, scores are scaled before they are compared, not
 * within exp2; and a row's sum, of which each of four lanes has a part, is added up at each end.
 */
#include "cuda/attention_part.cuh"

/* Operands of the kernel. */
template <typename T> struct forward_rows {
    rows_of<T> q, k, v, out;
    rows_of<float> lse;
};

/*
 * Queries of a block, 16-row parts of a warp: with two of these a warp reads keys and values half
 * as often for as many products. Where dropout's numbers are made, too, registers do not suffice.
 */
template <typename T, int WIDTH, int DROPS> struct forward_tile {
    enum { QUERIES = WIDTH > 128 ? 64 : 128, M = WIDTH > 128 || DROPS ? 1 : 2 };
};

template <int WIDTH, int DROPS> struct forward_tile<float, WIDTH, DROPS> {
    enum { QUERIES = 64, M = 1 };
};

template <typename T, int WIDTH, int DROPS> struct forward_shape : forward_tile<T, WIDTH, DROPS> {
    typedef forward_tile<T, WIDTH, DROPS> tile;
    enum {
        KEYS = attention_keys<T, WIDTH>::N,
        N_THREADS = tile::QUERIES / (16 * tile::M) * 32,
        STRIDE = tile_stride<T>(WIDTH),
        QUERY_ELEMENTS = tile::QUERIES * STRIDE,
        KEY_ELEMENTS = KEYS * STRIDE,
        SHARED_BYTES = (QUERY_ELEMENTS + 4 * KEY_ELEMENTS) * (int)sizeof(T),
    };
};

/* Of `lane`'s rows: outputs divided by sums, and the logs of these; of a row that has seen no key 0
 * and infinity. */
template <typename T, int WIDTH, int M>
static __device__ __forceinline__ void
forward_store(const attention_args &a, const attention_walk<WIDTH, M> &w, rows_of<T> out,
              rows_of<float> lse, int64_t first_row, int n_rows, int head, float factor)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int r = 16 * m + g + 8 * i;
            float sum = attention_row_sum(w.sum[m][i]);
            float inverse = sum > 0 ? 1.0f / sum : 0.0f;

            if (r >= n_rows)
                continue;
            T *row = out.row(first_row + r) + (int64_t)head * a.value_dim;
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++)
                tile_store_pair(row, 8 * n + 2 * t, a.value_dim, a.wide,
                                w.out[m][n][2 * i] * inverse, w.out[m][n][2 * i + 1] * inverse);
            if (!t)
                lse.row(first_row + r)[head] =
                    sum > 0 ? fmaf(w.max[m][i] * factor, LN_2, logf(sum)) : CUDART_INF_F;
        }
}

/* Where a warp's rows are in what is written: the first, how many, and the head. */
struct forward_place {
    int64_t row;
    int n_rows, head;
};

/* A block's walk: begin(w, place) says what it begins with, end(w, place, sight, factor) stores what
 * it has come to. scale_of(head): how products are scaled. */
template <typename T, int WIDTH, int DROPS, typename shape, typename S, typename B, typename E>
static __device__ __forceinline__ void forward_walk(const attention_args &a,
                                                    const forward_rows<T> &rows, S scale_of,
                                                    B begin_walk, E end_walk)
{
    constexpr int M = shape::M, KEYS = shape::KEYS, N_THREADS = shape::N_THREADS;
    /* Late tiles have the most keys: they go first. Heads of one kv head go together. */
    int head = (int)(blockIdx.x % (unsigned)a.n_heads);
    int of_head = (int)(blockIdx.x / (unsigned)a.n_heads);
    int64_t sequence = of_head / a.n_tiles, begin = sequence * a.seq_len;
    int64_t keys_begin = sequence * a.key_len;
    int query = (a.n_tiles - 1 - of_head % a.n_tiles) * shape::QUERIES;
    int last_query = min(a.seq_len, query + shape::QUERIES) - 1;
    int last = attention_last_of(a, sequence, last_query);
    int own = query + (int)threadIdx.x / 32 * 16 * M; /* the warp's first */
    int key = attention_first_of(a, sequence, query) / KEYS * KEYS;
    int64_t kv_head = head / a.group;
    head_rows<T> queries = { rows.q.row(begin) + (int64_t)head * a.head_dim, rows.q.stride,
                             a.head_dim, a.wide };
    head_rows<T> keys = { rows.k.row(keys_begin) + kv_head * a.head_dim, rows.k.stride, a.head_dim,
                          a.wide };
    head_rows<T> values = { rows.v.row(keys_begin) + kv_head * a.value_dim, rows.v.stride,
                            a.value_dim, a.wide };
    CUDA_SHARED(T, q);
    T *stages = q + shape::QUERY_ELEMENTS;
    attention_scale scale = scale_of(head);
    attention_mask mask;
    attention_rows<M> sight;
    attention_walk<WIDTH, M> w;

    auto load = [&](int from, int stage) {
        T *to = stages + stage * 2 * shape::KEY_ELEMENTS;

        tile_load_rows<T, KEYS, WIDTH, N_THREADS>(to, keys, from, a.key_len - from);
        tile_load_rows<T, KEYS, WIDTH, N_THREADS>(to + shape::KEY_ELEMENTS, values, from,
                                                  a.key_len - from);
        copy_async_commit();
    };
    tile_load_rows<T, shape::QUERIES, WIDTH, N_THREADS>(q, queries, query, last_query + 1 - query);
    load(key, 0);
    if (DROPS)
        mask = attention_mask_of(a, sequence, head);
    attention_see_rows(sight, a, scale.slope, sequence, own);
    forward_place place = { begin + own, a.seq_len - own, head };
    begin_walk(w, place);
    for (int stage = 0; key <= last; key += KEYS, stage ^= 1) {
        const T *tile = stages + stage * 2 * shape::KEY_ELEMENTS;

        if (key + KEYS <= last)
            load(key + KEYS, stage ^ 1);
        else
            copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        attention_attend<T, WIDTH, KEYS, M>(w, q + (own - query) * shape::STRIDE, tile,
                                            tile + shape::KEY_ELEMENTS, key, sight, scale,
                                            DROPS ? &mask : NULL);
        __syncthreads();
    }
    end_walk(w, place, sight, scale.factor);
}

template <typename T, int WIDTH, int DROPS>
__global__ void __launch_bounds__(forward_shape<T, WIDTH, DROPS>::N_THREADS)
    forward_kernel(attention_args a, forward_rows<T> rows)
{
    forward_walk<T, WIDTH, DROPS, forward_shape<T, WIDTH, DROPS>>(
        a, rows, [&](int head) { return attention_scale_of(a, head); },
        [](auto &w, const forward_place &) { attention_begin(w); },
        [&](const auto &w, const forward_place &at, const auto &, float factor) {
            forward_store(a, w, rows.out, rows.lse, at.row, at.n_rows, at.head, factor);
        });
}

/* ---- over a part of the keys ---- */

/* From a state, or none, to the next. */
struct part_states {
    rows_of<float> before, next;
};

/* A lane's rows: the maxima, and the sums in the first of four lanes. */
template <int WIDTH, int M>
static __device__ __forceinline__ void
part_begin(attention_walk<WIDTH, M> &w, const attention_args &a, const part_states &states,
           const forward_place &at)
{
    int lane = (int)threadIdx.x % 32;
    int64_t col = (int64_t)at.head * a.value_dim, max = (int64_t)a.n_heads * a.value_dim + at.head;

    attention_begin(w);
    if (!states.before.at)
        return;
    part_load<WIDTH>(w.out, part_rows_of(states.before, at.row, col, at.n_rows, a.value_dim));
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int r = 16 * m + lane / 4 + 8 * i;

            if (r >= at.n_rows)
                continue;
            w.max[m][i] = states.before.row(at.row + r)[max];
            w.sum[m][i] = lane % 4 ? 0.0f : states.before.row(at.row + r)[max + a.n_heads];
        }
}

template <int WIDTH, int M, typename S>
static __device__ __forceinline__ void part_end(const attention_walk<WIDTH, M> &w,
                                                const attention_args &a, const part_states &states,
                                                const forward_place &at, const S &sight)
{
    int lane = (int)threadIdx.x % 32;
    int64_t col = (int64_t)at.head * a.value_dim, max = (int64_t)a.n_heads * a.value_dim + at.head;

    part_store<WIDTH>(w.out, part_rows_of(states.next, at.row, col, at.n_rows, a.value_dim),
                      part_rows_of(states.before, at.row, col, at.n_rows, a.value_dim), sight);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int r = 16 * m + lane / 4 + 8 * i;
            float sum = attention_row_sum(w.sum[m][i]);

            if (r >= at.n_rows || lane % 4)
                continue;
            states.next.row(at.row + r)[max] = w.max[m][i];
            states.next.row(at.row + r)[max + a.n_heads] = sum;
        }
}

template <typename T, int WIDTH>
__global__ void __launch_bounds__(forward_shape<T, WIDTH, 1>::N_THREADS)
    part_kernel(attention_args a, forward_rows<T> rows, part_states states)
{
    forward_walk<T, WIDTH, 0, forward_shape<T, WIDTH, 1>>(
        a, rows,
        [&](int) {
            return attention_scale{ a.scale, LOG2_E, 0.0f, 1 };
        },
        [&](auto &w, const forward_place &at) { part_begin(w, a, states, at); },
        [&](const auto &w, const forward_place &at, const auto &sight, float) {
            part_end(w, a, states, at, sight);
        });
}

template <typename T, int WIDTH>
static void part_launch(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    typedef forward_shape<T, WIDTH, 1> shape;
    const struct tensor *in = &call->op.in[ATTENTION_PART_Q];
    forward_rows<T> rows = { cuda_rows<T>(&in[ATTENTION_Q]),
                             cuda_rows<T>(&in[ATTENTION_K]),
                             cuda_rows<T>(&in[ATTENTION_V]),
                             {},
                             {} };
    part_states states = { cuda_rows<float>(&call->op.in[ATTENTION_PART_STATE]),
                           cuda_rows<float>(&call->op.out[ATTENTION_PART_NEXT]) };
    struct attention_args a = attention_ranges_of(&call->op, ATTENTION_PART_FIRST);

    a.n_tiles = (int)ceil_div(a.seq_len, shape::QUERIES);
    a.wide = 1;
    for (int i = ATTENTION_Q; i <= ATTENTION_V; i++)
        a.wide = a.wide && attention_is_wide(&in[i], i == ATTENTION_Q ? a.n_heads : a.n_kv_heads);
    attention_launch(kernels, call, shared,
                     cuda_shape_of(in[ATTENTION_Q].rows / a.seq_len * a.n_tiles * a.n_heads,
                                   shape::N_THREADS, shape::SHARED_BYTES),
                     part_kernel<T, WIDTH>, a, rows, states);
}

/* ---- launching ---- */

template <typename T, int WIDTH, int DROPS>
static void forward_launch(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    typedef forward_shape<T, WIDTH, DROPS> shape;
    const struct tensor *in = call->op.in, *out = call->op.out;
    forward_rows<T> rows = { cuda_rows<T>(&in[ATTENTION_Q]), cuda_rows<T>(&in[ATTENTION_K]),
                             cuda_rows<T>(&in[ATTENTION_V]), cuda_rows<T>(&out[ATTENTION_OUT]),
                             cuda_rows<float>(&out[ATTENTION_LSE]) };
    struct attention_args a = attention_args_of(&call->op, ATTENTION_HEAD_OFFSET);

    a.n_tiles = (int)ceil_div(a.seq_len, shape::QUERIES);
    a.wide = attention_is_wide(&out[ATTENTION_OUT], a.n_heads);
    for (int i = ATTENTION_Q; i <= ATTENTION_V; i++)
        a.wide = a.wide && attention_is_wide(&in[i], i == ATTENTION_Q ? a.n_heads : a.n_kv_heads);
    attention_launch(kernels, call, shared,
                     cuda_shape_of(in[ATTENTION_Q].rows / a.seq_len * a.n_tiles * a.n_heads,
                                   shape::N_THREADS, shape::SHARED_BYTES),
                     forward_kernel<T, WIDTH, DROPS>, a, rows);
}

static void forward(struct kernels *kernels, const struct kernel_call *call, size_t *shared)
{
    const struct op_attributes *at = &call->op.attributes;

    cuda_with_act(attention_queries(&call->op)->dtype, [&](auto zero) {
        typedef decltype(zero) T;

        attention_with_width(&call->op, [&](auto width) {
            if (call->op.kind == OP_ATTENTION_PART)
                part_launch<T, decltype(width)::VALUE>(kernels, call, shared);
            else if (at->p > 0)
                forward_launch<T, decltype(width)::VALUE, 1>(kernels, call, shared);
            else
                forward_launch<T, decltype(width)::VALUE, 0>(kernels, call, shared);
        });
    });
}

static void attention_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    if (call->state)
        cudnn_attention_run(cuda_of(kernels), call, (struct cudnn_attention *)call->state);
    else
        forward(kernels, call, NULL);
}

static int attention_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    int is_taken = attention_prepare_cudnn(kernels, call, err);
    size_t shared = 0;

    if (is_taken)
        return is_taken < 0 ? -1 : 0;
    forward(kernels, call, &shared);
    return cuda_want_shared(kernels, call, shared, err);
}

static void part_run(struct kernels *kernels, const struct kernel_call *call, int first)
{
    (void)first;
    forward(kernels, call, NULL);
}

static int part_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    size_t shared = 0;

    forward(kernels, call, &shared);
    return cuda_want_shared(kernels, call, shared, err);
}

void cuda_register_attention(struct kernels_backend *table)
{
    struct kernel_entry *entry = &table->entries[OP_ATTENTION];

    entry->run = attention_run;
    entry->prepare = attention_prepare;
    entry->release = attention_release_cudnn;
    entry = &table->entries[OP_ATTENTION_PART];
    entry->run = part_run;
    entry->prepare = part_prepare;
    cuda_register_attention_grad(table);
    cuda_register_attention_end(table);
}
