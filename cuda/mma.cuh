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
 *
 * mma_e4m3: D[16 x 8] += A[16 x 32] B[32 x 8], codes of e4m3 (sm_89 and later; "Matrix fragments
 * for mma.m16n8k32"): registers hold what they do above, of pairs of codes in the place of elements.
 * sm_90 has it through conversions to fp16, at that rate: its own rate is wgmma's alone.
 */
#ifndef CUDA_MMA_CUH
#define CUDA_MMA_CUH

#include "cuda/e4m3.cuh"

#ifdef LMTRAIN_EMULATE

template <typename T> static inline float mma_half(uint32_t pair, int upper)
{
    T x = { (uint16_t)(upper ? pair >> 16 : pair) };

    return to_float(x);
}

struct mma_registers {
    float *d;
    const uint32_t *a, *b;
};

/* The whole product of a warp, of the registers of its lanes. */
template <typename T> static void mma_of_warp(void *const *lanes)
{
    float a[16][16], b[16][8];

    for (int lane = 0; lane < 32; lane++) {
        const mma_registers *r = (const mma_registers *)lanes[lane];
        int g = lane / 4, t = lane % 4;

        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < 2; k++) {
                a[g][2 * t + 8 * k + i] = mma_half<T>(r->a[2 * k], i);
                a[g + 8][2 * t + 8 * k + i] = mma_half<T>(r->a[2 * k + 1], i);
                b[2 * t + 8 * k + i][g] = mma_half<T>(r->b[k], i);
            }
        }
    }
    for (int row = 0; row < 16; row++) {
        float sum[8] = { 0 };

        for (int k = 0; k < 16; k++)
            for (int col = 0; col < 8; col++)
                sum[col] += a[row][k] * b[k][col];
        for (int col = 0; col < 8; col++) {
            const mma_registers *r = (const mma_registers *)lanes[row % 8 * 4 + col / 2];

            r->d[row / 8 * 2 + col % 2] += sum[col];
        }
    }
}

template <typename T> static inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma_registers registers = { d, a, b };

    emulate_meet(0xffffffffu, &registers, mma_of_warp<T>);
}

static void mma_e4m3_of_warp(void *const *lanes)
{
    float a[16][32], b[32][8];

    for (int lane = 0; lane < 32; lane++) {
        const mma_registers *r = (const mma_registers *)lanes[lane];
        int g = lane / 4, t = lane % 4;

        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 2; k++) {
                a[g][4 * t + 16 * k + i] = e4m3_value((uint8_t)(r->a[2 * k] >> 8 * i));
                a[g + 8][4 * t + 16 * k + i] = e4m3_value((uint8_t)(r->a[2 * k + 1] >> 8 * i));
                b[4 * t + 16 * k + i][g] = e4m3_value((uint8_t)(r->b[k] >> 8 * i));
            }
    }
    for (int row = 0; row < 16; row++)
        for (int col = 0; col < 8; col++) {
            const mma_registers *r = (const mma_registers *)lanes[row % 8 * 4 + col / 2];
            float sum = 0;

            for (int k = 0; k < 32; k++)
                sum += a[row][k] * b[k][col];
            r->d[row / 8 * 2 + col % 2] += sum;
        }
}

static inline void mma_e4m3(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma_registers registers = { d, a, b };

    emulate_meet(0xffffffffu, &registers, mma_e4m3_of_warp);
}

static inline void mma_matrix(uint32_t *registers, const void *row, int n, int transposed)
{
    const void *rows[32];
    int lane = (int)emulate_lane();

    if (lane < n * 8)
        emulate_check_shared(row, 16, "ldmatrix");
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
    emulate_copy_async(shared, global, 16, given);
}

static inline void copy_async4(void *shared, const void *global, int given)
{
    emulate_copy_async(shared, global, 4, given);
}

static inline void copy_async_commit(void)
{
    emulate_copy_commit();
}

template <int N> static inline void copy_async_wait(void)
{
    emulate_copy_wait(N);
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

static __device__ __forceinline__ void mma_e4m3(float d[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 890
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    (void)d, (void)a, (void)b;
    __trap(); /* prepare has refused it */
#endif
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
