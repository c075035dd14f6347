/*
 * golden_test.c - tiny LLaMA and GPT-2 against PyTorch: loss, every gradient, 20 AdamW steps,
 * logits
 *
 * The whole way: the model's forward, the passes, place, run and the CPU's kernels. Tolerances are
 * those of test/golden/README.md; scripts/golden/mistakes.py shows that each likely mistake exceeds
 * one.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "ckpt/safetensors.h"
#include "golden/fill.h"
#include "model/compile.h"
#include "run/run.h"
#include "support/tiny_model.h"
#include "weights/init_weights.h"

#define VOCAB 96
#define TOLERANCE 1e-5
#define NORM_TOLERANCE 1e-4

/* A model on its way through a program, everything that is needed to run it. */
struct rig {
    struct model_spec spec;
    struct program program;
    struct pool *pool;
    struct kernels *kernels;
    struct run *run;
    int32_t tokens[GOLDEN_BATCH_ROWS], targets[GOLDEN_BATCH_ROWS];
    int position; /* of generation */
};

/* The golden models are the tiny ones without dropout, one of them tied. */
static struct model_spec golden_spec(const char *name)
{
    struct model_spec spec = tiny_spec(strcmp(name, "llama-tied") ? name : "llama");

    spec.max_seq_len = 32;
    spec.tied_embeddings = strcmp(name, "llama") != 0;
    spec.dropout = spec.attention_dropout = 0;
    return spec;
}

static void fail_with(const struct err *err)
{
    fail_msg("%s", err->text);
}

static void rig_open(struct rig *rig, const char *name)
{
    struct err err;

    memset(rig, 0, sizeof *rig);
    rig->spec = golden_spec(name);
    if (pool_create(&rig->pool, 2, NULL, &err) < 0 ||
        kernels_cpu_create(&rig->kernels, rig->pool, NULL, &err) < 0)
        fail_with(&err);
}

static void fill_weight(struct rig *rig, const struct parameter *p)
{
    static float x[1 << 14];
    int64_t n = p->rows * p->cols;
    void *weight = run_data(rig->run, p->weight, 0);

    assert_true(n <= (int64_t)(sizeof x / sizeof *x));
    golden_fill(p->name, x, n);
    for (int64_t i = 0; i < n; i++)
        if (rig->program.values[p->weight].dtype == DTYPE_BF16)
            ((uint16_t *)weight)[i] = bf16_from_float(x[i]);
        else
            ((float *)weight)[i] = x[i];
}

static void rig_run(struct rig *rig)
{
    struct run_options options = { .program = &rig->program, .kernels = rig->kernels };
    struct err err;

    if (run_create(&rig->run, &options, &err) < 0)
        fail_with(&err);
    init_constants(rig->run, &rig->program, &rig->spec);
    for (int i = 0; i < rig->program.n_parameters; i++) {
        const struct parameter *p = &rig->program.parameters[i];
        fill_weight(rig, p);
    }
}

static void rig_train_in(struct rig *rig, enum recompute_kind kind, int no_fuse, enum dtype dtype,
                         enum fp8_recipe fp8)
{
    struct run_scratch scratch = { .kernels = rig->kernels, .mesh = mesh_data_parallel(1) };
    struct compile_train options = {
        .model = &rig->spec,
        .mesh = mesh_data_parallel(1),
        .dtype = dtype,
        .fp8 = { .recipe = fp8 },
        .micro_batch = GOLDEN_MICRO_BATCH,
        .seq_len = GOLDEN_SEQ_LEN,
        .n_micro_batches = GOLDEN_N_MICRO_BATCHES,
        .recompute = kind,
        .no_fuse = no_fuse,
        .gradients = { .bucket_bytes = 1 << 14 },
        .update = { .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1 },
        .scratch = run_scratch_bytes,
        .scratch_context = &scratch,
    };
    struct err err;

    if (compile_train(&rig->program, &options, &err) < 0)
        fail_with(&err);
    rig_run(rig);
}

