/*
 * store_save.c - writing checkpoints: the background save and the commit
 *
 * All is written into step-N.partial; the commit's rename makes it step-N.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/num.h"
#include "ckpt/ahead.h"
#include "ckpt/file_hash.h"
#include "ckpt/folder_impl.h"
#include "ckpt/json_reader.h"
#include "ckpt/manifest.h"
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

/* The path without slashes at its end and with a suffix. */
static char *path_with(struct arena *arena, const char *path, const char *suffix)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/')
        length--;
    return arena_printf(arena, "%.*s%s", (int)length, path, suffix);
}

char *store_partial(const char *folder, struct arena *arena)
{
    return path_with(arena, folder, ".partial");
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
static int write_pieces(struct pieces *p, struct ahead *ahead, struct safetensors_writer *writer,
                        struct manifest_slice *places, struct err *err)
{
    struct store_save *save = p->save;
    XXH3_state_t hash;

    if (ahead && save->n_slices)
        ahead_begin(ahead);
    for (int i = 0; i < save->n_slices;) {
        const struct store_slice *whole = &save->slices[p->tensors[i].tag];

        if ((ahead ? ahead_end(ahead, err) : load_piece(p, err)) < 0)
            return -1;
        struct store_slice piece = p->piece;
        if (ahead && p->tensor < save->n_slices)
            ahead_begin(ahead);
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
    struct ahead *ahead = NULL;
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
    if (save->load && ahead_create(&ahead, load_piece, &pieces, err) < 0)
        return -1;
    int failed = safetensors_create(&writer, path, tensors, save->n_slices, &meta, 1, err) < 0;
    if (!failed && write_pieces(&pieces, ahead, writer, places, err) < 0) {
        safetensors_abandon(writer);
        failed = 1;
    }
    ahead_destroy(ahead);
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

static int read_part(struct manifest *part, const struct folder *folder, int rank,
                     struct arena *arena, struct err *err)
{
    char *name = arena_printf(arena, "rank-%05d.json", rank);
    char *path = arena_printf(arena, "%s/%s", folder->path, name);
    char *text;
    size_t n_bytes;

    if (folder_read_file(folder, name, MANIFEST_MAX_BYTES, &text, &n_bytes, err) < 0)
        return -1;
    int failed = manifest_parse(part, path, text, n_bytes, arena, err);
    free(text);
    if (failed)
        return -1;
    if (part->n_files != 1 ||
        strcmp(part->files[0].name, arena_printf(arena, "rank-%05d.safetensors", rank)))
        return err_set(err, ERR_DATA, "%s does not list just its rank's file", path);
    int fd = folder_open_file(folder, part->files[0].name, part->files[0].n_bytes, err);
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

int store_written(const char *folder, int world_rank, int64_t *n_bytes,
                  void (*tick)(void *context, int64_t n_bytes), void *context)
{
    struct arena arena = { 0 };
    struct folder partial = { .fd = -1 };
    struct manifest part;
    struct err ignored;
    uint64_t hash;
    int fd = -1;
    int whole = folder_open(&partial, store_partial(folder, &arena), &ignored) == 0 &&
                read_part(&part, &partial, world_rank, &arena, &ignored) == 0 &&
                (fd = folder_open_file(&partial, part.files[0].name, part.files[0].n_bytes,
                                       &ignored)) >= 0 &&
                file_hash(fd, &hash, tick, context) == 0 && hash == part.files[0].hash;

    if (whole)
        *n_bytes = part.files[0].n_bytes;
    if (fd >= 0)
        close(fd);
    folder_close(&partial);
    arena_release(&arena);
    return whole;
}

/* Whether a name in a checkpoint's folder belongs to it: ours, or of a rank of this world. */
static int belongs(const char *name, int world_size)
{
    char ending[32];
    int rank;

    if (!strcmp(name, "manifest.json") || !strcmp(name, STORE_CARRIED) ||
        !strcmp(name, STORE_NOTES) || !strcmp(name, ".") || !strcmp(name, ".."))
        return 1;
    if (sscanf(name, "rank-%5d.%31s", &rank, ending) != 2 || rank < 0 || rank >= world_size)
        return 0;
    return !strcmp(ending, "safetensors") || !strcmp(ending, "json");
}

/* An interrupted save of another world size may have left files of ranks that are no more. */
static int remove_strays(const struct folder *folder, int world_size, struct arena *arena,
                         struct err *err)
{
    DIR *dir = opendir(folder->path);
    struct dirent *entry;
    int failed = 0;

    if (!dir)
        return err_set_errno(err, ERR_FAILED, "%s", folder->path);
    while (!failed && (entry = readdir(dir)))
        if (!belongs(entry->d_name, world_size))
            failed =
                file_remove_tree(arena_printf(arena, "%s/%s", folder->path, entry->d_name), err);
    closedir(dir);
    return failed;
}

/* Where names cannot be exchanged: at each moment the old or the new is whole under some name. */
static int replace_in_two(const char *partial, const char *folder, struct arena *arena,
                          struct err *err)
{
    char *replaced = path_with(arena, folder, ".replaced");

    if (file_remove_tree(replaced, err) < 0)
        return -1;
    if (rename(folder, replaced) < 0 || rename(partial, folder) < 0)
        return err_set_errno(err, ERR_FAILED, "cannot put %s in the place of %s", partial, folder);
    return file_remove_tree(replaced, err);
}

/* partial becomes folder; an earlier checkpoint of that name goes. */
static int publish(const char *partial, const char *folder, struct arena *arena, struct err *err)
{
    char *parent = arena_printf(arena, "%s/..", folder);

    if (!file_exists(folder)) {
        if (rename(partial, folder) < 0)
            return err_set_errno(err, ERR_FAILED, "cannot rename %s to %s", partial, folder);
        return file_sync_folder(parent, err);
    }
    if (renameat2(AT_FDCWD, partial, AT_FDCWD, folder, RENAME_EXCHANGE) == 0) {
        if (file_sync_folder(parent, err) < 0)
            return -1;
        return file_remove_tree(partial, err);
    }
    if (errno != EINVAL && errno != ENOSYS)
        return err_set_errno(err, ERR_FAILED, "cannot exchange %s and %s", partial, folder);
    if (replace_in_two(partial, folder, arena, err) < 0)
        return -1;
    return file_sync_folder(parent, err);
}

static int check_state(const char *state, struct arena *arena, struct err *err)
{
    struct json_reader reader;

    json_reader_init(&reader, state, strlen(state), arena);
    const char *start = json_skip(&reader);
    if (json_end(&reader) < 0 || *start != '{')
        return err_set(err, ERR_FAILED, "the state to save is not a JSON object: %s",
                       reader.problem ? reader.problem : "something else");
    return 0;
}

static int seal(const struct folder *partial, struct manifest *whole, struct arena *arena,
                struct err *err)
{
    int world_size = whole->world_size;
    struct manifest *parts = arena_array(arena, struct manifest, world_size);
    char *path = arena_printf(arena, "%s/manifest.json", partial->path);
    struct str text = { 0 };

    for (int rank = 0; rank < world_size; rank++)
        if (read_part(&parts[rank], partial, rank, arena, err) < 0)
            return -1;
    if (manifest_merge(whole, parts, world_size, arena, err) < 0 ||
        manifest_check_complete(whole, path, err) < 0 ||
        remove_strays(partial, world_size, arena, err) < 0)
        return -1;
    manifest_print(whole, &text);
    fault_at("save:before_manifest", whole->step);
    int failed = file_write(path, text.data, text.length, err) < 0;
    str_release(&text);
    if (failed || file_sync_folder(partial->path, err) < 0)
        return -1;
    fault_at("save:before_commit", whole->step);
    return 0;
}

int store_seal(const char *folder, int world_size, int64_t step, const char *state, struct err *err)
{
    struct manifest whole = { .step = step, .world_size = world_size, .state = state };
    struct arena arena = { 0 };
    struct folder partial = { .fd = -1 };

    CHECK(world_size > 0);
    CHECK(step >= 0);
    int failed = check_state(state, &arena, err) < 0 ||
                 folder_open(&partial, path_with(&arena, folder, ".partial"), err) < 0 ||
                 seal(&partial, &whole, &arena, err) < 0;
    folder_close(&partial);
    arena_release(&arena);
    return failed ? -1 : 0;
}

int store_publish(const char *folder, struct err *err)
{
    struct arena arena = { 0 };
    int status =
        publish(path_with(&arena, folder, ".partial"), path_with(&arena, folder, ""), &arena, err);

    arena_release(&arena);
    return status;
}

int store_commit(const char *folder, int world_size, int64_t step, const char *state,
                 struct err *err)
{
    return store_seal(folder, world_size, step, state, err) < 0 ? -1 : store_publish(folder, err);
}

/* manifest.json of a committed checkpoint, all of it in the arena. */
static int read_manifest(struct manifest *whole, const struct folder *folder, const char *path,
                         struct arena *arena, struct err *err)
{
    size_t n_bytes;
    char *text;

    if (folder_read_file(folder, "manifest.json", MANIFEST_MAX_BYTES, &text, &n_bytes, err) < 0)
        return -1;
    int status = manifest_parse(whole, path, text, n_bytes, arena, err);
    free(text);
    return status;
}

int store_restate(const char *folder, int64_t step, const char *state, struct err *err)
{
    struct arena arena = { 0 };
    struct folder there = { .fd = -1 };
    struct manifest whole;
    struct str text = { 0 };
    char *path = arena_printf(&arena, "%s/manifest.json", folder);
    int status = check_state(state, &arena, err) < 0 || folder_open(&there, folder, err) < 0 ||
                         read_manifest(&whole, &there, path, &arena, err) < 0
                     ? -1
                     : 0;

    if (!status && whole.step != step)
        status = err_set(err, ERR_DATA, "%s is from step %lld, not %lld", path,
                         (long long)whole.step, (long long)step);
    if (!status) {
        whole.state = state;
        manifest_print(&whole, &text);
        status = file_write(path, text.data, text.length, err);
    }
    str_release(&text);
    folder_close(&there);
    arena_release(&arena);
    return status;
}
