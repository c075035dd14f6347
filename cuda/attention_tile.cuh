/*
 * attention_tile.cuh - tiles of attention: how they come to shared memory, and their products
 *
 * A warp owns 16 M rows of a product and all of its columns, as mma has it (mma.cuh): with g = lane
 * / 4 and t = lane % 4, element [m][n][i] of its sums is row 16 m + g + 8 (i / 2), column 8 n + 2 t
 * + i % 2. For fp32 the same elements are with the same lanes and made by fused multiply-adds. So
 * there is one code for all that is done to scores, and
 *
 *   tile_scores    sums += A B', both from shared memory      Q K', dO V' and their transposes
 *   tile_weighted  sums += P B, P the sums of a tile_scores   P V, dS K, P' dO, dS' Q
 *
 * are all products of forward and backward: probabilities never leave registers, since what one
 * mma leaves is, rounded and paired, what the next one takes.
 *
 * Rows in shared memory have 16 bytes more than they need: eight rows then begin in eight different
 * groups of banks, which is what ldmatrix reads at once.
 */
#ifndef CUDA_ATTENTION_TILE_CUH
#define CUDA_ATTENTION_TILE_CUH

#include "cuda/mma.cuh"

/* Elements from one row of a tile of this width to the next. */
template <typename T> static constexpr __host__ __device__ int tile_stride(int width)
{
    return width + 16 / (int)sizeof(T);
}

template <typename T> static constexpr __host__ __device__ size_t tile_bytes(int rows, int width)
{
    return (size_t)rows * (size_t)tile_stride<T>(width) * sizeof(T);
}

/* Rows of one head: row r begins at `at` + r * stride and has n_cols elements. */
template <typename T> struct head_rows {
    const T *at;
    int64_t stride;
    int n_cols;
    int wide; /* rows may be read 16 bytes at a time */
};

/*
 * Start to bring ROWS rows to a tile; row_of(r) tells where row r is, NULL: nowhere, it is zeros,
 * as are columns from n_cols on. any: an address for what is not read. Wide rows are under way
 * until copy_async_wait, others are there at once. All threads of a block of N_THREADS.
 */
template <typename T, int ROWS, int WIDTH, int N_THREADS, typename F>
static __device__ __forceinline__ void tile_load(T *tile, const T *any, int n_cols, int wide,
                                                 F row_of)
{
    constexpr int STRIDE = tile_stride<T>(WIDTH), EACH = 16 / (int)sizeof(T);
    constexpr int CHUNKS = WIDTH / EACH;

    if (wide) {
#pragma unroll
        for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += N_THREADS) {
            int row = i / CHUNKS, col = i % CHUNKS * EACH;
            const T *from = row_of(row);
            int given = from && col < n_cols;

            copy_async16(tile + row * STRIDE + col, given ? from + col : any, given);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < ROWS * WIDTH; i += N_THREADS) {
        int row = i / WIDTH, col = i % WIDTH;
        const T *from = row_of(row);

        tile[row * STRIDE + col] = from && col < n_cols ? from[col] : from_float<T>(0.0f);
    }
}

/* Rows `first` .. of which n are. Wide ones by one pointer that goes from row to row. */
template <typename T, int ROWS, int WIDTH, int N_THREADS>
static __device__ __forceinline__ void tile_load_rows(T *tile, const head_rows<T> &rows,
                                                      int64_t first, int n)
{
    constexpr int STRIDE = tile_stride<T>(WIDTH), EACH = 16 / (int)sizeof(T);
    constexpr int CHUNKS = WIDTH / EACH, STEP = N_THREADS / CHUNKS;
    static_assert(N_THREADS % CHUNKS == 0 && ROWS % STEP == 0, "threads take whole rows");

    if (!rows.wide) {
        tile_load<T, ROWS, WIDTH, N_THREADS>(tile, rows.at, rows.n_cols, 0, [&](int r) {
            return r < n ? rows.at + (first + r) * rows.stride : (const T *)NULL;
        });
        return;
    }
    int row = (int)threadIdx.x / CHUNKS, col = (int)threadIdx.x % CHUNKS * EACH;
    const T *from = rows.at + (first + row) * rows.stride + col;

    n = col < rows.n_cols ? n - row : 0;
    tile += row * STRIDE + col;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
        copy_async16(tile + i * STRIDE, i < n ? from : rows.at, i < n);
        from += STEP * rows.stride;
    }
}

/* ---- products ----------------------------------------------------------------------------------
 */

