/*
 * gemm_own.cuh - a tile of a product, for what vendors' libraries do not do: products of groups of
 * rows whose sizes only the device knows, and products that end in another op
 *
 * C[m x n] = A B, in tiles of OWN_ROWS x BN, each by one block of BN threads. How an operand lies:
 *
 *   A_BY_K  A is [m x k] as it is stored (k is what runs fastest), else it is stored [k x m]
 *   B_BY_K  B is stored [n x k], else [k x n]
 *
 * bf16 and fp16 go through tensor cores (mma.cuh): each warp has 64 x 64 of C in 128 registers;
 * OWN_K columns of k at a time come into one of OWN_STAGES stages of shared memory by cp.async, two
 * ahead of their use, one barrier each; fragments of the next 16 of k are loaded (ldmatrix) while
 * these are multiplied, also over the end of a stage. Rows of a stage are of 128 bytes or a
 * multiple, and 16-byte chunk c of row r lies at c ^ (r % 8): eight rows of a matrix then are in
 * different banks, and so are eight chunks that are copied. 64 x 64 a warp because shared memory
 * must bring 4 KiB for 131 k operations then: with 64 x 32 it, and not the multipliers, would be
 * the bound. fp32 is multiplied by FMA, 16 x 8 of C a thread.
 *
 * WIDE: rows of all operands begin at multiples of 16 bytes and are whole ones long. Else elements
 * are copied one by one, and nothing is hidden behind anything: for odd sizes.
 *
 * Numerics: an element's sum is one chain over k in steps of 16 (fp32: of 1) from 0, whatever BN,
 * WIDE, the element's place in the tile, and what else is computed. An addend comes after it, in
 * fp32.
 */
#ifndef CUDA_GEMM_OWN_CUH
#define CUDA_GEMM_OWN_CUH

#include "cuda/mma.cuh"
#include "cuda/rows.cuh"

enum {
    OWN_ROWS = 128,
    OWN_K = 64,
    OWN_STAGES = 3,
    OWN_K_FLOAT = 16,            /* of fp32's stages, which are two */
    OWN_LD_FLOAT = OWN_ROWS + 4, /* of a stage's row: 16 bytes aligned */
    OWN_PANEL_FLOAT = OWN_K_FLOAT * OWN_LD_FLOAT
};

/* Operands from the tile's first row, column and k on, and how many of them there are. */
template <typename T> struct own_tile {
    const T *a, *b;
    int64_t lda, ldb; /* elements from one stored row to the next */
    int k;
    int rows, cols; /* at least 1; more than the tile has is no harm */
};

/* Where the tile goes: c = add + product, rounded once; add may be c, or NULL. */
template <typename O> struct own_out {
    O *c;
    const O *add;
    int64_t ldc, ld_add;
};

/* Dynamic shared memory of a block. */
template <typename T, int BN> static inline size_t own_shared_bytes(void)
{
    if (sizeof(T) == 4)
        return 4 * OWN_PANEL_FLOAT * sizeof(float);
    return (size_t)OWN_STAGES * (OWN_ROWS + BN) * OWN_K * 2;
}

/* ---- the result --------------------------------------------------------------------------------
 *
 * In packs of N elements of a row, which begin at multiples of N. Addends are asked for some packs
 * at a time, before any of these is written: else each would be waited for alone.
 */

static __device__ __forceinline__ void own_prefetch_line(const void *at)
{
#ifdef LMTRAIN_EMULATE
    (void)at;
#else
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(at));
#endif
}

/* The addends' lines are on their way to the L2 while products are added up: an expert of 500 rows
 * needs about as long for its gradient's memory as for its multiplications. */
template <typename T, typename O, int BN>
static __device__ __forceinline__ void own_prefetch(const own_tile<T> &t, const own_out<O> &out)
{
    const int a_line = 128 / sizeof(O), n_lines = BN / a_line;

#pragma unroll
    for (int i = 0; i < (int)sizeof(O); i++) {
        int line = (int)threadIdx.x + i * BN, row = line / n_lines, col = line % n_lines * a_line;

        if (out.add && row < t.rows && col < t.cols)
            own_prefetch_line(out.add + row * out.ld_add + col);
    }
}

