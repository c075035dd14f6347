/*
 * to_folder.c - a checkpoint as a Hugging Face folder
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/num.h"
#include "ckpt/carried.h"
#include "ckpt/read_ahead.h"
#include "config/hf_config.h"
#include "config/model_differences.h"
#include "convert/convert_impl.h"
#include "convert/hf_rows.h"
#include "weights/special_tokens.h"

/* An HF tensor to be written. */
struct folder_tensor {
    struct hf_tensor tensor;
    int number; /* of the names' tensors; -1 for a head beside a tied embedding */
    enum dtype dtype;
    int64_t n_bytes;
    int order, file;
};

struct folder_target {
    struct conversion *c;
    struct folder_tensor *items; /* in the order in which they fill files */
    int n_items, n_files;
    unsigned char *buffer; /* three steps: two pieces, and scratch */
    size_t step_bytes;
};

static int compare_items(const void *a, const void *b)
{
    const struct folder_tensor *left = a, *right = b;

    if (left->tensor.layer != right->tensor.layer)
        return left->tensor.layer < right->tensor.layer ? -1 : 1;
    return left->order - right->order;
}

/* Of one of ours as it lies there; 0 if it does not. A folder is read to be merged. */
static int stored_dtype(const struct conversion *c, const struct store_slice *whole,
                        enum dtype *dtype)
{
    const struct weights *w = &c->from.weights;
    const struct store_slice *stored = w->store ? weights_stored(w, whole->name) : NULL;
    const struct hf_whole *theirs =
        w->store ? NULL : hf_names_find(hf_folder_names(w->folder), whole->name);

    if (stored)
        *dtype = stored->dtype;
    if (theirs)
        *dtype = hf_folder_dtype(w->folder, theirs);
    return stored || theirs;
}

static int add_item(struct folder_target *t, const struct hf_tensor *tensor, int number,
                    struct err *err)
{
    enum dtype stored;

    if (!stored_dtype(t->c, tensor->whole, &stored))
        return err_set(err, ERR_DATA, "%s has no tensor %s, of which %s is made", t->c->from.folder,
                       tensor->whole->name, tensor->name);
    enum dtype dtype = conversion_dtype_of(t->c, tensor->id, stored);
    int64_t element = (int64_t)dtype_bytes(dtype);
    t->items[t->n_items] =
        (struct folder_tensor){ .tensor = *tensor,
                                .dtype = dtype,
                                .number = number,
                                .order = t->n_items,
                                .n_bytes = tensor->n_rows * tensor->whole->cols * element };
    t->c->total += t->items[t->n_items++].n_bytes;
    if (number >= 0)
        tensor_hashes_init(&t->c->seen[number], dtype, tensor->n_rows * tensor->whole->cols);
    size_t step = (size_t)(hf_rows_step(tensor, dtype, conversion_piece(t->c)) *
                           hf_rows_cols(tensor) * element);
    step = (step + 15) & ~(size_t)15;
    t->step_bytes = step > t->step_bytes ? step : t->step_bytes;
    return 0;
}

/* Whether the folder it came from stored a head beside the tied embedding. */
static bool had_tied_head(const struct conversion *c)
{
    const struct safetensors_tensor *head;

    if (c->from.weights.folder)
        return hf_folder_tied_head(c->from.weights.folder, &head) != NULL;
    return conversion_had(c, "tied_head");
}

static const struct hf_whole *embedding_of(const struct conversion *c)
{
    return hf_names_of(
        &c->names, parameters_id(&c->from.job.model, MODULE_EMBEDDING, PART_WEIGHT, LAYER_BEFORE));
}

