/*
 * job_test.c - what a job says, and what is left to defaults (mistakes: job_mistakes_test.c)
 */
#include "config_fixture.h"

#include "ops/op_info.h"

#include <unistd.h>

/* A job that gives every field. */
static const char whole[] =
    "model: llama-100m\n"
    "data:\n"
    "  train: [data/a, {path: data/b, weight: 2.5}]\n"
    "  tokenizer: data/tok\n"
    "  seq_len: 1024\n"
    "train: {steps: 2_000, global_batch: 64, micro_batch: 8, dtype: fp32, seed: 7, log_every: "
    "5,\n"
    "        max_skipped: 3, hang_seconds: 30, hang_abort_seconds: 0, gradient_dtype: fp32}\n"
    "eval: {every_steps: 200, split: 0.01, batches: 4, early_stop: {patience: 5}}\n"
    "optimizer: {name: adamw, lr: 3.0e-4, min_lr: 0, schedule: wsd, warmup_steps: 100,\n"
    "            decay_steps: 300, beta1: 0.8, beta2: 0.99, eps: 1e-6, weight_decay: 0, clip: "
    "0, states: bf16}\n"
    "ranks: 4\n"
    "threads: 3\n"
    "parallel: {tp: 2, pp: 2, dp: auto, cp: 1, ep: 1, zero: 1, schedule: 1f1b,\n"
    "           sequence_parallel: false, gradient_sum: early, reductions: fast, bucket_mb: "
    "8}\n"
    "recompute: selective\n"
    "checkpoint: {every_steps: 200, keep: 0}\n"
    "output: runs/x\n"
    "debug: {poison: true}\n";

static void test_whole_job(void **state)
{
    struct arena arena = { 0 };
    struct job j;

    (void)state;
    must_read(&j, whole, &arena);
    assert_string_equal(j.model.name, "llama-100m");
    assert_int_equal(j.model.n_layers, 12);
    assert_int_equal(j.model.n_kv_heads, 4);
    assert_true(j.model.tied_embeddings);
    assert_int_equal(j.data.n_train, 2);
    assert_string_equal(j.data.train[0].path, "data/a");
    assert_true(j.data.train[0].weight == 1 && j.data.train[1].weight == 2.5);
    assert_string_equal(j.data.train[1].path, "data/b");
    assert_string_equal(j.data.tokenizer, "data/tok");
    assert_int_equal(j.data.seq_len, 1024);
    assert_int_equal(j.train.steps, 2000);
    assert_int_equal(j.train.global_batch, 64);
    assert_int_equal(j.train.micro_batch, 8);
    assert_int_equal(j.train.dtype, DTYPE_F32);
    assert_int_equal(j.train.gradient_dtype, DTYPE_F32);
    assert_int_equal(j.train.residual, DTYPE_F32);
    assert_int_equal(j.train.seed, 7);
    assert_int_equal(j.train.log_every, 5);
    assert_int_equal(j.train.max_skipped, 3);
    assert_true(j.train.hang_seconds == 30 && j.train.hang_abort_seconds == 0);
    assert_int_equal(j.eval.every_steps, 200);
    assert_true(j.eval.split == 0.01);
    assert_null(j.eval.data);
    assert_int_equal(j.eval.batches, 4);
    assert_int_equal(j.eval.patience, 5);
    arena_release(&arena);
}

static void test_whole_job_further(void **state)
{
    struct arena arena = { 0 };
    struct job j;

    (void)state;
    must_read(&j, whole, &arena);
    assert_int_equal(j.optimizer.name, RULE_ADAMW);
    assert_true(j.optimizer.lr == 3e-4 && j.optimizer.min_lr == 0 && j.optimizer.eps == 1e-6);
    assert_int_equal(j.optimizer.schedule, LR_WSD);
    assert_int_equal(j.optimizer.warmup_steps, 100);
    assert_int_equal(j.optimizer.decay_steps, 300);
    assert_true(j.optimizer.beta1 == 0.8 && j.optimizer.beta2 == 0.99);
    assert_true(j.optimizer.weight_decay == 0 && j.optimizer.clip == 0);
    assert_int_equal(j.optimizer.states, DTYPE_BF16);
    assert_int_equal(j.ranks, 4);
    assert_int_equal(j.threads, 3);
    assert_int_equal(j.parallel.tp, 2);
    assert_int_equal(j.parallel.pp, 2);
    assert_int_equal(j.parallel.dp, 0);
    assert_int_equal(j.parallel.zero, 1);
    assert_int_equal(j.parallel.schedule, PIPELINE_1F1B);
    assert_int_equal(j.parallel.sequence_parallel, 0);
    assert_int_equal(j.parallel.gradient_sum, GRADIENT_SUM_EARLY);
    assert_true(j.parallel.gradient_sum_given);
    assert_int_equal(j.parallel.reductions, REDUCTIONS_FAST);
    assert_int_equal(j.parallel.bucket_mb, 8);
    assert_int_equal(j.recompute, RECOMPUTE_SELECTIVE);
    assert_int_equal(j.checkpoint.every_steps, 200);
    assert_int_equal(j.checkpoint.keep, 0);
    assert_string_equal(j.output, "runs/x");
    assert_true(j.poison);
    arena_release(&arena);
}

