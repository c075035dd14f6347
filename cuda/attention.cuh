/*
 * attention.cuh - what the attentions share: what is seen, what is dropped, the walk over keys
 *
 * Scores are counted in powers of two: x = score * log2(e), so that probabilities are exp2's. A
 * row of queries walks tiles of keys with a running maximum (Dao 2023, algorithm 1; Milakov &
 * Gimelshein 2018); a tile that a row does not see at all leaves its sums' bits as they were, so
 * what else is in a block, or is skipped, never shows in a row's result.
 */
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "cuda/attention_tile.cuh"
#include "cuda/rng.cuh"

extern "C" {
#include "base/rng.h"
}

#define LOG2_E 1.44269504088896340736f
#define LN_2 0.69314718055994530942f
#define NOTHING_SEEN 0x7fffffff /* first key of a row that sees none */

/* What a call's blocks are told. */
struct attention_args {
    int n_heads, n_kv_heads, group, head_dim, value_dim;
    int seq_len, key_len; /* queries, and keys, of a sequence */
    int n_tiles;          /* of a sequence, of the kernel's size */
    int window, alibi;
    int wide; /* operands allow 16 bytes at a time */
    float scale;
    float p, keep; /* of dropout: probability, and what is left is multiplied by */
    uint64_t seed, place;
    const int64_t *sample;
    int64_t sample_stride;
    const int32_t *begin;        /* head_offset */
    const int32_t *first, *last; /* ranges of keys: by rows of q */
    int64_t first_stride, last_stride;
};

/* An attention's q, behind which k and v are. */
static inline const struct tensor *attention_queries(const struct op_shape *op)
{
    switch (op->kind) {
    case OP_ATTENTION_GRAD:
        return &op->in[ATTENTION_GRAD_Q];
    case OP_ATTENTION_PART:
        return &op->in[ATTENTION_PART_Q];
    case OP_ATTENTION_PART_GRAD:
        return &op->in[ATTENTION_PART_GRAD_Q];
    default:
        return &op->in[ATTENTION_Q];
    }
}

static inline int attention_value_dim(const struct op_shape *op)
{
    return ops_value_dim(op, &attention_queries(op)[ATTENTION_V]);
}

/* ranges: number of `first` among the inputs, behind which last is; of attention_cached, which has
 * none: 0. */
static inline struct attention_args attention_ranges_of(const struct op_shape *op, int ranges)
{
    const struct op_attributes *at = &op->attributes;
    const struct tensor *q = attention_queries(op);
    struct attention_args a = {};

    a.n_heads = at->n_heads;
    a.n_kv_heads = at->n_kv_heads;
    a.group = at->n_heads / at->n_kv_heads;
    a.head_dim = at->head_dim;
    a.value_dim = attention_value_dim(op);
    a.seq_len = at->seq_len;
    a.window = at->window;
    a.alibi = at->alibi;
    a.scale = (float)at->scale;
    a.p = (float)at->p;
    a.keep = (float)(1.0 / (1.0 - at->p));
    a.seed = at->seed;
    a.place = at->rng_site;
    if (!ranges)
        return a;
    a.first = (const int32_t *)op->in[ranges].data;
    a.first_stride = op->in[ranges].stride;
    a.last = (const int32_t *)op->in[ranges + 1].data;
    a.last_stride = op->in[ranges + 1].stride;
    a.key_len = ops_key_len(op, &q[ATTENTION_Q], &q[ATTENTION_K]);
    return a;
}

/* begin: number of head_offset among the inputs; beside it are sample and ranges. */
static inline struct attention_args attention_args_of(const struct op_shape *op, int begin)
{
    int is_cached = op->kind == OP_ATTENTION_CACHED;
    struct attention_args a = attention_ranges_of(op, is_cached ? 0 : begin + 1);

    a.begin = (const int32_t *)op->in[begin].data;
    if (is_cached)
        return a;
    a.sample = (const int64_t *)op->in[begin - 1].data;
    a.sample_stride = op->in[begin - 1].stride;
    return a;
}

/* A kernel's template parameters from numbers: f(width_of<64>()). */
template <int N> struct width_of {
    enum { VALUE = N };
};

