/*
 * task_style.c - values of a description of a task, and one of its styles
 */
#include "eval/task_impl.h"

#include <stddef.h>
#include <string.h>

enum key_type {
    KEY_TEXT,
    KEY_INT,
    KEY_FLOAT,
    KEY_FLAG,
    KEY_TEXTS,
    KEY_TEMPLATE,
    KEY_CHOICES, /* a list, or a template of one */
    KEY_WORD,    /* one of words, as its index */
    KEY_FILTERS,
    KEY_PATTERNS,
};

/* One table of the keys of a style does all of the reading. */
struct key {
    const char *name;
    enum key_type type;
    size_t offset;
    const char *words[4];
};

#define AT(field) offsetof(struct task_way, field)

static const struct key way_keys[] = {
    { "kind", KEY_WORD, AT(kind), { "choice", "generate", "code" } },
    { "description", KEY_TEMPLATE, AT(description), { NULL } },
    { "prompt", KEY_TEMPLATE, AT(prompt), { NULL } },
    { "choices", KEY_CHOICES, AT(choices), { NULL } },
    { "target", KEY_TEMPLATE, AT(target), { NULL } },
    { "program", KEY_TEMPLATE, AT(program), { NULL } },
    { "given", KEY_TEMPLATE, AT(given), { NULL } },
    { "test", KEY_TEMPLATE, AT(test), { NULL } },
    { "entry", KEY_TEMPLATE, AT(entry), { NULL } },
    { "shots", KEY_INT, AT(n_shots), { NULL } },
    { "shots_most", KEY_INT, AT(n_shots_most), { NULL } },
    { "shots_order", KEY_WORD, AT(order), { "first", "random" } },
    { "shots_from", KEY_WORD, AT(shots_from), { "shots", "test", "items", "description" } },
    { "leave_out", KEY_TEXTS, AT(leave_out), { NULL } },
    { "shots_file", KEY_TEXTS, AT(shots_file), { NULL } },
    { "shots_instead", KEY_TEXT, AT(shots_instead), { NULL } },
    { "chat", KEY_FLAG, AT(chat), { NULL } },
    { "last_token", KEY_FLAG, AT(last_token), { NULL } },
    { "shot_delimiter", KEY_TEXT, AT(shot_delimiter), { NULL } },
    { "target_delimiter", KEY_TEXT, AT(target_delimiter), { NULL } },
    { "max_new_tokens", KEY_INT, AT(max_new_tokens), { NULL } },
    { "beams", KEY_INT, AT(n_beams), { NULL } },
    { "length_penalty", KEY_FLOAT, AT(length_penalty), { NULL } },
    { "deadline", KEY_FLOAT, AT(deadline), { NULL } },
    { "stops", KEY_TEXTS, AT(stops), { NULL } },
    { "metrics", KEY_TEXTS, AT(metrics), { NULL } },
    { "filters", KEY_FILTERS, AT(filters), { NULL } },
    { "ignore", KEY_PATTERNS, AT(ignore), { NULL } },
    { "ignore_case", KEY_FLAG, AT(ignore_case), { NULL } },
    { "equal", KEY_WORD, AT(math_equal), { "text", "math" } },
};

static const int n_way_keys = (int)(sizeof way_keys / sizeof *way_keys);

/* ---- values ---- */

int task_wrong(const struct yaml_node *node, const char *what, struct err *err)
{
    return err_set(err, ERR_CONFIG, "%s:%d: %s%s%s", node->source, node->line,
                   node->key ? node->key : "", node->key ? " " : "", what);
}

int task_unknown(const struct yaml_node *node, const char *const *names, int n, struct err *err)
{
    const char *near = str_nearest(node->key, names, n);
    struct str all = { 0 };

    for (int i = 0; i < n && !near; i++)
        str_printf(&all, "%s%s", i ? ", " : "", names[i]);
    err_set(err, ERR_CONFIG, "%s:%d: unknown key '%s' (hint: %s)", node->source, node->key_line,
            node->key, near ? near : str_text(&all));
    str_release(&all);
    return -1;
}

