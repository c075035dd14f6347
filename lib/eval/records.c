/*
 * records.c - finding the files of a set and making records of their rows
 */
#include "eval/records.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "data/rows/json_value.h"
#include "data/rows/rows.h"

#define UNZIPPED_MAX ((size_t)1 << 30)

struct records_reader {
    struct records *records;
    const struct task_form *form;
    const char *variables, *path;
    struct arena *arena;
    int64_t limit, capacity;
    char *labels, *label; /* heap: the file of labels; where the next begins */
};

/* ---- finding ---- */

static const char *fill_in(struct arena *arena, const char *pattern, const char *part)
{
    struct str out = { 0 };

    for (const char *p = pattern; *p;) {
        if (str_starts_with(p, "{part}")) {
            str_add(&out, part);
            p += strlen("{part}");
        } else {
            str_add_char(&out, *p++);
        }
    }
    const char *text = arena_strdup(arena, str_text(&out));
    str_release(&out);
    return text;
}

/* Files of a pattern, in order; how many. */
static int find(const char *pattern, struct arena *arena, const char ***paths)
{
    glob_t found;
    int n = 0;

    if (glob(pattern, 0, NULL, &found) != 0)
        return 0;
    *paths = arena_array(arena, const char *, found.gl_pathc);
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (!file_is_folder(found.gl_pathv[i]))
            (*paths)[n++] = arena_strdup(arena, found.gl_pathv[i]);
    globfree(&found);
    return n;
}

static int begins(const char *path, const char *first_line)
{
    size_t n = strlen(first_line);
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, n + 1);
    int same = 0;

    if (file && text) {
        int c = getc(file);

        if (c == 0xef) { /* a byte order mark */
            getc(file);
            getc(file);
        } else {
            ungetc(c, file);
        }
        same = fread(text, 1, n, file) == n && !memcmp(text, first_line, n);
    }
    free(text);
    if (file)
        fclose(file);
    return same;
}

/* Names that were looked for, each once. */
static void note_looked(struct str *looked, const char *name)
{
    size_t n = strlen(name);

    for (const char *p = str_text(looked); (p = strstr(p, name)); p += n)
        if ((p == looked->data || p[-1] == ' ') && (p[n] == ',' || !p[n]))
            return;
    str_printf(looked, "%s%s", looked->length ? ", " : "", name);
}

/* In DATA/TASK, then in DATA. */
static int find_files(const struct task_texts *files, const char *first_line, const char *data,
                      const char *task, const char *part, struct arena *arena, const char ***paths,
                      struct str *looked)
{
    for (int i = 0; i < files->n; i++) {
        const char *name = fill_in(arena, files->items[i], part);
        const char *places[] = { arena_printf(arena, "%s/%s/%s", data, task, name),
                                 arena_printf(arena, "%s/%s", data, name) };

        for (int k = 0; k < 2; k++) {
            int n = find(places[k], arena, paths);

            if (n > 0 && (!first_line || begins((*paths)[0], first_line)))
                return n;
        }
        note_looked(looked, name);
    }
    return 0;
}

/* ---- reading ---- */

static void add(struct records_reader *r, const char *record)
{
    struct records *out = r->records;

    if (out->n == r->capacity) {
        int64_t capacity = r->capacity ? 2 * r->capacity : 256;
        const char **items = arena_array(r->arena, const char *, capacity);

        if (out->n)
            memcpy(items, out->items, sizeof *items * (size_t)out->n);
        out->items = items;
        r->capacity = capacity;
    }
    out->items[out->n++] = record;
}

static bool is_full(const struct records_reader *r)
{
    return r->limit > 0 && r->records->n >= r->limit;
}

