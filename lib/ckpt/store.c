/*
 * store.c - reading checkpoints by range
 *
 * A rectangle is put together from all slices that it touches. Each is read through a buffer of 4
 * MiB: whole rows where they are short, else the wanted columns of one row. A slice that is wanted
 * whole (the usual resume) is hashed on its way and so verified for free.
 */
#include "ckpt/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "base/num.h"
#include "ckpt/checkpoint_dir_impl.h"
#include "ckpt/convert_dtype.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"

#define BUFFER_BYTES ((int64_t)4 << 20)
#define SHORT_ROW_BYTES ((int64_t)64 << 10)
#define OPEN_FILES_MIN 32
#define OPEN_FILES_MAX 4096

struct store {
    struct arena arena;
    struct folder folder;
    struct manifest manifest;
    struct safetensors **files; /* by number in the manifest; NULL where closed */
    int *open;                  /* the open ones' numbers, a ring in order of opening */
    int n_open_max;             /* its size */
    int n_opened;               /* ever */
    unsigned char *buffer;
};

static int read_manifest(struct store *store, struct err *err)
{
    char *path = arena_printf(&store->arena, "%s/manifest.json", store->folder.path);
    char *text;
    size_t n_bytes;

    if (folder_read_file(&store->folder, "manifest.json", MANIFEST_MAX_BYTES, &text, &n_bytes,
                         err) < 0)
        return -1;
    int failed = manifest_parse(&store->manifest, path, text, n_bytes, &store->arena, err);
    free(text);
    if (failed)
        return -1;
    return manifest_check_complete(&store->manifest, path, err);
}

/*
 * How many of n files may be open at once: all, within half of what the process may have. A tensor
 * may have a slice in each file, and a ring that is smaller opens them all again for the next one.
 */
static int open_files_limit(int n)
{
    struct rlimit files = { 0 };
    int64_t most = OPEN_FILES_MIN;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        most = files.rlim_cur / 2 > OPEN_FILES_MAX ? OPEN_FILES_MAX : (int64_t)files.rlim_cur / 2;
    return min_int(max_int(1, n), (int)max_i64(most, OPEN_FILES_MIN));
}

int store_open(struct store **store, const char *folder, struct err *err)
{
    struct store *made = calloc(1, sizeof *made);

    if (!made)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", folder);
    made->folder.fd = -1;
    if (folder_open(&made->folder, arena_strdup(&made->arena, folder), err) < 0 ||
        read_manifest(made, err) < 0) {
        store_close(made);
        return -1;
    }
    made->files = arena_array(&made->arena, struct safetensors *, made->manifest.n_files);
    made->n_open_max = open_files_limit(made->manifest.n_files);
    made->open = arena_array(&made->arena, int, made->n_open_max);
    *store = made;
    return 0;
}

void store_close(struct store *store)
{
    if (!store)
        return;
    for (int i = 0; i < min_int(store->n_opened, store->n_open_max); i++)
        safetensors_close(store->files[store->open[i]]);
    folder_close(&store->folder);
    free(store->buffer);
    arena_release(&store->arena);
    free(store);
}

int store_version(const char *folder)
{
    struct folder opened = { .fd = -1 };
    struct err ignored;
    char head[64];
    ssize_t n = -1;

    if (folder_open(&opened, folder, &ignored) < 0)
        return -1;
    int fd = folder_open_file(&opened, "manifest.json", -1, &ignored);
    if (fd >= 0) {
        n = read(fd, head, sizeof head);
        close(fd);
    }
    folder_close(&opened);
    return n < 0 ? -1 : manifest_version(head, (size_t)n);
}

int64_t store_step(const struct store *store)
{
    return store->manifest.step;
}

const char *store_state(const struct store *store)
{
    return store->manifest.state;
}

int store_n_tensors(const struct store *store)
{
    return store->manifest.n_tensors;
}

const struct store_slice *store_tensor(const struct store *store, int i)
{
    if (i < 0 || i >= store->manifest.n_tensors)
        return NULL;
    return &store->manifest.tensors[i].whole;
}

static int compare_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct manifest_tensor *)tensor)->whole.name);
}

