/*
 * manifest.c - print, read, check and merge the table of a checkpoint
 */
#include "ckpt/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "base/json_reader.h"
#include "version.h"

#define HASH_DIGITS 16
static const char any_version[] = "{\"lmtrain_checkpoint\":";
static const char prefix[] = "{\"lmtrain_checkpoint\":1,\"xxh3\":\"";
#define PREFIX_LENGTH (sizeof prefix - 1)
_Static_assert(STORE_VERSION == 1, "the prefix has the version that is written");

/* Who wrote it, for those that cannot read it: behind the hash, in every format. */
static const char writer_key[] = "\"lmtrain\":\"";
enum { WRITER_WITHIN = 256, WRITER_BYTES = 40 };

int manifest_is_file_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(name);

    return length > 0 && length <= 200 && name[0] != '.' && strspn(name, allowed) == length;
}

const char *manifest_slice_name(const struct store_slice *whole, const struct manifest_slice *slice,
                                struct arena *arena)
{
    int all_rows = slice->row_begin == 0 && slice->row_end == whole->rows;

    if (all_rows && slice->col_begin == 0 && slice->col_end == whole->cols)
        return whole->name;
    if (whole->n_dims == 1)
        return arena_printf(arena, "%s[%lld:%lld]", whole->name, (long long)slice->row_begin,
                            (long long)slice->row_end);
    return arena_printf(arena, "%s[%lld:%lld,%lld:%lld]", whole->name, (long long)slice->row_begin,
                        (long long)slice->row_end, (long long)slice->col_begin,
                        (long long)slice->col_end);
}

/* The hash of text with 0 for each of its own digits. */
static uint64_t own_hash(const char *text, size_t n_bytes)
{
    static const char zeros[] = "0000000000000000";
    XXH3_state_t state;

    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, text, PREFIX_LENGTH);
    XXH3_64bits_update(&state, zeros, HASH_DIGITS);
    XXH3_64bits_update(&state, text + PREFIX_LENGTH + HASH_DIGITS,
                       n_bytes - PREFIX_LENGTH - HASH_DIGITS);
    return XXH3_64bits_digest(&state);
}

static void print_tensor(const struct manifest_tensor *tensor, struct str *out)
{
    const struct store_slice *whole = &tensor->whole;

    json_add_string(out, whole->name);
    str_printf(out, ":{\"dtype\":\"%s\",\"shape\":[%lld", dtype_name(whole->dtype),
               (long long)whole->rows);
    if (whole->n_dims == 2)
        str_printf(out, ",%lld", (long long)whole->cols);
    str_add(out, "],\"slices\":[");
    for (int i = 0; i < tensor->n_slices; i++) {
        const struct manifest_slice *slice = &tensor->slices[i];

        str_printf(out, "%s[%d,%lld,%lld,%lld,%lld,\"%016llx\"]", i ? "," : "", slice->file,
                   (long long)slice->row_begin, (long long)slice->row_end,
                   (long long)slice->col_begin, (long long)slice->col_end,
                   (unsigned long long)slice->hash);
    }
    str_add(out, "]}");
}

void manifest_print(const struct manifest *manifest, struct str *out)
{
    char digits[HASH_DIGITS + 1];

    str_clear(out);
    str_add(out, prefix);
    str_printf(out, "%016d\",\n%s" LMTRAIN_VERSION "\",\n\"step\":%lld,\n\"world_size\":%d,\n", 0,
               writer_key, (long long)manifest->step, manifest->world_size);
    str_printf(out, "\"state\":%s,\n\"files\":[", manifest->state);
    for (int i = 0; i < manifest->n_files; i++) {
        str_add(out, i ? ",\n{\"name\":" : "\n{\"name\":");
        json_add_string(out, manifest->files[i].name);
        str_printf(out, ",\"bytes\":%lld,\"xxh3\":\"%016llx\"}",
                   (long long)manifest->files[i].n_bytes,
                   (unsigned long long)manifest->files[i].hash);
    }
    str_add(out, "],\n\"tensors\":{");
    for (int i = 0; i < manifest->n_tensors; i++) {
        str_add(out, i ? ",\n" : "\n");
        print_tensor(&manifest->tensors[i], out);
    }
    str_add(out, "}}\n");
    snprintf(digits, sizeof digits, "%016llx",
             (unsigned long long)own_hash(out->data, out->length));
    memcpy(out->data + PREFIX_LENGTH, digits, HASH_DIGITS);
}

static uint64_t read_hash(struct json_reader *reader)
{
    const char *digits = json_string(reader);

    if (strlen(digits) != HASH_DIGITS || strspn(digits, "0123456789abcdef") != HASH_DIGITS) {
        json_fail(reader, "a hash must be 16 hex digits");
        return 0;
    }
    return strtoull(digits, NULL, 16);
}

