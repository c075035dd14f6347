/*
 * cpu.c - an instance of the CPU backend: what the machine can do, and the table of its kernels
 */
#include "kernels/cpu/cpu_impl.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/gemm_code_impl.h"

static const char *const isa_names[] = { "plain", "avx2", "avx512", "avx512_bf16" };
enum { ISA_PLAIN, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16, N_ISAS };

static int machine_isa(void)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return ISA_PLAIN;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return ISA_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? ISA_AVX512_BF16 : ISA_AVX512;
}

/* The most that LMTRAIN_CPU_ISA allows. */
static int allowed_isa(int *isa, struct err *err)
{
    const char *name = getenv("LMTRAIN_CPU_ISA");

    *isa = N_ISAS - 1;
    if (!name || !*name)
        return 0;
    for (*isa = 0; *isa < N_ISAS; (*isa)++)
        if (!strcmp(name, isa_names[*isa]))
            return 0;
    return err_set(err, ERR_CONFIG, "LMTRAIN_CPU_ISA is %s, not plain, avx2, avx512 or avx512_bf16",
                   name);
}

static int detect(struct cpu_kernels *cpu, struct err *err)
{
    int isa = machine_isa(), allowed;

    if (allowed_isa(&allowed, err))
        return -1;
    isa = isa < allowed ? isa : allowed;
    cpu->isa = isa >= ISA_AVX512 ? CPU_ISA_AVX512 : isa == ISA_AVX2 ? CPU_ISA_AVX2 : CPU_ISA_PLAIN;
    cpu->has_avx512_bf16 = isa == ISA_AVX512_BF16;
    /* libm's functions differ by version, plain products by what the compiler may use. */
    snprintf(cpu->identity, sizeof cpu->identity, "cpu %s gemm 1%s attention 2 glibc %s",
             isa_names[isa], cpu->isa == CPU_ISA_PLAIN && cpu_gemm_plain_fuses() ? " fused" : "",
             gnu_get_libc_version());
    return 0;
}

static void cpu_destroy(struct kernels *kernels)
{
    free(cpu_of(kernels));
}

static void register_families(struct kernels_backend *table)
{
    cpu_register_linear(table);
    cpu_register_linear_fp8(table);
    cpu_register_fp8_weights(table);
    cpu_register_head(table);
    cpu_register_cross_entropy(table);
    cpu_register_embed(table);
    cpu_register_norm(table);
    cpu_register_rope(table);
    cpu_register_head_norm(table);
    cpu_register_normalize_rows(table);
    cpu_register_attention(table);
    cpu_register_elementwise(table);
    cpu_register_router(table);
    cpu_register_pages(table);
    cpu_register_gate_rows(table);
    cpu_register_dispatch(table);
    cpu_register_expert_linear(table);
    cpu_register_experts_fp8(table);
    cpu_register_dropout(table);
    cpu_register_limit_choices(table);
    cpu_register_lora(table);
    cpu_register_gradient_norm(table);
    cpu_register_optimizer(table);
    cpu_register_muon(table);
    cpu_register_compress(table);
    cpu_register_ema(table);
    cpu_register_row_codec(table);
    cpu_register_attention_received(table);
    cpu_register_top_k(table);
    cpu_register_low_rank(table);
    cpu_register_low_rank_basis(table);
}

int kernels_cpu_create(struct kernels **kernels, struct pool *pool, const char **isa_note,
                       struct err *err)
{
    struct cpu_kernels *cpu = calloc(1, sizeof *cpu);

    if (!cpu)
        return err_set(err, ERR_DEVICE, "no memory for the CPU backend");
    cpu->base = (struct kernels){
        .backend = &cpu->table, .device = device_host(), .pool = pool, .identity = cpu->identity
    };
    cpu->table = (struct kernels_backend){ .name = "cpu", .destroy = cpu_destroy };
    if (detect(cpu, err)) {
        cpu_destroy(&cpu->base);
        return -1;
    }
    register_families(&cpu->table);
    if (isa_note)
        *isa_note = cpu->has_avx512_bf16
                        ? ""
                        : "this CPU has no AVX-512 bf16: bf16 is stored, but computed in fp32";
    *kernels = &cpu->base;
    return 0;
}