static const struct manifest_tensor *find_tensor(const struct store *store, const char *name)
{
    const struct manifest *manifest = &store->manifest;

    if (!manifest->n_tensors)
        return NULL;
    return bsearch(name, manifest->tensors, (size_t)manifest->n_tensors, sizeof *manifest->tensors,
                   compare_name);
}

const struct store_slice *store_find(const struct store *store, const char *name)
{
    const struct manifest_tensor *tensor = find_tensor(store, name);

    return tensor ? &tensor->whole : NULL;
}

const char *store_file_of(const struct store *store, const char *name, int64_t row, int64_t col,
                          struct arena *arena)
{
    const struct manifest_tensor *tensor = find_tensor(store, name);

    CHECK(tensor);
    for (int i = 0; i < tensor->n_slices; i++) {
        const struct manifest_slice *s = &tensor->slices[i];

        if (s->row_begin <= row && row < s->row_end && s->col_begin <= col && col < s->col_end)
            return arena_printf(arena, "%s/%s", store->folder.path,
                                store->manifest.files[s->file].name);
    }
    return store->folder.path;
}

/* The file, opened if it is not; the one opened longest ago makes room. */
static struct safetensors *get_file(struct store *store, int file, struct err *err)
{
    const struct manifest_file *listed = &store->manifest.files[file];
    int *place = &store->open[store->n_opened % store->n_open_max];
    char path[4096];

    if (store->files[file])
        return store->files[file];
    int fd = folder_open_file(&store->folder, listed->name, listed->n_bytes, err);
    if (fd < 0)
        return NULL;
    snprintf(path, sizeof path, "%s/%s", store->folder.path, listed->name);
    if (safetensors_open_fd(&store->files[file], fd, path, err) < 0)
        return NULL;
    if (store->n_opened >= store->n_open_max) {
        safetensors_close(store->files[*place]);
        store->files[*place] = NULL;
    }
    *place = file;
    /* Wraps to a value that still says "the ring is full" at the same place of it. */
    store->n_opened =
        store->n_opened == 2 * store->n_open_max - 1 ? store->n_open_max : store->n_opened + 1;
    return store->files[file];
}

/*
 * The part of a stored slice that the requested rectangle has in common with it, while it is read.
 */
struct slice_transfer {
    const struct store_slice *want;
    const struct manifest_tensor *tensor;
    const struct manifest_slice *slice;
    const struct safetensors *file;
    const struct safetensors_tensor *stored;
    int64_t row_begin, row_end, col_begin, col_end; /* of the whole tensor: what both have */
    int whole;                                      /* all of the slice is wanted */
    XXH3_state_t hash;
};

/* Where the slice stands in its file, which must agree with the manifest. */
static int find_stored(struct store *store, struct slice_transfer *t, struct err *err)
{
    const struct store_slice *whole = &t->tensor->whole;
    struct arena arena = { 0 };

    t->file = get_file(store, t->slice->file, err);
    if (!t->file)
        return -1;
    const char *name = manifest_slice_name(whole, t->slice, &arena);
    t->stored = safetensors_find(&t->file->index, name);
    int64_t rows = t->slice->row_end - t->slice->row_begin;
    int64_t cols = t->slice->col_end - t->slice->col_begin;
    int failed = 0;
    if (!t->stored)
        failed = err_set(err, ERR_DATA, "%s: tensor %.200s is missing", t->file->path, name);
    else if (safetensors_type_dtype(t->stored->type) != (int)whole->dtype ||
             t->stored->n_dims != whole->n_dims || t->stored->shape[0] != rows ||
             (whole->n_dims == 2 && t->stored->shape[1] != cols))
        failed = err_set(err, ERR_DATA,
                         "%s: tensor %.200s does not have the dtype and shape of the manifest",
                         t->file->path, name);
    arena_release(&arena);
    return failed;
}

/* Put n elements, which stand in the buffer, at (row, col) of the tensor. */
static void deliver(const struct slice_transfer *t, int64_t row, int64_t col,
                    const unsigned char *from, int64_t n)
{
    const struct store_slice *want = t->want;
    int64_t stride = want->stride ? want->stride : want->col_end - want->col_begin;
    int64_t at = (row - want->row_begin) * stride + (col - want->col_begin);

    convert(want->dtype, (char *)want->data + at * (int64_t)dtype_bytes(want->dtype),
            t->tensor->whole.dtype, from, n);
}

