/*
 * samples.c - a sample is a document of an indexed file, a token id * 2 + learned
 */
#include "data/instruct/samples.h"

#include <stdlib.h>

int samples_open(struct samples *samples, const char *prefix, int vocab_size, struct err *err)
{
    struct indexed tokens;

    CHECK(vocab_size > 0);
    if (vocab_size > INT32_MAX / 2)
        return err_set(err, ERR_CONFIG, "vocab_size is %d, not at most %d", vocab_size,
                       INT32_MAX / 2);
    if (indexed_open(&tokens, prefix, err) < 0)
        return -1;
    *samples = (struct samples){ tokens, tokens.n_documents, vocab_size };
    return 0;
}

void samples_close(struct samples *samples)
{
    indexed_close(&samples->tokens);
    samples->n = 0;
}

int64_t samples_length(const struct samples *samples, int64_t i)
{
    return indexed_document_start(&samples->tokens, i + 1) -
           indexed_document_start(&samples->tokens, i);
}

int samples_read(const struct samples *samples, int64_t i, int32_t *ids, uint8_t *learned,
                 struct err *err)
{
    int64_t start = indexed_document_start(&samples->tokens, i), n = samples_length(samples, i);

    if (indexed_read(&samples->tokens, start, n, samples->vocab_size * 2, ids, err) < 0)
        return err_set(err, ERR_DATA,
                       "%s: sample %lld has a token that is not in the model's vocabulary of %d "
                       "(hint: model.vocab_size, or was it made with another tokenizer?)",
                       samples->tokens.prefix, (long long)i, samples->vocab_size);
    for (int64_t t = 0; t < n; t++) {
        learned[t] = ids[t] & 1;
        ids[t] >>= 1;
    }
    return 0;
}

int samples_writer_open(struct indexed_writer *writer, const char *prefix, int vocab_size,
                        struct err *err)
{
    CHECK(vocab_size > 0);
    if (vocab_size > INT32_MAX / 2)
        return err_set(err, ERR_CONFIG, "vocab_size is %d, not at most %d", vocab_size,
                       INT32_MAX / 2);
    return indexed_writer_open(writer, prefix, vocab_size * 2, err);
}

int samples_writer_add(struct indexed_writer *writer, const int32_t *ids, const uint8_t *learned,
                       int64_t n, struct err *err)
{
    int32_t *values = malloc(sizeof *values * (size_t)(n > 0 ? n : 1));

    if (!values)
        return err_set(err, ERR_DEVICE, "out of host memory for a sample of %lld tokens",
                       (long long)n);
    for (int64_t t = 0; t < n; t++)
        values[t] = ids[t] * 2 + (learned[t] != 0);
    int rc = indexed_writer_add(writer, values, n, err);
    free(values);
    return rc;
}
