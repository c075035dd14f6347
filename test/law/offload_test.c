/*
 * offload_test.c - whatever is away from the device's memory, and when, the bits are the same
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"
#include "support/tiny_model.h"

enum { N_LAYERS_MAX = 8, N_STAGES_MAX = 4 };

static const unsigned char first_set[N_LAYERS_MAX];

/* Which kinds of values are away, wholly. */
enum { ACTIVATIONS = 1, STATES = 2, GRADIENTS = 4, WEIGHTS = 8, ALL = 15 };

struct away {
    struct keep_set set;
    struct rank_offload ranks[N_STAGES_MAX];
};

static void send_away(struct law_case *c, struct away *away, int kinds)
{
    static const int cells[N_AWAY_KINDS] = {
        [AWAY_STATES] = STATES, [AWAY_GRADIENTS] = GRADIENTS, [AWAY_WEIGHTS] = WEIGHTS
    };

    *away = (struct away){ 0 };
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (kinds & ACTIVATIONS)
            bitset_add(&away->set.away, kind);
    for (int r = 0; r < N_STAGES_MAX; r++)
        for (int k = 0; k < N_AWAY_KINDS; k++)
            away->ranks[r].cells[k].bytes = kinds & cells[k] ? SIZE_MAX : 0;
    c->keep_sets = (struct layer_keep_sets){ &away->set, first_set };
    c->offload = away->ranks;
    c->poison = 1;
}

static void check_kinds(struct law_case c, const struct law_case *reference, int kinds)
{
    struct away away;
    struct law_outcome wanted = law_reference(*reference);
    char what[128];

    send_away(&c, &away, kinds);
    struct law_outcome got = law_run(&c);
    snprintf(what, sizeof what, "%s %s, zero %d, tp %d, pp %d, kinds %d", c.model, c.dtype, c.zero,
             c.tp, c.pp, kinds);
    law_must_equal(what, &wanted, &got);
}

static void each_kind_alone(void **state)
{
    (void)state;
    static const int kinds[] = { ACTIVATIONS, STATES, GRADIENTS, WEIGHTS, ALL };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct law_case c = law_base("llama", "bf16");
        check_kinds(c, &c, kinds[i]);
        c = law_base("gpt2", "fp32");
        check_kinds(c, &c, kinds[i]);
    }
}

static void under_zero(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        struct law_case c = law_base("llama-untied", "bf16"), reference = c;

        c.n_ranks = reference.n_ranks = 2;
        c.zero = zero;
        check_kinds(c, &reference, ALL);
    }
}

static void with_tensor_and_pipeline_parallelism(void **state)
{
    (void)state;
    struct law_case c = law_base("llama-deep", "bf16"), reference = c;

    c.n_ranks = c.pp = 2;
    check_kinds(c, &reference, ALL);
    c = reference = law_base("llama", "bf16");
    c.n_ranks = c.tp = reference.n_ranks = reference.tp = 2;
    check_kinds(c, &reference, ALL);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_alone),
        cmocka_unit_test(under_zero),
        cmocka_unit_test(with_tensor_and_pipeline_parallelism),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
