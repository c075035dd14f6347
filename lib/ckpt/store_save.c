/*
 * store_save.c - writing checkpoints in the background, into step-N.partial (store_commit.c renames
 * it)
 *
 * The slices are taken piece by piece, in the order of the file, by take_piece. It loads the next
 * piece itself, until store_save_copy has copied all that were left: then it hands out the copies.
 * save->mutex guards that position and the list of copies, and is never held during a write.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/num.h"
#include "base/thread.h"
#include "ckpt/checkpoint_dir_impl.h"
#include "ckpt/file_hash.h"
#include "ckpt/manifest.h"
#include "ckpt/read_ahead.h"
#include "ckpt/safetensors.h"

#define PIECE_BYTES ((size_t)4 << 20)

/* A piece that store_save_copy made, with its data behind it. */
struct copied_piece {
    struct store_slice piece;
    struct copied_piece *next;
    unsigned char data[];
};

struct store_save {
    pthread_t thread;
    atomic_int reads;                   /* the slices' memory */
    atomic_int ended;                   /* the thread is about to return */
    atomic_int_fast64_t n_written;      /* bytes of slices, so far */
    pthread_mutex_t mutex;              /* of the four members that follow */
    struct safetensors_tensor *tensors; /* in the file's order, tags are slices */
    int tensor;                         /* of the next piece, n_slices behind the last */
    int64_t row;                        /* where it begins */
    struct copied_piece *copies;        /* taken before the next piece */
    struct arena arena;
    const char *partial;
    int world_rank;
    struct store_slice *slices; /* with elements; sorted by name and place */
    int n_slices;
    int64_t n_bytes;    /* of them */
    store_load_fn load; /* NULL: their data is there */
    void *load_context;
    int failed;
    struct err err;
};

char *store_partial(const char *folder, struct arena *arena)
{
    return store_path_with(arena, folder, ".partial");
}

static void check_slice(const struct store_slice *slice)
{
    CHECK(slice->n_dims == 1 || slice->n_dims == 2);
    CHECK(slice->n_dims == 2 || slice->cols == 1);
    CHECK(slice->rows > 0);
    CHECK(slice->cols > 0);
    CHECK(0 <= slice->row_begin && slice->row_begin <= slice->row_end);
    CHECK(slice->row_end <= slice->rows);
    CHECK(0 <= slice->col_begin && slice->col_begin <= slice->col_end);
    CHECK(slice->col_end <= slice->cols);
    CHECK(!slice->stride || slice->stride >= slice->col_end - slice->col_begin);
    CHECK(*slice->name);
    CHECK(strlen(slice->name) <= MANIFEST_NAME_MAX);
    CHECK(!strchr(slice->name, '['));
}

static int64_t bytes_of(const struct store_slice *slice)
{
    return (slice->row_end - slice->row_begin) * (slice->col_end - slice->col_begin) *
           (int64_t)dtype_bytes(slice->dtype);
}

static int compare_slices(const void *a, const void *b)
{
    const struct store_slice *left = a, *right = b;
    int order = strcmp(left->name, right->name);

    if (order)
        return order;
    if (left->row_begin != right->row_begin)
        return left->row_begin < right->row_begin ? -1 : 1;
    return (left->col_begin > right->col_begin) - (left->col_begin < right->col_begin);
}

static struct manifest_slice slice_place(const struct store_slice *slice)
{
    return (struct manifest_slice){ .row_begin = slice->row_begin,
                                    .row_end = slice->row_end,
                                    .col_begin = slice->col_begin,
                                    .col_end = slice->col_end };
}

/* For faults: the N of step-N or step-N.partial, -1 under another name. */
static int64_t step_of(const char *folder)
{
    const char *slash = strrchr(folder, '/'), *name = slash ? slash + 1 : folder;

    return str_starts_with(name, "step-") ? strtoll(name + 5, NULL, 10) : -1;
}

/* Write n bytes of a slice. */
static int write_bytes(struct store_save *save, struct safetensors_writer *writer,
                       XXH3_state_t *hash, const unsigned char *data, size_t n, struct err *err)
{
    while (n) {
        size_t piece = n < PIECE_BYTES ? n : PIECE_BYTES;

        XXH3_64bits_update(hash, data, piece);
        if (safetensors_write(writer, data, piece, err) < 0)
            return -1;
        atomic_fetch_add(&save->n_written, (int64_t)piece);
        data += piece;
        n -= piece;
    }
    return 0;
}

