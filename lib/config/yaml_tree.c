/*
 * yaml_tree.c - overrides and ${VAR}
 */
#include "config/yaml_tree_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define MAX_PATH_NAMES 8
#define MAX_TREE_DEPTH (YAML_MAX_DEPTH + MAX_PATH_NAMES)

static struct yaml_node *new_child(struct yaml_node *parent, const char *key, const char *source,
                                   struct arena *arena)
{
    struct yaml_node *node = arena_new(arena, struct yaml_node);

    *node = (struct yaml_node){ .kind = YAML_MAP, .source = source, .key = key };
    yaml_append(parent, node);
    return node;
}

/* The key that a group's word is short for, NULL: none. */
static const char *key_of_word(const char *group)
{
    static const char *const keys[][2] = { { "model", "from" }, { "preflight", "mode" } };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(group, keys[i][0]))
            return keys[i][1];
    return NULL;
}

/* A scalar that is now to hold keys: a model's name becomes {from: NAME}, preflight's word
 * {mode: WORD}, any other word goes. */
static void make_map(struct yaml_node *node, const struct yaml_node *parent_of_model,
                     const char *source, struct arena *arena)
{
    struct yaml_node old = *node;

    node->kind = YAML_MAP;
    node->source = source;
    node->line = node->column = 0;
    node->text = NULL;
    node->first = node->last = NULL;
    const char *key = parent_of_model ? key_of_word(node->key) : NULL;

    if (!key || yaml_is_null(&old))
        return;
    struct yaml_node *from = new_child(node, key, old.source, arena);
    from->kind = YAML_SCALAR;
    from->text = old.text;
    from->plain = old.plain;
    from->line = from->key_line = old.line;
    from->column = from->key_column = old.column;
}

/* Put value in the place of node, which keeps its neighbours. */
static void replace(struct yaml_node *node, const struct yaml_node *value, const char *source)
{
    struct yaml_node *next = node->next;
    const char *key = node->key;

    *node = *value;
    node->next = next;
    node->key = key;
    node->key_line = node->key_column = 0;
    node->source = source;
}

int yaml_tree_override(struct yaml_node *root, const char *override, struct diagnostics *m)
{
    const char *equals = strchr(override, '=');
    const char *source = "--set";
    struct err err;

    if (!equals || equals == override) {
        struct yaml_node here = { .source = source };
        return diagnostics_add(m, &here,
                               "%.128s is not path.to.key=value (hint: --set %.128s=VALUE)",
                               override, equals ? "train.steps" : override);
    }
    char *path = arena_strndup(m->arena, override, (size_t)(equals - override));
    source = arena_printf(m->arena, "--set %s", path);
    struct yaml_node here = { .source = source };
    struct yaml_node *value = yaml_parse_value(equals + 1, source, m->arena, &err);
    if (!value)
        return diagnostics_add_text(m, err.text);

    struct yaml_node *node = root;
    int n_names = 0;
    for (char *key = path; key;) {
        char *dot = strchr(key, '.');

        if (dot)
            *dot = '\0';
        if (!*key || ++n_names > MAX_PATH_NAMES)
            return diagnostics_add(m, &here, "not a key of 1 to %d names separated by dots",
                                   MAX_PATH_NAMES);
        if (node->kind == YAML_LIST)
            return diagnostics_add(m, &here, "%.64s is a list (hint: set the whole list)",
                                   node->key);
        if (node->kind == YAML_SCALAR)
            make_map(node, node == root ? NULL : root, source, m->arena);
        struct yaml_node *child = yaml_get(node, key);
        node = child ? child : new_child(node, key, source, m->arena);
        key = dot ? dot + 1 : NULL;
    }
    replace(node, value, source);
    return 0;
}

/* What the last override sets the key to; NULL: none does. */
static const char *override_of(const char *key, const char *const *overrides, int n_overrides)
{
    size_t n = strlen(key);

    for (int i = n_overrides - 1; i >= 0; i--)
        if (!strncmp(overrides[i], key, n) && overrides[i][n] == '=')
            return overrides[i] + n + 1;
    return NULL;
}

void yaml_tree_drop_other(struct yaml_node *root, const char *key, const char *other,
                          const char *const *overrides, int n_overrides)
{
    const char *value = override_of(key, overrides, n_overrides), *dot = strchr(other, '.');

    if (!value || !strcmp(value, "auto") || override_of(other, overrides, n_overrides))
        return;
    for (struct yaml_node *group = root->first; group; group = group->next) {
        struct yaml_node *before = NULL;

        if (strlen(group->key) != (size_t)(dot - other) ||
            strncmp(group->key, other, (size_t)(dot - other)) != 0 || group->kind != YAML_MAP)
            continue;
        for (struct yaml_node *node = group->first; node; before = node, node = node->next)
            if (!strcmp(node->key, dot + 1)) {
                *(before ? &before->next : &group->first) = node->next;
                group->last = node == group->last ? before : group->last;
                break;
            }
    }
}

/* The text with its variables filled in, or NULL after a mistake. */
static const char *expand_text(const struct yaml_node *node, struct diagnostics *m)
{
    struct str out = { 0 };
    const char *result = NULL;

    for (const char *p = node->text; *p;) {
        if (!strncmp(p, "$${", 3)) {
            str_add(&out, "${");
            p += 3;
        } else if (!strncmp(p, "${", 2)) {
            const char *end = strchr(p, '}');
            size_t length = end ? (size_t)(end - p) - 2 : 0;

            if (length == 0) {
                diagnostics_add(m, node, "%.80s: ${ without a name and } (hint: $${ writes ${)",
                                node->text);
                goto out;
            }
            const char *name = arena_strndup(m->arena, p + 2, length);
            const char *value = getenv(name);
            if (!value) {
                diagnostics_add(
                    m, node, "environment variable %.80s is not set (hint: $${ writes ${)", name);
                goto out;
            }
            str_add(&out, value);
            p = end + 1;
        } else {
            str_add_char(&out, *p++);
        }
    }
    result = arena_strdup(m->arena, str_text(&out));
out:
    str_release(&out);
    return result;
}

int yaml_tree_expand(struct yaml_node *root, struct diagnostics *m)
{
    struct yaml_node *stack[MAX_TREE_DEPTH + 2];
    int depth = 0, status = 0;

    stack[depth++] = root;
    while (depth > 0) {
        struct yaml_node *node = stack[--depth];

        if (node->next && node != root)
            stack[depth++] = node->next;
        if (node->kind != YAML_SCALAR) {
            if (node->first) {
                CHECK(depth < MAX_TREE_DEPTH + 2);
                stack[depth++] = node->first;
            }
        } else if (strstr(node->text, "${")) {
            const char *text = expand_text(node, m);

            /* In {...} a variable needs quotes, which shall not make text of a number. */
            if (text && str_starts_with(node->text, "${") && strchr(node->text, '}')[1] == '\0')
                node->plain = 1;
            if (text)
                node->text = text;
            else
                status = -1;
            node->unexpanded = !text;
        }
    }
    return status;
}
