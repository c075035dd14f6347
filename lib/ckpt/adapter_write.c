/*
 * adapter_write.c - a trained job's adapters as a folder of peft's
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "base/num.h"
#include "base/str.h"
#include "ckpt/adapter_impl.h"
#include "ckpt/weights.h"

/* A tensor of the file. */
struct peft_tensor {
    const char *name;           /* the name that peft uses */
    struct store_slice slice;   /* the part of our parameter that is written */
    const struct hf_tensor *of; /* whose order of rows it has; NULL: ours */
    int64_t first;              /* of ours, row 0 of the slice's parameter */
};

struct adapter_writer {
    const struct adapter_source *source;
    struct arena arena;
    struct hf_names names;
    struct peft_tensor *items;
    int n_items, capacity;
    const char **modules, **saved; /* leaves of names, each once */
    int n_modules, n_saved;
    const char *path, *partial;
};

/* ---- names ---- */

/* The last `n` parts of a module's name. */
static const char *leaf(const char *module, int n)
{
    const char *at = module + strlen(module);

    for (; at > module; at--)
        if (at[-1] == '.' && !--n)
            break;
    return at;
}

static void add_name(const char **list, int *n, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (!strcmp(list[i], name))
            return;
    list[(*n)++] = name;
}

/* "model.layers.0.mlp.up_proj" */
static const char *module_of(struct adapter_writer *w, const struct hf_tensor *t)
{
    const char *dot = strrchr(t->name, '.');

    return arena_strndup(&w->arena, t->name, (size_t)(dot - t->name));
}

static bool is_of_experts(enum module_id module)
{
    return module == MODULE_EXPERTS_GATE_UP || module == MODULE_EXPERTS_DOWN;
}

/* Whether a module of the layer without adapter has this leaf too (GPT-2's two c_proj). */
static bool is_ambiguous(struct adapter_writer *w, const char *word)
{
    int n = 0;

    for (int i = 0; i < w->names.n_tensors; i++) {
        const struct hf_tensor *t = &w->names.tensors[i];

        if (t->layer == 0 && t->whole->n_dims == 2 && str_ends_with(t->name, ".weight") &&
            !is_of_experts(t->id.module))
            n += !strcmp(leaf(module_of(w, t), 1), word);
    }
    return n > 1;
}

static void add_module(struct adapter_writer *w, const char *module)
{
    const char *word = leaf(module, 1);

    add_name(w->modules, &w->n_modules, is_ambiguous(w, word) ? leaf(module, 2) : word);
}

/* ---- what is written ---- */

static void add_item(struct adapter_writer *w, const struct peft_tensor *item)
{
    w->items = arena_grow(&w->arena, w->items, sizeof *item, &w->capacity, w->n_items + 1);
    w->items[w->n_items++] = *item;
}

/* A place for adapters, or an expert's. */
struct written_pair {
    int layer, expert, n_experts;
    enum lora_module module;
    int64_t rank;
};

static void add_pair(struct adapter_writer *w, const struct written_pair *pair,
                     const struct hf_tensor *t)
{
    const char *name = module_of(w, t);
    char own[N_LORA_MATRICES][PARAMETER_NAME_MAX];
    int64_t cols = t->whole->cols, rank = pair->rank;
    struct peft_tensor item = { .name = arena_printf(&w->arena, ADAPTER_PREFIX "%s.lora_A.weight",
                                                     name) };

    add_module(w, name);
    lora_name(own[LORA_A], pair->layer, pair->module, LORA_A);
    lora_name(own[LORA_B], pair->layer, pair->module, LORA_B);
    item.slice = (struct store_slice){ .name = arena_strdup(&w->arena, own[LORA_A]),
                                       .dtype = DTYPE_F32,
                                       .n_dims = 2,
                                       .rows = rank * pair->n_experts,
                                       .cols = cols,
                                       .row_begin = rank * pair->expert,
                                       .row_end = rank * (pair->expert + 1),
                                       .col_end = cols };
    add_item(w, &item);
    item.name = arena_printf(&w->arena, ADAPTER_PREFIX "%s.lora_B.weight", name);
    item.slice.name = arena_strdup(&w->arena, own[LORA_B]);
    item.slice.rows = item.slice.row_end = t->n_rows * pair->n_experts;
    item.slice.cols = item.slice.col_end = rank;
    item.of = t;
    item.first = t->pieces[0].ours;
    for (int i = 0; i < t->n_pieces; i++)
        item.first = min_i64(item.first, t->pieces[i].ours);
    item.first -= t->n_rows * pair->expert;
    add_item(w, &item);
}

/* The adapters of a module of a layer, of all its experts. */
static void add_pairs(struct adapter_writer *w, struct written_pair *pair)
{
    const struct model_spec *spec = &w->source->job->model;

    pair->n_experts = lora_n_pairs(spec, pair->module);
    for (; pair->expert < pair->n_experts; pair->expert++)
        add_pair(w, pair, adapter_module(&w->names, spec, pair->layer, pair->module, pair->expert));
}

