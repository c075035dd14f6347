/*
 * algo_cache_test.c - algorithms of products: printed, loaded, refused; and products in a graph
 *
 * On the emulated GPU, whose algorithms are eight words: a magic one, the kind (1 wants multiples
 * of 16 bytes, 2 does not), the number of parts that k is cut into, then zeros.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "base/rng.h"
#include "support/test_device.h"

enum { T = 32, K = 64, N = 48, SCRATCH_BYTES = 1 << 20 };

/* Of the hexadecimal digits of an algorithm: the lowest byte of a word. */
#define DIGITS_OF_WORD(i) ((i)*16)
#define KIND DIGITS_OF_WORD(1)
#define PARTS DIGITS_OF_WORD(2)

struct fixture {
    struct kernels *kernels;
    void *memory[8], *scratch;
    int n;
};

static void open_fixture(struct fixture *f)
{
    struct err err;

    *f = (struct fixture){ .kernels = test_device_open(1) };
    assert_int_equal(
        f->kernels->device->ops->allocate(f->kernels->device, SCRATCH_BYTES, &f->scratch, &err), 0);
}

static void close_fixture(struct fixture *f)
{
    struct device *device = f->kernels->device;

    for (int i = 0; i < f->n; i++)
        device->ops->release(device, f->memory[i]);
    device->ops->release(device, f->scratch);
    test_device_close(f->kernels);
}

/* All ones. */
static struct tensor operand(struct fixture *f, int64_t rows, int64_t cols)
{
    struct tensor t = { .rows = rows, .cols = cols, .stride = cols, .dtype = DTYPE_F32 };
    struct device *device = f->kernels->device;
    float *ones = malloc((size_t)(rows * cols) * sizeof *ones);
    struct err err;

    for (int64_t i = 0; i < rows * cols; i++)
        ones[i] = 1;
    assert_int_equal(device->ops->allocate(device, (size_t)(rows * cols) * 4, &t.data, &err), 0);
    device->ops->copy(device, DEVICE_COMPUTE, t.data, ones, (size_t)(rows * cols) * 4);
    f->memory[f->n++] = t.data;
    free(ones);
    return t;
}

/* Products are of two runs of rows, of a quarter each, with as many between them. */
static int is_in_runs;

static void put_in_runs(struct tensor *t)
{
    int64_t n = t->rows * t->cols;

    *t = (struct tensor){ t->data, 2, n / 4, n / 2, t->dtype };
}

static struct kernel_call make_call(struct fixture *f, enum op_kind kind)
{
    struct kernel_call call = { .op = { .kind = kind }, .scratch = f->scratch };
    int is_dw = kind == OP_LINEAR_DW;

    call.op.in[0] = operand(f, T, is_dw ? N : K);
    call.op.in[1] = operand(f, is_dw ? T : N, K);
    call.op.out[0] = operand(f, is_dw ? N : T, is_dw ? K : N);
    if (is_in_runs) {
        call.op.attributes.run_rows = T / 4;
        put_in_runs(&call.op.in[0]);
        put_in_runs(&call.op.out[0]);
    }
    assert_true(kernels_scratch_bytes(f->kernels, &call.op) <= SCRATCH_BYTES);
    return call;
}

/* What is chosen where `text` was loaded before ("" for nothing); the caller's. */
static char *choices_of(const char *text, enum op_kind kind)
{
    struct fixture f;
    struct kernel_call call;
    struct str printed = { 0 };
    struct err err = { 0 };

    open_fixture(&f);
    call = make_call(&f, kind);
    if (kernels_choices_load(f.kernels, text, &err) || kernels_prepare(f.kernels, &call, &err))
        fail_msg("%s", err.text);
    kernels_choices_print(f.kernels, &printed);
    kernels_release(f.kernels, &call);
    close_fixture(&f);
    return printed.data;
}

static void test_printed_is_taken(void **state)
{
    char *first = choices_of("", OP_LINEAR), *again = choices_of(first, OP_LINEAR), *digits, *other;

    (void)state;
    assert_string_equal(first, again);
    assert_non_null(strstr(first, "product nt 32x48x64 fp32 fp32 ld 64 64 48 align 16 16 16"));
    digits = strrchr(first, ' ') + 1;
    assert_int_equal(strlen(digits), 128 + 1);
    assert_true(digits[KIND + 1] == '1');
    digits[KIND + 1] = '2'; /* which the library would not choose here */
    other = choices_of(first, OP_LINEAR);
    assert_string_equal(first, other);
    free(other);
    free(again);
    free(first);
}

