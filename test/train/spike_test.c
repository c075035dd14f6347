/*
 * spike_test.c - z-scores against their definition, and a window that a checkpoint carries exactly
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "base/str.h"
#include "train/spike.h"

enum { WINDOW = 4 };

static void add(struct spikes *s, double loss, double norm)
{
    spikes_add(s, (double[]){ [SPIKE_LOSS] = loss, [SPIKE_NORM] = norm });
}

static int find(const struct spikes *s, double loss, double norm, double z[N_SPIKE_MEASURES])
{
    return spikes_find(s, (double[]){ [SPIKE_LOSS] = loss, [SPIKE_NORM] = norm }, z);
}

static void test_not_before_the_window_is_full(void **state)
{
    struct spikes s;
    double z[N_SPIKE_MEASURES];

    (void)state;
    spikes_init(&s, 3, WINDOW);
    for (int i = 0; i < WINDOW; i++) {
        assert_false(find(&s, 1e9, 1e9, z));
        add(&s, 2 + i % 2, 1);
    }
    assert_true(find(&s, 1e9, 1, z));
    spikes_release(&s);
}

/* Of 1 2 3 4 the mean is 2.5 and the standard deviation sqrt(5 / 3); older values are gone. */
static void test_z(void **state)
{
    struct spikes s;
    double z[N_SPIKE_MEASURES], deviation = sqrt(5.0 / 3);

    (void)state;
    spikes_init(&s, 3, WINDOW);
    add(&s, 1e6, 1e6);
    for (int i = 1; i <= WINDOW; i++)
        add(&s, i, 10 * i);
    assert_false(find(&s, 2.5 + 2.99 * deviation, 25, z));
    assert_true(fabs(z[SPIKE_LOSS] - 2.99) < 1e-9 && fabs(z[SPIKE_NORM]) < 1e-9);
    assert_true(find(&s, 2.5 + 3.01 * deviation, 25, z));
    assert_true(find(&s, 2.5, 25 + 30.1 * deviation, z));
    /* Below is none, and neither is what is not finite. */
    assert_false(find(&s, -100, -100, z));
    assert_false(find(&s, NAN, INFINITY, z));
    spikes_release(&s);
}

/* Equal values have no spread: a thousandth of them stands for it. */
static void test_no_spread(void **state)
{
    struct spikes s;
    double z[N_SPIKE_MEASURES];

    (void)state;
    spikes_init(&s, 3, WINDOW);
    for (int i = 0; i < WINDOW; i++)
        add(&s, 5, 5);
    assert_false(find(&s, 5.01, 5, z));
    assert_true(find(&s, 5.02, 5, z));
    add(&s, NAN, 1); /* is not kept */
    assert_true(find(&s, 5.02, 5, z));
    spikes_release(&s);
}

/* Read back, with a full or a partial ring, all further scores have the same bits. */
static void test_state(void **state)
{
    (void)state;
    for (int n = 0; n < 3 * WINDOW; n++) {
        struct spikes s, copy;
        struct str text = { 0 };

        spikes_init(&s, 3, WINDOW);
        spikes_init(&copy, 3, WINDOW);
        for (int i = 0; i < n; i++)
            add(&s, nextafter(1.0 / (i + 3), 1), nextafter(sqrt(i + 2.0), 0));
        spikes_print(&s, &text);
        /* Checkpoints print what they have parsed. */
        cJSON *tree = cJSON_Parse(str_text(&text));
        char *again = cJSON_PrintUnformatted(tree);
        spikes_read(&copy, again);
        free(again);
        cJSON_Delete(tree);
        assert_int_equal(copy.n, s.n);
        for (int i = 0; i < WINDOW; i++) {
            double a[N_SPIKE_MEASURES], b[N_SPIKE_MEASURES];

            add(&s, 0.1 * i, 0.7 * i);
            add(&copy, 0.1 * i, 0.7 * i);
            assert_int_equal(find(&s, 1.5, 2.5, a), find(&copy, 1.5, 2.5, b));
            assert_memory_equal(a, b, sizeof a);
        }
        str_release(&text);
        spikes_release(&s);
        spikes_release(&copy);
    }
}

/* Checkpoints from before had numbers. */
static void test_numbers(void **state)
{
    struct spikes s;

    (void)state;
    spikes_init(&s, 3, WINDOW);
    spikes_read(&s, "[[1.5, 2.5, \"0x1.8p+0\"], [0.25, 3, \"0x1p-2\"]]");
    assert_int_equal(s.n, 3);
    assert_true(s.values[SPIKE_LOSS][1] == 2.5 && s.values[SPIKE_NORM][0] == 0.25);
    assert_true(s.values[SPIKE_LOSS][2] == 1.5 && s.values[SPIKE_NORM][2] == 0.25);
    spikes_release(&s);
}

static void test_other_state(void **state)
{
    static const char *const texts[] = {
        "", "null", "[]", "{}", "[[1], [\"a\"]]", "[1, 2]", "[[\"\"], [\"1\"]]"
    };
    struct spikes s;

    (void)state;
    spikes_init(&s, 3, WINDOW);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        add(&s, 1, 1);
        spikes_read(&s, texts[i]);
        assert_int_equal(s.n, 0);
    }
    spikes_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_before_the_window_is_full),
        cmocka_unit_test(test_z),
        cmocka_unit_test(test_no_spread),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_other_state),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
