/*
 * job.c - reading a job file
 *
 * File and overrides become one tree; the tree's leaves are set one by one from the table; then
 * what was left out is derived, and fields are held against each other. Each stage puts its
 * mistakes down and goes on as long as what follows still makes sense.
 */
#include "config/job.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "config/read_impl.h"
#include "config/yaml_tree_impl.h"

#define MAX_OPEN_GROUPS 64

struct open_map {
    const struct yaml_node *map;
    const char *prefix; /* "" or "train" */
};

void job_note(struct job *job, struct arena *arena, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    CHECK(job->n_notes < JOB_MAX_NOTES);
    job->notes[job->n_notes++] = arena_strdup(arena, text);
}

const struct yaml_node *reader_given(const struct job_reader *r, const char *key)
{
    const struct field *field = field_find(key);

    CHECK(field);
    return r->given[field - job_fields];
}

static void take_field(struct job_reader *r, const struct field *field,
                       const struct yaml_node *node)
{
    ptrdiff_t index = field - job_fields;

    if (node->unexpanded || field_set(field, r->job, node, &r->mistakes)) {
        r->refused[index] = 1;
        if (r->given[index])
            return;
    }
    r->given[index] = node;
}

/* Another name of a field. What a model's own file gives may be overridden under either. */
static int is_given_twice(const struct job_reader *r, const char *key, const struct yaml_node *node)
{
    const struct yaml_node *other = reader_given(r, key);

    return other && (!str_starts_with(key, "model.") || !strcmp(other->source, node->source));
}

static void refuse_both(struct job_reader *r, const struct deprecated_key *key,
                        const struct yaml_node *node)
{
    r->refused[field_find(key->successor) - job_fields] = 1;
    diagnostics_add_at_key(&r->mistakes, node,
                           "%s and %s are both given: the former is the deprecated name of the "
                           "latter (hint: leave %s out)",
                           key->old, key->successor, key->old);
}

static void take_deprecated(struct job_reader *r, const struct deprecated_key *key,
                            const struct yaml_node *node)
{
    const struct field *field = field_find(key->successor);
    struct job *job = r->job;
    struct str text = { 0 };

    CHECK(field);
    if (is_given_twice(r, key->successor, node)) {
        refuse_both(r, key, node);
        return;
    }
    if (node->line > 0)
        str_printf(&text, "%s:%d:%d: ", node->source, node->key_line, node->key_column);
    else
        str_printf(&text, "%s: ", node->source);
    deprecated_describe(key, &text);
    job->warnings = arena_grow(r->arena, job->warnings, sizeof *job->warnings, &r->n_warnings_max,
                               job->n_warnings + 1);
    job->warnings[job->n_warnings++] = arena_strdup(r->arena, str_text(&text));
    str_release(&text);
    take_field(r, field, node);
    r->deprecated_by[field - job_fields] = key;
}

/* By its name of today. */
static void take_named(struct job_reader *r, const struct field *field,
                       const struct yaml_node *node)
{
    const struct deprecated_key *by = r->deprecated_by[field - job_fields];

    if (by && is_given_twice(r, field->key, node))
        refuse_both(r, by, node);
    else
        take_field(r, field, node);
}

void reader_refuse(struct job_reader *r, const char *key)
{
    size_t length = strlen(key);

    if (!strcmp(key, "model"))
        r->model_failed = 1;
    for (int i = 0; i < n_job_fields; i++)
        if (!strncmp(job_fields[i].key, key, length) &&
            (!job_fields[i].key[length] || job_fields[i].key[length] == '.'))
            r->refused[i] = 1;
}

/* Whether a group's value was something else than a map, which is then dealt with. */
static int is_group_word(struct job_reader *r, const struct yaml_node *node, const char *key)
{
    if (node->kind == YAML_MAP)
        return 0;
    if (yaml_is_null(node))
        return 1;
    if (!strcmp(key, "parallel") && node->kind == YAML_SCALAR && !strcmp(node->text, "auto")) {
        r->job->parallel.mode = PARALLEL_AUTO;
        r->given[field_find("parallel.mode") - job_fields] = node;
        return 1;
    }
    if (!strcmp(key, "preflight") && node->kind == YAML_SCALAR) {
        take_field(r, field_find("preflight.mode"), node);
        return 1;
    }
    reader_refuse(r, key);
    if (node->unexpanded)
        return 1;
    diagnostics_add(
        &r->mistakes, node, "%s is %s%.64s%s, not a map of fields (hint: %s: {KEY: VALUE})", key,
        node->kind == YAML_LIST ? "a list" : "\"", node->kind == YAML_LIST ? "" : node->text,
        node->kind == YAML_LIST ? "" : "\"", key);
    return 1;
}

