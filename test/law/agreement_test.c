/*
 * agreement_test.c - layouts whose numerics differ agree
 *
 * Loss and every gradient of one step in fp32, put together from the ranks' parts: against
 * PyTorch's goldens for tp 1, 2 and 4 with and without sequence parallel, with dp and pp, and for
 * ranks that exchange heads, gather keys, or both, with all of these; and, for a vocabulary that no
 * degree divides, up to 8 data-parallel ranks, and micro-batches of several sequences, as many each
 * or not, against one rank's with one each. Per tensor the largest difference is at most 1e-5 of
 * the largest element. Ranks are threads.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ckpt/safetensors.h"
#include "golden/fill.h"
#include "support/layouts.h"
#include "support/tiny_model.h"

#define TOLERANCE 1e-5
#define N_SEQUENCES_MAX 16
#define N_ROWS_MAX (N_SEQUENCES_MAX * GOLDEN_SEQ_LEN)

/* Sequences of the goldens, of which all layouts compute the same. */
struct sample {
    struct experiment experiment;
    int32_t tokens[N_ROWS_MAX], targets[N_ROWS_MAX];
};

static void run_layout(struct sample *s, const struct layout *layout, struct outcome *outcome)
{
    struct err err;

    s->experiment.seq_len = GOLDEN_SEQ_LEN;
    s->experiment.tokens = s->tokens;
    s->experiment.targets = s->targets;
    s->experiment.weights = layout_golden_weights;
    if (layout_run(&s->experiment, layout, outcome, &err) < 0)
        fail_msg("%s", err.text);
}

/* ---- what it is compared with ---- */

static void check_scalar(const char *what, const char *name, double got, double wanted)
{
    if (!(fabs(got - wanted) <= TOLERANCE * fabs(wanted)))
        fail_msg("%s: %s is %.9g, wanted %.9g", what, name, got, wanted);
}