template <typename T, typename O, int N, int WIDE>
static __device__ __forceinline__ void own_get(const own_tile<T> &t, const own_out<O> &out, int row,
                                               int col, packed<O, N> *addend)
{
    if (!out.add || row >= t.rows || col >= t.cols)
        return;
    const O *add = out.add + row * out.ld_add + col;

    if constexpr (WIDE)
        *addend = *(const packed<O, N> *)add;
    else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (col + i < t.cols)
                addend->at[i] = add[i];
    }
}

template <typename T, typename O, int N, int WIDE>
static __device__ __forceinline__ void own_put(const own_tile<T> &t, const own_out<O> &out, int row,
                                               int col, const packed<O, N> &addend,
                                               const float v[N])
{
    if (row >= t.rows || col >= t.cols)
        return;
    O *c = out.c + row * out.ldc + col;
    float result[N];

#pragma unroll
    for (int i = 0; i < N; i++)
        result[i] = out.add ? to_float(addend.at[i]) + v[i] : v[i];
    if constexpr (WIDE)
        store_floats<O, N>(c, result);
    else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (col + i < t.cols)
                c[i] = from_float<O>(result[i]);
    }
}

/* ---- tensor cores ------------------------------------------------------------------------------
 *
 * A panel is what a stage has of one operand: EXTENT (rows of A, columns of B) by OWN_K, as [extent
 * x k] or [k x extent].
 */

template <int EXTENT, int BY_K> static __device__ __forceinline__ int own_at(int row, int chunk)
{
    const int n_chunks = BY_K ? OWN_K / 8 : EXTENT / 8;

    return (row * n_chunks + (chunk ^ (row & 7))) * 8;
}

static __device__ __forceinline__ uint32_t own_word(bf16 low, bf16 high)
{
    return (uint32_t)high.bits << 16 | low.bits;
}

static __device__ __forceinline__ uint32_t own_word(fp16 low, fp16 high)
{
    return (uint32_t)high.bits << 16 | low.bits;
}

/* Eight elements, of which the first n are there, through registers. */
template <typename T>
static __device__ __forceinline__ void own_copy_plain(T *to, const T *from, int n)
{
    T x[8];

#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = i < n ? from[i] : T{ 0 };
    *(uint4 *)to = make_uint4(own_word(x[0], x[1]), own_word(x[2], x[3]), own_word(x[4], x[5]),
                              own_word(x[6], x[7]));
}

/* Begin to bring a panel: of `extent` rows (columns) and k_left of k, what is beyond is zero. */
template <typename T, int EXTENT, int BY_K, int WIDE, int N_THREADS>
static __device__ __forceinline__ void own_bring(T *panel, const T *from, int64_t ld, int extent,
                                                 int k_left)
{
    const int n_chunks = BY_K ? OWN_K / 8 : EXTENT / 8;
    const int n_turns = EXTENT * OWN_K / 8 / N_THREADS, rows_a_turn = N_THREADS / n_chunks;
    int row = (int)threadIdx.x / n_chunks, chunk = (int)threadIdx.x % n_chunks;
    int n_rows = BY_K ? extent : k_left, n_cols = (BY_K ? k_left : extent) - chunk * 8;

    from += row * ld + chunk * 8;
#pragma unroll(WIDE ? n_turns : 1)
    for (int i = 0; i < n_turns; i++) {
        T *to = panel + own_at<EXTENT, BY_K>(row, chunk);

        if constexpr (WIDE)
            copy_async16(to, from, row < n_rows && n_cols > 0);
        else
            own_copy_plain(to, from, row < n_rows ? n_cols : 0);
        row += rows_a_turn;
        from += rows_a_turn * ld;
    }
}

/* 16 rows of A from row m on and 16 of k from k on. */
template <typename T, int BY_K>
static __device__ __forceinline__ void own_load_a(uint32_t a[4], const T *panel, int m, int k)
{
    int lane = (int)threadIdx.x % 32;

    if constexpr (BY_K)
        load_matrices(a, panel + own_at<OWN_ROWS, 1>(m + lane % 16, k / 8 + lane / 16));
    else
        load_matrices_transposed(
            a, panel + own_at<OWN_ROWS, 0>(k + lane % 8 + lane / 16 * 8, m / 8 + lane / 8 % 2));
}

