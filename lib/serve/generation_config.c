/*
 * generation_config.c - reading it
 */
#include "serve/generation_config.h"

#include <stdlib.h>

#include <cjson/cJSON.h>

#include "base/arena.h"
#include "base/file.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)

static void add_end(struct generation_config *config, const cJSON *id)
{
    if (cJSON_IsNumber(id) && id->valuedouble >= 0 && id->valuedouble < 1e15 &&
        config->n_ends < GENERATION_ENDS_MAX)
        config->ends[config->n_ends++] = (int64_t)id->valuedouble;
}

/* A number from least to most; null and nothing leave what is there. */
static int read_number(const cJSON *json, const char *key, double least, double most, double *value,
                       struct err *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);

    if (!item || cJSON_IsNull(item))
        return 0;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= least && item->valuedouble <= most))
        return err_set(err, ERR_DATA, "%s is not a number from %g to %g", key, least, most);
    *value = item->valuedouble;
    return 0;
}

static int read_object(struct generation_config *config, const cJSON *json, struct err *err)
{
    const cJSON *ends = cJSON_GetObjectItemCaseSensitive(json, "eos_token_id"), *item;
    const cJSON *samples = cJSON_GetObjectItemCaseSensitive(json, "do_sample");
    double top_k = -1;

    if (!cJSON_IsObject(json))
        return err_set(err, ERR_DATA, "not a JSON object");
    add_end(config, ends);
    cJSON_ArrayForEach(item, ends) add_end(config, item);
    if (cJSON_IsBool(samples))
        config->samples = cJSON_IsTrue(samples);
    if (read_number(json, "temperature", 0, 100, &config->temperature, err) < 0 ||
        read_number(json, "top_k", 0, 1e8, &top_k, err) < 0 ||
        read_number(json, "top_p", 0, 1, &config->top_p, err) < 0 ||
        read_number(json, "repetition_penalty", 0.01, 100, &config->repetition_penalty, err) < 0)
        return -1;
    config->top_k = (int)top_k;
    return 0;
}

int generation_config_read(struct generation_config *config, const char *folder, struct err *err)
{
    struct arena arena = { 0 };
    const char *path = arena_printf(&arena, "%s/generation_config.json", folder);
    char *text = NULL;
    size_t n_bytes;
    int status = 0;

    *config = (struct generation_config){
        .samples = -1, .temperature = -1, .top_p = -1, .repetition_penalty = -1, .top_k = -1
    };
    if (file_exists(path)) {
        status = file_read(path, FILE_BYTES_MAX, ERR_DATA, &text, &n_bytes, err);
        if (!status) {
            cJSON *json = cJSON_ParseWithLength(text, n_bytes);

            status = read_object(config, json, err);
            if (status < 0)
                err_add(err, "%s", path);
            cJSON_Delete(json);
        }
    }
    free(text);
    arena_release(&arena);
    return status;
}