void reader_take_map(struct job_reader *r, const struct yaml_node *map, const char *prefix)
{
    struct open_map open[MAX_OPEN_GROUPS];
    int n_open = 0;

    open[n_open++] = (struct open_map){ map, prefix };
    while (n_open > 0) {
        struct open_map now = open[--n_open];

        for (const struct yaml_node *node = now.map->first; node; node = node->next) {
            const char *key =
                *now.prefix ? arena_printf(r->arena, "%s.%s", now.prefix, node->key) : node->key;
            const struct field *field = field_find(key);
            const struct deprecated_key *old = deprecated_find(r->deprecated, key);

            if (!strcmp(key, "model"))
                reader_take_model(r, node);
            else if (field)
                take_named(r, field, node);
            else if (old)
                take_deprecated(r, old, node);
            else if (!field_is_group(key) && !deprecated_is_group(r->deprecated, key))
                reader_add_unknown(r, node, key);
            else if (!is_group_word(r, node, key)) {
                CHECK(n_open < MAX_OPEN_GROUPS);
                open[n_open++] = (struct open_map){ node, key };
            }
        }
    }
}

static void check_missing(struct job_reader *r)
{
    int has_model = 0, is_kind = !r->refused[field_find("kind") - job_fields];

    for (int i = 0; i < n_job_fields; i++)
        has_model |= r->given[i] && str_starts_with(job_fields[i].key, "model.");
    if (!has_model && !r->model_failed)
        diagnostics_add(
            &r->mistakes, NULL,
            "model is missing (hint: a name such as llama-100m, a folder with config.json, "
            "or fields)");
    for (int i = 0; i < n_job_fields; i++) {
        int of_model = str_starts_with(job_fields[i].key, "model.");

        /* Only finetune and lora can do without. */
        int is_steps = !strcmp(job_fields[i].key, "train.steps") && !r->job->train.steps &&
                       r->job->kind == JOB_PRETRAIN && is_kind;
        if (is_steps && r->given[i] && !r->refused[i]) {
            diagnostics_add(&r->mistakes, r->given[i],
                            "train.steps is auto, but pretrain has no train.epochs (hint: give a "
                            "number of steps)");
            continue;
        }
        if (r->refused[i] || (job_fields[i].initial && !is_steps) || (r->given[i] && !is_steps) ||
            (of_model && (!has_model || r->model_failed)) || (!of_model && r->model_only))
            continue;
        diagnostics_add(&r->mistakes, NULL, "%s is missing (hint: %s)", job_fields[i].key,
                        job_fields[i].help);
    }
}

/* Where it is not said: what only the data and the adapters of tuning have says it. */
static void infer_kind(struct job_reader *r)
{
    static const char *const tuning[] = { "train.epochs",  "data.format",      "data.columns",
                                          "data.template", "data.mask",        "data.too_long",
                                          "data.bad_rows", "data.packing",     "data.lengths",
                                          "data.system",   "data.added_tokens" };
    const char *by = NULL;

    if (r->model_only || reader_given(r, "kind"))
        return;
    for (size_t i = 0; i < sizeof tuning / sizeof *tuning && !by; i++)
        by = reader_given(r, tuning[i]) ? tuning[i] : NULL;
    if (by)
        r->job->kind = JOB_FINETUNE;
    for (int i = 0; i < n_job_fields; i++)
        if (r->given[i] && str_starts_with(job_fields[i].key, "lora.")) {
            r->job->kind = JOB_LORA;
            by = job_fields[i].key;
            break;
        }
    if (by)
        job_note(r->job, r->arena, "kind = %s (auto: %s is given)",
                 choice_word(job_kind_choices, (int)r->job->kind), by);
}

static void read_root(struct job_reader *r, struct yaml_node *root)
{
    if (root->kind != YAML_MAP) {
        diagnostics_add(
            &r->mistakes, root,
            "a job is a map of fields (hint: model, data and train.steps are required)");
        return;
    }
    yaml_tree_expand(root, &r->mistakes);
    reader_take_map(r, root, "");
    infer_kind(r);
    check_missing(r);
    if (r->mistakes.n > 0)
        return;
    reader_derive(r);
    if (r->mistakes.n == 0)
        reader_check(r);
    if (r->mistakes.n == 0)
        reader_derive_buckets(r);
}

/* Where each field was given. */
static const char *const *list_places(const struct job_reader *r)
{
    const char **places = arena_array(r->arena, const char *, n_job_fields);

    for (int i = 0; i < n_job_fields; i++) {
        const struct yaml_node *node = r->given[i];

        if (node && node->line > 0)
            places[i] = arena_printf(r->arena, "%s:%d:%d", node->source, node->line, node->column);
        else if (node)
            places[i] = node->source;
    }
    return places;
}

