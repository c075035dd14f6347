/*
 * families.c - picks the instruction set of the op families
 */
#include "kernels/cpu/families_impl.h"

struct cpu_kernels;

void cpu_register_embed(struct kernels_backend *b, const struct cpu_kernels *k);
void cpu_register_norm(struct kernels_backend *b, const struct cpu_kernels *k);
void cpu_register_rope(struct kernels_backend *b, const struct cpu_kernels *k);
void cpu_register_attention(struct kernels_backend *b, const struct cpu_kernels *k);
void cpu_register_elementwise(struct kernels_backend *b, const struct cpu_kernels *k);
void cpu_register_dropout(struct kernels_backend *b, const struct cpu_kernels *k);
void cpu_register_optimizer(struct kernels_backend *b, const struct cpu_kernels *k);

enum family_isa { FAMILY_BASE, FAMILY_AVX2, FAMILY_AVX512 };

static enum family_isa family_isa(const struct cpu_kernels *k)
{
    (void)k;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return FAMILY_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return FAMILY_AVX2;
    return FAMILY_BASE;
}

#define FILL(name) \
    do { \
        switch (family_isa(k)) { \
        case FAMILY_AVX512: \
            name##_avx512(b); \
            break; \
        case FAMILY_AVX2: \
            name##_avx2(b); \
            break; \
        case FAMILY_BASE: \
            name##_base(b); \
            break; \
        } \
    } while (0)

void cpu_register_embed(struct kernels_backend *b, const struct cpu_kernels *k)
{
    FILL(cpu_fill_embed);
}

void cpu_register_norm(struct kernels_backend *b, const struct cpu_kernels *k)
{
    FILL(cpu_fill_norm);
}

void cpu_register_rope(struct kernels_backend *b, const struct cpu_kernels *k)
{
    FILL(cpu_fill_rope);
}

void cpu_register_attention(struct kernels_backend *b, const struct cpu_kernels *k)
{
    FILL(cpu_fill_attention);
    FILL(cpu_fill_attention_cached);
}

void cpu_register_elementwise(struct kernels_backend *b, const struct cpu_kernels *k)
{
    FILL(cpu_fill_elementwise);
}

void cpu_register_dropout(struct kernels_backend *b, const struct cpu_kernels *k)
{
    FILL(cpu_fill_dropout);
}

void cpu_register_optimizer(struct kernels_backend *b, const struct cpu_kernels *k)
{
    FILL(cpu_fill_optimizer);
}
