/*
 * trainer_test.c - a trainer saves, restores and evaluates; what cannot be restored is named
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/store.h"
#include "support/law_rig.h"
#include "support/trained.h"
#include "train/trainer_impl.h"

static struct trained rig;

/* A trainer that took four steps, and its checkpoint. */
static int setup(void **state)
{
    trained_open(&rig, "llama", NULL);
    trained_steps(&rig, 4);
    *state = (void *)(uintptr_t)trained_save(&rig, "step-00000004");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    trained_close(&rig);
    return 0;
}

/* How a checkpoint is spoiled while it is copied. */
struct change {
    const char *without;   /* this tensor is left out */
    const char *reshaped;  /* this one gets a row more */
    const char *from, *to; /* in the state's text */
    const char *state;     /* instead of all of it */
};

static char *changed_state(const char *text, const struct change *change)
{
    const char *at = change->from ? strstr(text, change->from) : NULL;
    struct str out = { 0 };

    assert_true(!change->from || at);
    if (change->state)
        str_add(&out, change->state);
    else if (at)
        str_printf(&out, "%.*s%s%s", (int)(at - text), text, change->to, at + strlen(change->from));
    else
        str_add(&out, text);
    char *copy = strdup(str_text(&out));
    str_release(&out);
    return copy;
}

