/*
 * adapter_test.c - adapters that peft wrote: its logits, added and merged; what is damaged is named
 *
 * scripts/golden/adapter.py made them, for the models of test/convert/golden.
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
#include "ckpt/adapter.h"
#include "convert/convert.h"
#include "device/pool.h"
#include "kernels/kernels.h"
#include "serve/decode.h"
#include "serve/served.h"
#include "support/temporary.h"

#define BASES "test/convert/golden/"
#define GOLDEN "test/ckpt/golden/adapter-"
#define TOLERANCE 1e-5
#define N_PROMPT 16
#define N_VOCAB_MAX 64

static const char *const names[] = { "llama", "qwen2",       "mixtral",  "gpt2",
                                     "bloom", "baichuan13b", "internlm2" };

#define N_NAMES ((int)(sizeof names / sizeof *names))

static struct pool *pool;
static struct kernels *kernels;
static char folder[256];
static struct arena arena;

static int open_all(void **state)
{
    struct err err;

    (void)state;
    return temporary_folder(folder, sizeof folder) < 0 || pool_create(&pool, 1, NULL, &err) < 0 ||
           kernels_cpu_create(&kernels, pool, NULL, &err) < 0;
}

static int close_all(void **state)
{
    struct err err;

    (void)state;
    kernels_destroy(kernels);
    pool_destroy(pool);
    arena_release(&arena);
    return file_remove_tree(folder, &err);
}

/* What comes behind the prompt; returns the largest magnitude. */
static void logits_of(struct served *served, float *out)
{
    int vocab_size = served->job.model.vocab_size, n = N_PROMPT;
    int32_t prompt[N_PROMPT];
    const int32_t *tokens[] = { prompt };
    struct decoder *decoder;
    struct err err;

    assert_true(vocab_size <= N_VOCAB_MAX);
    if (served->job.train.dtype == DTYPE_F16) /* theirs are of fp32 */
        served->job.train.dtype = DTYPE_F32;
    for (int i = 0; i < n; i++)
        prompt[i] = (i * 7919 + 3) % vocab_size;
    if (decoder_create(&decoder, served, kernels, 1, n, &err) < 0 ||
        decoder_feed(decoder, tokens, &n, &err) < 0)
        fail_msg("%s", err.text);
    memcpy(out, decoder_logits(decoder, 0), sizeof *out * (size_t)vocab_size);
    decoder_destroy(decoder);
}

static void must_be_close(const char *what, const float *got, const float *wanted, int n)
{
    double off = 0, largest = 0;

    for (int i = 0; i < n; i++) {
        off = fmax(off, fabs((double)got[i] - (double)wanted[i]));
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    if (!(off <= TOLERANCE * largest))
        fail_msg("%s: logits are off by %g of %g", what, off, largest);
}

static const char *base_of(const char *name)
{
    return arena_printf(&arena, BASES "%s", name);
}

static void read_golden(const char *adapter, float *out, int n)
{
    struct safetensors *file;
    struct err err;

    if (safetensors_open(&file, arena_printf(&arena, "%s/logits.safetensors", adapter), &err) < 0 ||
        safetensors_read(file, &file->index.tensors[0], 0, out, sizeof *out * (size_t)n, &err) < 0)
        fail_msg("%s", err.text);
    safetensors_close(file);
}

static void open_or_fail(struct served *served, const char *base, const char *adapter)
{
    struct err err;

    if (served_open_adapted(served, base, adapter, NULL, &err) < 0)
        fail_msg("%s", err.text);
}

static void logits_are_those_of_peft(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        const char *adapter = arena_printf(&arena, GOLDEN "%s", names[i]);
        float wanted[N_VOCAB_MAX], got[N_VOCAB_MAX], plain[N_VOCAB_MAX];
        struct served served;

        open_or_fail(&served, base_of(names[i]), adapter);
        int n = served.job.model.vocab_size;
        read_golden(adapter, wanted, n);
        logits_of(&served, got);
        served_close(&served);
        must_be_close(adapter, got, wanted, n);
        /* Which is another model. */
        open_or_fail(&served, base_of(names[i]), NULL);
        logits_of(&served, plain);
        served_close(&served);
        assert_true(fabs((double)plain[0] - (double)wanted[0]) > 1e-3);
    }
}

static void merge(const char *base, const char *adapter, const char *to, enum convert_kind kind)
{
    struct convert_options options = { .from = base,
                                       .to = to,
                                       .adapter = adapter,
                                       .as = kind,
                                       .tp = 1,
                                       .pp = 1,
                                       .dtype = DTYPE_F32,
                                       .max_shard_bytes = 1 << 20 };
    struct convert_result result;
    struct err err;

    if (convert_model(&options, &result, &err) < 0)
        fail_msg("%s: %s", adapter, err.text);
    assert_true(result.n_merged > 0);
}