static void rig_train(struct rig *rig, enum recompute_kind kind, int no_fuse)
{
    rig_train_in(rig, kind, no_fuse, DTYPE_F32, FP8_NONE);
}

static void rig_close(struct rig *rig)
{
    run_destroy(rig->run);
    program_release(&rig->program);
    kernels_destroy(rig->kernels);
    pool_destroy(rig->pool);
}

static int load(void *context, int micro_batch, struct err *err)
{
    struct rig *rig = context;
    const struct ports *ports = &rig->program.ports;
    int32_t *positions = run_data(rig->run, ports->positions, micro_batch);
    size_t offset = (size_t)micro_batch * GOLDEN_ROWS, n_bytes = GOLDEN_ROWS * sizeof(int32_t);

    (void)err;
    memcpy(run_data(rig->run, ports->tokens, micro_batch), rig->tokens + offset, n_bytes);
    memcpy(run_data(rig->run, ports->targets, micro_batch), rig->targets + offset, n_bytes);
    for (int i = 0; i < GOLDEN_ROWS; i++)
        positions[i] = i % GOLDEN_SEQ_LEN;
    return 0;
}

/* One step on the golden batch; returns the mean loss. */
static double step(struct rig *rig, int number)
{
    const struct ports *ports = &rig->program.ports;
    struct run_hooks hooks = { .context = rig, .load = load };
    float *scalars = run_data(rig->run, ports->scalars, 0);
    int learned = 0;
    struct err err;

    golden_batch(number, VOCAB, rig->tokens, rig->targets);
    for (int i = 0; i < GOLDEN_BATCH_ROWS; i++)
        learned += rig->targets[i] >= 0;
    *(float *)run_data(rig->run, ports->loss_scale, 0) = 1.0f / (float)learned;
    scalars[SCALAR_LR] = 1e-2f;
    scalars[SCALAR_BIAS1] = (float)(1 - pow(0.9, number + 1));
    scalars[SCALAR_BIAS2] = (float)(1 - pow(0.95, number + 1));
    if (run_entry(rig->run, ENTRY_STEP, 0, &hooks, &err) < 0)
        fail_with(&err);
    return *(double *)run_data(rig->run, ports->loss_total, 0) / learned;
}

/* ---- the goldens ---- */

static int read_golden(const char *file, const char *tensor, void *out, size_t capacity)
{
    char path[256];
    struct safetensors *st;
    struct err err;

    snprintf(path, sizeof path, "test/golden/%s.safetensors", file);
    if (safetensors_open(&st, path, &err) < 0)
        fail_with(&err);
    const struct safetensors_tensor *t = safetensors_find(&st->index, tensor);
    int found = t != NULL;
    if (found) {
        assert_true(t->end - t->begin <= capacity);
        if (safetensors_read(st, t, 0, out, t->end - t->begin, &err) < 0)
            fail_with(&err);
    }
    safetensors_close(st);
    return found;
}

/* Gradients of layer N lie in MODEL.layers.N. */
static void read_gradient(const char *model, const char *name, float *out, size_t capacity)
{
    char file[64];

    if (!strncmp(name, "layers.", 7))
        snprintf(file, sizeof file, "%s.layers.%c", model, name[7]);
    else
        snprintf(file, sizeof file, "%s", model);
    assert_true(read_golden(file, name, out, capacity));
}