/* What a row becomes, by the form's template. */
static int add_row(struct records_reader *r, const char *row, int64_t number, struct err *err)
{
    const char *objects[] = { row, r->variables };
    struct str text = { 0 };
    struct arena scratch = { 0 };
    struct json_value *value;
    int status = 0;

    if (is_full(r))
        return 0;
    if (!r->form->record)
        str_add(&text, row);
    else
        status = text_template_render(r->form->record, objects, 2, &text, err);
    if (!status && strspn(str_text(&text), " \n\t") < text.length) {
        status = json_value_parse(&value, str_text(&text), text.length, &scratch, err);
        if (!status && value->kind != JSON_OBJECT)
            status = err_set(err, ERR_DATA, "the record is %s, not an object",
                             json_value_kind_name(value));
        if (!status)
            add(r, arena_strndup(r->arena, text.data, text.length));
    }
    if (status < 0)
        err_add(err, "%s:%lld", r->path, (long long)number);
    str_release(&text);
    arena_release(&scratch);
    return status;
}

static int add_list(struct records_reader *r, const struct row *row, struct err *err)
{
    struct arena arena = { 0 };
    struct json_value *object;
    struct str text = { 0 };
    int64_t number = 0;

    int status = json_value_parse(&object, row->text, row->n_bytes, &arena, err);
    if (status < 0)
        err_add(err, "%s:%lld", r->path, (long long)row->number);
    const struct json_value *list = status < 0 ? NULL : json_value_get(object, r->form->list);
    if (!status && (!list || list->kind != JSON_ARRAY))
        status = err_set(err, ERR_DATA, "%s:%lld: '%s' is %s, not a list", r->path,
                         (long long)row->number, r->form->list, json_value_kind_name(list));
    for (const struct json_value *v = status ? NULL : list->first; v && !status; v = v->next) {
        str_clear(&text);
        json_value_print(v, &text);
        status = add_row(r, str_text(&text), ++number, err);
    }
    str_release(&text);
    arena_release(&arena);
    return status;
}

/* The next line of the labels, as a field of a row. */
static int add_label(struct records_reader *r, char **row, int64_t number, struct err *err)
{
    size_t n = strcspn(r->label, "\r\n"), length = strlen(*row);

    if (n == 0 || strspn(r->label, "0123456789") != n)
        return err_set(err, ERR_DATA, "%s:%lld: there is no label for it in %s", r->path,
                       (long long)number, r->form->labels);
    while (length > 0 && (*row)[length - 1] != '}')
        length--;
    if (length < 3)
        return err_set(err, ERR_DATA, "%s:%lld: is not a record", r->path, (long long)number);
    *row = arena_printf(r->arena, "%.*s,\"label\":%.*s}", (int)length - 1, *row, (int)n, r->label);
    r->label += n;
    r->label += strspn(r->label, "\r");
    r->label += *r->label == '\n';
    return 0;
}

static int refuse_nul(const char *path, const char *text, size_t n_bytes, struct err *err)
{
    return strlen(text) == n_bytes ? 0 : err_set(err, ERR_DATA, "%s holds a NUL byte", path);
}

/* The file of labels beside one of rows; 1, 0 (there is none) or -1. */
static int open_labels(struct records_reader *r, const char *path, struct str *looked,
                       struct err *err)
{
    const char *slash = strrchr(path, '/');
    size_t n;

    if (!r->form->labels)
        return 1;
    const char *labels = arena_printf(r->arena, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path,
                                      r->form->labels);
    if (!file_exists(labels)) {
        note_looked(looked, r->form->labels);
        return 0;
    }
    if (file_read(labels, (size_t)64 << 20, ERR_DATA, &r->labels, &n, err) < 0 ||
        refuse_nul(labels, r->labels, n, err) < 0)
        return -1;
    r->label = r->labels;
    return 1;
}

static int check_labels(const struct records_reader *r, struct err *err)
{
    if (!r->labels || is_full(r) || !r->label[strspn(r->label, "\r\n ")])
        return 0;
    return err_set(err, ERR_DATA, "%s has fewer rows than %s has labels", r->path, r->form->labels);
}

static int add_rows(struct records_reader *r, struct rows *rows, struct err *err)
{
    struct row row;
    int more = 1;

    while (!is_full(r) && (more = rows_next(rows, &row, err)) > 0) {
        int status;

        if (row.kind == ROW_BAD)
            status =
                err_set(err, ERR_DATA, "%s:%lld: %s", r->path, (long long)row.number, row.text);
        else if (row.kind != ROW_JSON)
            status = err_set(err, ERR_DATA, "%s is not a file of records", r->path);
        else if (r->form->list)
            status = add_list(r, &row, err);
        else {
            char *text = arena_strndup(r->arena, row.text, row.n_bytes);

            status = r->labels ? add_label(r, &text, row.number, err) : 0;
            if (!status)
                status = add_row(r, text, row.number, err);
        }
        if (status < 0)
            return -1;
    }
    return more < 0 ? -1 : 0;
}

