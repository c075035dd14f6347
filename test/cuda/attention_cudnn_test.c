/*
 * Attention as cuDNN takes it: operands of two bytes, whose rows begin at multiples of 16 bytes.
 * LMTRAIN_ATTENTION=cudnn makes it an error where cuDNN does not do a call, so what passes here
 * went that way.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_case.h"
#include "support/op_facts.h"
#include "support/test_device.h"

struct form {
    int n_heads, n_kv_heads, head_dim, sequences, seq_len, window;
    int gap; /* columns behind each row; 0: none */
};

/* One head; groups; rows beyond a tile of 32 and heads, too; windows of one key, and beyond all. */
static const struct form forms[] = {
    { 1, 1, 8, 1, 2, 0, 0 },   { 2, 2, 16, 3, 33, 0, 8 },  { 6, 2, 24, 2, 70, 0, 0 },
    { 4, 1, 64, 1, 65, 9, 8 }, { 35, 5, 8, 2, 40, 1, 24 }, { 4, 4, 128, 1, 48, 1000, 0 },
};

#define N_FORMS (int)(sizeof forms / sizeof *forms)

static struct op_case *case_of(enum op_kind kind, const struct form *f, enum dtype act)
{
    struct op_attributes a = { .n_heads = f->n_heads,
                               .n_kv_heads = f->n_kv_heads,
                               .head_dim = f->head_dim,
                               .seq_len = f->seq_len,
                               .window = f->window,
                               .scale = 1 / sqrt(f->head_dim) };
    struct op_case *c = op_case_create(kind, &a);

    c->dense = !f->gap;
    c->gap = f->gap;
    op_case_attention(c, (int64_t)f->sequences * f->seq_len, act);
    return c;
}

static void check_form(enum op_kind kind, const struct form *f, enum dtype act)
{
    struct op_case *c = case_of(kind, f, act);

    if (kind == OP_ATTENTION_GRAD)
        op_case_fill_saved(c, case_of(OP_ATTENTION, f, act));
    op_case_check(c, 8e-3); /* P and dS are rounded to two bytes */
    op_case_destroy(c);
}

static void test_forms(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMS; f++) {
        check_form(OP_ATTENTION, &forms[f], DTYPE_BF16);
        check_form(OP_ATTENTION_GRAD, &forms[f], DTYPE_BF16);
        check_form(OP_ATTENTION, &forms[f], DTYPE_F16);
        check_form(OP_ATTENTION_GRAD, &forms[f], DTYPE_F16);
    }
}

/*
 * In pieces of two sequences, one, a group of heads of the only one, and of each of two. The
 * stand-in's workspace is 64 bytes a score: cuDNN's two bytes would want larger shapes, so that on
 * a real GPU these are whole.
 */
static void test_pieces(void **state)
{
    static const struct form cut[] = {
        { 1, 1, 8, 4, 64, 0, 8 },
        { 4, 2, 16, 3, 60, 0, 0 },
        { 8, 4, 8, 1, 64, 7, 8 },
        { 6, 2, 8, 2, 68, 0, 0 },
    };

    (void)state;
    setenv("LMTRAIN_CUDNN_WORKSPACE_MIB", "1", 1);
    for (int f = 0; f < (int)(sizeof cut / sizeof *cut); f++) {
        check_form(OP_ATTENTION, &cut[f], DTYPE_BF16);
        check_form(OP_ATTENTION_GRAD, &cut[f], DTYPE_BF16);
    }
    unsetenv("LMTRAIN_CUDNN_WORKSPACE_MIB");
}

/* Returns what preparing says, in err. */
static int prepare(struct op_case *c, struct err *err)
{
    struct kernels *kernels = test_device_open(1);
    struct kernel_call call = { .op = c->op };
    int result = kernels_prepare(kernels, &call, err);

    if (!result)
        kernels_release(kernels, &call);
    test_device_close(kernels);
    return result;
}

/* What cuDNN is not asked for is an error where it alone may be asked, and says why. */
static void test_unfit(void **state)
{
    static const struct form f = { 2, 1, 8, 1, 10, 0, 0 }, odd = { 2, 1, 12, 1, 10, 0, 0 };
    static const struct form unaligned = { 2, 1, 8, 1, 10, 0, 3 };
    struct op_case *cases[] = { case_of(OP_ATTENTION, &f, DTYPE_F32),
                                case_of(OP_ATTENTION, &odd, DTYPE_BF16),
                                case_of(OP_ATTENTION_GRAD, &unaligned, DTYPE_BF16) };
    const char *const words[] = { "two bytes", "multiple of 8", "not aligned" };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct err err = { 0 };

        assert_int_equal(prepare(cases[i], &err), -1);
        assert_non_null(strstr(err.text, words[i]));
        assert_non_null(strstr(err.text, "LMTRAIN_ATTENTION is cudnn"));
        setenv("LMTRAIN_ATTENTION", "auto", 1);
        assert_int_equal(prepare(cases[i], &err), 0);
        setenv("LMTRAIN_ATTENTION", "cudnn", 1);
        op_case_destroy(cases[i]);
    }
}

