/*
 * hf_splits.c - which file is of which split, by patterns or by names, as `datasets` does it
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "data/rows/hf_dataset_impl.h"

#define SEPARATORS "-._ 0123456789" /* around a word in a file's name */

/* ---- globs ---- */

/* at[j]: the pattern so far matches the first j characters of path. Over what a star matches. */
static void pass_star(char *at, const char *path, size_t n, bool over_slashes)
{
    for (size_t j = 1; j <= n; j++)
        at[j] |= at[j - 1] && (over_slashes || path[j - 1] != '/');
}

/* Any folders, each with its slash. */
static void pass_folders(char *at, const char *path, size_t n)
{
    bool before = false;

    for (size_t j = 0; j <= n; j++) {
        bool is_here = at[j];

        at[j] |= before && j > 0 && path[j - 1] == '/';
        before |= is_here;
    }
}

/* Whether c is in the class behind '['; *end: behind its ']', or NULL if it has none. */
static bool is_in_class(const char *class, char c, const char **end)
{
    bool negated = *class == '!' || *class == '^', is_in = false;
    const char *p = class + negated;

    do {
        if (!*p) {
            *end = NULL;
            return false;
        }
        if (p[1] == '-' && p[2] && p[2] != ']') {
            is_in |= p[0] <= c && c <= p[2];
            p += 3;
        } else {
            is_in |= *p++ == c;
        }
    } while (*p != ']');
    *end = p + 1;
    return is_in != negated;
}

/* One character of the pattern, which ends at *next. */
static void pass_character(char *at, const char *pattern, const char *path, size_t n,
                           const char **next)
{
    const char *class_end = NULL;

    if (*pattern == '[')
        is_in_class(pattern + 1, 0, &class_end);
    for (size_t j = n; j-- > 0;) {
        const char *ignored;
        bool matches = class_end         ? is_in_class(pattern + 1, path[j], &ignored)
                       : *pattern == '?' ? path[j] != '/'
                                         : path[j] == *pattern;

        at[j + 1] = at[j] && matches;
    }
    at[0] = 0;
    *next = class_end ? class_end : pattern + 1;
}

bool hf_matches(const char *pattern, const char *path, struct arena *arena)
{
    size_t n = strlen(path);
    char *at = arena_array(arena, char, n + 1);

    memset(at, 0, n + 1);
    at[0] = 1;
    while (str_starts_with(pattern, "./"))
        pattern += 2;
    while (*pattern) {
        if (str_starts_with(pattern, "**/")) {
            pass_folders(at, path, n);
            pattern += 3;
        } else if (*pattern == '*') {
            pass_star(at, path, n, pattern[1] == '*');
            pattern += strspn(pattern, "*");
        } else {
            pass_character(at, pattern, path, n, &pattern);
        }
    }
    return at[n];
}

/* ---- by names ---- */

static const struct split_words {
    const char *split, *words[5];
} split_words[] = {
    { "train", { "train", "training" } },
    { "test", { "test", "testing", "eval", "evaluation" } },
    { "validation", { "validation", "valid", "dev", "val" } },
};

#define N_SPLITS (int)(sizeof split_words / sizeof *split_words)

/* data/SPLIT-00000-of-00001.EXT: the split, in the arena, else NULL. */
static const char *split_of_shard(const char *name, struct arena *arena)
{
    const char *file = strrchr(name, '/');
    const char *of = strstr(name, "-of-");

    if (!str_starts_with(name, "data/") || file != name + 4 || !of || of - name < 12)
        return NULL;
    for (int i = 1; i <= 5; i++)
        if (!isdigit((unsigned char)of[-i]))
            return NULL;
    if (of[-6] != '-' || !isdigit((unsigned char)of[4]) || of - 6 <= file + 1)
        return NULL;
    return arena_strndup(arena, file + 1, (size_t)(of - 6 - file - 1));
}

/* Whether word stands in the path between separators; folders: as the whole name of a folder. */
static bool has_word(const char *name, const char *word, bool folders)
{
    size_t length = strlen(word);

    for (const char *at = name; (at = strstr(at, word)); at++) {
        char before = at > name ? at[-1] : '/', after = at[length];

        if (folders ? before == '/' && after == '/'
                    : strchr(SEPARATORS "/", before) && after && strchr(SEPARATORS "/", after))
            return true;
    }
    return false;
}

static const char *split_of_words(const char *name, bool folders, int split)
{
    for (int w = 0; split_words[split].words[w]; w++)
        if (has_word(name, split_words[split].words[w], folders))
            return split_words[split].split;
    return NULL;
}

static int find_shards(struct hf_dataset *d, const char *const *names, int n, struct hf_file *files)
{
    int n_files = 0;

    for (int i = 0; i < n; i++) {
        const char *split = split_of_shard(names[i], &d->arena);

        if (split)
            files[n_files++] = (struct hf_file){ i, split };
    }
    return n_files;
}

static int find_words(const char *const *names, int n, bool folders, struct hf_file *files)
{
    int n_files = 0;

    for (int split = 0; split < N_SPLITS; split++)
        for (int i = 0; i < n; i++)
            if (split_of_words(names[i], folders, split))
                files[n_files++] = (struct hf_file){ i, split_words[split].split };
    return n_files;
}

/* ---- by patterns ---- */

static int find_patterns(struct hf_dataset *d, const char *const *names, int n,
                         struct hf_file *files)
{
    int n_files = 0;

    for (int p = 0; p < d->n_patterns; p++) {
        int before = n_files;

        for (int i = 0; i < n; i++)
            if (hf_matches(d->patterns[p].pattern, names[i], &d->arena))
                files[n_files++] = (struct hf_file){ i, d->patterns[p].split };
        if (n_files == before)
            return err_set(d->err, ERR_DATA, "%s: no file of rows in %s matches %s", d->source,
                           d->folder, d->patterns[p].pattern);
    }
    return n_files;
}

int hf_find_splits(struct hf_dataset *d, const char *const *names, int n, struct hf_file **files)
{
    size_t most = (size_t)n * (size_t)(d->n_patterns > N_SPLITS ? d->n_patterns : N_SPLITS);
    int n_files;

    *files = arena_array(&d->arena, struct hf_file, most);
    if (d->n_patterns)
        return find_patterns(d, names, n, *files);
    if ((n_files = find_shards(d, names, n, *files)) > 0 ||
        (n_files = find_words(names, n, true, *files)) > 0 ||
        (n_files = find_words(names, n, false, *files)) > 0)
        return n_files;
    for (int i = 0; i < n; i++)
        (*files)[i] = (struct hf_file){ i, "train" };
    return n;
}