/* A .gz as a file without a name; its descriptor, or -1. */
static int unzip(const char *path, struct err *err)
{
    char buffer[1 << 16];
    size_t total = 0;
    int n = -1, fd = memfd_create("unzipped", MFD_CLOEXEC);
    gzFile zip = fd < 0 ? NULL : gzopen(path, "rb");

    while (zip && (n = gzread(zip, buffer, sizeof buffer)) > 0) {
        total += (size_t)n;
        if (total > UNZIPPED_MAX || file_write_all(fd, buffer, (size_t)n))
            break;
    }
    int whole = zip && n == 0;
    if (zip && gzclose(zip) == Z_OK && whole)
        return fd;
    if (fd >= 0)
        close(fd);
    return err_set(err, ERR_DATA, "%s cannot be decompressed", path);
}

static int read_file(struct records_reader *r, const char *path, struct err *err)
{
    struct rows *rows;
    char unzipped[64];
    enum rows_format format = rows_format_of(path);
    const char *from = path;
    int fd = -1, status;

    r->path = path;
    if (str_ends_with(path, ".gz")) {
        fd = unzip(path, err);
        if (fd < 0)
            return -1;
        snprintf(unzipped, sizeof unzipped, "/proc/self/fd/%d", fd);
        format = ROWS_JSONL;
        from = unzipped;
    }
    if (r->form->columns.n > 0) {
        const char **names = arena_array(r->arena, const char *, r->form->columns.n + 1);

        memcpy(names, r->form->columns.items, sizeof *names * (size_t)r->form->columns.n);
        status = rows_open_named(&rows, from, names, err);
    } else {
        status = rows_open(&rows, from, format, NULL, err);
    }
    if (!status) {
        status = add_rows(r, rows, err);
        rows_close(rows);
    }
    if (fd >= 0)
        close(fd);
    return status;
}

int records_read(struct records *records, const struct task_forms *forms, const char *data,
                 const char *task, const char *part, const char *variables, int64_t limit,
                 struct arena *arena, struct str *looked, struct err *err)
{
    *records = (struct records){ 0 };
    for (int i = 0; i < forms->n; i++) {
        const struct task_form *form = &forms->forms[i];
        struct records_reader r = {
            .records = records, .form = form, .variables = variables, .arena = arena, .limit = limit
        };
        const char **paths;
        int done = 0;
        int n = find_files(&form->files, form->first_line, data, task, part, arena, &paths, looked);

        for (int k = 0; k < n; k++) {
            int status = open_labels(&r, paths[k], looked, err);

            if (!status) /* another form, perhaps */
                break;
            if (status > 0)
                status = read_file(&r, paths[k], err);
            if (!status)
                status = check_labels(&r, err);
            free(r.labels);
            r.labels = NULL;
            if (status < 0)
                return -1;
            done++;
        }
        if (!done)
            continue;
        records->path = paths[0];
        records->n_files = n;
        return 1;
    }
    return 0;
}

int records_find_text(const struct task_texts *files, const char *data, const char *task,
                      const char *part, struct arena *arena, char **text, const char **path,
                      struct str *looked, struct err *err)
{
    const char **paths;
    char *bytes;
    size_t n_bytes;

    if (!find_files(files, NULL, data, task, part, arena, &paths, looked))
        return 0;
    if (file_read(paths[0], (size_t)1 << 20, ERR_DATA, &bytes, &n_bytes, err) < 0)
        return -1;
    if (refuse_nul(paths[0], bytes, n_bytes, err) < 0) {
        free(bytes);
        return -1;
    }
    *text = arena_strndup(arena, bytes, n_bytes);
    if (path)
        *path = paths[0];
    free(bytes);
    return 1;
}
