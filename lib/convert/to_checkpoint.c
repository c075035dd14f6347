/*
 * to_checkpoint.c - a model as a checkpoint, cut for tp x pp ranks
 *
 * Each rank's file holds the parts of the parameters that such a rank computes with, and of their
 * moments where there are some, so that it reads one file from front to back. Ranks of another
 * layout find their parts by range.
 */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "base/str.h"
#include "ckpt/carried.h"
#include "convert/convert_impl.h"
#include "layout/axes.h"
#include "layout/stage.h"
#include "model/model.h"
#include "weights/rectangles.h"

struct checkpoint_target {
    struct conversion *c;
    int *first_layer; /* [pp + 1] */
    bool is_even; /* tp ranks cannot have the model in equal parts: each file has as many rows */
    void *buffers[2]; /* of the piece at hand, and of the one that is written meanwhile */
    size_t buffer_bytes[2];
    int turn;
    char *covered; /* [tensors of the store]: parameters and their moments */
};

/* Of one of ours that is there; 0 if it is not. */
static int dtype_of(const struct conversion *c, const char *name, enum dtype *dtype)
{
    const struct weights *from = &c->from.weights;

    if (from->store) {
        const struct store_slice *stored = store_find(from->store, name);

        const struct hf_whole *known =
            c->from.weights.is_merged ? hf_names_find(&c->names, name) : NULL;

        if (stored)
            *dtype = known ? conversion_dtype_of(c, known->id, stored->dtype) : stored->dtype;
        return stored != NULL;
    }
    const struct hf_whole *whole = hf_names_find(hf_folder_names(from->folder), name);
    if (whole)
        *dtype = conversion_dtype_of(c, whole->id, hf_folder_dtype(from->folder, whole));
    return whole != NULL;
}

/* Degrees that the model cannot have are refused in the words of a job. */
static int check_degrees(struct conversion *c, int tp, struct err *err)
{
    const struct convert_options *o = c->options;
    const char *overrides[] = { arena_printf(&c->arena, "parallel.tp=%d", tp),
                                arena_printf(&c->arena, "parallel.pp=%d", o->pp),
                                "parallel.sequence_parallel=false" };
    struct str text = { 0 };
    struct job job;

    job_print_model(&c->from.job, &text);
    int status = job_read_model(&job, str_text(&text), text.length, c->from.folder, overrides, 3,
                                &c->arena, err);
    str_release(&text);
    if (!status)
        return 0;
    /* --tp or --pp caused the error, and it names them. */
    static const char prefix[] = "--set parallel.tp: ";
    if (str_starts_with(err->text, prefix))
        memmove(err->text, err->text + sizeof prefix - 1, strlen(err->text) + 2 - sizeof prefix);
    return -1;
}

/*
 * Files are cut as tp ranks will want them. Where no such ranks can be, because their number
 * doesn't divide the heads, there are still as many files, which any layout reads.
 */
static int choose_cut(struct checkpoint_target *t, struct err *err)
{
    struct err refusal;

    if (check_degrees(t->c, t->c->options->tp, &refusal) == 0)
        return 0;
    if (t->c->options->tp == 1 || t->c->options->tp > t->c->from.job.model.hidden_size ||
        check_degrees(t->c, 1, err) < 0) {
        *err = refusal;
        return -1;
    }
    t->is_even = true;
    log_info("%s: files are divided by rows, equally per rank; any other layout can read them, too",
             refusal.text);
    return 0;
}

/* Stages by their matrices, as training cuts them but for attention's part. */
static int cut_stages(struct checkpoint_target *t, struct err *err)
{
    struct conversion *c = t->c;
    const struct model_spec *s = &c->from.job.model;
    int pp = c->options->pp, *counts = arena_array(&c->arena, int, pp);
    int64_t *layers = arena_array(&c->arena, int64_t, s->n_layers);
    struct stage_costs costs = { .n_layers = s->n_layers,
                                 .layers = layers,
                                 .head = parameters_count_head(s) };

    for (int i = 0; i < s->n_layers; i++)
        layers[i] = parameters_count_matmul(s, i);
    if (stage_split(counts, pp, &costs, &c->arena, err) < 0)
        return -1;
    t->first_layer = arena_array(&c->arena, int, pp + 1);
    for (int i = 0; i < pp; i++)
        t->first_layer[i + 1] = t->first_layer[i] + counts[i];
    return 0;
}

static void declare(const struct checkpoint_target *t, struct program *program, int stage)
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

    mesh.size[axes_tensor()] = t->is_even ? 1 : o->tp;
    program_init(program, &mesh);
    model_declare(&builder, &chunk, 1);
}

