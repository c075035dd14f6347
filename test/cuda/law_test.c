/*
 * law_test.c - a training run on a GPU: it follows the CPU's, and equal numerics are equal bits
 * there
 *
 * The small models of test/law, by the kernels, graphs and copies of cuda/. What must not matter:
 * recomputation, poisoned memory, stops, pipelines, zero stages (ranks are threads, each with a
 * view of GPU 0, their collectives staged through the host), and, emulated, the order in which
 * threads run and streams get their turns.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"

static struct law_case small(const char *model, const char *dtype, int n_ranks)
{
    struct law_case c = law_base(model, dtype);

    c.n_ranks = n_ranks;
    c.n_threads = 1;
    c.recompute = "none";
    c.global_batch = 4 * n_ranks;
    return c;
}

static struct law_outcome run_on(const char *device, const struct law_case *c)
{
    const char *wanted = getenv("LMTRAIN_TEST_DEVICE");
    char *kept = wanted ? strdup(wanted) : NULL;

    setenv("LMTRAIN_TEST_DEVICE", device, 1);
    struct law_outcome outcome = law_run(c);
    setenv("LMTRAIN_TEST_DEVICE", kept ? kept : "cuda", 1);
    free(kept);
    return outcome;
}

/* ---- beside the CPU ---- */

#define RESIDUAL "train.residual=bf16"
#define BLOCKS "train.fp8=blockwise"
#define ONE_SCALE "train.fp8=tensor"
#define E5M2 ONE_SCALE "|train.fp8_gradients=e5m2"

struct beside {
    const char *model, *dtype;
    const char *more; /* of the job; or NULL */
    double first;     /* relative, of the first loss and gradient norm: rounding alone */
    double later;     /* of later losses: what a large learning rate makes of it; bf16's on the CPU
                     leaves fp32's as far */
};

/* The stand-ins round where ours do; NVIDIA's libraries round elsewhere, and so four times as
 * far. */
static double slack_of_libraries(void)
{
    struct device *device;
    struct err err;

    if (device_cuda_open(&device, 0, &err))
        fail_msg("%s", err.text);
    double slack = strstr(device->description, "emulated") ? 1 : 4;
    device_destroy(device);
    return slack;
}

static void follows_the_cpu(void **state)
{
    static const struct beside runs[] = {
        { "llama", "fp32", NULL, 1e-5, 2e-5 },      { "llama", "bf16", NULL, 2e-3, 1e-2 },
        { "llama", "fp16", NULL, 3e-4, 2e-3 },      { "gpt2", "fp32", NULL, 1e-5, 2e-5 },
        { "normed", "bf16", NULL, 4e-3, 1e-2 },     { "alibi", "fp32", NULL, 1e-5, 2e-5 },
        { "mixture", "fp32", NULL, 1e-5, 2e-5 },    { "llama", "bf16", RESIDUAL, 4e-3, 1e-2 },
        { "gpt2", "bf16", RESIDUAL, 4e-3, 1e-2 },   { "llama", "bf16", BLOCKS, 8e-3, 2e-2 },
        { "llama", "bf16", ONE_SCALE, 8e-3, 4e-2 }, { "llama", "bf16", E5M2, 8e-3, 4e-2 },
    };

    double slack = slack_of_libraries();

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct law_case c = small(runs[i].model, runs[i].dtype, 1);
        c.tuning = runs[i].more;
        struct law_outcome cpu = run_on("cpu", &c), gpu = run_on("cuda", &c);

        assert_true(cpu.loss[0] != cpu.loss[LAW_STEPS - 1]);
        for (int step = 0; step < LAW_STEPS; step++) {
            double loss = fabs(gpu.loss[step] / cpu.loss[step] - 1);
            double norm = fabs(gpu.norm[step] / cpu.norm[step] - 1);

            if (!(loss <= slack * (step ? runs[i].later : runs[i].first)) ||
                (!step && !(norm <= slack * runs[i].first)))
                fail_msg("%s %s step %d: loss %.9g, on the CPU %.9g; norm %.9g, %.9g", c.model,
                         c.dtype, step, gpu.loss[step], cpu.loss[step], gpu.norm[step],
                         cpu.norm[step]);
        }
    }
}

/* ---- the law ---- */

static void must_equal(const char *what, const struct law_outcome *wanted, const struct law_case *c)
{
    struct law_outcome got = law_run(c);

    law_must_equal(what, wanted, &got);
}