static void read_files(struct json_reader *reader, struct manifest *manifest)
{
    int capacity = 0;

    json_open(reader, '[');
    while (json_next(reader, ']')) {
        struct manifest_file file = { .name = "", .n_bytes = -1 };

        json_open(reader, '{');
        while (json_next(reader, '}')) {
            const char *key = json_key(reader);

            if (!strcmp(key, "name"))
                file.name = json_string(reader);
            else if (!strcmp(key, "bytes"))
                file.n_bytes = json_count(reader, INT64_MAX);
            else if (!strcmp(key, "xxh3"))
                file.hash = read_hash(reader);
            else
                json_skip(reader);
        }
        if (manifest->n_files == MANIFEST_FILES_MAX)
            json_fail(reader, "too many files");
        if (!manifest_is_file_name(file.name) || file.n_bytes < 0)
            json_fail(reader, "a file has no size, or its name is not a plain one");
        if (reader->problem)
            return;
        manifest->files = arena_grow(reader->arena, manifest->files, sizeof file, &capacity,
                                     manifest->n_files + 1);
        manifest->files[manifest->n_files++] = file;
    }
}

static int dtype_from_name(const char *name)
{
    for (int dtype = 0; dtype < N_DTYPES; dtype++)
        if (!strcmp(dtype_name((enum dtype)dtype), name))
            return dtype;
    return -1;
}

static void read_slices(struct json_reader *reader, struct manifest_tensor *tensor)
{
    int capacity = 0;

    json_open(reader, '[');
    while (json_next(reader, ']')) {
        int64_t numbers[5] = { 0 };
        int n = 0;
        uint64_t hash = 0;

        json_open(reader, '[');
        while (json_next(reader, ']') && n < 6) {
            if (n < 5)
                numbers[n] = json_count(reader, n ? INT64_MAX : INT32_MAX);
            else
                hash = read_hash(reader);
            n++;
        }
        if (n != 6 || tensor->n_slices == MANIFEST_SLICES_MAX)
            json_fail(reader, "a slice must be five numbers and a hash, at most 65536 a tensor");
        if (reader->problem)
            return;
        tensor->slices = arena_grow(reader->arena, tensor->slices, sizeof *tensor->slices,
                                    &capacity, tensor->n_slices + 1);
        tensor->slices[tensor->n_slices++] =
            (struct manifest_slice){ (int)numbers[0], numbers[1], numbers[2],
                                     numbers[3],      numbers[4], hash };
    }
}

static void read_tensor(struct json_reader *reader, struct manifest_tensor *tensor)
{
    struct store_slice *whole = &tensor->whole;
    int dtype = -1;

    json_open(reader, '{');
    while (json_next(reader, '}')) {
        const char *key = json_key(reader);

        if (!strcmp(key, "dtype")) {
            dtype = dtype_from_name(json_string(reader));
        } else if (!strcmp(key, "shape")) {
            int64_t shape[2] = { 0, 1 };

            whole->n_dims = 0;
            json_open(reader, '[');
            while (json_next(reader, ']') && whole->n_dims < 2)
                shape[whole->n_dims++] = json_count(reader, INT64_MAX);
            whole->rows = shape[0];
            whole->cols = shape[1];
        } else if (!strcmp(key, "slices")) {
            if (tensor->slices)
                json_fail(reader, "slices are given twice");
            read_slices(reader, tensor);
        } else {
            json_skip(reader);
        }
    }
    if (dtype < 0 || whole->n_dims == 0)
        json_fail(reader, "dtype or shape is missing or unknown");
    whole->dtype = dtype < 0 ? DTYPE_F32 : (enum dtype)dtype;
    whole->row_end = whole->rows;
    whole->col_end = whole->cols;
}

static void read_tensors(struct json_reader *reader, struct manifest *manifest)
{
    int capacity = 0;

    json_open(reader, '{');
    while (json_next(reader, '}')) {
        struct manifest_tensor tensor = { .whole.name = json_key(reader) };

        read_tensor(reader, &tensor);
        if (reader->problem)
            return;
        manifest->tensors = arena_grow(reader->arena, manifest->tensors, sizeof tensor, &capacity,
                                       manifest->n_tensors + 1);
        manifest->tensors[manifest->n_tensors++] = tensor;
    }
}

enum {
    HAS_VERSION = 1,
    HAS_STEP = 2,
    HAS_WORLD = 4,
    HAS_STATE = 8,
    HAS_FILES = 16,
    HAS_TENSORS = 32,
    HAS_ALL = 63
};

static int key_bit(const char *key)
{
    static const char *const keys[] = {
        "lmtrain_checkpoint", "step", "world_size", "state", "files", "tensors"
    };

    for (int i = 0; i < 6; i++)
        if (!strcmp(key, keys[i]))
            return 1 << i;
    return 0;
}

