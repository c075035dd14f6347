/*
 * hf_config.c - the folder, and what its README.md says of configurations
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hub.h"
#include "base/yaml.h"
#include "data/rows/hf_dataset_impl.h"

#define README_BYTES_MAX ((size_t)16 << 20)

/* ---- README.md ---- */

/* Lines of the YAML header from "configs:" to the next key, in arena; NULL: there are none. */
static const char *configs_of(struct hf_dataset *d, const char *text)
{
    const char *at = text, *from = NULL;

    if (!str_starts_with(text, "---"))
        return NULL;
    while ((at = strchr(at, '\n'))) {
        const char *line = ++at;

        if (str_starts_with(line, "---"))
            break;
        if (str_starts_with(line, "configs:"))
            from = line;
        else if (from && *line && !strchr(" -#\r\n", *line))
            break;
    }
    return from ? arena_strndup(&d->arena, from, at ? (size_t)(at - from) : strlen(from)) : NULL;
}

/* The list of configs, or NULL. 0, or -1. */
static int read_configs(struct hf_dataset *d, const struct yaml_node **configs)
{
    const char *path = arena_printf(&d->arena, "%s/README.md", d->path), *yaml;
    size_t n_bytes;
    char *text;

    *configs = NULL;
    if (!file_exists(path))
        return 0;
    if (file_read(path, README_BYTES_MAX, ERR_DATA, &text, &n_bytes, d->err) < 0)
        return -1;
    yaml = configs_of(d, text);
    free(text);
    if (!yaml)
        return 0;
    const struct yaml_node *root = yaml_parse(yaml, strlen(yaml), path, &d->arena, d->err);
    const struct yaml_node *list = root ? yaml_get(root, "configs") : NULL;
    if (!root)
        return -1;
    if (list && list->kind == YAML_LIST && list->first)
        *configs = list;
    return 0;
}

static const char *text_of(const struct yaml_node *map, const char *key)
{
    const struct yaml_node *node = yaml_get(map, key);

    return node && node->kind == YAML_SCALAR && !yaml_is_null(node) ? node->text : NULL;
}

static const char *name_of(const struct yaml_node *config)
{
    const char *name = text_of(config, "config_name");

    return name ? name : "default";
}

/* The config that name asks for, or the default one. */
static const struct yaml_node *choose(struct hf_dataset *d, const struct yaml_node *configs)
{
    const struct yaml_node *found = configs->first->next ? NULL : configs->first;
    struct str names = { 0 };

    if (d->name)
        found = NULL;
    for (const struct yaml_node *c = configs->first; c; c = c->next) {
        const char *is_default = text_of(c, "default");

        str_printf(&names, "%s%.64s", c == configs->first ? "" : ", ", name_of(c));
        if (d->name ? !strcmp(name_of(c), d->name)
                    : !strcmp(name_of(c), "default") || (is_default && !strcmp(is_default, "true")))
            found = c;
    }
    if (!found && d->name)
        err_set(d->err, ERR_CONFIG, "%s: %s has no configuration \"%s\" (hint: %.400s)", d->source,
                d->path, d->name, str_text(&names));
    else if (!found)
        err_set(d->err, ERR_CONFIG,
                "%s: \"name\" is missing, and %s has several configurations (hint: %.400s)",
                d->source, d->path, str_text(&names));
    str_release(&names);
    return found;
}

/* A scalar, or a list of scalars. */
static void add_patterns(struct hf_dataset *d, const char *split, const struct yaml_node *node)
{
    if (node && node->kind == YAML_SCALAR)
        hf_add_pattern(d, split, node->text);
    for (const struct yaml_node *item = node && node->kind == YAML_LIST ? node->first : NULL; item;
         item = item->next)
        if (item->kind == YAML_SCALAR)
            hf_add_pattern(d, split, item->text);
}