static int list_items(struct folder_target *t, struct err *err)
{
    struct conversion *c = t->c;
    const struct model_spec *spec = &c->from.job.model;

    const struct hf_folder *folder = c->from.weights.folder;
    bool is_bare = folder ? hf_folder_is_bare(folder) : conversion_had(c, "bare_names");

    t->items = arena_array(&c->arena, struct folder_tensor, c->names.n_tensors + 1);
    c->seen = arena_array(&c->arena, struct tensor_hash, c->names.n_tensors);
    for (int i = 0; i < c->names.n_tensors; i++) {
        struct hf_tensor tensor = c->names.tensors[i];

        /* Without the family's prefix where the folder it came from had none. */
        if (is_bare && str_starts_with(tensor.name, c->names.prefix))
            tensor.name += strlen(c->names.prefix);
        if (add_item(t, &tensor, i, err) < 0)
            return -1;
    }
    if (had_tied_head(c)) {
        const struct hf_whole *embedding = embedding_of(c);
        struct hf_tensor head = c->names.tensors[embedding->first];

        head.name = HF_NAMES_HEAD;
        head.layer = spec->n_layers;
        if (add_item(t, &head, -1, err) < 0)
            return -1;
    }
    qsort(t->items, (size_t)t->n_items, sizeof *t->items, compare_items);
    return 0;
}

/* A file is as full as it may be; a tensor larger than that has one of its own. */
static void fill_files(struct folder_target *t)
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

static const char *file_name(const struct folder_target *t, int file)
{
    if (t->n_files == 1)
        return "model.safetensors";
    return arena_printf(&t->c->arena, "model-%05d-of-%05d.safetensors", file + 1, t->n_files);
}

/* The tensors of a file, piece by piece. */
struct feed {
    struct folder_target *t;
    const struct safetensors_tensor *tensors; /* tags are items */
    int n_tensors, tensor;                    /* of the next piece */
    int64_t row;                              /* where it begins */
    int turn;
    unsigned char *piece; /* read last */
    int64_t piece_row, piece_rows;
};

static int read_piece(void *context, struct err *err)
{
    struct feed *f = context;
    struct folder_target *t = f->t;
    const struct folder_tensor *item = &t->items[f->tensors[f->tensor].tag];
    const struct hf_tensor *tensor = &item->tensor;
    int64_t rows = hf_rows_rows(tensor);

    f->turn ^= 1;
    f->piece = t->buffer + (size_t)f->turn * t->step_bytes;
    f->piece_row = f->row;
    f->piece_rows =
        min_i64(hf_rows_step(tensor, item->dtype, conversion_piece(t->c)), rows - f->row);
    if (hf_rows_read(&t->c->source, tensor, item->dtype, f->row, f->piece_rows, f->piece,
                     t->buffer + 2 * t->step_bytes, err) < 0)
        return -1;
    f->row += f->piece_rows;
    if (f->row == rows) {
        f->tensor++;
        f->row = 0;
    }
    return 0;
}

static int write_tensors(struct feed *f, struct read_ahead *ahead,
                         struct safetensors_writer *writer, struct err *err)
{
    struct conversion *c = f->t->c;

    read_ahead_begin(ahead);
    for (int i = 0; i < f->n_tensors;) {
        const struct folder_tensor *item = &f->t->items[f->tensors[i].tag];
        int64_t cols = hf_rows_cols(&item->tensor);

        if (read_ahead_end(ahead, err) < 0)
            return -1;
        const unsigned char *piece = f->piece;
        int64_t row = f->piece_row, rows = f->piece_rows;
        if (f->tensor < f->n_tensors)
            read_ahead_begin(ahead);
        int64_t n_bytes = rows * cols * (int64_t)dtype_bytes(item->dtype);
        if (safetensors_write(writer, piece, (size_t)n_bytes, err) < 0)
            return -1;
        if (c->options->verify && item->number >= 0)
            tensor_hashes_take(&c->seen[item->number], row * cols, piece, item->dtype, rows * cols);
        conversion_tell(c, "writing", n_bytes);
        i += row + rows == hf_rows_rows(&item->tensor);
    }
    return 0;
}

static int list_tensors(const struct folder_target *t, int file, struct safetensors_tensor *tensors)
{
    int n = 0;

    for (int i = 0; i < t->n_items; i++) {
        const struct hf_tensor *tensor = &t->items[i].tensor;

        if (t->items[i].file != file)
            continue;
        tensors[n++] = (struct safetensors_tensor){
            .name = tensor->name,
            .type = safetensors_dtype_type(t->items[i].dtype),
            .n_dims = tensor->whole->n_dims,
            .shape = { hf_rows_rows(tensor), hf_rows_cols(tensor) },
            .tag = i,
        };
    }
    safetensors_place(tensors, n);
    return n;
}

