/*
 * hf_arguments.c - the JSON with arguments of load_dataset
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "data/rows/hf_dataset_impl.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)

static const char *const taken[] = { "path", "name", "split", "data_dir", "data_files" };
static const char *const without_effect[] = { "streaming",         "num_proc",
                                              "cache_dir",         "keep_in_memory",
                                              "save_infos",        "download_mode",
                                              "verification_mode", "ignore_verifications",
                                              "trust_remote_code" };
/* Of the hub alone. */
static const char *const of_hub[] = { "revision", "token", "use_auth_token", "download_config",
                                      "storage_options" };

#define COUNT(list) (int)(sizeof(list) / sizeof *(list))

static bool is_one_of(const char *key, const char *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(key, list[i]))
            return true;
    return false;
}

void hf_add_pattern(struct hf_dataset *d, const char *split, const char *pattern)
{
    struct hf_pattern *more = arena_array(&d->arena, struct hf_pattern, d->n_patterns + 1);

    if (d->n_patterns)
        memcpy(more, d->patterns, sizeof *more * (size_t)d->n_patterns);
    more[d->n_patterns++] = (struct hf_pattern){ split, pattern };
    d->patterns = more;
}

static int take_text(struct hf_dataset *d, const char **out, const struct json_value *value)
{
    if (value->kind == JSON_NULL)
        return 0;
    if (value->kind != JSON_STRING || !value->n_bytes)
        return err_set(d->err, ERR_CONFIG, "%s: \"%s\" is %s, not a string with text", d->source,
                       value->key, json_value_kind_name(value));
    *out = value->text;
    return 0;
}

/* A pattern or a list of them. */
static int take_patterns(struct hf_dataset *d, const char *split, const struct json_value *value)
{
    if (value->kind == JSON_STRING) {
        hf_add_pattern(d, split, value->text);
        return 0;
    }
    for (const struct json_value *item = value->first; value->kind == JSON_ARRAY && item;
         item = item->next) {
        if (item->kind != JSON_STRING)
            break;
        hf_add_pattern(d, split, item->text);
        if (!item->next)
            return 0;
    }
    return err_set(d->err, ERR_CONFIG,
                   "%s: \"data_files\" is not a pattern, a list of patterns or a map of splits to "
                   "these",
                   d->source);
}

static int take_data_files(struct hf_dataset *d, const struct json_value *value)
{
    if (value->kind == JSON_NULL)
        return 0;
    if (value->kind != JSON_OBJECT)
        return take_patterns(d, "train", value);
    for (const struct json_value *item = value->first; item; item = item->next)
        if (take_patterns(d, item->key, item) < 0)
            return -1;
    return 0;
}

static int take(struct hf_dataset *d, const struct json_value *value)
{
    if (is_one_of(value->key, without_effect, COUNT(without_effect))) {
        log_info("%s: %s has no effect: files are read where they are, a row at a time", d->source,
                 value->key);
        return 0;
    }
    if (is_one_of(value->key, of_hub, COUNT(of_hub)))
        return value->kind == JSON_NULL
                   ? 0
                   : err_set(d->err, ERR_CONFIG,
                             "%s: \"%s\" is of the hub, but only local folders are read (hint: "
                             "leave it out)",
                             d->source, value->key);
    if (!strcmp(value->key, "path"))
        return take_text(d, &d->path, value);
    if (!strcmp(value->key, "name"))
        return take_text(d, &d->name, value);
    if (!strcmp(value->key, "split"))
        return take_text(d, &d->split, value);
    if (!strcmp(value->key, "data_dir"))
        return take_text(d, &d->data_dir, value);
    if (!strcmp(value->key, "data_files"))
        return take_data_files(d, value);
    const char *near = str_nearest(value->key, taken, COUNT(taken));
    return err_set(d->err, ERR_CONFIG, "%s: \"%.64s\" is not supported (hint: %s)", d->source,
                   value->key, near ? near : "path, name, split, data_dir, data_files, streaming");
}

int hf_read_arguments(struct hf_dataset *d)
{
    struct json_value *root;
    size_t n_bytes;
    char *text;

    if (file_read(d->source, FILE_BYTES_MAX, ERR_CONFIG, &text, &n_bytes, d->err) < 0)
        return -1;
    int rc = json_value_parse(&root, text, n_bytes, &d->arena, d->err);
    if (rc < 0) {
        d->err->code = ERR_CONFIG;
        err_add(d->err, "%s", d->source);
    } else if (root->kind != JSON_OBJECT) {
        rc = err_set(d->err, ERR_CONFIG,
                     "%s is not a JSON object (hint: {\"path\": \"FOLDER\", \"split\": \"train\"})",
                     d->source);
    }
    for (const struct json_value *v = rc < 0 ? NULL : root->first; v && rc == 0; v = v->next)
        rc = take(d, v);
    free(text);
    if (rc == 0 && !d->path)
        rc = err_set(d->err, ERR_CONFIG, "%s: \"path\" is missing (hint: {\"path\": \"FOLDER\"})",
                     d->source);
    return rc;
}