int task_read_text(const struct yaml_node *node, const char **out, struct err *err)
{
    if (node->kind != YAML_SCALAR)
        return task_wrong(node, "is not a string", err);
    *out = node->text;
    return 0;
}

int task_read_int(const struct yaml_node *node, int *out, struct err *err)
{
    int64_t value;

    if (node->kind != YAML_SCALAR || str_to_i64(node->text, &value) < 0 || value < -1 ||
        value > 10000000)
        return task_wrong(node, "is not a whole number", err);
    *out = (int)value;
    return 0;
}

static int read_flag(const struct yaml_node *node, int *out, struct err *err)
{
    if (node->kind != YAML_SCALAR ||
        (strcmp(node->text, "true") != 0 && strcmp(node->text, "false") != 0))
        return task_wrong(node, "is neither true nor false", err);
    *out = !strcmp(node->text, "true");
    return 0;
}

/* A text, or a list of them. */
int task_read_texts(struct task *t, const struct yaml_node *node, struct task_texts *out,
                    struct err *err)
{
    int n = 0;

    if (node->kind == YAML_SCALAR) {
        out->items = arena_array(&t->arena, const char *, 1);
        out->items[0] = node->text;
        out->n = 1;
        return 0;
    }
    if (node->kind != YAML_LIST)
        return task_wrong(node, "is not a list of texts", err);
    for (const struct yaml_node *p = node->first; p; p = p->next, n++)
        if (p->kind != YAML_SCALAR)
            return task_wrong(p, "is not a string", err);
    out->items = arena_array(&t->arena, const char *, n);
    out->n = 0;
    for (const struct yaml_node *p = node->first; p; p = p->next)
        out->items[out->n++] = p->text;
    return 0;
}

int task_read_template(struct task *t, const struct yaml_node *node, struct text_template **out,
                       struct err *err)
{
    const char *text = NULL;

    if (task_read_text(node, &text, err) < 0)
        return -1;
    const char *name =
        arena_printf(&t->arena, "%s:%d: %s", node->source, node->line, node->key ? node->key : "");
    if (text_template_open(out, name, text, err) < 0) {
        err->code = ERR_CONFIG;
        return -1;
    }
    t->templates = arena_grow(&t->arena, t->templates, sizeof(struct text_template *),
                              &t->templates_capacity, t->n_templates + 1);
    t->templates[t->n_templates++] = *out;
    return 0;
}

static int read_patterns(struct task *t, const struct yaml_node *node, struct answer_pattern ***out,
                         int *n, struct err *err)
{
    struct task_texts texts = { 0 };

    if (task_read_texts(t, node, &texts, err) < 0)
        return -1;
    *out = arena_array(&t->arena, struct answer_pattern *, texts.n);
    *n = texts.n;
    for (int i = 0; i < texts.n; i++) {
        if (answer_pattern_create(&(*out)[i], texts.items[i], err) < 0)
            return err_add(err, "%s:%d", node->source, node->line);
        t->patterns = arena_grow(&t->arena, t->patterns, sizeof(struct answer_pattern *),
                                 &t->patterns_capacity, t->n_patterns + 1);
        t->patterns[t->n_patterns++] = (*out)[i];
    }
    return 0;
}

static int read_filter(struct task *t, const struct yaml_node *map, struct task_filter *filter,
                       struct err *err)
{
    static const char *const names[] = { "name", "render", "find", "which" };

    if (map->kind != YAML_MAP)
        return task_wrong(map, "is not a map with the keys name, render, find, which", err);
    *filter = (struct task_filter){ 0 };
    for (const struct yaml_node *p = map->first; p; p = p->next) {
        int status;

        if (!strcmp(p->key, "name"))
            status = task_read_text(p, &filter->name, err);
        else if (!strcmp(p->key, "render"))
            status = task_read_template(t, p, &filter->render, err);
        else if (!strcmp(p->key, "find"))
            status = read_patterns(t, p, &filter->find, &filter->n_find, err);
        else if (!strcmp(p->key, "which"))
            status = task_read_int(p, &filter->which, err);
        else
            status = task_unknown(p, names, 4, err);
        if (status < 0)
            return -1;
    }
    return 0;
}

