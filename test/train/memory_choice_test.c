/*
 * memory_choice_test.c - a trainer on a device that is too small for all that is kept
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "support/crew.h"
#include "support/trained.h"
#include "train/trainer_impl.h"

/* By default what is computed again makes room, and no bit of the step differs. */
static void memory_that_is_short_is_made(void **state)
{
    struct trainer_result results[2];
    struct trained rig;
    struct err err;

    (void)state;
    trained_open(&rig, "llama", NULL);
    size_t planned = program_memory_bytes(trainer_program(rig.trainer));
    struct trainer_options options = { .job = &rig.job,
                                       .pool = rig.pool,
                                       .kernels = rig.kernels,
                                       .comm = rig.comm,
                                       .available_bytes = planned - 1 };

    for (int i = 0; i < 2; i++) {
        struct trainer *trainer = NULL;

        assert_int_equal(trainer_create(&trainer, &options, &err), 0);
        assert_int_equal(program_memory_bytes(trainer_program(trainer)) < planned, i == 0);
        assert_int_equal(trainer_step(trainer, &results[i], &err), 0);
        trainer_destroy(trainer);
        options.available_bytes = 0;
    }
    assert_true(results[0].loss == results[1].loss);
    assert_true(results[0].grad_norm == results[1].grad_norm);
    /* But not any. */
    struct trainer *none;
    options.available_bytes = planned / 10;
    assert_int_equal(trainer_create(&none, &options, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    trained_close(&rig);
}

enum { N_RANKS = 2 };

struct taken {
    size_t bytes;
    double loss;
};

static int note_and_step(struct crew_rank *rank, struct err *err)
{
    struct taken *taken = rank->context;
    struct trainer_result result;
    int status = trainer_step(rank->trainer, &result, err);

    taken->bytes = program_memory_bytes(trainer_program(rank->trainer));
    taken->loss = status ? 0 : result.loss;
    return status;
}

static void run_crew(struct taken taken[N_RANKS], const size_t available[N_RANKS])
{
    struct crew_rank ranks[N_RANKS] = { 0 };

    for (int i = 0; i < N_RANKS; i++) {
        ranks[i].context = &taken[i];
        ranks[i].available_bytes = available[i];
    }
    crew_run(ranks, N_RANKS, 3, note_and_step);
    for (int i = 0; i < N_RANKS; i++)
        if (ranks[i].status)
            fail_msg("rank %d: %s", i, ranks[i].err.text);
}

/* What is computed again gathers weights: ranks that chose for themselves would wait for ever. */
static void ranks_choose_by_the_least_of_them(void **state)
{
    struct taken kept[N_RANKS], chosen[N_RANKS];

    (void)state;
    run_crew(kept, (size_t[N_RANKS]){ 0, 0 });
    run_crew(chosen, (size_t[N_RANKS]){ 2 * kept[0].bytes, kept[0].bytes - 1 });
    for (int i = 0; i < N_RANKS; i++) {
        assert_true(chosen[i].bytes < kept[i].bytes);
        assert_int_equal(chosen[i].bytes, chosen[0].bytes);
        assert_true(chosen[i].loss == kept[i].loss);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_that_is_short_is_made),
        cmocka_unit_test(ranks_choose_by_the_least_of_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
