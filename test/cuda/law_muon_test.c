/*
 * law_muon_test.c - whole trainings by Muon on a GPU: they follow the CPU's, and whatever shards
 * and owners of matrices there are, the bits are the same
 *
 * Beside that no bit may depend on stops, poisoned memory, and, emulated, the order of streams.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"
#include "support/law_rig.h"

/* Few rows and layers: an emulated GPU is slow. */
#define MUON "model.n_layers=2|data.seq_len=8|optimizer.name=muon"

static struct law_case small(const char *model, const char *dtype, int n_ranks)
{
    struct law_case c = law_base(model, dtype);

    c.n_ranks = n_ranks;
    c.n_threads = 1;
    c.global_batch = 4 * n_ranks;
    c.gradient_sum = "early";
    c.tuning = MUON;
    return c;
}

static struct law_outcome on_the_cpu(const struct law_case *c)
{
    setenv("LMTRAIN_TEST_DEVICE", "cpu", 1);
    struct law_outcome outcome = law_run(c);
    setenv("LMTRAIN_TEST_DEVICE", "cuda", 1);
    return outcome;
}

/* Matrices are multiplied in bf16, whatever the run's dtype is: what rounding leaves of a singular
 * value grows with each of Newton and Schulz's steps. */
static void follows_the_cpu(void **state)
{
    static const char *const dtypes[] = { "fp32", "bf16" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct law_case c = small(i ? "mixture" : "llama", dtypes[i], 1);
        struct law_outcome gpu = law_run(&c), cpu = on_the_cpu(&c);

        assert_true(gpu.loss[0] != gpu.loss[LAW_STEPS - 1]);
        for (int step = 0; step < LAW_STEPS; step++)
            if (!(fabs(gpu.loss[step] / cpu.loss[step] - 1) < 2e-2))
                fail_msg("%s step %d: loss %.9g, on the CPU %.9g", dtypes[i], step, gpu.loss[step],
                         cpu.loss[step]);
    }
}

static void zero_stages(void **state)
{
    struct law_case c = small("llama", "bf16", 2);
    struct law_outcome wanted = law_run(&c);

    (void)state;
    for (c.zero = 1; c.zero <= 3; c.zero++) {
        c.poison = c.zero == 2;
        c.stop_after = c.zero == 3 ? 2 : 0;
        setenv("LMTRAIN_EMULATE_STREAMS", c.zero == 1 ? "lazy" : "eager", 1);
        struct law_outcome got = law_run(&c);
        law_must_equal("zero", &wanted, &got);
    }
    unsetenv("LMTRAIN_EMULATE_STREAMS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_cpu),
        cmocka_unit_test(zero_stages),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