static int read_filters(struct task *t, const struct yaml_node *node, struct task_way *way,
                        struct err *err)
{
    if (node->kind != YAML_LIST)
        return task_wrong(node, "is not a list", err);
    way->n_filters = 0;
    for (const struct yaml_node *p = node->first; p; p = p->next) {
        if (way->n_filters == TASK_FILTERS_MAX)
            return task_wrong(p, "is one filter too many: at most 4 are allowed", err);
        if (read_filter(t, p, &way->filters[way->n_filters++], err) < 0)
            return -1;
    }
    return 0;
}

static int read_word(const struct yaml_node *node, const struct key *key, int *out, struct err *err)
{
    int n = 0;

    for (; n < 4 && key->words[n]; n++)
        if (node->kind == YAML_SCALAR && !strcmp(node->text, key->words[n])) {
            *out = n;
            return 0;
        }
    const char *near = node->kind == YAML_SCALAR ? str_nearest(node->text, key->words, n) : NULL;
    struct str all = { 0 };
    for (int i = 0; i < n && !near; i++)
        str_printf(&all, "%s%s", i ? " or " : "", key->words[i]);
    err_set(err, ERR_CONFIG, "%s:%d: %s is '%s' (hint: %s)", node->source, node->line, key->name,
            node->kind == YAML_SCALAR ? node->text : "no text", near ? near : str_text(&all));
    str_release(&all);
    return -1;
}

static int read_choices(struct task *t, const struct yaml_node *node, struct task_way *way,
                        struct err *err)
{
    way->choices = NULL;
    way->choice_texts = (struct task_texts){ 0 };
    if (node->kind == YAML_SCALAR)
        return task_read_template(t, node, &way->choices, err);
    return task_read_texts(t, node, &way->choice_texts, err);
}

static int read_float(const struct yaml_node *node, double *out, struct err *err)
{
    if (node->kind != YAML_SCALAR || str_to_f64(node->text, out) < 0)
        return task_wrong(node, "is not a number", err);
    return 0;
}

static int read_key(struct task *t, const struct yaml_node *node, const struct key *key,
                    struct task_way *way, struct err *err)
{
    void *at = (char *)way + key->offset;

    switch (key->type) {
    case KEY_TEXT:
        return task_read_text(node, at, err);
    case KEY_INT:
        return task_read_int(node, at, err);
    case KEY_FLOAT:
        return read_float(node, at, err);
    case KEY_FLAG:
        return read_flag(node, at, err);
    case KEY_TEXTS:
        return task_read_texts(t, node, at, err);
    case KEY_TEMPLATE:
        return task_read_template(t, node, at, err);
    case KEY_CHOICES:
        return read_choices(t, node, way, err);
    case KEY_WORD:
        return read_word(node, key, at, err);
    case KEY_FILTERS:
        return read_filters(t, node, way, err);
    case KEY_PATTERNS:
        return read_patterns(t, node, at, &way->n_ignore, err);
    }
    CHECK(!"a type of key");
    return -1;
}

/* ---- a style ---- */

static int refuse_key(const struct yaml_node *node, struct err *err)
{
    const char *names[sizeof way_keys / sizeof *way_keys];

    for (int i = 0; i < n_way_keys; i++)
        names[i] = way_keys[i].name;
    return task_unknown(node, names, n_way_keys, err);
}

/* skip: keys that are read elsewhere. */
static int read_way(struct task *t, const struct yaml_node *map, const char *skip,
                    struct task_way *way, struct err *err)
{
    for (const struct yaml_node *p = map->first; p; p = p->next) {
        int k = 0;

        if (!strcmp(p->key, skip))
            continue;
        while (k < n_way_keys && strcmp(way_keys[k].name, p->key) != 0)
            k++;
        if (k == n_way_keys)
            return refuse_key(p, err);
        if (read_key(t, p, &way_keys[k], way, err) < 0)
            return -1;
    }
    return 0;
}

