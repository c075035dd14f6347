/*
 * adapter_config.c - adapter_config.json of peft
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/adapter_impl.h"

#define CONFIG_MAX_BYTES ((size_t)4 << 20)

/* What makes an adapter something else than y + scale B A x: its key must be missing or idle. */
static const struct {
    const char *key, *what;
    int merges; /* whether peft can fold it into the model's weights */
} variants[] = {
    { "use_dora", "DoRA", 1 },
    { "use_qalora", "QALoRA", 0 },
    { "lora_bias", "a bias in B", 1 },
    { "layer_replication", "repeating layers of the model", 1 },
    { "use_bdlora", "BD-LoRA", 1 },
    { "arrow_config", "routing between adapters", 0 },
    { "target_parameters", "LoRA of parameters that are not a linear layer", 1 },
    { "trainable_token_indices", "training some rows of the embedding", 1 },
    { "kasa_config", "KaSA", 1 },
    { "monteclora_config", "MonteCLoRA", 1 },
    { "velora_config", "VeLoRA", 1 },
    { "alora_invocation_tokens", "activated LoRA", 0 },
    { "miss_config", "MiSS", 1 },
    { "use_miss", "MiSS", 1 },
};

/* Initial values of A and B that leave the model's own weights as they are. */
static const char *const plain_inits[] = { "gaussian", "eva", "orthogonal", "mica" };

static bool is_idle(const cJSON *item)
{
    return !item || cJSON_IsNull(item) || cJSON_IsFalse(item) ||
           ((cJSON_IsArray(item) || cJSON_IsObject(item)) && !item->child);
}

/* Names with dots, no more: others would be regular expressions from outside. */
static bool is_plain(const char *pattern)
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
        if (!is_plain(item->string))
            return err_set(err, ERR_DATA,
                           "alpha_pattern has \"%.64s\", a regular expression, which is not "
                           "supported (hint: one entry per module name, such as "
                           "\"down_proj\" or \"layers.1.mlp.down_proj\")",
                           item->string);
        if (!cJSON_IsNumber(item) || !(item->valuedouble > 0))
            return err_set(err, ERR_DATA, "alpha_pattern: %.64s is not a number above 0",
                           item->string);
        c->patterns[c->n_patterns] = arena_strdup(arena, item->string);
        c->alphas[c->n_patterns++] = item->valuedouble;
    }
    return 0;
}

#define RANK_MAX 65536

static int read_ranks(struct adapter_config *c, const cJSON *root, struct arena *arena,
                      struct err *err)
{
    const cJSON *r = cJSON_GetObjectItemCaseSensitive(root, "r");
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "rank_pattern");
    int n = cJSON_IsObject(map) ? cJSON_GetArraySize(map) : 0;

    if (r && (!cJSON_IsNumber(r) || r->valuedouble != r->valueint || r->valueint < 1 ||
              r->valueint > RANK_MAX))
        return err_set(err, ERR_DATA, "r is not a whole number from 1 to %d", RANK_MAX);
    c->rank = r ? r->valueint : 0;
    c->rank_patterns = arena_array(arena, const char *, n + 1);
    c->ranks = arena_array(arena, int, n + 1);
    for (const cJSON *item = n ? map->child : NULL; item; item = item->next) {
        if (!cJSON_IsNumber(item) || item->valuedouble != item->valueint || item->valueint < 1)
            return err_set(err, ERR_DATA, "rank_pattern has \"%.64s\" without a whole number",
                           item->string);
        /* A regular expression: what ranks it means is seen in the tensors alone. */
        if (!is_plain(item->string)) {
            c->n_rank_patterns = -1;
            return 0;
        }
        c->rank_patterns[c->n_rank_patterns] = arena_strdup(arena, item->string);
        c->ranks[c->n_rank_patterns++] = item->valueint;
    }
    return 0;
}

static int check_variants(const cJSON *root, struct err *err)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (!is_idle(cJSON_GetObjectItemCaseSensitive(root, variants[i].key)))
            return err_set(err, ERR_DATA, "%s is set, but lmtrain does not support %s (hint: %s)",
                           variants[i].key, variants[i].what,
                           variants[i].merges ? ADAPTER_MERGE_HINT
                                              : "only peft computes this; an adapter without it");
    return 0;
}

/*
 * PiSSA, OLoRA, CorDA, LoRA-GA and LoftQ take the initial B A out of the model's weights, or
 * quantize those, and an adapter folder does not have what is left: peft computes it again when it
 * loads one.
 */
static int check_init(const cJSON *root, struct err *err)
{
    const cJSON *init = cJSON_GetObjectItemCaseSensitive(root, "init_lora_weights");
    const char *name = cJSON_IsString(init) ? init->valuestring : "of an unknown kind";
    bool can_convert = strncmp(name, "loftq", 5) != 0;

    if (!init || cJSON_IsNull(init) || cJSON_IsBool(init))
        return 0;
    for (size_t i = 0; i < sizeof plain_inits / sizeof *plain_inits; i++)
        if (!strcasecmp(name, plain_inits[i]))
            return 0;
    return err_set(err, ERR_DATA,
                   "init_lora_weights is %.40s, which changes the model's own weights: lmtrain "
                   "supports plain LoRA only (hint: %s%s)",
                   name,
                   can_convert ? "in peft save_pretrained(path_initial_model_for_weight_conversion="
                                 "the untrained adapter's folder), which makes it plain; or "
                               : "",
                   ADAPTER_MERGE_HINT);
}

static int take(struct adapter_config *c, const cJSON *root, struct arena *arena, struct err *err)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(root, "peft_type");
    const cJSON *alpha = cJSON_GetObjectItemCaseSensitive(root, "lora_alpha");
    const cJSON *base = cJSON_GetObjectItemCaseSensitive(root, "base_model_name_or_path");

    if (!cJSON_IsObject(root))
        return err_set(err, ERR_DATA, "not a JSON object");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "LORA") != 0)
        return err_set(err, ERR_DATA, "peft_type is %.40s, but only LORA is supported",
                       cJSON_IsString(type) ? type->valuestring : "missing");
    if (check_variants(root, err) < 0 || check_init(root, err) < 0)
        return -1;
    /* peft's own default. */
    c->alpha = alpha ? alpha->valuedouble : 8;
    if (alpha && (!cJSON_IsNumber(alpha) || !(c->alpha > 0) || c->alpha > 1e9))
        return err_set(err, ERR_DATA, "lora_alpha is not a number above 0");
    c->rslora = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "use_rslora"));
    c->base = cJSON_IsString(base) ? arena_strdup(arena, base->valuestring) : NULL;
    if (read_ranks(c, root, arena, err) < 0)
        return -1;
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
                     ? err_set(err, ERR_DATA, "a string with a NUL byte (\\u0000) is not supported")
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

int adapter_config_rank(const struct adapter_config *c, const char *module, const char **key)
{
    for (int i = 0; i < c->n_rank_patterns; i++)
        if (fits(c->rank_patterns[i], module)) {
            *key = "rank_pattern";
            return c->ranks[i];
        }
    *key = "r";
    return c->n_rank_patterns < 0 ? 0 : c->rank;
}