/* The plain run of one rank, which several tests compare with; each is run once. */
static const struct law_outcome *plain(const char *dtype, const char *tuning)
{
    static struct {
        const char *dtype, *tuning;
        struct law_outcome outcome;
    } kept[4];
    static int n_kept;
    struct law_case c = small("llama", dtype, 1);

    for (int i = 0; i < n_kept; i++)
        if (!strcmp(kept[i].dtype, dtype) && kept[i].tuning == tuning)
            return &kept[i].outcome;
    assert_true(n_kept < 4);
    c.tuning = tuning;
    kept[n_kept].dtype = dtype;
    kept[n_kept].tuning = tuning;
    kept[n_kept].outcome = law_run(&c);
    return &kept[n_kept++].outcome;
}

static void one_gpu(void **state)
{
    static const char *const dtypes[] = { "bf16", "fp16", "fp32", "bf16" };
    static const char residual[] = RESIDUAL;

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct law_case c = small("llama", dtypes[i], 1);

        c.tuning = i == 3 ? residual : NULL;
        const struct law_outcome *wanted = plain(dtypes[i], c.tuning);

        c.recompute = "full";
        c.poison = 1;
        must_equal("full, poisoned", wanted, &c);
        c.poison = 0;
        c.recompute = "selective";
        c.stop_after = 3;
        must_equal("selective, stopped and resumed", wanted, &c);
    }
}

/*
 * A race within a block, between blocks or between streams, would show. What is of different things
 * goes together: other bits by any of them are other bits.
 */
static void any_order(void **state)
{
    static const struct {
        const char *order, *blocks, *async, *streams;
    } ways[] = {
        { "backward", "reverse", "", "lazy" },
        { "11", "", "early", "5" },
        { "", "reverse", "early", "" },
    };
    static const char *const names[] = { "LMTRAIN_EMULATE_ORDER", "LMTRAIN_EMULATE_BLOCKS",
                                         "LMTRAIN_EMULATE_ASYNC", "LMTRAIN_EMULATE_STREAMS" };
    const struct law_outcome *wanted = plain("bf16", NULL);
    struct law_case c = small("llama", "bf16", 1);
    char what[64];

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const char *values[] = { ways[i].order, ways[i].blocks, ways[i].async, ways[i].streams };

        for (int k = 0; k < 4; k++)
            if (*values[k])
                setenv(names[k], values[k], 1);
        snprintf(what, sizeof what, "order %s, blocks %s, async %s, streams %s", values[0],
                 values[1], values[2], values[3]);
        must_equal(what, wanted, &c);
        for (int k = 0; k < 4; k++)
            unsetenv(names[k]);
    }
}

#define ALL_AWAY "memory.offload=[activations, optimizer, gradients, weights]|memory.update="

/* Whatever is away, and where the optimizer runs: copies come late or early, in any order. */
static void values_away(void **state)
{
    static const char *const ways[][3] = {
        { ALL_AWAY "device", "early", "lazy" },
        { ALL_AWAY "host", "", "5" },
    };
    struct law_case c = small("llama", "bf16", 1);

    (void)state;
    c.poison = 1;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        c.tuning = ways[i][0];
        if (*ways[i][1])
            setenv("LMTRAIN_EMULATE_ASYNC", ways[i][1], 1);
        setenv("LMTRAIN_EMULATE_STREAMS", ways[i][2], 1);
        must_equal(ways[i][0], plain("bf16", NULL), &c);
        unsetenv("LMTRAIN_EMULATE_ASYNC");
        unsetenv("LMTRAIN_EMULATE_STREAMS");
    }
}

/* Sequences in parts on two ranks: beside the CPU's of the same layout, and by itself. */
static void context_parallel(void **state)
{
    static const char *const kinds[] = { "ulysses", "gather", "ring" };
    double slack = slack_of_libraries();

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct law_case c = small("llama", "fp32", 2);

        c.global_batch = 4;
        c.cp = 2;
        c.cp_kind = kinds[i];
        struct law_outcome cpu = run_on("cpu", &c), gpu = run_on("cuda", &c);
        for (int step = 0; step < LAW_STEPS; step++)
            if (!(fabs(gpu.loss[step] / cpu.loss[step] - 1) <= slack * 2e-5))
                fail_msg("%s step %d: loss %.9g, on the CPU %.9g", kinds[i], step, gpu.loss[step],
                         cpu.loss[step]);
        c.recompute = "full";
        c.poison = 1;
        must_equal(kinds[i], &gpu, &c);
    }
}