const char *job_place(const struct job *job, const char *const *keys)
{
    for (; job->places && *keys; keys++) {
        const char *place = job->places[field_find(*keys) - job_fields];

        if (place)
            return place;
    }
    return job->source;
}

bool job_is_given(const struct job *job, const char *key)
{
    return job->places && job->places[field_find(key) - job_fields];
}

/* What is to be read, and how. */
struct job_request {
    const char *source;
    const char *const *overrides;
    int n_overrides;
    int model_only;
    const struct deprecated_keys *deprecated; /* NULL: job_deprecated_keys */
};

static int read_tree(struct job *job, struct yaml_node *root, const struct job_request *request,
                     struct arena *arena, struct err *err)
{
    struct job result = { .source = arena_strdup(arena, request->source),
                          .notes = arena_array(arena, const char *, JOB_MAX_NOTES) };
    struct job_reader r = { .job = &result,
                            .arena = arena,
                            .model_only = request->model_only,
                            .deprecated =
                                request->deprecated ? request->deprecated : &job_deprecated_keys,
                            .deprecated_by =
                                arena_array(arena, const struct deprecated_key *, n_job_fields),
                            .mistakes = { .arena = arena, .source = result.source },
                            .given = arena_array(arena, const struct yaml_node *, n_job_fields),
                            .refused = arena_array(arena, char, n_job_fields) };

    field_set_defaults(&result, arena);
    for (int i = 0; i < request->n_overrides; i++)
        yaml_tree_override(root, request->overrides[i], &r.mistakes);
    yaml_tree_drop_other(root, "train.steps", "train.epochs", request->overrides,
                         request->n_overrides);
    yaml_tree_drop_other(root, "train.epochs", "train.steps", request->overrides,
                         request->n_overrides);
    read_root(&r, root);
    if (diagnostics_tell(&r.mistakes, err))
        return -1;
    result.n_read_notes = result.n_notes;
    result.places = list_places(&r);
    result.kind_given = reader_given(&r, "kind") != NULL;
    *job = result;
    return 0;
}

int job_read_text(struct job *job, const char *text, size_t n_bytes, const char *source,
                  const char *const *overrides, int n_overrides, struct arena *arena,
                  struct err *err)
{
    struct yaml_node *root = yaml_parse(text, n_bytes, source, arena, err);
    struct job_request request = { source, overrides, n_overrides, 0, NULL };

    return root ? read_tree(job, root, &request, arena, err) : -1;
}

int job_read_text_with(struct job *job, const char *text, size_t n_bytes, const char *source,
                       const char *const *overrides, int n_overrides,
                       const struct deprecated_keys *deprecated, struct arena *arena,
                       struct err *err)
{
    struct yaml_node *root = yaml_parse(text, n_bytes, source, arena, err);
    struct job_request request = { source, overrides, n_overrides, 0, deprecated };

    return root ? read_tree(job, root, &request, arena, err) : -1;
}

void job_log_warnings(const struct job *job)
{
    for (int i = 0; i < job->n_warnings; i++)
        log_warn("%s", job->warnings[i]);
}

int job_read_model(struct job *job, const char *text, size_t n_bytes, const char *source,
                   const char *const *overrides, int n_overrides, struct arena *arena,
                   struct err *err)
{
    struct yaml_node *root = yaml_parse(text, n_bytes, source, arena, err);
    struct job_request request = { source, overrides, n_overrides, 1, NULL };

    return root ? read_tree(job, root, &request, arena, err) : -1;
}

int job_read_folder(struct job *job, const char *folder, const char *const *overrides,
                    int n_overrides, struct arena *arena, struct err *err)
{
    struct str text = { 0 };

    /* Without a slash it could be a name in configs/models. */
    const char *path = strchr(folder, '/') ? folder : arena_printf(arena, "./%s", folder);

    str_add(&text, "model: ");
    field_print_text(&text, path);
    str_add_char(&text, '\n');
    int status = job_read_model(job, str_text(&text), text.length, folder, overrides, n_overrides,
                                arena, err);
    str_release(&text);
    return status;
}

int job_read(struct job *job, const char *path, const char *const *overrides, int n_overrides,
             struct arena *arena, struct err *err)
{
    struct yaml_node *root = yaml_read(path, arena, err);
    struct job_request request = { path, overrides, n_overrides, 0, NULL };

    return root ? read_tree(job, root, &request, arena, err) : -1;
}
