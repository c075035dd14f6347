/*
 * hf_dataset.c - arguments to files, and the rows of a split that are asked for
 */
#include "data/rows/hf_dataset.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "data/rows/hf_dataset_impl.h"

/* ---- "train[10%:20%]" ---- */

struct slice {
    const char *split; /* "all": of all */
    bool is_slice, percent;
    bool has_from, has_to;
    int64_t from, to;
};

static int refuse_split(struct hf_dataset *d, const char *text)
{
    return err_set(d->err, ERR_CONFIG,
                   "%s: \"split\" is %.80s, not NAME, NAME[a:b] or NAME[a%%:b%%], or these with + "
                   "between (hint: train[:1%%])",
                   d->source, text);
}

/* A bound up to `end`, which may be empty: 0, or -1. */
static int parse_bound(struct slice *s, const char *text, size_t length, bool *has, int64_t *value)
{
    char digits[32];
    size_t n = 0;

    for (size_t i = 0; i < length; i++) {
        if (text[i] == '_')
            continue;
        if (n + 1 >= sizeof digits)
            return -1;
        digits[n++] = text[i];
    }
    *has = n > 0;
    if (n > 0 && digits[n - 1] == '%') {
        s->percent = true;
        n--;
    }
    digits[n] = '\0';
    return *has ? str_to_i64(digits, value) : 0;
}

static int parse_slice(struct hf_dataset *d, struct slice *s, const char *text)
{
    const char *bracket = strchr(text, '['), *colon = bracket ? strchr(bracket, ':') : NULL;
    const char *end = bracket ? strchr(bracket, ']') : NULL;

    *s = (struct slice){ .split = text };
    if (!bracket)
        return *text && !strpbrk(text, "](:% ") ? 0 : refuse_split(d, text);
    if (bracket == text || !colon || !end || end < colon || end[1] ||
        parse_bound(s, bracket + 1, (size_t)(colon - bracket - 1), &s->has_from, &s->from) < 0 ||
        parse_bound(s, colon + 1, (size_t)(end - colon - 1), &s->has_to, &s->to) < 0)
        return refuse_split(d, text);
    if (s->percent && (s->from < -100 || s->from > 100 || s->to < -100 || s->to > 100))
        return err_set(d->err, ERR_CONFIG,
                       "%s: \"split\" is %.80s, with a percentage not in "
                       "-100..100",
                       d->source, text);
    s->is_slice = true;
    s->split = arena_strndup(&d->arena, text, (size_t)(bracket - text));
    return 0;
}

/* A bound in rows of n, as datasets rounds it: percents to the nearest row, of two to the even. */
static int64_t bound(const struct slice *s, int64_t value, int64_t n)
{
    int64_t at = s->percent ? (int64_t)nearbyint((double)value * (double)n / 100.0) : value;

    return min_i64(at < 0 ? max_i64(n + at, 0) : at, n);
}

/* ---- files ---- */

/* What lies in a dataset's folder and holds no rows. */
static bool is_data(const char *name)
{
    static const char *const others[] = { "config.json", "dataset_info.json",
                                          "dataset_infos.json" };
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(file, others[i]))
            return false;
    return rows_format_of(name) != ROWS_TEXT && rows_format_of(name) != ROWS_AUTO;
}

/* Paths of all files of rows below the folder, sorted; their names without it. */
static int list_files(struct hf_dataset *d, struct row_files *all, const char ***names)
{
    int n = 0;
    size_t skipped = strlen(d->folder) + !str_ends_with(d->folder, "/");

    if (row_files_find(all, &d->folder, 1, d->err) < 0)
        return -1;
    *names = arena_array(&d->arena, const char *, all->n);
    for (int i = 0; i < all->n; i++) {
        char *path = all->paths[i];

        if (is_data(path + skipped)) {
            (*names)[n] = path + skipped;
            all->paths[n++] = path;
        } else {
            free(path);
        }
    }
    all->n = n;
    if (n == 0)
        return err_set(d->err, ERR_DATA,
                       "%s: %s has no file of JSON, JSONL, CSV or parquet (hint: text files as IN "
                       "of data tokenize)",
                       d->source, d->folder);
    return 0;
}

static int add_file(struct hf_dataset *d, struct row_files *out, const char *path,
                    struct file_rows range)
{
    if (out->n == out->capacity) {
        int capacity = out->capacity ? 2 * out->capacity : 64;
        char **paths = realloc(out->paths, (size_t)capacity * sizeof *paths);

        out->paths = paths ? paths : out->paths;
        struct file_rows *ranges = realloc(out->ranges, (size_t)capacity * sizeof *ranges);
        out->ranges = ranges ? ranges : out->ranges;
        if (!paths || !ranges)
            return err_set(d->err, ERR_DEVICE, "out of host memory");
        out->capacity = capacity;
    }
    if (!(out->paths[out->n] = strdup(path)))
        return err_set(d->err, ERR_DEVICE, "out of host memory");
    out->ranges[out->n++] = range;
    return 0;
}