/* Rows of tensor-parallel ranks in slices, gathered and summed where others lie between them. What
 * a library's product is chosen to be goes by its shape, so that the numerics are others, if not
 * the bits of this library. */
static void slices(void **state)
{
    static const char *const ways[] = {
        "train.micro_batch=8|parallel.overlap=slices|parallel.overlap_slices=2",
        "train.micro_batch=8|parallel.overlap=halves",
    };
    struct law_case c = small("llama", "bf16", 2);

    (void)state;
    c.tp = 2;
    c.global_batch = 32;
    c.tuning = "train.micro_batch=8|parallel.overlap=none";
    struct law_outcome wanted = law_run(&c);
    c.poison = 1;
    for (int i = 0; i < 2; i++) {
        c.tuning = ways[i];
        struct law_outcome got = law_run(&c);

        got.numerics = wanted.numerics;
        law_must_equal(ways[i], &wanted, &got);
    }
}

static void pipelines(void **state)
{
    static const char *const schedules[] = { "gpipe", "1f1b", "zb-h1" };
    struct law_case c = small("llama", "bf16", 1);

    (void)state;
    for (int i = 0; i < 3; i++) {
        c.n_ranks = c.pp = 2;
        c.schedule = schedules[i];
        must_equal(schedules[i], plain("bf16", NULL), &c);
    }
}

static void zero_stages(void **state)
{
    struct law_case c = small("llama", "bf16", 2);
    char what[32];

    (void)state;
    c.gradient_sum = "early";
    struct law_outcome wanted = law_run(&c);
    for (c.zero = 1; c.zero <= 3; c.zero++) {
        snprintf(what, sizeof what, "zero %d", c.zero);
        must_equal(what, &wanted, &c);
    }
    setenv("LMTRAIN_EMULATE_STREAMS", "lazy", 1);
    c.zero = 3;
    must_equal("zero 3, lazy streams", &wanted, &c);
    unsetenv("LMTRAIN_EMULATE_STREAMS");
}

/* Four ranks as two nodes: staged through the host, where gathers go by node, too, and enqueued. */
static void nodes(void **state)
{
    struct law_case c = small("llama", "bf16", 4);

    (void)state;
    c.gradient_sum = "early";
    struct law_outcome wanted = law_run(&c);
    c.tuning = "parallel.node_ranks=2";
    for (c.zero = 1; c.zero <= 3; c.zero += 2) {
        must_equal("nodes of two", &wanted, &c);
        setenv("LMTRAIN_TEST_NCCL", "1", 1);
        must_equal("nodes of two, enqueued", &wanted, &c);
        unsetenv("LMTRAIN_TEST_NCCL");
    }
}

static void states_in_bf16(void **state)
{
    struct law_case c = small("llama", "bf16", 2);

    (void)state;
    c.tuning = "optimizer.states=bf16";
    struct law_outcome wanted = law_run(&c), cpu = run_on("cpu", &c);
    assert_true(fabs(wanted.loss[LAW_STEPS - 1] / cpu.loss[LAW_STEPS - 1] - 1) < 1e-2);
    c.zero = 1;
    must_equal("zero 1", &wanted, &c);
}

/* Saved from whole masters and read into split ones: two cells of the GPU's each. */
static void split_masters(void **state)
{
    struct law_case c = small("llama", "bf16", 2);

    (void)state;
    c.tuning = "optimizer.weight_rounding=half_away";
    c.stop_after = 2;
    struct law_outcome wanted = law_run(&c);
    c.tuning_after = "optimizer.weight_rounding=half_away|optimizer.masters=split";
    must_equal("split after whole", &wanted, &c);
    c.tuning = c.tuning_after;
    c.zero = 3;
    must_equal("split, zero 3", &wanted, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_cpu),
        cmocka_unit_test(one_gpu),
        cmocka_unit_test(any_order),
        cmocka_unit_test(values_away),
        cmocka_unit_test(context_parallel),
        cmocka_unit_test(slices),
        cmocka_unit_test(pipelines),
        cmocka_unit_test(zero_stages),
        cmocka_unit_test(states_in_bf16),
        cmocka_unit_test(split_masters),
        cmocka_unit_test(nodes),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
