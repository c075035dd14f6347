/*
 * hf_config.c - a model's shape from the config.json of a Hugging Face folder
 *
 * The reader of the model's family (hf_families.c) takes the values through the table of fields,
 * like those of YAML, so ranges and messages are the same. A family without a reader, and a key
 * that the reader did not take and that could change what the model computes, are refused by name.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "config/hf_config.h"
#include "config/hf_families_impl.h"
#include "config/hf_family.h"
#include "config/hf_head.h"

#define CONFIG_MAX_BYTES ((size_t)4 << 20)
#define MAX_UNREAD 8 /* keys that one message names */

static const char *family_names(struct hf_reader *h)
{
    struct str all = { 0 };

    for (size_t i = 0; i < n_hf_family_readers; i++)
        str_printf(&all, i ? ", %s" : "%s", hf_family_readers[i].model_type);
    const char *text = arena_strdup(h->job->arena, str_text(&all));
    str_release(&all);
    return text;
}

/* Its own keys, also under the names that the family it is like knows them by. */
static void add_known_keys(cJSON *json, const struct yaml_node *keys)
{
    for (const struct yaml_node *pair = keys ? keys->first : NULL; pair; pair = pair->next) {
        const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(json, pair->text);

        if (!theirs)
            continue;
        cJSON_DeleteItemFromObjectCaseSensitive(json, pair->key);
        cJSON_AddItemToObject(json, pair->key, cJSON_Duplicate(theirs, 1));
    }
}

/* Whether a scalar of a map or list (or NULL) is this text. */
static int has_text(const struct yaml_node *node, const char *text)
{
    const struct yaml_node *item = node ? node->first : NULL;

    while (item && strcmp(item->text, text) != 0)
        item = item->next;
    return item != NULL;
}

/* Whatever config.json says must be read, or known to change nothing. */
static void check_unread(struct hf_reader *h, const struct hf_family *family)
{
    const char *difference =
        strcmp(h->model_type, h->like) != 0 ? hf_type_difference(h->model_type) : NULL;
    const cJSON *item;
    int n_unread = 0;

    hf_take_uniform_windows(h);
    cJSON_ArrayForEach(item, h->json)
    {
        if (has_text(family->keys, item->string) || has_text(family->ignore, item->string) ||
            hf_keys_has(&h->keys, item->string) || hf_key_is_harmless(item, h->like))
            continue;
        if (n_unread++ == MAX_UNREAD)
            return;
        hf_refuse_key(h, "", item);
    }
    if (difference)
        hf_refuse(h, "model_type %s is not like %s: %s, which is not built yet", h->model_type,
                  h->like, difference);
}

static void set_fields(struct hf_reader *h, const struct yaml_node *fields)
{
    for (const struct yaml_node *field = fields ? fields->first : NULL; field;
         field = field->next) {
        const char *key = arena_printf(h->job->arena, "model.%s", field->key);

        if (field_find(key))
            hf_set(h, key, field->text, field->plain);
        else
            hf_refuse(h, "model.%.64s of the family file is not a field of a model", field->key);
    }
}

/* Some of these wrote their names in capitals: "InternLM". */
static void take_family(struct hf_reader *h, cJSON *json)
{
    const cJSON *type = hf_member(json, "model_type");
    struct hf_family family;
    struct err err;

    if (!cJSON_IsObject(h->json)) {
        hf_refuse(h, "not a JSON object");
        return;
    }
    if (!cJSON_IsString(type)) {
        hf_refuse(h, "model_type is missing (hint: %s)", family_names(h));
        return;
    }
    if (hf_family_read(&family, type->valuestring, h->job->arena, &err) < 0) {
        hf_refuse(h, "%s", err.text);
        return;
    }
    for (size_t i = 0; i < n_hf_family_readers; i++)
        if (!strcasecmp(family.like, hf_family_readers[i].model_type)) {
            h->model_type = family.model_type;
            h->like = hf_family_readers[i].model_type;
            add_known_keys(json, family.keys);
            hf_family_readers[i].take(h);
            set_fields(h, family.model);
            if (!h->failed)
                check_unread(h, &family);
            return;
        }
    if (hf_type_difference(family.like))
        hf_refuse(h, "model_type is %.64s, not built yet: %s", type->valuestring,
                  hf_type_difference(family.like));
    else
        hf_refuse(h,
                  "model_type is %.64s, not built yet (hint: %s, or configs/families/%.64s.yaml)",
                  type->valuestring, family_names(h), type->valuestring);
}

int hf_config_take(struct job_reader *r, const char *path, const char *text, size_t n_bytes)
{
    const char *end = text;
    cJSON *json = cJSON_ParseWithLengthOpts(text, n_bytes, &end, 0);
    size_t at = (size_t)(end - text), n_behind = 0;
    struct hf_reader h = { .job = r, .path = path, .json = json };

    while (at + n_behind < n_bytes && memchr(" \t\r\n", end[n_behind], 4))
        n_behind++;
    if (str_has_json_nul(text, n_bytes))
        hf_refuse(&h, "a text with a NUL byte (\\u0000), which is not supported");
    else if (json && at + n_behind == n_bytes)
        take_family(&h, json);
    else
        hf_refuse(&h, "not valid JSON, from byte %zu on", at);
    cJSON_Delete(json);
    return h.failed ? -1 : 0;
}

int hf_config_parse(struct model_spec *spec, const char *text, size_t n_bytes, struct arena *arena,
                    struct err *err)
{
    struct job job = { .source = "config.json",
                       .notes = arena_array(arena, const char *, JOB_MAX_NOTES) };
    struct job_reader r = { .job = &job,
                            .arena = arena,
                            .model_only = 1,
                            .mistakes = { .arena = arena, .source = job.source },
                            .given = arena_array(arena, const struct yaml_node *, n_job_fields),
                            .refused = arena_array(arena, char, n_job_fields) };

    field_set_defaults(&job, arena);
    hf_config_take(&r, job.source, text, n_bytes);
    if (r.mistakes.n == 0)
        reader_derive(&r);
    if (r.mistakes.n == 0)
        reader_check(&r);
    if (diagnostics_tell(&r.mistakes, err))
        return -1;
    *spec = job.model;
    return 0;
}

/* The weights' own head counts for more than what config.json says of it. */
static void untie(struct job_reader *r, const char *folder)
{
    if (!r->job->model.tied_embeddings || !hf_head_is_own(folder, r->arena))
        return;
    r->job->model.tied_embeddings = 0;
    r->job->untied_by = arena_strdup(r->arena, folder);
    job_note(r->job, r->arena, "model.tied_embeddings = false (%s: " JOB_UNTIED ")", folder);
}

int hf_config_read(struct job_reader *r, const struct yaml_node *node, const char *folder)
{
    const char *path = arena_printf(r->arena, "%s/config.json", folder);
    char *text;
    size_t n_bytes;
    struct err err;

    if (file_read(path, CONFIG_MAX_BYTES, ERR_CONFIG, &text, &n_bytes, &err))
        return diagnostics_add(&r->mistakes, node, "%s", err.text);
    int status = hf_config_take(r, path, text, n_bytes);
    free(text);
    if (!status)
        untie(r, folder);
    return status;
}