/* Into a folder, and into a checkpoint; and a checkpoint into both. */
static void merged_is_the_same_model(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        const char *adapter = arena_printf(&arena, GOLDEN "%s", names[i]);
        const char *stored = arena_printf(&arena, "%s/%s-stored", folder, names[i]);
        const char *from[] = { base_of(names[i]), stored };
        float wanted[N_VOCAB_MAX], got[N_VOCAB_MAX];
        struct convert_options options = {
            .from = from[0], .to = stored, .as = CONVERT_CHECKPOINT, .tp = 1, .pp = 1, .dtype = -1
        };
        struct convert_result result;
        struct served served;
        struct err err;

        if (convert_model(&options, &result, &err) < 0)
            fail_msg("%s", err.text);
        read_golden(adapter, wanted, 40);
        for (int k = 0; k < 4; k++) {
            const char *to = arena_printf(&arena, "%s/%s-%d", folder, names[i], k);

            merge(from[k / 2], adapter, to, k % 2 ? CONVERT_CHECKPOINT : CONVERT_FOLDER);
            open_or_fail(&served, to, NULL);
            assert_int_equal(served.weights.store != NULL, k % 2);
            assert_null(served.weights.adapter);
            logits_of(&served, got);
            served_close(&served);
            must_be_close(to, got, wanted, 40);
        }
    }
}

/* ---- what is wrong ---- */

static void copy(const char *from, const char *to)
{
    char *data;
    size_t n_bytes;
    struct err err;

    if (file_read(from, 1 << 20, ERR_DATA, &data, &n_bytes, &err) < 0 ||
        file_write(to, data, n_bytes, &err) < 0)
        fail_msg("%s", err.text);
    free(data);
}

/* The adapter of llama with this text's first occurrence in config or header another one, as
 * long in the header. */
static const char *change(int in_tensors, const char *was, const char *is)
{
    static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors" };
    const char *bad = arena_printf(&arena, "%s/bad", folder);
    struct str text = { 0 };
    struct err err;
    size_t n_bytes;
    char *data;

    assert_int_equal(file_make_folder(bad, &err), 0);
    for (int i = 0; i < 2; i++)
        copy(arena_printf(&arena, GOLDEN "llama/%s", files[i]),
             arena_printf(&arena, "%s/%s", bad, files[i]));
    const char *path = arena_printf(&arena, "%s/%s", bad, files[in_tensors]);
    assert_int_equal(file_read(path, 1 << 20, ERR_DATA, &data, &n_bytes, &err), 0);
    char *at = memmem(data, n_bytes, was, strlen(was));
    assert_non_null(at);
    str_add_bytes(&text, data, (size_t)(at - data));
    str_add(&text, is);
    str_add_bytes(&text, at + strlen(was), n_bytes - strlen(was) - (size_t)(at - data));
    assert_int_equal(file_write(path, str_text(&text), text.length, &err), 0);
    str_release(&text);
    free(data);
    return bad;
}

static void refuse_changed(int in_tensors, const char *was, const char *is, const char *wanted)
{
    const char *bad = change(in_tensors, was, is);
    struct served served;
    struct err err;

    if (served_open_adapted(&served, BASES "llama", bad, NULL, &err) == 0)
        fail_msg("%s is taken for %s", is, was);
    assert_int_equal(err.code, ERR_DATA);
    if (!strstr(err.text, wanted))
        fail_msg("\"%s\" is not in: %s", wanted, err.text);
}