/* What is chosen for a product that is prepared early, where this algorithm is slow. */
static char kind_of_early(const char *slow, int beside)
{
    struct fixture f;
    struct str printed = { 0 };
    struct err err = { 0 };

    setenv("LMTRAIN_EMULATE_SLOW", slow, 1);
    open_fixture(&f);
    struct kernel_call call = make_call(&f, OP_LINEAR);
    struct device *device = f.kernels->device;
    size_t before = device->ops->memory(device).free_bytes;

    if (kernels_prepare_early(f.kernels, &call.op, beside, &err))
        fail_msg("%s", err.text);
    assert_int_equal(device->ops->memory(device).free_bytes, before);
    kernels_choices_print(f.kernels, &printed);
    char kind = strrchr(str_text(&printed), ' ')[1 + KIND + 1];
    kernels_choices_forget(f.kernels);
    str_clear(&printed);
    kernels_choices_print(f.kernels, &printed);
    assert_int_equal(printed.length, 0);
    str_release(&printed);
    close_fixture(&f);
    unsetenv("LMTRAIN_EMULATE_SLOW");
    return kind;
}

/* Prepared early, the fastest is taken, of tiny products only if that is asked for. */
static void test_measured(void **state)
{
    (void)state;
    assert_true(kind_of_early("1", 0) == '1');
    setenv("LMTRAIN_CUBLASLT_CHOICE", "measured", 1);
    assert_true(kind_of_early("1", 0) == '2');
    assert_true(kind_of_early("2", 0) == '1');
    assert_true(kind_of_early("1", 2) == '2');
    assert_true(kind_of_early("2", 2) == '1');
    setenv("LMTRAIN_CUBLASLT_CHOICE", "first", 1);
    assert_true(kind_of_early("1", 0) == '1');
    unsetenv("LMTRAIN_CUBLASLT_CHOICE");
}

/* Of runs of rows, likewise: theirs is another line than that of as many rows together. */
static void test_runs(void **state)
{
    (void)state;
    is_in_runs = 1;
    char *first = choices_of("", OP_LINEAR), *again = choices_of(first, OP_LINEAR);
    assert_string_equal(first, again);
    assert_non_null(strstr(first, "product nt 8x48x64 fp32 fp32 ld 64 64 48 "));
    assert_non_null(strstr(first, " runs 2 at 1024 768 "));
    setenv("LMTRAIN_CUBLASLT_CHOICE", "measured", 1);
    assert_true(kind_of_early("1", 0) == '2');
    assert_true(kind_of_early("2", 2) == '1');
    unsetenv("LMTRAIN_CUBLASLT_CHOICE");
    is_in_runs = 0;
    free(again);
    free(first);
}

/* ---- products beside collectives ---- */

/* One that a target would change is not taken, however fast, for a product that will have one; of a
 * tiny one, which is not measured, layouts would get different bits. */
static void test_measured_with_target(void **state)
{
    static const char *const makes[] = { "1 bits", "1 refused" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        setenv("LMTRAIN_EMULATE_TARGET", makes[i], 1);
        setenv("LMTRAIN_CUBLASLT_CHOICE", "measured", 1);
        assert_true(kind_of_early("2", 0) == '1');
        assert_true(kind_of_early("2", 2) == '2');
        unsetenv("LMTRAIN_CUBLASLT_CHOICE");
        assert_true(kind_of_early("2", 2) == '1');
    }
    unsetenv("LMTRAIN_EMULATE_TARGET");
}

static void fill_random(struct fixture *f, const struct tensor *t, uint64_t place)
{
    float *x = malloc((size_t)tensor_elements(t) * sizeof *x);

    for (int64_t i = 0; i < tensor_elements(t); i++) {
        struct rng_block b = rng_at(1, RNG_TEST, place, (uint64_t)i);

        x[i] = (float)rng_normal(b.word[0], b.word[1]);
    }
    f->kernels->device->ops->copy(f->kernels->device, DEVICE_COMPUTE, t->data, x,
                                  (size_t)tensor_elements(t) * sizeof *x);
    free(x);
}

/* Whether a product of random numbers has other bits with so many multiprocessors left to others.
 * target: what the emulated library makes of it, when it is prepared and when it is run. */