/* 16 columns of B, as two operands of mma. */
template <typename T, int BN, int BY_K>
static __device__ __forceinline__ void own_load_b(uint32_t b[4], const T *panel, int n, int k)
{
    int lane = (int)threadIdx.x % 32;

    if constexpr (BY_K)
        load_matrices(b, panel + own_at<BN, 1>(n + lane % 8 + lane / 16 * 8, k / 8 + lane / 8 % 2));
    else
        load_matrices_transposed(b, panel + own_at<BN, 0>(k + lane % 16, n / 8 + lane / 16));
}

template <typename T, int BN, int A_BY_K, int B_BY_K>
static __device__ __forceinline__ void own_load(uint32_t a[4][4], uint32_t b[4][4], const T *stage,
                                                int k)
{
    int warp = (int)threadIdx.x / 32, m = warp % 2 * 64, n = warp / 2 * 64;

#pragma unroll
    for (int i = 0; i < 4; i++)
        own_load_a<T, A_BY_K>(a[i], stage, m + i * 16, k);
#pragma unroll
    for (int i = 0; i < 4; i++)
        own_load_b<T, BN, B_BY_K>(b[i], stage + OWN_ROWS * OWN_K, n + i * 16, k);
}

template <typename T>
static __device__ __forceinline__ void own_multiply(float sum[4][8][4], const uint32_t a[4][4],
                                                    const uint32_t b[4][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            mma<T>(sum[i][j], a[i], b[j / 2] + j % 2 * 2);
}

/*
 * Four lanes hold pairs of columns of four blocks of eight: turned, so that each has a block.
 * v[2 j], v[2 j + 1]: of block j before, columns 2 j and 2 j + 1 of block lane % 4 after.
 */
static __device__ __forceinline__ void own_turn(float v[8])
{
    int t = (int)threadIdx.x % 4;

#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2 && !(j & bit); half++) {
                int low = 2 * j + half, high = 2 * (j | bit) + half;
                float x = __shfl_xor_sync(0xffffffffu, t & bit ? v[low] : v[high], bit);

                if (t & bit)
                    v[low] = x;
                else
                    v[high] = x;
            }
}

/* A warp's result in 16 bits: 16 packs of 8 a lane, in two goes. */
template <typename T, typename O, int WIDE>
static __device__ __forceinline__ void own_put_turned(const own_tile<T> &t, const own_out<O> &out,
                                                      float sum[4][8][4], int m, int n)
{
    const int lane = (int)threadIdx.x % 32, row0 = m + lane / 4, col0 = n + lane % 4 * 8;

#pragma unroll
    for (int go = 0; go < 2; go++) {
        packed<O, 8> addends[8];

#pragma unroll
        for (int i = 0; i < 8; i++)
            own_get<T, O, 8, WIDE>(t, out, row0 + (go * 4 + i / 2) * 8, col0 + i % 2 * 32,
                                   &addends[i]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int eight = go * 4 + i / 2, blocks = i % 2 * 4, half = eight % 2 * 2;
            float v[8];

#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[2 * j] = sum[eight / 2][blocks + j][half];
                v[2 * j + 1] = sum[eight / 2][blocks + j][half + 1];
            }
            own_turn(v);
            own_put<T, O, 8, WIDE>(t, out, row0 + eight * 8, col0 + blocks * 8, addends[i], v);
        }
    }
}

/* In fp32: 64 pairs a lane, in four goes; four lanes' are a sector of memory. */
template <typename T, typename O, int WIDE>
static __device__ __forceinline__ void own_put_pairs(const own_tile<T> &t, const own_out<O> &out,
                                                     float sum[4][8][4], int m, int n)
{
    const int lane = (int)threadIdx.x % 32, row0 = m + lane / 4, col0 = n + lane % 4 * 2;

#pragma unroll
    for (int go = 0; go < 4; go++) {
        packed<O, 2> addends[16];

#pragma unroll
        for (int i = 0; i < 16; i++)
            own_get<T, O, 2, WIDE>(t, out, row0 + (go * 2 + i / 8) * 8, col0 + i % 8 * 8,
                                   &addends[i]);
#pragma unroll
        for (int i = 0; i < 16; i++)
            own_put<T, O, 2, WIDE>(t, out, row0 + (go * 2 + i / 8) * 8, col0 + i % 8 * 8,
                                   addends[i], sum[go][i % 8] + i / 8 * 2);
    }
}