static void read_member(struct json_reader *reader, struct manifest *manifest, int bit)
{
    if (bit == HAS_VERSION) {
        if (json_count(reader, INT32_MAX) != 1)
            json_fail(reader, "unsupported format version, only 1 is of this form");
    } else if (bit == HAS_STEP) {
        manifest->step = json_count(reader, INT64_MAX);
    } else if (bit == HAS_WORLD) {
        manifest->world_size = (int)json_count(reader, INT32_MAX);
    } else if (bit == HAS_STATE) {
        const char *start = json_skip(reader);

        if (!reader->problem && *start != '{')
            json_fail(reader, "state must be an object");
        if (!reader->problem)
            manifest->state = arena_strndup(reader->arena, start, (size_t)(reader->next - start));
    } else if (bit == HAS_FILES) {
        read_files(reader, manifest);
    } else if (bit == HAS_TENSORS) {
        read_tensors(reader, manifest);
    } else {
        json_skip(reader);
    }
}

static int compare_tensors(const void *a, const void *b)
{
    const struct manifest_tensor *left = a, *right = b;

    return strcmp(left->whole.name, right->whole.name);
}

static int compare_slices(const void *a, const void *b)
{
    const struct manifest_slice *left = a, *right = b;

    if (left->row_begin != right->row_begin)
        return left->row_begin < right->row_begin ? -1 : 1;
    return (left->col_begin > right->col_begin) - (left->col_begin < right->col_begin);
}

static int tensor_problem(const char *path, const struct manifest_tensor *tensor,
                          const char *problem, struct err *err)
{
    return err_set(err, ERR_DATA, "%s: tensor %.200s: %s", path, tensor->whole.name, problem);
}

static int check_tensor(const char *path, const struct manifest *manifest,
                        const struct manifest_tensor *tensor, struct err *err)
{
    const struct store_slice *whole = &tensor->whole;
    int64_t n_bytes = (int64_t)dtype_bytes(whole->dtype);
    size_t length = strlen(whole->name);

    if (length == 0 || length > MANIFEST_NAME_MAX || strchr(whole->name, '['))
        return tensor_problem(path, tensor, "not a name for a tensor", err);
    if (whole->rows < 1 || whole->cols < 1 ||
        __builtin_mul_overflow(n_bytes, whole->rows, &n_bytes) ||
        __builtin_mul_overflow(n_bytes, whole->cols, &n_bytes))
        return tensor_problem(path, tensor, "its shape is empty or too large", err);
    for (int i = 0; i < tensor->n_slices; i++) {
        const struct manifest_slice *slice = &tensor->slices[i];

        if (slice->file >= manifest->n_files)
            return tensor_problem(path, tensor, "a slice is in a file that is not listed", err);
        if (slice->row_begin >= slice->row_end || slice->row_end > whole->rows ||
            slice->col_begin >= slice->col_end || slice->col_end > whole->cols)
            return tensor_problem(path, tensor, "a slice is empty or lies outside the tensor", err);
    }
    return 0;
}

static int compare_file_names(const void *a, const void *b)
{
    const struct manifest_file *left = *(const struct manifest_file *const *)a;
    const struct manifest_file *right = *(const struct manifest_file *const *)b;

    return strcmp(left->name, right->name);
}

static int check_files(const char *path, const struct manifest *manifest, struct arena *arena,
                       struct err *err)
{
    const struct manifest_file **order =
        arena_array(arena, const struct manifest_file *, manifest->n_files);

    for (int i = 0; i < manifest->n_files; i++)
        order[i] = &manifest->files[i];
    if (manifest->n_files)
        qsort(order, (size_t)manifest->n_files, sizeof *order, compare_file_names);
    for (int i = 1; i < manifest->n_files; i++)
        if (!strcmp(order[i - 1]->name, order[i]->name))
            return err_set(err, ERR_DATA, "%s: file %s is listed twice", path, order[i]->name);
    return 0;
}

static int sort_and_check(const char *path, struct manifest *manifest, struct arena *arena,
                          struct err *err)
{
    if (manifest->n_tensors)
        qsort(manifest->tensors, (size_t)manifest->n_tensors, sizeof *manifest->tensors,
              compare_tensors);
    for (int i = 0; i < manifest->n_tensors; i++) {
        struct manifest_tensor *tensor = &manifest->tensors[i];

        if (i > 0 && !compare_tensors(tensor - 1, tensor))
            return tensor_problem(path, tensor, "it is given twice", err);
        if (check_tensor(path, manifest, tensor, err) < 0)
            return -1;
        if (tensor->n_slices)
            qsort(tensor->slices, (size_t)tensor->n_slices, sizeof *tensor->slices, compare_slices);
    }
    return check_files(path, manifest, arena, err);
}

