/*
 * print_test.c - what is printed reads back to the same job
 */
#include "config_fixture.h"

#include <math.h>

#include "base/rng.h"
#include "config/fields_impl.h"

/* YAML and JSON of a job both read back to a job that prints the same. */
static void check_round_trip(const struct job *job, struct arena *arena)
{
    struct str yaml = { 0 }, json = { 0 }, again = { 0 };
    struct job from_yaml, from_json;

    job_print(job, &yaml);
    must_read(&from_yaml, yaml.data, arena);
    job_print(&from_yaml, &again);
    assert_string_equal(again.data, yaml.data);
    job_print_json(job, &json);
    must_read(&from_json, json.data, arena);
    str_clear(&again);
    job_print(&from_json, &again);
    assert_string_equal(again.data, yaml.data);
    assert_memory_equal(&from_yaml.model, &job->model, sizeof job->model);
    assert_memory_equal(&from_json.optimizer.lr, &job->optimizer.lr, sizeof(double));
    str_release(&yaml);
    str_release(&json);
    str_release(&again);
}

static void test_jobs(void **state)
{
    static const char *const jobs[] = {
        SMALL,
        "{model: gpt2, data: {train: [a, {path: b, weight: 0.1}]}, train: {steps: 7, seed: "
        "9223372036854775807}, optimizer: {lr: 0.00012345678901234567}}",
        "{model: {from: llama-7b, name: 'x: \"y\" #z'}, data: {train: 'a, b: [c] {d}', tokenizer: "
        "''''},"
        " train: {steps: 1}, output: \"no\"}",
        "{model: llama-tiny, data: {train: \"\\t\\u00e9\\\\ '\"}, train: {steps: 1}, output: '12'}",
        /* What YAML takes for a line's end, or would not read, if it were not escaped. */
        "{model: {from: llama-tiny, name: \"a \\Nb \\L\\P c\"}, data: {train: \"\\x01 \\x7F "
        "\\x80 \\x9f \\_ \\uFEFF \\uFFFE \\uFFFF\"}, train: {steps: 1}}",
        "{model: llama-tiny, data: {train: x}, train: {steps: 1, global_batch: 6}, parallel: "
        "{schedule: dynamic, micro_batches: [1, 3, 2]}}",
        "{model: llama-tiny, data: {train: x}, train: {steps: 1}, parallel: {pp: 2, stages: [1, "
        "1]}}",
        "{model: llama-tiny, data: {train: x}, train: {steps: 1}, recompute: [rmsnorm]}",
        "{model: llama-tiny, data: {train: x}, train: {steps: 1}, parallel: auto}",
        "{model: llama-tiny, data: {train: x}, train: {steps: 1}, recompute: full, parallel: "
        "{mode: semi, tp: 2, zero: 1}, search: {schedules: [gpipe, zb-v]}, cluster: dgx-h100}",
        "{model: llama-tiny, data: {train: x}, train: {steps: 1, global_batch: 8, micro_batch: 1}, "
        "parallel: {replica_micro_batches: [5, 3]}, trace: {steps: [3], ranks: [0, 1]}}",
        "{model: gpt2, data: {train: x}, train: {steps: 1}, recompute: [linear, gelu, "
        "layernorm]}",
        "{model: llama-tiny, data: {train: '$${HOME}', tokenizer: '~'}, train: {steps: 1}, "
        "output: 'null'}",
        "{model: llama-tiny, data: {train: -}, train: {steps: 1}, output: 0x1F, eval: {data: "
        ".inf}}",
        "{model: {from: llama-tiny, name: '5'}, data: {train: '1e5'}, train: {steps: 1}, output: "
        "1.5}",
        "{model: llama-tiny, data: {train: 'a\\nb'}, train: {steps: 1}, output: '-x', parallel: "
        "{dp: 4, gradient_sum: early, tp: 2, schedule: gpipe, zero: 3, zero_group: 2, hold: run}, "
        "debug: {poison: true}}",
    };
    struct arena arena = { 0 };
    struct err err;
    struct job j;

    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        must_read(&j, jobs[i], &arena);
        check_round_trip(&j, &arena);
    }
    must_read(&j, SMALL, &arena);
    assert_int_equal(job_resolve(&j, 4, &arena, &err), 0);
    check_round_trip(&j, &arena);
    arena_release(&arena);
}

/* A job above has it, or memory_test.c, masters_test.c, experts_test.c, fp8_layers_test.c,
 * job_mistakes_test.c. */
static bool needs_another_key(const char *override)
{
    static const char *const overrides[] = {
        "parallel.schedule=dynamic", "memory.update=host",           "optimizer.masters=split",
        "moe.drop=probability",      "train.fp8=blockwise",          "train.fp8=tensor",
        "optimizer.name=sgd",        "optimizer.decay_shape=cosine", "optimizer.decay_shape=1-sqrt",
        "train.fp8_experts=fp8",     "train.fp8_gradients=e5m2",
    };

    for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++)
        if (!strcmp(override, overrides[i]))
            return true;
    return false;
}

/* Every field of the table is in the print, set to something else than its default. */
static void test_every_choice(void **state)
{
    struct arena arena = { 0 };
    struct job j;

    (void)state;
    for (int i = 0; i < n_job_fields; i++)
        for (const struct choice *c = job_fields[i].choices; c && c->word; c++) {
            struct err err = { 0 };
            struct str out = { 0 };
            const char *override = arena_printf(&arena, "%s=%s", job_fields[i].key, c->word);

            if (needs_another_key(override))
                continue;
            if (read_job_with(&j, SMALL, override, &arena, &err))
                fail_msg("%s: %s", override, err.text);
            field_print(&job_fields[i], &j, &out);
            assert_string_equal(out.data, c->word);
            str_release(&out);
        }
    arena_release(&arena);
}

static void test_floats(void **state)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = { { 0, "0.0" },          { 1, "1.0" },        { 0.1, "0.1" },
                 { 3e-4, "0.0003" },    { 3e-5, "3.0e-5" },  { 1e-8, "1.0e-8" },
                 { 120, "120.0" },      { 1e4, "10000.0" },  { 1e15, "1.0e15" },
                 { -2.5, "-2.5" },      { 5e5, "500000.0" }, { 1.0 / 3, "0.3333333333333333" },
                 { 1.5e300, "1.5e300" } };
    struct str out = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        str_clear(&out);
        field_print_float(&out, rows[i].value);
        assert_string_equal(out.data, rows[i].text);
    }
    for (uint64_t i = 0; i < 20000; i++) {
        struct rng_block r = rng_at(3, RNG_TEST, 0, i);
        double value = ((double)r.word[0] + 0.5) * exp((double)(int32_t)r.word[1] * 1e-7), again;

        str_clear(&out);
        field_print_float(&out, value);
        assert_int_equal(str_to_f64(out.data, &again), 0);
        assert_memory_equal(&value, &again, sizeof value);
    }
    str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs),
        cmocka_unit_test(test_every_choice),
        cmocka_unit_test(test_floats),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