/* A list of ops, also from --set, until a mode is set; ops that the model lacks are told. */
static void test_recompute_list(void **state)
{
    struct bitset wanted = { 0 };
    struct arena arena = { 0 };
    struct err err;
    struct job j;

    (void)state;
    must_read(&j,
              "{model: llama-tiny, data: {train: a}, train: {steps: 1}, "
              "recompute: [rmsnorm, linear, rmsnorm]}",
              &arena);
    assert_int_equal(j.recompute, RECOMPUTE_LIST);
    bitset_add(&wanted, OP_RMSNORM);
    bitset_add(&wanted, OP_LINEAR);
    assert_memory_equal(&j.recompute_ops, &wanted, sizeof wanted);
    assert_false(has_note(&j, "recompute"));
    assert_int_equal(read_job_with(&j, SMALL, "recompute=[gelu, rmsnorm, dropout]", &arena, &err),
                     0);
    assert_int_equal(j.recompute, RECOMPUTE_LIST);
    assert_true(has_note(&j, "recompute: this model's forward has no gelu, dropout"));
    assert_int_equal(read_job_with(&j, SMALL, "recompute=[all_gather, all_reduce]", &arena, &err),
                     0);
    assert_true(has_note(&j, "has no all_gather, all_reduce"));
    assert_int_equal(read_job_with(&j,
                                   "{model: llama-tiny, data: {train: a}, train: {steps: 1}, "
                                   "recompute: [linear]}",
                                   "recompute=full", &arena, &err),
                     0);
    assert_int_equal(j.recompute, RECOMPUTE_FULL);
    assert_true(bitset_is_empty(&j.recompute_ops));
    arena_release(&arena);
}

/* The fields of finetuning data, and that a map of columns is printed as one that reads back. */
static void test_rows(void **state)
{
    static const char text[] =
        "{model: llama-tiny, data: {train: a, seq_len: 512, mask: history, lengths: [64, 128], "
        "columns: {instruction: a question, output: \"b=c\"}}, train: {steps: 1}}";
    struct arena arena = { 0 };
    struct str printed = { 0 };
    struct err err;
    struct job j, again;

    (void)state;
    must_read(&j, SMALL, &arena);
    assert_int_equal(j.data.format, INSTRUCT_AUTO);
    assert_int_equal(j.data.mask, INSTRUCT_MASK_PROMPT);
    assert_int_equal(j.data.columns.n, 0);
    must_read(&j, text, &arena);
    for (int json = 0; json < 2; json++) {
        str_clear(&printed);
        (json ? job_print_json : job_print)(&j, &printed);
        must_read(&again, str_text(&printed), &arena);
        assert_int_equal(again.data.columns.n, 2);
        assert_string_equal(again.data.columns.values[0], "instruction=a question");
        assert_string_equal(again.data.columns.values[1], "output=b=c");
        assert_int_equal(again.data.mask, INSTRUCT_MASK_HISTORY);
        assert_int_equal(again.data.lengths.values[1], 128);
    }
    assert_int_equal(read_job_with(&j, SMALL, "data.columns=x", &arena, &err), -1);
    assert_non_null(strstr(err.text, "data.columns is x, not a map of non-empty strings, or none"));
    assert_int_equal(read_job_with(&j, SMALL, "data.columns={a: [b]}", &arena, &err), -1);
    assert_non_null(strstr(err.text, "data.columns.a is empty or not a string"));
    assert_int_equal(read_job_with(&j, text, "data.lengths=[128, 64]", &arena, &err), -1);
    assert_non_null(strstr(err.text, "data.lengths has 64, not ascending and below data.seq_len"));
    assert_int_equal(read_job_with(&j, text, "data.mask=prompts", &arena, &err), -1);
    assert_non_null(strstr(err.text, "(hint: prompt)"));
    str_release(&printed);
    arena_release(&arena);
}