/* Returns the copy's path. */
static const char *copy(const char *from, const struct change *change)
{
    const char *path = trained_path(&rig, "step-00000005");
    struct store_slice slices[128];
    struct store *store;
    struct store_save *save;
    struct err err;
    int n = 0;

    if (store_open(&store, from, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(store_n_tensors(store) <= 128);
    for (int i = 0; i < store_n_tensors(store); i++) {
        struct store_slice slice = *store_tensor(store, i);

        slice.row_end = slice.rows;
        slice.col_end = slice.cols;
        slice.data = calloc((size_t)(slice.rows + 1) * (size_t)slice.cols, 4);
        if (store_read(store, &slice, &err) < 0)
            fail_msg("%s", err.text);
        slices[n] = slice;
        if (change->reshaped && !strcmp(slice.name, change->reshaped))
            slices[n].row_end = slices[n].rows = slice.rows + 1;
        if (change->without && !strcmp(slice.name, change->without))
            free(slice.data);
        else
            n++;
    }
    assert_int_equal(n, store_n_tensors(store) - (change->without ? 1 : 0));
    char *text = changed_state(store_state(store), change);
    if (store_save_start(&save, path, 0, slices, n, &err) < 0 || store_save_wait(save, &err) < 0 ||
        store_commit(path, 1, 5, text, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < n; i++)
        free(slices[i].data);
    free(text);
    store_close(store);
    return path;
}

static void restore_fails(const char *folder, enum err_code code, const char *words)
{
    struct numerics_differences differences = { 0 };
    struct err err = { 0 };

    assert_int_equal(trainer_restore(rig.trainer, folder, &differences, &err), -1);
    if (err.code != code || !strstr(err.text, words))
        fail_msg("code %d, not %d, or \"%s\" is not in \"%s\"", err.code, code, words, err.text);
    numerics_differences_release(&differences);
}

/* What differs, those lines first that were accepted; it lives as long as the rig. */
static const char *restore(const char *folder)
{
    struct numerics_differences differences = { 0 };
    struct err err;

    if (trainer_restore(rig.trainer, folder, &differences, &err) < 0)
        fail_msg("%s", err.text);
    const char *text = arena_printf(&rig.arena, "%s%s", str_text(&differences.accepted),
                                    str_text(&differences.logged));
    numerics_differences_release(&differences);
    return text;
}

static void restored_it_goes_on_as_if_nothing_had_been(void **state)
{
    double sixth = trained_steps(&rig, 2), seventh = trained_steps(&rig, 1);
    int64_t tokens = trainer_tokens(rig.trainer);

    trained_again(&rig, "llama", NULL);
    assert_null(trainer_restored_extra(rig.trainer));
    assert_string_equal(restore(*state), "");
    assert_int_equal(trainer_step_number(rig.trainer), 4);
    assert_string_equal(trainer_restored_extra(rig.trainer), "{\"best_eval\":1.5}");
    assert_true(trained_steps(&rig, 2) == sixth);
    assert_true(trained_steps(&rig, 1) == seventh);
    assert_int_equal(trainer_tokens(rig.trainer), tokens);
    assert_int_equal(tokens, 7 * 8 * 16);
}

/* The helper's own check: a copy without a change restores. */
static void a_copy_restores(void **state)
{
    double fifth = trained_steps(&rig, 1);

    trained_again(&rig, "llama", NULL);
    restore(copy(*state, &(struct change){ 0 }));
    assert_true(trained_steps(&rig, 1) == fifth);
}

static void tensors_that_lack_are_named(void **state)
{
    static const char *const names[] = { "embedding.weight", "layers.1.qkv.weight.m",
                                         "layers.0.attention_norm.weight.v", "final_norm.weight" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        restore_fails(copy(*state, &(struct change){ .without = names[i] }), ERR_DATA, names[i]);
        restore_fails(copy(*state, &(struct change){ .reshaped = names[i] }), ERR_DATA, names[i]);
    }
}

static void states_that_lack_something(void **state)
{
    static const struct change changes[] = {
        { .state = "{}" },
        { .from = "\"step\":", .to = "\"steps\":" },
        { .from = "\"step\":4", .to = "\"step\":-4" },
        { .from = "\"step\":4", .to = "\"step\":\"4\"" },
        { .from = "\"step\":4", .to = "\"step\":1e300" },
        { .from = "\"updates\":", .to = "\"u\":" },
        { .from = "\"tokens\":", .to = "\"t\":" },
        { .from = "\"skipped\":", .to = "\"s\":" },
        { .from = "\"numerics_text\":", .to = "\"n\":" },
    };

    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        restore_fails(copy(*state, &changes[i]), ERR_DATA, "training state is incomplete");
    restore_fails(trained_path(&rig, "nowhere"), ERR_DATA, "nowhere");
    restore_fails(rig.folder, ERR_DATA, "manifest.json");
}

static void refused(const char *folder, const char *override, const char *words)
{
    const char *const overrides[] = { override, NULL };

    trained_again(&rig, "llama", overrides);
    restore_fails(folder, ERR_CONFIG, words);
}

static void what_makes_it_another_run_is_refused(void **state)
{
    refused(*state, "train.seed=2", "train.seed is 2, but the run was started with 1");
    refused(*state, "model.rope_theta=5000.0", "model.rope_theta is ");
    refused(*state, "model.n_layers=1", "model.n_layers is 1, but the run was started with 2");
    refused(*state, "data.seq_len=8", "data.seq_len is 8, but the run was started with 16");
    refused(*state, "train.global_batch=4",
            "train.global_batch is 4, but the run was started with 8");
    refused(*state, "eval={split: 0.1}", "data.train: ");
}

static void what_may_change_is_noted(void **state)
{
    static const char *const overrides[] = { "optimizer.lr=0.5", "train.steps=30",
                                             "train.micro_batch=4", "recompute=full", NULL };

    trained_again(&rig, "llama", overrides);
    const char *notes = restore(*state);
    assert_non_null(strstr(notes, "train.steps is now 30, was 20\n"));
    assert_non_null(strstr(notes, "train.micro_batch is now 4, was 2\n"));
    assert_non_null(strstr(notes, "optimizer.lr is now 0.5, was 0.01\n"));
    assert_null(strstr(notes, "recompute")); /* it changes no bit */
    trained_steps(&rig, 1);
}

static enum dtype stored_dtype(const char *folder, const char *name)
{
    struct store *store;
    struct err err;

    if (store_open(&store, folder, &err) < 0)
        fail_msg("%s", err.text);
    enum dtype dtype = store_find(store, name)->dtype;
    store_close(store);
    return dtype;
}

/* A checkpoint has states as its run had them; another run has them as it wants. */
static void states_of_another_dtype_are_read(void **state)
{
    static const char *const bf16[] = { "train.dtype=bf16", "optimizer.states=bf16", NULL };
    static const char *const fp32[] = { "train.dtype=bf16", NULL };
    const char *wide = *state, *narrow, *notes;

    assert_int_equal(stored_dtype(wide, "layers.0.qkv.weight"), DTYPE_F32);
    assert_int_equal(stored_dtype(wide, "layers.0.qkv.weight.m"), DTYPE_F32);
    refused(wide, "train.dtype=bf16", "train.dtype: there fp32, here bf16 (dtype of weights");
    rig.accept_numerics = 1;
    trained_again(&rig, "llama", bf16);
    notes = restore(wide);
    assert_non_null(strstr(notes, "optimizer.states is now bf16, was unset\n"));
    trained_steps(&rig, 1);
    narrow = trained_save(&rig, "step-00000005");
    assert_int_equal(stored_dtype(narrow, "layers.0.qkv.weight"), DTYPE_BF16);
    assert_int_equal(stored_dtype(narrow, "layers.0.qkv.weight.m"), DTYPE_BF16);
    assert_int_equal(stored_dtype(narrow, "layers.0.qkv.weight.v"), DTYPE_BF16);
    assert_int_equal(stored_dtype(narrow, "final_norm.weight"), DTYPE_F32); /* as ever */
    assert_int_equal(stored_dtype(narrow, "final_norm.weight.m"), DTYPE_BF16);
    trained_again(&rig, "llama", fp32);
    notes = restore(narrow);
    assert_non_null(strstr(notes, "optimizer.states is now unset, was bf16\n"));
    trained_steps(&rig, 1);
    assert_int_equal(stored_dtype(trained_save(&rig, "step-00000006"), "layers.0.qkv.weight.m"),
                     DTYPE_F32);
}

/* The state of a checkpoint, which lives as long as the rig. */
static const char *stored_state(const char *folder)
{
    struct store *store;
    struct err err;

    if (store_open(&store, folder, &err) < 0)
        fail_msg("%s", err.text);
    const char *text = arena_strdup(&rig.arena, store_state(store));
    store_close(store);
    return text;
}

/* Of another version of the engine: it says what is new, and leaves a record in what follows. */
static void another_version_has_to_be_accepted(void **state)
{
    const struct change older = { .from = "\"numerics_text\":\"version 2",
                                  .to = "\"numerics_text\":\"version 1" };
    const char *folder = copy(*state, &older);

    trained_again(&rig, "llama", NULL);
    restore_fails(folder, ERR_CONFIG, "\n    version: there 1, here 2 (the arithmetic of lmtrain");
    restore_fails(folder, ERR_CONFIG, "new in 2: the gradient norm");
    restore_fails(folder, ERR_CONFIG, "(hint: set back what was changed, or --accept-numerics");
    rig.accept_numerics = 1;
    trained_again(&rig, "llama", NULL);
    assert_string_equal(restore(folder), "version is now 2, was 1\n");
    trained_steps(&rig, 1);
    const char *saved = trained_save(&rig, "step-00000005"), *text = stored_state(saved);
    assert_non_null(strstr(text, "\"numerics_changes\":[{\"step\":4,\"from\":\""));
    assert_non_null(strstr(text, "\"accepted\":[\"version is now 2, was 1\"],\"logged\":[]}]"));
    /* What follows with the same numerics needs no consent, and keeps the record. */
    rig.accept_numerics = 0;
    trained_again(&rig, "llama", NULL);
    assert_string_equal(restore(saved), "");
    trained_steps(&rig, 1);
    text = stored_state(trained_save(&rig, "step-00000006"));
    assert_non_null(strstr(text, "\"accepted\":[\"version is now 2, was 1\"],\"logged\":[]}]"));
    /* A run that begins here has none. */
    assert_null(strstr(stored_state(*state), "numerics_changes"));
}

static void evaluation(void **state)
{
    double loss, again, part;
    int64_t tokens, n_part;
    struct err err;

    (void)state;
    assert_true(trainer_has_held_out(rig.trainer));
    assert_int_equal(trainer_evaluate(rig.trainer, 0, NULL, &loss, &tokens, &err), 0);
    assert_int_equal(trainer_evaluate(rig.trainer, 0, NULL, &again, &tokens, &err), 0);
    assert_true(loss == again);
    assert_true(loss > 3);
    assert_true(loss < 6);
    assert_int_equal(trainer_evaluate(rig.trainer, 2, NULL, &part, &n_part, &err), 0);
    assert_int_equal(n_part, 2 * 8 * 16);
    assert_true(tokens > n_part);
    assert_int_equal(trainer_step_number(rig.trainer), 4);
    trained_again(&rig, "llama", (const char *const[]){ "eval={}", NULL });
    assert_false(trainer_has_held_out(rig.trainer));
    assert_int_equal(trainer_evaluate(rig.trainer, 0, NULL, &loss, &tokens, &err), 0);
    assert_int_equal(tokens, 0);
}

/* A rank that has to leave after so many batches; what it was shown. */
struct leaver {
    int64_t after, shown, total;
};

static void note_batch(void *context, int64_t done, int64_t total)
{
    struct leaver *leaver = context;

    leaver->shown = done;
    leaver->total = total;
}

static bool leaves(void *context)
{
    const struct leaver *leaver = context;

    return leaver->shown >= leaver->after;
}

static void an_evaluation_is_left_and_harms_nothing(void **state)
{
    struct leaver leaver = { .after = 1 };
    const struct trainer_evaluation hooks = { note_batch, leaves, &leaver };
    double loss, again = 0;
    int64_t tokens, n = 0;
    struct err err;

    assert_int_equal(trainer_evaluate(rig.trainer, 0, NULL, &loss, &tokens, &err), 0);
    assert_int_equal(trainer_evaluate(rig.trainer, 0, &hooks, &again, &n, &err), 1);
    assert_int_equal(leaver.shown, 1);
    assert_true(leaver.total > 2);
    assert_int_equal(leaver.total, trainer_n_held_out_batches(rig.trainer, 0));
    assert_int_equal(n, 0);
    /* After the last batch there is nothing to leave. */
    leaver.after = leaver.total;
    assert_int_equal(trainer_evaluate(rig.trainer, 0, &hooks, &again, &n, &err), 0);
    assert_true(loss == again);
    assert_int_equal(tokens, n);
    leaver.after = 1;
    assert_int_equal(trainer_evaluate(rig.trainer, 0, &hooks, &again, &n, &err), 1);
    double fifth = trained_steps(&rig, 1);
    restore(*state);
    assert_true(trained_steps(&rig, 1) == fifth);
}

/* What is known only after the save has begun, and only after it is committed. */
static void a_checkpoint_is_described_later(void **state)
{
    const char *folder = trained_path(&rig, "step-00000004");
    struct err err;

    (void)state;
    trainer_save_describe(rig.trainer, "{\"a\":0}"); /* no save: nothing */
    assert_int_equal(trainer_save(rig.trainer, folder, "{\"a\":1}", &err), 0);
    trainer_save_describe(rig.trainer, "{\"a\":2}");
    assert_int_equal(trainer_save_finish(rig.trainer, &err), 0);
    trainer_save_describe(rig.trainer, "{\"a\":3}"); /* it is committed: nothing */
    restore(folder);
    assert_string_equal(trainer_restored_extra(rig.trainer), "{\"a\":2}");
    assert_int_equal(trainer_redescribe(rig.trainer, folder, "{\"a\":4}", &err), 0);
    restore(folder);
    assert_string_equal(trainer_restored_extra(rig.trainer), "{\"a\":4}");
    double fifth = trained_steps(&rig, 1);
    assert_int_equal(trainer_redescribe(rig.trainer, folder, "{}", &err), -1);
    assert_non_null(strstr(err.text, "manifest.json is from step 4, not 5"));
    restore(folder);
    assert_true(trained_steps(&rig, 1) == fifth);
}

/* A rank's own checkpoint, which no other layout and no other numerics take. */
static void a_local_checkpoint_is_restored(void **state)
{
    const char *folder = trained_path(&rig, "local/step-00000004");
    struct numerics_differences differences = { 0 };
    struct err err;
    char *text;

    restore(*state);
    assert_int_equal(trainer_save_local(rig.trainer, folder, "{\"a\":1}", &err), 0);
    assert_int_equal(trainer_save_finish(rig.trainer, &err), 0);
    double sixth = trained_steps(&rig, 2);
    assert_int_equal(trainer_examine_local(rig.trainer, folder, &text, &err), 0);
    assert_non_null(strstr(text, "\"run\":{\"a\":1}"));
    free(text);
    assert_int_equal(trainer_restore_local(rig.trainer, folder, &differences, &err), 0);
    assert_int_equal(trainer_step_number(rig.trainer), 4);
    assert_true(trained_steps(&rig, 2) == sixth);
    assert_int_equal(trainer_examine_local(rig.trainer, *state, &text, &err), -1);
    assert_string_equal(err.text, "it is of another layout");
    trained_again(&rig, "llama", (const char *const[]){ "train.seed=77", NULL });
    assert_int_equal(trainer_examine_local(rig.trainer, folder, &text, &err), -1);
    assert_string_equal(err.text, "it is of other numerics");
    trained_again(&rig, "llama", NULL);
    numerics_differences_release(&differences);
}

/* What trainer_evaluate gives of the samples, and how many held-out batches are shorter than 20. */
static double evaluate_samples(const char *lengths, const char *poison, int64_t *tokens,
                               int *n_short)
{
    const char *overrides[] = {
        "data.seq_len=20", "data.packing=false", "eval={split: 0.4}", lengths, poison, NULL
    };
    double loss;
    struct err err;

    trained_again(&rig, "llama", overrides);
    trained_steps(&rig, 2);
    if (trainer_evaluate(rig.trainer, 0, NULL, &loss, tokens, &err) < 0)
        fail_msg("%s", err.text);
    *n_short = 0;
    for (int64_t i = 0; i < rig.trainer->n_held_out_batches; i++)
        *n_short += loader_length(rig.trainer->held_out, i, 0) < 20;
    return loss;
}

/* Held-out samples without packing are padded to the lengths of training: the same loss by less. */
static void evaluation_by_lengths(void **state)
{
    const char *calm = "debug.poison=false", *poisoned = "debug.poison=true";
    int64_t tokens, n_tokens;
    int n_short;

    (void)state;
    rig.samples = trained_path(&rig, "samples");
    law_write_samples(rig.samples);
    double all = evaluate_samples("data.lengths=[2]", calm, &n_tokens, &n_short);
    assert_true(n_tokens > 0);
    assert_true(n_short < 2); /* hardly a sample has 2 tokens */
    double several = evaluate_samples("data.lengths=[8, 14]", calm, &tokens, &n_short);
    assert_true(n_short > 2);
    assert_true(n_short < rig.trainer->n_held_out_batches);
    assert_int_equal(tokens, n_tokens);
    assert_true(fabs(several - all) < 1e-5 * all);
    assert_true(several == evaluate_samples("data.lengths=[8, 14]", poisoned, &tokens, &n_short));
    rig.samples = NULL;
}

/* Of token files beside samples: these files, not the samples again. */
static void evaluation_of_tokens(void **state)
{
    const char *overrides[] = { "data.seq_len=20", "data.packing=false", "data.lengths=[8, 14]",
                                NULL };
    double loss;
    int64_t tokens, wanted;
    struct err err;

    (void)state;
    trained_again(&rig, "llama", overrides);
    assert_int_equal(trainer_evaluate(rig.trainer, 0, NULL, &loss, &wanted, &err), 0);
    rig.samples = trained_path(&rig, "samples");
    law_write_samples(rig.samples);
    trained_again(&rig, "llama", overrides);
    double same;
    assert_int_equal(trainer_evaluate(rig.trainer, 0, NULL, &same, &tokens, &err), 0);
    assert_int_equal(tokens, wanted);
    assert_true(fabs(same - loss) < 1e-5 * loss);
    const char *packed[] = { "data.seq_len=20", "data.packing=true", NULL };
    trained_again(&rig, "llama", packed);
    assert_int_equal(trainer_evaluate(rig.trainer, 0, NULL, &same, &tokens, &err), 0);
    assert_int_equal(tokens, wanted);
    assert_true(fabs(same - loss) < 1e-5 * loss);
    rig.samples = NULL;
}

static uint64_t first_weights(void)
{
    uint64_t bits;
    const struct program *program = trainer_program(rig.trainer);

    memcpy(&bits, run_data(trainer_run(rig.trainer), program->parameters[0].weight, 0),
           sizeof bits);
    return bits;
}

/* A weight that is not finite makes every gradient so: nothing is updated, and that is counted. */
static void steps_that_are_not_finite_are_skipped(void **state)
{
    const struct program *program = trainer_program(rig.trainer);
    float *weight = run_data(trainer_run(rig.trainer),
                             program->parameters[program->n_parameters - 1].weight, 0);
    struct trainer_result result;
    struct err err;
    float before = *weight;

    (void)state;
    uint64_t first = first_weights();
    *weight = NAN;
    assert_int_equal(trainer_step(rig.trainer, &result, &err), 0);
    assert_true(result.skipped);
    assert_int_equal(result.step, 5);
    assert_int_equal(trainer_n_skipped(rig.trainer), 1);
    assert_true(first_weights() == first);
    *weight = before;
    assert_int_equal(trainer_step(rig.trainer, &result, &err), 0);
    assert_false(result.skipped);
    assert_true(isfinite(result.loss));
    assert_false(first_weights() == first);
}

static void a_save_that_fails_is_told_and_harms_nothing(void **state)
{
    struct err err;

    fclose(fopen(trained_path(&rig, "file"), "we"));
    int status = trainer_save(rig.trainer, trained_path(&rig, "file/step-00000004"), "{}", &err);
    if (!status)
        status = trainer_save_finish(rig.trainer, &err);
    assert_int_equal(status, -1);
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.text, "file/step-00000004"));
    assert_int_equal(trainer_save_finish(rig.trainer, &err), 0);
    double fifth = trained_steps(&rig, 1);
    restore(*state);
    assert_true(trained_steps(&rig, 1) == fifth);
}

static void create_fails(struct trainer_options options, enum err_code code, const char *words)
{
    struct trainer *trainer = NULL;
    struct err err;

    options.pool = rig.pool;
    options.kernels = rig.kernels;
    options.comm = rig.comm;
    assert_int_equal(trainer_create(&trainer, &options, &err), -1);
    assert_null(trainer);
    if (err.code != code || !strstr(err.text, words))
        fail_msg("code %d, not %d, or \"%s\" is not in \"%s\"", err.code, code, words, err.text);
}

static void what_cannot_begin(void **state)
{
    struct job job = rig.job;
    size_t planned = program_memory_bytes(trainer_program(rig.trainer));

    (void)state;
    job.recompute = RECOMPUTE_NONE;
    create_fails((struct trainer_options){ .job = &job, .available_bytes = planned - 1 },
                 ERR_DEVICE, "are free (hint: recompute: full needs ");
    job.eval.data = trained_path(&rig, "nowhere");
    create_fails((struct trainer_options){ .job = &job }, ERR_DATA, "eval.data: there is no");
    job.data.train = &(struct job_dataset){ trained_path(&rig, "nowhere"), 1 };
    create_fails((struct trainer_options){ .job = &job }, ERR_DATA, "data.train: there is no");
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(restored_it_goes_on_as_if_nothing_had_been),
        TEST(a_copy_restores),
        TEST(tensors_that_lack_are_named),
        TEST(states_that_lack_something),
        TEST(what_makes_it_another_run_is_refused),
        TEST(what_may_change_is_noted),
        TEST(states_of_another_dtype_are_read),
        TEST(another_version_has_to_be_accepted),
        TEST(evaluation),
        TEST(an_evaluation_is_left_and_harms_nothing),
        TEST(a_checkpoint_is_described_later),
        TEST(a_local_checkpoint_is_restored),
        TEST(evaluation_by_lengths),
        TEST(evaluation_of_tokens),
        TEST(steps_that_are_not_finite_are_skipped),
        TEST(a_save_that_fails_is_told_and_harms_nothing),
        TEST(what_cannot_begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
