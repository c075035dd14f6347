/*
 * host_update_test.c - the optimizer on the host, beside a GPU that computes all else: the bits are
 * those of its update on the GPU, in every order in which queues get on
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/law_rig.h"

static const char *const orders[] = { "eager", "lazy", "1" };
enum { N_ORDERS = sizeof orders / sizeof *orders };

static struct law_case small(const char *dtype, int n_ranks)
{
    struct law_case c = law_base("gpt2", dtype);

    c.n_ranks = n_ranks;
    c.global_batch = 4 * n_ranks;
    return c;
}

static void check(const char *what, struct law_case c, bool with_gradients)
{
    struct rank_offload away = { .updates_on_host = true };

    setenv("LMTRAIN_EMULATE_STREAMS", orders[0], 1);
    struct law_outcome wanted = law_run(&c);
    away.cells[AWAY_STATES].bytes = SIZE_MAX;
    away.cells[AWAY_GRADIENTS].bytes = with_gradients ? SIZE_MAX : 0;
    c.offload = &away;
    for (int i = 0; i < N_ORDERS; i++) {
        char text[128];

        setenv("LMTRAIN_EMULATE_STREAMS", orders[i], 1);
        c.poison = i % 2; /* without it, graphs */
        snprintf(text, sizeof text, "%s, order %s", what, orders[i]);
        struct law_outcome got = law_run(&c);
        law_must_equal(text, &wanted, &got);
    }
    unsetenv("LMTRAIN_EMULATE_STREAMS");
}

static void alone(void **state)
{
    struct law_case c = small("bf16", 1);

    (void)state;
    check("bf16", c, false);
    c.tuning = "optimizer.states=bf16";
    check("bf16 states", c, true);
}

/* Copies are the comm thread's, or queues'. */
static void two_ranks(void **state)
{
    struct law_case c = small("fp32", 2);

    (void)state;
    c.zero = 1;
    check("fp32, zero 1, staged", c, false);
    setenv("LMTRAIN_TEST_NCCL", "1", 1);
    check("fp32, zero 1, enqueued", c, true);
    unsetenv("LMTRAIN_TEST_NCCL");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(two_ranks),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