struct slice_list {
    struct store_slice *slices;
    int n, capacity;
};

static void add_slice(struct checkpoint_target *t, struct slice_list *list,
                      const struct store_slice *slice)
{
    list->slices =
        arena_grow(&t->c->arena, list->slices, sizeof *slice, &list->capacity, list->n + 1);
    list->slices[list->n++] = *slice;
}

static void cover(struct checkpoint_target *t, const char *name)
{
    const struct store *store = t->c->from.weights.store;

    for (int i = 0; store && i < store_n_tensors(store); i++)
        t->covered[i] |= !strcmp(store_tensor(store, i)->name, name);
}

/* The rank's share of the rows of what is there whole. */
static void add_rows(struct checkpoint_target *t, struct slice_list *list,
                     struct store_slice *slice, int rank)
{
    int tp = t->c->options->tp;

    slice->row_begin = slice->n_dims == 1 ? 0 : slice->rows * rank / tp;
    slice->row_end = slice->n_dims == 1 ? slice->rows : slice->rows * (rank + 1) / tp;
    slice->col_end = slice->cols;
    if (slice->row_begin < slice->row_end && (slice->n_dims > 1 || rank == 0))
        add_slice(t, list, slice);
}

/* The rank's part of a parameter, or of one of its moments: they are of its shape. */
static int list_parameter(struct checkpoint_target *t, const struct program *program, int parameter,
                          const char *suffix, int tp_rank, struct slice_list *list, struct err *err)
{
    const struct parameter *p = &program->parameters[parameter];
    struct store_slice slice = { .n_dims = p->n_dims };
    struct tensor_rectangle r;
    int64_t rows, cols;

    slice.name = arena_printf(&t->c->arena, "%s%s", p->name, suffix);
    if (!dtype_of(t->c, slice.name, &slice.dtype))
        return *suffix ? 0
                       : err_set(err, ERR_DATA, "%s has no tensor %s", t->c->from.folder, p->name);
    cover(t, slice.name);
    rectangles_whole(program, parameter, &slice.rows, &slice.cols);
    if (t->is_even) {
        add_rows(t, list, &slice, tp_rank);
        return 0;
    }
    rectangles_part(program, parameter, &rows, &cols);
    struct mesh_place place = { 0 };
    place.of[axes_tensor()] = tp_rank;
    struct rectangle_walk walk = rectangle_walk(program, parameter, &place, 0, rows * cols);
    while (rectangle_next(&walk, &r)) {
        rectangle_to_slice(&r, &slice);
        add_slice(t, list, &slice);
    }
    return 0;
}

/* What all ranks of a stage have alike is the first one's. */
static int list_slices(struct checkpoint_target *t, const struct program *program, int tp_rank,
                       struct slice_list *list, struct err *err)
{
    static const char *const suffixes[] = { "", ".m", ".v", WEIGHTS_AVERAGE };
    size_t n_suffixes = t->c->from.weights.is_merged ? 1 : sizeof suffixes / sizeof *suffixes;

    *list = (struct slice_list){ 0 };
    for (int i = 0; i < program->n_parameters; i++) {
        const struct parameter *p = &program->parameters[i];

        bool is_alike = !t->is_even && !program_parameter_is_part(program, i);

        if (p->is_copy || (is_alike && tp_rank != 0))
            continue;
        for (size_t k = 0; k < n_suffixes; k++)
            if (list_parameter(t, program, i, suffixes[k], tp_rank, list, err) < 0)
                return -1;
    }
    return 0;
}

/* What a checkpoint holds beside parameters and moments is the last rank's. */
static void list_others(struct checkpoint_target *t, struct slice_list *list)
{
    const struct store *store = t->c->from.weights.store;

    for (int i = 0; conversion_is_between(t->c) && i < store_n_tensors(store); i++)
        if (!t->covered[i])
            add_slice(t, list, store_tensor(store, i));
}

static bool is_transposed(const struct conversion *c, const char *name)
{
    const struct hf_folder *folder = c->from.weights.folder;
    const struct hf_whole *whole = folder ? hf_names_find(hf_folder_names(folder), name) : NULL;

    return whole && hf_folder_names(folder)->tensors[whole->first].transposed;
}

