/*
 * to_folder.c - a checkpoint as a Hugging Face folder
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "ckpt/json_reader.h"
#include "config/hf_config.h"
#include "convert/convert_impl.h"
#include "convert/theirs.h"

/* A tensor of theirs that is to be written. */
struct item {
    struct hf_tensor tensor;
    enum dtype dtype;
    int64_t n_bytes;
    int order, file;
};

struct target {
    struct conversion *c;
    struct hf_names names;
    struct item *items; /* in the order in which they fill files */
    int n_items, n_files;
    unsigned char *buffer; /* two steps */
    size_t step_bytes;
};

static int compare_items(const void *a, const void *b)
{
    const struct item *left = a, *right = b;

    if (left->tensor.layer != right->tensor.layer)
        return left->tensor.layer < right->tensor.layer ? -1 : 1;
    return left->order - right->order;
}

static int add_item(struct target *t, const struct hf_tensor *tensor, struct err *err)
{
    const struct store *store = t->c->from.weights.store;
    const struct store_slice *stored = store_find(store, tensor->whole->name);

    if (!stored)
        return err_set(err, ERR_DATA, "%s has no tensor %s, of which %s is made", t->c->from.folder,
                       tensor->whole->name, tensor->name);
    enum dtype dtype = t->c->options->dtype >= 0 ? (enum dtype)t->c->options->dtype : stored->dtype;
    int64_t element = (int64_t)dtype_bytes(dtype);
    t->items[t->n_items] =
        (struct item){ .tensor = *tensor,
                       .dtype = dtype,
                       .order = t->n_items,
                       .n_bytes = tensor->n_rows * tensor->whole->cols * element };
    t->c->total += t->items[t->n_items++].n_bytes;
    size_t step =
        (size_t)(theirs_step(tensor, dtype) * theirs_cols(tensor) * (int64_t)dtype_bytes(dtype));
    step = (step + 15) & ~(size_t)15;
    t->step_bytes = step > t->step_bytes ? step : t->step_bytes;
    return 0;
}

/* Whether the folder it came from stored a head beside the tied embedding. */
static int had_tied_head(const struct conversion *c)
{
    cJSON *state = cJSON_Parse(store_state(c->from.weights.store));
    int had = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(state, "tied_head"));

    cJSON_Delete(state);
    return had;
}

static int list_items(struct target *t, struct err *err)
{
    struct conversion *c = t->c;
    const struct model_spec *spec = &c->from.job.model;

    if (hf_names_build(&t->names, c->family, spec, &c->arena, err) < 0)
        return err_add(err, "%s", c->from.folder);
    t->items = arena_array(&c->arena, struct item, t->names.n_tensors + 1);
    for (int i = 0; i < t->names.n_tensors; i++)
        if (add_item(t, &t->names.tensors[i], err) < 0)
            return -1;
    if (had_tied_head(c)) {
        const struct hf_whole *embedding = hf_names_find(&t->names, "embedding.weight");
        struct hf_tensor head = t->names.tensors[embedding->first];

        head.name = HF_NAMES_HEAD;
        head.layer = spec->n_layers;
        if (add_item(t, &head, err) < 0)
            return -1;
    }
    qsort(t->items, (size_t)t->n_items, sizeof *t->items, compare_items);
    return 0;
}

/* A file is as full as it may be; a tensor larger than that has one of its own. */
static void fill_files(struct target *t)
{
    int64_t used = 0;

    t->n_files = 1;
    for (int i = 0; i < t->n_items; i++) {
        if (used && used + t->items[i].n_bytes > t->c->options->max_shard_bytes) {
            t->n_files++;
            used = 0;
        }
        used += t->items[i].n_bytes;
        t->items[i].file = t->n_files - 1;
    }
}

static const char *file_name(const struct target *t, int file)
{
    if (t->n_files == 1)
        return "model.safetensors";
    return arena_printf(&t->c->arena, "model-%05d-of-%05d.safetensors", file + 1, t->n_files);
}

static int write_tensor(struct target *t, struct safetensors_writer *writer,
                        const struct item *item, struct err *err)
{
    const struct hf_tensor *tensor = &item->tensor;
    int64_t rows = theirs_rows(tensor), step = theirs_step(tensor, item->dtype);
    int64_t row_bytes = theirs_cols(tensor) * (int64_t)dtype_bytes(item->dtype);

    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = min_i64(step, rows - row);

        if (theirs_read(&t->c->from.weights, tensor, item->dtype, row, n, t->buffer,
                        t->buffer + t->step_bytes, err) < 0 ||
            safetensors_write(writer, t->buffer, (size_t)(n * row_bytes), err) < 0)
            return -1;
        conversion_tell(t->c, "writing", n * row_bytes);
    }
    return 0;
}

