/*
 * tokenizer_unigram.c - a model of type Unigram in tokenizer.json
 *
 * All its pieces take part, those of bytes and the special ones too, as HF has it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tokenizer/hf/tokenizer_reader.h"

/*
 * A score as HF reads it: its JSON library divides the digits, as a double, by a power of ten,
 * which is not always the nearest double. Ties between ways hang on that. The file's digits are the
 * shortest that give the number, as every writer of JSON has them.
 */
static double as_read(double score)
{
    char text[40];
    int precision = 1;

    do
        snprintf(text, sizeof text, "%.*e", precision - 1, score);
    while (strtod(text, NULL) != score && ++precision <= 17);
    uint64_t digits = 0;
    int exponent = 1 - precision;
    const char *c = text + (*text == '-');
    for (; *c != 'e'; c++)
        if (*c != '.')
            digits = digits * 10 + (uint64_t)(*c - '0');
    exponent += (int)strtol(c + 1, NULL, 10);
    double value = (double)digits, power = 1;
    if (abs(exponent) > 22)
        return score; /* no score is so near to zero or so far from it */
    for (int i = 0; i < abs(exponent); i++)
        power *= 10; /* exact */
    value = exponent < 0 ? value / power : value * power;
    return score < 0 ? -value : value;
}

static int read_pieces(struct tokenizer_reader *r, const cJSON *vocab, struct unigram_piece *pieces,
                       int *n_pieces)
{
    struct bpe *bpe = &r->tokenizer->bpe;
    const cJSON *item;
    size_t n_bytes = 0;
    int id = 0;

    cJSON_ArrayForEach(item, vocab)
    {
        const cJSON *text = cJSON_IsArray(item) ? item->child : NULL;
        const cJSON *score = text ? text->next : NULL;

        if (!cJSON_IsString(text) || !cJSON_IsNumber(score) || !isfinite(score->valuedouble))
            return REFUSE(r, "%s: model.vocab[%d] is not a pair of piece and score", r->name, id);
        size_t n = strlen(text->valuestring);
        n_bytes += n;
        if (n_bytes >= UNIGRAM_BYTES_MAX)
            return REFUSE(r, "%s: model.vocab has more than %zu bytes", r->name, UNIGRAM_BYTES_MAX);
        if (bpe_add_token(bpe, id, text->valuestring, n) < 0)
            return REFUSE(r, "%s: model.vocab[%d]: '%s' occurs twice", r->name, id,
                          text->valuestring);
        if (n > 0)
            pieces[(*n_pieces)++] = (struct unigram_piece){ .text = bpe->tokens[id].spelling,
                                                            .n_bytes = n,
                                                            .id = id,
                                                            .score = as_read(score->valuedouble) };
        id++;
    }
    return 0;
}

int tokenizer_read_unigram(struct tokenizer_reader *r, const cJSON *model)
{
    struct tokenizer *t = r->tokenizer;
    const cJSON *vocab = get(model, "vocab");
    int n = cJSON_GetArraySize(vocab), n_pieces = 0;
    int unknown = tokenizer_json_id(get(model, "unk_id"), n);

    if (!cJSON_IsArray(vocab) || n == 0 || n > TOKENIZER_IDS_MAX)
        return REFUSE(r, "%s: model.vocab is not a list of pieces", r->name);
    if (unknown < 0)
        return REFUSE(r, "%s: model.unk_id is not in 0..%d", r->name, n - 1);
    bpe_init(&t->bpe, &t->arena, false, n, n);
    t->vocab_size = n;
    struct unigram_piece *pieces = arena_array(&t->arena, struct unigram_piece, n);
    if (read_pieces(r, vocab, pieces, &n_pieces) < 0)
        return -1;
    t->bpe.unknown = unknown;
    t->bpe.fuse_unknown = 1;
    int missing = cJSON_IsTrue(get(model, "byte_fallback")) ? bpe_find_fallback(&t->bpe) : -1;
    if (missing >= 0)
        return REFUSE(r, "%s: model.byte_fallback without a piece <0x%02X>", r->name,
                      (unsigned)missing);
    t->is_unigram = true;
    return unigram_init(&t->unigram, &t->arena, pieces, n_pieces, false) < 0
               ? err_set(r->err, ERR_DEVICE, "%s: out of host memory", r->name)
               : 0;
}