static double largest_error(const float *a, const float *b, int64_t n)
{
    double difference = 0, largest = 0;

    for (int64_t i = 0; i < n; i++) {
        difference = fmax(difference, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
        if (isnan(a[i]))
            return INFINITY;
    }
    return difference / largest;
}

static void check_gradients(const char *model, enum recompute_kind kind, int no_fuse)
{
    static float golden[1 << 14];
    struct rig rig;
    double norm;
    float loss;

    rig_open(&rig, model);
    rig_train(&rig, kind, no_fuse);
    double got = step(&rig, GOLDEN_NO_STEP);
    read_golden(model, "loss", &loss, sizeof loss);
    assert_true(fabs(got - (double)loss) <= TOLERANCE * (double)loss);
    for (int i = 0; i < rig.program.n_parameters; i++) {
        const struct parameter *p = &rig.program.parameters[i];
        read_gradient(model, p->name, golden, sizeof golden);
        double error =
            largest_error(run_data(rig.run, p->gradients[0], 0), golden, p->rows * p->cols);
        if (!(error <= TOLERANCE))
            fail_msg("%s: gradient of %s: error %g", model, p->name, error);
    }
    read_golden(model, "gradient_norm", &norm, sizeof norm);
    got = *(double *)run_data(rig.run, rig.program.ports.norm, 0);
    assert_true(fabs(got - norm) <= TOLERANCE * norm);
    rig_close(&rig);
}

static bool has_codes(const struct program *p, enum fp8_recipe fp8)
{
    for (int i = 0; i < p->n_functions; i++)
        for (int k = 0; k < p->functions[i].n_ops; k++) {
            const struct op *op = &p->functions[i].ops[k];
            int codes = op_info(op->kind)->codes_output - 1;

            if (codes >= 0 && op->out[fp8 == FP8_TENSOR ? codes + 1 : codes])
                return true;
        }
    return false;
}

/* Rows that products round themselves, or that were rounded by what made them: the same bits. */
static void check_codes(const char *model, enum fp8_recipe fp8)
{
    struct rig apart, fused;

    rig_open(&apart, model);
    rig_open(&fused, model);
    rig_train_in(&apart, RECOMPUTE_KIND_SELECTIVE, 1, DTYPE_BF16, fp8);
    rig_train_in(&fused, RECOMPUTE_KIND_SELECTIVE, 0, DTYPE_BF16, fp8);
    assert_true(has_codes(&fused.program, fp8));
    assert_false(has_codes(&apart.program, fp8));
    for (int i = 0; i < 2; i++)
        assert_true(step(&apart, i) == step(&fused, i));
    for (int i = 0; i < apart.program.n_parameters; i++) {
        const struct parameter *a = &apart.program.parameters[i], *b = &fused.program.parameters[i];

        assert_memory_equal(run_data(apart.run, a->gradients[0], 0),
                            run_data(fused.run, b->gradients[0], 0),
                            (size_t)(a->rows * a->cols) * sizeof(float));
    }
    rig_close(&apart);
    rig_close(&fused);
}

static void fp8_codes_of_producers(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        check_codes("llama", i ? FP8_TENSOR : FP8_BLOCKWISE);
        check_codes("gpt2", i ? FP8_TENSOR : FP8_BLOCKWISE);
    }
}

static void check_steps(const char *model)
{
    float losses[GOLDEN_N_STEPS], norms[GOLDEN_N_STEPS];
    struct rig rig;

    rig_open(&rig, model);
    rig_train(&rig, RECOMPUTE_KIND_SELECTIVE, 0);
    read_golden(model, "step_loss", losses, sizeof losses);
    read_golden(model, "step_gradient_norm", norms, sizeof norms);
    for (int i = 0; i < GOLDEN_N_STEPS; i++) {
        double loss = step(&rig, i);
        double norm = *(double *)run_data(rig.run, rig.program.ports.norm, 0);
        if (!(fabs(loss - (double)losses[i]) <= TOLERANCE * (double)losses[i]))
            fail_msg("%s: step %d: loss %.9g, golden %.9g", model, i, loss, (double)losses[i]);
        if (!(fabs(norm - (double)norms[i]) <= NORM_TOLERANCE * (double)norms[i]))
            fail_msg("%s: step %d: norm %.9g, golden %.9g", model, i, norm, (double)norms[i]);
    }
    rig_close(&rig);
}

/* ---- generation: prefill of a padded prompt, then one token at a time through the cache ---- */

