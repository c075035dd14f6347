/*
 * rows.c - finding files, and what each is
 */
#include "data/rows/rows.h"

#include <dirent.h>
#include <glob.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hub.h"
#include "data/rows/decompress.h"
#include "data/rows/row_reader_impl.h"

#define FOLDERS_MAX 100000 /* links may make them go round */
#define PATH_BYTES_MAX 4096

const char *const rows_format_names[] = { "auto", "json", "jsonl", "csv", "parquet", "text", NULL };

/* ---- files ---- */

enum rows_format rows_format_of(const char *path)
{
    static const struct {
        const char *ending;
        enum rows_format format;
    } endings[] = {
        { ".json", ROWS_JSON },       { ".jsonl", ROWS_JSONL }, { ".ndjson", ROWS_JSONL },
        { ".csv", ROWS_CSV },         { ".tsv", ROWS_CSV },     { ".txt", ROWS_TEXT },
        { ".parquet", ROWS_PARQUET }, { ".text", ROWS_TEXT },
    };

    size_t length = decompress_name_length(path);

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(endings[i].ending);

        if (length >= n && !memcmp(path + length - n, endings[i].ending, n))
            return endings[i].format;
    }
    return ROWS_AUTO;
}

static int add_path(struct row_files *files, const char *path, struct err *err)
{
    if (files->n == files->capacity) {
        int capacity = files->capacity ? 2 * files->capacity : 16;
        char **paths = realloc(files->paths, (size_t)capacity * sizeof *paths);

        if (!paths)
            return err_set(err, ERR_DEVICE, "out of host memory");
        files->paths = paths;
        files->capacity = capacity;
    }
    if (!(files->paths[files->n] = strdup(path)))
        return err_set(err, ERR_DEVICE, "out of host memory");
    files->n++;
    return 0;
}

/* What is in a folder: files of known names to files, folders to folders. */
static int list_folder(struct row_files *files, struct row_files *folders, const char *path,
                       struct err *err)
{
    DIR *dir = opendir(path);
    struct str name = { 0 };
    struct dirent *entry;
    int rc = 0;

    if (!dir)
        return err_set_errno(err, ERR_DATA, "%s", path);
    while (rc == 0 && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || strlen(path) + strlen(entry->d_name) > PATH_BYTES_MAX)
            continue;
        str_clear(&name);
        str_printf(&name, "%s%s%s", path, str_ends_with(path, "/") ? "" : "/", entry->d_name);
        if (file_is_folder(str_text(&name)))
            rc = add_path(folders, str_text(&name), err);
        else if (rows_format_of(entry->d_name) == ROWS_AUTO)
            files->n_ignored++;
        else
            rc = add_path(files, str_text(&name), err);
    }
    str_release(&name);
    closedir(dir);
    return rc;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_folder(struct row_files *files, const char *path, struct err *err)
{
    struct row_files folders = { 0 };
    int before = files->n, rc = add_path(&folders, path, err);

    for (int i = 0; i < folders.n && rc == 0; i++) {
        if (i == FOLDERS_MAX)
            rc = err_set(err, ERR_DATA, "%s has more than %d subfolders", path, FOLDERS_MAX);
        else
            rc = list_folder(files, &folders, folders.paths[i], err);
    }
    row_files_release(&folders);
    if (rc == 0 && files->n == before)
        return err_set(err, ERR_DATA,
                       "%s has no file of rows (hint: .json, .jsonl, .csv, .tsv, .parquet, .txt, "
                       "also with .gz, .xz or .zst)",
                       path);
    if (rc == 0)
        qsort(files->paths + before, (size_t)(files->n - before), sizeof *files->paths, by_path);
    return rc;
}

static int add_one(struct row_files *files, const char *path, struct err *err)
{
    return file_is_folder(path) ? add_folder(files, path, err) : add_path(files, path, err);
}

static int add_glob(struct row_files *files, const char *pattern, struct err *err)
{
    glob_t found;
    int rc = glob(pattern, 0, NULL, &found);

    if (rc == GLOB_NOMATCH)
        return err_set(err, ERR_DATA, "%s: no file matches", pattern);
    if (rc != 0)
        return err_set(err, ERR_DATA, "%s cannot be searched", pattern);
    for (size_t i = 0; i < found.gl_pathc && rc == 0; i++)
        rc = add_one(files, found.gl_pathv[i], err);
    globfree(&found);
    return rc;
}

int row_files_find(struct row_files *files, const char *const *inputs, int n_inputs,
                   struct err *err)
{
    struct row_files found = { 0 };
    char hint[HUB_HINT_MAX];