int manifest_parse_body(struct manifest *manifest, const char *path, const char *text,
                        size_t n_bytes, struct arena *arena, struct err *err)
{
    struct manifest read = { .state = "{}" };
    struct json_reader reader;
    int seen = 0;

    json_reader_init(&reader, text, n_bytes, arena);
    json_open(&reader, '{');
    while (json_next(&reader, '}')) {
        int bit = key_bit(json_key(&reader));

        if (seen & bit)
            json_fail(&reader, "a key is given twice");
        seen |= bit;
        read_member(&reader, &read, bit);
    }
    if (seen != HAS_ALL)
        json_fail(&reader, "version, step, world_size, state, files or tensors are missing");
    if (json_end(&reader) < 0)
        return err_set(err, ERR_DATA, "%s: byte %zu: %s", path, reader.problem_at, reader.problem);
    if (sort_and_check(path, &read, arena, err) < 0)
        return -1;
    *manifest = read;
    return 0;
}

/* ---- formats ---- */

/* Format 1: the hash of the text is its second member. */
static int parse_1(struct manifest *manifest, const char *path, const char *text, size_t n_bytes,
                   struct arena *arena, struct err *err)
{
    char digits[HASH_DIGITS + 1];

    if (n_bytes < PREFIX_LENGTH + HASH_DIGITS || memcmp(text, prefix, PREFIX_LENGTH))
        return err_set(err, ERR_DATA, "%s is not a checkpoint's manifest", path);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)own_hash(text, n_bytes));
    if (memcmp(text + PREFIX_LENGTH, digits, HASH_DIGITS))
        return err_set(err, ERR_DATA,
                       "%s is damaged: it says hash %.16s, but its content has hash %s", path,
                       text + PREFIX_LENGTH, digits);
    return manifest_parse_body(manifest, path, text, n_bytes, arena, err);
}

/*
 * Every format that any lmtrain has written, for good: test/golden/checkpoints has a checkpoint of
 * each. What is written is of the last one.
 */
static const struct format {
    int version;
    int (*parse)(struct manifest *manifest, const char *path, const char *text, size_t n_bytes,
                 struct arena *arena, struct err *err);
} formats[] = {
    { 1, parse_1 },
};

#define N_FORMATS (sizeof formats / sizeof *formats)

/* The version of the lmtrain that wrote it, as far as it can be shown; "" where it is not said. */
static void find_writer(const char *text, size_t n_bytes, char writer[WRITER_BYTES])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-";
    char head[WRITER_WITHIN + 1] = "";

    memcpy(head, text, n_bytes < WRITER_WITHIN ? n_bytes : WRITER_WITHIN);
    const char *at = strstr(head, writer_key);
    size_t n = at ? strspn(at + strlen(writer_key), plain) : 0;
    n = n < WRITER_BYTES - 1 ? n : WRITER_BYTES - 1;
    if (n)
        memcpy(writer, at + strlen(writer_key), n);
    writer[n] = '\0';
}

static int refuse_format(const char *path, int version, const char *text, size_t n_bytes,
                         struct err *err)
{
    char writer[WRITER_BYTES];

    if (version < STORE_VERSION)
        return err_set(err, ERR_DATA,
                       "%s is of checkpoint format %d, which no lmtrain has written: formats 1 to "
                       "%d exist",
                       path, version, STORE_VERSION);
    find_writer(text, n_bytes, writer);
    return err_set(
        err, ERR_DATA,
        "%s is of checkpoint format %d, written by %slmtrain%s%s: this lmtrain, " LMTRAIN_VERSION
        ", reads formats 1 to %d (hint: use lmtrain %s%s)",
        path, version, *writer ? "" : "a newer ", *writer ? " " : "", writer, STORE_VERSION,
        *writer ? writer : "of the version that wrote it", *writer ? " or newer" : "");
}

int manifest_version(const char *text, size_t n_bytes)
{
    size_t length = sizeof any_version - 1;
    char digits[10] = "";

    if (n_bytes < length + sizeof digits || memcmp(text, any_version, length))
        return -1;
    memcpy(digits, text + length, sizeof digits - 1);
    size_t n_digits = strspn(digits, "0123456789");
    if (n_digits == 0 || n_digits == sizeof digits - 1)
        return -1;
    return (int)strtol(digits, NULL, 10);
}

int manifest_parse(struct manifest *manifest, const char *path, const char *text, size_t n_bytes,
                   struct arena *arena, struct err *err)
{
    int version = manifest_version(text, n_bytes);

    if (version < 0)
        return err_set(err, ERR_DATA, "%s is not a checkpoint's manifest", path);
    for (size_t i = 0; i < N_FORMATS; i++)
        if (formats[i].version == version)
            return formats[i].parse(manifest, path, text, n_bytes, arena, err);
    return refuse_format(path, version, text, n_bytes, err);
}
