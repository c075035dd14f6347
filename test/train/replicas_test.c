/*
 * replicas_test.c - equal replicas are found equal and left as they are; others are named
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "support/crew.h"
#include "train/replicas.h"

struct plan {
    int flips; /* this rank's replica gets a wrong bit after two steps */
    int differs;
    double losses[3];
    uint64_t before, after; /* a hash of the weights around the comparison */
    double change;          /* of all weights' sum by the flip */
    struct err verdict;
};

static uint64_t hash_weights(struct trainer *trainer)
{
    const struct program *p = trainer_program(trainer);
    uint64_t hash = 0;

    for (int i = 0; i < p->n_parameters; i++) {
        int cell = p->parameters[i].weight;

        hash = XXH3_64bits_withSeed(run_data(trainer_run(trainer), cell, 0),
                                    program_value_bytes(p, cell), hash);
    }
    return hash;
}

static double sum_weights(struct trainer *trainer)
{
    const struct program *p = trainer_program(trainer);
    double sum = 0;

    for (int i = 0; i < p->n_parameters; i++) {
        const struct value *v = &p->values[p->parameters[i].weight];
        const void *data = run_data(trainer_run(trainer), p->parameters[i].weight, 0);

        for (int64_t k = 0; k < v->rows * v->cols; k++)
            sum += (double)(v->dtype == DTYPE_F32 ? ((const float *)data)[k]
                                                  : bf16_to_float(((const uint16_t *)data)[k]));
    }
    return sum;
}

static int step(struct crew_rank *r, int i, struct err *err)
{
    struct plan *plan = r->context;
    struct trainer_result result;
    int status = trainer_step(r->trainer, &result, err);

    plan->losses[i] = result.loss;
    return status;
}

/* Two steps, a comparison, and a step if it found nothing. */
static int work(struct crew_rank *r, struct err *err)
{
    struct plan *plan = r->context;
    struct replicas *replicas = replicas_create(r->trainer);
    int status = 0;

    for (int i = 0; i < 2 && !status; i++)
        status = step(r, i, err);
    if (!status)
        status = trainer_gather_weights(r->trainer, err);
    plan->change = sum_weights(r->trainer);
    if (plan->flips)
        replicas_flip(r->trainer);
    plan->change -= sum_weights(r->trainer);
    plan->before = hash_weights(r->trainer);
    if (!status) {
        status = replicas_compare(replicas, 2, &plan->differs, err);
        plan->verdict = *err;
    }
    plan->after = hash_weights(r->trainer);
    if (!status)
        status = step(r, 2, err);
    replicas_destroy(replicas);
    return status;
}

static void run(struct crew_rank *ranks, struct plan *plans, int n, int zero)
{
    for (int i = 0; i < n; i++) {
        plans[i].verdict.code = ERR_NONE;
        ranks[i] = (struct crew_rank){ .context = &plans[i] };
    }
    crew_run(ranks, n, zero, work);
}

static void expect_difference(const struct crew_rank *ranks, const struct plan *plans, int n,
                              const char *text)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(ranks[i].status, -1);
        assert_int_equal(plans[i].differs, 1);
        assert_int_equal(plans[i].verdict.code, ERR_PEER);
        assert_string_equal(plans[i].verdict.text, plans[0].verdict.text);
        if (!strstr(plans[i].verdict.text, text))
            fail_msg("'%s' is not in: %s", text, plans[i].verdict.text);
    }
}

static void test_equal(void **state)
{
    struct crew_rank ranks[4];

    (void)state;
    for (int zero = 0; zero < 2; zero++)
        for (int n = 1; n <= 4; n++) {
            struct plan plans[4] = { { 0 } };

            if (24 % n)
                continue;
            run(ranks, plans, n, zero);
            for (int i = 0; i < n; i++) {
                if (ranks[i].status)
                    fail_msg("rank %d of %d: %s", i, n, ranks[i].err.text);
                assert_int_equal(plans[i].differs, 0);
                assert_int_equal(plans[i].before, plans[i].after);
                assert_memory_equal(plans[i].losses, plans[0].losses, sizeof plans[0].losses);
            }
        }
}

static void test_one_of_four(void **state)
{
    struct crew_rank ranks[4];
    char host[64] = "", text[256];

    (void)state;
    gethostname(host, sizeof host - 1);
    for (int culprit = 0; culprit < 4; culprit++) {
        struct plan plans[4] = { { 0 } };

        plans[culprit].flips = 1;
        run(ranks, plans, 4, 0);
        snprintf(text, sizeof text, "on rank %d (%s) differs from that of the 3 other ranks (1 ",
                 culprit, host);
        expect_difference(ranks, plans, 4, text);
        assert_non_null(strstr(plans[0].verdict.text, "step 2: the replica of layers."));
    }
}

/* Under zero 1 it is the weight itself that has the wrong bit: a small one, which is found. */
static void test_one_of_four_with_shards(void **state)
{
    struct crew_rank ranks[4];
    struct plan plans[4] = { { 0 } };

    (void)state;
    plans[2].flips = 1;
    run(ranks, plans, 4, 1);
    expect_difference(ranks, plans, 4, "differs from that of the 3 other ranks (1 ");
    assert_non_null(strstr(plans[0].verdict.text, " on rank 2 ("));
    for (int i = 0; i < 4; i++)
        assert_int_equal(plans[i].change != 0, i == 2);
    assert_true(fabs(plans[2].change) < 2e-3);
}

static void test_no_majority(void **state)
{
    struct crew_rank ranks[4];
    struct plan plans[4] = { { 0 } };

    (void)state;
    plans[1].flips = 1;
    run(ranks, plans, 2, 0);
    expect_difference(ranks, plans, 2, "2 copies are too few to identify it");
    plans[3].flips = 1;
    run(ranks, plans, 4, 0);
    expect_difference(ranks, plans, 4, "4 copies are too few to identify it");
}

static int nothing(struct crew_rank *r, struct err *err)
{
    (void)r;
    (void)err;
    return 0;
}

static void test_another_build(void **state)
{
    struct crew_rank ranks[3] = { { .build = "1.0" }, { .build = "1.0" }, { .build = "1.1" } };

    (void)state;
    crew_run(ranks, 3, 0, nothing);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ranks[i].status, -1);
        assert_int_equal(ranks[i].err.code, ERR_CONFIG);
        assert_non_null(strstr(ranks[i].err.text, "the version of lmtrain differs between ranks: "
                                                  "'1.0' on rank 0 ("));
        assert_non_null(strstr(ranks[i].err.text, "'1.1' on rank 2 ("));
        assert_non_null(strstr(ranks[i].err.text, "1 of 3 ranks differ"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_one_of_four),
        cmocka_unit_test(test_one_of_four_with_shards),
        cmocka_unit_test(test_no_majority),
        cmocka_unit_test(test_another_build),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
