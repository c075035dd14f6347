/*
 * tokenizer.c - text to ids and back
 *
 * Text is cut at added tokens, the rest into words, and each word into ids by merging. Words
 * repeat: a direct-mapped cache of short ones, a line of memory each, answers nearly all of them.
 */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "tokenizer/split.h"
#include "tokenizer/tokenizer_impl.h"

#define CACHE_SLOTS ((size_t)1 << 15)
#define CACHE_WORD_BYTES 30
#define CACHE_IDS 8

struct cached_word {
    int32_t ids[CACHE_IDS];
    char word[CACHE_WORD_BYTES];
    uint8_t n_bytes; /* 0: free */
    uint8_t n_ids;
};

_Static_assert(sizeof(struct cached_word) == 64, "one line of memory a word");

struct tokenizer_cache {
    struct cached_word words[CACHE_SLOTS];
};

/* One call's state. */
struct encoder {
    const struct tokenizer *tokenizer;
    struct tokenizer_cache *cache;
    struct bpe_scratch scratch;
    struct str prefixed;
    struct token_list *out;
    struct err *err;
};

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

int tokenizer_open(struct tokenizer **out, const char *path, struct err *err)
{
    int is_folder = file_is_folder(path), rc = -1;
    struct str json_path = { 0 }, config = { 0 };
    struct tokenizer *tokenizer = NULL;
    char *json = NULL;
    size_t n_bytes;

    str_printf(&json_path, is_folder ? "%s/tokenizer.json" : "%s", path);
    config_path(&config, path, is_folder);
    if (file_read(str_text(&json_path), TOKENIZER_JSON_BYTES_MAX, ERR_DATA, &json, &n_bytes, err) <
        0)
        goto out;
    if (tokenizer_parse(&tokenizer, str_text(&json_path), json, n_bytes, err) < 0)
        goto out;
    if (file_exists(str_text(&config))) {
        free(json);
        json = NULL;
        if (file_read(str_text(&config), TOKENIZER_JSON_BYTES_MAX, ERR_DATA, &json, &n_bytes, err) <
            0)
            goto out;
        if (tokenizer_parse_config(tokenizer, str_text(&config), json, n_bytes, err) < 0)
            goto out;
    }
    *out = tokenizer;
    tokenizer = NULL;
    rc = 0;
out:
    tokenizer_close(tokenizer);
    free(json);
    str_release(&config);
    str_release(&json_path);
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
        if (strcmp(tokenizer->added[i].text, token) == 0)
            return tokenizer->added[i].id;
    return bpe_find(&tokenizer->bpe, token, strlen(token));
}

/* ---- encoding ---- */

void token_list_release(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){ 0 };
}

static int list_append(struct token_list *list, const int32_t *ids, size_t n, struct err *err)
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
    return list_append(list, &id, 1, err);
}

static int append(struct encoder *e, const int32_t *ids, size_t n)
{
    return list_append(e->out, ids, n, e->err);
}

static int merge_word(struct encoder *e, const char *word, size_t n_bytes, struct cached_word *slot)
{
    size_t n_ids;

    if (n_bytes > BPE_WORD_BYTES_MAX)
        return err_set(e->err, ERR_DATA, "a word of %zu bytes, at most %zu are supported", n_bytes,
                       BPE_WORD_BYTES_MAX);
    const int32_t *ids = bpe_encode(&e->tokenizer->bpe, &e->scratch, word, n_bytes, &n_ids);
    if (!ids)
        return err_set(e->err, ERR_DEVICE, "out of host memory for a word of %zu bytes", n_bytes);
    if (slot && n_ids <= CACHE_IDS) {
        memcpy(slot->ids, ids, n_ids * sizeof *ids);
        memcpy(slot->word, word, n_bytes);
        slot->n_bytes = (uint8_t)n_bytes;
        slot->n_ids = (uint8_t)n_ids;
    }
    return append(e, ids, n_ids);
}

static int encode_word(struct encoder *e, const char *word, size_t n_bytes)
{
    struct cached_word *slot = NULL;

    if (n_bytes == 1)
        return append(e, &e->tokenizer->bpe.byte_ids[(unsigned char)word[0]], 1);
    if (e->cache && n_bytes <= CACHE_WORD_BYTES) {
        slot = &e->cache->words[XXH3_64bits(word, n_bytes) % CACHE_SLOTS];
        if (slot->n_bytes == n_bytes && memcmp(slot->word, word, n_bytes) == 0)
            return append(e, slot->ids, slot->n_ids);
    }
    return merge_word(e, word, n_bytes, slot);
}

/* Text without added tokens. */
static int encode_plain(struct encoder *e, const char *text, size_t n_bytes)
{
    if (n_bytes > 0 && e->tokenizer->add_prefix_space && text[0] != ' ') {
        str_clear(&e->prefixed);
        str_add_char(&e->prefixed, ' ');
        str_add_bytes(&e->prefixed, text, n_bytes);
        text = e->prefixed.data;
        n_bytes++;
    }
    while (n_bytes > 0) {
        size_t length = split_word(text, n_bytes);

        if (encode_word(e, text, length) < 0)
            return -1;
        text += length;
        n_bytes -= length;
    }
    return 0;
}

/* Cut at the added tokens of one pass; what lies between goes to the next. */
static int encode_pass(struct encoder *e, int pass, const char *text, size_t n_bytes)
{
    for (;;) {
        const struct added_token *token = NULL;
        size_t at = n_bytes;

        token = added_find(&e->tokenizer->passes[pass], text, n_bytes, &at);
        int rc = pass == 0 ? encode_pass(e, 1, text, at) : encode_plain(e, text, at);
        if (rc < 0 || !token)
            return rc;
        if (append(e, &token->id, 1) < 0)
            return -1;
        text += at + token->n_bytes;
        n_bytes -= at + token->n_bytes;
    }
}

size_t tokenizer_utf8_end(const char *text, size_t n_bytes)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0;

    while (at < n_bytes) {
        int length = bytes[at] < 0x80 ? 1 : str_utf8_length(bytes + at, n_bytes - at);

        if (length == 0)
            break;
        at += (size_t)length;
    }
    return at;
}

int tokenizer_encode_cached(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                            const char *text, size_t n_bytes, struct token_list *out,
                            struct err *err)
{
    struct encoder e = { .tokenizer = tokenizer, .cache = cache, .out = out, .err = err };
    size_t valid = tokenizer_utf8_end(text, n_bytes);
    int64_t n_before = out->n;

    if (valid < n_bytes)
        return err_set(err, ERR_DATA, "byte %zu (0x%02x) is no UTF-8", valid,
                       (unsigned)(unsigned char)text[valid]);
    int rc = encode_pass(&e, 0, text, n_bytes);
    if (rc < 0)
        out->n = n_before;
    bpe_scratch_release(&e.scratch);
    str_release(&e.prefixed);
    return rc;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                     struct token_list *out, struct err *err)
{
    return tokenizer_encode_cached(tokenizer, NULL, text, n_bytes, out, err);
}

struct tokenizer_cache *tokenizer_cache_create(void)
{
    return calloc(1, sizeof(struct tokenizer_cache));
}

void tokenizer_cache_destroy(struct tokenizer_cache *cache)
{
    free(cache);
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
            str_add_bytes(out, added->text, added->n_bytes);
        else if (id < tokenizer->bpe.n_ids && tokenizer->bpe.tokens[id].spelling)
            str_add_bytes(out, tokenizer->bpe.tokens[id].bytes, tokenizer->bpe.tokens[id].n_bytes);
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
