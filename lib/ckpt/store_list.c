/*
 * store_list.c - the checkpoints of a run: which is newest, which go
 *
 * Names in checkpoints/ that a kill may leave behind, and store_clean removes:
 *     step-N.partial     a save that was never committed (or the old step-N, after an exchange)
 *     step-N.replaced    the old step-N, where the file system cannot exchange two names
 *     step-N.removed     an old checkpoint that was being removed
 * and one that is for people and stays:
 *     step-N.damaged     a checkpoint that could not be read (store_set_aside)
 */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "ckpt/store.h"

/* What a name in checkpoints/ is. */
enum store_entry_kind {
    ENTRY_OTHER,
    ENTRY_CHECKPOINT,
    ENTRY_PARTIAL,
    ENTRY_REPLACED,
    ENTRY_REMOVED
};

static enum store_entry_kind entry_kind(const char *name, int64_t *step)
{
    if (!str_starts_with(name, "step-"))
        return ENTRY_OTHER;
    size_t n_digits = strspn(name + 5, "0123456789");
    const char *suffix = name + 5 + n_digits;
    if (n_digits == 0 || n_digits > 18)
        return ENTRY_OTHER;
    *step = strtoll(name + 5, NULL, 10);
    return !*suffix                       ? ENTRY_CHECKPOINT
           : !strcmp(suffix, ".partial")  ? ENTRY_PARTIAL
           : !strcmp(suffix, ".replaced") ? ENTRY_REPLACED
           : !strcmp(suffix, ".removed")  ? ENTRY_REMOVED
                                          : ENTRY_OTHER;
}

struct store_entry {
    const char *name;
    int64_t step;
    enum store_entry_kind kind;
};

static int compare_entries(const void *a, const void *b)
{
    const struct store_entry *left = a, *right = b;

    if (left->step != right->step)
        return left->step > right->step ? -1 : 1;
    return strcmp(left->name, right->name);
}

/* The steps in checkpoints/, newest first; -1 if it cannot be read. One that is not there is empty.
 */
static int list_entries(const char *checkpoints, struct store_entry **entries, struct arena *arena,
                        struct err *err)
{
    DIR *dir = opendir(checkpoints);
    struct dirent *found;
    int n = 0, capacity = 0;

    *entries = NULL;
    if (!dir && errno == ENOENT)
        return 0;
    if (!dir)
        return err_set_errno(err, ERR_FAILED, "%s", checkpoints);
    while ((found = readdir(dir))) {
        struct store_entry entry = { .step = 0 };

        entry.kind = entry_kind(found->d_name, &entry.step);
        if (entry.kind == ENTRY_OTHER)
            continue;
        entry.name = arena_strdup(arena, found->d_name);
        *entries = arena_grow(arena, *entries, sizeof entry, &capacity, n + 1);
        (*entries)[n++] = entry;
    }
    closedir(dir);
    if (n)
        qsort(*entries, (size_t)n, sizeof **entries, compare_entries);
    return n;
}

/* Renamed first, so that a kill while it is removed leaves no half a checkpoint under its name. */
static int remove_checkpoint(const char *path, struct arena *arena, struct err *err)
{
    char *removed = arena_printf(arena, "%s.removed", path);

    if (file_remove_tree(removed, err) < 0)
        return -1;
    if (rename(path, removed) < 0)
        return err_set_errno(err, ERR_FAILED, "cannot remove %s", path);
    return file_remove_tree(removed, err);
}

/* Whether path is a checkpoint whose manifest reads and whose files have their sizes. */
static int is_whole(const char *path, struct err *err)
{
    struct store *store;

    if (store_open(&store, path, err) < 0)
        return 0;
    int failed = store_check_sizes(store, err);
    store_close(store);
    return !failed;
}

/* The whole ones that stay, so far. */
struct cleaning {
    const struct store_kept *kept;
    int n_newest;
    bool has_old;
    int64_t next_old; /* the one that is to become old; -1: none */
};

/* The oldest whole one that is not old yet. */
static int64_t find_next_old(const char *checkpoints, const struct store_entry *entries, int n,
                             const struct store_kept *kept, struct arena *arena)
{
    struct err ignored;

    if (kept->old_step == STORE_NO_OLD || !kept->n_newest)
        return -1;
    for (int i = n - 1; i >= 0; i--)
        if (entries[i].kind == ENTRY_CHECKPOINT && entries[i].step > kept->old_step &&
            is_whole(arena_printf(arena, "%s/%s", checkpoints, entries[i].name), &ignored))
            return entries[i].step;
    return -1;
}

static bool is_held(const struct cleaning *c, int64_t step)
{
    for (int i = 0; i < c->kept->n_held; i++)
        if (c->kept->held[i] == step)
            return true;
    return step == c->next_old;
}

/* One that is damaged must not push out the whole one that a run goes on from. */
static int clean_checkpoint(struct cleaning *c, const char *path, int64_t step, struct arena *arena,
                            struct err *err)
{
    bool is_surplus = c->n_newest == c->kept->n_newest, is_old = step <= c->kept->old_step;
    struct err ignored;

    if (!c->kept->n_newest || (is_surplus && is_held(c, step)))
        return 0;
    bool may_stay = !is_surplus || (is_old && !c->has_old), is_complete = false;
    if (may_stay)
        is_complete = is_whole(path, &ignored);
    if (is_surplus && !is_complete)
        return remove_checkpoint(path, arena, err);
    c->n_newest += is_complete && !is_surplus;
    c->has_old |= is_complete && is_old;
    return 0;
}

