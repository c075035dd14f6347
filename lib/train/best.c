/*
 * best.c - a short list in the order of losses
 */
#include "train/best.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/json_reader.h"

void best_forget(struct best_checkpoints *best, int64_t step)
{
    int n = 0;

    for (int i = 0; i < best->n; i++)
        if (best->list[i].step != step)
            best->list[n++] = best->list[i];
    best->n = n;
}

static int is_before(const struct best_checkpoint *a, const struct best_checkpoint *b)
{
    return a->loss < b->loss || (a->loss == b->loss && a->step < b->step);
}

void best_note(struct best_checkpoints *best, int n_max, int64_t step, double loss)
{
    struct best_checkpoint new = { step, loss };
    int at = 0;

    CHECK(n_max <= N_BEST_MAX);
    best_forget(best, step);
    while (at < best->n && is_before(&best->list[at], &new))
        at++;
    if (!isfinite(loss) || at >= n_max)
        return;
    best->n = best->n < n_max ? best->n + 1 : n_max;
    memmove(&best->list[at + 1], &best->list[at], (size_t)(best->n - 1 - at) * sizeof *best->list);
    best->list[at] = new;
}

void best_print(const struct best_checkpoints *best, const char *metric, struct str *out)
{
    str_add(out, "{\"metric\":");
    json_add_string(out, metric);
    str_add(out, ",\"steps\":[");
    for (int i = 0; i < best->n; i++)
        str_printf(out, "%s[%lld,%.17g]", i ? "," : "", (long long)best->list[i].step,
                   best->list[i].loss);
    str_add(out, "]}");
}

static int is_pair(const cJSON *pair)
{
    return cJSON_IsArray(pair) && cJSON_GetArraySize(pair) == 2 &&
           cJSON_IsNumber(cJSON_GetArrayItem(pair, 0)) &&
           cJSON_IsNumber(cJSON_GetArrayItem(pair, 1));
}

void best_read(struct best_checkpoints *best, const char *metric, const char *json)
{
    cJSON *object = cJSON_Parse(json);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(object, "metric"), *pair;

    best->n = 0;
    if (cJSON_IsString(name) && !strcmp(name->valuestring, metric))
        cJSON_ArrayForEach(pair, cJSON_GetObjectItemCaseSensitive(object, "steps"))
        {
            if (is_pair(pair))
                best_note(best, N_BEST_MAX, (int64_t)cJSON_GetArrayItem(pair, 0)->valuedouble,
                          cJSON_GetArrayItem(pair, 1)->valuedouble);
        }
    cJSON_Delete(object);
}
