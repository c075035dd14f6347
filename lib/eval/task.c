/*
 * task.c - reading descriptions of tasks
 */
#include "eval/task_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "config/embedded.h"

#define TASK_FOLDER "configs/tasks/"

/* ---- parts and data ---- */

static const char *title_of(struct task *t, const char *name)
{
    char *title = arena_strdup(&t->arena, name);

    for (char *p = title; *p; p++)
        if (*p == '_')
            *p = ' ';
    return title;
}

static int add_part(struct task *t, const struct yaml_node *node, const char *category,
                    int *capacity, struct err *err)
{
    const char *title = NULL;
    const char *name = node->kind == YAML_SCALAR ? node->text : NULL;

    if (node->kind == YAML_MAP && node->first && !node->first->next) { /* name: title */
        name = node->first->key;
        if (task_read_text(node->first, &title, err) < 0)
            return -1;
    }
    if (!name)
        return task_wrong(node, "is neither a part nor {part: title}", err);
    if (task_find_part(t, name))
        return err_set(err, ERR_CONFIG, "%s:%d: part '%s' is listed twice", node->source,
                       node->line, name);
    t->parts = arena_grow(&t->arena, t->parts, sizeof *t->parts, capacity, t->n_parts + 1);
    t->parts[t->n_parts++] = (struct task_part){ .name = name,
                                                 .title = title ? title : title_of(t, name),
                                                 .category = category };
    return 0;
}

/* A list of parts, or a map of categories to lists; none: one part of the task's name. */
static int read_parts(struct task *t, const struct yaml_node *node, struct err *err)
{
    int capacity = 0;

    if (!node) {
        t->parts = arena_new(&t->arena, struct task_part);
        t->parts[0] = (struct task_part){ .name = t->name, .title = title_of(t, t->name) };
        t->n_parts = 1;
        return 0;
    }
    if (node->kind == YAML_SCALAR)
        return task_wrong(node, "is neither a list nor a map of lists", err);
    for (const struct yaml_node *p = node->first; p; p = p->next) {
        if (node->kind == YAML_LIST) {
            if (add_part(t, p, NULL, &capacity, err) < 0)
                return -1;
            continue;
        }
        if (p->kind != YAML_LIST)
            return task_wrong(p, "is not a list of parts", err);
        for (const struct yaml_node *q = p->first; q; q = q->next)
            if (add_part(t, q, p->key, &capacity, err) < 0)
                return -1;
    }
    return t->n_parts > 0 ? 0 : task_wrong(node, "is empty", err);
}

static int read_form(struct task *t, const struct yaml_node *map, struct task_form *form,
                     struct err *err)
{
    static const char *const names[] = { "files", "first_line", "columns",
                                         "list",  "labels",     "record" };

    if (map->kind != YAML_MAP)
        return task_wrong(map, "is not a map with the keys files, columns, list, labels, record",
                          err);
    for (const struct yaml_node *p = map->first; p; p = p->next) {
        int status;

        if (!strcmp(p->key, "files"))
            status = task_read_texts(t, p, &form->files, err);
        else if (!strcmp(p->key, "first_line"))
            status = task_read_text(p, &form->first_line, err);
        else if (!strcmp(p->key, "columns"))
            status = task_read_texts(t, p, &form->columns, err);
        else if (!strcmp(p->key, "list"))
            status = task_read_text(p, &form->list, err);
        else if (!strcmp(p->key, "labels"))
            status = task_read_text(p, &form->labels, err);
        else if (!strcmp(p->key, "record"))
            status = task_read_template(t, p, &form->record, err);
        else
            status = task_unknown(p, names, 6, err);
        if (status < 0)
            return -1;
    }
    return form->files.n > 0 ? 0 : task_wrong(map, "has no files", err);
}

static int read_forms(struct task *t, const struct yaml_node *node, struct task_forms *forms,
                      struct err *err)
{
    int n = 0;

    if (node->kind != YAML_LIST)
        return task_wrong(node, "is not a list of forms", err);
    for (const struct yaml_node *p = node->first; p; p = p->next)
        n++;
    forms->forms = arena_array(&t->arena, struct task_form, n);
    for (const struct yaml_node *p = node->first; p; p = p->next)
        if (read_form(t, p, &forms->forms[forms->n++], err) < 0)
            return -1;
    return 0;
}

static int read_task(struct task *t, const struct yaml_node *root, const char *style,
                     struct err *err)
{
    static const char *const names[] = { "summary", "items",     "parts",  "test",
                                         "shots",   "part_file", "styles", "get" };
    int n_items = 0;

    if (root->kind != YAML_MAP)
        return task_wrong(root, "is not a map", err);
    if (read_parts(t, yaml_get(root, "parts"), err) < 0)
        return -1;
    for (const struct yaml_node *p = root->first; p; p = p->next) {
        int status = 0;

        if (!strcmp(p->key, "items"))
            status = task_read_int(p, &n_items, err);
        else if (!strcmp(p->key, "test"))
            status = read_forms(t, p, &t->test, err);
        else if (!strcmp(p->key, "shots"))
            status = read_forms(t, p, &t->shots, err);
        else if (!strcmp(p->key, "part_file"))
            status = task_read_texts(t, p, &t->part_file, err);
        else if (!strcmp(p->key, "get"))
            status = task_read_text(p, &t->get, err);
        else if (strcmp(p->key, "summary") != 0 && strcmp(p->key, "parts") != 0 &&
                 strcmp(p->key, "styles") != 0)
            status = task_unknown(p, names, 8, err);
        if (status < 0)
            return -1;
    }
    t->n_items = n_items;
    if (!t->test.n)
        return task_wrong(root, "the description has no key test with the files of items", err);
    return task_read_style(t, yaml_get(root, "styles"), style, err);
}

