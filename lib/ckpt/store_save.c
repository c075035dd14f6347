/*
 * store_save.c - writing checkpoints in the background, into step-N.partial (store_commit.c renames
 * it)
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
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
#include "ckpt/checkpoint_dir_impl.h"
#include "ckpt/file_hash.h"
#include "ckpt/manifest.h"
#include "ckpt/read_ahead.h"
#include "ckpt/safetensors.h"

#define PIECE_BYTES ((size_t)4 << 20)

struct store_save {
    pthread_t thread;
    atomic_int busy;
    struct arena arena;
    const char *partial;
    int world_rank;
    struct store_slice *slices; /* with elements; sorted by name and place */
    int n_slices;
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
static int write_bytes(struct safetensors_writer *writer, XXH3_state_t *hash,
                       const unsigned char *data, size_t n, struct err *err)
{
    while (n) {
        size_t piece = n < PIECE_BYTES ? n : PIECE_BYTES;

        XXH3_64bits_update(hash, data, piece);
        if (safetensors_write(writer, data, piece, err) < 0)
            return -1;
        data += piece;
        n -= piece;
    }
    return 0;
}

static int write_rows(struct safetensors_writer *writer, const struct store_slice *slice,
                      XXH3_state_t *hash, struct err *err)
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
        status = write_bytes(writer, hash, data + (size_t)(row * stride) * element,
                             (size_t)cols * element, err);
    return status;
}

/* The slices of a save, piece by piece in the order of its file. */
struct pieces {
    struct store_save *save;
    const struct safetensors_tensor *tensors; /* tags are slices */
    int tensor;                               /* of the next piece, n_slices behind the last */
    int64_t row;                              /* where it begins */
    struct store_slice piece;                 /* loaded last */
};

static int load_piece(void *context, struct err *err)
{
    struct pieces *p = context;
    struct store_slice *slice = &p->save->slices[p->tensors[p->tensor].tag];
    int64_t row_end = slice->row_end;

    int64_t stride = slice->stride ? slice->stride : slice->col_end - slice->col_begin;

    p->piece = *slice;
    p->piece.row_begin = max_i64(p->row, slice->row_begin);
    if (slice->data)
        p->piece.data =
            (char *)slice->data +
            (size_t)((p->piece.row_begin - slice->row_begin) * stride) * dtype_bytes(slice->dtype);
    if (p->save->load && p->save->load(p->save->load_context, &p->piece, err) < 0)
        return -1;
    CHECK(p->piece.row_begin < p->piece.row_end && p->piece.row_end <= row_end);
    p->row = p->piece.row_end;
    if (p->row == row_end) {
        p->tensor++;
        p->row = 0;
    }
    return 0;
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
        const struct store_slice *whole = &save->slices[p->tensors[i].tag];

        if ((ahead ? read_ahead_end(ahead, err) : load_piece(p, err)) < 0)
            return -1;
        struct store_slice piece = p->piece;
        if (ahead && p->tensor < save->n_slices)
            read_ahead_begin(ahead);
        if (piece.row_begin == whole->row_begin)
            XXH3_64bits_reset(&hash);
        if (i == save->n_slices / 2)
            fault_at("save:writing", step_of(save->partial));
        if (write_rows(writer, &piece, &hash, err) < 0)
            return -1;
        if (piece.row_end == whole->row_end)
            places[p->tensors[i++].tag].hash = XXH3_64bits_digest(&hash);
    }
    return 0;
}

/* Write all slices; places[i].hash becomes that of slice i. */
static int write_data(struct store_save *save, const char *path, struct manifest_slice *places,
                      struct manifest_file *file, struct err *err)
{
    static const struct safetensors_meta meta = { "format", "pt" };
    struct safetensors_tensor *tensors =
        arena_array(&save->arena, struct safetensors_tensor, save->n_slices);
    struct pieces pieces = { .save = save, .tensors = tensors };
    struct safetensors_writer *writer;
    struct read_ahead *ahead = NULL;
    uint64_t n_bytes;

    for (int i = 0; i < save->n_slices; i++) {
        const struct store_slice *slice = &save->slices[i];

        places[i] = slice_place(slice);
        tensors[i] = (struct safetensors_tensor){
            .name = manifest_slice_name(slice, &places[i], &save->arena),
            .type = safetensors_dtype_type(slice->dtype),
            .n_dims = slice->n_dims,
            .shape = { slice->row_end - slice->row_begin, slice->col_end - slice->col_begin },
            .tag = i,
        };
    }
    safetensors_place(tensors, save->n_slices);
    if (save->load && read_ahead_create(&ahead, load_piece, &pieces, err) < 0)
        return -1;
    int failed = safetensors_create(&writer, path, tensors, save->n_slices, &meta, 1, err) < 0;
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
    atomic_store(&save->busy, 0);
    fault_at("save:before_rename", step_of(save->partial));
    if (!save->failed)
        save->failed = write_part(save, places, &file, &save->err) < 0;
    fault_at("save:renamed", step_of(save->partial));
    return NULL;
}

static void save_destroy(struct store_save *save)
{
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
    made->slices = arena_array(&made->arena, struct store_slice, n_slices);
    for (int i = 0; i < n_slices; i++) {
        check_slice(&slices[i]);
        if (slices[i].row_begin == slices[i].row_end || slices[i].col_begin == slices[i].col_end)
            continue;
        made->slices[made->n_slices] = slices[i];
        made->slices[made->n_slices++].name = arena_strdup(&made->arena, slices[i].name);
    }
    if (made->n_slices)
        qsort(made->slices, (size_t)made->n_slices, sizeof *made->slices, compare_slices);
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
    sigset_t all, before;

    if (!made)
        return -1;
    made->load = load;
    made->load_context = context;
    atomic_store(&made->busy, 1);
    /* Signals are for the main thread; blocked, SIGXFSZ becomes an error of write. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&made->thread, NULL, save_main, made);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
    return atomic_load(&save->busy);
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
