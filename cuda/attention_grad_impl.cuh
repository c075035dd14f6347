/*
 * attention_grad_impl.cuh - what the kernels of attention's gradient share: operands, sizes of
 * tiles and the shared memory that they take, storing a gradient
 */
#ifndef CUDA_ATTENTION_GRAD_IMPL_CUH
#define CUDA_ATTENTION_GRAD_IMPL_CUH

#include "cuda/attention.cuh"

/* Operands of the kernels; delta [T x n_heads] is scratch. */
template <typename T> struct grad_rows {
    rows_of<T> dout, q, k, v, out, dq, dk, dv;
    rows_of<float> lse;
    float *delta;
};

/* ---- sizes ---- */

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

enum { SMALL_BYTES = 99 << 10 }; /* that every GPU since sm_80 has for a block */

/*
 * A block's shared memory by width of heads, and with small tiles where those are for GPUs that
 * have no more than SMALL_BYTES (163 KiB on sm_80, 227 KiB on sm_90). Heads of 256 have none: sm_86
 * and sm_89 refuse their gradient.
 *
 *               32     64    128, small        256
 *   dkv 16 bits 31744  56320 105472,  87552 136192
 *   dq  16 bits 40960  73728 104448,  69632 135168
 *   dkv fp32    37888  70656 136192,  68096 133632
 *   dq  fp32    55296 104448 135168, 101376 133120    (64, small: 87040)
 */
template <typename T, int WIDTH, int SMALL>
constexpr int dkv_bytes = (int)dkv_shape<T, WIDTH, SMALL>::SHARED_BYTES;
template <typename T, int WIDTH, int SMALL>
constexpr int dq_bytes = (int)dq_shape<T, WIDTH, 0, SMALL>::SHARED_BYTES;

static_assert(dkv_bytes<bf16, 32, 0> == 31744 && dkv_bytes<bf16, 64, 0> == 56320, "the table");
static_assert(dkv_bytes<bf16, 128, 0> == 105472 && dkv_bytes<bf16, 128, 1> == 87552, "the table");
static_assert(dq_bytes<bf16, 32, 0> == 40960 && dq_bytes<bf16, 64, 0> == 73728, "the table");
static_assert(dq_bytes<bf16, 128, 0> == 104448 && dq_bytes<bf16, 128, 1> == 69632, "the table");
static_assert(dkv_bytes<bf16, 256, 0> == 136192 && dq_bytes<bf16, 256, 0> == 135168, "the table");
static_assert(dkv_bytes<float, 32, 0> == 37888 && dkv_bytes<float, 64, 0> == 70656, "the table");
static_assert(dkv_bytes<float, 128, 0> == 136192 && dkv_bytes<float, 128, 1> == 68096, "the table");
static_assert(dq_bytes<float, 32, 0> == 55296 && dq_bytes<float, 64, 0> == 104448, "the table");
static_assert(dq_bytes<float, 64, 1> == 87040 && dq_bytes<float, 128, 1> == SMALL_BYTES,
              "the table");
static_assert(dq_bytes<float, 128, 0> == 135168 && dq_bytes<float, 256, 0> == 133120, "the table");
static_assert(dkv_bytes<float, 256, 0> == 133632, "the table");

/* Call f(width_of<1>()) for small tiles where there are some (for heads of up to 128) and the
 * device has no room for others, else f(width_of<0>()). */
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

/* ---- storing ---- */

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

#endif
