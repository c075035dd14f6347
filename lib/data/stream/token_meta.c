/*
 * token_meta.c - writing it, reading it, and comparing tokenizers
 */
#include "data/stream/token_meta.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "data/stream/token_meta_impl.h"

#define FORMAT "lmtrain tokens"
#define VERSION 1
#define FILE_BYTES_MAX ((size_t)1 << 20)

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static bool is_ours(const cJSON *root)
{
    const cJSON *format = get(root, "format");

    return cJSON_IsString(format) && !strcmp(format->valuestring, FORMAT);
}

/* Large ones are others'. */
cJSON *token_meta_load(const char *path)
{
    struct err ignored;
    size_t n_bytes;
    char *text;

    if (!file_exists(path) || file_size(path) > (int64_t)FILE_BYTES_MAX ||
        file_read(path, FILE_BYTES_MAX, ERR_DATA, &text, &n_bytes, &ignored) < 0)
        return NULL;
    cJSON *root = cJSON_ParseWithLength(text, n_bytes);
    free(text);
    if (is_ours(root))
        return root;
    cJSON_Delete(root);
    return NULL;
}

int token_meta_check_place(const char *prefix, struct err *err)
{
    struct arena arena = { 0 };
    const char *path = arena_printf(&arena, "%s.json", prefix);
    cJSON *root = token_meta_load(path);
    int status = 0;

    if (!root && file_exists(path))
        status = err_set(err, ERR_CONFIG,
                         "%s exists but does not belong to a token file, and would be overwritten "
                         "(hint: a different --out)",
                         path);
    cJSON_Delete(root);
    arena_release(&arena);
    return status;
}

void token_meta_print(struct str *out, const struct token_meta *meta)
{
    str_printf(out,
               "{\n  \"format\": \"" FORMAT "\",\n  \"version\": %d,\n  \"tokenizer\": \"%s\",\n"
               "  \"vocab_size\": %d,\n  \"documents\": %lld,\n  \"tokens\": %lld,\n"
               "  \"end_of_text\": ",
               VERSION, meta->tokenizer, meta->vocab_size, (long long)meta->n_documents,
               (long long)meta->n_tokens);
    if (meta->end_of_text >= 0)
        str_printf(out, "%d", meta->end_of_text);
    else
        str_add(out, "null");
}

int token_meta_write(const char *prefix, const struct token_meta *meta, struct err *err)
{
    struct str text = { 0 }, path = { 0 };

    token_meta_print(&text, meta);
    str_add(&text, "\n}\n");
    str_printf(&path, "%s.json", prefix);
    int status = file_write(str_text(&path), str_text(&text), text.length, err);
    str_release(&text);
    str_release(&path);
    return status;
}

void token_meta_remove(const char *prefix)
{
    struct str path = { 0 };

    str_printf(&path, "%s.json", prefix);
    unlink(str_text(&path));
    str_release(&path);
}

int64_t token_meta_count(const cJSON *root, const char *key, double most)
{
    const cJSON *item = get(root, key);

    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > most ||
        item->valuedouble != (double)(int64_t)item->valuedouble)
        return -1;
    return (int64_t)item->valuedouble;
}

int token_meta_parse(struct token_meta *meta, const cJSON *root, const char *path, struct err *err)
{
    const cJSON *tokenizer = get(root, "tokenizer");
    int64_t vocab_size = token_meta_count(root, "vocab_size", INT32_MAX);

    *meta =
        (struct token_meta){ .vocab_size = (int)vocab_size,
                             .end_of_text = (int)token_meta_count(root, "end_of_text", INT32_MAX),
                             .n_documents = token_meta_count(root, "documents", 9e15),
                             .n_tokens = token_meta_count(root, "tokens", 9e15) };
    if (!cJSON_IsString(tokenizer) || strlen(tokenizer->valuestring) >= TOKENIZER_HASH_BYTES ||
        vocab_size < 1 || meta->n_documents < 0 || meta->n_tokens < 0)
        return err_set(err, ERR_DATA,
                       "%s is damaged: tokenizer, vocab_size, documents or tokens are invalid "
                       "(hint: remove it; the tokenizer is then not checked)",
                       path);
    snprintf(meta->tokenizer, sizeof meta->tokenizer, "%s", tokenizer->valuestring);
    return 1;
}

/* Whether PREFIX.bin has so many tokens of some width: it may have been replaced by another
 * program. */
static int fits(const char *prefix, const struct token_meta *meta, struct arena *arena)
{
    int64_t n_bytes = file_size(arena_printf(arena, "%s.bin", prefix));

    for (int width = 1; width <= 8; width *= 2)
        if (n_bytes == meta->n_tokens * width)
            return 1;
    return n_bytes < 0; /* the reader of the tokens says so */
}

int token_meta_read(const char *prefix, struct token_meta *meta, struct err *err)
{
    struct arena arena = { 0 };
    const char *path = arena_printf(&arena, "%s.json", prefix);
    cJSON *root = token_meta_load(path);
    const cJSON *version = get(root, "version");
    int found = 0;

    if (root && cJSON_IsNumber(version) && version->valuedouble > VERSION)
        log_warn("%s has version %g, but only %d is supported: it is ignored", path,
                 version->valuedouble, VERSION);
    else if (root)
        found = token_meta_parse(meta, root, path, err);
    if (found > 0 && !fits(prefix, meta, &arena)) {
        log_warn("%s is for %lld tokens, but %s.bin has another number: it is ignored", path,
                 (long long)meta->n_tokens, prefix);
        found = 0;
    }
    cJSON_Delete(root);
    arena_release(&arena);
    return found;
}

int token_meta_compare(const char *prefix, const char *hash, const char *whose, const char *hint,
                       struct err *err)
{
    struct token_meta meta;

    if (!hash || !*hash)
        return 0;
    int found = token_meta_read(prefix, &meta, err);
    if (found <= 0)
        return found;
    enum tokenizer_likeness likeness = tokenizer_hash_compare(meta.tokenizer, hash);
    if (likeness == TOKENIZER_OTHER_ADDED)
        log_warn("%s was made with other added tokens than those of %s: ids of these tokens differ",
                 prefix, whose);
    if (likeness != TOKENIZER_OTHER)
        return 0;
    return err_set(err, ERR_DATA,
                   "%s was made with another tokenizer than %s: according to %s.json with %s, of "
                   "%d tokens, not %s (hint: %s)",
                   prefix, whose, prefix, meta.tokenizer, meta.vocab_size, hash, hint);
}
