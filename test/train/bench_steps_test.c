/*
 * bench_steps_test.c - how many steps `bench cluster` measures while all ranks compute
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "train/bench_impl.h"

static const struct {
    double seconds;
    int asked, n;
} rows[] = {
    { 0.001, 0, 20 },                  /* short steps are cheap */
    { 0.001, 1, 20 }, { 0.08, 0, 13 }, /* a second of them */
    { 0.08, 2, 13 },  { 0.3, 0, 10 },  /* long ones are as many as of other programs */
    { 0.3, 2, 5 },    { 3, 2, 5 },     /* a median of them is still one */
    { 3, 7, 7 },      { 3, 50, 50 },   { 0.001, 50, 50 }, { 0, 0, 20 }, /* not known */
    { 0, 7, 20 },
};

static void test_steps_together(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(bench_steps_together(rows[i].seconds, rows[i].asked), rows[i].n);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_steps_together) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
