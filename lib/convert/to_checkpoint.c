/*
 * to_checkpoint.c - a Hugging Face folder as a checkpoint, cut for tp x pp ranks
 *
 * Each rank's file holds the parts of the parameters that such a rank computes with, so that it
 * reads one file from front to back. Others find theirs by range.
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "base/str.h"
#include "convert/convert_impl.h"
#include "layout/stage.h"
#include "model/model.h"
#include "train/rectangles.h"

struct target {
    struct conversion *c;
    const struct hf_folder *folder;
    int *first_layer; /* [pp + 1] */
    void *buffer;     /* of the slice at hand */
    size_t buffer_bytes;
};

static enum dtype dtype_of(const struct target *t, const char *name)
{
    const struct hf_whole *whole = hf_names_find(hf_folder_names(t->folder), name);

    CHECK(whole);
    return t->c->options->dtype >= 0 ? (enum dtype)t->c->options->dtype
                                     : hf_folder_dtype(t->folder, whole);
}

/* Degrees that the model cannot have are refused in the words of a job. */
static int check_degrees(struct conversion *c, struct err *err)
{
    const struct convert_options *o = c->options;
    const char *overrides[] = { arena_printf(&c->arena, "parallel.tp=%d", o->tp),
                                arena_printf(&c->arena, "parallel.pp=%d", o->pp),
                                "parallel.sequence_parallel=false" };
    struct job job;

    if (job_read_folder(&job, o->from, overrides, 3, &c->arena, err) == 0)
        return 0;
    /* It was asked for by --tp and --pp, which say so themselves. */
    static const char prefix[] = "--set parallel.tp: ";
    if (str_starts_with(err->text, prefix))
        memmove(err->text, err->text + sizeof prefix - 1, strlen(err->text) + 2 - sizeof prefix);
    return -1;
}

/* Stages by their matrices, as training cuts them but for attention's part. */
static int cut_stages(struct target *t, struct err *err)
{
    struct conversion *c = t->c;
    const struct model_spec *s = &c->from.job.model;
    int pp = c->options->pp, *counts = arena_array(&c->arena, int, pp);
    int64_t *layers = arena_array(&c->arena, int64_t, s->n_layers);
    int64_t head = (int64_t)s->vocab_size * s->hidden_size;
    struct stage_costs costs = { .n_layers = s->n_layers, .layers = layers, .head = head };

    for (int i = 0; i < s->n_layers; i++)
        layers[i] = (model_spec_n_matmul_parameters(s) - head) / s->n_layers;
    if (stage_split(counts, pp, &costs, &c->arena, err) < 0)
        return -1;
    t->first_layer = arena_array(&c->arena, int, pp + 1);
    for (int i = 0; i < pp; i++)
        t->first_layer[i + 1] = t->first_layer[i] + counts[i];
    return 0;
}

static void declare(const struct target *t, struct program *program, int stage)
{
    const struct convert_options *o = t->c->options;
    struct mesh mesh = mesh_data_parallel(1);
    struct model_builder builder = { .program = program,
                                     .spec = &t->c->from.job.model,
                                     .dtype = DTYPE_F32,
                                     .n_sequences = 1,
                                     .seq_len = o->tp,
                                     .max_positions = 1 };
    struct model_chunk chunk = { stage, o->pp, t->first_layer[stage], t->first_layer[stage + 1] };

    mesh.size[AXIS_TP] = o->tp;
    program_init(program, &mesh);
    model_declare(&builder, &chunk, 1);
}

/* What all ranks of a stage have alike is the first one's. */
static int list_slices(const struct target *t, const struct program *program, int tp_rank,
                       struct store_slice **slices)
{
    struct arena *arena = &t->c->arena;
    int n = 0, capacity = 0;

    *slices = NULL;
    for (int i = 0; i < program->n_parameters; i++) {
        const struct parameter *p = &program->parameters[i];
        struct store_slice slice = { .n_dims = p->n_dims };
        struct rectangle r;
        int64_t rows, cols;

        if (p->is_copy || (p->split.along == SPREAD_SAME && tp_rank != 0))
            continue;
        slice.name = arena_strdup(arena, p->name);
        slice.dtype = dtype_of(t, p->name);
        rectangles_whole(program, i, &slice.rows, &slice.cols);
        rectangles_part(program, i, &rows, &cols);
        struct rectangle_walk walk = rectangle_walk(program, i, tp_rank, 0, rows * cols);
        while (rectangle_next(&walk, &r)) {
            slice.row_begin = r.row;
            slice.row_end = r.row + r.rows;
            slice.col_begin = r.col;
            slice.col_end = r.col + r.cols;
            *slices = arena_grow(arena, *slices, sizeof slice, &capacity, n + 1);
            (*slices)[n++] = slice;
        }
    }
    return n;
}

static int load_slice(void *context, struct store_slice *slice, struct err *err)
{
    struct target *t = context;
    size_t n_bytes = (size_t)(slice->row_end - slice->row_begin) *
                     (size_t)(slice->col_end - slice->col_begin) * dtype_bytes(slice->dtype);

    if (t->buffer_bytes < n_bytes) {
        free(t->buffer);
        t->buffer = malloc(n_bytes);
        t->buffer_bytes = t->buffer ? n_bytes : 0;
    }
    if (!t->buffer)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", slice->name);
    slice->data = t->buffer;
    slice->stride = 0;
    if (weights_read(&t->c->from.weights, slice, err) < 0)
        return -1;
    conversion_tell(t->c, "writing", (int64_t)n_bytes);
    return 0;
}

