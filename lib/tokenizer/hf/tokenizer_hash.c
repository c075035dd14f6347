/*
 * tokenizer_hash.c - which tokenizer a file is, by what decides its ids
 *
 * Of JSON each leaf is hashed with the path of keys and indices that leads to it, and the hashes
 * are added: neither white space nor the order of keys counts, nor whether a key is null or
 * missing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

#include "tokenizer/hf/tokenizer_reader.h"

#define DEPTH_MAX 64 /* what lies deeper no reader looks at */

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return XXH64(text, strlen(text), seed);
}

/* A merge is "left right" in older files, ["left", "right"] in newer ones. */
static uint64_t hash_merge(const cJSON *item, uint64_t path)
{
    const char *left = cJSON_IsString(item) ? item->valuestring : NULL;
    const char *space = left ? strchr(left, ' ') : NULL;

    if (cJSON_IsArray(item) && cJSON_IsString(item->child) && cJSON_IsString(item->child->next))
        return hash_text(item->child->valuestring, path) +
               hash_text(item->child->next->valuestring, ~path);
    if (!space)
        return left ? hash_text(left, path) : 0;
    return XXH64(left, (size_t)(space - left), path) + hash_text(space + 1, ~path);
}

static uint64_t hash_leaf(const cJSON *item, uint64_t path)
{
    if (cJSON_IsString(item))
        return hash_text(item->valuestring, path);
    if (cJSON_IsNumber(item))
        return XXH64(&item->valuedouble, sizeof item->valuedouble, path);
    return cJSON_IsBool(item) ? hash_text(cJSON_IsTrue(item) ? "true" : "false", ~path) : 0;
}

static bool is_node(const cJSON *item)
{
    return cJSON_IsObject(item) || cJSON_IsArray(item);
}

/* The sum over all leaves of an object or array that lies at this path. */
static uint64_t hash_tree(const cJSON *root, uint64_t path, bool are_merges)
{
    struct {
        const cJSON *next; /* of its children */
        uint64_t path;
        int64_t index;
        bool is_list;
    } open[DEPTH_MAX];
    uint64_t sum = is_node(root) ? 0 : hash_leaf(root, path);
    int depth = 0;

    if (is_node(root) && root->child)
        open[depth++] = (typeof(open[0])){ root->child, path, 0, cJSON_IsArray(root) };
    while (depth > 0) {
        const cJSON *item = open[depth - 1].next;
        int64_t index = open[depth - 1].index++;
        uint64_t at = open[depth - 1].path;

        if (!item) {
            depth--;
            continue;
        }
        open[depth - 1].next = item->next;
        at =
            open[depth - 1].is_list ? XXH64(&index, sizeof index, at) : hash_text(item->string, at);
        if (are_merges)
            sum += hash_merge(item, at);
        else if (!is_node(item))
            sum += hash_leaf(item, at);
        else if (item->child && depth < DEPTH_MAX)
            open[depth++] = (typeof(open[0])){ item->child, at, 0, cJSON_IsArray(item) };
    }
    return sum;
}

void tokenizer_hash_json(struct tokenizer *tokenizer, const cJSON *root)
{
    static const char *const parts[] = { "normalizer", "pre_tokenizer" };
    const cJSON *item;
    uint64_t sum = 0;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        sum += hash_tree(get(root, parts[i]), hash_text(parts[i], 0), false);
    cJSON_ArrayForEach(item, get(root, "model"))
    {
        uint64_t path = hash_text(item->string, 1);

        sum += hash_tree(item, path, !strcmp(item->string, "merges"));
    }
    tokenizer->hash = sum;
    tokenizer->hash_added = hash_tree(get(root, "added_tokens"), 0, false);
}

void tokenizer_hash_file(struct tokenizer *tokenizer, const char *data, size_t n_bytes,
                         const cJSON *root)
{
    tokenizer_hash_json(tokenizer, root);
    tokenizer->hash = XXH64(data, n_bytes, tokenizer->hash);
}

void tokenizer_hash_text(const struct tokenizer *tokenizer, char text[TOKENIZER_HASH_BYTES])
{
    snprintf(text, TOKENIZER_HASH_BYTES, "1-%016" PRIx64 "-%08" PRIx32, tokenizer->hash,
             (uint32_t)(tokenizer->hash_added ^ tokenizer->hash_added >> 32));
}

enum tokenizer_likeness tokenizer_hash_compare(const char *a, const char *b)
{
    size_t n_version = strcspn(a, "-");
    const char *added = strrchr(a, '-');

    if (!strcmp(a, b))
        return TOKENIZER_SAME;
    if (n_version != strcspn(b, "-") || strncmp(a, b, n_version) != 0)
        return TOKENIZER_UNKNOWN;
    return added && !strncmp(a, b, (size_t)(added - a) + 1) ? TOKENIZER_OTHER_ADDED
                                                            : TOKENIZER_OTHER;
}