static void rig_generate(struct rig *rig)
{
    struct run_scratch scratch = { .kernels = rig->kernels, .mesh = mesh_data_parallel(1) };
    struct compile_generate options = { .serving.model = &rig->spec,
                                        .serving.dtype = DTYPE_F32,
                                        .n_sequences = 1,
                                        .prefill_len = 8,
                                        .cache_len = 32,
                                        .serving.scratch = run_scratch_bytes,
                                        .serving.scratch_context = &scratch };
    struct err err;

    if (compile_generate(&rig->program, &options, &err) < 0)
        fail_with(&err);
    rig_run(rig);
}

/* Feed n tokens at the rig's position; logits of the last. */
static const float *feed(struct rig *rig, const int32_t *tokens, int n)
{
    const struct ports *ports = &rig->program.ports;
    int32_t *positions = run_data(rig->run, ports->positions, 0);
    struct err err;

    for (int i = 0; i < 8; i++)
        positions[i] = i < n ? rig->position + i : -1;
    memcpy(run_data(rig->run, ports->tokens, 0), tokens, (size_t)n * sizeof *tokens);
    *(int32_t *)run_data(rig->run, ports->last_rows, 0) = n - 1;
    if (run_entry(rig->run, n > 1 ? ENTRY_PREFILL : ENTRY_DECODE, 1, NULL, &err) < 0)
        fail_with(&err);
    rig->position += n;
    return run_data(rig->run, ports->logits, 0);
}

static void check_greedy(const char *model)
{
    static float golden[GOLDEN_N_GREEDY * VOCAB];
    int32_t prompt[GOLDEN_PROMPT_LEN], expected[GOLDEN_N_GREEDY];
    struct rig rig;

    rig_open(&rig, model);
    rig_generate(&rig);
    read_golden(model, "greedy", expected, sizeof expected);
    read_golden(model, "greedy_logits", golden, sizeof golden);
    golden_prompt(VOCAB, prompt);
    const float *logits = feed(&rig, prompt, GOLDEN_PROMPT_LEN);
    for (int i = 0; i < GOLDEN_N_GREEDY; i++) {
        int32_t best = 0;
        double error = largest_error(logits, golden + i * VOCAB, VOCAB);
        if (!(error <= TOLERANCE))
            fail_msg("%s: logits of token %d: error %g", model, i, error);
        for (int k = 1; k < VOCAB; k++)
            if (logits[k] > logits[best])
                best = k;
        assert_int_equal(best, expected[i]);
        logits = feed(&rig, &best, 1);
    }
    rig_close(&rig);
}

#define MODEL_TESTS(id, model) \
    static void id##_gradients(void **state) \
    { \
        (void)state; \
        check_gradients(model, RECOMPUTE_KIND_NONE, 0); \
    } \
    static void id##_gradients_unfused(void **state) \
    { \
        (void)state; \
        check_gradients(model, RECOMPUTE_KIND_NONE, 1); \
    } \
    static void id##_gradients_recomputed(void **state) \
    { \
        (void)state; \
        check_gradients(model, RECOMPUTE_KIND_FULL, 0); \
    } \
    static void id##_steps(void **state) \
    { \
        (void)state; \
        check_steps(model); \
    } \
    static void id##_greedy(void **state) \
    { \
        (void)state; \
        check_greedy(model); \
    }

MODEL_TESTS(llama, "llama")
MODEL_TESTS(llama_tied, "llama-tied")
MODEL_TESTS(gpt2, "gpt2")

#define MODEL_ROWS(id) \
    cmocka_unit_test(id##_gradients), cmocka_unit_test(id##_gradients_unfused), \
        cmocka_unit_test(id##_gradients_recomputed), cmocka_unit_test(id##_steps), \
        cmocka_unit_test(id##_greedy)

int main(void)
{
    const struct CMUnitTest tests[] = { MODEL_ROWS(llama), MODEL_ROWS(llama_tied), MODEL_ROWS(gpt2),
                                        cmocka_unit_test(fp8_codes_of_producers) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