/* By cuDNN: the own kernels keep nothing for a call. */
static int is_taken(const struct op_shape *op)
{
    struct kernels *kernels = test_device_open(1);
    struct kernel_call call = { .op = *op };
    struct err err;

    if (kernels_prepare(kernels, &call, &err))
        fail_msg("%s", err.text);
    int taken = call.state != NULL;
    kernels_release(kernels, &call);
    test_device_close(kernels);
    return taken;
}

static int is_emulated(void)
{
    struct kernels *kernels = test_device_open(1);
    int result = strstr(kernels->device->description, "emulated") != NULL;

    test_device_close(kernels);
    return result;
}

/* A workspace that is too large, the wish, or no library (a real one cannot be hidden): the own
 * kernels, and the identity says so. */
static void test_own_instead(void **state)
{
    static const char *const variables[] = { "LMTRAIN_CUDNN_WORKSPACE_MIB", "LMTRAIN_ATTENTION",
                                             "LMTRAIN_EMULATE_WITHOUT" };
    static const char *const values[] = { "0", "own", "cudnn" };
    struct op_case *c = case_of(OP_ATTENTION, &forms[2], DTYPE_BF16);

    (void)state;
    setenv("LMTRAIN_ATTENTION", "auto", 1);
    assert_true(is_taken(&c->op));
    for (int i = 0; i < (is_emulated() ? 3 : 2); i++) {
        struct kernels *kernels;

        setenv(variables[i], values[i], 1);
        assert_false(is_taken(&c->op));
        op_case_run(c, 1, RUN_FIRST);
        kernels = test_device_open(1);
        assert_non_null(strstr(kernels_identity(kernels), i ? "attention own" : "workspace 0"));
        test_device_close(kernels);
        unsetenv(variables[i]);
    }
    setenv("LMTRAIN_ATTENTION", "cudnn", 1);
    op_case_destroy(c);
}

/* Whether a GPU of that memory does it by cuDNN. */
static int is_taken_with(const struct op_shape *op, const char *gib)
{
    struct device *device;
    struct kernels *kernels = NULL;
    struct kernel_call call = { .op = *op };
    struct err err;

    setenv("LMTRAIN_EMULATE_MEMORY_GIB", gib, 1);
    if (device_cuda_open(&device, 0, &err) || kernels_cuda_create(&kernels, device, &err) ||
        kernels_prepare(kernels, &call, &err))
        fail_msg("%s", err.text);
    int taken = call.state != NULL;
    kernels_release(kernels, &call);
    kernels_destroy(kernels);
    device_destroy(device);
    unsetenv("LMTRAIN_EMULATE_MEMORY_GIB");
    return taken;
}

/*
 * The smallest piece may want up to a sixteenth of the GPU's memory: 1.6 GB of a stand-in's 64
 * bytes a score is too much for 8 GiB, and not for 80.
 */
static void test_limit_by_memory(void **state)
{
    struct op_case *c =
        case_of(OP_ATTENTION_GRAD, &(struct form){ 1, 1, 8, 1, 5120, 0, 0 }, DTYPE_BF16);

    (void)state;
    setenv("LMTRAIN_ATTENTION", "auto", 1);
    if (is_emulated()) {
        assert_false(is_taken_with(&c->op, "8"));
        assert_true(is_taken_with(&c->op, "80"));
        setenv("LMTRAIN_CUDNN_WORKSPACE_MIB", "1024", 1);
        assert_false(is_taken_with(&c->op, "80"));
        unsetenv("LMTRAIN_CUDNN_WORKSPACE_MIB");
    }
    setenv("LMTRAIN_ATTENTION", "cudnn", 1);
    op_case_destroy(c);
}

/* What a prepared call has taken of a GPU of that memory. */
static size_t taken_of(const struct op_shape *op, const char *gib)
{
    struct device *device;
    struct kernels *kernels = NULL;
    struct kernel_call call = { .op = *op };
    struct err err;

    setenv("LMTRAIN_EMULATE_MEMORY_GIB", gib, 1);
    if (device_cuda_open(&device, 0, &err) || kernels_cuda_create(&kernels, device, &err))
        fail_msg("%s", err.text);
    size_t before = device->ops->memory(device).free_bytes;
    if (kernels_prepare(kernels, &call, &err))
        fail_msg("%s", err.text);
    size_t after = device->ops->memory(device).free_bytes;
    kernels_release(kernels, &call);
    kernels_destroy(kernels);
    device_destroy(device);
    unsetenv("LMTRAIN_EMULATE_MEMORY_GIB");
    return before - after;
}

