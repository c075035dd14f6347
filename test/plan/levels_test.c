/*
 * levels_test.c - numbers of recomputed layers against all assignments of levels to layers
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/num.h"
#include "plan/levels.h"

enum { N_LAYERS_MAX = 7, N_CASES = 400 };

static uint64_t state_of_dice = 7;

static int roll(int n)
{
    state_of_dice = state_of_dice * 6364136223846793005U + 1442695040888963407U;
    return (int)((state_of_dice >> 33) % (uint64_t)n);
}

/* More recomputation takes more time and keeps less. */
static struct level_layer any_layer(void)
{
    struct level_layer layer;
    int ns = 100 + roll(100), kept = 50 + roll(100);

    for (int level = 0; level < N_RECOMPUTE_LEVELS; level++) {
        layer.ns[level] = ns;
        layer.slot_bytes[level] = kept;
        layer.handed_bytes[level] = roll(20);
        ns += roll(60);
        kept -= roll(kept);
    }
    return layer;
}

/* The least time of any assignment that fits, one chunk; INT64_MAX: none fits. */
static int64_t best_of_all(const struct level_problem *p)
{
    const struct level_chunk *chunk = p->chunks;
    int64_t best = INT64_MAX;
    int n = 1;

    for (int i = 0; i < chunk->n_layers; i++)
        n *= N_RECOMPUTE_LEVELS;
    for (int code = 0; code < n; code++) {
        int64_t ns = 0, slot = chunk->slot_bytes, handed = 0;

        for (int i = 0, rest = code; i < chunk->n_layers; i++, rest /= N_RECOMPUTE_LEVELS) {
            int level = rest % N_RECOMPUTE_LEVELS;

            ns += chunk->layers[i].ns[level];
            slot += chunk->layers[i].slot_bytes[level];
            handed += chunk->layers[i].handed_bytes[level];
        }
        if (p->n_slots * slot + p->n_handed * handed <= p->available)
            best = min_i64(best, ns);
    }
    return best;
}

static int64_t time_of(const struct level_problem *p, const struct level_counts *counts)
{
    int64_t ns = 0;

    for (int c = 0; c < p->n_chunks; c++)
        for (int i = 0; i < p->chunks[c].n_layers; i++)
            ns += p->chunks[c].layers[i].ns[level_of_layer(counts, i)];
    return ns;
}

static void layers_that_are_alike_get_the_best_levels(void **state)
{
    struct level_layer layers[N_LAYERS_MAX];
    int n_fit = 0, n_mixed = 0;

    (void)state;
    for (int k = 0; k < N_CASES; k++) {
        struct level_chunk chunk = { .layers = layers,
                                     .n_layers = 1 + roll(N_LAYERS_MAX),
                                     .slot_bytes = roll(50) };
        struct level_problem p = {
            .chunks = &chunk, .n_chunks = 1, .n_slots = 1 + roll(8), .n_handed = roll(3)
        };
        struct level_counts counts;

        layers[0] = any_layer();
        for (int i = 1; i < chunk.n_layers; i++)
            layers[i] = layers[0];
        p.available = roll((int)levels_bytes(&p, &(struct level_counts){ 0, 0 }) + 100);
        int64_t best = best_of_all(&p);
        assert_int_equal(levels_choose(&counts, &p), best < INT64_MAX);
        if (best == INT64_MAX) {
            assert_int_equal(counts.n_full, chunk.n_layers);
            continue;
        }
        assert_true(levels_bytes(&p, &counts) <= p.available);
        assert_int_equal(time_of(&p, &counts), best);
        n_fit++;
        n_mixed += counts.n_full + counts.n_selective > 0 && counts.n_full < chunk.n_layers;
    }
    assert_true(n_fit > N_CASES / 4);
    assert_true(n_mixed > N_CASES / 10);
}

/* Chunks of any layers: what is chosen fits, and nothing is faster that has such numbers. */
static void chunks_share_the_numbers(void **state)
{
    struct level_layer layers[2][N_LAYERS_MAX];

    (void)state;
    for (int k = 0; k < N_CASES; k++) {
        struct level_chunk chunks[2];
        struct level_problem p = { .chunks = chunks, .n_chunks = 2, .n_slots = 1 + roll(8) };
        struct level_counts counts, tried;

        for (int c = 0; c < 2; c++) {
            chunks[c] = (struct level_chunk){ layers[c], 1 + roll(N_LAYERS_MAX), roll(50) };
            for (int i = 0; i < chunks[c].n_layers; i++)
                layers[c][i] = any_layer();
        }
        p.available = roll((int)levels_bytes(&p, &(struct level_counts){ 0, 0 }) + 100);
        bool fits = levels_choose(&counts, &p);
        assert_true(!fits || levels_bytes(&p, &counts) <= p.available);
        for (tried.n_full = 0; tried.n_full <= N_LAYERS_MAX; tried.n_full++)
            for (tried.n_selective = 0; tried.n_selective <= N_LAYERS_MAX; tried.n_selective++)
                if (levels_bytes(&p, &tried) <= p.available) {
                    assert_true(fits);
                    assert_true(time_of(&p, &counts) <= time_of(&p, &tried));
                }
    }
}

static void what_fits_is_not_recomputed(void **state)
{
    const struct level_layer layer = any_layer();
    const struct level_chunk chunk = { &layer, 1, 0 };
    const struct level_problem p = {
        .chunks = &chunk, .n_chunks = 1, .n_slots = 4, .available = INT64_MAX
    };
    struct level_counts counts;

    (void)state;
    assert_true(levels_choose(&counts, &p));
    assert_int_equal(counts.n_full + counts.n_selective, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_that_are_alike_get_the_best_levels),
        cmocka_unit_test(chunks_share_the_numbers),
        cmocka_unit_test(what_fits_is_not_recomputed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
