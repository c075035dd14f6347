/*
 * store_commit.c - the commit of a checkpoint: its manifest, and the rename of step-N.partial to
 * step-N
 *
 * A checkpoint exists if and only if its folder has its final name. The protocol:
 *
 *     1. each rank writes rank-R.safetensors to step-N.partial, fsyncs it, and then writes
 *        rank-R.json, its part of the manifest with the hash of that file;
 *     2. when all ranks have done so, rank 0 merges the parts, checks that they cover every tensor
 *        exactly once, removes files of another world size, and writes and fsyncs manifest.json;
 *     3. rank 0 renames step-N.partial to step-N and fsyncs the parent folder: the commit.
 *
 * A kill before step 3 leaves a partial folder, which the next save of that step reuses and which
 * is never read as a checkpoint. Where step-N exists already, both names are exchanged atomically
 * and the old checkpoint is removed; a file system without that exchange gets two renames, between
 * which the old one is step-N.replaced and the new one is complete under its partial name.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "ckpt/checkpoint_dir_impl.h"
#include "ckpt/file_hash.h"
#include "ckpt/manifest.h"
#include "ckpt/store.h"

char *store_path_with(struct arena *arena, const char *path, const char *suffix)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/')
        length--;
    return arena_printf(arena, "%.*s%s", (int)length, path, suffix);
}

static int read_part(struct manifest *part, const struct folder *folder, int rank,
                     struct arena *arena, struct err *err)
{
    char *name = arena_printf(arena, "rank-%05d.json", rank);
    char *path = arena_printf(arena, "%s/%s", folder->path, name);
    char *text;
    size_t n_bytes;

    if (folder_read_file(folder, name, MANIFEST_MAX_BYTES, &text, &n_bytes, err) < 0)
        return -1;
    int failed = manifest_parse(part, path, text, n_bytes, arena, err);
    free(text);
    if (failed)
        return -1;
    if (part->n_files != 1 ||
        strcmp(part->files[0].name, arena_printf(arena, "rank-%05d.safetensors", rank)))
        return err_set(err, ERR_DATA, "%s does not list just its rank's file", path);
    int fd = folder_open_file(folder, part->files[0].name, part->files[0].n_bytes, err);
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

int store_written(const char *folder, int world_rank, int64_t *n_bytes,
                  void (*tick)(void *context, int64_t n_bytes), void *context)
{
    struct arena arena = { 0 };
    struct folder partial = { .fd = -1 };
    struct manifest part;
    struct err ignored;
    uint64_t hash;
    int fd = -1;
    int whole = folder_open(&partial, store_partial(folder, &arena), &ignored) == 0 &&
                read_part(&part, &partial, world_rank, &arena, &ignored) == 0 &&
                (fd = folder_open_file(&partial, part.files[0].name, part.files[0].n_bytes,
                                       &ignored)) >= 0 &&
                file_hash(fd, &hash, tick, context) == 0 && hash == part.files[0].hash;

    if (whole)
        *n_bytes = part.files[0].n_bytes;
    if (fd >= 0)
        close(fd);
    folder_close(&partial);
    arena_release(&arena);
    return whole;
}

/* Whether a name in a checkpoint's folder belongs to it: ours, or of a rank of this world. */
static int belongs(const char *name, int world_size)
{
    char ending[32];
    int rank;

    if (!strcmp(name, "manifest.json") || !strcmp(name, STORE_CARRIED) ||
        !strcmp(name, STORE_NOTES) || !strcmp(name, ".") || !strcmp(name, ".."))
        return 1;
    if (sscanf(name, "rank-%5d.%31s", &rank, ending) != 2 || rank < 0 || rank >= world_size)
        return 0;
    return !strcmp(ending, "safetensors") || !strcmp(ending, "json");
}

/* An interrupted save of another world size may have left files of ranks that are no more. */
static int remove_strays(const struct folder *folder, int world_size, struct arena *arena,
                         struct err *err)
{
    DIR *dir = opendir(folder->path);
    struct dirent *entry;
    int failed = 0;

    if (!dir)
        return err_set_errno(err, ERR_FAILED, "%s", folder->path);
    while (!failed && (entry = readdir(dir)))
        if (!belongs(entry->d_name, world_size))
            failed =
                file_remove_tree(arena_printf(arena, "%s/%s", folder->path, entry->d_name), err);
    closedir(dir);
    return failed;
}

/*
 * Replace folder where names cannot be exchanged: at each moment the old or the new checkpoint is
 * complete under some name.
 */
static int replace_in_two(const char *partial, const char *folder, struct arena *arena,
                          struct err *err)
{
    char *replaced = store_path_with(arena, folder, ".replaced");

    if (file_remove_tree(replaced, err) < 0)
        return -1;
    if (rename(folder, replaced) < 0 || rename(partial, folder) < 0)
        return err_set_errno(err, ERR_FAILED, "cannot put %s in the place of %s", partial, folder);
    return file_remove_tree(replaced, err);
}