static void check_gradient(const char *what, const struct gradient *got, const float *wanted)
{
    double difference = 0, largest = 0;

    for (int64_t i = 0; i < got->rows * got->cols; i++) {
        double error = fabs((double)got->data[i] - (double)wanted[i]);

        difference = isnan(error) ? INFINITY : fmax(difference, error);
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    if (!(difference <= TOLERANCE * largest))
        fail_msg("%s: gradient of %s: error %g", what, got->name, difference / largest);
}

static void read_golden(const char *file, const char *tensor, void *out, size_t capacity)
{
    char path[256];
    struct safetensors *st;
    struct err err;

    snprintf(path, sizeof path, "test/golden/%s.safetensors", file);
    if (safetensors_open(&st, path, &err) < 0)
        fail_msg("%s", err.text);
    const struct safetensors_tensor *t = safetensors_find(&st->index, tensor);
    assert_non_null(t);
    assert_true(t->end - t->begin <= capacity);
    if (safetensors_read(st, t, 0, out, t->end - t->begin, &err) < 0)
        fail_msg("%s", err.text);
    safetensors_close(st);
}

static void check_goldens(const char *what, const char *model, const struct outcome *o)
{
    static float wanted[1 << 14];
    float loss;
    double norm;

    read_golden(model, "loss", &loss, sizeof loss);
    read_golden(model, "gradient_norm", &norm, sizeof norm);
    check_scalar(what, "loss", o->loss, (double)loss);
    check_scalar(what, "gradient norm", o->norm, norm);
    for (int i = 0; i < o->n_gradients; i++) {
        const char *name = o->gradients[i].name;
        char file[64];

        if (!strncmp(name, "layers.", 7))
            snprintf(file, sizeof file, "%s.layers.%c", model, name[7]);
        else
            snprintf(file, sizeof file, "%s", model);
        read_golden(file, name, wanted, sizeof wanted);
        check_gradient(what, &o->gradients[i], wanted);
    }
}

/* The golden models are the tiny ones without dropout, one of them tied. */
static struct model_spec golden_spec(const char *name)
{
    struct model_spec spec = tiny_spec(strcmp(name, "llama-tied") ? name : "llama");

    spec.max_seq_len = 32;
    spec.tied_embeddings = strcmp(name, "llama") != 0;
    spec.dropout = spec.attention_dropout = 0;
    return spec;
}

static const struct layout golden_layouts[] = {
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
    { 2, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
    { 2, 1, 1, 1, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
    { 4, 1, 1, 0, 0, RECOMPUTE_KIND_SELECTIVE, 1, 1, 0 },
    { 4, 1, 1, 1, 0, RECOMPUTE_KIND_FULL, 1, 1, 0 },
    { 1, 4, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
    { 2, 2, 1, 1, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
    { 2, 2, 2, 1, 1, RECOMPUTE_KIND_SELECTIVE, 1, 1, 0 },
    { 4, 1, 2, 0, 0, RECOMPUTE_KIND_SELECTIVE, 1, 1, 0 },
    { 2, 4, 1, 0, 1, RECOMPUTE_KIND_FULL, 1, 1, 0 },
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 2, 1, 0 },
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 2, 0 },
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_FULL, 4, 1, 0 },
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_FULL, 1, 4, 0 },
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_SELECTIVE, 2, 2, 0 },
    { 2, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 2, 1, 0 },
    { 2, 1, 1, 1, 0, RECOMPUTE_KIND_SELECTIVE, 2, 1, 0 },
    { 2, 1, 1, 0, 0, RECOMPUTE_KIND_FULL, 1, 2, 0 },
    { 2, 1, 1, 1, 0, RECOMPUTE_KIND_NONE, 1, 4, 0 },
    { 4, 1, 1, 1, 0, RECOMPUTE_KIND_NONE, 1, 2, 0 },
    { 1, 1, 2, 0, 0, RECOMPUTE_KIND_FULL, 4, 1, 0 },
    { 1, 1, 2, 0, 1, RECOMPUTE_KIND_SELECTIVE, 1, 4, 0 },
    { 1, 2, 1, 0, 1, RECOMPUTE_KIND_NONE, 4, 1, 0 },
    { 1, 2, 1, 0, 0, RECOMPUTE_KIND_FULL, 1, 4, 0 },
    { 1, 2, 1, 0, 1, RECOMPUTE_KIND_FULL, 2, 2, 0 },
    { 1, 4, 1, 0, 0, RECOMPUTE_KIND_SELECTIVE, 2, 1, 0 },
    { 2, 1, 2, 1, 0, RECOMPUTE_KIND_SELECTIVE, 2, 2, 0 },
    { 2, 2, 2, 1, 1, RECOMPUTE_KIND_FULL, 1, 2, 0 },
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 2, 1, 1 },
    { 1, 1, 1, 0, 0, RECOMPUTE_KIND_SELECTIVE, 4, 1, 1 },
    { 2, 1, 1, 0, 0, RECOMPUTE_KIND_FULL, 2, 1, 1 },
    { 2, 2, 1, 1, 1, RECOMPUTE_KIND_NONE, 2, 1, 1 },
    { 1, 2, 2, 0, 0, RECOMPUTE_KIND_FULL, 2, 1, 1 },
};

static void golden_model(const char *model)
{
    struct sample e = { .experiment = { .spec = golden_spec(model), .n_sequences = 4 } };
    struct outcome outcome;
    char what[128];

    golden_batch(GOLDEN_NO_STEP, e.experiment.spec.vocab_size, e.tokens, e.targets);
    for (size_t i = 0; i < sizeof golden_layouts / sizeof *golden_layouts; i++) {
        if (golden_layouts[i].fastseq &&
            e.experiment.spec.n_kv_heads % (golden_layouts[i].tp * golden_layouts[i].ulysses))
            continue;
        run_layout(&e, &golden_layouts[i], &outcome);
        layout_describe(&golden_layouts[i], what, sizeof what);
        check_goldens(what, model, &outcome);
        outcome_release(&outcome);
    }
}

static void llama(void **state)
{
    (void)state;
    golden_model("llama");
}

static void llama_tied(void **state)
{
    (void)state;
    golden_model("llama-tied");
}

static void gpt2(void **state)
{
    (void)state;
    golden_model("gpt2");
}