static int load_piece(void *context, struct store_slice *slice, struct err *err)
{
    struct checkpoint_target *t = context;
    struct conversion *c = t->c;
    int64_t row_bytes = (slice->col_end - slice->col_begin) * (int64_t)dtype_bytes(slice->dtype);
    int64_t n = slice->row_end - slice->row_begin;
    int turn = t->turn ^= 1;

    /*
     * A row of our parameter is a column of the HF tensor, so the whole tensor must be read for it.
     */
    if (!is_transposed(c, slice->name))
        n = min_i64(n, max_i64(1, conversion_piece(c) / row_bytes));
    size_t n_bytes = (size_t)(n * row_bytes);
    if (t->buffer_bytes[turn] < n_bytes) {
        free(t->buffers[turn]);
        t->buffers[turn] = malloc(n_bytes);
        t->buffer_bytes[turn] = t->buffers[turn] ? n_bytes : 0;
    }
    if (!t->buffers[turn])
        return err_set(err, ERR_DEVICE, "%s: out of host memory", slice->name);
    slice->row_end = slice->row_begin + n;
    slice->data = t->buffers[turn];
    slice->stride = 0;
    if (grown_vocab_read(&c->source, slice, err) < 0)
        return -1;
    conversion_tell(c, "writing", (int64_t)n_bytes);
    return 0;
}

static void tick(void *context, int64_t n_bytes)
{
    conversion_tell(context, "checking", n_bytes);
}

static int write_rank(struct checkpoint_target *t, const struct program *program, int rank,
                      struct err *err)
{
    const struct convert_options *o = t->c->options;
    struct slice_list list;
    int64_t before = t->c->done, n_bytes;

    if (list_slices(t, program, rank % o->tp, &list, err) < 0)
        return -1;
    if (rank == o->tp * o->pp - 1)
        list_others(t, &list);
    if (store_written(o->to, rank, &n_bytes, tick, t->c)) {
        t->c->result->n_found_whole++;
        return 0;
    }
    t->c->done = before;
    fault_at("convert:writing", rank);
    if (store_write(o->to, rank, list.slices, list.n, load_piece, t, err) < 0)
        return -1;
    fault_at("convert:file", rank);
    return 0;
}

static int write_ranks(struct checkpoint_target *t, struct err *err)
{
    const struct convert_options *o = t->c->options;
    int status = 0;

    for (int stage = 0; stage < o->pp && !status; stage++) {
        struct program program;

        declare(t, &program, stage);
        for (int tp_rank = 0; tp_rank < o->tp && !status; tp_rank++)
            status = write_rank(t, &program, stage * o->tp + tp_rank, err);
        program_release(&program);
    }
    return status;
}

/* What came with the model, but with the tokenizer of the job or of the adapter. */
static int carry_merged(struct conversion *c, const char *folder, struct err *err)
{
    const char *carried = arena_printf(&c->arena, "%s/" STORE_CARRIED, c->from.base);
    struct hf_config_changes changes = { .dtype = c->options->dtype,
                                         .vocab_size = (int)c->source.rows };

    if (file_make_folder(folder, err) < 0 ||
        (file_is_folder(carried) && carried_copy(carried, folder, CARRIED_MODEL, err) < 0) ||
        (file_exists(arena_printf(&c->arena, "%s/config.json", carried)) &&
         carry_config(carried, folder, &changes, err) < 0) ||
        conversion_put_tokenizer(c, folder, err) < 0)
        return -1;
    return file_sync_folder(folder, err);
}

/* config.json says of what type the weights are, and how many tokens there are. */
static int carry(struct conversion *c, struct err *err)
{
    const struct hf_folder *source = c->from.weights.folder;
    const char *folder = arena_printf(&c->arena, "%s/" STORE_CARRIED, c->partial);
    struct hf_config_changes changes = { .dtype = c->options->dtype };

    if (file_remove_tree(folder, err) < 0)
        return -1;
    if (!source && c->from.weights.is_merged)
        return carry_merged(c, folder, err);
    if (!source) {
        const char *carried = arena_printf(&c->arena, "%s/" STORE_CARRIED, c->from.folder);

        if (!file_is_folder(carried))
            return 0;
        return file_make_folder(folder, err) < 0 ||
                       carried_copy(carried, folder, CARRIED_CONFIG, err) < 0
                   ? -1
                   : file_sync_folder(folder, err);
    }
    changes.is_plain = hf_folder_has_fp8(source);
    if (changes.is_plain && changes.dtype < 0)
        changes.dtype = (int)hf_folder_common_dtype(source);
    if (c->source.rows != c->source.rows_there)
        changes.vocab_size = (int)c->source.rows;
    bool is_same = changes.dtype < 0 && !changes.vocab_size;
    if (file_make_folder(folder, err) < 0 ||
        carried_copy(c->from.folder, folder, is_same ? CARRIED_CONFIG : CARRIED_MODEL, err) < 0 ||
        (!is_same && carry_config(c->from.folder, folder, &changes, err) < 0))
        return -1;
    /* An adapter's has the tokens that came with it. */
    if (conversion_put_tokenizer(c, folder, err) < 0)
        return -1;
    return file_sync_folder(folder, err);
}