/* s += a b': a the warp's 16 M rows, b 8 N rows, both of WIDTH columns. */
template <typename T, int M, int N, int WIDTH> struct tile_scores {
    static __device__ __forceinline__ void add(float (&s)[M][N][4], const T *a, const T *b)
    {
        constexpr int STRIDE = tile_stride<T>(WIDTH);
        int lane = (int)threadIdx.x % 32;

        a += lane % 16 * STRIDE + lane / 16 * 8;
        b += (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
        for (int k = 0; k < WIDTH; k += 16) {
            uint32_t left[M][4], right[4];

#pragma unroll
            for (int m = 0; m < M; m++)
                load_matrices(left[m], a + m * 16 * STRIDE + k);
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                load_matrices(right, b + n * 8 * STRIDE + k);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    mma<T>(s[m][n], left[m], right);
                    mma<T>(s[m][n + 1], left[m], right + 2);
                }
            }
        }
    }
};

template <int M, int N, int WIDTH> struct tile_scores<float, M, N, WIDTH> {
    static __device__ __forceinline__ void add(float (&s)[M][N][4], const float *a, const float *b)
    {
        constexpr int STRIDE = tile_stride<float>(WIDTH);
        int lane = (int)threadIdx.x % 32;

        a += lane / 4 * STRIDE;
        b += lane % 4 * 2 * STRIDE;
#pragma unroll 1
        for (int k = 0; k < WIDTH; k += 4) {
            packed<float, 4> left[2 * M];

#pragma unroll
            for (int r = 0; r < 2 * M; r++)
                left[r] = *(const packed<float, 4> *)(a + r * 8 * STRIDE + k);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    packed<float, 4> right =
                        *(const packed<float, 4> *)(b + (n * 8 + j) * STRIDE + k);

#pragma unroll
                    for (int r = 0; r < 2 * M; r++)
#pragma unroll
                        for (int l = 0; l < 4; l++)
                            s[r / 2][n][r % 2 * 2 + j] =
                                fmaf(left[r].at[l], right.at[l], s[r / 2][n][r % 2 * 2 + j]);
                }
        }
    }
};

/* o += p b: p the warp's 16 M rows of 8 K columns, b 8 K rows of a tile of WIDTH columns, of which
 * COLS from b on are wanted. */
template <typename T, int M, int K, int WIDTH, int COLS = WIDTH> struct tile_weighted {
    static __device__ __forceinline__ void add(float (&o)[M][COLS / 8][4],
                                               const float (&p)[M][K][4], const T *b)
    {
        constexpr int STRIDE = tile_stride<T>(WIDTH);
        int lane = (int)threadIdx.x % 32;

        b += lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
        for (int k = 0; k < K; k += 2) {
            uint32_t left[M][4], right[4];

#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    left[m][i] =
                        from_floats<T>(p[m][k + i / 2][i % 2 * 2], p[m][k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < COLS / 8; n += 2) {
                load_matrices_transposed(right, b + k * 8 * STRIDE + n * 8);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    mma<T>(o[m][n], left[m], right);
                    mma<T>(o[m][n + 1], left[m], right + 2);
                }
            }
        }
    }
};

template <int M, int K, int WIDTH, int COLS> struct tile_weighted<float, M, K, WIDTH, COLS> {
    static __device__ __forceinline__ void add(float (&o)[M][COLS / 8][4],
                                               const float (&p)[M][K][4], const float *b)
    {
        constexpr int STRIDE = tile_stride<float>(WIDTH);
        int lane = (int)threadIdx.x % 32;

        b += lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll 1
            for (int from = 0; from < 4; from++) /* the lane that has columns 2 from, 2 from + 1 */
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float *right = b + (k * 8 + from * 2 + j) * STRIDE;
                    float left[2 * M];

#pragma unroll
                    for (int r = 0; r < 2 * M; r++)
                        left[r] = __shfl_sync(0xffffffffu, p[r / 2][k][r % 2 * 2 + j],
                                              lane / 4 * 4 + from);
#pragma unroll
                    for (int n = 0; n < COLS / 8; n++) {
                        packed<float, 2> x = *(const packed<float, 2> *)(right + n * 8);

#pragma unroll
                        for (int r = 0; r < 2 * M; r++) {
                            float *sums = o[r / 2][n] + r % 2 * 2;

                            sums[0] = fmaf(left[r], x.at[0], sums[0]);
                            sums[1] = fmaf(left[r], x.at[1], sums[1]);
                        }
                    }
                }
    }
};

template <int M, int N> static __device__ __forceinline__ void tile_clear(float (&x)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[m][n][i] = 0;
}

/* Columns 8 n + 2 t, + 1 of a row of a tile of sums: two elements at once where rows allow. */
template <typename T>
static __device__ __forceinline__ void tile_store_pair(T *row, int col, int n_cols, int wide,
                                                       float a, float b)
{
    if (wide && col < n_cols) {
        packed<T, 2> pair = { { from_float<T>(a), from_float<T>(b) } };

        *(packed<T, 2> *)(row + col) = pair;
        return;
    }
    if (col < n_cols)
        row[col] = from_float<T>(a);
    if (col + 1 < n_cols)
        row[col + 1] = from_float<T>(b);
}

#endif