/* What is harmless is told. */
static void test_layout_notes(void **state)
{
    struct arena arena = { 0 };
    struct err err;
    struct job j;

    (void)state;
    must_read(&j, SMALL, &arena);
    assert_int_equal(j.parallel.zero_group, 0);
    assert_int_equal(j.parallel.hold, HOLD_PASS);
    assert_true(j.parallel.sequence_parallel);
    assert_false(has_note(&j, "parallel.hold") || has_note(&j, "parallel.sequence_parallel"));
    assert_false(has_note(&j, "loss_scale"));
    assert_int_equal(read_job_with(&j, SMALL, "train.loss_scale.initial=4", &arena, &err), 0);
    assert_true(has_note(&j, "train.loss_scale is off: train.dtype is bf16, not fp16"));
    assert_int_equal(read_job_with(&j, SMALL,
                                   "train={steps: 1, dtype: fp16, loss_scale: {max: "
                                   "65536}}",
                                   &arena, &err),
                     0);
    assert_int_equal(j.train.dtype, DTYPE_F16);
    assert_int_equal(j.train.loss_scale.initial, 65536);
    assert_int_equal(j.train.loss_scale.growth_every, 2000);
    assert_false(has_note(&j, "loss_scale"));
    assert_int_equal(read_job_with(&j, SMALL, "parallel.hold=step", &arena, &err), 0);
    assert_true(has_note(&j, "parallel.hold has no effect with zero 0"));
    assert_int_equal(read_job_with(&j, SMALL, "parallel={zero: 3, hold: op}", &arena, &err), 0);
    assert_int_equal(j.parallel.hold, HOLD_OP);
    assert_false(has_note(&j, "parallel.hold"));
    assert_int_equal(read_job_with(&j, SMALL, "parallel.sequence_parallel=true", &arena, &err), 0);
    assert_true(has_note(&j, "parallel.sequence_parallel is off: tp is 1"));
    assert_int_equal(read_job_with(&j,
                                   "{model: llama-tiny, data: {train: a, seq_len: 127}, train: "
                                   "{steps: 1, micro_batch: 1}, parallel: {tp: 2}}",
                                   "train.steps=2", &arena, &err),
                     0);
    assert_false(j.parallel.sequence_parallel);
    assert_true(has_note(&j, "parallel.sequence_parallel = false: micro_batch 1 * seq_len 127 is"));
    arena_release(&arena);
}

static void test_defaults(void **state)
{
    struct arena arena = { 0 };
    struct job j;

    (void)state;
    must_read(&j, SMALL, &arena);
    assert_int_equal(j.data.n_train, 1);
    assert_null(j.data.tokenizer);
    assert_int_equal(j.data.seq_len, 128);
    assert_true(has_note(&j, "data.seq_len = 128 (auto"));
    assert_int_equal(j.train.global_batch, 64);
    assert_int_equal(j.train.micro_batch, 4);
    assert_true(has_note(&j, "train.micro_batch = 4 (auto"));
    assert_int_equal(j.train.dtype, DTYPE_BF16);
    assert_int_equal(j.train.seed, 1);
    assert_int_equal(j.optimizer.name, RULE_ADAMW);
    assert_true(j.optimizer.lr == 3e-4);
    assert_true(j.optimizer.min_lr == 3e-4 / 10);
    assert_true(has_note(&j, "optimizer.min_lr = 3e-05 (auto: a tenth of lr)"));
    assert_int_equal(j.optimizer.schedule, LR_COSINE);
    assert_int_equal(j.optimizer.warmup_steps, 0);
    assert_int_equal(j.ranks, 0);
    assert_int_equal(j.threads, 0);
    assert_int_equal(j.parallel.tp, 1);
    assert_int_equal(j.parallel.dp, 0);
    assert_false(j.parallel.dp_given);
    assert_false(j.parallel.gradient_sum_given);
    assert_int_equal(j.recompute, RECOMPUTE_AUTO);
    assert_int_equal(j.checkpoint.keep, 3);
    assert_string_equal(j.output, "runs/j");
    assert_false(j.poison);
    must_read(&j,
              "{model: llama-7b, data: {train: a}, train: {steps: 500000, global_batch: 6},"
              " optimizer: {schedule: wsd}}",
              &arena);
    assert_int_equal(j.data.seq_len, 2048);
    assert_int_equal(j.train.micro_batch, 2);
    assert_int_equal(j.optimizer.warmup_steps, 2000);
    assert_int_equal(j.optimizer.decay_steps, 100000);
    must_read(&j,
              "{model: llama-7b, data: {train: a}, train: {steps: 5},"
              " optimizer: {schedule: constant}}",
              &arena);
    assert_true(j.optimizer.min_lr == j.optimizer.lr);
    arena_release(&arena);
}

