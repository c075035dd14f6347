/*
 * hf_reader.c - keys of a config.json into fields of a job's model
 */
#include "config/hf_reader_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hf_refuse(struct hf_reader *h, const char *format, ...)
{
    struct yaml_node here = { .source = h->path };
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    diagnostics_add(&h->job->mistakes, &here, "%s", text);
    h->failed = 1;
}

const cJSON *hf_member(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return item && !cJSON_IsNull(item) ? item : NULL;
}

const cJSON *hf_key(struct hf_reader *h, const char *name)
{
    hf_keys_add(&h->keys, name);
    return hf_member(h->json, name);
}

const cJSON *hf_key_of(struct hf_reader *h, const char *names)
{
    const cJSON *item = NULL;
    char name[64];

    hf_keys_add(&h->keys, names);
    for (const char *at = names; at && !item; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "|"), at);
        item = hf_member(h->json, name);
    }
    return item;
}

int hf_flag(struct hf_reader *h, const char *name, int initial)
{
    const cJSON *item = hf_key(h, name);

    return item ? cJSON_IsTrue(item) : initial;
}

void hf_refuse_key(struct hf_reader *h, const char *place, const cJSON *item)
{
    static const char why[] = "which lmtrain does not read: the model may compute something else";
    char *value = cJSON_PrintUnformatted(item);
    const char *key = item->string ? item->string : "an item";
    const char *is = value ? value : "too long";

    /* A family's file ignores keys of config.json, and none inside another. */
    if (*place)
        hf_refuse(h, "%s%.64s is %.80s, %s", place, key, is, why);
    else
        hf_refuse(h,
                  "%.64s is %.80s, %s (hint: if this key changes nothing, "
                  "configs/families/%.64s.yaml with \"like: %s\" and \"ignore: [%.64s]\")",
                  key, is, why, h->model_type, h->like, key);
    free(value);
}

const char *hf_scalar_text(struct hf_reader *h, const cJSON *item)
{
    struct str text = { 0 };
    const char *result;

    if (cJSON_IsBool(item))
        return cJSON_IsTrue(item) ? "true" : "false";
    if (cJSON_IsString(item))
        return arena_strdup(h->job->arena, item->valuestring);
    if (!cJSON_IsNumber(item))
        return NULL;
    double value = item->valuedouble;
    if (!isfinite(value))
        return "infinite"; /* 1e999: no number to any field */
    if (value >= -1e15 && value <= 1e15 && value == (double)(int64_t)value)
        str_printf(&text, "%lld", (long long)value);
    else
        field_print_float(&text, value);
    result = arena_strdup(h->job->arena, str_text(&text));
    str_release(&text);
    return result;
}

void hf_set(struct hf_reader *h, const char *ours, const char *text, int plain)
{
    const struct field *field = field_find(ours);
    struct yaml_node *node = arena_new(h->job->arena, struct yaml_node);

    CHECK(field);
    *node =
        (struct yaml_node){ .kind = YAML_SCALAR, .plain = plain, .text = text, .source = h->path };
    if (field_set(field, h->job->job, node, &h->job->mistakes))
        h->failed = 1;
    h->job->given[field - job_fields] = node;
}
