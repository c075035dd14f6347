/*
 * newton_schulz_test.c - the published coefficients do what is said of them, to a number as to a
 * singular value; and the factors for shapes
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ops/newton_schulz.h"

static double after(enum newton_schulz set, int n_steps, double x)
{
    for (int i = 0; i < n_steps; i++) {
        struct newton_schulz_step s = newton_schulz_step(set, i);

        x = s.a * x + s.b * pow(x, 3) + s.c * pow(x, 5);
    }
    return x;
}

/* Of values in [least, 1], which a matrix of norm 1 has, all end in [low, high]. */
static void ends_in(enum newton_schulz set, double least, double low, double high)
{
    for (double x = least; x <= 1; x *= 1.001) {
        double y = after(set, newton_schulz_steps(set), x);

        if (!(y >= low && y <= high))
            fail_msg("set %d makes %.6g of %.6g, wanted %g .. %g", (int)set, y, x, low, high);
    }
}

static void values_end_near_one(void **state)
{
    (void)state;
    ends_in(NEWTON_SCHULZ_ORIGINAL, 0.003, 0.68, 1.21);
    ends_in(NEWTON_SCHULZ_QUINTIC, 0.003, 0.97, 1.15);
    ends_in(NEWTON_SCHULZ_POLAR_EXPRESS, 0.001, 0.999, 1.001);
}

/* Small ones grow by a in each step. */
static void small_values_grow(void **state)
{
    (void)state;
    for (int set = 0; set < N_NEWTON_SCHULZ; set++) {
        double by = 1;

        for (int i = 0; i < 3; i++)
            by *= newton_schulz_step((enum newton_schulz)set, i).a;
        assert_true(fabs(after((enum newton_schulz)set, 3, 1e-9) / (1e-9 * by) - 1) < 1e-9);
        assert_true(after((enum newton_schulz)set, 5, 0) == 0);
    }
}

/* (15, -10, 3) / 8 has 1 as a fixed point without a slope; and is what goes on. */
static void the_last_step_repeats(void **state)
{
    (void)state;
    for (int set = 0; set < N_NEWTON_SCHULZ; set++) {
        struct newton_schulz_step last = newton_schulz_step((enum newton_schulz)set, 7);
        struct newton_schulz_step later = newton_schulz_step((enum newton_schulz)set, 90);

        assert_true(last.a == later.a && last.b == later.b && last.c == later.c);
    }
    struct newton_schulz_step limit = newton_schulz_step(NEWTON_SCHULZ_POLAR_EXPRESS, 7);
    assert_true(limit.a + limit.b + limit.c == 1);
    assert_true(limit.a + 3 * limit.b + 5 * limit.c == 0);
}

static void factors_of_shapes(void **state)
{
    (void)state;
    assert_true(muon_scale_of(MUON_SCALE_ORIGINAL, 64, 16) == 2);
    assert_true(muon_scale_of(MUON_SCALE_ORIGINAL, 16, 64) == 1);
    assert_true(muon_scale_of(MUON_SCALE_SPECTRAL, 16, 64) == 8);
    assert_true(muon_scale_of(MUON_SCALE_UNIT_RMS, 16, 64) == 0.5);
    assert_true(muon_scale_of(MUON_SCALE_MATCH_RMS_ADAMW, 400, 100) == 0.2 * 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_end_near_one),
        cmocka_unit_test(small_values_grow),
        cmocka_unit_test(the_last_step_repeats),
        cmocka_unit_test(factors_of_shapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