static int write_file(struct folder_target *t, int file, struct err *err)
{
    static const struct safetensors_meta meta = { "format", "pt" };
    struct arena *arena = &t->c->arena;
    struct safetensors_tensor *tensors = arena_array(arena, struct safetensors_tensor, t->n_items);
    const char *name = file_name(t, file);
    struct feed feed = { .t = t, .tensors = tensors };
    struct safetensors_writer *writer;
    struct read_ahead *ahead;
    uint64_t n_bytes, hash;

    if (partial_has_file(t->c, name)) {
        t->c->result->n_found_whole++;
        return 0;
    }
    fault_at("convert:writing", file);
    feed.n_tensors = list_tensors(t, file, tensors);
    if (read_ahead_create(&ahead, read_piece, &feed, err) < 0)
        return -1;
    int failed = safetensors_create(&writer, arena_printf(arena, "%s/%s", t->c->partial, name),
                                    tensors, feed.n_tensors, &meta, 1, err) < 0;
    if (!failed && write_tensors(&feed, ahead, writer, err) < 0) {
        safetensors_abandon(writer);
        failed = 1;
    }
    read_ahead_destroy(ahead);
    if (failed || safetensors_finish(writer, &n_bytes, &hash, err) < 0 ||
        partial_note_file(t->c, name, hash, err) < 0)
        return -1;
    fault_at("convert:file", file);
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct folder_tensor *)a)->tensor.name,
                  ((const struct folder_tensor *)b)->tensor.name);
}

/* As transformers writes it. Sorts the items by name. */
static int write_index(struct folder_target *t, struct err *err)
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
static enum dtype main_dtype(const struct folder_target *t)
{
    const struct hf_whole *whole = embedding_of(t->c);
    enum dtype dtype = DTYPE_F32;

    stored_dtype(t->c, &whole->whole, &dtype);
    return dtype;
}

/* Where what came with the model lies. */
static const char *carried_folder(const struct conversion *c, struct arena *arena)
{
    return c->from.weights.folder ? c->from.base
                                  : arena_printf(arena, "%s/" STORE_CARRIED, c->from.base);
}

/* A model that is another in nothing but how far its positions reach: config.json can say so. Of
 * dynamic scaling the original length is the longest text there, and no key. */
static struct model_spec scaled_as(const struct model_spec *theirs, const struct model_spec *ours)
{
    struct model_spec scaled = *theirs;

    if (ours->position != POSITION_ROPE || ours->rope_scaling.type == ROPE_PLAIN)
        return scaled;
    scaled.rope_scaling = ours->rope_scaling;
    scaled.max_seq_len = ours->max_seq_len;
    if (ours->rope_scaling.type == ROPE_DYNAMIC)
        scaled.rope_scaling.original_max_seq_len = 0;
    return scaled;
}

/* Whether a run has scaled them for longer texts than its config.json says. */
static bool is_scaled(const struct model_spec *theirs, const struct model_spec *ours)
{
    struct model_spec scaled = scaled_as(theirs, ours);
    struct str text = { 0 };
    bool is = model_differences(ours, theirs, MODEL_COMPUTES, &text) >
              model_differences(ours, &scaled, MODEL_COMPUTES, &text);

    str_release(&text);
    return is;
}