template <typename T, int BN, int A_BY_K, int B_BY_K, int WIDE>
static __device__ __forceinline__ void own_bring_stage(const own_tile<T> &t, T *stage, int k)
{
    if (k < t.k) {
        own_bring<T, OWN_ROWS, A_BY_K, WIDE, BN>(stage, t.a + (A_BY_K ? k : (int64_t)k * t.lda),
                                                 t.lda, t.rows, t.k - k);
        own_bring<T, BN, B_BY_K, WIDE, BN>(stage + OWN_ROWS * OWN_K,
                                           t.b + (B_BY_K ? k : (int64_t)k * t.ldb), t.ldb, t.cols,
                                           t.k - k);
    }
    copy_async_commit(); /* also of nothing: groups are counted */
}

/* Until the next stage is there for all, and all have read what they need of those before it. */
static __device__ __forceinline__ void own_next_stage(void)
{
    copy_async_wait<OWN_STAGES - 2>();
    __syncthreads();
}

/*
 * The stage that a turn brings is what the turn before it multiplied: its last fragments were read
 * before that turn's barrier. The last turn reads fragments that nobody multiplies.
 */
template <typename T, int BN, int A_BY_K, int B_BY_K, int WIDE>
static __device__ __forceinline__ void own_add_up(const own_tile<T> &t, float sum[4][8][4],
                                                  T *shared)
{
    enum { STAGE = (OWN_ROWS + BN) * OWN_K, STEPS = OWN_K / 16 };
    uint32_t a[2][4][4], b[2][4][4];
    T *now = shared, *free = shared + (OWN_STAGES - 1) * STAGE;

#pragma unroll
    for (int s = 0; s < OWN_STAGES - 1; s++)
        own_bring_stage<T, BN, A_BY_K, B_BY_K, WIDE>(t, shared + s * STAGE, s * OWN_K);
    own_next_stage();
    own_load<T, BN, A_BY_K, B_BY_K>(a[0], b[0], now, 0);
    for (int k = 0; k < t.k; k += OWN_K) {
        own_bring_stage<T, BN, A_BY_K, B_BY_K, WIDE>(t, free, k + (OWN_STAGES - 1) * OWN_K);
        free = now;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step == STEPS - 1) {
                own_next_stage();
                now = now == shared + (OWN_STAGES - 1) * STAGE ? shared : now + STAGE;
            }
            own_load<T, BN, A_BY_K, B_BY_K>(a[(step + 1) % 2], b[(step + 1) % 2], now,
                                            (step + 1) % STEPS * 16);
            own_multiply<T>(sum, a[step % 2], b[step % 2]);
        }
    }
}

template <typename T, typename O, int BN, int A_BY_K, int B_BY_K, int WIDE>
static __device__ __forceinline__ void own_run_mma(const own_tile<T> &t, const own_out<O> &out,
                                                   T *shared)
{
    int warp = (int)threadIdx.x / 32, m = warp % 2 * 64, n = warp / 2 * 64;
    float sum[4][8][4] = {};

    own_add_up<T, BN, A_BY_K, B_BY_K, WIDE>(t, sum, shared);
    if constexpr (sizeof(O) == 2)
        own_put_turned<T, O, WIDE>(t, out, sum, m, n);
    else
        own_put_pairs<T, O, WIDE>(t, out, sum, m, n);
}

/* ---- fp32 --------------------------------------------------------------------------------------
 *
 * Panels are [k x 128] both. A thread brings 16 elements of each: of a row of its own, or four
 * times four of a row of k.
 */

template <int BY_K, int WIDE>
static __device__ __forceinline__ void own_fetch(float x[16], const float *from, int64_t ld,
                                                 int extent, int k_left)
{
    int thread = (int)threadIdx.x;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = BY_K ? thread : thread / 32 + 4 * i, col = BY_K ? 4 * i : thread % 32 * 4;
        int n = row < (BY_K ? extent : k_left) ? (BY_K ? k_left : extent) - col : 0;
        const float *at = from + row * ld + col;

        if constexpr (WIDE) {
            float4 four = n > 0 ? *(const float4 *)at : make_float4(0, 0, 0, 0);

            x[4 * i] = four.x;
            x[4 * i + 1] = four.y;
            x[4 * i + 2] = four.z;
            x[4 * i + 3] = four.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[4 * i + j] = j < n ? at[j] : 0.0f;
        }
    }
}

