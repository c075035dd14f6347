/*
 * kernel_case.c - operands and scratch with canaries
 */
#include "support/kernel_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/test_device.h"

#define CANARY 0x5a
#define N_CANARIES 256

static char *element(const struct tensor *tensor, int64_t row, int64_t col)
{
    return (char *)tensor->data + (size_t)(row * tensor->stride + col) * dtype_bytes(tensor->dtype);
}

static size_t memory_bytes(const struct tensor *tensor)
{
    return (size_t)(tensor->rows * tensor->stride) * dtype_bytes(tensor->dtype);
}

void case_make(struct tensor *tensor, int64_t rows, int64_t cols, int64_t pad, enum dtype dtype)
{
    *tensor = (struct tensor){ .rows = rows, .cols = cols, .stride = cols + pad, .dtype = dtype };
    tensor->data = malloc(memory_bytes(tensor) + N_CANARIES);
    assert_non_null(tensor->data);
    memset(tensor->data, CANARY, memory_bytes(tensor) + N_CANARIES);
    for (int64_t row = 0; row < rows; row++)
        memset(element(tensor, row, 0), 0, (size_t)cols * dtype_bytes(dtype));
}

double case_get(const struct tensor *tensor, int64_t row, int64_t col)
{
    const void *at = element(tensor, row, col);

    switch (tensor->dtype) {
    case DTYPE_F32:
        return (double)*(const float *)at;
    case DTYPE_BF16:
        return (double)bf16_to_float(*(const uint16_t *)at);
    case DTYPE_F16:
        return (double)fp16_to_float(*(const uint16_t *)at);
    case DTYPE_F64:
        return *(const double *)at;
    case DTYPE_I32:
        return *(const int32_t *)at;
    case DTYPE_I64:
        return (double)*(const int64_t *)at;
    default:
        fail_msg("no such element: %s", dtype_name(tensor->dtype));
        return 0;
    }
}

void case_set(struct tensor *tensor, int64_t row, int64_t col, double value)
{
    void *at = element(tensor, row, col);

    switch (tensor->dtype) {
    case DTYPE_F32:
        *(float *)at = (float)value;
        break;
    case DTYPE_BF16:
        *(uint16_t *)at = bf16_from_float((float)value);
        break;
    case DTYPE_F16:
        *(uint16_t *)at = fp16_from_float((float)value);
        break;
    case DTYPE_F64:
        *(double *)at = value;
        break;
    case DTYPE_I32:
        *(int32_t *)at = (int32_t)value;
        break;
    case DTYPE_I64:
        *(int64_t *)at = (int64_t)value;
        break;
    default:
        fail_msg("no such element: %s", dtype_name(tensor->dtype));
    }
}

/* splitmix64 */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void case_fill(struct tensor *tensor, uint64_t seed)
{
    for (int64_t row = 0; row < tensor->rows; row++)
        for (int64_t col = 0; col < tensor->cols; col++) {
            uint64_t bits = mix(seed ^ mix((uint64_t)(row * tensor->cols + col)));

            case_set(tensor, row, col, (double)(bits >> 11) * 0x1p-52 - 1.0);
        }
}

void case_poison(struct tensor *tensor)
{
    int is_integer = tensor->dtype == DTYPE_I32 || tensor->dtype == DTYPE_I64;

    for (int64_t row = 0; row < tensor->rows; row++)
        for (int64_t col = 0; col < tensor->cols; col++)
            case_set(tensor, row, col, is_integer ? -1 : (double)NAN);
}

void case_copy(struct tensor *to, const struct tensor *from)
{
    case_make(to, from->rows, from->cols, 0, from->dtype);
    for (int64_t row = 0; row < from->rows; row++)
        memcpy(element(to, row, 0), element(from, row, 0),
               (size_t)from->cols * dtype_bytes(from->dtype));
}

void case_free(struct tensor *tensor)
{
    free(tensor->data);
    *tensor = (struct tensor){ 0 };
}

