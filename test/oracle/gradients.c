/*
 * gradients.c - what test/oracle/families.py compares with PyTorch: loss, logits, every gradient
 *
 *     gradients FOLDER TOKENS SEQ_LEN OUT LAYOUT...
 *
 * TOKENS are int32, sequences of SEQ_LEN + 1. A layout is "TPxPP", or "TPsxPP" with sequence
 * parallel; each gets a file OUT.LAYOUT.safetensors with "loss" (nats a token, fp64) and the
 * gradients of fp32 under the folder's own names. OUT.logits.safetensors has "logits" [sequences x
 * (SEQ_LEN - h) x vocabulary] of the second half of each sequence over a cache: the first h + 1 =
 * SEQ_LEN / 2 + 1 tokens at once, then one at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "device/pool.h"
#include "kernels/kernels.h"
#include "serve/decode.h"
#include "support/hf_model.h"

#define TOKENS_MAX_BYTES ((size_t)1 << 24)

struct text {
    int n_sequences, seq_len;
    int32_t *tokens; /* as the file has them */
    int32_t *inputs, *targets;
};

static int read_text(struct text *text, const char *path, int seq_len, struct err *err)
{
    char *data;
    size_t n_bytes;

    if (file_read(path, TOKENS_MAX_BYTES, ERR_DATA, &data, &n_bytes, err) < 0)
        return -1;
    size_t n = n_bytes / sizeof(int32_t) / ((size_t)seq_len + 1);
    *text = (struct text){ .n_sequences = (int)n, .seq_len = seq_len, .tokens = (int32_t *)data };
    text->inputs = calloc(n * (size_t)seq_len, sizeof *text->inputs);
    text->targets = calloc(n * (size_t)seq_len, sizeof *text->targets);
    for (size_t s = 0; s < n; s++)
        for (size_t i = 0; i < (size_t)seq_len; i++) {
            const int32_t *at = text->tokens + s * ((size_t)seq_len + 1) + i;

            text->inputs[s * (size_t)seq_len + i] = at[0];
            text->targets[s * (size_t)seq_len + i] = at[1];
        }
    return n ? 0 : err_set(err, ERR_DATA, "%s has no sequence of %d tokens", path, seq_len + 1);
}

/* ---- files ---- */