static int differs_beside(int beside, int is_early, const char *prepared, const char *run)
{
    struct fixture f;
    struct err err = { 0 };
    float alone[T * N], other[T * N];

    open_fixture(&f);
    struct device *device = f.kernels->device;
    struct kernel_call call = make_call(&f, OP_LINEAR);
    fill_random(&f, &call.op.in[LINEAR_X], 1);
    fill_random(&f, &call.op.in[LINEAR_W], 2);
    setenv("LMTRAIN_EMULATE_TARGET", prepared, 1);
    call.beside = beside;
    if ((is_early && kernels_prepare_early(f.kernels, &call.op, beside, &err)) ||
        kernels_prepare(f.kernels, &call, &err))
        fail_msg("%s", err.text);
    setenv("LMTRAIN_EMULATE_TARGET", run, 1);
    for (int i = 0; i < 2; i++) {
        call.beside = i ? beside : 0;
        kernels_run(f.kernels, &call, KERNELS_FIRST);
        device->ops->copy(device, DEVICE_COMPUTE, i ? other : alone, call.op.out[LINEAR_Y].data,
                          sizeof alone);
        if (device->ops->wait(device, DEVICE_COMPUTE, &err))
            fail_msg("%s", err.text);
    }
    unsetenv("LMTRAIN_EMULATE_TARGET");
    kernels_release(f.kernels, &call);
    close_fixture(&f);
    return memcmp(alone, other, sizeof alone) != 0;
}

/* A target that would change bits, that the library has no algorithm with, or that was not
 * tried, is not given to it. */
static void test_bits_beside(void **state)
{
    (void)state;
    assert_false(differs_beside(2, 1, "1 bits", "1 bits"));
    assert_false(differs_beside(2, 1, "1 refused", "1 refused"));
    assert_false(differs_beside(2, 0, "", "1 bits"));
    assert_false(differs_beside(2, 1, "", ""));
    /* One that holds is: the library changes its mind here. */
    assert_true(differs_beside(2, 1, "", "1 bits"));
    assert_true(differs_beside(100, 1, "", "1 bits"));
}

/* ---- lines ---- */

/* Equal products share a choice; lines are in order of their text, and those of others are left
 * alone. */
static void test_lines(void **state)
{
    struct fixture f;
    struct kernel_call calls[3];
    struct str printed = { 0 };
    struct err err;
    char *forward = choices_of("", OP_LINEAR), *dw = choices_of("", OP_LINEAR_DW);

    (void)state;
    open_fixture(&f);
    assert_int_equal(kernels_choices_load(f.kernels, "attention 7 of 9\n\nproductivity\n", &err),
                     0);
    calls[0] = make_call(&f, OP_LINEAR_DW);
    calls[1] = make_call(&f, OP_LINEAR);
    calls[2] = calls[1];
    for (int i = 0; i < 3; i++)
        assert_int_equal(kernels_prepare(f.kernels, &calls[i], &err), 0);
    assert_true(calls[1].state == calls[2].state);
    kernels_choices_print(f.kernels, &printed);
    assert_int_equal(printed.length, strlen(forward) + strlen(dw));
    assert_true(str_starts_with(printed.data, forward));
    assert_string_equal(printed.data + strlen(forward), dw);
    str_release(&printed);
    close_fixture(&f);
    free(forward);
    free(dw);
}

/* What is loaded and never prepared is printed again: a later start may need it. */
static void test_unused_stay(void **state)
{
    struct fixture f;
    struct str printed = { 0 };
    struct err err;
    char *text = choices_of("", OP_LINEAR);

    (void)state;
    open_fixture(&f);
    assert_int_equal(kernels_choices_load(f.kernels, text, &err), 0);
    kernels_choices_print(f.kernels, &printed);
    assert_string_equal(printed.data, text);
    str_release(&printed);
    close_fixture(&f);
    free(text);
}

static void expect_refused(const char *text, const char *words)
{
    struct fixture f;
    struct kernel_call call;
    struct err err = { 0 };

    open_fixture(&f);
    call = make_call(&f, OP_LINEAR);
    assert_int_equal(kernels_choices_load(f.kernels, text, &err), 0);
    assert_int_equal(kernels_prepare(f.kernels, &call, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    if (!strstr(err.text, words))
        fail_msg("%s", err.text);
    close_fixture(&f);
}

static void test_unfit_choices(void **state)
{
    char *text = choices_of("", OP_LINEAR), *digits = strrchr(text, ' ') + 1;

    (void)state;
    digits[PARTS + 1] = '4'; /* the library lets k be split, we do not */
    expect_refused(text, "linear: product nt 32x48x64");
    digits[PARTS + 1] = '1';
    digits[0] = '0'; /* of another library */
    expect_refused(text, "the stored choice cannot be used: CUBLAS_STATUS_NOT_SUPPORTED");
    free(text);
}

static void expect_unreadable(const char *text, enum err_code code, const char *words)
{
    struct fixture f;
    struct err err = { 0 };

    open_fixture(&f);
    assert_int_equal(kernels_choices_load(f.kernels, text, &err), -1);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, words))
        fail_msg("%s", err.text);
    close_fixture(&f);
}