static int write_ranks(struct target *t, struct err *err)
{
    const struct convert_options *o = t->c->options;
    int status = 0;

    for (int stage = 0; stage < o->pp && !status; stage++) {
        struct program program;

        declare(t, &program, stage);
        for (int tp_rank = 0; tp_rank < o->tp && !status; tp_rank++) {
            struct store_slice *slices;
            int n = list_slices(t, &program, tp_rank, &slices);

            status = store_write(o->to, stage * o->tp + tp_rank, slices, n, load_slice, t, err);
        }
        program_release(&program);
    }
    return status;
}

static int compare_head(const struct safetensors *file, const struct safetensors_tensor *head,
                        const struct safetensors *other, const struct safetensors_tensor *table,
                        unsigned char *buffer, size_t half, struct err *err)
{
    uint64_t n_bytes = head->end - head->begin;
    int same = head->type == table->type && n_bytes == table->end - table->begin;

    for (uint64_t at = 0; at < n_bytes && same; at += half) {
        size_t n = (size_t)(n_bytes - at < half ? n_bytes - at : half);

        if (safetensors_read(file, head, at, buffer, n, err) < 0 ||
            safetensors_read(other, table, at, buffer + half, n, err) < 0)
            return -1;
        same = !memcmp(buffer, buffer + half, n);
    }
    if (same)
        return 0;
    return err_set(err, ERR_DATA,
                   "%s: tensor %s differs from the embedding's table, which config.json says is "
                   "the head's too (hint: \"tie_word_embeddings\": false there)",
                   file->path, head->name);
}

/* A head beside a tied embedding is its copy, or config.json is wrong. */
static int check_head(const struct hf_folder *folder, struct err *err)
{
    const struct safetensors_tensor *head, *table;
    const struct safetensors *file = hf_folder_tied_head(folder, &head);
    const struct hf_whole *embedding = hf_names_find(hf_folder_names(folder), "embedding.weight");
    size_t half = (size_t)1 << 20;

    if (!file)
        return 0;
    const struct safetensors *other = hf_folder_tensor(folder, embedding->first, &table);
    unsigned char *buffer = malloc(2 * half);
    if (!buffer)
        return err_set(err, ERR_DEVICE, "out of host memory");
    int status = compare_head(file, head, other, table, buffer, half, err);
    free(buffer);
    return status;
}

/* config.json says of what type the weights are. */
static int carry(struct conversion *c, struct err *err)
{
    const char *folder = arena_printf(&c->arena, "%s/" STORE_CARRIED, c->partial);
    int dtype = c->options->dtype;

    if (file_make_folder(folder, err) < 0 ||
        carry_files(c->from.folder, folder, dtype < 0, err) < 0 ||
        (dtype >= 0 && carry_config(c->from.folder, folder, (enum dtype)dtype, err) < 0))
        return -1;
    return file_sync_folder(folder, err);
}

/* No training state: nothing goes on from here, but much can begin here. */
static int commit(struct conversion *c, const struct hf_folder *folder, struct err *err)
{
    const struct safetensors_tensor *head;
    const struct convert_options *o = c->options;
    cJSON *state = cJSON_CreateObject();
    struct str job = { 0 };

    job_print_model(&c->from.job, &job);
    enum dtype stored = o->dtype >= 0 ? (enum dtype)o->dtype : hf_folder_common_dtype(folder);
    str_printf(&job, "train:\n  dtype: %s\n",
               dtype_name(stored == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32));
    cJSON_AddStringToObject(state, "converted", c->family);
    cJSON_AddBoolToObject(state, "tied_head", hf_folder_tied_head(folder, &head) != NULL);
    cJSON_AddStringToObject(state, "job", str_text(&job));
    char *text = cJSON_PrintUnformatted(state);
    CHECK(text);
    int status = store_commit(o->to, o->tp * o->pp, 0, text, err);
    free(text);
    cJSON_Delete(state);
    str_release(&job);
    return status;
}

int convert_to_checkpoint(struct conversion *c, struct err *err)
{
    struct target t = { .c = c, .folder = c->from.weights.folder };
    const struct hf_names *names = hf_folder_names(t.folder);

    for (int i = 0; i < names->n_wholes; i++) {
        const struct store_slice *w = &names->wholes[i].whole;
        c->total += w->rows * w->cols * (int64_t)dtype_bytes(dtype_of(&t, w->name));
    }
    c->result->n_tensors = names->n_tensors;
    c->result->n_files = c->options->tp * c->options->pp;
    c->result->n_bytes = c->total;
    if (check_degrees(c, err) < 0 || cut_stages(&t, err) < 0 || check_head(t.folder, err) < 0 ||
        file_remove_tree(c->partial, err) < 0)
        return -1;
    int status = write_ranks(&t, err);
    if (!status)
        status = carry(c, err);
    if (!status)
        status = commit(c, t.folder, err);
    free(t.buffer);
    return status;
}
