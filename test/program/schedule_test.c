/*
 * schedule_test.c - the step's actions
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/tiny_model.h"

/* Each micro-batch: load, forward, backward; only the first starts over; the last runs `last`. */
static void order_of_actions(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_shard(&tiny, "llama", 2, 0);
    struct program *p = &tiny.program;
    for (int n = 1; n <= 12; n++) {
        schedule_alone(p, &tiny.chunk, -1, tiny.update, n);
        const struct entry *e = &p->entries[ENTRY_STEP];
        assert_int_equal(e->n_actions, 3 * n + 2);
        for (int m = 0; m < n; m++) {
            const struct action *a = &e->actions[3 * m];

            assert_int_equal(a[0].kind, ACTION_LOAD);
            assert_int_equal(a[1].kind, ACTION_RUN);
            assert_int_equal(a[2].kind, ACTION_RUN);
            assert_int_equal(a[1].function, tiny.forward);
            assert_int_equal(a[2].function, m + 1 < n ? tiny.backward : tiny.last);
            for (int k = 0; k < 3; k++)
                assert_int_equal(a[k].micro_batch, m);
            assert_int_equal(a[1].first, m == 0);
            assert_int_equal(a[2].first, m == 0);
        }
        assert_int_equal(e->actions[3 * n].kind, ACTION_GATE);
        assert_int_equal(e->actions[3 * n + 1].kind, ACTION_RUN);
        assert_int_equal(e->actions[3 * n + 1].function, tiny.update);
        assert_int_equal(e->actions[3 * n + 1].micro_batch, -1);
        place(p);
        for (int k = 0; k < p->n_stashes; k++)
            assert_int_equal(p->stashes[k].n_slots, 1);
    }
    tiny_release(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(order_of_actions) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