/* Where the smallest piece wants more than others may, larger ones that would be let are not taken:
 * two sequences of 1.2 GiB of a stand-in's 64 bytes a score each, together less than 80 GiB let. */
static void test_smallest_piece(void **state)
{
    struct op_case *c =
        case_of(OP_ATTENTION_GRAD, &(struct form){ 1, 1, 8, 2, 4500, 0, 0 }, DTYPE_BF16);
    size_t piece = (size_t)4500 * 4500 * 64;

    (void)state;
    if (is_emulated())
        assert_in_range(taken_of(&c->op, "80"), piece, piece + piece / 4);
    op_case_destroy(c);
}

/* What of the device's memory is gone after early calls, in this order. */
static size_t taken_early(struct op_case *const *cases, int n)
{
    struct kernels *kernels = test_device_open(1);
    struct device *device = kernels->device;
    size_t before = device->ops->memory(device).free_bytes;
    struct err err;

    for (int i = 0; i < n; i++)
        if (kernels_prepare_early(kernels, &cases[i]->op, 0, &err))
            fail_msg("%s", err.text);
    size_t after = device->ops->memory(device).free_bytes;
    test_device_close(kernels);
    assert_true(after < before);
    return before - after;
}

/* The room of a small call makes way for a larger one's: the calls that stay share that. */
static void test_room_grows(void **state)
{
    struct op_case *cases[] = {
        case_of(OP_ATTENTION, &(struct form){ 1, 1, 8, 1, 10, 0, 0 }, DTYPE_BF16),
        case_of(OP_ATTENTION, &(struct form){ 1, 1, 8, 1, 700, 0, 0 }, DTYPE_BF16),
        case_of(OP_ATTENTION_GRAD, &(struct form){ 1, 1, 8, 1, 1400, 0, 0 }, DTYPE_BF16),
    };

    (void)state;
    if (is_emulated())
        assert_int_equal(taken_early(cases, 3), taken_early(cases + 2, 1));
    for (int i = 0; i < 3; i++)
        op_case_destroy(cases[i]);
}

/* Operands of the device that a test gives its own addresses. */
static void *device_bytes(struct kernels *kernels, size_t n_bytes)
{
    struct device *device = kernels->device;
    struct err err;
    void *memory;

    if (device->ops->allocate(device, n_bytes, &memory, &err))
        fail_msg("%s", err.text);
    return memory;
}

static void to_device(struct kernels *kernels, void *to, const struct tensor *from)
{
    kernels->device->ops->copy(kernels->device, DEVICE_COMPUTE, to, from->data,
                               (size_t)(from->rows * from->stride) * dtype_bytes(from->dtype));
}

enum { N_SLOTS = 70 }; /* more than a call keeps packs for */

/*
 * A prepared call whose operands move from run to run, as slots of a pipeline do, and one that a
 * graph replays on other contents.
 */
