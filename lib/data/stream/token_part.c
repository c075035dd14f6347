/*
 * token_part.c - what a part is of, and its share
 */
#include "data/stream/token_part.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/num.h"
#include "base/str.h"
#include "data/rows/json_value.h"
#include "data/stream/token_meta_impl.h"

#define BYTES_MAX 9e15 /* numbers that JSON readers keep exactly */

const char *token_part_prefix(struct arena *arena, const char *prefix, int part, int n_parts)
{
    int width = snprintf(NULL, 0, "%d", n_parts);

    return arena_printf(arena, "%s.part-%0*d-of-%d", prefix, width, part, n_parts);
}

int token_part_take_inputs(struct token_part *part, const struct row_files *files, struct err *err)
{
    XXH64_hash_t hash = 0;

    part->n_files = files->n;
    part->n_file_bytes = 0;
    for (int i = 0; i < files->n; i++) {
        const char *path = files->paths[i];
        struct stat st;

        if (!strcmp(path, "-") || (stat(path, &st) == 0 && !S_ISREG(st.st_mode)))
            return err_set(err, ERR_DATA,
                           "%s cannot be divided into parts: it is not a file (hint: without "
                           "--part, or write it to a file first)",
                           strcmp(path, "-") ? path : "standard input");
        if (stat(path, &st) < 0)
            return err_set_errno(err, ERR_DATA, "%s", path);
        int64_t words[] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                            files->ranges ? files->ranges[i].begin : -1,
                            files->ranges ? files->ranges[i].end : -1 };
        hash = XXH64(path, strlen(path) + 1, hash);
        hash = XXH64(words, sizeof words, hash);
        part->n_file_bytes += st.st_size;
    }
    snprintf(part->inputs, sizeof part->inputs, "%016llx", (unsigned long long)hash);
    return 0;
}

/* ---- how inputs are divided ---- */

struct token_share token_share_of(const struct token_part *part)
{
    __int128 all = part->n_file_bytes + part->n_files;

    return (struct token_share){ (int64_t)(all * (part->part - 1) / part->n_parts),
                                 (int64_t)(all * part->part / part->n_parts), 0 };
}

bool token_share_of_file(struct token_share *share, int64_t size, int64_t *begin, int64_t *end)
{
    *begin = max_i64(share->begin - share->at, 0);
    *end = min_i64(share->end - share->at, size + 1);
    share->at += size + 1;
    return *begin < *end;
}

/* ---- on disk ---- */

int token_part_write(const char *prefix, const struct token_part *part, struct err *err)
{
    struct str text = { 0 }, path = { 0 };

    token_meta_print(&text, &part->meta);
    str_printf(&text, ",\n  \"part\": %d,\n  \"parts\": %d,\n  \"column\": ", part->part,
               part->n_parts);
    json_value_print_text(part->column, strlen(part->column), &text);
    str_printf(&text,
               ",\n  \"input_format\": \"%s\",\n  \"inputs\": \"%s\",\n  \"files\": %lld,\n"
               "  \"file_bytes\": %lld,\n  \"files_read\": %lld,\n  \"empty\": %lld,\n"
               "  \"text_bytes\": %lld\n}\n",
               part->format, part->inputs, (long long)part->n_files, (long long)part->n_file_bytes,
               (long long)part->n_inputs, (long long)part->n_empty, (long long)part->n_bytes);
    str_printf(&path, "%s.json", prefix);
    int rc = file_write(str_text(&path), str_text(&text), text.length, err);
    str_release(&text);
    str_release(&path);
    return rc;
}

static bool take_text(const cJSON *root, const char *key, char *out, size_t size)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);

    if (!cJSON_IsString(item) || strlen(item->valuestring) >= size)
        return false;
    snprintf(out, size, "%s", item->valuestring);
    return true;
}

