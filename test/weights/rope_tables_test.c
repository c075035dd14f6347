/*
 * rope_tables_test.c - frequencies of every scaling, as transformers computes them
 *
 * head_dim 16, theta 10000, 64 positions; the numbers are those of transformers 5.23's
 * ROPE_INIT_FUNCTIONS.
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <math.h>

#include "weights/rope_tables.h"

#define HEAD_DIM 16

static const struct golden {
    const char *name;
    struct rope_scaling_spec scaling;
    int64_t n_positions;
    float frequencies[HEAD_DIM / 2];
    double attention_factor;
} goldens[] = {
    { "plain",
      { .type = ROPE_PLAIN },
      64,
      { 1.f, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f,
        0.00100000005f, 0.000316227786f },
      1 },
    { "linear",
      { .type = ROPE_LINEAR, .factor = 4 },
      64,
      { 0.25f, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f,
        0.000250000012f, 7.90569466e-05f },
      1 },
    { "dynamic, short",
      { .type = ROPE_DYNAMIC, .factor = 4 },
      64,
      { 1.f, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f,
        0.00100000005f, 0.000316227786f },
      1 },
    { "dynamic, long",
      { .type = ROPE_DYNAMIC, .factor = 4 },
      200,
      { 1.f, 0.229258373f, 0.0525593981f, 0.0120496824f, 0.00276249065f, 0.000633324089f,
        0.000145194848f, 3.3287135e-05f },
      1 },
    { "llama3",
      { .type = ROPE_LLAMA3,
        .factor = 8,
        .original_max_seq_len = 32,
        .low_freq_factor = 1,
        .high_freq_factor = 4 },
      64,
      { 1.f, 0.0958399773f, 0.0125000002f, 0.00395284733f, 0.00124999997f, 0.000395284733f,
        0.000125000006f, 3.95284733e-05f },
      1 },
    { "yarn",
      { .type = ROPE_YARN,
        .factor = 4,
        .original_max_seq_len = 16,
        .beta_fast = 32,
        .beta_slow = 1,
        .truncate = 1 },
      64,
      { 1.f, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f,
        0.000250000012f, 7.90569466e-05f },
      1.13862944 },
    { "yarn, not truncated",
      { .type = ROPE_YARN,
        .factor = 4,
        .original_max_seq_len = 256,
        .beta_fast = 8,
        .beta_slow = 2,
        .attention_factor = 1.25 },
      64,
      { 1.f, 0.316227764f, 0.0634965897f, 0.00790569466f, 0.00249999994f, 0.000790569466f,
        0.000250000012f, 7.90569466e-05f },
      1.25 },
};

static struct model_spec spec_of(const struct golden *g)
{
    return (
        struct model_spec){ .rope_theta = 10000, .max_seq_len = 64, .rope_scaling = g->scaling };
}

static void frequencies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        const struct golden *g = &goldens[i];
        struct model_spec spec = spec_of(g);
        float ours[HEAD_DIM / 2];

        rope_table_frequencies(ours, g->n_positions, HEAD_DIM, &spec);
        for (int k = 0; k < HEAD_DIM / 2; k++)
            if (fabsf(ours[k] - g->frequencies[k]) > 3e-7f * g->frequencies[k])
                fail_msg("%s: frequency %d is %.9g, not %.9g", g->name, k, (double)ours[k],
                         (double)g->frequencies[k]);
    }
}

static void table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        const struct golden *g = &goldens[i];
        struct model_spec spec = spec_of(g);
        float rows[200 * HEAD_DIM];

        rope_table_fill(rows, g->n_positions, HEAD_DIM, &spec);
        for (int64_t p = 0; p < g->n_positions; p++)
            for (int k = 0; k < HEAD_DIM / 2; k++) {
                double angle = (double)p * (double)g->frequencies[k];
                double c = cos(angle) * g->attention_factor, s = sin(angle) * g->attention_factor;
                const float *row = rows + p * HEAD_DIM;

                if (fabs((double)row[k] - c) > 5e-5 ||
                    fabs((double)row[HEAD_DIM / 2 + k] - s) > 5e-5)
                    fail_msg("%s: position %lld, dimension %d", g->name, (long long)p, k);
            }
    }
}

/* Dynamic NTK at several lengths, by transformers' _compute_dynamic_ntk_parameters; up to the
 * original length nothing changes. Dimensions 1, 4 and 7. */
static void dynamic_lengths(void **state)
{
    static const struct {
        int64_t length;
        double frequencies[3];
    } expected[] = {
        { 20, { 0.316227766, 0.01, 0.000316227766 } },
        { 32, { 0.316227766, 0.01, 0.000316227766 } },
        { 33, { 0.310951386, 0.00934910392, 0.000281091348 } },
        { 48, { 0.270296126, 0.00533776295, 0.000105409255 } },
        { 64, { 0.251273762, 0.00398647063, 6.32455532e-05 } },
        { 100, { 0.229258369, 0.00276249052, 3.32871333e-05 } },
    };
    const struct model_spec spec = { .rope_theta = 10000,
                                     .max_seq_len = 32,
                                     .rope_scaling = { .type = ROPE_DYNAMIC, .factor = 4 } };
    static float whole[100 * HEAD_DIM], part[7 * HEAD_DIM];

    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        int64_t length = expected[i].length;
        float ours[HEAD_DIM / 2];

        rope_table_frequencies(ours, length, HEAD_DIM, &spec);
        for (int k = 0; k < 3; k++) {
            double wanted = expected[i].frequencies[k];

            assert_true(fabs((double)ours[1 + 3 * k] - wanted) <= 3e-7 * wanted);
        }
        assert_int_equal(rope_table_length(length, &spec), length < 32 ? 32 : length);
        /* Some rows alone are those of the table of that length. */
        rope_table_fill(whole, length, HEAD_DIM, &spec);
        rope_table_fill_rows(part, length - 7, 7, length, HEAD_DIM, &spec);
        assert_memory_equal(part, whole + (length - 7) * HEAD_DIM, sizeof part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies),
        cmocka_unit_test(table),
        cmocka_unit_test(dynamic_lengths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