/* Short rows: many whole ones at a time. */
static int copy_rows(struct store *store, struct slice_transfer *t, struct err *err)
{
    int64_t element = (int64_t)dtype_bytes(t->tensor->whole.dtype);
    int64_t row_bytes = (t->slice->col_end - t->slice->col_begin) * element;
    int64_t n_rows = BUFFER_BYTES / row_bytes;
    int64_t skip = (t->col_begin - t->slice->col_begin) * element;
    int64_t n_cols = t->col_end - t->col_begin;

    for (int64_t row = t->row_begin; row < t->row_end; row += n_rows) {
        int64_t n = min_i64(n_rows, t->row_end - row);
        uint64_t offset = (uint64_t)((row - t->slice->row_begin) * row_bytes);

        if (safetensors_read(t->file, t->stored, offset, store->buffer, (size_t)(n * row_bytes),
                             err) < 0)
            return -1;
        if (t->whole)
            XXH3_64bits_update(&t->hash, store->buffer, (size_t)(n * row_bytes));
        int dense = n_cols == t->slice->col_end - t->slice->col_begin &&
                    n_cols == t->want->col_end - t->want->col_begin &&
                    (!t->want->stride || t->want->stride == n_cols);
        if (dense)
            deliver(t, row, t->col_begin, store->buffer, n * n_cols);
        for (int64_t i = 0; i < n && !dense; i++)
            deliver(t, row + i, t->col_begin, store->buffer + i * row_bytes + skip, n_cols);
    }
    return 0;
}

/* Long rows: the wanted columns of one at a time, in pieces of the buffer. */
static int copy_columns(struct store *store, struct slice_transfer *t, struct err *err)
{
    int64_t element = (int64_t)dtype_bytes(t->tensor->whole.dtype);
    int64_t row_bytes = (t->slice->col_end - t->slice->col_begin) * element;
    int64_t n_cols = BUFFER_BYTES / element;

    for (int64_t row = t->row_begin; row < t->row_end; row++) {
        for (int64_t col = t->col_begin; col < t->col_end; col += n_cols) {
            int64_t n = min_i64(n_cols, t->col_end - col);
            uint64_t offset = (uint64_t)((row - t->slice->row_begin) * row_bytes +
                                         (col - t->slice->col_begin) * element);

            if (safetensors_read(t->file, t->stored, offset, store->buffer, (size_t)(n * element),
                                 err) < 0)
                return -1;
            if (t->whole)
                XXH3_64bits_update(&t->hash, store->buffer, (size_t)(n * element));
            deliver(t, row, col, store->buffer, n);
        }
    }
    return 0;
}

static int copy_slice(struct store *store, struct slice_transfer *t, struct err *err)
{
    int64_t element = (int64_t)dtype_bytes(t->tensor->whole.dtype);
    const struct manifest_slice *s = t->slice;

    if (find_stored(store, t, err) < 0)
        return -1;
    t->whole = t->row_begin == s->row_begin && t->row_end == s->row_end &&
               t->col_begin == s->col_begin && t->col_end == s->col_end;
    XXH3_64bits_reset(&t->hash);
    int short_rows = (s->col_end - s->col_begin) * element <= SHORT_ROW_BYTES;
    if ((short_rows ? copy_rows(store, t, err) : copy_columns(store, t, err)) < 0)
        return -1;
    if (t->whole && XXH3_64bits_digest(&t->hash) != s->hash)
        return err_set(err, ERR_DATA,
                       "%s: tensor %.200s is damaged: its hash differs from the manifest",
                       t->file->path, t->stored->name);
    return 0;
}

static int check_want(const struct store *store, const struct manifest_tensor *tensor,
                      const struct store_slice *want, struct err *err)
{
    const char *path = store->folder.path;

    if (!tensor)
        return err_set(err, ERR_DATA, "%s has no tensor %.200s", path, want->name);
    const struct store_slice *whole = &tensor->whole;
    if (whole->n_dims != want->n_dims || whole->rows != want->rows || whole->cols != want->cols)
        return err_set(err, ERR_DATA,
                       "%s: tensor %.200s is %lld x %lld (%d-D), expected %lld x %lld (%d-D)", path,
                       want->name, (long long)whole->rows, (long long)whole->cols, whole->n_dims,
                       (long long)want->rows, (long long)want->cols, want->n_dims);
    if (!convert_supported(want->dtype, whole->dtype))
        return err_set(err, ERR_DATA, "%s: tensor %.200s is %s, which cannot be converted to %s",
                       path, want->name, dtype_name(whole->dtype), dtype_name(want->dtype));
    CHECK(0 <= want->row_begin && want->row_begin <= want->row_end && want->row_end <= want->rows);
    CHECK(0 <= want->col_begin && want->col_begin <= want->col_end && want->col_end <= want->cols);
    CHECK(!want->stride || want->stride >= want->col_end - want->col_begin);
    return 0;
}

