/*
 * safetensors.c - the reader
 */
#include "ckpt/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_reader.h"

static const struct {
    const char *name;
    size_t n_bytes;
    int dtype;
} types[N_SAFETENSORS_TYPES] = {
    [SAFETENSORS_BOOL] = { "BOOL", 1, -1 },       [SAFETENSORS_U8] = { "U8", 1, DTYPE_U8 },
    [SAFETENSORS_I8] = { "I8", 1, -1 },           [SAFETENSORS_F8_E5M2] = { "F8_E5M2", 1, -1 },
    [SAFETENSORS_F8_E4M3] = { "F8_E4M3", 1, -1 }, [SAFETENSORS_F8_E8M0] = { "F8_E8M0", 1, -1 },
    [SAFETENSORS_I16] = { "I16", 2, -1 },         [SAFETENSORS_U16] = { "U16", 2, -1 },
    [SAFETENSORS_F16] = { "F16", 2, DTYPE_F16 },  [SAFETENSORS_BF16] = { "BF16", 2, DTYPE_BF16 },
    [SAFETENSORS_I32] = { "I32", 4, DTYPE_I32 },  [SAFETENSORS_U32] = { "U32", 4, -1 },
    [SAFETENSORS_F32] = { "F32", 4, DTYPE_F32 },  [SAFETENSORS_F64] = { "F64", 8, DTYPE_F64 },
    [SAFETENSORS_I64] = { "I64", 8, DTYPE_I64 },  [SAFETENSORS_U64] = { "U64", 8, -1 },
};

const char *safetensors_type_name(enum safetensors_type type)
{
    return types[type].name;
}

size_t safetensors_type_bytes(enum safetensors_type type)
{
    return types[type].n_bytes;
}

int safetensors_type_dtype(enum safetensors_type type)
{
    return types[type].dtype;
}

enum safetensors_type safetensors_dtype_type(enum dtype dtype)
{
    int type = 0;

    while (type < N_SAFETENSORS_TYPES && types[type].dtype != (int)dtype)
        type++;
    CHECK(type < N_SAFETENSORS_TYPES);
    return (enum safetensors_type)type;
}

static int type_from_name(const char *name)
{
    for (int type = 0; type < N_SAFETENSORS_TYPES; type++)
        if (!strcmp(types[type].name, name))
            return type;
    return -1;
}

/* The lists grow in the arena while the header is read. */
struct safetensors_header {
    struct safetensors_index index;
    int tensor_capacity, meta_capacity;
    struct arena *arena;
    const char *path;
};

static void read_metadata(struct json_reader *reader, struct safetensors_header *header)
{
    json_open(reader, '{');
    while (json_next(reader, '}')) {
        struct safetensors_index *index = &header->index;

        index->meta = arena_grow(header->arena, index->meta, sizeof *index->meta,
                                 &header->meta_capacity, index->n_meta + 1);
        struct safetensors_meta *meta = &index->meta[index->n_meta++];
        meta->key = json_key(reader);
        meta->value = json_string(reader);
    }
}

static void read_shape(struct json_reader *reader, struct safetensors_tensor *tensor)
{
    tensor->n_dims = 0;
    json_open(reader, '[');
    while (json_next(reader, ']')) {
        int64_t extent = json_count(reader, INT64_MAX);

        if (tensor->n_dims == SAFETENSORS_DIMS_MAX) {
            json_fail(reader, "a shape has more than 8 dims");
            return;
        }
        tensor->shape[tensor->n_dims++] = extent;
    }
}