static int write_rows(struct store_save *save, struct safetensors_writer *writer,
                      const struct store_slice *slice, XXH3_state_t *hash, struct err *err)
{
    int64_t rows = slice->row_end - slice->row_begin, cols = slice->col_end - slice->col_begin;
    size_t element = dtype_bytes(slice->dtype);
    const unsigned char *data = slice->data;
    int64_t stride = slice->stride;
    int status = 0;

    if (!stride || stride == cols) { /* one long row */
        cols *= rows;
        rows = 1;
        stride = cols;
    }
    for (int64_t row = 0; row < rows && !status; row++)
        status = write_bytes(save, writer, hash, data + (size_t)(row * stride) * element,
                             (size_t)cols * element, err);
    return status;
}

/* Load the next piece by this function, NULL: its data is there. The mutex is held. */
static int load_next(struct store_save *save, store_load_fn load, void *context,
                     struct store_slice *piece, struct err *err)
{
    const struct store_slice *slice = &save->slices[save->tensors[save->tensor].tag];
    int64_t stride = slice->stride ? slice->stride : slice->col_end - slice->col_begin;

    *piece = *slice;
    piece->row_begin = max_i64(save->row, slice->row_begin);
    size_t ahead = (size_t)((piece->row_begin - slice->row_begin) * stride) *
                   (slice->low ? sizeof(uint16_t) : dtype_bytes(slice->dtype));
    CHECK(!slice->low || load);
    if (slice->data)
        piece->data = (char *)slice->data + ahead;
    if (slice->low)
        piece->low = (char *)slice->low + ahead;
    if (load && load(context, piece, err) < 0)
        return -1;
    CHECK(piece->row_begin < piece->row_end && piece->row_end <= slice->row_end);
    save->row = piece->row_end;
    if (save->row == slice->row_end) {
        save->tensor++;
        save->row = 0;
    }
    /* What is loaded is no longer the slices' memory. */
    if (load && save->tensor == save->n_slices)
        atomic_store(&save->reads, 0);
    return 0;
}

/* What the thread that reads ahead takes. */
struct pieces {
    struct store_save *save;
    struct store_slice piece;
    struct copied_piece *copy; /* that holds its data, to be freed; or NULL */
    int is_last;
};

static int take_piece(void *context, struct err *err)
{
    struct pieces *p = context;
    struct store_save *save = p->save;
    int status = 0;

    pthread_mutex_lock(&save->mutex);
    p->copy = save->copies;
    if (p->copy) {
        p->piece = p->copy->piece;
        save->copies = p->copy->next;
    } else {
        status = load_next(save, save->load, save->load_context, &p->piece, err);
    }
    p->is_last = save->tensor == save->n_slices && !save->copies;
    pthread_mutex_unlock(&save->mutex);
    return status;
}

/* ahead is NULL where there is nothing to load. */
static int write_pieces(struct pieces *p, struct read_ahead *ahead,
                        struct safetensors_writer *writer, struct manifest_slice *places,
                        struct err *err)
{
    struct store_save *save = p->save;
    XXH3_state_t hash;

    if (ahead && save->n_slices)
        read_ahead_begin(ahead);
    for (int i = 0; i < save->n_slices;) {
        const struct store_slice *whole = &save->slices[save->tensors[i].tag];

        if ((ahead ? read_ahead_end(ahead, err) : take_piece(p, err)) < 0)
            return -1;
        struct store_slice piece = p->piece;
        struct copied_piece *copy = p->copy;
        if (ahead && !p->is_last)
            read_ahead_begin(ahead);
        if (piece.row_begin == whole->row_begin)
            XXH3_64bits_reset(&hash);
        if (i == save->n_slices / 2)
            fault_at("save:writing", step_of(save->partial));
        int status = write_rows(save, writer, &piece, &hash, err);
        free(copy);
        if (status < 0)
            return -1;
        if (piece.row_end == whole->row_end)
            places[save->tensors[i++].tag].hash = XXH3_64bits_digest(&hash);
    }
    return 0;
}

/* The order of the slices in the file. */
static void place_slices(struct store_save *save)
{
    save->tensors = arena_array(&save->arena, struct safetensors_tensor, save->n_slices);
    for (int i = 0; i < save->n_slices; i++) {
        const struct store_slice *slice = &save->slices[i];
        struct manifest_slice place = slice_place(slice);

        save->tensors[i] = (struct safetensors_tensor){
            .name = manifest_slice_name(slice, &place, &save->arena),
            .type = safetensors_dtype_type(slice->dtype),
            .n_dims = slice->n_dims,
            .shape = { slice->row_end - slice->row_begin, slice->col_end - slice->col_begin },
            .tag = i,
        };
    }
    safetensors_place(save->tensors, save->n_slices);
}