static int check_way(const struct yaml_node *style, const struct task_way *way, struct err *err)
{
    const char *missing = NULL;

    if (!way->prompt)
        missing = "prompt";
    else if (!way->target)
        missing = "target";
    else if (!way->metrics.n)
        missing = "metrics";
    else if (way->kind == TASK_CHOICE && !way->choices && !way->choice_texts.n)
        missing = "choices";
    else if (way->kind == TASK_CODE && !way->program)
        missing = "program";
    else if (way->kind == TASK_CODE && !way->test)
        missing = "test, which decides about its program";
    else if (way->kind == TASK_CODE && !way->entry)
        missing = "entry, the name that its test calls";
    if (missing)
        return err_set(err, ERR_CONFIG, "%s:%d: style %s has no %s", style->source, style->line,
                       style->key, missing);
    if (way->metrics.n > TASK_METRICS_MAX)
        return task_wrong(style, "has more than 4 metrics", err);
    for (int i = 0; i < way->metrics.n && way->kind == TASK_CHOICE; i++)
        if (strcmp(way->metrics.items[i], "acc") != 0 &&
            strcmp(way->metrics.items[i], "acc_norm") != 0)
            return err_set(err, ERR_CONFIG, "%s:%d: metric '%s' of choices (hint: acc or acc_norm)",
                           style->source, style->line, way->metrics.items[i]);
    return 0;
}

struct task_part *task_find_part(struct task *t, const char *name)
{
    for (int i = 0; i < t->n_parts; i++)
        if (!strcmp(t->parts[i].name, name))
            return &t->parts[i];
    return NULL;
}

/* Parts with another way: a map of `parts` and of what differs. */
static int read_exception(struct task *t, const struct yaml_node *map, struct err *err)
{
    const struct yaml_node *parts = yaml_get(map, "parts");
    struct task_texts names = { 0 };

    if (!parts)
        return task_wrong(map, "has no parts", err);
    if (task_read_texts(t, parts, &names, err) < 0)
        return -1;
    for (int i = 0; i < names.n; i++) {
        struct task_part *part = task_find_part(t, names.items[i]);

        if (!part)
            return err_set(err, ERR_CONFIG, "%s:%d: there is no part '%s'", parts->source,
                           parts->line, names.items[i]);
        if (read_way(t, map, "parts", &part->way, err) < 0)
            return -1;
    }
    return 0;
}

int task_read_style(struct task *t, const struct yaml_node *styles, const char *style,
                    struct err *err)
{
    const char *names[16];
    int n = 0;
    struct task_way way = { .n_shots_most = -1,
                            .shot_delimiter = "\n\n",
                            .target_delimiter = " ",
                            .max_new_tokens = 256,
                            .n_beams = 1,
                            .length_penalty = 1,
                            .deadline = 3 };
    const struct yaml_node *map = styles ? yaml_get(styles, style) : NULL;

    for (const struct yaml_node *p = styles ? styles->first : NULL; p && n < 16; p = p->next)
        names[n++] = p->key;
    if (!map || map->kind != YAML_MAP)
        return err_set(err, ERR_CONFIG, "task %s has no style '%s' (hint: %s)", t->name, style,
                       n > 0 ? names[0] : "styles: in its description");
    if (read_way(t, map, "except", &way, err) < 0)
        return -1;
    for (int i = 0; i < t->n_parts; i++)
        t->parts[i].way = way;
    const struct yaml_node *except = yaml_get(map, "except");
    for (const struct yaml_node *p = except ? except->first : NULL; p; p = p->next)
        if (read_exception(t, p, err) < 0)
            return -1;
    for (int i = 0; i < t->n_parts; i++)
        if (check_way(map, &t->parts[i].way, err) < 0)
            return -1;
    return 0;
}