static int write_file(struct target *t, int file, struct err *err)
{
    static const struct safetensors_meta meta = { "format", "pt" };
    struct arena *arena = &t->c->arena;
    struct safetensors_tensor *tensors = arena_array(arena, struct safetensors_tensor, t->n_items);
    const char *path = arena_printf(arena, "%s/%s", t->c->partial, file_name(t, file));
    struct safetensors_writer *writer;
    uint64_t n_bytes, hash;
    int n = 0;

    for (int i = 0; i < t->n_items; i++) {
        const struct hf_tensor *tensor = &t->items[i].tensor;

        if (t->items[i].file != file)
            continue;
        tensors[n++] = (struct safetensors_tensor){
            .name = tensor->name,
            .type = safetensors_dtype_type(t->items[i].dtype),
            .n_dims = tensor->whole->n_dims,
            .shape = { theirs_rows(tensor), theirs_cols(tensor) },
            .tag = i,
        };
    }
    safetensors_place(tensors, n);
    if (safetensors_create(&writer, path, tensors, n, &meta, 1, err) < 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (write_tensor(t, writer, &t->items[tensors[i].tag], err) < 0) {
            safetensors_abandon(writer);
            return -1;
        }
    return safetensors_finish(writer, &n_bytes, &hash, err);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct item *)a)->tensor.name, ((const struct item *)b)->tensor.name);
}

/* As transformers writes it. Sorts the items by name. */
static int write_index(struct target *t, struct err *err)
{
    struct str text = { 0 };
    int64_t n_elements = 0;

    qsort(t->items, (size_t)t->n_items, sizeof *t->items, compare_names);
    for (int i = 0; i < t->n_items; i++)
        n_elements += t->items[i].n_bytes / (int64_t)dtype_bytes(t->items[i].dtype);
    str_printf(&text,
               "{\n  \"metadata\": {\n    \"total_parameters\": %lld,\n    \"total_size\": %lld\n"
               "  },\n  \"weight_map\": {\n",
               (long long)n_elements, (long long)t->c->total);
    for (int i = 0; i < t->n_items; i++) {
        str_add(&text, "    ");
        json_add_string(&text, t->items[i].tensor.name);
        str_printf(&text, ": \"%s\"%s\n", file_name(t, t->items[i].file),
                   i + 1 < t->n_items ? "," : "");
    }
    str_add(&text, "  }\n}\n");
    const char *path = arena_printf(&t->c->arena, "%s/model.safetensors.index.json", t->c->partial);
    int status = file_write(path, str_text(&text), text.length, err);
    str_release(&text);
    return status;
}

/* The type that most of the model has: of its largest matrices. */
static enum dtype main_dtype(const struct target *t)
{
    return store_find(t->c->from.weights.store, "embedding.weight")->dtype;
}

/* The one it came with, unless the type of the weights is another now. */
static int write_config(struct target *t, struct err *err)
{
    struct conversion *c = t->c;
    const char *carried = arena_printf(&c->arena, "%s/" STORE_CARRIED, c->from.folder);
    int asked = c->options->dtype;
    struct str text = { 0 };

    if (file_exists(arena_printf(&c->arena, "%s/config.json", carried)))
        return asked >= 0 ? carry_config(carried, c->partial, (enum dtype)asked, err) : 0;
    int status = hf_config_print(&c->from.job.model, c->family,
                                 asked >= 0 ? (enum dtype)asked : main_dtype(t), &text, err);
    const char *path = arena_printf(&c->arena, "%s/config.json", c->partial);
    if (!status)
        status = file_write(path, str_text(&text), text.length, err);
    str_release(&text);
    return status;
}

/* What the checkpoint carries, else the tokenizer that its job was trained with. */
static int carry(struct conversion *c, struct err *err)
{
    const char *carried = arena_printf(&c->arena, "%s/" STORE_CARRIED, c->from.folder);
    const char *tokenizer = c->from.job.data.tokenizer;

    if (file_is_folder(carried))
        return carry_files(carried, c->partial, c->options->dtype < 0, err);
    if (tokenizer && file_is_folder(tokenizer))
        return carry_files(tokenizer, c->partial, 0, err);
    return 0;
}

static int publish(const struct conversion *c, struct arena *arena, struct err *err)
{
    const char *to = c->options->to;

    if (file_sync_folder(c->partial, err) < 0)
        return -1;
    if (rename(c->partial, to) < 0)
        return err_set_errno(err, ERR_FAILED, "cannot rename %s to %s", c->partial, to);
    return file_sync_folder(arena_printf(arena, "%s/..", to), err);
}

static int write_all(struct target *t, struct err *err)
{
    struct conversion *c = t->c;

    if (file_remove_tree(c->partial, err) < 0 || file_make_folder(c->partial, err) < 0)
        return -1;
    for (int file = 0; file < t->n_files; file++)
        if (write_file(t, file, err) < 0)
            return -1;
    if ((t->n_files > 1 && write_index(t, err) < 0) || write_config(t, err) < 0 ||
        carry(c, err) < 0)
        return -1;
    return publish(c, &c->arena, err);
}

int convert_to_folder(struct conversion *c, struct err *err)
{
    struct target t = { .c = c };

    if (list_items(&t, err) < 0)
        return -1;
    fill_files(&t);
    c->result->n_tensors = t.n_items;
    c->result->n_files = t.n_files;
    c->result->n_bytes = c->total;
    t.buffer = malloc(2 * t.step_bytes);
    int status = t.buffer ? write_all(&t, err) : err_set(err, ERR_DEVICE, "out of host memory");
    free(t.buffer);
    return status;
}