/* The narrowest tile that heads of keys and of values fit. */
template <typename F> static inline void attention_with_width(const struct op_shape *op, F f)
{
    int columns = max(op->attributes.head_dim, attention_value_dim(op));

    if (columns <= 32)
        f(width_of<32>());
    else if (columns <= 64)
        f(width_of<64>());
    else if (columns <= 128)
        f(width_of<128>());
    else
        f(width_of<256>());
}

/* Keys of a tile of the forward, with a cache or without: of one size, so of one numerics. */
template <typename T, int WIDTH> struct attention_keys {
    enum { N = WIDTH > 64 ? 32 : 64 };
};

template <int WIDTH> struct attention_keys<float, WIDTH> {
    enum { N = WIDTH > 128 ? 16 : WIDTH > 64 ? 32 : 64 };
};

/* Whether rows of n_heads heads can be read 16 bytes at a time. */
static inline int attention_is_wide(const struct tensor *t, int n_heads)
{
    return cuda_is_aligned(t, 16) && (size_t)(t->cols / n_heads) * dtype_bytes(t->dtype) % 16 == 0;
}

/* Enqueue the kernel, or, where `shared` is given, only raise that to the bytes of shared memory
 * that it needs. */
template <typename... P, typename... A>
static inline void attention_launch(struct kernels *kernels, const struct kernel_call *call,
                                    size_t *shared, struct cuda_shape shape, void (*kernel)(P...),
                                    A... arguments)
{
    if (!shared)
        cuda_launch(kernels, call, shape, kernel, arguments...);
    else if (*shared < shape.shared_bytes)
        *shared = shape.shared_bytes;
}

/* ---- numbers -----------------------------------------------------------------------------------
 */

/* 2^x of x <= 0 or near it; below 2^-126 it is 0. Within 2 units in the last place, as exp2f. */
static __device__ __forceinline__ float attention_exp2(float x)
{
#ifdef LMTRAIN_EMULATE
    return exp2f(x);
#else
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* ops_alibi_slope, in powers of two. */
static __device__ inline float attention_slope(const attention_args &a, int head)
{
    int n = 1;

    if (!a.alibi)
        return 0;
    if (a.begin)
        head += *a.begin;
    while (2 * n <= a.alibi)
        n *= 2;
    double power = head < n ? -8.0 * (head + 1) / n : -4.0 * (2 * (head - n) + 1) / n;
    return (float)exp2(power) * LOG2_E;
}

/*
 * How a product becomes what exp2 is taken of: x * factor, where x is the product itself, or with
 * ALiBi, or a scale that turns the order round, already all of it.
 */
struct attention_scale {
    float scale, factor, slope;
    int is_made;
};

static __device__ __forceinline__ attention_scale attention_scale_of(const attention_args &a,
                                                                     int head)
{
    float scale = a.scale * LOG2_E;
    int is_made = a.alibi || !(scale > 0);

    return attention_scale{ scale, is_made ? 1.0f : scale, attention_slope(a, head), is_made };
}

/* distance: key - query. */
static __device__ __forceinline__ float attention_make(const attention_scale &s, float slope,
                                                       float product, int distance)
{
    return fmaf(slope, (float)distance, product * s.scale);
}

/* ---- what is dropped: dropout_impl.h's numbers -------------------------------------------------
 */

struct attention_mask {
    uint64_t key, place_high, head;
    float p, keep;
};

static __device__ __forceinline__ attention_mask attention_mask_of(const attention_args &a,
                                                                   int64_t sequence, int head)
{
    attention_mask mask = { a.seed ^ (uint64_t)RNG_DROPOUT << 56, a.place * 0x9E3779B97F4A7C15u,
                            (uint64_t)head, a.p, a.keep };

    mask.place_high += (uint64_t)a.sample[sequence * a.sample_stride];
    if (a.begin)
        mask.head = (uint64_t)(head + *a.begin);
    return mask;
}

/* The words of a query's four keys from 4 quad on. */
static __device__ __forceinline__ uint4 attention_words(const attention_mask &mask, int query,
                                                        int quad)
{
    return cuda_philox(mask.key,
                       mask.head << 48 | (uint64_t)(unsigned)query << 24 | (uint64_t)(unsigned)quad,
                       mask.place_high);
}

static __device__ __forceinline__ float attention_kept(const attention_mask &mask, uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f >= mask.p ? mask.keep : 0.0f;
}

/*
 * Factors of a lane's elements of eight keys from `key` on, queries being rows (upper, lower: the
 * positions of the lane's two). Neighbouring lanes share blocks of four words: each makes one and
 * they trade.
 */
static __device__ __forceinline__ void
attention_keep_rows(float (&kept)[4], const attention_mask &mask, int upper, int lower, int key)
{
    int t = (int)threadIdx.x % 4, odd = t % 2;
    uint4 w = attention_words(mask, odd ? lower : upper, key / 4 + t / 2);
    uint32_t x = __shfl_xor_sync(0xffffffffu, odd ? w.x : w.z, 1);
    uint32_t y = __shfl_xor_sync(0xffffffffu, odd ? w.y : w.w, 1);

    kept[0] = attention_kept(mask, odd ? x : w.x);
    kept[1] = attention_kept(mask, odd ? y : w.y);
    kept[2] = attention_kept(mask, odd ? w.z : x);
    kept[3] = attention_kept(mask, odd ? w.w : y);
}

/* x[i] becomes x[i ^ c]. */
static __device__ __forceinline__ void attention_turn(uint32_t (&x)[4], int c)
{
    uint32_t a = c & 1 ? x[1] : x[0], b = c & 1 ? x[0] : x[1];
    uint32_t d = c & 1 ? x[3] : x[2], e = c & 1 ? x[2] : x[3];

    x[0] = c & 2 ? d : a;
    x[1] = c & 2 ? e : b;
    x[2] = c & 2 ? a : d;
    x[3] = c & 2 ? b : e;
}

/*
 * The same with keys as rows (key: that of the warp's first row) and eight queries, whose positions
 * `query_of` gives, as columns: four lanes share four blocks; lane c of them makes block c, of
 * query c % 2 and the rows' half c / 2, and they trade words as a matrix is transposed.
 */
template <typename F>
static __device__ __forceinline__ void
attention_keep_columns(float (&kept)[4], const attention_mask &mask, F query_of, int key)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, c = g % 4;
    uint4 w = attention_words(mask, query_of(2 * t + c % 2), (key + 8 * (c / 2)) / 4 + g / 4);
    uint32_t x[4] = { w.x, w.y, w.z, w.w };

    attention_turn(x, c);
#pragma unroll
    for (int s = 1; s < 4; s++)
        x[s] = __shfl_xor_sync(0xffffffffu, x[s], 4 * s);
    attention_turn(x, c);
#pragma unroll
    for (int i = 0; i < 4; i++)
        kept[i] = attention_kept(mask, x[i]);
}

