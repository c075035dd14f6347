/*
 * numerics_fields_test.c - fields whose rows say that they are of the numerics have a line there
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config/fields_impl.h"

/* A flag of a row that has neither a line of its own nor a part in another one would be a lie. */
static void fields_without_a_line(void **state)
{
    static const char keys[] =
        " model.router_balance_kind eval.split data.packing data.lengths train.fp8_edge_layers "
        "train.fp8_dw train.fp8_gradients train.fp8_experts train.spike_z train.spike_window "
        "train.spike_margin moe.drop parallel.compress_ratio parallel.compress_rank "
        "parallel.compress_start parallel.compress_bits ";
    size_t n = 0;

    (void)state;
    for (int i = 0; i < n_job_fields; i++) {
        const struct field *f = &job_fields[i];
        char word[64];

        assert_true(!f->numerics.place || f->numerics.change);
        for (int j = 0; j < i && f->numerics.place; j++)
            assert_int_not_equal(job_fields[j].numerics.place, f->numerics.place);
        if (!f->numerics.change || f->numerics.place)
            continue;
        snprintf(word, sizeof word, " %s ", f->key);
        if (!strstr(keys, word))
            fail_msg("%s has no line", f->key);
        n++;
    }
    for (size_t i = 1; i < sizeof keys; i++)
        n -= keys[i] == ' ';
    assert_int_equal(n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_without_a_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
