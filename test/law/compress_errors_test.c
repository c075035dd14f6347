/*
 * compress_errors_test.c - what codecs have lost of gradients, step by step on each rank
 * (program/compress.c)
 *
 * A step that is skipped leaves it as it was, to the bit, and no NaN gets into it. What each rank
 * has decoded is the same on all ranks, and so are the factors that powersgd goes on from.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>
#include <cmocka.h>

#include "support/law_rig.h"
#include "train/trainer.h"

enum { N_RANKS_MAX = 4, BAD_STEP = 2, BAD_RANK = 1 };

/* Before each step, and behind the last. */
struct seen {
    uint64_t errors, factors, sums, weights;
    int are_finite; /* errors and factors */
};

static struct seen seen[N_RANKS_MAX][LAW_STEPS + 1];
static int cp_size;  /* of the case */
static char kept[8]; /* what the NaN in a weight took the place of */

static uint64_t hash_cell(const struct trainer *trainer, int cell, uint64_t hash, int *are_finite)
{
    size_t n_bytes = program_value_bytes(trainer_program(trainer), cell);
    float *data = malloc(n_bytes);
    struct err err;

    CHECK(data);
    CHECK(run_get(trainer_run(trainer), cell, 0, 0, data, n_bytes, &err) == 0);
    for (size_t i = 0; are_finite && i < n_bytes / sizeof *data; i++)
        *are_finite &= isfinite(data[i]) != 0;
    hash = XXH64(data, n_bytes, hash);
    free(data);
    return hash;
}

/* Ranks of dp, of each those of cp. */
static int rank_of(const struct mesh_place *place)
{
    return place->of[AXIS_DP] * cp_size + place->of[AXIS_CP];
}

static void look(struct trainer *trainer, const struct mesh_place *place, int step)
{
    const struct program *p = trainer_program(trainer);
    struct seen *s = &seen[rank_of(place)][step];

    *s = (struct seen){ .are_finite = 1 };
    for (int i = 0; i < p->n_buckets; i++)
        for (int use = 0; use < p->buckets[i].n_uses; use++) {
            const struct bucket *b = &p->buckets[i];

            CHECK(b->errors[use]);
            s->errors = hash_cell(trainer, b->errors[use], s->errors, &s->are_finite);
            if (b->factors[use].kept)
                s->factors = hash_cell(trainer, b->factors[use].kept, s->factors, &s->are_finite);
            s->sums = hash_cell(trainer, b->gradients[use], s->sums, NULL);
        }
    for (int i = 0; i < p->n_parameters; i++)
        s->weights = hash_cell(trainer, p->parameters[i].weight, s->weights, NULL);
}

/* The first weight of a norm, which all tokens meet. */
static int weight_of_all(const struct program *p)
{
    int i = 0;

    while (!strstr(p->parameters[i].name, "norm"))
        CHECK(++i < p->n_parameters);
    return p->parameters[i].weight;
}

/* One rank's gradients of one step are all NaN. */
static void spoil(struct trainer *trainer, const struct mesh_place *place, int step)
{
    static const unsigned char nan[sizeof kept] = {
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff
    };
    const struct program *p = trainer_program(trainer);
    int cell = weight_of_all(p);
    struct err err;

    if (rank_of(place) == BAD_RANK && step == BAD_STEP)
        run_put(trainer_run(trainer), cell, 0, 0, kept, sizeof kept);
    look(trainer, place, step);
    if (rank_of(place) != BAD_RANK || step != BAD_STEP - 1)
        return;
    CHECK(run_get(trainer_run(trainer), cell, 0, 0, kept, sizeof kept, &err) == 0);
    run_put(trainer_run(trainer), cell, 0, 0, nan, sizeof nan);
}

static struct law_case case_of(const char *dtype, const char *codec, int n_ranks, int cp)
{
    struct law_case c = law_base("llama", dtype);

    c.n_ranks = n_ranks;
    c.cp = cp_size = cp;
    c.cp_kind = cp > 1 ? "gather" : NULL;
    c.tuning = codec;
    return c;
}

static void skipped(const char *dtype, const char *codec, int cp, bool has_factors)
{
    struct law_case c = case_of(dtype, codec, 2 * cp, cp);

    c.before_step = spoil;
    struct law_outcome got = law_run(&c);
    for (int step = 0; step < LAW_STEPS; step++)
        assert_int_equal(isfinite(got.norm[step]) != 0, step != BAD_STEP - 1);
    for (int rank = 0; rank < 2 * cp; rank++)
        for (int step = 0; step < LAW_STEPS; step++) {
            const struct seen *before = &seen[rank][step], *after = &seen[rank][step + 1];

            assert_int_equal(after->errors == before->errors, step == BAD_STEP - 1);
            assert_int_equal(after->weights == before->weights, step == BAD_STEP - 1);
            assert_int_equal(after->factors == before->factors,
                             !has_factors || step == BAD_STEP - 1);
            assert_true(after->are_finite);
        }
}

static void decoded(const char *codec, int n_ranks, int cp)
{
    struct law_case c = case_of("bf16", codec, n_ranks, cp);

    c.before_step = look;
    law_run(&c);
    for (int step = 1; step <= LAW_STEPS; step++)
        for (int rank = 1; rank < n_ranks; rank++) {
            assert_true(seen[rank][step].sums == seen[0][step].sums);
            assert_true(seen[rank][step].weights == seen[0][step].weights);
            assert_true(seen[rank][step].factors == seen[rank % cp][step].factors);
            assert_true(seen[rank][step].errors != seen[0][step].errors);
            assert_true(seen[rank][step].sums != seen[rank][step - 1].sums);
        }
}

#define POWERSGD "parallel.compress=powersgd|parallel.compress_rank=3|parallel.compress_start=0"
#define TOP_K "parallel.compress=topk|parallel.compress_ratio=0.05|parallel.compress_start=0"

static void a_skipped_step(void **state)
{
    (void)state;
    skipped("bf16", "parallel.compress=int8", 1, false);
    skipped("bf16", "parallel.compress=fp8", 1, false);
    skipped("bf16", TOP_K, 1, false);
    skipped("bf16", POWERSGD, 1, true);
    skipped("bf16", POWERSGD, 2, true);
    skipped("fp16", "parallel.compress=int8", 1, false);
    skipped("fp16", TOP_K, 2, false);
}

/* Sums over cp are of what is decoded, and each of its ranks has factors of its own. */
static void what_ranks_decode(void **state)
{
    (void)state;
    decoded("parallel.compress=int8", 4, 1);
    decoded("parallel.compress=fp8", 2, 1);
    decoded(TOP_K, 4, 1);
    decoded(POWERSGD, 4, 1);
    decoded("parallel.compress=int8", 4, 2);
    decoded(POWERSGD, 4, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_skipped_step),
                                        cmocka_unit_test(what_ranks_decode) };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