/* Write all slices; places[i].hash becomes that of slice i. */
static int write_data(struct store_save *save, const char *path, struct manifest_slice *places,
                      struct manifest_file *file, struct err *err)
{
    static const struct safetensors_meta meta = { "format", "pt" };
    struct pieces pieces = { .save = save };
    struct safetensors_writer *writer;
    struct read_ahead *ahead = NULL;
    uint64_t n_bytes;

    for (int i = 0; i < save->n_slices; i++)
        places[i] = slice_place(&save->slices[i]);
    if (save->load && read_ahead_create(&ahead, take_piece, &pieces, err) < 0)
        return -1;
    int failed =
        safetensors_create(&writer, path, save->tensors, save->n_slices, &meta, 1, err) < 0;
    if (!failed && write_pieces(&pieces, ahead, writer, places, err) < 0) {
        safetensors_abandon(writer);
        failed = 1;
    }
    read_ahead_destroy(ahead);
    if (failed || safetensors_finish(writer, &n_bytes, &file->hash, err) < 0)
        return -1;
    file->n_bytes = (int64_t)n_bytes;
    return 0;
}

/* rank-N.json: this rank's part of the manifest. */
static int write_part(struct store_save *save, struct manifest_slice *places,
                      struct manifest_file *file, struct err *err)
{
    struct manifest part = { .state = "{}", .files = file, .n_files = 1, .world_size = 1 };
    struct str text = { 0 };

    part.tensors = arena_array(&save->arena, struct manifest_tensor, save->n_slices);
    for (int i = 0; i < save->n_slices; i++) {
        if (i == 0 || strcmp(save->slices[i - 1].name, save->slices[i].name))
            part.tensors[part.n_tensors++] =
                (struct manifest_tensor){ .whole = save->slices[i], .slices = &places[i] };
        part.tensors[part.n_tensors - 1].n_slices++;
    }
    manifest_print(&part, &text);
    char *path = arena_printf(&save->arena, "%s/rank-%05d.json", save->partial, save->world_rank);
    int failed = file_write(path, text.data, text.length, err);
    str_release(&text);
    return failed;
}

static void *save_main(void *context)
{
    struct store_save *save = context;
    struct manifest_slice *places =
        arena_array(&save->arena, struct manifest_slice, save->n_slices);
    struct manifest_file file = { .name = arena_printf(&save->arena, "rank-%05d.safetensors",
                                                       save->world_rank) };
    char *path = arena_printf(&save->arena, "%s/%s", save->partial, file.name);

    save->failed = write_data(save, path, places, &file, &save->err) < 0;
    atomic_store(&save->reads, 0);
    fault_at("save:before_rename", step_of(save->partial));
    if (!save->failed)
        save->failed = write_part(save, places, &file, &save->err) < 0;
    fault_at("save:renamed", step_of(save->partial));
    atomic_store(&save->ended, 1);
    return NULL;
}

static void free_copies(struct copied_piece *copies)
{
    while (copies) {
        struct copied_piece *next = copies->next;

        free(copies);
        copies = next;
    }
}

static void save_destroy(struct store_save *save)
{
    free_copies(save->copies);
    pthread_mutex_destroy(&save->mutex);
    arena_release(&save->arena);
    free(save);
}

/* A save of slices that is not begun, its folder made; NULL with err. */
static struct store_save *save_create(const char *folder, int world_rank,
                                      const struct store_slice *slices, int n_slices,
                                      struct err *err)
{
    struct store_save *made = calloc(1, sizeof *made);

    CHECK(world_rank >= 0);
    if (!made) {
        err_set(err, ERR_DEVICE, "%s: out of host memory", folder);
        return NULL;
    }
    made->partial = store_partial(folder, &made->arena);
    made->world_rank = world_rank;
    pthread_mutex_init(&made->mutex, NULL);
    made->slices = arena_array(&made->arena, struct store_slice, n_slices);
    for (int i = 0; i < n_slices; i++) {
        check_slice(&slices[i]);
        if (slices[i].row_begin == slices[i].row_end || slices[i].col_begin == slices[i].col_end)
            continue;
        made->slices[made->n_slices] = slices[i];
        made->slices[made->n_slices++].name = arena_strdup(&made->arena, slices[i].name);
        made->n_bytes += bytes_of(&slices[i]);
    }
    if (made->n_slices)
        qsort(made->slices, (size_t)made->n_slices, sizeof *made->slices, compare_slices);
    place_slices(made);
    if (file_make_folder(made->partial, err) == 0)
        return made;
    save_destroy(made);
    return NULL;
}

