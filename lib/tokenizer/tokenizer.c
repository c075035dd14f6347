/*
 * tokenizer.c - questions to a tokenizer, lists of ids, and ids to text
 */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_impl.h"

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    arena_release(&tokenizer->arena);
    free(tokenizer);
}

int tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
    return tokenizer->vocab_size;
}

int tokenizer_end_of_text(const struct tokenizer *tokenizer)
{
    return tokenizer->end_of_text;
}

int tokenizer_find(const struct tokenizer *tokenizer, const char *token)
{
    for (int i = 0; i < tokenizer->n_added; i++)
        if (strcmp(tokenizer->added[i].shown, token) == 0)
            return tokenizer->added[i].id;
    return bpe_find(&tokenizer->bpe, token, strlen(token));
}

void tokenizer_guess_end_of_text(struct tokenizer *tokenizer)
{
    static const char *const names[] = { "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>",
                                         "<|im_end|>" };

    tokenizer->end_of_text = -1;
    for (size_t i = 0; i < sizeof names / sizeof *names && tokenizer->end_of_text < 0; i++)
        tokenizer->end_of_text = tokenizer_find(tokenizer, names[i]);
}

static void set_join(struct tokenizer *t, int a, int b, int joins)
{
    t->joins[a][b >> 3] = (uint8_t)((t->joins[a][b >> 3] & ~(1 << (b & 7))) | joins << (b & 7));
}

/* A space joins as the mark does: with what is behind it as the mark's last byte, 0x81, with
 * what is before it as joins_space says, but that several of them stay together if they can. */
static void index_spaces(struct tokenizer *t)
{
    int both = t->joins[0x81][0xe2 >> 3] >> (0xe2 & 7) & 1;

    for (int b = 0; b < 256; b++) {
        int behind = t->joins[0x81][b >> 3] >> (b & 7) & 1;

        set_join(t, ' ', b, behind);
        set_join(t, b, ' ', t->joins_space[b]);
    }
    set_join(t, ' ', ' ', both);
    set_join(t, 0x81, ' ', both | t->joins_space[0x81]);
}

void tokenizer_index_words(struct tokenizer *tokenizer)
{
    const struct bpe *bpe = &tokenizer->bpe;

    for (int id = 0; id < bpe->n_ids; id++) {
        const char *text = bpe->tokens[id].spelling;
        size_t n = bpe->tokens[id].n_spelling;

        if (!text)
            continue;
        tokenizer->token_bytes_max =
            n > tokenizer->token_bytes_max ? n : tokenizer->token_bytes_max;
        for (size_t at = 1; at < n; at++) {
            unsigned char second = (unsigned char)text[at];

            tokenizer->joins[(unsigned char)text[at - 1]][second >> 3] |=
                (uint8_t)(1 << (second & 7));
        }
        for (size_t at = 1; at + 3 <= n; at++)
            if (memcmp(text + at, BPE_SPACE, 3) == 0 &&
                (at < 3 || memcmp(text + at - 3, BPE_SPACE, 3) != 0))
                tokenizer->joins_space[(unsigned char)text[at - 1]] = 1;
    }
    if (tokenizer->keeps_spaces)
        index_spaces(tokenizer);
    for (int a = 0; a < 256; a++)
        for (int b = 0x80; b < 0xc0; b++)
            set_join(tokenizer, a, b, 1);
}

void tokenizer_frame(const struct tokenizer *tokenizer, const int32_t **before, int *n_before,
                     const int32_t **after, int *n_after)
{
    *before = tokenizer->before;
    *n_before = tokenizer->n_before;
    *after = tokenizer->after;
    *n_after = tokenizer->n_after;
}

/* ---- lists ---- */

void token_list_release(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){ 0 };
}

int token_list_append(struct token_list *list, const int32_t *ids, size_t n, struct err *err)
{
    int64_t needed = list->n + (int64_t)n;

    if (needed > list->capacity) {
        int64_t capacity = list->capacity ? list->capacity : 256;

        while (capacity < needed)
            capacity *= 2;
        int32_t *grown = realloc(list->ids, (size_t)capacity * sizeof *grown);
        if (!grown)
            return err_set(err, ERR_DEVICE, "out of host memory for %lld tokens",
                           (long long)needed);
        list->ids = grown;
        list->capacity = capacity;
    }
    memcpy(list->ids + list->n, ids, n * sizeof *ids);
    list->n = needed;
    return 0;
}

int token_list_add(struct token_list *list, int32_t id, struct err *err)
{
    return token_list_append(list, &id, 1, err);
}

/* ---- decoding ---- */

void tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int64_t n,
                      struct str *out)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t id = ids[i];

        /* A model's vocabulary may be padded: what stands for nothing shows as nothing. */
        if (id < 0 || id >= tokenizer->vocab_size)
            continue;
        const struct added_token *added = tokenizer->added_by_id[id];
        if (added)
            str_add_bytes(out, added->shown, added->n_shown);
        else if (id < tokenizer->bpe.n_ids && tokenizer->bpe.tokens[id].spelling)
            str_add_bytes(out, tokenizer->bpe.tokens[id].bytes, tokenizer->bpe.tokens[id].n_bytes);
    }
}

static void strip_space(const struct tokenizer *tokenizer, size_t start, struct str *out)
{
    if (tokenizer->strips_space && out->length > start && out->data[start] == ' ') {
        memmove(out->data + start, out->data + start + 1, out->length - start);
        out->length--;
    }
}

void tokenizer_decode_text(const struct tokenizer *tokenizer, const int32_t *ids, int64_t n,
                           struct str *out)
{
    size_t start = out->length;

    tokenizer_decode(tokenizer, ids, n, out);
    strip_space(tokenizer, start, out);
}

void tokenizer_decode_plain(const struct tokenizer *tokenizer, const int32_t *ids, int64_t n,
                            struct str *out)
{
    size_t start = out->length;

    for (int64_t i = 0; i < n; i++) {
        bool is_known = ids[i] >= 0 && ids[i] < tokenizer->vocab_size;
        const struct added_token *added = is_known ? tokenizer->added_by_id[ids[i]] : NULL;

        if (!added || !added->is_special)
            tokenizer_decode(tokenizer, &ids[i], 1, out);
    }
    strip_space(tokenizer, start, out);
}

/* Bytes that a sequence with this first byte has. */
static size_t sequence_length(unsigned char lead)
{
    return lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 1;
}

size_t tokenizer_whole_length(const char *text, size_t n_bytes)
{
    for (size_t back = 1; back <= 3 && back <= n_bytes; back++) {
        unsigned char byte = (unsigned char)text[n_bytes - back];

        if ((byte & 0xc0) == 0x80)
            continue;
        return sequence_length(byte) > back ? n_bytes - back : n_bytes;
    }
    return n_bytes;
}
