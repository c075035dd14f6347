/*
 * tokenizer.c - opening, lists of ids, and ids to text
 */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tokenizer/tokenizer_impl.h"

/* ---- opening ---- */

/* The file beside tokenizer.json, in path or in path's folder. */
static void config_path(struct str *out, const char *path, int is_folder)
{
    const char *slash = strrchr(path, '/');

    if (is_folder)
        str_printf(out, "%s/", path);
    else if (slash)
        str_add_bytes(out, path, (size_t)(slash - path) + 1);
    str_add(out, "tokenizer_config.json");
}

/* The tokenizer's file: in a folder tokenizer.json, or else tokenizer.model. */
static void main_path(struct str *out, const char *path, int is_folder)
{
    str_printf(out, is_folder ? "%s/tokenizer.json" : "%s", path);
    if (!is_folder || file_exists(str_text(out)))
        return;
    struct str model = { 0 };
    str_printf(&model, "%s/tokenizer.model", path);
    if (file_exists(str_text(&model))) {
        str_clear(out);
        str_add(out, str_text(&model));
    }
    str_release(&model);
}

/* By what it begins with: .model files have all kinds of endings. */
static int is_json(const char *path, const char *data)
{
    return str_ends_with(path, ".json") || data[strspn(data, " \t\r\n")] == '{';
}

static int read_file(struct tokenizer **out, const char *path, struct err *err)
{
    size_t n_bytes;
    char *data;

    if (file_read(path, TOKENIZER_JSON_BYTES_MAX, ERR_DATA, &data, &n_bytes, err) < 0)
        return -1;
    int rc = is_json(path, data) ? tokenizer_parse(out, path, data, n_bytes, err)
                                 : tokenizer_parse_spm(out, path, data, n_bytes, err);
    free(data);
    return rc;
}

static int read_config(struct tokenizer *tokenizer, const char *path, struct err *err)
{
    size_t n_bytes;
    char *json;

    if (!file_exists(path))
        return 0;
    if (file_read(path, TOKENIZER_JSON_BYTES_MAX, ERR_DATA, &json, &n_bytes, err) < 0)
        return -1;
    int rc = tokenizer_parse_config(tokenizer, path, json, n_bytes, err);
    free(json);
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct err *err)
{
    int is_folder = file_is_folder(path);
    struct str file = { 0 }, config = { 0 };
    struct tokenizer *tokenizer = NULL;

    main_path(&file, path, is_folder);
    config_path(&config, path, is_folder);
    int rc = read_file(&tokenizer, str_text(&file), err);
    if (rc == 0)
        rc = read_config(tokenizer, str_text(&config), err);
    if (rc == 0)
        *out = tokenizer;
    else
        tokenizer_close(tokenizer);
    str_release(&config);
    str_release(&file);
    return rc;
}

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
        for (size_t at = 1; at + 3 <= n; at++)
            if (memcmp(text + at, BPE_SPACE, 3) == 0 &&
                (at < 3 || memcmp(text + at - 3, BPE_SPACE, 3) != 0))
                tokenizer->joins_space[(unsigned char)text[at - 1]] = 1;
    }
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

void tokenizer_decode_text(const struct tokenizer *tokenizer, const int32_t *ids, int64_t n,
                           struct str *out)
{
    size_t start = out->length;

    tokenizer_decode(tokenizer, ids, n, out);
    if (tokenizer->strips_space && out->length > start && out->data[start] == ' ') {
        memmove(out->data + start, out->data + start + 1, out->length - start);
        out->length--;
    }
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