int store_save_start(struct store_save **save, const char *folder, int world_rank,
                     const struct store_slice *slices, int n_slices, struct err *err)
{
    return store_save_start_from(save, folder, world_rank, slices, n_slices, NULL, NULL, err);
}

int store_save_start_from(struct store_save **save, const char *folder, int world_rank,
                          const struct store_slice *slices, int n_slices, store_load_fn load,
                          void *context, struct err *err)
{
    struct store_save *made = save_create(folder, world_rank, slices, n_slices, err);

    if (!made)
        return -1;
    made->load = load;
    made->load_context = context;
    atomic_store(&made->reads, made->n_slices > 0);
    int failed = thread_start(&made->thread, NULL, save_main, made);
    if (failed) {
        errno = failed;
        err_set_errno(err, ERR_DEVICE, "%s: cannot start the saving thread", folder);
        save_destroy(made);
        return -1;
    }
    *save = made;
    return 0;
}

int store_write(const char *folder, int world_rank, const struct store_slice *slices, int n_slices,
                store_load_fn load, void *context, struct err *err)
{
    struct store_save *save = save_create(folder, world_rank, slices, n_slices, err);

    if (!save)
        return -1;
    save->load = load;
    save->load_context = context;
    save_main(save);
    int failed = save->failed;
    if (failed)
        *err = save->err;
    save_destroy(save);
    return failed ? -1 : 0;
}

int store_save_busy(const struct store_save *save)
{
    return atomic_load(&save->reads);
}

int store_save_ended(const struct store_save *save)
{
    return atomic_load(&save->ended);
}

void store_save_amount(const struct store_save *save, int64_t *n_written, int64_t *n_bytes)
{
    *n_written = atomic_load(&save->n_written);
    *n_bytes = save->n_bytes;
}

/* Bytes from the position on. */
static int64_t bytes_left(const struct store_save *save)
{
    int64_t n = 0;

    for (int i = save->tensor; i < save->n_slices; i++) {
        struct store_slice rest = save->slices[save->tensors[i].tag];

        if (i == save->tensor)
            rest.row_begin = max_i64(rest.row_begin, save->row);
        n += bytes_of(&rest);
    }
    return n;
}

/* The rows of a piece, dense. NULL without memory for it. */
static struct copied_piece *copy_piece(const struct store_slice *piece)
{
    size_t element = dtype_bytes(piece->dtype);
    int64_t cols = piece->col_end - piece->col_begin;
    size_t row_bytes = (size_t)cols * element;
    size_t stride_bytes = (size_t)(piece->stride ? piece->stride : cols) * element;
    struct copied_piece *copy = malloc(sizeof *copy + (size_t)bytes_of(piece));

    if (!copy)
        return NULL;
    for (int64_t row = 0; row < piece->row_end - piece->row_begin; row++)
        memcpy(copy->data + (size_t)row * row_bytes,
               (const char *)piece->data + (size_t)row * stride_bytes, row_bytes);
    copy->piece = *piece;
    copy->piece.data = copy->data;
    copy->piece.stride = 0;
    copy->next = NULL;
    return copy;
}

/* Whether all that is left was copied; else the position is what it was. The mutex is held. */
static int copy_rest(struct store_save *save, store_load_fn load, void *context, struct err *err)
{
    struct copied_piece *copies = NULL, **end = &copies;
    int tensor = save->tensor, status = 1;
    int64_t row = save->row;
    struct store_slice piece;

    while (save->tensor < save->n_slices && status == 1) {
        status = load_next(save, load, context, &piece, err) < 0 ? -1 : 1;
        *end = status == 1 ? copy_piece(&piece) : NULL;
        if (*end)
            end = &(*end)->next;
        else if (status == 1)
            status = 0;
    }
    if (status == 1) {
        CHECK(!save->copies);
        save->copies = copies;
        return 1;
    }
    free_copies(copies);
    save->tensor = tensor;
    save->row = row;
    atomic_store(&save->reads, 1);
    return status;
}

int store_save_copy(struct store_save *save, int64_t limit, store_load_fn load, void *context,
                    struct err *err)
{
    int status = 1;

    CHECK(load && save->load);
    pthread_mutex_lock(&save->mutex);
    if (save->tensor < save->n_slices)
        status = bytes_left(save) > limit ? 0 : copy_rest(save, load, context, err);
    pthread_mutex_unlock(&save->mutex);
    return status;
}

int store_save_wait(struct store_save *save, struct err *err)
{
    CHECK(pthread_join(save->thread, NULL) == 0);
    int failed = save->failed;
    if (failed)
        *err = save->err;
    save_destroy(save);
    return failed ? -1 : 0;
}