void case_free_op(struct op_shape *op)
{
    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        case_free(&op->in[i]);
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        case_free(&op->out[i]);
}

int case_equal(const struct tensor *a, const struct tensor *b)
{
    for (int64_t row = 0; row < a->rows; row++)
        if (memcmp(element(a, row, 0), element(b, row, 0),
                   (size_t)a->cols * dtype_bytes(a->dtype)) != 0)
            return 0;
    return 1;
}

/* ---- canaries ---- */

static void assert_canaries(const void *from, size_t bytes, const char *what)
{
    const unsigned char *at = from;

    for (size_t i = 0; i < bytes; i++)
        if (at[i] != CANARY)
            fail_msg("%s: byte %zu outside of it was written", what, i);
}

static void assert_operand_whole(const struct tensor *tensor, const char *what)
{
    size_t pad = (size_t)(tensor->stride - tensor->cols) * dtype_bytes(tensor->dtype);

    if (!tensor_given(tensor))
        return;
    for (int64_t row = 0; row < tensor->rows; row++)
        assert_canaries(element(tensor, row, tensor->cols), pad, what);
    assert_canaries((char *)tensor->data + memory_bytes(tensor), N_CANARIES, what);
}

void case_run(const struct op_shape *op, int n_threads, int first)
{
    const struct op_info *info = op_info(op->kind);
    struct test_extent in[OPS_MAX_INPUTS], out[OPS_MAX_OUTPUTS];

    for (int i = 0; i < OPS_MAX_INPUTS; i++)
        in[i] = (struct test_extent){ op->in[i].data, memory_bytes(&op->in[i]) + N_CANARIES };
    for (int i = 0; i < OPS_MAX_OUTPUTS; i++)
        out[i] = (struct test_extent){ op->out[i].data, memory_bytes(&op->out[i]) + N_CANARIES };
    test_device_run(op, in, out, n_threads, first);
    for (int i = 0; i < info->n_inputs; i++)
        assert_operand_whole(&op->in[i], info->inputs[i].name);
    for (int i = 0; i < info->n_outputs; i++)
        assert_operand_whole(&op->out[i], info->outputs[i].name);
}

/* Whether the CPU's backend, as LMTRAIN_CPU_ISA leaves it, names this instruction set. */
static int backend_is_of(const char *isa)
{
    struct kernels *kernels = NULL;
    struct pool *pool;
    struct err err;
    char word[32];

    if (pool_create(&pool, 1, NULL, &err) || kernels_cpu_create(&kernels, pool, NULL, &err))
        fail_msg("%s", err.text);
    snprintf(word, sizeof word, " %s ", isa);
    int is = strstr(kernels_identity(kernels), word) != NULL;
    kernels_destroy(kernels);
    pool_destroy(pool);
    return is;
}

int case_has_bf16(void)
{
    return backend_is_of("avx512_bf16");
}

int case_each_isa(int (*tests)(void))
{
    static const char *const isas[] = { "avx512_bf16", "avx512", "avx2", "plain" };
    static const char *const orders[] = { "forward", "backward", "7", "8" };
    int n_failed = 0;

    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        pid_t pid;
        int status;

        fflush(NULL);
        pid = fork();
        if (pid == 0) {
            setenv("LMTRAIN_CPU_ISA", isas[i], 1);
            setenv("LMTRAIN_EMULATE_ORDER", orders[i], 1); /* of an emulated GPU's threads */
            setenv("LMTRAIN_EMULATE_ASYNC", i % 2 ? "early" : "late", 1);
            int is_new = test_device_is_cuda() || backend_is_of(isas[i]);
            printf("LMTRAIN_CPU_ISA=%s%s\n", isas[i], is_new ? "" : ": not of this machine");
            exit(is_new && tests() ? 1 : 0);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "failed with LMTRAIN_CPU_ISA=%s\n", isas[i]);
            n_failed++;
        }
    }
    return n_failed;
}
