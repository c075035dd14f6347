/*
 * fp8_rounding.cuh - tiles of operands of fp8's products, rounded to e4m3 (or e5m2) and laid out for
 * multipliers, which want lines along k: transposed where lines are columns, padded with zeros
 * along k to whole blocks
 *
 * A block of threads has a tile of 128 x 128, one line a thread, out of shared memory, whose rows
 * are a word longer than 128 numbers so that a column lies in as many banks as a row. Bound by
 * memory: two bytes are read of an element, one is written.
 */
#ifndef CUDA_FP8_ROUNDING_CUH
#define CUDA_FP8_ROUNDING_CUH

#include "cuda/e4m3.cuh"

enum { SIDE = OPS_FP8_BLOCK, STRIDE = SIDE + 2 };

/* Which block of 128 x 128 numbers has one scale, or each of its lines, or all blocks together. */
enum rounding_way { ROUND_LINES, ROUND_SQUARE, ROUND_BY_ONE };

struct rounding {
    const uint16_t *x;
    int64_t rows, cols, stride, n_across;
    int64_t lines, k; /* of codes; k is padded */
    uint8_t *codes;
    /* Of lines [k / 128 x scale_stride]; of squares [lines / 128 x scale_stride]. */
    float *scales;
    int64_t scale_stride;
    uint32_t *most; /* of each tile: the bits of its largest |x| */
    bool is_e5m2;   /* codes; with one scale */
};

struct rounding_tile {
    int64_t row, col;
};

static __device__ __forceinline__ rounding_tile tile_of(const rounding &r, int64_t number)
{
    return { number / r.n_across * SIDE, number % r.n_across * SIDE };
}

/* What a block of threads shares. */
struct rounding_shared {
    uint16_t x[SIDE][STRIDE];
    uint32_t sizes[SIDE];
};

/* Zeros where there is nothing. */
static __device__ __forceinline__ void load_tile(const rounding &r, rounding_tile t,
                                                 uint16_t (*x)[STRIDE])
{
    int64_t col = t.col + threadIdx.x;

    for (int row = 0; row < SIDE; row++)
        x[row][threadIdx.x] =
            t.row + row < r.rows && col < r.cols ? r.x[(t.row + row) * r.stride + col] : 0;
    __syncthreads();
}

/* The bits of the largest |x| of the thread's line. */
template <bool IS_TRANSPOSED>
static __device__ __forceinline__ uint32_t largest_of_line(const uint16_t (*x)[STRIDE])
{
    uint32_t most = 0;

    for (int i = 0; i < SIDE; i++) {
        uint32_t size = (IS_TRANSPOSED ? x[i][threadIdx.x] : x[threadIdx.x][i]) & 0x7fffu;

        most = size > most ? size : most;
    }
    return most << 16;
}

/* Of all threads' numbers. */
static __device__ __forceinline__ uint32_t largest_of_all(uint32_t own, uint32_t *shared)
{
    shared[threadIdx.x] = own;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half && shared[threadIdx.x + half] > shared[threadIdx.x])
            shared[threadIdx.x] = shared[threadIdx.x + half];
        __syncthreads();
    }
    return shared[0];
}

template <bool IS_TRANSPOSED>
static __device__ __forceinline__ uint32_t word_of(const uint16_t (*x)[STRIDE], int at, float scale,
                                                   bool is_e5m2)
{
    uint32_t word = 0;

    for (int i = 0; i < 4; i++) {
        uint16_t bits = IS_TRANSPOSED ? x[at + i][threadIdx.x] : x[threadIdx.x][at + i];
        float quotient = __uint_as_float((uint32_t)bits << 16) / (scale > 0 ? scale : 1.0f);

        uint8_t code = is_e5m2 ? e5m2_code(quotient) : e4m3_code(quotient);

        word |= (scale > 0 ? (uint32_t)code : 0u) << 8 * i;
    }
    return word;
}