/* ---- what is seen ------------------------------------------------------------------------------
 */

/* The first key that a query at position `own` sees; first: of its range. It never decreases from
 * row to row of a sequence. */
static __device__ __forceinline__ int attention_first(int window, int own, int first)
{
    return window ? max(first, own - window + 1) : first;
}

/* The last key that row `query` of a sequence sees, which is its position. */
static __device__ __forceinline__ int attention_last_of(const attention_args &a, int64_t sequence,
                                                        int query)
{
    return a.last ? min(a.last[(sequence * a.seq_len + query) * a.last_stride], a.key_len - 1)
                  : query;
}

static __device__ __forceinline__ int attention_first_of(const attention_args &a, int64_t sequence,
                                                         int query)
{
    int first = a.first ? a.first[(sequence * a.seq_len + query) * a.first_stride] : 0;

    return a.window ? attention_first(a.window, attention_last_of(a, sequence, query), first)
                    : first;
}

/*
 * A warp's rows of queries: [m][i] is row 16 m + g + 8 i. Row r sees keys first .. own, and own is
 * its position. The warp sees none outside [least, last], and all of its rows see [most, fewest].
 */
template <int M> struct attention_sight {
    int first[M][2]; /* NOTHING_SEEN where there is no row, or it sees none */
    int least, most, fewest, last;
};

/*
 * Rows that are queries from `query` on of one head: own and slope are not kept a row. Positions
 * that are data are read again where they are wanted, in tiles that have something to hide: they
 * would cost registers in all others.
 */