static void read_offsets(struct json_reader *reader, struct safetensors_tensor *tensor)
{
    int n = 0;

    json_open(reader, '[');
    while (json_next(reader, ']')) {
        uint64_t offset = (uint64_t)json_count(reader, INT64_MAX);

        if (n == 0)
            tensor->begin = offset;
        else
            tensor->end = offset;
        if (++n > 2)
            break;
    }
    if (n != 2)
        json_fail(reader, "data_offsets must be two numbers");
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

/* The object of one tensor. Unknown keys are skipped, as the format's library does. */
static void read_tensor(struct json_reader *reader, struct safetensors_tensor *tensor)
{
    int seen = 0;

    json_open(reader, '{');
    while (json_next(reader, '}')) {
        const char *key = json_key(reader);
        int has = !strcmp(key, "dtype")          ? HAS_DTYPE
                  : !strcmp(key, "shape")        ? HAS_SHAPE
                  : !strcmp(key, "data_offsets") ? HAS_OFFSETS
                                                 : 0;

        if (seen & has)
            json_fail(reader, "a key is given twice");
        seen |= has;
        if (has == HAS_DTYPE) {
            int type = type_from_name(json_string(reader));

            if (type < 0)
                json_fail(reader, "unknown dtype");
            else
                tensor->type = (enum safetensors_type)type;
        } else if (has == HAS_SHAPE) {
            read_shape(reader, tensor);
        } else if (has == HAS_OFFSETS) {
            read_offsets(reader, tensor);
        } else {
            json_skip(reader);
        }
    }
    if (seen != HAS_ALL)
        json_fail(reader, "dtype, shape or data_offsets is missing");
}

static int tensor_problem(const char *path, const struct safetensors_tensor *tensor,
                          const char *problem, struct err *err)
{
    return err_set(err, ERR_DATA, "%s: tensor %.200s: %s", path, tensor->name, problem);
}

static int read_header(struct safetensors_header *header, const char *text, size_t n_bytes,
                       struct err *err)
{
    struct json_reader reader;
    struct safetensors_index *index = &header->index;
    const char *name = "";
    int n_metadata = 0;

    json_reader_init(&reader, text, n_bytes, header->arena);
    json_open(&reader, '{');
    while (json_next(&reader, '}')) {
        name = json_key(&reader);
        if (!strcmp(name, "__metadata__")) {
            if (++n_metadata > 1)
                json_fail(&reader, "it is given twice");
            read_metadata(&reader, header);
            continue;
        }
        index->tensors = arena_grow(header->arena, index->tensors, sizeof *index->tensors,
                                    &header->tensor_capacity, index->n_tensors + 1);
        struct safetensors_tensor *tensor = &index->tensors[index->n_tensors++];
        *tensor = (struct safetensors_tensor){ .name = name };
        read_tensor(&reader, tensor);
    }
    if (json_end(&reader) == 0)
        return 0;
    return err_set(err, ERR_DATA, "%s: header byte %zu%s%.200s: %s", header->path,
                   reader.problem_at, *name ? ", tensor " : "", name, reader.problem);
}

static int compare_names(const void *a, const void *b)
{
    const struct safetensors_tensor *left = a, *right = b;

    return strcmp(left->name, right->name);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct safetensors_tensor *left = a, *right = b;

    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    return (left->end > right->end) - (left->end < right->end);
}

static int compare_meta(const void *a, const void *b)
{
    const struct safetensors_meta *left = a, *right = b;

    return strcmp(left->key, right->key);
}

/* The number of bytes of a tensor of this type and shape; -1 on overflow. */
static int tensor_bytes(const struct safetensors_tensor *tensor, uint64_t *n_bytes)
{
    uint64_t n = types[tensor->type].n_bytes;

    for (int dim = 0; dim < tensor->n_dims; dim++)
        if (__builtin_mul_overflow(n, (uint64_t)tensor->shape[dim], &n))
            return -1;
    *n_bytes = n;
    return 0;
}

static int check_extents(const struct safetensors_header *header, uint64_t data_bytes,
                         struct err *err)
{
    uint64_t at = 0;

    for (int i = 0; i < header->index.n_tensors; i++) {
        const struct safetensors_tensor *tensor = &header->index.tensors[i];
        uint64_t n_bytes;

        if (tensor_bytes(tensor, &n_bytes) < 0)
            return tensor_problem(header->path, tensor, "its shape is too large", err);
        if (tensor->end < tensor->begin || tensor->end - tensor->begin != n_bytes)
            return tensor_problem(header->path, tensor, "data_offsets do not fit dtype and shape",
                                  err);
        if (tensor->begin != at)
            return tensor_problem(header->path, tensor,
                                  tensor->begin < at ? "its data overlap those of another tensor"
                                                     : "there is a gap before its data",
                                  err);
        if (tensor->end > data_bytes)
            return tensor_problem(header->path, tensor, "its data are beyond the end of the file",
                                  err);
        at = tensor->end;
    }
    if (at != data_bytes)
        return err_set(err, ERR_DATA, "%s: %llu bytes follow the last tensor", header->path,
                       (unsigned long long)(data_bytes - at));
    return 0;
}

/* Sort by name and refuse what is given twice. */
static int check_names(const struct safetensors_header *header, struct err *err)
{
    const struct safetensors_index *index = &header->index;

    if (index->n_tensors)
        qsort(index->tensors, (size_t)index->n_tensors, sizeof *index->tensors, compare_names);
    for (int i = 1; i < index->n_tensors; i++)
        if (!compare_names(&index->tensors[i - 1], &index->tensors[i]))
            return tensor_problem(header->path, &index->tensors[i], "it is given twice", err);
    if (index->n_meta)
        qsort(index->meta, (size_t)index->n_meta, sizeof *index->meta, compare_meta);
    for (int i = 1; i < index->n_meta; i++)
        if (!compare_meta(&index->meta[i - 1], &index->meta[i]))
            return err_set(err, ERR_DATA, "%s: metadata %.200s is given twice", header->path,
                           index->meta[i].key);
    return 0;
}

int safetensors_parse(struct safetensors_index *index, const char *path, const char *header,
                      size_t n_bytes, uint64_t data_bytes, struct arena *arena, struct err *err)
{
    struct safetensors_header read = { .arena = arena, .path = path };

    if (read_header(&read, header, n_bytes, err) < 0)
        return -1;
    if (read.index.n_tensors)
        qsort(read.index.tensors, (size_t)read.index.n_tensors, sizeof *read.index.tensors,
              compare_offsets);
    if (check_extents(&read, data_bytes, err) < 0 || check_names(&read, err) < 0)
        return -1;
    *index = read.index;
    return 0;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors_index *index,
                                                  const char *name)
{
    struct safetensors_tensor key = { .name = name };

    if (!index->n_tensors)
        return NULL;
    return bsearch(&key, index->tensors, (size_t)index->n_tensors, sizeof key, compare_names);
}

static int read_at(int fd, const char *path, uint64_t offset, void *out, size_t n_bytes,
                   struct err *err)
{
    char *next = out;

    while (n_bytes) {
        ssize_t n = pread(fd, next, n_bytes, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_errno(err, ERR_DATA, "%s: cannot read at byte %llu", path,
                                 (unsigned long long)offset);
        if (n == 0)
            return err_set(err, ERR_DATA, "%s ends at byte %llu, but %zu more bytes were expected",
                           path, (unsigned long long)offset, n_bytes);
        next += n;
        offset += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

static int open_header(struct safetensors *file, struct err *err)
{
    struct stat stat_buffer;
    unsigned char prefix[8];
    uint64_t n_bytes = 0;

    if (fstat(file->fd, &stat_buffer) < 0)
        return err_set_errno(err, ERR_DATA, "%s", file->path);
    if (!S_ISREG(stat_buffer.st_mode))
        return err_set(err, ERR_DATA, "%s is not a regular file", file->path);
    file->file_bytes = (uint64_t)stat_buffer.st_size;
    if (file->file_bytes < sizeof prefix)
        return err_set(err, ERR_DATA, "%s has %llu bytes, too few for a safetensors file",
                       file->path, (unsigned long long)file->file_bytes);
    if (read_at(file->fd, file->path, 0, prefix, sizeof prefix, err) < 0)
        return -1;
    for (int i = 7; i >= 0; i--)
        n_bytes = n_bytes << 8 | prefix[i];
    if (n_bytes > SAFETENSORS_HEADER_MAX_BYTES || n_bytes > file->file_bytes - sizeof prefix)
        return err_set(err, ERR_DATA, "%s: header of %llu bytes, the file has %llu, at most %zu",
                       file->path, (unsigned long long)n_bytes,
                       (unsigned long long)file->file_bytes, SAFETENSORS_HEADER_MAX_BYTES);
    char *header = malloc(n_bytes + 1);
    if (!header)
        return err_set(err, ERR_DEVICE, "%s: out of host memory", file->path);
    file->data_offset = sizeof prefix + n_bytes;
    int failed = read_at(file->fd, file->path, sizeof prefix, header, n_bytes, err);
    if (!failed)
        failed = safetensors_parse(&file->index, file->path, header, n_bytes,
                                   file->file_bytes - file->data_offset, &file->arena, err);
    free(header);
    return failed;
}

int safetensors_open_fd(struct safetensors **file, int fd, const char *path, struct err *err)
{
    struct safetensors *opened = calloc(1, sizeof *opened);

    if (!opened) {
        close(fd);
        return err_set(err, ERR_DEVICE, "%s: out of host memory", path);
    }
    opened->fd = fd;
    opened->path = arena_strdup(&opened->arena, path);
    if (open_header(opened, err) < 0) {
        safetensors_close(opened);
        return -1;
    }
    *file = opened;
    return 0;
}

int safetensors_open(struct safetensors **file, const char *path, struct err *err)
{
    /* Not to wait for a writer should it be a pipe; without effect on files. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return err_set_errno(err, ERR_DATA, "%s", path);
    return safetensors_open_fd(file, fd, path, err);
}

void safetensors_close(struct safetensors *file)
{
    if (!file)
        return;
    close(file->fd);
    arena_release(&file->arena);
    free(file);
}

int safetensors_read(const struct safetensors *file, const struct safetensors_tensor *tensor,
                     uint64_t offset, void *out, size_t n_bytes, struct err *err)
{
    CHECK(offset <= tensor->end - tensor->begin);
    CHECK(n_bytes <= tensor->end - tensor->begin - offset);
    return read_at(file->fd, file->path, file->data_offset + tensor->begin + offset, out, n_bytes,
                   err);
}