/* Rename partial to folder, and remove an earlier checkpoint of that name. */
static int publish(const char *partial, const char *folder, struct arena *arena, struct err *err)
{
    char *parent = arena_printf(arena, "%s/..", folder);

    if (!file_exists(folder)) {
        if (rename(partial, folder) < 0)
            return err_set_errno(err, ERR_FAILED, "cannot rename %s to %s", partial, folder);
        return file_sync_folder(parent, err);
    }
    if (renameat2(AT_FDCWD, partial, AT_FDCWD, folder, RENAME_EXCHANGE) == 0) {
        if (file_sync_folder(parent, err) < 0)
            return -1;
        return file_remove_tree(partial, err);
    }
    if (errno != EINVAL && errno != ENOSYS)
        return err_set_errno(err, ERR_FAILED, "cannot exchange %s and %s", partial, folder);
    if (replace_in_two(partial, folder, arena, err) < 0)
        return -1;
    return file_sync_folder(parent, err);
}

static int check_state(const char *state, struct arena *arena, struct err *err)
{
    struct json_reader reader;

    json_reader_init(&reader, state, strlen(state), arena);
    const char *start = json_skip(&reader);
    if (json_end(&reader) < 0 || *start != '{')
        return err_set(err, ERR_FAILED, "the state to save is not a JSON object: %s",
                       reader.problem ? reader.problem : "something else");
    return 0;
}

static int seal(const struct folder *partial, struct manifest *whole, struct arena *arena,
                struct err *err)
{
    int world_size = whole->world_size;
    struct manifest *parts = arena_array(arena, struct manifest, world_size);
    char *path = arena_printf(arena, "%s/manifest.json", partial->path);
    struct str text = { 0 };

    for (int rank = 0; rank < world_size; rank++)
        if (read_part(&parts[rank], partial, rank, arena, err) < 0)
            return -1;
    if (manifest_merge(whole, parts, world_size, arena, err) < 0 ||
        manifest_check_complete(whole, path, err) < 0 ||
        remove_strays(partial, world_size, arena, err) < 0)
        return -1;
    manifest_print(whole, &text);
    fault_at("save:before_manifest", whole->step);
    int failed = file_write(path, text.data, text.length, err) < 0;
    str_release(&text);
    if (failed || file_sync_folder(partial->path, err) < 0)
        return -1;
    fault_at("save:before_commit", whole->step);
    return 0;
}

int store_seal(const char *folder, int world_size, int64_t step, const char *state, struct err *err)
{
    struct manifest whole = { .step = step, .world_size = world_size, .state = state };
    struct arena arena = { 0 };
    struct folder partial = { .fd = -1 };

    CHECK(world_size > 0);
    CHECK(step >= 0);
    int failed = check_state(state, &arena, err) < 0 ||
                 folder_open(&partial, store_path_with(&arena, folder, ".partial"), err) < 0 ||
                 seal(&partial, &whole, &arena, err) < 0;
    folder_close(&partial);
    arena_release(&arena);
    return failed ? -1 : 0;
}

int store_publish(const char *folder, struct err *err)
{
    struct arena arena = { 0 };
    int status = publish(store_path_with(&arena, folder, ".partial"),
                         store_path_with(&arena, folder, ""), &arena, err);

    arena_release(&arena);
    return status;
}

int store_commit(const char *folder, int world_size, int64_t step, const char *state,
                 struct err *err)
{
    return store_seal(folder, world_size, step, state, err) < 0 ? -1 : store_publish(folder, err);
}

/* manifest.json of a committed checkpoint, all of it in the arena. */
static int read_manifest(struct manifest *whole, const struct folder *folder, const char *path,
                         struct arena *arena, struct err *err)
{
    size_t n_bytes;
    char *text;

    if (folder_read_file(folder, "manifest.json", MANIFEST_MAX_BYTES, &text, &n_bytes, err) < 0)
        return -1;
    int status = manifest_parse(whole, path, text, n_bytes, arena, err);
    free(text);
    return status;
}

int store_restate(const char *folder, int64_t step, const char *state, struct err *err)
{
    struct arena arena = { 0 };
    struct folder there = { .fd = -1 };
    struct manifest whole;
    struct str text = { 0 };
    char *path = arena_printf(&arena, "%s/manifest.json", folder);
    int status = check_state(state, &arena, err) < 0 || folder_open(&there, folder, err) < 0 ||
                         read_manifest(&whole, &there, path, &arena, err) < 0
                     ? -1
                     : 0;

    if (!status && whole.step != step)
        status = err_set(err, ERR_DATA, "%s is from step %lld, not %lld", path,
                         (long long)whole.step, (long long)step);
    if (!status) {
        whole.state = state;
        manifest_print(&whole, &text);
        status = file_write(path, text.data, text.length, err);
    }
    str_release(&text);
    folder_close(&there);
    arena_release(&arena);
    return status;
}