template <int M> struct attention_rows : attention_sight<M> {
    int query, seq_len, key_len;
    const int32_t *positions; /* of row `query`; NULL: rows are positions */
    int64_t positions_stride;
    float slope;

    __device__ __forceinline__ int own_of(int m, int i) const
    {
        int row = 16 * m + (int)threadIdx.x % 32 / 4 + 8 * i;

        if (!positions)
            return query + row;
        return query + row < seq_len ? min(positions[row * positions_stride], key_len - 1) : -1;
    }
    __device__ __forceinline__ float slope_of(int, int) const
    {
        return slope;
    }
};

/* Any rows, of any heads. */
struct attention_pairs : attention_sight<1> {
    int own[2];
    float slope[2];

    __device__ __forceinline__ int own_of(int, int i) const
    {
        return own[i];
    }
    __device__ __forceinline__ float slope_of(int, int i) const
    {
        return slope[i];
    }
};

/* The bounds, from what is known of rows. */
template <int M, typename S> static __device__ __forceinline__ void attention_bound(S &s)
{
    s.least = s.fewest = NOTHING_SEEN;
    s.most = s.last = -1;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (s.first[m][i] == NOTHING_SEEN)
                continue;
            int own = s.own_of(m, i);

            s.least = min(s.least, s.first[m][i]);
            s.most = max(s.most, s.first[m][i]);
            s.fewest = min(s.fewest, own);
            s.last = max(s.last, own);
        }
    for (int lanes = 16; lanes >= 4; lanes /= 2) {
        s.least = min(s.least, __shfl_xor_sync(0xffffffffu, s.least, lanes));
        s.most = max(s.most, __shfl_xor_sync(0xffffffffu, s.most, lanes));
        s.fewest = min(s.fewest, __shfl_xor_sync(0xffffffffu, s.fewest, lanes));
        s.last = max(s.last, __shfl_xor_sync(0xffffffffu, s.last, lanes));
    }
}

/* Rows query .. of a sequence's rows, for the warp. */
template <int M>
static __device__ __forceinline__ void attention_see_rows(attention_rows<M> &s,
                                                          const attention_args &a, float slope,
                                                          int64_t sequence, int query)
{
    int is_hidden = 0; /* whether a row sees no key */

    s.query = query;
    s.seq_len = a.seq_len;
    s.key_len = a.key_len;
    s.positions = a.last ? a.last + (sequence * a.seq_len + query) * a.last_stride : NULL;
    s.positions_stride = a.last_stride;
    s.slope = slope;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = query + 16 * m + (int)threadIdx.x % 32 / 4 + 8 * i;
            int first = row < a.seq_len ? attention_first_of(a, sequence, row) : NOTHING_SEEN;

            int sees = first <= s.own_of(m, i);

            is_hidden |= row < a.seq_len && !sees;
            s.first[m][i] = sees ? first : NOTHING_SEEN;
        }
    attention_bound<M>(s);
    if (__any_sync(0xffffffffu, is_hidden))
        s.fewest = -1;
}

/*
 * Products of a tile of keys from `key` on become what exp2 is taken of, -infinity where a row does
 * not see a key.
 */
template <int M, int N, typename S>
static __device__ __forceinline__ void attention_see(float (&s)[M][N][4], const S &sight,
                                                     const attention_scale &scale, int key)
{
    int t = (int)threadIdx.x % 4;
    int is_plain = key >= sight.most && key + 8 * N - 1 <= sight.fewest;

    if (is_plain && !scale.is_made)
        return;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int first = sight.first[m][i], own = sight.own_of(m, i);

#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float &x = s[m][n][2 * i + j];
                    int at = key + 8 * n + 2 * t + j;

                    if (scale.is_made)
                        x = attention_make(scale, sight.slope_of(m, i), x, at - own);
                    if (at < first || at > own)
                        x = -CUDART_INF_F;
                }
        }
}

/* ---- the walk ----------------------------------------------------------------------------------
 */

/* Of a warp's rows: outputs not yet divided by sums, maxima of x (not yet times factor), and each
 * lane's part of the sums. */
template <int WIDTH, int M> struct attention_walk {
    float out[M][WIDTH / 8][4];
    float max[M][2], sum[M][2];
};

template <int WIDTH, int M>
static __device__ __forceinline__ void attention_begin(attention_walk<WIDTH, M> &w)
{
    tile_clear(w.out);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            w.max[m][i] = -CUDART_INF_F;
            w.sum[m][i] = 0;
        }
}

