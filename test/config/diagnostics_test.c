/*
 * diagnostics_test.c - a mistake is said once, and what is another spelling of a value is none
 */
#include "config_fixture.h"

#include "config/man_fields.h"

#define M "model: llama-tiny\n"
#define D "data: {train: a}\n"
#define T "train: {steps: 10}\n"

/* What was given, but badly, is said once: it is not missing besides. */
static void test_bad_is_not_missing(void **state)
{
    static const char *const rows[][2] = {
        { M D "train: {steps: many}\n", "train.steps is many" },
        { M D "train: {steps: 0}\n", "train.steps is 0" },
        { M D "train: {steps: auto}\n", "3:16: train.steps is auto, but pretrain" },
        { M D "train: {steps: }\n", "train.steps is empty" },
        { M D "train: {steps: 1.5}\n", "train.steps is 1.5" },
        { M D "train: {steps: [3]}\n", "train.steps is a list" },
        { M D "train: {steps: '${LMTRAIN_NO_SUCH}'}\n", "LMTRAIN_NO_SUCH is not set" },
        { M D "train: {stesp: 3}\n", "unknown key train.stesp" },
        { M D "train: {max_steps: 3}\n", "unknown key train.max_steps" },
        { M D "train: 3\n", "train is \"3\", not a map" },
        { M D "train: '${LMTRAIN_NO_SUCH}'\n", "LMTRAIN_NO_SUCH is not set" },
        { M D "trian: {steps: 3}\n", "unknown key trian" },
        { M D "kind: finetun\n", "kind is finetun" },
        { M T "data: {train: []}\n", "data.train is an empty list" },
        { M T "data: {train: {pth: a}}\n", "unknown key data.train.pth" },
        { M T "data: {train: {path: }}\n", "data.train.path is empty or not a string" },
        { M T "data: a\n", "data is \"a\", not a map" },
        { M T "data: {dataset: a}\n", "unknown key data.dataset" },
        { "modle: llama-tiny\n" D T, "unknown key modle" },
        { "model: [a]\n" D T, "model is not the name" },
        { "model: '${LMTRAIN_NO_SUCH}'\n" D T, "LMTRAIN_NO_SUCH is not set" },
        { "model: {from: '${LMTRAIN_NO_SUCH}'}\n" D T, "LMTRAIN_NO_SUCH is not set" },
        { "model: {from: llama-tiny, vocab_size: x}\n" D T, "model.vocab_size is x" },
        { "model_name_or_path: x\n" D T, "unknown key model_name_or_path" },
    };
    struct arena arena = { 0 };
    struct err err;
    struct job job;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(read_job(&job, rows[i][0], &arena, &err), -1);
        if (!strstr(err.text, rows[i][1]) || strchr(err.text, '\n') || strstr(err.text, "missing"))
            fail_msg("%s\ngave \"%s\"\nnot  \"%s\" alone", rows[i][0], err.text, rows[i][1]);
    }
    assert_int_equal(read_job_with(&job, M D T, "train.steps=x", &arena, &err), -1);
    assert_null(strstr(err.text, "missing"));
    /* A number of epochs is not one of steps. */
    assert_int_equal(read_job(&job, M D "train: {num_epochs: 3}\n", &arena, &err), -1);
    assert_non_null(strstr(err.text, "\nj.yaml: train.steps is missing"));
    arena_release(&arena);
}

/* torch's names of dtypes are read, and printed as ours. */
static void test_torch_dtypes(void **state)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } rows[] = { { "float32", DTYPE_F32 }, { "bfloat16", DTYPE_BF16 }, { "float16", DTYPE_F16 } };
    struct arena arena = { 0 };
    struct str out = { 0 };
    struct err err;
    struct job job;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *set = arena_printf(&arena, "train.dtype=%s", rows[i].name);

        assert_int_equal(read_job_with(&job, SMALL, set, &arena, &err), 0);
        assert_int_equal(job.train.dtype, rows[i].dtype);
        str_clear(&out);
        job_print(&job, &out);
        assert_null(strstr(out.data, "float"));
    }
    assert_int_equal(read_job_with(&job, SMALL, "optimizer.states=bfloat16", &arena, &err), 0);
    assert_int_equal(job.optimizer.states, DTYPE_BF16);
    /* What a field does not have has no other spelling. */
    assert_int_equal(read_job_with(&job, SMALL, "optimizer.states=float16", &arena, &err), -1);
    assert_non_null(strstr(err.text, "optimizer.states is float16, not one of fp32, bf16"));
    str_release(&out);
    arena_release(&arena);
}

/* What people write as an option and is a field. */
static void test_option_hints(void **state)
{
    static const struct {
        const char *name, *value;
        int exact;
        const char *hint;
    } rows[] = {
        { "steps", "5", 1, "--set train.steps=5" },
        { "steps", NULL, 1, "--set train.steps=VALUE" },
        { "seq-len", "512", 1, "--set data.seq_len=512" },
        { "train.steps", "5", 1, "--set train.steps=5" },
        { "train.stesp", "5", 1, NULL },
        { "train.stesp", "5", 0, "--set train.steps=5" },
        { "learning_rate", "1e-3", 1, "--set optimizer.lr=1e-3" },
        { "model", "x", 1, "--set model=x" },
        { "data", "x", 1, "--set data.train=x" },
        { "bf16", NULL, 1, "--set train.dtype=bf16" },
        { "batch-size", "4", 1, "--set train.micro_batch=4, or train.global_batch over all ranks" },
        { "gradient_accumulation_steps", "4", 1,
          "--set train.global_batch=VALUE, that is micro_batch * accumulation steps * dp" },
        { "resume_from_checkpoint", "x", 1, "the option --resume of lmtrain pretrain" },
        { "report-to", "x", 1, "nothing: metrics.jsonl and TensorBoard events are always written" },
        { "eval.batch", "1", 0, "--set eval.batches=1" },
        { "optimizer", "x", 1, NULL },
        { "qqqqqqqqqq", "x", 0, NULL },
    };
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *hint = job_option_hint(rows[i].name, rows[i].value, rows[i].exact, &arena);

        if (!hint != !rows[i].hint || (hint && strcmp(hint, rows[i].hint) != 0))
            fail_msg("%s: %s", rows[i].name, hint ? hint : "nothing");
    }
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_is_not_missing),
        cmocka_unit_test(test_torch_dtypes),
        cmocka_unit_test(test_option_hints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