static bool is_chosen(const struct slice *s, const struct hf_file *file)
{
    return !strcmp(s->split, "all") || !strcmp(s->split, file->split);
}

static int refuse_unknown(struct hf_dataset *d, const char *split, const struct hf_file *files,
                          int n)
{
    struct str names = { 0 };

    for (int i = 0; i < n; i++) {
        bool is_new = true;

        for (int k = 0; k < i && is_new; k++)
            is_new = strcmp(files[k].split, files[i].split) != 0;
        if (is_new)
            str_printf(&names, "%s%.64s", i ? ", " : "", files[i].split);
    }
    if (split)
        err_set(d->err, ERR_CONFIG, "%s: %s has no split \"%s\" (hint: %.400s)", d->source,
                d->folder, split, str_text(&names));
    else
        err_set(d->err, ERR_CONFIG, "%s: \"split\" is missing, and %s has several (hint: %.400s)",
                d->source, d->folder, str_text(&names));
    str_release(&names);
    return -1;
}

/* Rows of each chosen file; -1 of others. */
static int count_rows(struct hf_dataset *d, const struct slice *s, const struct row_files *all,
                      const struct hf_file *files, int n, int64_t *counts, int64_t *sum)
{
    *sum = 0;
    for (int i = 0; i < n; i++) {
        if (!is_chosen(s, &files[i]) || !s->is_slice)
            continue;
        if (rows_count(&counts[i], all->paths[files[i].file], ROWS_AUTO, d->err) < 0)
            return -1;
        *sum += counts[i];
    }
    return 0;
}

static int add_slice(struct hf_dataset *d, const struct slice *s, const struct row_files *all,
                     const struct hf_file *files, int n, struct row_files *out)
{
    int64_t *counts = arena_array(&d->arena, int64_t, n), sum, before = 0;
    int n_chosen = 0;

    if (count_rows(d, s, all, files, n, counts, &sum) < 0)
        return -1;
    int64_t from = s->has_from ? bound(s, s->from, sum) : 0;
    int64_t to = s->has_to ? bound(s, s->to, sum) : sum;
    for (int i = 0; i < n; i++) {
        struct file_rows range = { 0, INT64_MAX };

        if (!is_chosen(s, &files[i]))
            continue;
        n_chosen++;
        if (s->is_slice) {
            range =
                (struct file_rows){ max_i64(from - before, 0), min_i64(to - before, counts[i]) };
            before += counts[i];
        }
        if (range.begin < range.end && add_file(d, out, all->paths[files[i].file], range) < 0)
            return -1;
    }
    return n_chosen ? 0 : refuse_unknown(d, s->split, files, n);
}

/* All slices of "a+b". */
static int add_slices(struct hf_dataset *d, const struct row_files *all,
                      const struct hf_file *files, int n, struct row_files *out)
{
    char *text = d->split ? arena_strdup(&d->arena, d->split) : NULL;
    struct slice s;

    for (int i = 1; i < n && !text; i++)
        if (strcmp(files[i].split, files[0].split) != 0)
            return refuse_unknown(d, NULL, files, n);
    if (!text)
        text = arena_strdup(&d->arena, files[0].split);
    while (text) {
        char *plus = strchr(text, '+');

        if (plus)
            *plus++ = '\0';
        text += strspn(text, " ");
        for (size_t length = strlen(text); length > 0 && text[length - 1] == ' ';)
            text[--length] = '\0';
        if (parse_slice(d, &s, text) < 0 || add_slice(d, &s, all, files, n, out) < 0)
            return -1;
        text = plus;
    }
    if (out->n == 0)
        return err_set(d->err, ERR_DATA, "%s: no row of %s is in %s", d->source, d->folder,
                       d->split ? d->split : files[0].split);
    return 0;
}

/* Without slices files are whole, and there are no ranges. */
static void drop_ranges(struct row_files *files)
{
    for (int i = 0; i < files->n; i++)
        if (files->ranges[i].end != INT64_MAX)
            return;
    free(files->ranges);
    files->ranges = NULL;
}

int hf_dataset_find(struct row_files *out, const char *path, struct err *err)
{
    struct hf_dataset d = { .source = path, .err = err };
    struct row_files all = { 0 }, files = { 0 };
    struct hf_file *of_splits;
    const char **names;
    int n = -1, rc = -1;

    if (hf_read_arguments(&d) == 0 && hf_find_config(&d) == 0 && list_files(&d, &all, &names) == 0)
        n = hf_find_splits(&d, names, all.n, &of_splits);
    if (n >= 0)
        rc = add_slices(&d, &all, of_splits, n, &files);
    if (rc == 0) {
        drop_ranges(&files);
        *out = files;
    } else {
        row_files_release(&files);
    }
    row_files_release(&all);
    arena_release(&d.arena);
    return rc;
}