/* No training state: nothing goes on from here, but much can begin here. */
static char *describe_state(struct conversion *c)
{
    const struct hf_folder *folder = c->from.weights.folder;
    const struct safetensors_tensor *head;
    cJSON *state = cJSON_CreateObject();
    struct str job = { 0 };
    enum dtype stored = DTYPE_F32;
    char table[PARAMETER_NAME_MAX];

    parameters_name(table, (struct parameter_id){ MODULE_EMBEDDING, PART_WEIGHT, LAYER_BEFORE });
    job_print_model(&c->from.job, &job);
    if (folder)
        stored = conversion_dtype(c, hf_folder_common_dtype(folder));
    else if (dtype_of(c, table, &stored) && stored == DTYPE_F32)
        stored = c->options->dtype < 0 ? c->from.job.train.dtype : stored; /* of masters */
    str_printf(&job, "train:\n  dtype: %s\n",
               dtype_name(stored == DTYPE_BF16 || stored == DTYPE_F16 ? stored : DTYPE_F32));
    cJSON_AddStringToObject(state, "converted", c->family);
    cJSON_AddBoolToObject(state, "tied_head",
                          folder ? hf_folder_tied_head(folder, &head) != NULL : 0);
    cJSON_AddBoolToObject(state, "bare_names",
                          folder ? hf_folder_is_bare(folder) : conversion_had(c, "bare_names"));
    cJSON_AddStringToObject(state, "job", str_text(&job));
    char *text = cJSON_PrintUnformatted(state);
    CHECK(text);
    cJSON_Delete(state);
    str_release(&job);
    return text;
}

/* From a checkpoint all of its run's state comes along as it is. */
static int seal(struct conversion *c, struct err *err)
{
    const struct convert_options *o = c->options;
    const struct store *store = c->from.weights.store;

    if (conversion_is_between(c))
        return store_seal(o->to, o->tp * o->pp, store_step(store), store_state(store), err);
    char *text = describe_state(c);
    int status = store_seal(o->to, o->tp * o->pp, 0, text, err);
    free(text);
    return status;
}

static void count(struct conversion *c)
{
    const struct store *store = conversion_is_between(c) ? c->from.weights.store : NULL;
    enum dtype dtype = DTYPE_F32;

    for (int i = 0; store && i < store_n_tensors(store); i++) {
        const struct store_slice *w = store_tensor(store, i);
        c->total += w->rows * w->cols * (int64_t)dtype_bytes(w->dtype);
    }
    for (int i = 0; !store && i < c->names.n_wholes; i++) {
        const struct store_slice *w = &c->names.wholes[i].whole;

        CHECK(dtype_of(c, w->name, &dtype));
        c->total += w->rows * w->cols * (int64_t)dtype_bytes(dtype);
    }
    c->result->n_tensors = store ? store_n_tensors(store) : c->names.n_tensors;
    c->result->n_files = c->options->tp * c->options->pp;
    c->result->n_bytes = c->total;
}

/* What is read is seen in the type in which all of one of ours is written. */
static void watch(void *context, int i, int64_t at, const void *data, enum dtype dtype, int64_t n)
{
    tensor_hashes_take(&((struct conversion *)context)->seen[i], at, data, dtype, n);
}

static void prepare_seen(struct conversion *c)
{
    enum dtype dtype = DTYPE_F32;

    c->seen = arena_array(&c->arena, struct tensor_hash, c->names.n_tensors);
    for (int i = 0; i < c->names.n_tensors; i++) {
        const struct hf_tensor *tensor = &c->names.tensors[i];

        CHECK(dtype_of(c, tensor->whole->name, &dtype));
        tensor_hashes_init(&c->seen[i], dtype, tensor->n_rows * tensor->whole->cols);
    }
    if (c->options->verify)
        hf_folder_watch(c->from.weights.folder, watch, c);
}

int convert_to_checkpoint(struct conversion *c, struct err *err)
{
    const struct hf_folder *folder = c->from.weights.folder;
    struct checkpoint_target t = { .c = c };

    count(c);
    if (folder)
        prepare_seen(c);
    else
        t.covered = arena_array(&c->arena, char, store_n_tensors(c->from.weights.store));
    if (choose_cut(&t, err) < 0 || cut_stages(&t, err) < 0 || partial_begin(c, c->total, err) < 0)
        return -1;
    fault_at("convert:begun", -1);
    int status = write_ranks(&t, err);
    if (!status)
        status = carry(c, err);
    fault_at("convert:carried", -1);
    if (!status)
        status = seal(c, err);
    free(t.buffers[0]);
    free(t.buffers[1]);
    return status;
}