static int list_pairs(struct adapter_writer *w, struct err *err)
{
    const struct job *job = w->source->job;

    for (int layer = 0; layer < job->model.n_layers; layer++)
        for (int m = 0; m < N_LORA_MODULES; m++) {
            enum lora_module module = (enum lora_module)m;
            int rank = tuning_place(job->tuning, layer, module).rank;
            struct lora_target target = lora_target_of(&job->model, layer, module);
            const struct hf_tensor *t =
                rank ? adapter_module(&w->names, &job->model, layer, module, 0) : NULL;
            struct written_pair pair = { .layer = layer, .module = module, .rank = rank };

            if (rank && !t)
                return err_set(err, ERR_CONFIG,
                               "lora.targets: models of family %s keep %s %s, the adapters of this "
                               "job do not: peft's format cannot store them (hint: name the "
                               "model's own modules)",
                               w->names.family, parameters_module_name(target.module),
                               target.piece < 0 ? "in parts" : "in one matrix");
            if (t)
                add_pairs(w, &pair);
        }
    return 0;
}

/* The module is adapted: peft then calls its own tensors base_layer. */
static bool is_adapted(const struct adapter_writer *w, const char *module)
{
    for (int i = 0; i < w->n_items; i++)
        if (str_starts_with(w->items[i].name + strlen(ADAPTER_PREFIX), module) &&
            str_ends_with(w->items[i].name, ".lora_A.weight") &&
            w->items[i].name[strlen(ADAPTER_PREFIX) + strlen(module)] == '.')
            return true;
    return false;
}

static void add_whole(struct adapter_writer *w, const struct hf_tensor *t, const char *name)
{
    struct peft_tensor item = { .name = name, .of = t, .slice = *t->whole };

    item.slice.dtype = DTYPE_F32;
    add_item(w, &item);
}

static bool is_trained(const struct adapter_writer *w, const struct hf_tensor *t)
{
    const struct job *job = w->source->job;

    return tuning_trains_id(job->tuning, &job->model, t->id);
}

/* Whether a module that is not trained ends like this: peft would take that for it as well. */
static bool is_shared_end(struct adapter_writer *w, const char *end)
{
    for (int i = 0; i < w->names.n_tensors; i++) {
        const struct hf_tensor *t = &w->names.tensors[i];

        if (!is_trained(w, t) && str_ends_with(module_of(w, t), end))
            return true;
    }
    return false;
}

/* "norm" would be every norm, "model.norm" is the last. */
static const char *saved_name(struct adapter_writer *w, const char *module)
{
    const char *end = module;

    for (int n = 1; n < 4; n++) {
        end = leaf(module, n);
        if (end == module || !is_shared_end(w, end))
            break;
    }
    return end;
}

static void list_trained(struct adapter_writer *w)
{
    const struct job *job = w->source->job;

    for (int i = 0; i < w->names.n_tensors; i++) {
        const struct hf_tensor *t = &w->names.tensors[i];
        const char *module = module_of(w, t);
        bool is_bias = t->id.part == PART_BIAS;

        if (!is_trained(w, t))
            continue;
        const char *base = is_bias && is_adapted(w, module) ? ".base_layer" : "";
        add_whole(
            w, t,
            arena_printf(&w->arena, ADAPTER_PREFIX "%s%s%s", module, base, strrchr(t->name, '.')));
        if (!is_bias)
            add_name(w->saved, &w->n_saved, saved_name(w, module));
        if (t->id.module != MODULE_EMBEDDING || !job->model.tied_embeddings)
            continue;
        /* peft parts what is tied: both get the same. */
        add_whole(w, t, ADAPTER_PREFIX HF_NAMES_HEAD);
        add_name(w->saved, &w->n_saved, "lm_head");
    }
}

/* ---- the files ---- */

static void print_list(struct str *out, const char *key, const char *const *names, int n)
{
    str_printf(out, "  \"%s\": ", key);
    str_add(out, n ? "[\n" : "null");
    for (int i = 0; i < n; i++) {
        str_add(out, "    ");
        json_add_string(out, names[i]);
        str_add(out, i + 1 < n ? ",\n" : "\n  ]");
    }
    str_add(out, ",\n");
}

static void print_config(const struct adapter_writer *w, struct str *out)
{
    const struct job *job = w->source->job;
    double alpha = job->lora.alpha > 0 ? job->lora.alpha : 2.0 * job->lora.rank;

    str_add(out, "{\n  \"alpha_pattern\": {},\n  \"base_model_name_or_path\": ");
    if (w->source->base)
        json_add_string(out, w->source->base);
    else
        str_add(out, "null");
    str_printf(out, ",\n  \"bias\": \"%s\",\n  \"fan_in_fan_out\": %s,\n",
               choice_word(lora_bias_choices, (int)job->lora.bias),
               strcmp(w->names.family, "gpt2") ? "false" : "true");
    str_add(out, "  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n"
                 "  \"layers_pattern\": null,\n  \"layers_to_transform\": null,\n");
    str_printf(out, "  \"lora_alpha\": %.15g,\n  \"lora_dropout\": %.15g,\n", alpha,
               job->lora.dropout);
    print_list(out, "modules_to_save", w->saved, w->n_saved);
    str_printf(out, "  \"peft_type\": \"LORA\",\n  \"r\": %d,\n  \"rank_pattern\": {},\n",
               job->lora.rank);
    str_add(out, "  \"revision\": null,\n");
    print_list(out, "target_modules", w->modules, w->n_modules);
    str_printf(out,
               "  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n  \"use_rslora\": %s\n}\n",
               job->lora.rslora ? "true" : "false");
}

