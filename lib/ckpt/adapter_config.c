/*
 * adapter_config.c - adapter_config.json of peft
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/adapter_impl.h"

#define CONFIG_MAX_BYTES ((size_t)4 << 20)

/* What makes an adapter something else than y + scale B A x: its key must be missing or idle. */
static const char *const strangers[] = {
    "use_dora",    "use_qalora",        "lora_bias",         "layer_replication",
    "use_bdlora",  "arrow_config",      "target_parameters", "trainable_token_indices",
    "kasa_config", "monteclora_config", "velora_config",     "alora_invocation_tokens",
    "miss_config", "use_miss",
};

static int is_idle(const cJSON *item)
{
    return !item || cJSON_IsNull(item) || cJSON_IsFalse(item) ||
           ((cJSON_IsArray(item) || cJSON_IsObject(item)) && !item->child);
}

/* Names with dots, no more: others would be regular expressions from outside. */
static int is_plain(const char *pattern)
{
    if (*pattern == '^')
        pattern++;
    return *pattern && strspn(pattern, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                       "0123456789_.") == strlen(pattern);
}

static int read_patterns(struct adapter_config *c, const cJSON *map, struct arena *arena,
                         struct err *err)
{
    int n = cJSON_IsObject(map) ? cJSON_GetArraySize(map) : 0;

    c->patterns = arena_array(arena, const char *, n + 1);
    c->alphas = arena_array(arena, double, n + 1);
    for (const cJSON *item = n ? map->child : NULL; item; item = item->next) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble > 0) || !is_plain(item->string))
            return err_set(err, ERR_DATA,
                           "alpha_pattern has \"%.64s\", which is not a module's name with a "
                           "number",
                           item->string);
        c->patterns[c->n_patterns] = arena_strdup(arena, item->string);
        c->alphas[c->n_patterns++] = item->valuedouble;
    }
    return 0;
}

static int take(struct adapter_config *c, const cJSON *root, struct arena *arena, struct err *err)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(root, "peft_type");
    const cJSON *alpha = cJSON_GetObjectItemCaseSensitive(root, "lora_alpha");
    const cJSON *base = cJSON_GetObjectItemCaseSensitive(root, "base_model_name_or_path");

    if (!cJSON_IsObject(root))
        return err_set(err, ERR_DATA, "no JSON object");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "LORA") != 0)
        return err_set(err, ERR_DATA, "peft_type is %.40s, only LORA is known here",
                       cJSON_IsString(type) ? type->valuestring : "missing");
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
        if (!is_idle(cJSON_GetObjectItemCaseSensitive(root, strangers[i])))
            return err_set(err, ERR_DATA, "%s is set, which lmtrain does not compute",
                           strangers[i]);
    /* peft's own default. */
    c->alpha = alpha ? alpha->valuedouble : 8;
    if (alpha && (!cJSON_IsNumber(alpha) || !(c->alpha > 0) || c->alpha > 1e9))
        return err_set(err, ERR_DATA, "lora_alpha is not a number above 0");
    c->rslora = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "use_rslora"));
    c->base = cJSON_IsString(base) ? arena_strdup(arena, base->valuestring) : NULL;
    return read_patterns(c, cJSON_GetObjectItemCaseSensitive(root, "alpha_pattern"), arena, err);
}

int adapter_config_read(struct adapter_config *c, const char *path, struct arena *arena,
                        struct err *err)
{
    const char *name = arena_printf(arena, "%s/" ADAPTER_CONFIG, path);
    char *text;
    size_t n_bytes;

    *c = (struct adapter_config){ 0 };
    if (file_read(name, CONFIG_MAX_BYTES, ERR_DATA, &text, &n_bytes, err) < 0)
        return -1;
    cJSON *root = cJSON_ParseWithLength(text, n_bytes);
    int status = str_has_json_nul(text, n_bytes)
                     ? err_set(err, ERR_DATA, "a text with a NUL byte (\\u0000) is not supported")
                     : take(c, root, arena, err);
    cJSON_Delete(root);
    free(text);
    return status < 0 ? err_add(err, "%s", name) : 0;
}

/* peft's rule: the name ends with the pattern, at a dot. */
static int fits(const char *pattern, const char *module)
{
    size_t n = strlen(pattern), m = strlen(module);

    if (*pattern == '^')
        return !strcmp(pattern + 1, module);
    return m >= n && !strcmp(module + m - n, pattern) && (m == n || module[m - n - 1] == '.');
}

double adapter_config_alpha(const struct adapter_config *c, const char *module)
{
    for (int i = 0; i < c->n_patterns; i++)
        if (fits(c->patterns[i], module))
            return c->alphas[i];
    return c->alpha;
}
