/*
 * kernels.cu - an instance of the CUDA backend: the table of its kernels on one device
 */
#include "cuda/attention.cuh"
#include "cuda/cuda.cuh"
#include "cuda/gemm.cuh"

#include <stdio.h>
#include <stdlib.h>

static void cuda_kernels_destroy(struct kernels *kernels)
{
    cuda_gemm_destroy(cuda_of(kernels));
    cudnn_attention_close(cuda_of(kernels));
    free(cuda_of(kernels));
}

/* Scratch is somewhere, as it will be: some launchers choose by that. Nothing is read there. */
static void load(struct kernels *kernels, const struct kernel_call *call)
{
    const struct kernel_entry *entry = &kernels->backend->entries[call->op.kind];
    struct kernel_call foreseen = *call;

    foreseen.scratch = (void *)((uintptr_t)1 << 40);
    cuda_of(kernels)->device->is_loading = 1;
    entry->run(kernels, &foreseen, 0);
    entry->run(kernels, &foreseen, KERNELS_FIRST);
    cuda_of(kernels)->device->is_loading = 0;
}

static size_t scratch_of(struct kernels *, const struct op_shape *op)
{
    return gpu_scratch_bytes(op);
}

static void register_families(struct kernels_backend *table)
{
    static void (*const families[])(struct kernels_backend *) = {
        cuda_register_elementwise,
        cuda_register_norm,
        cuda_register_rope,
        cuda_register_head_norm,
        cuda_register_normalize_rows,
        cuda_register_embed,
        cuda_register_dropout,
        cuda_register_gradient_norm,
        cuda_register_optimizer,
        cuda_register_router,
        cuda_register_dispatch,
        cuda_register_linear,
        cuda_register_expert_linear,
        cuda_register_experts_fp8,
        cuda_register_lora,
        cuda_register_head,
        cuda_register_cross_entropy,
        cuda_register_attention,
        cuda_register_attention_cached,
        cuda_register_router_grad,
        cuda_register_gate_rows,
        cuda_register_pages,
        cuda_register_limit_choices,
        cuda_register_compress,
        cuda_register_top_k,
        cuda_register_muon,
        cuda_register_low_rank,
        cuda_register_linear_fp8,
        cuda_register_fp8_weights,
        cuda_register_ema,
        cuda_register_row_codec,
    };

    for (auto family : families)
        family(table);
    for (auto &entry : table->entries)
        entry.scratch_bytes = scratch_of;
}

/* What of the machine and libraries decides the bits. */
static void describe(struct cuda_kernels *cuda)
{
    const struct cudaDeviceProp *p = &cuda->device->properties;
    char cublaslt[32];

    char attention[64];

    cudnn_attention_describe(cuda, attention, sizeof attention);
    cuda_gemm_describe(cuda, cublaslt, sizeof cublaslt);
    snprintf(cuda->identity, sizeof cuda->identity,
             "cuda sm_%d%d %d multiprocessors kernels 1 cublaslt %s %s", p->major, p->minor,
             p->multiProcessorCount, cublaslt, attention);
}

extern "C" int kernels_cuda_create(struct kernels **kernels, struct device *device, struct err *err)
{
    struct cuda_kernels *cuda = (struct cuda_kernels *)calloc(1, sizeof *cuda);

    if (!cuda)
        return err_set(err, ERR_DEVICE, "out of host memory");
    cuda->device = cuda_device_of(device);
    cuda->stream = cuda_stream_of(cuda->device, DEVICE_COMPUTE);
    cuda->table.name = "cuda";
    cuda->table.destroy = cuda_kernels_destroy;
    cuda->table.traffic = cuda_traffic();
    cuda->table.choices_print = cuda_gemm_choices_print;
    cuda->table.choices_load = cuda_gemm_choices_load;
    cuda->table.load = load;
    cuda->table.choices_forget = cuda_gemm_choices_forget;
    cuda->base.backend = &cuda->table;
    cuda->base.device = device;
    cuda->base.identity = cuda->identity;
    register_families(&cuda->table);
    describe(cuda);
    *kernels = &cuda->base;
    return 0;
}