static void test_slots_and_graphs(void **state)
{
    static const struct form f = { 2, 1, 8, 2, 5, 0, 0 };
    struct op_case *c = case_of(OP_ATTENTION, &f, DTYPE_BF16);
    struct tensor *in = &c->op.in[0], *out = &c->op.out[0], *lse = &c->op.out[1];
    size_t in_bytes = (size_t)(in->rows * in->stride) * 2;
    size_t out_bytes = (size_t)(out->rows * out->stride) * 2;
    size_t lse_bytes = (size_t)(lse->rows * lse->stride) * 4;
    struct kernels *kernels;
    struct kernel_call call = { .op = c->op };
    struct device_graph *graph;
    char *ins, *outs, got[2048], wanted[2048];
    struct err err;

    (void)state;
    assert_true(in_bytes % 16 == 0 && out_bytes % 16 == 0 && out_bytes <= sizeof got);
    op_case_run(c, 1, RUN_FIRST);
    memcpy(wanted, out->data, out_bytes);
    kernels = test_device_open(1);
    ins = device_bytes(kernels, N_SLOTS * in_bytes);
    outs = device_bytes(kernels, N_SLOTS * out_bytes);
    call.op.out[1].data = device_bytes(kernels, lse_bytes);
    call.scratch = device_bytes(kernels, kernels_scratch_bytes(kernels, &c->op) + 64);
    call.op.in[0].data = ins;
    call.op.out[0].data = outs;
    for (int i = 1; i < 3; i++) {
        const struct tensor *t = &c->op.in[i];

        call.op.in[i].data = device_bytes(kernels, (size_t)(t->rows * t->stride) * 2);
        to_device(kernels, call.op.in[i].data, t);
    }
    assert_int_equal(kernels_prepare(kernels, &call, &err), 0);
    for (int run = 0; run < 3 * N_SLOTS; run++) {
        call.op.in[0].data = ins + (size_t)(run % N_SLOTS) * in_bytes;
        call.op.out[0].data = outs + (size_t)(run % N_SLOTS) * out_bytes;
        to_device(kernels, call.op.in[0].data, in);
        kernels_run(kernels, &call, 0);
        kernels->device->ops->copy(kernels->device, DEVICE_COMPUTE, got, call.op.out[0].data,
                                   out_bytes);
        assert_int_equal(kernels->device->ops->wait(kernels->device, DEVICE_COMPUTE, &err), 0);
        assert_memory_equal(got, wanted, out_bytes);
    }
    assert_int_equal(kernels->device->ops->graph_begin(kernels->device, &err), 0);
    kernels_run(kernels, &call, 0);
    assert_int_equal(kernels->device->ops->graph_end(kernels->device, &graph, &err), 0);
    for (int contents = 0; contents < 2; contents++) {
        for (int64_t col = 0; contents && col < in->cols; col++)
            tensor_set(in, 3, col, 0.25 * (double)(col % 7) - 0.5);
        op_case_run(c, 1, RUN_FIRST);
        to_device(kernels, call.op.in[0].data, in);
        kernels->device->ops->graph_launch(kernels->device, graph);
        kernels->device->ops->copy(kernels->device, DEVICE_COMPUTE, got, call.op.out[0].data,
                                   out_bytes);
        assert_int_equal(kernels->device->ops->wait(kernels->device, DEVICE_COMPUTE, &err), 0);
        assert_memory_equal(got, out->data, out_bytes);
        assert_int_equal(memcmp(got, wanted, out_bytes) != 0, contents);
    }
    kernels->device->ops->graph_destroy(kernels->device, graph);
    kernels_release(kernels, &call);
    for (int i = 1; i < 3; i++)
        kernels->device->ops->release(kernels->device, call.op.in[i].data);
    kernels->device->ops->release(kernels->device, ins);
    kernels->device->ops->release(kernels->device, outs);
    kernels->device->ops->release(kernels->device, call.op.out[1].data);
    kernels->device->ops->release(kernels->device, call.scratch);
    test_device_close(kernels);
    op_case_destroy(c);
}

enum { N_RANKS = 4, N_TIMES = 100 };

struct planner {
    const struct op_shape *ops[2];
    int failed;
    struct err err;
};

/* A rank of its own, as the threads of test/support/law_rig.c are. */
static void *plan_often(void *argument)
{
    struct planner *p = argument;
    struct device *device;
    struct kernels *kernels;

    for (int i = 0; i < N_TIMES && !p->failed; i++) {
        p->failed = test_device_create(&device, &kernels, NULL, &p->err) < 0;
        for (int k = 0; k < 2 && !p->failed; k++) {
            struct kernel_call call = { .op = *p->ops[k] };

            p->failed = kernels_prepare(kernels, &call, &p->err) < 0;
            if (!p->failed)
                kernels_release(kernels, &call);
        }
        kernels_destroy(kernels);
        device_destroy(device);
    }
    return NULL;
}

/* One that cuDNN fails would take the own kernels, and have other bits than its peers. */
static void test_ranks_at_once(void **state)
{
    struct op_case *forward = case_of(OP_ATTENTION, &forms[2], DTYPE_BF16);
    struct op_case *grad = case_of(OP_ATTENTION_GRAD, &forms[2], DTYPE_BF16);
    struct planner planners[N_RANKS];
    pthread_t threads[N_RANKS];

    (void)state;
    if (!is_emulated())
        skip();
    for (int i = 0; i < N_RANKS; i++) {
        planners[i] = (struct planner){ .ops = { &forward->op, &grad->op } };
        assert_int_equal(pthread_create(&threads[i], NULL, plan_often, &planners[i]), 0);
    }
    for (int i = 0; i < N_RANKS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < N_RANKS; i++)
        if (planners[i].failed)
            fail_msg("%s", planners[i].err.text);
    op_case_destroy(forward);
    op_case_destroy(grad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),           cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_unfit),           cmocka_unit_test(test_own_instead),
        cmocka_unit_test(test_limit_by_memory), cmocka_unit_test(test_smallest_piece),
        cmocka_unit_test(test_room_grows),      cmocka_unit_test(test_slots_and_graphs),
        cmocka_unit_test(test_ranks_at_once),
    };

    setenv("LMTRAIN_ATTENTION", "cudnn", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
