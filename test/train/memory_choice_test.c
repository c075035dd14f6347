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

#include "support/law_rig.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_that_is_short_is_made),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
