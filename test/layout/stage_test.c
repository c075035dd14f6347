/*
 * stage_test.c - cuts of layers into stages are the best of all cuts, and given ones are checked
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "layout/stage.h"

#define LAYERS_MAX 9

static void judge(const int *counts, int n, const struct stage_costs *costs, int64_t *largest,
                  int64_t *squares)
{
    *largest = *squares = 0;
    for (int stage = 0; stage < n; stage++) {
        int64_t cost = stage_cost(counts, n, stage, costs);

        *largest = max_i64(*largest, cost);
        *squares += cost * cost;
    }
}

/* All cuts, in dictionary order of their counts: bit k of `cut` (from the top) ends a stage after
 * layer k, and a larger number ends earlier. */
static void best_of_all(int *best, int n_stages, const struct stage_costs *costs)
{
    int64_t best_largest = INT64_MAX, best_squares = INT64_MAX, largest, squares;
    int n_layers = costs->n_layers;

    for (int cut = (1 << (n_layers - 1)) - 1; cut >= 0; cut--) {
        int counts[LAYERS_MAX] = { 0 }, stage = 0;

        for (int layer = 0; layer < n_layers; layer++) {
            counts[stage]++;
            stage += layer < n_layers - 1 && cut >> (n_layers - 2 - layer) & 1;
        }
        if (stage + 1 != n_stages)
            continue;
        judge(counts, n_stages, costs, &largest, &squares);
        if (largest > best_largest || (largest == best_largest && squares >= best_squares))
            continue;
        best_largest = largest;
        best_squares = squares;
        memcpy(best, counts, (size_t)n_stages * sizeof *best);
    }
}

/* Some number in 0..most that follows from *k alone. */
static int scramble(int *k, int most)
{
    uint32_t x = (uint32_t)++ * k * 2654435761u;

    return (int)((x ^ x >> 15) % (uint32_t)(most + 1));
}

static void splits_are_the_best_of_all(void **state)
{
    int seed = 0;

    (void)state;
    for (int round = 0; round < 400; round++) {
        int64_t layers[LAYERS_MAX];
        int most = round % 3 == 0 ? 0 : round % 3 == 1 ? 3 : 1000;
        struct stage_costs costs = { .n_layers = 1 + scramble(&seed, LAYERS_MAX - 1),
                                     .layers = layers,
                                     .embedding = scramble(&seed, 5),
                                     .head = scramble(&seed, most + 20) };

        for (int layer = 0; layer < LAYERS_MAX; layer++)
            layers[layer] = most == 0 ? 10 : scramble(&seed, most);
        for (int n = 1; n <= costs.n_layers; n++) {
            int counts[LAYERS_MAX], best[LAYERS_MAX];
            struct arena scratch = { 0 };
            struct err err;

            best_of_all(best, n, &costs);
            assert_int_equal(stage_split(counts, n, &costs, &scratch, &err), 0);
            assert_memory_equal(counts, best, (size_t)n * sizeof *best);
            assert_int_equal(stage_check(counts, n, n, costs.n_layers, &err), 0);
            arena_release(&scratch);
        }
    }
}

static void split(int *counts, int n_stages, int n_layers, int64_t embedding, int64_t head)
{
    int64_t layers[128];
    struct stage_costs costs = { n_layers, layers, embedding, head };
    struct arena scratch = { 0 };
    struct err err;

    for (int layer = 0; layer < n_layers; layer++)
        layers[layer] = 10;
    assert_int_equal(stage_split(counts, n_stages, &costs, &scratch, &err), 0);
    arena_release(&scratch);
}

static void known_splits(void **state)
{
    static const int even[] = { 24, 24, 24, 24 }, rest[] = { 2, 2, 3, 3 },
                     with_head[] = { 4, 5, 5, 2 };
    static const int both[] = { 7, 9, 9, 7 };
    int counts[4];

    (void)state;
    split(counts, 4, 96, 0, 0);
    assert_memory_equal(counts, even, sizeof even);
    split(counts, 4, 10, 0, 0);
    assert_memory_equal(counts, rest, sizeof rest);
    split(counts, 4, 16, 0, 25);
    assert_memory_equal(counts, with_head, sizeof with_head);
    split(counts, 4, 32, 15, 15);
    assert_memory_equal(counts, both, sizeof both);
}

static void what_cannot_be(void **state)
{
    static const struct {
        int counts[4], n_counts, n_stages, n_layers;
        const char *text;
    } cases[] = {
        { { 1, 1, 1, 1 },
          4,
          4,
          3,
          "4 pipeline stages for 3 layers, but a stage has at least one layer (hint: 3 stages)" },
        { { 4 },
          1,
          0,
          4,
          "0 pipeline stages for 4 layers, but a stage has at least one layer (hint: 1 stage)" },
        { { 4, 4 },
          2,
          4,
          8,
          "layers are given for 2 stages, but the pipeline has 4 (hint: 4 numbers)" },
        { { 4, 0, 4 },
          3,
          3,
          8,
          "stage 1 has 0 layers, but must have 1 or more (hint: 1, or fewer stages)" },
        { { 3, 3, 3 },
          3,
          3,
          8,
          "the stages have 9 layers, but the model has 8 (hint: 2 in the last stage, or auto)" },
        { { 3, 3, 1 },
          3,
          3,
          8,
          "the stages have 7 layers, but the model has 8 (hint: 2 in the last stage, or auto)" },
        { { 5, 5, 1 }, 3, 3, 8, "the stages have 11 layers, but the model has 8 (hint: auto)" },
    };
    int64_t layers[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct err err = { 0 };

        assert_int_equal(stage_check(cases[k].counts, cases[k].n_counts, cases[k].n_stages,
                                     cases[k].n_layers, &err),
                         -1);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_string_equal(err.text, cases[k].text);
    }
    for (int k = 0; k < 2; k++) {
        struct stage_costs costs = { .n_layers = cases[k].n_layers, .layers = layers };
        struct arena scratch = { 0 };
        struct err err = { 0 };
        int counts[4] = { -7, -7, -7, -7 };

        assert_int_equal(stage_split(counts, cases[k].n_stages, &costs, &scratch, &err), -1);
        assert_string_equal(err.text, cases[k].text);
        assert_int_equal(counts[0], -7);
        arena_release(&scratch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_are_the_best_of_all),
        cmocka_unit_test(known_splits),
        cmocka_unit_test(what_cannot_be),
    };

    return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
