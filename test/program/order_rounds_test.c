/*
 * order_rounds_test.c - the parts of an entry are its actions, and few where these repeat
 * themselves
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/num.h"
#include "program/order.h"
#include "support/tiny_model.h"

static void expect_action(const struct action *is, const struct action *first, int later)
{
    assert_int_equal(is->kind, first->kind);
    assert_int_equal(is->first, first->first);
    assert_int_equal(is->function, first->function);
    assert_int_equal(is->micro_batch, first->micro_batch + (first->micro_batch < 0 ? 0 : later));
}

/* Written out, the parts are the actions. Returns how many actions they say. */
static int check_parts(const struct entry *e)
{
    struct arena arena = { 0 };
    int n_parts, i = 0, n_said = 0, n_micro_batches = 0;
    const struct order_rounds *parts = order_list_rounds(e, &n_parts, &arena);

    for (int k = 0; k < n_parts; k++) {
        assert_int_equal(parts[k].begin, i);
        assert_true(parts[k].n > 0);
        assert_true(parts[k].n_times > 0);
        for (int round = 0; round < parts[k].n_times; round++)
            for (int j = 0; j < parts[k].n; j++, i++) {
                assert_in_range(i, 0, e->n_actions - 1);
                expect_action(&e->actions[i], &e->actions[parts[k].begin + j],
                              round * parts[k].shift);
                n_micro_batches = max_int(n_micro_batches, e->actions[i].micro_batch + 1);
            }
        n_said += parts[k].n;
    }
    assert_int_equal(i, e->n_actions);
    assert_int_equal(order_count_micro_batches(e, parts, n_parts), n_micro_batches);
    arena_release(&arena);
    return n_said;
}

static int draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((uint32_t)(*seed >> 33) % (uint32_t)n);
}

/* Rounds of a few actions, some of no micro-batch, with a mistake here and there. */
static void drawn_actions(void **state)
{
    static struct action actions[4096];
    uint64_t seed = 1;

    (void)state;
    for (int test = 0; test < 3000; test++) {
        struct entry e = { actions, 0 };
        int n_rounds = 1 + draw(&seed, 60), n_mistakes = draw(&seed, 3);

        for (int parts = draw(&seed, 3); parts >= 0; parts--) {
            int begin = e.n_actions, n = 1 + draw(&seed, 20), shift = 1 + draw(&seed, 3);

            for (int i = 0; i < n; i++)
                actions[e.n_actions++] = (struct action){ .kind = ACTION_RUN,
                                                          .function = (int16_t)draw(&seed, 6),
                                                          .micro_batch = draw(&seed, 9) - 1 };
            for (int i = 0; i < n * n_rounds; i++, e.n_actions++) {
                actions[e.n_actions] = actions[e.n_actions - n];
                if (actions[begin + i % n].micro_batch >= 0)
                    actions[e.n_actions].micro_batch += shift;
            }
        }
        for (int i = 0; i < n_mistakes; i++)
            actions[draw(&seed, e.n_actions)].function = (int16_t)draw(&seed, 6);
        check_parts(&e);
    }
}

static void no_actions(void **state)
{
    const struct entry e = { 0 };

    (void)state;
    assert_int_equal(check_parts(&e), 0);
}

/* Of ten times as many micro-batches there is hardly more to say. */
static void steps(void **state)
{
    static const int n_micro_batches[] = { 300, 3000 };
    struct program p;
    struct err err;

    (void)state;
    for (int kind = 0; kind < PIPELINE_DYNAMIC; kind++) {
        int one =
            kind == PIPELINE_INTERLEAVED || kind == PIPELINE_BREADTH_FIRST || kind == PIPELINE_ZB_V;
        int n_said[2];

        for (int i = 0; i < 2; i++) {
            struct model_spec spec = tiny_spec("llama");
            spec.n_layers = 4;
            struct compile_train options = tiny_compile(&spec, 1);

            options.mesh.size[AXIS_PP] = 2;
            options.n_micro_batches = n_micro_batches[i];
            options.pipeline.kind = (enum pipeline_kind)kind;
            options.pipeline.n_chunks = 1 + one;
            if (compile_train(&p, &options, &err) < 0)
                fail_msg("%s", err.text);
            n_said[i] = check_parts(&p.entries[ENTRY_STEP]);
            program_release(&p);
        }
        assert_in_range(n_said[0], 1, 300);
        assert_in_range(n_said[1], 1, 300);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_actions),
        cmocka_unit_test(drawn_actions),
        cmocka_unit_test(steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
