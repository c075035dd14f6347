/*
 * flat_job.c - flattening and comparing jobs
 */
#include "report/flat_job.h"

#include <string.h>

#include "base/str.h"
#include "base/yaml.h"

/* A value on one line, as YAML's flow style has it. */
static void print_value(const struct yaml_node *node, int depth, struct str *out)
{
    bool is_map = node->kind == YAML_MAP;

    if (node->kind == YAML_SCALAR || depth == YAML_MAX_DEPTH) {
        str_add(out, node->text ? node->text : "");
        return;
    }
    str_add_char(out, is_map ? '{' : '[');
    for (const struct yaml_node *child = node->first; child; child = child->next) {
        str_add(out, child == node->first ? "" : ", ");
        if (is_map)
            str_printf(out, "%s: ", child->key);
        print_value(child, depth + 1, out);
    }
    str_add_char(out, is_map ? '}' : ']');
}

static void add_value(struct flat_job *job, const char *key, const struct yaml_node *node,
                      struct arena *arena)
{
    struct str text = { 0 };

    print_value(node, 0, &text);
    job->values = arena_grow(arena, job->values, sizeof *job->values, &job->capacity, job->n + 1);
    job->values[job->n++] =
        (struct flat_job_value){ .key = key, .text = arena_strdup(arena, str_text(&text)) };
    str_release(&text);
}

/* Where the walk is in a map that is open. */
struct flat_cursor {
    const struct yaml_node *next;
    const char *prefix;
};

/* Nested maps by an explicit stack. */
static void flatten(struct flat_job *job, const struct yaml_node *root, struct arena *arena)
{
    struct flat_cursor stack[YAML_MAX_DEPTH + 1] = { { root->first, "" } };
    int depth = 1;

    while (depth) {
        struct flat_cursor *top = &stack[depth - 1];
        const struct yaml_node *node = top->next;

        if (!node) {
            depth--;
            continue;
        }
        top->next = node->next;
        const char *key =
            arena_printf(arena, "%s%s%s", top->prefix, *top->prefix ? "." : "", node->key);

        if (node->kind == YAML_MAP && node->first && depth <= YAML_MAX_DEPTH)
            stack[depth++] = (struct flat_cursor){ node->first, key };
        else
            add_value(job, key, node, arena);
    }
}

static int take_tree(struct flat_job *job, const struct yaml_node *root, const char *source,
                     struct arena *arena, struct err *err)
{
    *job = (struct flat_job){ .n = 0 };
    if (!root)
        return -1;
    if (root->kind != YAML_MAP)
        return err_set(err, ERR_CONFIG, "%s: not a job: a map of keys was expected", source);
    flatten(job, root, arena);
    return 0;
}

int flat_job_parse(struct flat_job *job, const char *text, size_t n_bytes, const char *source,
                   struct arena *arena, struct err *err)
{
    return take_tree(job, yaml_parse(text, n_bytes, source, arena, err), source, arena, err);
}

int flat_job_read(struct flat_job *job, const char *path, struct arena *arena, struct err *err)
{
    return take_tree(job, yaml_read(path, arena, err), path, arena, err);
}

const char *flat_job_find(const struct flat_job *job, const char *key)
{
    for (int i = 0; i < job->n; i++)
        if (!strcmp(job->values[i].key, key))
            return job->values[i].text;
    return NULL;
}

/* ---- differences ---- */

/* Whether an earlier job has the key, which was compared then. */
static bool was_compared(const struct flat_job *jobs, int job, const char *key)
{
    for (int i = 0; i < job; i++)
        if (flat_job_find(&jobs[i], key))
            return true;
    return false;
}

/* Fill values; returns whether they differ. */
static bool collect(const char **values, const struct flat_job *jobs, int n_jobs, const char *key)
{
    bool differ = false;

    for (int i = 0; i < n_jobs; i++) {
        values[i] = flat_job_find(&jobs[i], key);
        differ |= !values[i] != !values[0] || (values[i] && strcmp(values[i], values[0]) != 0);
    }
    return differ;
}

int flat_job_compare(struct flat_job_difference **differences, const struct flat_job *jobs,
                     int n_jobs, struct arena *arena)
{
    const char **values = arena_array(arena, const char *, n_jobs);
    int n = 0, capacity = 0;

    *differences = NULL;
    for (int j = 0; j < n_jobs; j++) {
        for (int k = 0; k < jobs[j].n; k++) {
            const char *key = jobs[j].values[k].key;

            if (was_compared(jobs, j, key) || !collect(values, jobs, n_jobs, key))
                continue;
            *differences = arena_grow(arena, *differences, sizeof **differences, &capacity, n + 1);
            (*differences)[n++] = (struct flat_job_difference){ .key = key, .values = values };
            values = arena_array(arena, const char *, n_jobs);
        }
    }
    return n;
}