static int parse(struct token_part *p, const cJSON *root, const char *path, struct err *err)
{
    struct token_part part = { .part = (int)token_meta_count(root, "part", TOKEN_PARTS_MAX),
                               .n_parts = (int)token_meta_count(root, "parts", TOKEN_PARTS_MAX),
                               .n_files = token_meta_count(root, "files", INT32_MAX),
                               .n_file_bytes = token_meta_count(root, "file_bytes", BYTES_MAX),
                               .n_inputs = token_meta_count(root, "files_read", INT32_MAX),
                               .n_empty = token_meta_count(root, "empty", BYTES_MAX),
                               .n_bytes = token_meta_count(root, "text_bytes", BYTES_MAX) };

    if (token_meta_parse(&part.meta, root, path, err) < 0)
        return -1;
    if (part.part < 1 || part.part > part.n_parts || part.n_files < 0 || part.n_file_bytes < 0 ||
        part.n_inputs < 0 || part.n_empty < 0 || part.n_bytes < 0 ||
        !take_text(root, "column", part.column, sizeof part.column) ||
        !take_text(root, "input_format", part.format, sizeof part.format) ||
        !take_text(root, "inputs", part.inputs, sizeof part.inputs))
        return err_set(err, ERR_DATA,
                       "%s is damaged: it does not say what it is a part of (hint: remove it and "
                       "tokenize this part again)",
                       path);
    *p = part;
    return 1;
}

int token_part_read(const char *prefix, struct token_part *part, struct err *err)
{
    struct str path = { 0 };
    int rc = 0;

    str_printf(&path, "%s.json", prefix);
    cJSON *root = token_meta_load(str_text(&path));
    if (cJSON_HasObjectItem(root, "parts"))
        rc = parse(part, root, str_text(&path), err);
    cJSON_Delete(root);
    str_release(&path);
    return rc;
}

static int64_t size_beside(const char *prefix, const char *suffix)
{
    struct str path = { 0 };

    str_printf(&path, "%s%s", prefix, suffix);
    int64_t size = file_size(str_text(&path));
    str_release(&path);
    return size;
}

bool token_part_is_done(const char *prefix, const struct token_part *wanted,
                        struct token_part *found)
{
    struct arena arena = { 0 };
    struct err ignored;
    int is_same = token_part_read(prefix, found, &ignored) > 0 && found->part == wanted->part &&
                  !token_part_difference(found, wanted, &arena);

    arena_release(&arena);
    if (!is_same)
        return false;
    /* As indexed.c has it: a header, a length and an offset a document, their numbers. */
    int64_t idx_bytes = 34 + found->meta.n_documents * 20 + 8, bin = size_beside(prefix, ".bin");
    return size_beside(prefix, ".idx") == idx_bytes &&
           (bin == found->meta.n_tokens * 2 || bin == found->meta.n_tokens * 4);
}

const char *token_part_difference(const struct token_part *a, const struct token_part *b,
                                  struct arena *arena)
{
    if (a->n_parts != b->n_parts)
        return arena_printf(arena, "%d parts, not %d", a->n_parts, b->n_parts);
    if (strcmp(a->meta.tokenizer, b->meta.tokenizer) != 0)
        return arena_printf(arena, "tokenizer %s, not %s", a->meta.tokenizer, b->meta.tokenizer);
    if (a->meta.end_of_text != b->meta.end_of_text)
        return arena_printf(arena, "end-of-text token %d, not %d (-1: --no-eod)",
                            a->meta.end_of_text, b->meta.end_of_text);
    if (strcmp(a->column, b->column) != 0)
        return arena_printf(arena, "--column %s, not %s", a->column, b->column);
    if (strcmp(a->format, b->format) != 0)
        return arena_printf(arena, "--format %s, not %s", a->format, b->format);
    if (a->n_files != b->n_files || a->n_file_bytes != b->n_file_bytes)
        return arena_printf(arena, "inputs of %lld bytes in %lld files, not %lld in %lld",
                            (long long)a->n_file_bytes, (long long)a->n_files,
                            (long long)b->n_file_bytes, (long long)b->n_files);
    if (strcmp(a->inputs, b->inputs) != 0)
        return arena_printf(arena,
                            "other inputs of the same size (paths, sizes or times: %s, not %s)",
                            a->inputs, b->inputs);
    return NULL;
}