    for (int i = 0; i < n_inputs; i++) {
        bool is_glob = strpbrk(inputs[i], "*?[") && !file_exists(inputs[i]);

        if (!is_glob && strcmp(inputs[i], "-") && !file_exists(inputs[i])) {
            err_set(err, ERR_DATA, "%s: there is no such file or folder%s", inputs[i],
                    hub_hint(hint, sizeof hint, inputs[i], HUB_DATASET));
            row_files_release(&found);
            return -1;
        }
        if ((is_glob ? add_glob : add_one)(&found, inputs[i], err) < 0) {
            row_files_release(&found);
            return -1;
        }
    }
    *files = found;
    return 0;
}

void row_files_release(struct row_files *files)
{
    for (int i = 0; i < files->n; i++)
        free(files->paths[i]);
    free(files->paths);
    free(files->ranges);
    *files = (struct row_files){ 0 };
}

/* ---- rows ---- */

int64_t rows_size(const struct rows *rows)
{
    return rows->n_rows >= 0 ? rows->n_rows : (int64_t)rows->map.n_bytes;
}

int64_t rows_place(const struct rows *rows)
{
    if (rows->n_rows >= 0)
        return rows->line - 1;
    return (int64_t)rows->map.n_bytes - (rows->end - rows->at);
}

int64_t rows_skip(struct rows *rows, int64_t place)
{
    return rows->skip ? rows->skip(rows, place) : 0;
}

int rows_count(int64_t *n, const char *path, enum rows_format format, struct err *err)
{
    struct rows *rows;
    struct row row;
    int rc;

    if (rows_open(&rows, path, format, NULL, err) < 0)
        return -1;
    *n = rows->n_rows >= 0 ? rows->n_rows : 0;
    rc = rows->n_rows >= 0 ? 0 : rows_next(rows, &row, err);
    for (; rc > 0; rc = rows_next(rows, &row, err))
        ++*n;
    rows_close(rows);
    return rc;
}

void rows_advance(struct rows *rows, const char *to)
{
    while (rows->at < to) {
        const char *newline = memchr(rows->at, '\n', (size_t)(to - rows->at));

        if (!newline)
            break;
        rows->line++;
        rows->at = newline + 1;
    }
    rows->at = to;
}

int rows_bad(struct rows *rows, struct row *row, int64_t number, const char *format, ...)
{
    char what[512];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    str_clear(&rows->bad);
    str_add(&rows->bad, what);
    *row = (struct row){ ROW_BAD, str_text(&rows->bad), rows->bad.length, number };
    return 1;
}

static int next_text(struct rows *r, struct row *row, struct err *err)
{
    (void)err;
    if (r->at == r->end)
        return 0;
    *row = (struct row){ ROW_TEXT, r->at, (size_t)(r->end - r->at), 0 };
    r->at = r->end;
    return 1;
}

static int open_format(struct rows *rows, enum rows_format format, struct err *err)
{
    switch (format) {
    case ROWS_JSON:
        return rows_open_json(rows, err);
    case ROWS_JSONL:
        return rows_open_lines(rows, err);
    case ROWS_CSV:
        return rows_open_csv(rows, err);
    case ROWS_PARQUET:
        return rows_open_parquet(rows, err);
    default:
        rows->next = next_text;
        return 0;
    }
}

static void skip_mark(struct rows *rows)
{
    static const char mark[] = "\xef\xbb\xbf"; /* byte order mark */

    if (rows->end - rows->at >= 3 && !memcmp(rows->at, mark, 3))
        rows->at += 3;
}

static int open_rows(struct rows **out, const char *path, enum rows_format format,
                     const char *column, const char *const *names, struct err *err)
{
    struct rows *rows = calloc(1, sizeof *rows);

    if (!rows)
        return err_set(err, ERR_DEVICE, "out of host memory");
    *rows =
        (struct rows){ .path = path, .column = column, .names = names, .line = 1, .n_rows = -1 };
    if (decompress_map(&rows->map, path, err) < 0) {
        err->code = ERR_DATA;
        free(rows);
        return -1;
    }
    rows->at = rows->map.data ? (const char *)rows->map.data : "";
    rows->end = rows->at + rows->map.n_bytes;
    if (format == ROWS_AUTO)
        format = rows_format_of(path);
    if (format != ROWS_PARQUET)
        skip_mark(rows);
    if (open_format(rows, format, err) < 0) {
        rows_close(rows);
        return -1;
    }
    *out = rows;
    return 0;
}

int rows_open(struct rows **out, const char *path, enum rows_format format, const char *column,
              struct err *err)
{
    return open_rows(out, path, format, column, NULL, err);
}

int rows_open_named(struct rows **out, const char *path, const char *const *names, struct err *err)
{
    return open_rows(out, path, ROWS_CSV, NULL, names, err);
}

void rows_close(struct rows *rows)
{
    if (!rows)
        return;
    if (rows->close)
        rows->close(rows);
    file_map_close(&rows->map);
    str_release(&rows->text);
    str_release(&rows->bad);
    free(rows);
}

int rows_next(struct rows *rows, struct row *row, struct err *err)
{
    return rows->next(rows, row, err);
}
