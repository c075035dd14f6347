/*
 * kernels.c - shapes are checked here once, for every backend
 */
#include "kernels/kernels.h"

static int check_operand(const char *kind, const struct op_operand *operand,
                         const struct tensor *tensor, struct err *err)
{
    if (!tensor_given(tensor))
        return 0;
    if ((uintptr_t)tensor->data % dtype_bytes(tensor->dtype) != 0)
        return err_set(err, ERR_FAILED, "%s: %s is at address %p, not a multiple of %s's %zu bytes",
                       kind, operand->name, tensor->data, dtype_name(tensor->dtype),
                       dtype_bytes(tensor->dtype));
    return 0;
}

static int check_memory(const struct op_shape *op, struct err *err)
{
    const struct op_info *info = op_info(op->kind);

    for (int i = 0; i < info->n_inputs; i++)
        if (check_operand(info->name, &info->inputs[i], &op->in[i], err))
            return -1;
    for (int i = 0; i < info->n_outputs; i++)
        if (check_operand(info->name, &info->outputs[i], &op->out[i], err))
            return -1;
    return 0;
}

int kernels_prepare(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    const struct kernel_entry *entry;

    CHECK(call->op.kind < N_OP_KINDS);
    entry = &kernels->backend->entries[call->op.kind];
    call->state = NULL;
    if (!entry->run)
        return err_set(err, ERR_DEVICE, "%s: the %s backend has no kernel for it",
                       op_info(call->op.kind)->name, kernels->backend->name);
    if (op_check(&call->op, err) || check_memory(&call->op, err))
        return -1;
    if (call->scratch && (uintptr_t)call->scratch % 64 != 0)
        return err_set(err, ERR_FAILED, "%s: scratch is at address %p, not a multiple of 64",
                       op_info(call->op.kind)->name, call->scratch);
    return entry->prepare ? entry->prepare(kernels, call, err) : 0;
}

void kernels_release(struct kernels *kernels, struct kernel_call *call)
{
    const struct kernel_entry *entry = &kernels->backend->entries[call->op.kind];

    if (entry->release && call->state)
        entry->release(kernels, call->state);
    call->state = NULL;
}

size_t kernels_scratch_bytes(struct kernels *kernels, const struct op_shape *op)
{
    const struct kernel_entry *entry = &kernels->backend->entries[op->kind];

    return entry->scratch_bytes ? entry->scratch_bytes(kernels, op) : 0;
}

void kernels_choices_print(struct kernels *kernels, struct str *text)
{
    if (kernels->backend->choices_print)
        kernels->backend->choices_print(kernels, text);
}

int kernels_choices_load(struct kernels *kernels, const char *text, struct err *err)
{
    return kernels->backend->choices_load ? kernels->backend->choices_load(kernels, text, err) : 0;
}

void kernels_choices_forget(struct kernels *kernels)
{
    if (kernels->backend->choices_forget)
        kernels->backend->choices_forget(kernels);
}

int kernels_prepare_early(struct kernels *kernels, const struct op_shape *op, int beside,
                          struct err *err)
{
    struct kernel_call call = { .op = *op, .beside = beside };

    if (!kernels_are_gpu(kernels))
        return 0;
    kernels->is_early = true;
    int status = kernels_prepare(kernels, &call, err);
    if (!status && kernels->backend->load)
        kernels->backend->load(kernels, &call);
    if (!status)
        kernels_release(kernels, &call);
    kernels->is_early = false;
    return status;
}

void kernels_destroy(struct kernels *kernels)
{
    if (kernels)
        kernels->backend->destroy(kernels);
}

const char *kernels_identity(struct kernels *kernels)
{
    return kernels->identity;
}

__attribute__((weak)) int kernels_cuda_create(struct kernels **kernels, struct device *device,
                                              struct err *err)
{
    (void)kernels;
    (void)device;
    return err_set(err, ERR_DEVICE, "this lmtrain was built without CUDA (hint: `make CUDA=1`)");
}