static void check_outcome(const char *what, const struct outcome *got, const struct outcome *wanted)
{
    check_scalar(what, "loss", got->loss, wanted->loss);
    check_scalar(what, "gradient norm", got->norm, wanted->norm);
    assert_int_equal(got->n_gradients, wanted->n_gradients);
    for (int k = 0; k < wanted->n_gradients; k++) {
        const struct gradient *g = &wanted->gradients[k];

        assert_non_null(outcome_find(got, g->name));
        check_gradient(what, outcome_find(got, g->name), g->data);
    }
}

/* Batches of the goldens one after the other. */
static void fill_batches(struct sample *e, int n)
{
    for (int step = 0; step < n; step++)
        golden_batch(step, e->experiment.spec.vocab_size, e->tokens + step * GOLDEN_BATCH_ROWS,
                     e->targets + step * GOLDEN_BATCH_ROWS);
}

/* 67 tokens, dropout where the model has it: one rank's loss and gradients. */
static void odd_vocabulary(const char *model, double dropout)
{
    static const struct layout layouts[] = {
        { 2, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
        { 2, 1, 1, 1, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
        { 4, 1, 1, 0, 0, RECOMPUTE_KIND_FULL, 1, 1, 0 },
        { 4, 1, 1, 1, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
        { 1, 2, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
        { 1, 4, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
        { 1, 8, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
        { 4, 2, 1, 1, 0, RECOMPUTE_KIND_SELECTIVE, 1, 1, 0 },
    };
    static const struct layout alone = { .tp = 1, .dp = 1, .pp = 1 };
    struct sample e = { .experiment = { .spec = golden_spec(model), .n_sequences = 8 } };
    struct outcome outcome, wanted;
    char what[128];

    e.experiment.spec.vocab_size = 67;
    e.experiment.spec.dropout = e.experiment.spec.attention_dropout = dropout;
    fill_batches(&e, 2);
    run_layout(&e, &alone, &wanted);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        run_layout(&e, &layouts[i], &outcome);
        layout_describe(&layouts[i], what, sizeof what);
        check_outcome(what, &outcome, &wanted);
        outcome_release(&outcome);
    }
    outcome_release(&wanted);
}

static void odd_llama(void **state)
{
    (void)state;
    odd_vocabulary("llama", 0);
}

static void odd_gpt2_with_dropout(void **state)
{
    (void)state;
    odd_vocabulary("gpt2", 0.1);
}

/* The same sequences, some at a time: only the order of sums is another. */
static void given_sizes(const char *model, double dropout)
{
    static const int ramps[] = { 1, 2, 4, 4, 2, 1, 2 }, mixed[] = { 3, 5, 1, 3, 4 };
    static const struct layout layouts[] = {
        { 1, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
        { 1, 1, 2, 0, 0, RECOMPUTE_KIND_SELECTIVE, 1, 1, 0 },
        { 2, 1, 1, 0, 0, RECOMPUTE_KIND_NONE, 1, 1, 0 },
        { 2, 1, 2, 1, 0, RECOMPUTE_KIND_FULL, 1, 1, 0 },
    };
    struct sample e = { .experiment = { .spec = golden_spec(model), .n_sequences = 16 } };
    struct outcome outcome, wanted;
    char text[128], what[160];

    e.experiment.spec.dropout = e.experiment.spec.attention_dropout = dropout;
    fill_batches(&e, 4);
    run_layout(&e, &layouts[0], &wanted);
    for (int k = 0; k < 8; k++) {
        const struct layout *layout = &layouts[k / 2];

        e.experiment.sizes = k % 2 ? mixed : ramps;
        e.experiment.n_sizes = k % 2 ? 5 : 7;
        run_layout(&e, layout, &outcome);
        layout_describe(layout, text, sizeof text);
        snprintf(what, sizeof what, "%s sizes, %s", k % 2 ? "mixed" : "ramps", text);
        check_outcome(what, &outcome, &wanted);
        outcome_release(&outcome);
    }
    outcome_release(&wanted);
}

static void sizes_of_micro_batches(void **state)
{
    (void)state;
    given_sizes("llama", 0);
    given_sizes("llama-tied", 0);
    given_sizes("gpt2", 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),
        cmocka_unit_test(llama_tied),
        cmocka_unit_test(gpt2),
        cmocka_unit_test(odd_llama),
        cmocka_unit_test(odd_gpt2_with_dropout),
        cmocka_unit_test(sizes_of_micro_batches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