template <int BY_K> static __device__ __forceinline__ void own_keep(float *panel, const float x[16])
{
    int thread = (int)threadIdx.x;

    if constexpr (BY_K) {
#pragma unroll
        for (int k = 0; k < OWN_K_FLOAT; k++)
            panel[k * OWN_LD_FLOAT + thread] = x[k];
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(float4 *)(panel + (thread / 32 + 4 * i) * OWN_LD_FLOAT + thread % 32 * 4) =
                make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
}

static __device__ __forceinline__ void own_four(float to[4], const float *from)
{
    float4 x = *(const float4 *)from;

    to[0] = x.x;
    to[1] = x.y;
    to[2] = x.z;
    to[3] = x.w;
}

/* Rows 32 q + 4 y + i (q < 4) and columns 64 q + 4 x + j (q < 2) of thread 16 y + x. */
static __device__ __forceinline__ void own_multiply_float(float sum[16][8], const float *a,
                                                          const float *b)
{
    int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;

#pragma unroll
    for (int k = 0; k < OWN_K_FLOAT; k++) {
        float left[16], right[8];

#pragma unroll
        for (int q = 0; q < 4; q++)
            own_four(left + 4 * q, a + k * OWN_LD_FLOAT + 32 * q + 4 * y);
#pragma unroll
        for (int q = 0; q < 2; q++)
            own_four(right + 4 * q, b + k * OWN_LD_FLOAT + 64 * q + 4 * x);
#pragma unroll
        for (int i = 0; i < 16; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
    }
}

template <typename O, int A_BY_K, int B_BY_K, int WIDE>
static __device__ __forceinline__ void own_run_float(const own_tile<float> &t,
                                                     const own_out<O> &out, float *shared)
{
    float sum[16][8] = {}, a[16], b[16];
    int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16, stage = 0;

    own_fetch<A_BY_K, WIDE>(a, t.a, t.lda, t.rows, t.k);
    own_fetch<B_BY_K, WIDE>(b, t.b, t.ldb, t.cols, t.k);
    for (int k = 0; k < t.k; k += OWN_K_FLOAT, stage = !stage) {
        float *panels = shared + stage * 2 * OWN_PANEL_FLOAT;
        int next = k + OWN_K_FLOAT;

        own_keep<A_BY_K>(panels, a);
        own_keep<B_BY_K>(panels + OWN_PANEL_FLOAT, b);
        __syncthreads(); /* those who come here have done with the other stage */
        if (next < t.k) {
            own_fetch<A_BY_K, WIDE>(a, t.a + (A_BY_K ? next : (int64_t)next * t.lda), t.lda, t.rows,
                                    t.k - next);
            own_fetch<B_BY_K, WIDE>(b, t.b + (B_BY_K ? next : (int64_t)next * t.ldb), t.ldb, t.cols,
                                    t.k - next);
        }
        own_multiply_float(sum, panels, panels + OWN_PANEL_FLOAT);
    }
#pragma unroll
    for (int go = 0; go < 4; go++) {
        packed<O, 4> addends[8];

#pragma unroll
        for (int i = 0; i < 8; i++)
            own_get<float, O, 4, WIDE>(t, out, go * 32 + 4 * y + i / 2, i % 2 * 64 + 4 * x,
                                       &addends[i]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            own_put<float, O, 4, WIDE>(t, out, go * 32 + 4 * y + i / 2, i % 2 * 64 + 4 * x,
                                       addends[i], sum[go * 4 + i / 2] + i % 2 * 4);
    }
}

/*
 * The tile, by all BN threads of a block; fp32 has BN = 128 alone. shared: own_shared_bytes of it,
 * which nobody else uses since the last barrier.
 */
template <typename T, typename O, int BN, int A_BY_K, int B_BY_K, int WIDE>
static __device__ __forceinline__ void own_run(const own_tile<T> &t, const own_out<O> &out,
                                               T *shared)
{
    own_prefetch<T, O, BN>(t, out);
    if constexpr (sizeof(T) == 4)
        own_run_float<O, A_BY_K, B_BY_K, WIDE>(t, out, shared);
    else
        own_run_mma<T, O, BN, A_BY_K, B_BY_K, WIDE>(t, out, shared);
}

#endif
