/*
 * fp8_codes.c - what products of fp8 need of their rows is made by the op that makes the rows
 *
 *     F  %26, %27 = rmsnorm %25, ffn_norm.weight
 *     F  %28 = linear_fp8 %26, gate_up.weight
 *     ->
 *     F  %26, %27, %40, %41 = rmsnorm %25, ffn_norm.weight
 *     F  %28 = linear_fp8 %40, gate_up.weight, -, %41
 *
 * Blockwise these are codes and the largest element of each block; with one scale of a tensor the
 * largest element of each row (fp8_scales.c). The op has the rows in registers or in the cache: a
 * product that rounds them itself reads them once more, and twice with one scale. What is rounded
 * is what the op stores, so no bit changes. Products that sum over rows (dw) have blocks along
 * these, and read the rows.
 */
#include "program/passes.h"

/* The op among the first n that writes x, and may round it; -1: there is none. */
static int find_producer(const struct function *f, int n, int x)
{
    for (int i = n - 1; i >= 0; i--) {
        const struct op_info *info = op_info(f->ops[i].kind);

        for (int k = 0; k < info->n_outputs; k++)
            if (f->ops[i].out[k] == x)
                return info->codes_output && k == op_rounded_output(info, f->ops[i].out) ? i : -1;
    }
    return -1;
}

int fp8_most_of_rows(struct program *program, int function, int n, int x)
{
    const struct value v = program->values[x];
    int producer = find_producer(&program->functions[function], n, x);

    if (producer < 0 || v.dtype != DTYPE_BF16)
        return 0;
    struct op op = program->functions[function].ops[producer];
    int most = op_info(op.kind)->codes_output;
    if (!op.out[most]) {
        op.out[most] = program_value(program, v.rows, 1, DTYPE_F32);
        program_change(program, function, producer, &op);
    }
    return op.out[most];
}

static bool reads_rows(const struct op *op)
{
    return (op->kind == OP_LINEAR_FP8 || op->kind == OP_LINEAR_DX_FP8) &&
           op->attributes.fp8 == FP8_BLOCKWISE;
}

/* Where the product is ops[index]. */
static void take_codes(struct program *p, int function, int index)
{
    struct op product = p->functions[function].ops[index];
    const struct value v = p->values[product.in[OPS_FIRST]];
    int producer = find_producer(&p->functions[function], index, product.in[OPS_FIRST]);

    if (producer < 0 || v.dtype != DTYPE_BF16)
        return;
    int n_blocks = (int)((v.cols + OPS_FP8_BLOCK - 1) / OPS_FP8_BLOCK);
    struct op op = p->functions[function].ops[producer];
    int *codes = &op.out[op_info(op.kind)->codes_output - 1];
    if (!codes[0]) {
        codes[0] = program_value(p, v.rows, v.cols, DTYPE_U8);
        codes[1] = program_value(p, v.rows, n_blocks, DTYPE_F32);
        program_change(p, function, producer, &op);
    }
    product.in[OPS_FIRST] = codes[0];
    product.in[ops_fp8_most(product.kind, OPS_FIRST)] = codes[1];
    program_change(p, function, index, &product);
}

void fp8_codes(struct program *program, const struct chunk_functions *chunk)
{
    const int functions[] = { chunk->forward, chunk->backward };

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < program->functions[functions[k]].n_ops; i++)
            if (reads_rows(&program->functions[functions[k]].ops[i]))
                take_codes(program, functions[k], i);
}