/* The one it came with, unless type, vocabulary or positions are others now. */
static int write_config(struct folder_target *t, struct err *err)
{
    struct conversion *c = t->c;
    const char *carried = carried_folder(c, &c->arena);
    struct hf_config_changes changes = { .dtype = c->options->dtype, .is_plain = 1 };
    struct str text = { 0 };

    bool is_there = file_exists(arena_printf(&c->arena, "%s/config.json", carried));
    struct job theirs;
    struct err ignored;
    bool is_read = is_there && job_read_folder(&theirs, carried, NULL, 0, &c->arena, &ignored) == 0;
    /* Finetuning may have grown it too, after what came with the model was written. */
    if (c->source.rows != c->source.rows_there ||
        (is_read && theirs.model.vocab_size != c->source.rows))
        changes.vocab_size = (int)c->source.rows;
    if (is_read && !c->from.job.model.tied_embeddings)
        changes.is_untied = theirs.model.tied_embeddings || theirs.untied_by;
    if (is_read && is_scaled(&theirs.model, &c->from.job.model))
        changes.scaled = &c->from.job.model;
    if (is_there)
        return carry_config(carried, c->partial, &changes, err);
    if (hf_config_unsaid(&c->from.job.model, c->family, &text))
        log_warn("config.json of a %s model cannot say %s: what the model computes stays the same",
                 c->family, str_text(&text));
    str_clear(&text);
    int status = hf_config_print(&c->from.job.model, c->family, conversion_dtype(c, main_dtype(t)),
                                 &text, err);
    const char *path = arena_printf(&c->arena, "%s/config.json", c->partial);
    if (!status)
        status = file_write(path, str_text(&text), text.length, err);
    str_release(&text);
    return status;
}

/* What the checkpoint carries, with the tokenizer that the model has now. Where config.json is
 * ours, so is what is said of special tokens. */
static int carry(struct conversion *c, struct err *err)
{
    const char *carried = carried_folder(c, &c->arena);

    if (file_is_folder(carried) && carried_copy(carried, c->partial, CARRIED_MODEL, err) < 0)
        return -1;
    if (conversion_put_tokenizer(c, c->partial, err) < 0)
        return -1;
    return file_exists(arena_printf(&c->arena, "%s/config.json", carried))
               ? 0
               : special_tokens_complete(c->partial, err);
}

static int write_all(struct folder_target *t, struct err *err)
{
    struct conversion *c = t->c;

    for (int file = 0; file < t->n_files; file++)
        if (write_file(t, file, err) < 0)
            return -1;
    if ((t->n_files > 1 && write_index(t, err) < 0) || write_config(t, err) < 0 ||
        carry(c, err) < 0)
        return -1;
    fault_at("convert:carried", -1);
    return file_sync_folder(c->partial, err);
}

/* Moments of parameters, of which a HF folder knows nothing. */
static int count_others(const struct conversion *c)
{
    const struct store *store = c->from.weights.store;
    int n = 0;

    for (int i = 0; store && i < store_n_tensors(store); i++)
        n += !hf_names_find(&c->names, store_tensor(store, i)->name);
    return n;
}

/*
 * A run may have given fields of its own to the model it began from; the config.json that is copied
 * with the weights would silently be of another model then.
 */
static int check_carried(struct conversion *c, struct err *err)
{
    const char *carried = carried_folder(c, &c->arena);
    const struct model_spec *ours = &c->from.job.model;
    struct str other = { 0 };
    struct job theirs;
    struct err ignored;
    int status = 0;

    if (!file_exists(arena_printf(&c->arena, "%s/config.json", carried)) ||
        job_read_folder(&theirs, carried, NULL, 0, &c->arena, &ignored) < 0)
        return 0;
    /* These are changed in it (write_config). */
    theirs.model.vocab_size = ours->vocab_size;
    theirs.model.tied_embeddings = ours->tied_embeddings;
    theirs.model = scaled_as(&theirs.model, ours);
    if (model_differences(ours, &theirs.model, MODEL_COMPUTES, &other))
        status = err_set(err, ERR_CONFIG,
                         "%s/config.json is copied with the weights, but its model has no %s "
                         "(hint: write it there)",
                         carried, str_text(&other));
    str_release(&other);
    return status;
}

int convert_to_folder(struct conversion *c, struct err *err)
{
    struct folder_target t = { .c = c };

    if (check_carried(c, err) < 0 || list_items(&t, err) < 0)
        return -1;
    fill_files(&t);
    c->result->n_tensors = t.n_items;
    c->result->n_files = t.n_files;
    c->result->n_bytes = c->total;
    c->result->n_dropped = count_others(c);
    if (partial_begin(c, c->total, err) < 0)
        return -1;
    fault_at("convert:begun", -1);
    t.buffer = malloc(3 * t.step_bytes);
    int status = t.buffer ? write_all(&t, err) : err_set(err, ERR_DEVICE, "out of host memory");
    free(t.buffer);
    return status;
}
