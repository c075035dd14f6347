/*
 * families_test.c - every family of Hugging Face, by layouts whose numerics differ, is PyTorch's
 *
 * Loss and gradients of test/convert/golden (scripts/golden/convert.py, moe.py) in fp32, under the
 * folders' own names: per tensor the largest difference is at most 1e-5 of the largest element.
 * Ranks are threads.
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

#include "support/hf_model.h"

#define GOLDEN "test/convert/golden/"
#define TOLERANCE 1e-5
#define N_SEQUENCES 4
#define SEQ_LEN 16
#define N_ROWS (N_SEQUENCES * SEQ_LEN)

static const struct layout layouts[] = {
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
    { 2, 1, 1, 0, 0, RECOMPUTE_KIND_SELECTIVE, 1, 1, 0 },
    { 2, 1, 1, 1, 0, RECOMPUTE_KIND_FULL, 1, 1, 0 },
    { 4, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
    { 4, 1, 1, 1, 0, RECOMPUTE_KIND_SELECTIVE, 1, 1, 0 },
    { 1, 2, 2, 0, 0, RECOMPUTE_KIND_FULL, 1, 1, 0 },
    { 2, 1, 2, 1, 1, RECOMPUTE_KIND_NONE, 1, 1, 0 },
    { 2, 2, 2, 1, 0, RECOMPUTE_KIND_SELECTIVE, 1, 1, 0 },
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 4, 0 },
    { 1, 1, 2, 0, 0, RECOMPUTE_KIND_FULL, 2, 2, 0 },
};

static void fill_text(int vocab_size, int32_t *tokens, int32_t *targets)
{
    for (int s = 0; s < N_SEQUENCES; s++)
        for (int i = 0; i < SEQ_LEN; i++) {
            int at = s * (SEQ_LEN + 1) + i, next = at + 1;

            tokens[s * SEQ_LEN + i] = (at * 7919 + at * at / 3) % vocab_size;
            targets[s * SEQ_LEN + i] = (next * 7919 + next * next / 3) % vocab_size;
        }
}

/* Into memory that is the caller's. */
static float *read_golden(const struct safetensors *file, const char *name, int64_t n)
{
    const struct safetensors_tensor *tensor = safetensors_find(&file->index, name);
    float *data = malloc(sizeof *data * (size_t)n);
    struct err err;

    if (!tensor)
        fail_msg("no golden of %s", name);
    assert_int_equal(tensor->end - tensor->begin, sizeof *data * (size_t)n);
    if (safetensors_read(file, tensor, 0, data, sizeof *data * (size_t)n, &err) < 0)
        fail_msg("%s", err.text);
    return data;
}

static double off(const float *got, const float *wanted, int64_t n)
{
    double difference = 0, largest = 0;

    for (int64_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - (double)wanted[i]);

        difference = isnan(error) ? INFINITY : fmax(difference, error);
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    return difference / largest;
}

static void check_layout(const struct hf_model *model, const struct safetensors *golden,
                         const struct layout *layout)
{
    struct outcome outcome;
    struct err err;
    char what[128];

    layout_describe(layout, what, sizeof what);
    if (layout_run(&model->experiment, layout, &outcome, &err) < 0)
        fail_msg("%s: %s", model->names->family, err.text);
    float *loss = read_golden(golden, "loss", 1);
    if (!(fabs(outcome.loss - (double)*loss) <= TOLERANCE * (double)*loss))
        fail_msg("%s, %s: loss is %.9g, wanted %.9g", model->names->family, what, outcome.loss,
                 (double)*loss);
    free(loss);
    for (int i = 0; i < model->names->n_tensors; i++) {
        if (!hf_model_is_trained(model, i))
            continue;
        const char *name = model->names->tensors[i].name;
        int64_t n = hf_model_size(model, i);
        float *wanted = read_golden(golden, name, n), *got = malloc(sizeof *got * (size_t)n);

        hf_model_gradient(model, &outcome, i, got);
        double error = off(got, wanted, n);
        if (!(error <= TOLERANCE))
            fail_msg("%s, %s: gradient of %s is off by %g", model->names->family, what, name,
                     error);
        free(wanted);
        free(got);
    }
    outcome_release(&outcome);
}

static void check_family(const char *name)
{
    int32_t tokens[N_ROWS], targets[N_ROWS];
    struct safetensors *golden;
    struct hf_model model;
    char path[128];
    struct err err;

    snprintf(path, sizeof path, GOLDEN "%s", name);
    if (hf_model_open(&model, path, &err) < 0)
        fail_msg("%s", err.text);
    snprintf(path, sizeof path, GOLDEN "%s/gradients.safetensors", name);
    if (safetensors_open(&golden, path, &err) < 0)
        fail_msg("%s", err.text);
    int n_trained = 0;
    for (int i = 0; i < model.names->n_tensors; i++)
        n_trained += hf_model_is_trained(&model, i);
    assert_int_equal(golden->index.n_tensors, n_trained + 1);
    fill_text(model.experiment.spec.vocab_size, tokens, targets);
    model.experiment.n_sequences = N_SEQUENCES;
    model.experiment.seq_len = SEQ_LEN;
    model.experiment.tokens = tokens;
    model.experiment.targets = targets;
    /* A balance of all layers together is not for stages; law_test has that of each layer there. */
    int is_pooled = model.experiment.spec.router_balance > 0 &&
                    model.experiment.spec.router_balance_kind == ROUTER_BALANCE_POOLED;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i].pp == 1 || !is_pooled)
            check_layout(&model, golden, &layouts[i]);
    safetensors_close(golden);
    hf_model_close(&model);
}

#define FAMILY(name) \
    static void name(void **state) \
    { \
        (void)state; \
        check_family(#name); \
    }

FAMILY(llama)
FAMILY(gpt2)
FAMILY(qwen2)
FAMILY(qwen3)
FAMILY(mistral)
FAMILY(bloom)
FAMILY(internlm2)
FAMILY(baichuan)
FAMILY(baichuan13b)
FAMILY(baichuan2)
FAMILY(mixtral)
FAMILY(qwen3moe)
FAMILY(qwen2moe)
FAMILY(dots1)
FAMILY(deepseek)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),     cmocka_unit_test(gpt2),     cmocka_unit_test(qwen2),
        cmocka_unit_test(qwen3),     cmocka_unit_test(mistral),  cmocka_unit_test(bloom),
        cmocka_unit_test(internlm2), cmocka_unit_test(baichuan), cmocka_unit_test(baichuan13b),
        cmocka_unit_test(baichuan2), cmocka_unit_test(mixtral),  cmocka_unit_test(qwen3moe),
        cmocka_unit_test(qwen2moe),  cmocka_unit_test(dots1),    cmocka_unit_test(deepseek),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