static void damage_is_named(void **state)
{
    struct served served;
    struct err err;

    (void)state;
    refuse_changed(0, "\"use_dora\": false", "\"use_dora\": true", "use_dora");
    refuse_changed(0, "\"LORA\"", "\"IA3\"", "IA3");
    refuse_changed(0, "\"down_proj\": 4", "\"(up|down)_proj\": 4",
                   "alpha_pattern has \"(up|down)_proj\", a regular expression, which is not "
                   "supported (hint: one entry per module name, such as");
    refuse_changed(0, "\"down_proj\": 4", "\"down_proj\": \"4\"",
                   "alpha_pattern: down_proj is not a number above 0");
    refuse_changed(0, "\"LORA\"", "\"LORA\\u0000x\"", "NUL byte");
    refuse_changed(0, "\"lora_alpha\": 12", "\"lora_alpha\": \"x\"", "lora_alpha");
    refuse_changed(0, "{", "[", "adapter_config.json");
    refuse_changed(0, "\"r\": 3", "\"r\": 4",
                   "lora_A.weight has rank 3, r of adapter_config.json says 4");
    refuse_changed(0, "\"r\": 3", "\"r\": 3.5", "r is not a whole number from 1 to 65536");
    refuse_changed(0, "\"r\": 3", "\"r\": 0", "r is not a whole number");
    refuse_changed(0, "\"q_proj\": 5", "\"q_proj\": 6",
                   "q_proj.lora_A.weight has rank 5, rank_pattern of adapter_config.json says 6");
    refuse_changed(1, "q_proj.lora_A", "q_proj.lora_X", "only one of lora_A and lora_B");
    refuse_changed(1, "layers.1.mlp", "layers.7.mlp", "only one of lora_A and lora_B");
    refuse_changed(1, "\"F32\"", "\"I32\"", "type");
    /* A file in place of its folder, and nothing. */
    assert_int_equal(
        served_open_adapted(&served, BASES "llama", GOLDEN "llama/adapter_config.json", NULL, &err),
        -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "adapter_config.json is neither a folder with "
                                     "adapter_config.json nor a run of lmtrain lora (hint: the "
                                     "folder, not a file in it)"));
    assert_int_equal(served_open_adapted(&served, BASES "llama", GOLDEN "none", NULL, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "golden/adapter-none is neither a folder with"));
    /* Of another model. */
    assert_int_equal(served_open_adapted(&served, BASES "qwen2", GOLDEN "bloom", NULL, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_int_equal(served_open_adapted(&served, BASES "mixtral", GOLDEN "llama", NULL, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text, "hint: does it belong to another model?"));
}

#define MERGE \
    "in peft merge_and_unload() and save_pretrained() of that model, which needs no adapter here)"
#define INIT "\"init_lora_weights\": true"

/* What peft has and lmtrain does not, each with what to do instead. */
static void variants_are_named(void **state)
{
    static const char *const changing[] = { "pissa", "pissa_niter_16", "olora", "OLoRA",
                                            "corda", "lora_ga",        "some" };
    static const char *const plain[] = { "gaussian", "eva", "orthogonal", "mica" };
    struct served served;
    struct err err;

    (void)state;
    for (size_t i = 0; i < sizeof changing / sizeof *changing; i++)
        refuse_changed(
            0, INIT, arena_printf(&arena, "\"init_lora_weights\": \"%s\"", changing[i]),
            arena_printf(&arena,
                         "init_lora_weights is %s, which changes the model's own weights: lmtrain "
                         "supports plain LoRA only (hint: in peft "
                         "save_pretrained(path_initial_model_for_weight_conversion=",
                         changing[i]));
    refuse_changed(0, INIT, "\"init_lora_weights\": \"loftq\"",
                   "supports plain LoRA only (hint: " MERGE);
    refuse_changed(0, INIT, "\"init_lora_weights\": {}", "init_lora_weights is of an unknown kind");
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        const char *bad =
            change(0, INIT, arena_printf(&arena, "\"init_lora_weights\": \"%s\"", plain[i]));
        if (served_open_adapted(&served, BASES "llama", bad, NULL, &err) < 0)
            fail_msg("%s", err.text);
        served_close(&served);
    }
    refuse_changed(0, "\"use_dora\": false", "\"use_dora\": true",
                   "use_dora is set, but lmtrain does not support DoRA (hint: " MERGE);
    refuse_changed(0, "\"alora_invocation_tokens\": null", "\"alora_invocation_tokens\": [1]",
                   "does not support activated LoRA (hint: only peft computes this");
    refuse_changed(0, "\"trainable_token_indices\": null", "\"trainable_token_indices\": [1, 2]",
                   "does not support training some rows of the embedding (hint: " MERGE);
    refuse_changed(1, "model.layers.1.mlp.down_proj.lora_A", "lm_head.lora_A.weight.x.y.z.u.v.w.x",
                   "lmtrain does not support LoRA of the head (hint: train the module in full with "
                   "modules_to_save; or " MERGE);
    refuse_changed(1, "model.layers.1.mlp.down_proj.lora_A", "model.embed_tokens.lora_embedding_A",
                   "lmtrain does not support LoRA of the embedding");
}

static void a_pickle_is_not_read(void **state)
{
    const char *bad = change(0, INIT, INIT);
    struct served served;
    struct err err;

    (void)state;
    assert_int_equal(rename(arena_printf(&arena, "%s/adapter_model.safetensors", bad),
                            arena_printf(&arena, "%s/adapter_model.bin", bad)),
                     0);
    assert_int_equal(served_open_adapted(&served, BASES "llama", bad, NULL, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_non_null(strstr(err.text,
                           "bad/adapter_model.bin is a pickle, which can run code when it "
                           "is read: lmtrain never does (hint: save it as safetensors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_peft), cmocka_unit_test(merged_is_the_same_model),
        cmocka_unit_test(damage_is_named),          cmocka_unit_test(variants_are_named),
        cmocka_unit_test(a_pickle_is_not_read),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