/* tag: index into data. */
static int write_file(const char *path, struct safetensors_tensor *tensors, int n,
                      void *const *data, struct err *err)
{
    struct safetensors_writer *writer;
    uint64_t n_bytes, hash;

    safetensors_place(tensors, n);
    if (safetensors_create(&writer, path, tensors, n, NULL, 0, err) < 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (safetensors_write(writer, data[tensors[i].tag], tensors[i].end - tensors[i].begin,
                              err) < 0) {
            safetensors_abandon(writer);
            return -1;
        }
    return safetensors_finish(writer, &n_bytes, &hash, err);
}

static int write_gradients(const struct hf_model *model, struct outcome *outcome, const char *path,
                           struct err *err)
{
    int n_tensors = model->names->n_tensors, n = 0;
    struct arena arena = { 0 };
    struct safetensors_tensor *tensors =
        arena_array(&arena, struct safetensors_tensor, n_tensors + 1);
    void **data = arena_array(&arena, void *, n_tensors + 1);

    for (int i = 0; i < n_tensors; i++) {
        const struct hf_tensor *theirs = &model->names->tensors[i];
        int is_vector = theirs->whole->n_dims == 1;

        if (!hf_model_is_trained(model, i))
            continue;
        data[n] = arena_array(&arena, float, hf_model_size(model, i));
        hf_model_gradient(model, outcome, i, data[n]);
        tensors[n] =
            (struct safetensors_tensor){ .name = theirs->name,
                                         .type = SAFETENSORS_F32,
                                         .n_dims = is_vector ? 1 : 2,
                                         .shape = { hf_rows_rows(theirs), hf_rows_cols(theirs) },
                                         .tag = n };
        n++;
    }
    data[n] = &outcome->loss;
    tensors[n] = (struct safetensors_tensor){ .name = "loss", .type = SAFETENSORS_F64, .tag = n };
    int status = write_file(path, tensors, n + 1, data, err);
    arena_release(&arena);
    return status;
}

/* ---- what is computed ---- */

static int parse_layout(struct layout *layout, const char *text, struct err *err)
{
    char *end;
    long tp = strtol(text, &end, 10);
    int sequence_parallel = *end == 's';

    end += sequence_parallel;
    long pp = *end == 'x' ? strtol(end + 1, &end, 10) : 0;
    if (*end || tp < 1 || pp < 1 || tp * pp > LAYOUT_RANKS_MAX)
        return err_set(err, ERR_CONFIG, "layout %s is not TPxPP or TPsxPP", text);
    *layout = (struct layout){ .tp = (int)tp,
                               .dp = 1,
                               .pp = (int)pp,
                               .sequence_parallel = sequence_parallel,
                               .recompute = pp > 1 ? RECOMPUTE_KIND_FULL : RECOMPUTE_KIND_NONE };
    return 0;
}

static int feed_text(struct decoder *decoder, const struct text *text, int n_vocabulary, float *out,
                     struct err *err)
{
    int half = text->seq_len / 2;

    for (int s = 0; s < text->n_sequences; s++) {
        const int32_t *tokens = text->inputs + (int64_t)s * text->seq_len;

        decoder_reset(decoder);
        for (int i = half; i < text->seq_len; i++) {
            int n = i == half ? half + 1 : 1;
            const int32_t *next = i == half ? tokens : tokens + i;

            if (decoder_feed(decoder, &next, &n, err) < 0)
                return -1;
            memcpy(out, decoder_logits(decoder, 0), sizeof *out * (size_t)n_vocabulary);
            out += n_vocabulary;
        }
    }
    return 0;
}

static int write_logits(struct hf_model *model, const struct text *text, const char *path,
                        struct err *err)
{
    int half = text->seq_len / 2, n_vocabulary = model->experiment.spec.vocab_size, status = -1;
    struct safetensors_tensor tensor = { .name = "logits",
                                         .type = SAFETENSORS_F32,
                                         .n_dims = 3,
                                         .shape = { text->n_sequences, text->seq_len - half,
                                                    n_vocabulary } };
    size_t n = (size_t)text->n_sequences * (size_t)(text->seq_len - half) * (size_t)n_vocabulary;
    void *logits = calloc(n, sizeof(float));
    struct decoder *decoder = NULL;
    struct pool *pool = NULL;
    struct kernels *kernels = NULL;

    if (pool_create(&pool, 1, NULL, err) == 0 &&
        kernels_cpu_create(&kernels, pool, NULL, err) == 0 &&
        decoder_create(&decoder, &model->served, kernels, 1, text->seq_len, err) == 0 &&
        feed_text(decoder, text, n_vocabulary, logits, err) == 0)
        status = write_file(path, &tensor, 1, &logits, err);
    decoder_destroy(decoder);
    kernels_destroy(kernels);
    pool_destroy(pool);
    free(logits);
    return status;
}

static int compute(struct hf_model *model, const struct text *text, const char *out,
                   char *const *layouts, int n_layouts, struct err *err)
{
    char path[1024];

    model->experiment.n_sequences = text->n_sequences;
    model->experiment.seq_len = text->seq_len;
    model->experiment.tokens = text->inputs;
    model->experiment.targets = text->targets;
    snprintf(path, sizeof path, "%s.logits.safetensors", out);
    if (write_logits(model, text, path, err) < 0)
        return -1;
    for (int i = 0; i < n_layouts; i++) {
        struct outcome outcome;
        struct layout layout;

        if (parse_layout(&layout, layouts[i], err) < 0 ||
            layout_run(&model->experiment, &layout, &outcome, err) < 0)
            return -1;
        snprintf(path, sizeof path, "%s.%s.safetensors", out, layouts[i]);
        int status = write_gradients(model, &outcome, path, err);
        outcome_release(&outcome);
        if (status < 0)
            return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct hf_model model;
    struct text text = { 0 };
    struct err err;
    int status = 1;

    if (argc < 6) {
        fprintf(stderr, "usage: gradients FOLDER TOKENS SEQ_LEN OUT LAYOUT...\n");
        return 2;
    }
    int seq_len = (int)strtol(argv[3], NULL, 10);
    if (seq_len < 2 || read_text(&text, argv[2], seq_len, &err) < 0 ||
        hf_model_open(&model, argv[1], &err) < 0) {
        fprintf(stderr, "gradients: %s\n", seq_len < 2 ? "SEQ_LEN" : err.text);
    } else {
        status = compute(&model, &text, argv[4], argv + 5, argc - 5, &err) < 0;
        if (status)
            fprintf(stderr, "gradients: %s\n", err.text);
        hf_model_close(&model);
    }
    free(text.tokens);
    free(text.inputs);
    free(text.targets);
    return status;
}