/* Of steps and epochs a job has one: that of --set takes the place of the file's. */
static void test_steps_and_epochs(void **state)
{
    static const struct {
        const char *train, *sets[2];
        int64_t steps;
        double epochs;
        int status;
    } cases[] = {
        { "epochs: 2", { "train.steps=5" }, 5, 0, 0 },
        { "steps: 7", { "train.epochs=2" }, 0, 2, 0 },
        { "seed: 1, steps: 7, log_every: 2", { "train.epochs=2" }, 0, 2, 0 },
        { "epochs: 2", { "train.steps=auto" }, 0, 2, 0 },
        { "steps: 7", { "train.steps=auto", "train.epochs=2" }, 0, 2, 0 },
        { "epochs: 2", { "train.steps=5", "train.epochs=1" }, 0, 0, -1 },
        { "epochs: 2, steps: 5", { "train.seed=3" }, 0, 0, -1 },
    };
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        struct err err = { 0 };
        struct job j;

        snprintf(text, sizeof text,
                 "{kind: finetune, model: llama-tiny, data: {train: a, tokenizer: b}, train: {%s}}",
                 cases[i].train);
        int status = job_read_text(&j, text, strlen(text), "j.yaml", cases[i].sets,
                                   cases[i].sets[1] ? 2 : 1, &arena, &err);
        if (status != cases[i].status)
            fail_msg("case %zu: %s", i, err.text);
        if (status < 0)
            continue;
        assert_int_equal(j.train.steps, cases[i].steps);
        assert_true(j.train.epochs == cases[i].epochs);
    }
    arena_release(&arena);
}

static void test_overrides(void **state)
{
    static const char *const overrides[] = {
        "train.steps=20",
        "train.steps=30",
        "optimizer.lr=1e-3",
        "model.n_layers=3",
        "data.train=[x, {path: y, weight: 2}]",
        "output=o=p",
        "eval.early_stop.patience=0",
        "parallel.tp=2",
        "data.tokenizer=~",
    };
    static const char text[] = "{model: llama-tiny, data: {train: a, tokenizer: b}, parallel: auto,"
                               " train: {steps: 10}}";
    struct arena arena = { 0 };
    struct err err = { 0 };
    struct job j;

    (void)state;
    int status = job_read_text(&j, text, sizeof text - 1, "j.yaml", overrides,
                               sizeof overrides / sizeof *overrides, &arena, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, 0);
    assert_int_equal(j.train.steps, 30);
    assert_true(j.optimizer.lr == 1e-3);
    assert_int_equal(j.model.n_layers, 3);
    assert_string_equal(j.model.name, "llama-tiny");
    assert_int_equal(j.model.hidden_size, 64);
    assert_int_equal(j.data.n_train, 2);
    assert_string_equal(j.output, "o=p");
    assert_int_equal(j.parallel.tp, 2);
    assert_null(j.data.tokenizer);
    assert_int_equal(read_job_with(&j,
                                   "{model: {from: llama-tiny, n_layers: 9}, data: {train: a}, "
                                   "train: {steps: 1}}",
                                   "model=gpt2-tiny", &arena, &err),
                     0);
    assert_string_equal(j.model.name, "gpt2-tiny");
    assert_int_equal(j.model.n_layers, 2);
    /* A word for a group, with a key of it. */
    assert_int_equal(read_job_with(&j,
                                   "{model: llama-tiny, data: {train: a}, train: {steps: 1}, "
                                   "preflight: quick}",
                                   "preflight.seconds=3", &arena, &err),
                     0);
    assert_int_equal(j.preflight.mode, PREFLIGHT_QUICK);
    assert_true(j.preflight.seconds == 3);
    assert_int_equal(read_job_with(&j, "{model: llama-tiny, data: {train: a}, train: {steps: 1}}",
                                   "preflight=fast", &arena, &err),
                     -1);
    assert_non_null(strstr(err.text, "preflight.mode is fast, not one of off, quick, full"));
    /* Onto an empty file. */
    static const char *const all[] = { "model=llama-tiny", "data.train=a", "train.steps=3" };
    assert_int_equal(job_read_text(&j, "", 0, "j.yaml", all, 3, &arena, &err), 0);
    assert_int_equal(j.train.steps, 3);
    arena_release(&arena);
}