template <bool IS_TRANSPOSED>
static __device__ __forceinline__ void write_line(const uint16_t (*x)[STRIDE], float scale,
                                                  uint8_t *codes, bool is_e5m2)
{
    for (int at = 0; at < SIDE; at += 16)
        *(uint4 *)(codes + at) = { word_of<IS_TRANSPOSED>(x, at, scale, is_e5m2),
                                   word_of<IS_TRANSPOSED>(x, at + 4, scale, is_e5m2),
                                   word_of<IS_TRANSPOSED>(x, at + 8, scale, is_e5m2),
                                   word_of<IS_TRANSPOSED>(x, at + 12, scale, is_e5m2) };
}

/* Where a tile's scale goes, of squares. */
template <bool IS_TRANSPOSED>
static __device__ __forceinline__ float *square_scale(const rounding &r, rounding_tile t)
{
    int64_t first = IS_TRANSPOSED ? t.col : t.row, k = IS_TRANSPOSED ? t.row : t.col;

    return r.scales + first / SIDE * r.scale_stride + k / SIDE;
}

template <bool IS_TRANSPOSED, rounding_way WAY>
static __device__ __forceinline__ void round_tile(const rounding &r, rounding_tile t,
                                                  rounding_shared &shared)
{
    uint16_t(*x)[STRIDE] = shared.x;
    int64_t first = IS_TRANSPOSED ? t.col : t.row, k = IS_TRANSPOSED ? t.row : t.col;
    int64_t line = first + threadIdx.x, block = k / SIDE;
    float scale;

    load_tile(r, t, x);
    if (WAY == ROUND_BY_ONE) {
        scale = *r.scales;
    } else if (WAY == ROUND_SQUARE) {
        scale = e4m3_scale(largest_of_all(largest_of_line<IS_TRANSPOSED>(x), shared.sizes));
        if (threadIdx.x == 0)
            *square_scale<IS_TRANSPOSED>(r, t) = scale;
    } else {
        scale = e4m3_scale(largest_of_line<IS_TRANSPOSED>(x));
        if (line < r.lines)
            r.scales[block * r.scale_stride + line] = scale;
    }
    if (line < r.lines)
        write_line<IS_TRANSPOSED>(x, scale, r.codes + line * r.k + k,
                                  WAY == ROUND_BY_ONE && r.is_e5m2);
}

/* The block's tile: the bits of its largest |x|, at the block's number. */
static __device__ __forceinline__ void measure_tile(const rounding &r, rounding_tile t,
                                                    rounding_shared &shared)
{
    load_tile(r, t, shared.x);
    uint32_t most = largest_of_all(largest_of_line<true>(shared.x), shared.sizes);
    if (threadIdx.x == 0)
        r.most[blockIdx.x] = most;
}

/* Codes that are there: as multipliers want them. */
struct placing_shared {
    uint8_t x[SIDE][SIDE + 4];
};

template <bool IS_TRANSPOSED>
static __device__ __forceinline__ uint32_t codes_of(const uint8_t (*x)[SIDE + 4], int at)
{
    uint32_t word = 0;

    for (int i = 0; i < 4; i++)
        word |= (uint32_t)(IS_TRANSPOSED ? x[at + i][threadIdx.x] : x[threadIdx.x][at + i])
                << 8 * i;
    return word;
}

/* given: in the place of r.x. */
template <bool IS_TRANSPOSED>
static __device__ __forceinline__ void place_tile(const rounding &r, rounding_tile t,
                                                  const uint8_t *given, placing_shared &shared)
{
    uint8_t(*x)[SIDE + 4] = shared.x;
    int64_t first = IS_TRANSPOSED ? t.col : t.row, k = IS_TRANSPOSED ? t.row : t.col;
    int64_t line = first + threadIdx.x, col = t.col + threadIdx.x;

    for (int row = 0; row < SIDE; row++)
        x[row][threadIdx.x] =
            t.row + row < r.rows && col < r.cols ? given[(t.row + row) * r.stride + col] : 0;
    __syncthreads();
    for (int at = 0; at < SIDE && line < r.lines; at += 16)
        *(uint4 *)(r.codes + line * r.k + k + at) = { codes_of<IS_TRANSPOSED>(x, at),
                                                      codes_of<IS_TRANSPOSED>(x, at + 4),
                                                      codes_of<IS_TRANSPOSED>(x, at + 8),
                                                      codes_of<IS_TRANSPOSED>(x, at + 12) };
}

#endif