static void take_config(struct hf_dataset *d, const struct yaml_node *config)
{
    const struct yaml_node *files = yaml_get(config, "data_files");
    const char *folder = text_of(config, "data_dir");

    if (folder)
        d->folder = arena_printf(&d->arena, "%s/%s", d->path, folder);
    for (const struct yaml_node *item = files && files->kind != YAML_SCALAR ? files->first : NULL;
         item; item = item->next) {
        const char *split = text_of(item, "split");

        if (item->kind == YAML_MAP)
            add_patterns(d, split ? split : "train", yaml_get(item, "path"));
        else
            add_patterns(d, files->kind == YAML_MAP ? item->key : "train", item);
    }
    if (files && files->kind == YAML_SCALAR)
        add_patterns(d, "train", files);
}

/* ---- folders ---- */

static int refuse_path(struct hf_dataset *d)
{
    char hint[HUB_HINT_MAX];

    if (file_exists(d->path))
        return err_set(d->err, ERR_DATA,
                       "%s: path %s is a file, not a folder (hint: lmtrain data tokenize %s)",
                       d->source, d->path, d->path);
    return err_set(d->err, ERR_DATA, "%s: folder %s does not exist, and nothing is downloaded%s",
                   d->source, d->path, hub_hint(hint, sizeof hint, d->path, HUB_DATASET));
}

static bool has_file(struct hf_dataset *d, const char *name)
{
    return file_exists(arena_printf(&d->arena, "%s/%s", d->path, name));
}

/* "json" and so on are not folders: data_files are then of the working directory. 1 if path is
 * such a word. */
static int find_builder(struct hf_dataset *d)
{
    static const char *const builders[] = { "json", "csv", "parquet" };

    for (size_t i = 0; i < sizeof builders / sizeof *builders; i++)
        if (!strcmp(d->path, builders[i]) && !file_is_folder(d->path)) {
            if (!d->n_patterns && !d->data_dir)
                return err_set(d->err, ERR_CONFIG,
                               "%s: path is \"%s\", but \"data_files\" is missing", d->source,
                               d->path);
            d->folder = d->data_dir ? d->data_dir : ".";
            return 1;
        }
    return 0;
}

/* Without configs: name is a folder. */
static int find_folder(struct hf_dataset *d)
{
    const char *below = d->name ? arena_printf(&d->arena, "%s/%s", d->path, d->name) : NULL;

    if (!d->name || (!strcmp(d->name, "default") && !file_is_folder(below)))
        return 0;
    if (!file_is_folder(below))
        below = arena_printf(&d->arena, "%s/data/%s", d->path, d->name);
    if (!file_is_folder(below))
        return err_set(d->err, ERR_CONFIG,
                       "%s: %s has neither a configuration nor a folder \"%s\" (hint: README.md "
                       "with configs, or leave \"name\" out)",
                       d->source, d->path, d->name);
    d->folder = below;
    return 0;
}

int hf_find_config(struct hf_dataset *d)
{
    const struct yaml_node *configs, *config;
    int rc = find_builder(d);

    if (rc != 0)
        return rc < 0 ? -1 : 0;
    if (!file_is_folder(d->path))
        return refuse_path(d);
    if (has_file(d, "dataset_dict.json") || has_file(d, "state.json"))
        return err_set(d->err, ERR_DATA,
                       "%s: %s was written by save_to_disk, as arrow, which is not read (hint: "
                       "load_from_disk(...).to_parquet(...))",
                       d->source, d->path);
    d->folder = d->path;
    if (d->n_patterns == 0) {
        if (read_configs(d, &configs) < 0)
            return -1;
        if (configs) {
            if (!(config = choose(d, configs)))
                return -1;
            take_config(d, config);
        } else if (find_folder(d) < 0) {
            return -1;
        }
    }
    if (d->data_dir)
        d->folder = arena_printf(&d->arena, "%s/%s", d->folder, d->data_dir);
    if (!file_is_folder(d->folder))
        return err_set(d->err, ERR_DATA, "%s: folder %s does not exist", d->source, d->folder);
    return 0;
}
