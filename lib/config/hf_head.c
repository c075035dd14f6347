/*
 * hf_head.c - the header of a safetensors file, as far as one tensor needs it
 *
 * The reader proper is ckpt/safetensors.h, two floors up, which checks all of a file. Here, what is
 * not well formed is no head.
 */
#include "config/hf_head.h"

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"

#define HEAD "lm_head.weight"
#define INDEX "model.safetensors.index.json"
#define INDEX_MAX_BYTES ((size_t)64 << 20)
#define LENGTH_BYTES 8 /* of a header, in front of it */

/* A file of weights: its header, and the bytes behind it. */
struct weights_file {
    struct file_map map;
    cJSON *header;
    const unsigned char *data;
    size_t n_bytes;
};

/* A tensor's bytes; description is what the header has under its name. */
struct stored_tensor {
    const cJSON *description;
    const unsigned char *data;
    size_t n_bytes;
};

static void close_file(struct weights_file *f)
{
    cJSON_Delete(f->header);
    file_map_close(&f->map);
    *f = (struct weights_file){ 0 };
}

static int open_file(struct weights_file *f, const char *path)
{
    struct err ignored;
    uint64_t length = 0;

    *f = (struct weights_file){ 0 };
    if (file_map_open(&f->map, path, &ignored) < 0)
        return -1;
    for (int i = 0; i < LENGTH_BYTES && f->map.n_bytes >= LENGTH_BYTES; i++)
        length |= (uint64_t)f->map.data[i] << (8 * i);
    if (length > 0 && length <= f->map.n_bytes - LENGTH_BYTES) {
        f->header = cJSON_ParseWithLength((const char *)f->map.data + LENGTH_BYTES, (size_t)length);
        f->data = f->map.data + LENGTH_BYTES + length;
        f->n_bytes = f->map.n_bytes - LENGTH_BYTES - (size_t)length;
    }
    if (cJSON_IsObject(f->header))
        return 0;
    close_file(f);
    return -1;
}

static int find_tensor(const struct weights_file *f, const cJSON *description,
                       struct stored_tensor *out)
{
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(description, "data_offsets");
    const cJSON *begin = cJSON_GetArrayItem(offsets, 0), *end = cJSON_GetArrayItem(offsets, 1);

    if (!cJSON_IsNumber(begin) || !cJSON_IsNumber(end) || begin->valuedouble < 0 ||
        end->valuedouble < begin->valuedouble || end->valuedouble > (double)f->n_bytes)
        return -1;
    *out = (struct stored_tensor){ description, f->data + (size_t)begin->valuedouble,
                                   (size_t)(end->valuedouble - begin->valuedouble) };
    return 0;
}

static int are_equal(const struct stored_tensor *a, const struct stored_tensor *b)
{
    static const char *const keys[] = { "dtype", "shape" };

    for (int i = 0; i < 2; i++)
        if (!cJSON_Compare(cJSON_GetObjectItemCaseSensitive(a->description, keys[i]),
                           cJSON_GetObjectItemCaseSensitive(b->description, keys[i]), 1))
            return 0;
    return a->n_bytes == b->n_bytes && !memcmp(a->data, b->data, a->n_bytes);
}

/* Whether a file has another tensor that is equal to the head. */
static int has_copy(const struct weights_file *f, const struct stored_tensor *head)
{
    for (const cJSON *item = f->header->child; item; item = item->next) {
        struct stored_tensor other;

        if (strcmp(item->string, HEAD) != 0 && find_tensor(f, item, &other) == 0 &&
            are_equal(head, &other))
            return 1;
    }
    return 0;
}

/* The index's map of tensors to files; the caller's to delete. NULL: there is none. */
static cJSON *read_map(const char *folder, struct arena *arena)
{
    char *text;
    size_t n_bytes;
    struct err ignored;

    if (file_read(arena_printf(arena, "%s/" INDEX, folder), INDEX_MAX_BYTES, ERR_DATA, &text,
                  &n_bytes, &ignored) < 0)
        return NULL;
    cJSON *json = cJSON_ParseWithLength(text, n_bytes);
    cJSON *map = cJSON_DetachItemFromObjectCaseSensitive(json, "weight_map");
    free(text);
    cJSON_Delete(json);
    return map;
}

static const char *path_of(const char *folder, const cJSON *file, struct arena *arena)
{
    const char *name = cJSON_IsString(file) ? file->valuestring : "";

    return *name && !strchr(name, '/') ? arena_printf(arena, "%s/%s", folder, name) : NULL;
}

/* Each file once, in the order of the map's first mention of it. */
static int is_first_mention(const cJSON *map, const cJSON *file)
{
    for (const cJSON *other = map->child; other != file; other = other->next)
        if (cJSON_Compare(other, file, 1))
            return 0;
    return 1;
}

static int any_has_copy(const char *folder, const cJSON *map, const struct stored_tensor *head,
                        struct arena *arena)
{
    int found = 0;

    for (const cJSON *file = map->child; file && !found; file = file->next) {
        const char *path = path_of(folder, file, arena);
        struct weights_file f;

        if (!path || !is_first_mention(map, file) || open_file(&f, path) < 0)
            continue;
        found = has_copy(&f, head);
        close_file(&f);
    }
    return found;
}

int hf_head_is_own(const char *folder, struct arena *arena)
{
    const char *path = arena_printf(arena, "%s/model.safetensors", folder);
    struct weights_file f;
    struct stored_tensor head;
    int is_own = 0;

    cJSON *map = file_exists(path) ? NULL : read_map(folder, arena);
    if (map)
        path = path_of(folder, cJSON_GetObjectItemCaseSensitive(map, HEAD), arena);
    if (path && open_file(&f, path) == 0) {
        if (find_tensor(&f, cJSON_GetObjectItemCaseSensitive(f.header, HEAD), &head) == 0)
            is_own = !has_copy(&f, &head) && (!map || !any_has_copy(folder, map, &head, arena));
        close_file(&f);
    }
    cJSON_Delete(map);
    return is_own;
}
