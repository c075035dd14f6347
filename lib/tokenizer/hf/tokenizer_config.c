/*
 * tokenizer_config.c - what tokenizer_config.json adds to the tokenizer's own file
 */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "tokenizer/hf/tokenizer_reader.h"

cJSON *tokenizer_parse_object(const char *name, const char *json, size_t n_bytes, struct err *err)
{
    const char *end = json;
    size_t bad = tokenizer_utf8_end(json, n_bytes);

    if (bad < n_bytes) {
        err_set(err, ERR_DATA, "%s: byte %zu is not valid UTF-8", name, bad);
        return NULL;
    }
    if (str_has_json_nul(json, n_bytes)) {
        err_set(err, ERR_DATA, "%s: a text with a NUL byte (\\u0000), which is not supported",
                name);
        return NULL;
    }
    cJSON *root = cJSON_ParseWithLengthOpts(json, n_bytes, &end, 0);
    size_t at = (size_t)(end - json);
    if (root && at + strspn(end, " \t\r\n") == n_bytes && cJSON_IsObject(root))
        return root;
    err_set(err, ERR_DATA, "%s: not a JSON object; reading stopped at byte %zu", name, at);
    cJSON_Delete(root);
    return NULL;
}

int tokenizer_json_id(const cJSON *item, int limit)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble >= limit ||
        item->valuedouble != (double)(int)item->valuedouble)
        return -1;
    return (int)item->valuedouble;
}

int tokenizer_reader_create(struct tokenizer_reader *r)
{
    r->tokenizer = calloc(1, sizeof *r->tokenizer);
    if (!r->tokenizer)
        return err_set(r->err, ERR_DEVICE, "%s: out of host memory", r->name);
    r->tokenizer->name = arena_strdup(&r->tokenizer->arena, r->name);
    return 0;
}

int tokenizer_reader_finish(struct tokenizer_reader *r, int rc, struct tokenizer **out)
{
    if (rc == 0)
        *out = r->tokenizer;
    else
        tokenizer_close(r->tokenizer);
    return rc;
}

/* Other files than tokenizer.json say nothing of what is put around a text: these two flags do. */
static int read_frame(struct tokenizer_reader *r, const cJSON *root)
{
    static const char *const flags[] = { "add_bos_token", "add_eos_token" };
    static const char *const names[] = { "bos_token", "eos_token" };
    struct tokenizer *t = r->tokenizer;

    for (int i = 0; i < 2; i++) {
        const cJSON *token = get(root, names[i]);

        if (!cJSON_IsTrue(get(root, flags[i])))
            continue;
        *(i == 0 ? &t->n_before : &t->n_after) = 0; /* what is usual for the kind */
        if (cJSON_IsObject(token))
            token = get(token, "content");
        int id = cJSON_IsString(token) ? tokenizer_find(t, token->valuestring) : -1;
        if (id < 0)
            return REFUSE(r, "%s: %s is set, but %s is not in the vocabulary", r->name, flags[i],
                          names[i]);
        if (i == 0)
            t->before[t->n_before++] = id;
        else
            t->after[t->n_after++] = id;
    }
    return 0;
}

int tokenizer_read_config(struct tokenizer *tokenizer, const char *name, const cJSON *root,
                          struct err *err)
{
    struct tokenizer_reader r = { .name = name, .err = err, .tokenizer = tokenizer };
    const cJSON *eos = get(root, "eos_token");

    if (cJSON_IsObject(eos))
        eos = get(eos, "content");
    if (cJSON_IsString(eos)) {
        tokenizer->end_of_text = tokenizer_find(tokenizer, eos->valuestring);
        if (tokenizer->end_of_text < 0)
            return REFUSE(&r, "%s: eos_token '%s' is not in the vocabulary", name,
                          eos->valuestring);
    }
    return tokenizer->takes_frame ? read_frame(&r, root) : 0;
}

int tokenizer_parse_config(struct tokenizer *tokenizer, const char *name, const char *json,
                           size_t n_bytes, struct err *err)
{
    cJSON *root = tokenizer_parse_object(name, json, n_bytes, err);
    int rc = root ? tokenizer_read_config(tokenizer, name, root, err) : -1;

    cJSON_Delete(root);
    return rc;
}