static int64_t rows_of(const struct peft_tensor *item)
{
    return item->of ? item->of->n_rows : item->slice.row_end - item->slice.row_begin;
}

/* All of a tensor, in their order of rows. */
static int read_item(const struct adapter_writer *w, const struct peft_tensor *item, float *data,
                     struct err *err)
{
    struct store_slice slice = item->slice;

    slice.data = data;
    if (!item->of)
        return weights_read(w->source->weights, &slice, err);
    for (int i = 0; i < item->of->n_pieces; i++) {
        struct hf_piece p = item->of->pieces[i];

        slice.row_begin = p.ours - item->first;
        slice.row_end = slice.row_begin + p.n;
        slice.data = data + p.theirs * slice.cols;
        if (weights_read(w->source->weights, &slice, err) < 0)
            return -1;
    }
    return 0;
}

static int write_item(struct adapter_writer *w, struct safetensors_writer *writer,
                      const struct peft_tensor *item, struct err *err)
{
    size_t n_bytes = (size_t)(rows_of(item) * item->slice.cols) * sizeof(float);
    float *data = malloc(n_bytes);
    int status = data ? read_item(w, item, data, err)
                      : err_set(err, ERR_DEVICE, "%s: out of host memory", w->path);

    if (!status)
        status = safetensors_write(writer, data, n_bytes, err);
    free(data);
    return status;
}

static int write_tensors(struct adapter_writer *w, struct err *err)
{
    static const struct safetensors_meta meta = { "format", "pt" };
    struct safetensors_tensor *tensors =
        arena_array(&w->arena, struct safetensors_tensor, w->n_items);
    struct safetensors_writer *writer;
    uint64_t n_bytes, hash;

    for (int i = 0; i < w->n_items; i++)
        tensors[i] =
            (struct safetensors_tensor){ .name = w->items[i].name,
                                         .type = SAFETENSORS_F32,
                                         .n_dims = w->items[i].slice.n_dims,
                                         .shape = { rows_of(&w->items[i]), w->items[i].slice.cols },
                                         .tag = i };
    safetensors_place(tensors, w->n_items);
    if (safetensors_create(&writer, arena_printf(&w->arena, "%s/" ADAPTER_TENSORS, w->partial),
                           tensors, w->n_items, &meta, 1, err) < 0)
        return -1;
    for (int i = 0; i < w->n_items; i++)
        if (write_item(w, writer, &w->items[tensors[i].tag], err) < 0) {
            safetensors_abandon(writer);
            return -1;
        }
    return safetensors_finish(writer, &n_bytes, &hash, err);
}

static int write_config(struct adapter_writer *w, struct err *err)
{
    struct str text = { 0 };

    print_config(w, &text);
    int status = file_write(arena_printf(&w->arena, "%s/" ADAPTER_CONFIG, w->partial),
                            str_text(&text), text.length, err);
    str_release(&text);
    return status;
}

/* An older one of that name goes, once the new one is whole. */
static int publish(struct adapter_writer *w, struct err *err)
{
    if (file_sync_folder(w->partial, err) < 0 ||
        (adapter_is(w->path) && file_remove_tree(w->path, err) < 0))
        return -1;
    if (rename(w->partial, w->path) < 0)
        return err_set_errno(err, ERR_FAILED, "cannot rename %s to %s", w->partial, w->path);
    return 0;
}

int adapter_check(const struct job *job, const char *family, struct err *err)
{
    struct adapter_source source = { .job = job, .family = family };
    struct adapter_writer w = { .source = &source };
    int status = hf_names_build(&w.names, family, &job->model, &w.arena, err);

    w.modules = arena_array(&w.arena, const char *, N_LORA_MODULES + 16);
    if (!status)
        status = list_pairs(&w, err);
    arena_release(&w.arena);
    return status;
}

int adapter_write(const char *path, const struct adapter_source *source, struct err *err)
{
    struct adapter_writer w = { .source = source, .path = path };
    int n_names = N_LORA_MODULES + 16;

    CHECK(source->job->lora.rank);
    w.partial = store_partial(path, &w.arena);
    int status = hf_names_build(&w.names, source->family, &source->job->model, &w.arena, err);
    if (!status) {
        w.modules = arena_array(&w.arena, const char *, n_names);
        w.saved = arena_array(&w.arena, const char *, n_names);
        status = list_pairs(&w, err);
    }
    if (!status) {
        list_trained(&w);
        status = file_remove_tree(w.partial, err);
    }
    if (!status && (file_make_folder(w.partial, err) < 0 || write_tensors(&w, err) < 0 ||
                    write_config(&w, err) < 0 || publish(&w, err) < 0))
        status = -1;
    arena_release(&w.arena);
    return status;
}