int store_read(struct store *store, const struct store_slice *want, struct err *err)
{
    const struct manifest_tensor *tensor = find_tensor(store, want->name);

    if (check_want(store, tensor, want, err) < 0)
        return -1;
    if (!store->buffer && !(store->buffer = malloc((size_t)BUFFER_BYTES)))
        return err_set(err, ERR_DEVICE, "%s: out of host memory", store->folder.path);
    for (int i = 0; i < tensor->n_slices; i++) {
        const struct manifest_slice *slice = &tensor->slices[i];
        struct slice_transfer t = { .want = want, .tensor = tensor, .slice = slice };

        t.row_begin = max_i64(want->row_begin, slice->row_begin);
        t.row_end = min_i64(want->row_end, slice->row_end);
        t.col_begin = max_i64(want->col_begin, slice->col_begin);
        t.col_end = min_i64(want->col_end, slice->col_end);
        if (t.row_begin >= t.row_end || t.col_begin >= t.col_end)
            continue;
        if (copy_slice(store, &t, err) < 0)
            return -1;
    }
    return 0;
}

int store_check_sizes(struct store *store, struct err *err)
{
    for (int i = 0; i < store->manifest.n_files; i++) {
        const struct manifest_file *file = &store->manifest.files[i];
        int fd = folder_open_file(&store->folder, file->name, file->n_bytes, err);

        if (fd < 0)
            return -1;
        close(fd);
    }
    return 0;
}

/* How far store_verify is. */
struct verify {
    void (*progress)(void *context, double share);
    void *context;
    double n_bytes, n_done;
};

static int hash_file(struct store *store, int fd, const struct manifest_file *file,
                     struct verify *verify, struct err *err)
{
    int64_t left = file->n_bytes;
    XXH3_state_t hash;

    XXH3_64bits_reset(&hash);
    while (left > 0) {
        ssize_t n = read(fd, store->buffer, (size_t)min_i64(left, BUFFER_BYTES));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_errno(err, ERR_DATA, "%s/%s", store->folder.path, file->name);
        if (n == 0)
            return err_set(err, ERR_DATA, "%s/%s ends %lld bytes early", store->folder.path,
                           file->name, (long long)left);
        XXH3_64bits_update(&hash, store->buffer, (size_t)n);
        left -= n;
        verify->n_done += (double)n;
        if (verify->progress)
            verify->progress(verify->context, verify->n_done / verify->n_bytes);
    }
    uint64_t digest = XXH3_64bits_digest(&hash);
    if (digest != file->hash)
        return err_set(err, ERR_DATA,
                       "%s/%s is damaged: its hash is %016llx, but %016llx in the manifest",
                       store->folder.path, file->name, (unsigned long long)digest,
                       (unsigned long long)file->hash);
    return 0;
}

int store_verify(struct store *store, void (*progress)(void *context, double share), void *context,
                 struct err *err)
{
    struct verify verify = { .progress = progress, .context = context };

    if (!store->buffer && !(store->buffer = malloc((size_t)BUFFER_BYTES)))
        return err_set(err, ERR_DEVICE, "%s: out of host memory", store->folder.path);
    for (int i = 0; i < store->manifest.n_files; i++)
        verify.n_bytes += (double)store->manifest.files[i].n_bytes;
    for (int i = 0; i < store->manifest.n_files; i++) {
        const struct manifest_file *file = &store->manifest.files[i];
        int fd = folder_open_file(&store->folder, file->name, file->n_bytes, err);

        if (fd < 0)
            return -1;
        int failed = hash_file(store, fd, file, &verify, err);
        close(fd);
        if (failed)
            return -1;
    }
    return 0;
}
