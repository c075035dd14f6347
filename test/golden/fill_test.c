/*
 * init_weights_test.c - fill.h makes the numbers that PyTorch was given, bit for bit
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "golden/fill.h"
#include "golden/fill_expected.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { VOCAB_SIZE = 96, ELEMENTS_MAX = 4096 };

static uint64_t hash_bytes(const void *data, size_t size)
{
    const unsigned char *bytes = data;
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static void test_weights(void **state)
{
    float weights[ELEMENTS_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT(expected_weights); i++) {
        int64_t n = expected_weights[i].n;

        assert_in_range(n, 1, ELEMENTS_MAX);
        golden_fill(expected_weights[i].name, weights, n);
        uint64_t hash = hash_bytes(weights, (size_t)n * sizeof *weights);
        if (hash != expected_weights[i].hash)
            fail_msg("%s[%d] differs", expected_weights[i].name, (int)n);
    }
}

static void test_batches(void **state)
{
    int32_t tokens[GOLDEN_BATCH_ROWS], targets[GOLDEN_BATCH_ROWS];

    (void)state;
    assert_int_equal(COUNT(expected_batches), GOLDEN_N_STEPS + 1);
    for (size_t i = 0; i < COUNT(expected_batches); i++) {
        golden_batch(expected_batches[i].step, VOCAB_SIZE, tokens, targets);
        assert_true(hash_bytes(tokens, sizeof tokens) == expected_batches[i].tokens);
        assert_true(hash_bytes(targets, sizeof targets) == expected_batches[i].targets);
    }
}

static void test_prompt(void **state)
{
    int32_t tokens[GOLDEN_PROMPT_LEN];

    (void)state;
    golden_prompt(VOCAB_SIZE, tokens);
    assert_true(hash_bytes(tokens, sizeof tokens) == expected_prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_prompt),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