static void test_unreadable_choices(void **state)
{
    char *text = choices_of("", OP_LINEAR), *version = strstr(text, "cublaslt 13");
    char *gpu = strstr(text, " sm_");
    size_t length = strlen(text);

    (void)state;
    version[9] = '9';
    expect_unreadable(text, ERR_DEVICE,
                      "was chosen for cublaslt 930000 sm_90 4, here is cublaslt "
                      "130000 sm_90 4");
    version[9] = '1';
    gpu[4] = '8';
    expect_unreadable(text, ERR_DEVICE,
                      "was chosen for cublaslt 130000 sm_80 4, here is cublaslt "
                      "130000 sm_90 4");
    gpu[4] = '9';
    text[length - 2] = 'g';
    expect_unreadable(text, ERR_FAILED, "is not a valid choice of a product");
    text[length - 2] = '\n';
    expect_unreadable(text, ERR_FAILED, "is not a valid choice of a product");
    expect_unreadable("product of two numbers\n", ERR_FAILED, "is not a valid choice of a product");
    expect_unreadable("product : plain 00", ERR_FAILED, "is not a valid choice of a product");
    free(text);
}

static void test_too_late(void **state)
{
    struct fixture f;
    struct kernel_call call;
    struct err err;
    char *text = choices_of("", OP_LINEAR);

    (void)state;
    open_fixture(&f);
    call = make_call(&f, OP_LINEAR);
    assert_int_equal(kernels_prepare(f.kernels, &call, &err), 0);
    assert_int_equal(kernels_choices_load(f.kernels, text, &err), 0);
    (strrchr(text, ' ') + 1)[KIND + 1] = '2';
    assert_int_equal(kernels_choices_load(f.kernels, text, &err), -1);
    assert_non_null(strstr(err.text, "is prepared already"));
    close_fixture(&f);
    free(text);
}

static void test_without_library(void **state)
{
    struct fixture f;
    struct kernel_call call;
    struct str printed = { 0 };
    struct err err = { 0 };

    (void)state;
    setenv("LMTRAIN_EMULATE_WITHOUT", "cublasLt", 1);
    open_fixture(&f);
    assert_non_null(strstr(kernels_identity(f.kernels), "cublaslt none"));
    call = make_call(&f, OP_LINEAR);
    assert_int_equal(kernels_prepare(f.kernels, &call, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_non_null(strstr(err.text, "linear: matrix products need cuBLASLt: libcublasLt.so.13"));
    kernels_choices_print(f.kernels, &printed);
    assert_int_equal(printed.length, 0);
    close_fixture(&f);
    unsetenv("LMTRAIN_EMULATE_WITHOUT");
}

/* A product that was recorded is done as often as its graph is launched, and no sooner. */
static void test_recorded(void **state)
{
    struct fixture f;
    struct kernel_call call;
    struct device *device;
    struct device_graph *graph;
    struct err err;
    float sums[N * K];

    (void)state;
    open_fixture(&f);
    device = f.kernels->device;
    call = make_call(&f, OP_LINEAR_DW);
    assert_int_equal(kernels_prepare(f.kernels, &call, &err), 0);
    assert_int_equal(device->ops->graph_begin(device, &err), 0);
    kernels_run(f.kernels, &call, 0);
    assert_int_equal(device->ops->graph_end(device, &graph, &err), 0);
    for (int n = 0; n <= 3; n++) {
        device->ops->copy(device, DEVICE_COMPUTE, sums, call.op.out[0].data, sizeof sums);
        assert_int_equal(device->ops->wait(device, DEVICE_COMPUTE, &err), 0);
        for (int i = 0; i < N * K; i++)
            assert_true(sums[i] == (float)(1 + n * T));
        device->ops->graph_launch(device, graph);
    }
    device->ops->graph_destroy(device, graph);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printed_is_taken),   cmocka_unit_test(test_lines),
        cmocka_unit_test(test_unused_stay),        cmocka_unit_test(test_unfit_choices),
        cmocka_unit_test(test_unreadable_choices), cmocka_unit_test(test_too_late),
        cmocka_unit_test(test_without_library),    cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_measured),           cmocka_unit_test(test_measured_with_target),
        cmocka_unit_test(test_bits_beside),        cmocka_unit_test(test_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
