/*
 * mma.cuh - tensor cores by warp-wide instructions (sm_80 and later), and what feeds them
 *
 * mma: D[16 x 8] += A[16 x 16] B[16 x 8], 16-bit operands, fp32 sums (PTX ISA, "Matrix fragments
 * for mma.m16n8k16"). With g = lane / 4 and t = lane % 4 a lane holds, two elements a register, the
 * lower index in the lower half:
 *
 *   a[0] A[g][2t, 2t+1]    a[1] A[g+8][2t ..]    a[2] A[g][2t+8 ..]    a[3] A[g+8][2t+8 ..]
 *   b[0] B[2t, 2t+1][g]    b[1] B[2t+8 ..][g]
 *   d[0], d[1] D[g][2t, 2t+1]                    d[2], d[3] D[g+8][2t, 2t+1]
 *
 * The order of the sum over k within an instruction is the hardware's; it is the same each time.
 */
#ifndef CUDA_MMA_CUH
#define CUDA_MMA_CUH

#include "cuda/cuda.cuh"

#ifdef LMTRAIN_EMULATE

template <typename T> static inline float mma_half(uint32_t pair, int upper)
{
    T x = { (uint16_t)(upper ? pair >> 16 : pair) };

    return to_float(x);
}

/* The two exchanges after one another keep both their results readable. */
template <typename T> static inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    uint64_t upper[32], lower[32], right[32];
    int lane = (int)emulate_lane(), g = lane / 4, t = lane % 4;
    uint64_t rows = (uint64_t)a[1] << 32 | a[0], rows8 = (uint64_t)a[3] << 32 | a[2];

    memcpy(upper, emulate_exchange(0xffffffffu, rows), sizeof upper);
    memcpy(lower, emulate_exchange(0xffffffffu, rows8), sizeof lower);
    memcpy(right, emulate_exchange(0xffffffffu, (uint64_t)b[1] << 32 | b[0]), sizeof right);
    for (int i = 0; i < 4; i++) {
        int row8 = i / 2, col = 2 * t + i % 2;
        float sum = 0;

        for (int k = 0; k < 16; k++) {
            uint64_t x = (k < 8 ? upper : lower)[g * 4 + k % 8 / 2];
            uint64_t y = right[col * 4 + k % 8 / 2];
            float p = mma_half<T>((uint32_t)(row8 ? x >> 32 : x), k % 2);
            float q = mma_half<T>((uint32_t)(k < 8 ? y : y >> 32), k % 2);

            sum += p * q;
        }
        d[i] += sum;
    }
}

static inline void mma_matrix(uint32_t *registers, const void *row, int n, int transposed)
{
    const void *rows[32];
    int lane = (int)emulate_lane();
    const uint64_t *all = emulate_exchange(0xffffffffu, (uint64_t)(uintptr_t)row);

    for (int i = 0; i < 32; i++)
        rows[i] = (const void *)(uintptr_t)all[i];
    for (int m = 0; m < n; m++) {
        uint16_t pair[2];

        for (int i = 0; i < 2; i++) {
            int r = transposed ? 2 * (lane % 4) + i : lane / 4;
            int c = transposed ? lane / 4 : 2 * (lane % 4) + i;

            pair[i] = ((const uint16_t *)rows[m * 8 + r])[c];
        }
        registers[m] = (uint32_t)pair[1] << 16 | pair[0];
    }
}

static inline void copy_async16(void *shared, const void *global, int given)
{
    if (given)
        memcpy(shared, global, 16);
    else
        memset(shared, 0, 16);
}

static inline void copy_async4(void *shared, const void *global, int given)
{
    if (given)
        memcpy(shared, global, 4);
    else
        memset(shared, 0, 4);
}

static inline void copy_async_commit(void)
{
}

template <int N> static inline void copy_async_wait(void)
{
}

#else

template <typename T>
static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4], const uint32_t b[2]);

template <>
__device__ __forceinline__ void mma<bf16>(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void mma<fp16>(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ unsigned shared_address(const void *shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

static __device__ __forceinline__ void mma_matrix(uint32_t *r, const void *row, int n,
                                                  int transposed)
{
    unsigned at = shared_address(row);

    if (n == 4 && transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else if (n == 4)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(at)
                     : "memory");
}

/* 16 bytes from global to shared memory, both aligned to 16; zeros where not given. */
static __device__ __forceinline__ void copy_async16(void *shared, const void *global, int given)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
                 "l"(global), "r"(given ? 16 : 0)
                 : "memory");
}

/* 4 bytes, likewise. */
static __device__ __forceinline__ void copy_async4(void *shared, const void *global, int given)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(shared)),
                 "l"(global), "r"(given ? 4 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Until at most N of this thread's groups are under way. */
template <int N> static __device__ __forceinline__ void copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

#endif

/*
 * Four 8 x 8 matrices of 16-bit elements from shared memory (ldmatrix): lane i names row i % 8 of
 * matrix i / 8, 16 bytes at a multiple of 16; register m of a lane holds elements [g][2t, 2t+1] of
 * matrix m, or with _transposed [2t, 2t+1][g]. _pair: two matrices, named by lanes 0..15.
 */
static __device__ __forceinline__ void load_matrices(uint32_t r[4], const void *row)
{
    mma_matrix(r, row, 4, 0);
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], const void *row)
{
    mma_matrix(r, row, 4, 1);
}

static __device__ __forceinline__ void load_matrix_pair(uint32_t r[2], const void *row)
{
    mma_matrix(r, row, 2, 0);
}

static __device__ __forceinline__ void load_matrix_pair_transposed(uint32_t r[2], const void *row)
{
    mma_matrix(r, row, 2, 1);
}

#endif
