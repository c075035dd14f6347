/*
 * cpu.c - an instance of the CPU backend: what the machine can do, and the table of its kernels
 */
#include "kernels/cpu/cpu_impl.h"

#include <dnnl.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>

/* Of enum dnnl_cpu_isa_t, by bits: each value holds those of the sets it includes, in oneDNN 2
 * and 3. */
enum { DNNL_AVX2_BITS = 0x7, DNNL_AVX512_BITS = 0x27, DNNL_AVX512_BF16_BITS = 0xe7 };

/* What oneDNN may use, which honours ONEDNN_MAX_CPU_ISA, and what the CPU has besides. */
static void detect(struct cpu_kernels *cpu)
{
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();

    cpu->has_avx2 = (isa & DNNL_AVX2_BITS) == DNNL_AVX2_BITS && __builtin_cpu_supports("fma");
    cpu->has_avx512 = (isa & DNNL_AVX512_BITS) == DNNL_AVX512_BITS && cpu->has_avx2;
    cpu->has_avx512_bf16 = (isa & DNNL_AVX512_BF16_BITS) == DNNL_AVX512_BF16_BITS;
    cpu->isa = cpu->has_avx512 ? CPU_ISA_AVX512 : cpu->has_avx2 ? CPU_ISA_AVX2 : CPU_ISA_PLAIN;
}

static void write_identity(struct cpu_kernels *cpu)
{
    const dnnl_version_t *version = dnnl_version();
    const char *isa = "plain";

    if (cpu->has_avx512_bf16)
        isa = "avx512_bf16";
    else if (cpu->has_avx512)
        isa = "avx512";
    else if (cpu->has_avx2)
        isa = "avx2";
    /* What of the instruction set oneDNN uses decides its sums; libm's functions differ by version.
     */
    snprintf(cpu->identity, sizeof cpu->identity, "cpu %s dnnl %d.%d.%d isa %x glibc %s", isa,
             version->major, version->minor, version->patch, (unsigned)dnnl_get_effective_cpu_isa(),
             gnu_get_libc_version());
}

static void cpu_destroy(struct kernels *kernels)
{
    struct cpu_kernels *cpu = cpu_of(kernels);

    for (int i = 0; cpu->streams && i < cpu_n_threads(cpu); i++)
        dnnl_stream_destroy(cpu->streams[i]);
    free(cpu->streams);
    dnnl_engine_destroy(cpu->engine);
    free(cpu);
}

static int create_library_objects(struct cpu_kernels *cpu, struct err *err)
{
    int n_threads = cpu_n_threads(cpu);

    if (dnnl_engine_create(&cpu->engine, dnnl_cpu, 0) != dnnl_success)
        return err_set(err, ERR_DEVICE, "oneDNN gives no CPU engine");
    cpu->streams = calloc((size_t)n_threads, sizeof(struct dnnl_stream *));
    if (!cpu->streams)
        return err_set(err, ERR_DEVICE, "no memory for %d oneDNN streams", n_threads);
    for (int i = 0; i < n_threads; i++)
        if (dnnl_stream_create(&cpu->streams[i], cpu->engine, dnnl_stream_default_flags) !=
            dnnl_success)
            return err_set(err, ERR_DEVICE, "oneDNN gives no stream");
    return 0;
}

static void register_families(struct kernels_backend *table, const struct cpu_kernels *cpu)
{
    cpu_register_linear(table, cpu);
    cpu_register_head(table, cpu);
    cpu_register_embed(table, cpu);
    cpu_register_norm(table, cpu);
    cpu_register_rope(table, cpu);
    cpu_register_attention(table, cpu);
    cpu_register_elementwise(table, cpu);
    cpu_register_dropout(table, cpu);
    cpu_register_optimizer(table, cpu);
}

int kernels_cpu_create(struct kernels **kernels, struct pool *pool, const char **isa_note,
                       struct err *err)
{
    struct cpu_kernels *cpu = calloc(1, sizeof *cpu);

    if (!cpu)
        return err_set(err, ERR_DEVICE, "no memory for the CPU backend");
    cpu->base = (struct kernels){ .backend = &cpu->table, .pool = pool, .identity = cpu->identity };
    cpu->table = (struct kernels_backend){ .name = "cpu", .destroy = cpu_destroy };
    detect(cpu);
    write_identity(cpu);
    if (create_library_objects(cpu, err)) {
        cpu_destroy(&cpu->base);
        return -1;
    }
    register_families(&cpu->table, cpu);
    if (isa_note)
        *isa_note =
            cpu->has_avx512_bf16 ? "" : "no AVX-512 bf16 here: bf16 is stored, fp32 computed";
    *kernels = &cpu->base;
    return 0;
}
