/*
 * transpose_test.c - every element at its place, nothing beside it touched
 */
#include "ckpt_fixture.h"

#include "ckpt/transpose.h"

static void turned(void **state)
{
    static const int64_t sizes[] = { 1, 2, 31, 32, 33, 70 };

    (void)state;
    for (int i = 0; i < 36; i++) {
        int64_t rows = sizes[i / 6], cols = sizes[i % 6];
        static uint32_t from4[70 * 75], to4[70 * 75];
        static uint16_t from2[70 * 75], to2[70 * 75];

        for (int k = 0; k < 70 * 75; k++) {
            from4[k] = (uint32_t)k * 1000003u;
            from2[k] = (uint16_t)k;
            to4[k] = 7;
            to2[k] = 7;
        }
        transpose(to4, rows + 5, from4, cols + 3, rows, cols, 4);
        transpose(to2, rows + 5, from2, cols + 3, rows, cols, 2);
        for (int64_t k = 0; k < 70 * 75; k++) {
            int64_t c = k / (rows + 5), r = k % (rows + 5);
            int inside = r < rows && c < cols;

            assert_int_equal(to4[k], inside ? from4[r * (cols + 3) + c] : 7);
            assert_int_equal(to2[k], inside ? from2[r * (cols + 3) + c] : 7);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
