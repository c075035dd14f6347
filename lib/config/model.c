/*
 * model.c - the value of the key model: a name, a folder, or fields
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hub.h"
#include "config/embedded.h"
#include "config/read_impl.h"

#define MODEL_FOLDER "configs/models/"

/* The file of a model's name, on disk or embedded; NULL if there is none or it is no YAML. */
static struct yaml_node *read_model_file(struct job_reader *r, const char *name, int *found)
{
    const char *path = arena_printf(r->arena, MODEL_FOLDER "%s.yaml", name);
    const struct embedded_file *embedded = embedded_find(path);
    struct yaml_node *root = NULL;
    struct err err;

    *found = 1;
    if (file_exists(path))
        root = yaml_read(path, r->arena, &err);
    else if (embedded)
        root = yaml_parse(embedded->text, strlen(embedded->text), path, r->arena, &err);
    else
        *found = 0;
    if (*found && !root)
        diagnostics_add_text(&r->mistakes, err.text);
    return root;
}

static const char *nearest_model(struct job_reader *r, const char *name)
{
    const char **names = arena_array(r->arena, const char *, n_embedded_files);
    int n = 0;

    for (int i = 0; i < n_embedded_files; i++) {
        const char *path = embedded_files[i].path;

        if (!str_starts_with(path, MODEL_FOLDER))
            continue;
        path += strlen(MODEL_FOLDER);
        names[n++] = arena_strndup(r->arena, path, strlen(path) - strlen(".yaml"));
    }
    return str_nearest(name, names, n);
}

/* The last part of a path, without slashes at its end: what a folder's model is called. */
static void set_name(struct model_spec *spec, const char *path)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    length = length - begin < sizeof spec->name ? length - begin : sizeof spec->name - 1;
    memset(spec->name, 0, sizeof spec->name);
    memcpy(spec->name, path + begin, length);
}

/* The job of a run, or of the run that a checkpoint is in; NULL if it is no such folder. */
static const char *job_of(struct job_reader *r, const char *folder)
{
    static const char *const places[] = { "job.yaml", "../job.yaml", "../../job.yaml" };

    if (!file_exists(arena_printf(r->arena, "%s/checkpoints", folder)) &&
        !file_exists(arena_printf(r->arena, "%s/manifest.json", folder)))
        return NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *path = arena_printf(r->arena, "%s/%s", folder, places[i]);

        if (file_exists(path))
            return path;
    }
    return NULL;
}

static int take_job(struct job_reader *r, const struct yaml_node *node, const char *path)
{
    struct err err;
    struct yaml_node *root = yaml_read(path, r->arena, &err);
    const struct yaml_node *model = root ? yaml_get(root, "model") : NULL;
    int n_before = r->mistakes.n;

    if (!root)
        return diagnostics_add_text(&r->mistakes, err.text);
    if (!model || model->kind != YAML_MAP)
        return diagnostics_add(&r->mistakes, node, "%s does not name the model of the run", path);
    reader_take_map(r, model, "model");
    return r->mistakes.n > n_before ? -1 : 0;
}

static int take_name(struct job_reader *r, const struct yaml_node *node)
{
    const char *name = node->text;
    int found = 0;

    if (!strchr(name, '/') && name[0] != '.') {
        struct yaml_node *root = read_model_file(r, name, &found);

        if (found && !root)
            return -1;
        if (root && root->kind != YAML_MAP)
            return diagnostics_add(&r->mistakes, root, "a model is a map of fields");
        if (root) {
            int n_before = r->mistakes.n;

            reader_take_map(r, root, "model");
            set_name(&r->job->model, name);
            return r->mistakes.n > n_before ? -1 : 0;
        }
    }
    if (file_exists(arena_printf(r->arena, "%s/config.json", name))) {
        set_name(&r->job->model, name);
        r->model_folder = name;
        return hf_config_read(r, node, name);
    }
    const char *job = job_of(r, name);
    if (job) {
        r->model_folder = name;
        return take_job(r, node, job);
    }
    const char *nearest = nearest_model(r, name);
    char hint[HUB_HINT_MAX];

    hub_hint(hint, sizeof hint, name, HUB_MODEL);
    if (!*hint)
        snprintf(hint, sizeof hint, " (hint: %.128s)",
                 nearest ? nearest : "lmtrain config --models lists names");
    return diagnostics_add(&r->mistakes, node,
                           "model is %.128s, neither a name in " MODEL_FOLDER
                           " nor a folder with config.json%s",
                           name, hint);
}

void reader_take_model(struct job_reader *r, const struct yaml_node *node)
{
    const struct yaml_node *from = yaml_get(node, "from");
    struct yaml_node fields = { .kind = YAML_MAP, .source = node->source };

    if (node->unexpanded || (from && from->unexpanded)) {
        r->model_failed = 1;
        return;
    }
    if (node->kind == YAML_LIST || yaml_is_null(node) ||
        (from && (from->kind != YAML_SCALAR || yaml_is_null(from)))) {
        diagnostics_add(&r->mistakes, from ? from : node,
                        "%s is not the name of a model (hint: such as llama-100m, a folder with "
                        "config.json, or a map of fields)",
                        from ? "model.from" : "model");
        r->model_failed = 1;
        return;
    }
    if (node->kind == YAML_SCALAR)
        from = node;
    if (from && take_name(r, from))
        r->model_failed = 1;
    /* The fields beside from come after it, wherever they stand. */
    for (const struct yaml_node *child = node->first; child; child = child->next) {
        if (child == from)
            continue;
        struct yaml_node *copy = arena_new(r->arena, struct yaml_node);
        *copy = *child;
        yaml_append(&fields, copy);
    }
    reader_take_map(r, &fields, "model");
}