/* Let it stay, go, or get its name back. */
static int clean_entry(struct cleaning *c, const char *checkpoints, const struct store_entry *entry,
                       struct arena *arena, struct err *err)
{
    char *path = arena_printf(arena, "%s/%s", checkpoints, entry->name);
    char *bare = arena_strndup(arena, path,
                               strlen(path) - strlen(entry->name) + 5 +
                                   strspn(entry->name + 5, "0123456789"));

    if (entry->kind == ENTRY_REPLACED && !file_exists(bare))
        return rename(path, bare) < 0 ? err_set_errno(err, ERR_FAILED, "%s", path) : 0;
    if (entry->kind != ENTRY_CHECKPOINT)
        return file_remove_tree(path, err);
    return clean_checkpoint(c, path, entry->step, arena, err);
}

int store_clean(const char *checkpoints, int keep, struct err *err)
{
    const struct store_kept kept = { .n_newest = keep, .old_step = STORE_NO_OLD };

    return store_clean_but(checkpoints, &kept, err);
}

int store_clean_but(const char *checkpoints, const struct store_kept *kept, struct err *err)
{
    struct cleaning cleaning = { .kept = kept };
    struct arena arena = { 0 };
    struct store_entry *entries;
    struct err later;
    int failed = 0;
    int n = list_entries(checkpoints, &entries, &arena, err);

    cleaning.next_old = find_next_old(checkpoints, entries, n, kept, &arena);
    for (int i = 0; i < n; i++)
        if (clean_entry(&cleaning, checkpoints, &entries[i], &arena, failed ? &later : err) < 0)
            failed = 1;
    arena_release(&arena);
    return n < 0 || failed ? -1 : 0;
}

int store_remove_later(const char *checkpoints, int64_t step, struct err *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    struct err later;
    int n = list_entries(checkpoints, &entries, &arena, err), failed = n < 0;

    for (int i = 0; i < n; i++) {
        const char *path = arena_printf(&arena, "%s/%s", checkpoints, entries[i].name);

        if ((entries[i].kind == ENTRY_CHECKPOINT || entries[i].kind == ENTRY_REPLACED) &&
            entries[i].step > step && remove_checkpoint(path, &arena, failed ? &later : err) < 0)
            failed = 1;
    }
    arena_release(&arena);
    return failed ? -1 : 0;
}

int store_count(const char *checkpoints, struct err *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    int n_found = 0;
    int n = list_entries(checkpoints, &entries, &arena, err);

    for (int i = 0; i < n; i++)
        n_found += entries[i].kind == ENTRY_CHECKPOINT || entries[i].kind == ENTRY_REPLACED;
    arena_release(&arena);
    return n < 0 ? -1 : n_found;
}

const char *store_newest(const char *folder, struct arena *arena, struct err *err)
{
    return store_newest_before(folder, INT64_MAX, arena, err);
}

const char *store_newest_before(const char *folder, int64_t step, struct arena *arena,
                                struct err *err)
{
    const char *checkpoints = arena_printf(arena, "%s/checkpoints", folder);
    struct store_entry *entries;
    int n_damaged = 0;

    if (file_exists(arena_printf(arena, "%s/manifest.json", folder)))
        return is_whole(folder, err) ? arena_strdup(arena, folder) : NULL;
    if (file_exists(folder) && !file_is_folder(folder)) {
        err_set(err, ERR_DATA,
                "%s is not a folder (hint: a run's folder, its checkpoints/ or one of them)",
                folder);
        return NULL;
    }
    if (!file_is_folder(checkpoints))
        checkpoints = folder;
    int n = list_entries(checkpoints, &entries, arena, err);
    if (n < 0)
        return NULL;
    for (int i = 0; i < n; i++) {
        const char *path = arena_printf(arena, "%s/%s", checkpoints, entries[i].name);

        /* A replaced one counts: killed between two renames, it is the only one of its step. */
        if ((entries[i].kind != ENTRY_CHECKPOINT && entries[i].kind != ENTRY_REPLACED) ||
            entries[i].step >= step)
            continue;
        if (is_whole(path, err))
            return path;
        if (store_version(path) > STORE_VERSION)
            return NULL;
        log_warn("%s is skipped: %s", path, err->text);
        n_damaged++;
    }
    if (n_damaged)
        err_add(err, "no complete checkpoint in %s, the oldest of %d is damaged", checkpoints,
                n_damaged);
    else
        err_set(err, ERR_DATA,
                "no checkpoint in %s (hint: a run's folder, its checkpoints/ or one of them)",
                checkpoints);
    return NULL;
}

/* Under the first free name. */
static int set_aside(const char *path, struct arena *arena, struct err *err)
{
    for (int i = 1; i < 100; i++) {
        const char *aside = i == 1 ? arena_printf(arena, "%s.damaged", path)
                                   : arena_printf(arena, "%s.damaged%d", path, i);

        if (file_exists(aside))
            continue;
        if (rename(path, aside) < 0)
            return err_set_errno(err, ERR_FAILED, "cannot rename %s to %s", path, aside);
        log_warn("the damaged %s is kept as %s", path, aside);
        return 0;
    }
    return err_set(err, ERR_FAILED, "%s.damaged and 98 more such folders exist", path);
}

int store_set_aside(const char *checkpoints, int64_t step, struct err *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    int n = list_entries(checkpoints, &entries, &arena, err), status = n < 0 ? -1 : 0;

    for (int i = 0; i < n && !status; i++)
        if (entries[i].kind == ENTRY_CHECKPOINT && entries[i].step > step)
            status =
                set_aside(arena_printf(&arena, "%s/%s", checkpoints, entries[i].name), &arena, err);
    arena_release(&arena);
    return status;
}