/* Scores become probabilities up to a factor; maxima, sums and outputs follow. */
template <int WIDTH, int M, int N>
static __device__ __forceinline__ void attention_softmax(attention_walk<WIDTH, M> &w,
                                                         float (&s)[M][N][4], float factor)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float top = w.max[m][i], before = top, sum = 0;

#pragma unroll
            for (int n = 0; n < N; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            /* A row that has seen nothing yet: its sums are 0, whatever they are multiplied by. */
            float base = top == -CUDART_INF_F ? 0.0f : top * factor;
            float rescale = before == top ? 1.0f : attention_exp2((before - top) * factor);

#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int j = 2 * i; j < 2 * i + 2; j++) {
                    s[m][n][j] = attention_exp2(fmaf(s[m][n][j], factor, -base));
                    sum += s[m][n][j];
                }
            w.sum[m][i] = fmaf(w.sum[m][i], rescale, sum);
            w.max[m][i] = top;
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++) {
                w.out[m][n][2 * i] *= rescale;
                w.out[m][n][2 * i + 1] *= rescale;
            }
        }
}

/* One tile of keys and values from position `key` on. q: the warp's rows. mask: NULL, or what is
 * dropped. */
template <typename T, int WIDTH, int KEYS, int M, typename S>
static __device__ __forceinline__ void
attention_attend(attention_walk<WIDTH, M> &w, const T *q, const T *keys, const T *values, int key,
                 const S &sight, const attention_scale &scale, const attention_mask *mask)
{
    float s[M][KEYS / 8][4];

    if (key > sight.last || key + KEYS - 1 < sight.least)
        return;
    tile_clear(s);
    tile_scores<T, M, KEYS / 8, WIDTH>::add(s, q, keys);
    attention_see(s, sight, scale, key);
    attention_softmax(w, s, scale.factor);
    if (mask) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            int upper = sight.own_of(m, 0), lower = sight.own_of(m, 1);

#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                float kept[4];

                attention_keep_rows(kept, *mask, upper, lower, key + 8 * n);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[m][n][i] *= kept[i];
            }
        }
    }
    tile_weighted<T, M, KEYS / 8, WIDTH>::add(w.out, s, values);
}

/* The whole sum of a row, in all four lanes that have it. */
static __device__ __forceinline__ float attention_row_sum(float sum)
{
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

/* ---- cuDNN's (attention_cudnn.cu) --------------------------------------------------------------
 *
 * Asked first when a call of attention or attention_grad is prepared.
 */

struct cudnn_attention;

/* 1: it will do the call, by *attention; 0: it will not (the own kernels do); -1: failed. */
int cudnn_attention_prepare(struct cuda_kernels *cuda, const struct kernel_call *call,
                            struct cudnn_attention **attention, struct err *err);
void cudnn_attention_run(struct cuda_kernels *cuda, const struct kernel_call *call,
                         struct cudnn_attention *attention);
void cudnn_attention_release(struct cudnn_attention *attention);
/* All plans, when the backend goes. */
void cudnn_attention_close(struct cuda_kernels *cuda);
/* What of it decides bits, for the backend's identity: "attention cudnn 91900 workspace 1024". */
void cudnn_attention_describe(struct cuda_kernels *cuda, char *text, size_t n_bytes);

/* The call's state becomes cuDNN's, where it takes it (1). */
static inline int attention_prepare_cudnn(struct kernels *kernels, struct kernel_call *call,
                                          struct err *err)
{
    struct cudnn_attention *attention = NULL;
    int is_taken = cudnn_attention_prepare(cuda_of(kernels), call, &attention, err);

    call->state = is_taken > 0 ? attention : NULL;
    return is_taken;
}

static inline void attention_release_cudnn(struct kernels *kernels, void *state)
{
    (void)kernels;
    if (state)
        cudnn_attention_release((struct cudnn_attention *)state);
}

/* attention_grad.cu: the rows of gradients */
void cuda_register_attention_grad(struct kernels_backend *table);
/* attention_end.cu: the rows of what is left when all parts of the keys have been attended to */
void cuda_register_attention_end(struct kernels_backend *table);

#endif