/* ---- whole ---- */

int task_parse(struct task *task, const char *name, const char *style, const char *text,
               const char *source, struct err *err)
{
    *task = (struct task){ 0 };
    task->name = arena_strdup(&task->arena, name);
    task->style = arena_strdup(&task->arena, style);
    task->source = arena_strdup(&task->arena, source);
    const struct yaml_node *root = yaml_parse(text, strlen(text), task->source, &task->arena, err);
    if (!root || read_task(task, root, style, err) < 0) {
        task_close(task);
        return -1;
    }
    return 0;
}

/* The names of all tasks, perplexity among them (eval/perplexity.h), in an array of the arena. */
static const char **task_names(struct arena *arena, int *n)
{
    const char **names = arena_array(arena, const char *, n_embedded_files + 1);

    *n = 0;
    names[(*n)++] = "perplexity";
    for (int i = 0; i < n_embedded_files; i++) {
        const char *path = embedded_files[i].path;

        if (!str_starts_with(path, TASK_FOLDER))
            continue;
        path += strlen(TASK_FOLDER);
        names[(*n)++] = arena_strndup(arena, path, strlen(path) - strlen(".yaml"));
    }
    return names;
}

#define GET "\nget: "

/* The command after `get:` in a description; NULL: it says none. Its length is *n. */
static const char *find_get(const char *text, size_t *n)
{
    const char *found = strstr(text, GET);

    *n = found ? strcspn(found + strlen(GET), "\n") : 0;
    return found ? found + strlen(GET) : NULL;
}

static const struct embedded_file *embedded_task(const char *name, struct arena *arena)
{
    return embedded_find(arena_printf(arena, TASK_FOLDER "%s.yaml", name));
}

void task_print_sources(struct str *out)
{
    struct arena arena = { 0 };
    int n_names;
    const char **names = task_names(&arena, &n_names);

    for (int i = 0; i < n_names; i++) {
        const struct embedded_file *file = embedded_task(names[i], &arena);
        size_t n;
        const char *get = file ? find_get(file->text, &n) : NULL;

        if (get)
            str_printf(out, "  %-10s %.*s\n", names[i], (int)n, get);
    }
    arena_release(&arena);
}

/* A name on the hub that the files of a task have there. */
static int refuse_hub_name(const char *name, struct err *err)
{
    struct arena arena = { 0 };
    int n_names, found = 0;
    const char **names = task_names(&arena, &n_names);
    const char *word = arena_printf(&arena, " %s ", name);

    for (int i = 0; i < n_names && !found; i++) {
        const struct embedded_file *file = embedded_task(names[i], &arena);
        size_t n;
        const char *get = file ? find_get(file->text, &n) : NULL;

        found = get && strstr(arena_strndup(&arena, get, n), word);
        if (found)
            err_set(err, ERR_CONFIG,
                    "there is no task '%s' (hint: --task %s --data DATA, with its files by: %.*s)",
                    name, names[i], (int)n, get);
    }
    arena_release(&arena);
    return found ? -1 : 0;
}

static int refuse_name(const char *name, struct err *err)
{
    struct arena arena = { 0 };
    int n;
    const char **names = task_names(&arena, &n), *near = str_nearest(name, names, n);
    struct str all = { 0 };

    if (refuse_hub_name(name, err) < 0) {
        arena_release(&arena);
        return -1;
    }
    for (int i = 0; i < n && !near; i++)
        str_printf(&all, "%s%s", i ? ", " : "", names[i]);
    err_set(err, ERR_CONFIG, "there is no task '%s' (hint: %s)", name,
            near ? near : str_text(&all));
    str_release(&all);
    arena_release(&arena);
    return -1;
}

int task_open(struct task *task, const char *name, const char *style, struct err *err)
{
    struct arena arena = { 0 };
    const char *path = arena_printf(&arena, TASK_FOLDER "%s.yaml", name);
    const struct embedded_file *embedded = embedded_find(path);
    char *text = NULL;
    size_t n_bytes = 0;
    int status;

    if (strchr(name, '/') || !*name)
        status = refuse_name(name, err);
    else if (file_exists(path))
        status = file_read(path, YAML_MAX_BYTES, ERR_CONFIG, &text, &n_bytes, err) < 0 ? -1
                 : strlen(text) != n_bytes
                     ? err_set(err, ERR_CONFIG, "%s: a zero byte: not valid YAML", path)
                     : task_parse(task, name, style, text, path, err);
    else if (embedded)
        status = task_parse(task, name, style, embedded->text, path, err);
    else
        status = refuse_name(name, err);
    free(text);
    arena_release(&arena);
    return status;
}

void task_close(struct task *task)
{
    for (int i = 0; i < task->n_templates; i++)
        text_template_close(task->templates[i]);
    for (int i = 0; i < task->n_patterns; i++)
        answer_pattern_destroy(task->patterns[i]);
    arena_release(&task->arena);
}

int task_n_metrics(const struct task_way *way)
{
    return way->kind == TASK_GENERATE && way->n_filters > 1 ? way->n_filters : way->metrics.n;
}

const char *task_metric(struct task *task, const struct task_way *way, int metric)
{
    if (way->kind != TASK_GENERATE || !way->n_filters || !way->filters[metric].name)
        return way->metrics.items[metric];
    return arena_printf(&task->arena, "%s,%s", way->metrics.items[0], way->filters[metric].name);
}