static void test_environment(void **state)
{
    struct arena arena = { 0 };
    struct err err = { 0 };
    struct job j;

    (void)state;
    setenv("LMTRAIN_TEST_STEPS", "42", 1);
    setenv("LMTRAIN_TEST_DIR", "/some where", 1);
    must_read(&j,
              "model: llama-tiny\n"
              "data: {train: [\"${LMTRAIN_TEST_DIR}/${LMTRAIN_TEST_STEPS}\", $a, a$]}\n"
              "train: {steps: \"${LMTRAIN_TEST_STEPS}\"}\n"
              "ranks: ${LMTRAIN_TEST_STEPS}\n"
              "output: x$${LMTRAIN_TEST_DIR}\n",
              &arena);
    assert_int_equal(j.train.steps, 42);
    assert_int_equal(j.ranks, 42);
    assert_string_equal(j.data.train[0].path, "/some where/42");
    assert_string_equal(j.data.train[1].path, "$a");
    assert_string_equal(j.data.train[2].path, "a$");
    assert_string_equal(j.output, "x${LMTRAIN_TEST_DIR}");
    assert_int_equal(read_job_with(&j, SMALL, "train.steps=${LMTRAIN_TEST_STEPS}", &arena, &err),
                     0);
    assert_int_equal(j.train.steps, 42);
    /* What the environment holds is a value, not YAML. */
    setenv("LMTRAIN_TEST_STEPS", "{a: 1}", 1);
    assert_int_equal(read_job_with(&j, SMALL, "train.steps=${LMTRAIN_TEST_STEPS}", &arena, &err),
                     -1);
    assert_non_null(strstr(err.text, "train.steps is {a: 1}, not a whole number"));
    unsetenv("LMTRAIN_TEST_STEPS");
    unsetenv("LMTRAIN_TEST_DIR");
    arena_release(&arena);
}

static void test_files(void **state)
{
    static const char *const jobs[] = { "configs/jobs/quickstart.yaml", "configs/jobs/kjv.yaml" };
    struct arena arena = { 0 };
    struct err err;
    struct job j;

    (void)state;
    for (int i = 0; i < 2; i++) {
        if (job_read(&j, jobs[i], NULL, 0, &arena, &err) || job_resolve(&j, 2, &arena, &err))
            fail_msg("%s", err.text);
        assert_string_equal(j.source, jobs[i]);
        assert_int_equal(j.parallel.dp, 2);
    }
    assert_int_equal(job_read(&j, "/nowhere/j.yaml", NULL, 0, &arena, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "/nowhere/j.yaml"));
    arena_release(&arena);
}

/* A list may name each kind that some model's forward has, and no other. */
static void test_recompute_names_every_forward_op(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        const struct op_info *info = op_info((enum op_kind)kind);
        struct arena arena = { 0 };
        struct err err;
        struct job j;
        char setting[64];

        snprintf(setting, sizeof setting, "recompute=[%s]", info->name);
        int is_accepted = read_job_with(&j, SMALL, setting, &arena, &err) == 0;
        if (is_accepted != (info->feature != FEATURE_NO_FORWARD))
            fail_msg("%s is %s (forward_ops in fields.c), but its row in ops/ says FEATURE_%s",
                     setting, is_accepted ? "accepted" : "refused",
                     is_accepted ? "NO_FORWARD" : "... of some models");
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_job),
        cmocka_unit_test(test_whole_job_further),
        cmocka_unit_test(test_recompute_list),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_layout_notes),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_steps_and_epochs),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_recompute_names_every_forward_op),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
