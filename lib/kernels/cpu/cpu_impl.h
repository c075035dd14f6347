/*
 * cpu_impl.h - what the op families of the CPU backend share
 *
 * Each family file (linear.c, norm.c, ...) fills its rows of the instance's table in its
 * cpu_register_ function. Work is cut into tiles that follow from shapes alone; a tile's bits
 * depend on the tile alone. Per-thread memory comes from the call's scratch, never from malloc.
 *
 * Instruction sets: a family writes its inner function once, as plain loops over small fixed
 * arrays, always_inline, and CPU_VARIANTS compiles it for each instruction set. As contraction is
 * off and fused operations are written out (__builtin_fmaf), all variants have equal bits; only
 * GEMMs differ: gemm_code_impl.h says where.
 */
#ifndef KERNELS_CPU_CPU_IMPL_H
#define KERNELS_CPU_CPU_IMPL_H

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "kernels/kernels.h"

enum cpu_isa { CPU_ISA_PLAIN, CPU_ISA_AVX2, CPU_ISA_AVX512 };

struct cpu_kernels {
    struct kernels base;
    struct kernels_backend table; /* base.backend: filled by the families */
    enum cpu_isa isa;             /* the machine's best that LMTRAIN_CPU_ISA allows */
    bool has_avx512_bf16;         /* besides AVX-512 */
    char identity[128];
};

static inline struct cpu_kernels *cpu_of(struct kernels *kernels)
{
    return (struct cpu_kernels *)kernels;
}

static inline int cpu_n_threads(const struct cpu_kernels *cpu)
{
    return pool_n_threads(cpu->base.pool);
}

/* First element of a row. The caller knows the dtype. */
static inline void *cpu_row(const struct tensor *tensor, int64_t row)
{
    return (char *)tensor->data + (size_t)(row * tensor->stride) * dtype_bytes(tensor->dtype);
}

/*
 * AddressSanitizer's check of a whole range, by the callers of inner loops that are compiled
 * without it (the Makefile's unchecked_of); nothing in other builds.
 */
static inline void cpu_check_range(const void *start, int64_t n_bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    const volatile char *bad = __asan_region_is_poisoned((void *)start, (size_t)n_bytes);

    if (bad)
        (void)*bad;
#else
    (void)start, (void)n_bytes;
#endif
}

#define CPU_INLINE static inline __attribute__((always_inline))
#define CPU_TARGET_AVX2 __attribute__((target("avx2,fma")))
/* gcc would rather use half of such a register; clang has no such word, nor that wish. */
#ifdef __clang__
#define CPU_WIDE ""
#else
#define CPU_WIDE ",prefer-vector-width=512"
#endif
#define CPU_TARGET_AVX512 \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq" CPU_WIDE)))

/*
 * CPU_VARIANTS(silu_rows, (const float *x, float *y, int64_t n), (x, y, n))
 * makes silu_rows_plain, _avx2 and _avx512 out of CPU_INLINE void silu_rows_body(...), and the
 * table silu_rows[isa] of them: silu_rows[cpu->isa](x, y, n).
 */
#define CPU_VARIANTS(name, parameters, arguments) \
    static void name##_plain parameters \
    { \
        name##_body arguments; \
    } \
    CPU_TARGET_AVX2 static void name##_avx2 parameters \
    { \
        name##_body arguments; \
    } \
    CPU_TARGET_AVX512 static void name##_avx512 parameters \
    { \
        name##_body arguments; \
    } \
    static void(*const name[]) parameters = { name##_plain, name##_avx2, name##_avx512 }

void cpu_register_linear(struct kernels_backend *table);
void cpu_register_linear_fp8(struct kernels_backend *table);
void cpu_register_fp8_weights(struct kernels_backend *table);
void cpu_register_head(struct kernels_backend *table);
void cpu_register_cross_entropy(struct kernels_backend *table);
void cpu_register_embed(struct kernels_backend *table);
void cpu_register_norm(struct kernels_backend *table);
void cpu_register_rope(struct kernels_backend *table);
void cpu_register_head_norm(struct kernels_backend *table);
void cpu_register_normalize_rows(struct kernels_backend *table);
void cpu_register_attention(struct kernels_backend *table);
void cpu_register_elementwise(struct kernels_backend *table);
void cpu_register_router(struct kernels_backend *table);
void cpu_register_pages(struct kernels_backend *table);
void cpu_register_gate_rows(struct kernels_backend *table);
void cpu_register_dispatch(struct kernels_backend *table);
void cpu_register_expert_linear(struct kernels_backend *table);
void cpu_register_experts_fp8(struct kernels_backend *table);
void cpu_register_dropout(struct kernels_backend *table);
void cpu_register_limit_choices(struct kernels_backend *table);
void cpu_register_lora(struct kernels_backend *table);
void cpu_register_compress(struct kernels_backend *table);
void cpu_register_ema(struct kernels_backend *table);
void cpu_register_row_codec(struct kernels_backend *table);
void cpu_register_attention_received(struct kernels_backend *table);
void cpu_register_top_k(struct kernels_backend *table);
void cpu_register_low_rank(struct kernels_backend *table);
void cpu_register_low_rank_basis(struct kernels_backend *table);
void cpu_register_gradient_norm(struct kernels_backend *table);
void cpu_register_optimizer(struct kernels_backend *table);
void cpu_register_muon(struct kernels_backend *table);

#endif
