/*
 * hf_family.c - descriptions of families
 */
#include "config/hf_family.h"

#include <ctype.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "config/embedded.h"

#define FOLDER "configs/families/"

/* A name that may be a file's; NULL for others. */
static char *small_letters(const char *model_type, struct arena *arena)
{
    char *name = arena_strndup(arena, model_type, strlen(model_type));

    if (!*name || *name == '.')
        return NULL;
    for (char *c = name; *c; c++) {
        if (!isalnum((unsigned char)*c) && !strchr("_-.", *c))
            return NULL;
        *c = (char)tolower((unsigned char)*c);
    }
    return name;
}

static int check_map(const struct yaml_node *map, struct err *err)
{
    if (map->kind != YAML_MAP)
        return err_set(err, ERR_CONFIG,
                       "%s:%d:%d: %s is not a map (hint: {NAME_IN_LIKE: NAME_IN_THIS_MODEL})",
                       map->source, map->line, map->column, map->key);
    for (const struct yaml_node *pair = map->first; pair; pair = pair->next)
        if (pair->kind != YAML_SCALAR || yaml_is_null(pair) || !*pair->text || !*pair->key)
            return err_set(err, ERR_CONFIG, "%s:%d:%d: %s is not a single value", pair->source,
                           pair->line, pair->column, pair->key);
    return 0;
}

static int check_list(const struct yaml_node *list, struct err *err)
{
    if (list->kind != YAML_LIST)
        return err_set(err, ERR_CONFIG, "%s:%d:%d: %s is not a list (hint: [key])", list->source,
                       list->line, list->column, list->key);
    for (const struct yaml_node *item = list->first; item; item = item->next)
        if (item->kind != YAML_SCALAR || yaml_is_null(item) || !*item->text)
            return err_set(err, ERR_CONFIG, "%s:%d:%d: %s has an item that is not a key",
                           item->source, item->line, item->column, list->key);
    return 0;
}

static int take(struct hf_family *family, const struct yaml_node *root, struct err *err)
{
    if (root->kind != YAML_MAP || !yaml_get(root, "like"))
        return err_set(err, ERR_CONFIG, "%s: key like is missing (hint: like: llama)",
                       root->source);
    for (const struct yaml_node *node = root->first; node; node = node->next) {
        if (!strcmp(node->key, "like")) {
            if (node->kind != YAML_SCALAR || yaml_is_null(node))
                return err_set(err, ERR_CONFIG, "%s:%d:%d: like is not the name of a family",
                               node->source, node->line, node->column);
            family->like = node->text;
            continue;
        }
        if (!strcmp(node->key, "ignore")) {
            if (check_list(node, err) < 0)
                return -1;
            family->ignore = node;
            continue;
        }
        const struct yaml_node **maps[] = { &family->keys, &family->names, &family->model };
        static const char *const words[] = { "keys", "names", "model" };
        size_t i = 0;
        while (i < 3 && strcmp(node->key, words[i]) != 0)
            i++;
        if (i == 3)
            return err_set(err, ERR_CONFIG,
                           "%s:%d:%d: unknown key %.64s (hint: like, keys, names, model, ignore)",
                           node->source, node->key_line, node->key_column, node->key);
        if (check_map(node, err) < 0)
            return -1;
        *maps[i] = node;
    }
    return 0;
}

int hf_family_read(struct hf_family *family, const char *model_type, struct arena *arena,
                   struct err *err)
{
    const char *name = small_letters(model_type, arena);
    const struct yaml_node *root;

    *family = (struct hf_family){ .model_type = name ? name : model_type };
    family->like = family->model_type;
    if (!name)
        return 0;
    const char *path = arena_printf(arena, FOLDER "%s.yaml", name);
    const struct embedded_file *embedded = embedded_find(path);
    if (file_exists(path))
        root = yaml_read(path, arena, err);
    else if (embedded)
        root = yaml_parse(embedded->text, strlen(embedded->text), path, arena, err);
    else
        return 0;
    return root ? take(family, root, err) : -1;
}

/* Whether the part stands here, between dots or ends. */
static int is_part(const char *name, const char *at, const char *part)
{
    size_t n = strlen(part);

    return (at == name || at[-1] == '.') && !strncmp(at, part, n) &&
           (at[n] == '.' || at[n] == '\0');
}

const char *hf_family_rename(const struct hf_family *family, const char *name, struct arena *arena)
{
    const struct yaml_node *pair;
    struct str out = { 0 };

    if (!family->names)
        return name;
    for (const char *at = name; *at;) {
        for (pair = family->names->first; pair && !is_part(name, at, pair->key);)
            pair = pair->next;
        if (!pair) {
            str_add_char(&out, *at++);
            continue;
        }
        str_add(&out, pair->text);
        at += strlen(pair->key);
    }
    const char *renamed = arena_strndup(arena, str_text(&out), out.length);
    str_release(&out);
    return renamed;
}
