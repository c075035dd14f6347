/*
 * staging.c - the folder in which is written: whose it is, what of it is whole, whether it has room
 *
 * STORE_NOTES says of which conversion it is, a line a fact. A file of a HF folder that is whole
 * has a file NAME.done with its hash beside it; that of a checkpoint's rank has its part of the
 * manifest.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "base/str.h"
#include "ckpt/file_hash.h"
#include "convert/convert_impl.h"

/* Of what is written: another one cannot go on with it. */
#define NOTES_VERSION 1
#define NOTES_MAX_BYTES ((size_t)64 << 10)
#define DONE ".done"

/* ---- which conversion it is ---- */

static void add_file(XXH3_state_t *hash, const char *path)
{
    struct stat s;
    int64_t facts[3];

    if (stat(path, &s) < 0)
        return;
    facts[0] = s.st_size;
    facts[1] = s.st_mtim.tv_sec;
    facts[2] = s.st_mtim.tv_nsec;
    XXH3_64bits_update(hash, path, strlen(path));
    XXH3_64bits_update(hash, facts, sizeof facts);
}

static void add_text(XXH3_state_t *hash, const char *path)
{
    struct err ignored;
    char *text;
    size_t n_bytes;

    if (file_read(path, (size_t)512 << 20, ERR_DATA, &text, &n_bytes, &ignored) < 0)
        return;
    XXH3_64bits_update(hash, text, n_bytes);
    free(text);
}

/* What would be another source: of a folder its files' sizes and times, of a checkpoint its
 * table. */
static uint64_t hash_source(struct conversion *c)
{
    const struct hf_folder *folder = c->from.weights.folder;
    const char *path = c->from.base, *last = "";
    XXH3_state_t *hash = XXH3_createState();

    CHECK(hash);
    XXH3_64bits_reset(hash);
    if (folder) {
        const struct safetensors_tensor *tensor;

        add_text(hash, arena_printf(&c->arena, "%s/config.json", path));
        for (int i = 0; i < c->names.n_tensors; i++) {
            const char *file = hf_folder_tensor(folder, i, &tensor)->path;

            if (strcmp(file, last) != 0)
                add_file(hash, file);
            last = file;
        }
    } else {
        add_text(hash, arena_printf(&c->arena, "%s/manifest.json", path));
    }
    uint64_t found = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return found;
}

static uint64_t hash_adapter(struct conversion *c)
{
    const char *path = c->options->adapter ? c->options->adapter : c->from.folder;
    XXH3_state_t *hash = XXH3_createState();

    CHECK(hash);
    XXH3_64bits_reset(hash);
    add_text(hash, arena_printf(&c->arena, "%s/adapter_config.json", path));
    add_text(hash, arena_printf(&c->arena, "%s/adapter_model.safetensors", path));
    add_text(hash, arena_printf(&c->arena, "%s/manifest.json", path));
    uint64_t found = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return found;
}

static void describe(struct conversion *c, struct str *out)
{
    const struct convert_options *o = c->options;
    char real[PATH_MAX];
    const char *from = realpath(c->from.folder, real) ? real : c->from.folder;
    const char *dtype = o->dtype < 0 ? "keep" : dtype_name((enum dtype)o->dtype);

    str_printf(out, "lmtrain convert %d\n--from %s\n", NOTES_VERSION, from);
    str_printf(out, "source %016" PRIx64 "\n", hash_source(c));
    if (c->from.weights.adapter)
        str_printf(out, "--adapter %016" PRIx64 "\n", hash_adapter(c));
    if (c->from.weights.is_average)
        str_printf(out, "--weights %s\n", o->weights);
    str_printf(out, "--dtype %s\n--vocab-size %d\n", dtype, c->from.job.model.vocab_size);
    if (c->result->to_checkpoint)
        str_printf(out, "--tp %d\n--pp %d\n", o->tp, o->pp);
    else
        str_printf(out, "--max-shard-gb %.9g\n", (double)o->max_shard_bytes * 1e-9);
}

/* The first line in which two texts differ, as "was, is now"; for people. */
static const char *difference(struct arena *arena, const char *was, const char *is)
{
    while (*was && *is) {
        size_t n = strcspn(was, "\n"), m = strcspn(is, "\n");

        if (n != m || memcmp(was, is, n) != 0) {
            if (str_starts_with(is, "source "))
                return "the source has changed since";
            return arena_printf(arena, "it was made with %.*s, not with %.*s", (int)n, was, (int)m,
                                is);
        }
        was += n + (was[n] != 0);
        is += m + (is[m] != 0);
    }
    return "it is of another format";
}

/* ---- taking it over ---- */

static const char *notes_path(struct arena *arena, const struct conversion *c)
{
    return arena_printf(arena, "%s/" STORE_NOTES, c->partial);
}

static int remove_inside(struct arena *arena, const char *path, struct err *err)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int status = 0;

    while (dir && !status && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = file_remove_tree(arena_printf(arena, "%s/%s", path, entry->d_name), err);
    if (dir)
        closedir(dir);
    return status;
}

/* Two at once would write into each other's files. Goes with the process however that ends. */
static int lock(struct conversion *c, struct err *err)
{
    int fd = open(c->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return err_set_errno(err, ERR_FAILED, "%s", c->partial);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
        close(fd);
        return err_set(err, ERR_CONFIG, "%s is being written by another lmtrain convert",
                       c->partial);
    }
    c->lock = fd;
    return 0;
}

/* Whether what is there is of this very conversion; if not, it goes. */
static int take_over(struct conversion *c, const char *notes, int *goes_on, struct err *err)
{
    char *was = NULL;
    size_t n_bytes;
    struct err ignored;

    *goes_on = 0;
    if (file_is_empty_folder(c->partial))
        return 0;
    if (file_read(notes_path(&c->arena, c), NOTES_MAX_BYTES, ERR_DATA, &was, &n_bytes, &ignored) <
        0) {
        log_info(
            "%s: left by an interrupted conversion without a journal: starting from the beginning",
            c->partial);
    } else if (strcmp(was, notes) != 0) {
        log_info("%s: left by an interrupted conversion, but %s: starting from the beginning",
                 c->partial, difference(&c->arena, was, notes));
    } else {
        log_info("%s: continuing an interrupted conversion", c->partial);
        *goes_on = 1;
    }
    free(was);
    return *goes_on ? 0 : remove_inside(&c->arena, c->partial, err);
}

/* The space of existing files counts as free: complete files stay, the others are written again. */
static int check_room(struct conversion *c, int64_t n_bytes, struct err *err)
{
    struct statvfs s;
    char needed[32], room[32];
    DIR *dir = opendir(c->partial);
    struct dirent *entry;
    double there = 0;

    while (dir && (entry = readdir(dir))) {
        struct stat file;

        if (fstatat(dirfd(dir), entry->d_name, &file, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(file.st_mode))
            there += (double)file.st_blocks * 512;
    }
    if (dir)
        closedir(dir);
    if (statvfs(c->partial, &s) < 0)
        return 0; /* it will be seen */
    double has = (double)s.f_bavail * (double)s.f_frsize + there;
    if ((double)n_bytes <= has)
        return 0;
    return err_set(err, ERR_FAILED, "%s needs %s, but its disk has only %s free", c->options->to,
                   str_bytes(needed, sizeof needed, (uint64_t)n_bytes),
                   str_bytes(room, sizeof room, (uint64_t)has));
}

int partial_begin(struct conversion *c, int64_t n_bytes, struct err *err)
{
    struct str notes = { 0 };
    int goes_on = 0;

    if (file_make_folder(c->partial, err) < 0 || lock(c, err) < 0)
        return -1;
    file_sweep_parts(c->partial);
    file_sweep_parts(arena_printf(&c->arena, "%s/" STORE_CARRIED, c->partial));
    describe(c, &notes);
    int status = take_over(c, str_text(&notes), &goes_on, err);
    c->owns_partial = !goes_on;
    if (!status)
        status = check_room(c, n_bytes, err);
    if (!status && !goes_on)
        status = file_write(notes_path(&c->arena, c), str_text(&notes), notes.length, err);
    c->owns_partial |= !status;
    str_release(&notes);
    return status;
}

/* ---- files of a HF folder ---- */

static void tick(void *context, int64_t n_bytes)
{
    conversion_tell(context, "checking", n_bytes);
}

bool partial_has_file(struct conversion *c, const char *name)
{
    const char *path = arena_printf(&c->arena, "%s/%s", c->partial, name);
    struct err ignored;
    char *noted;
    size_t n_bytes;
    uint64_t hash;

    if (file_read(arena_printf(&c->arena, "%s" DONE, path), 64, ERR_DATA, &noted, &n_bytes,
                  &ignored) < 0)
        return false;
    uint64_t wanted = strtoull(noted, NULL, 16);
    int complete = n_bytes == 17;
    free(noted);
    int fd = complete ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    int64_t before = c->done;
    int whole = file_hash(fd, &hash, tick, c) == 0 && hash == wanted;
    close(fd);
    if (!whole)
        c->done = before;
    return whole;
}

int partial_note_file(const struct conversion *c, const char *name, uint64_t hash, struct err *err)
{
    struct str path = { 0 }, text = { 0 };

    str_printf(&path, "%s/%s" DONE, c->partial, name);
    str_printf(&text, "%016" PRIx64 "\n", hash);
    int status = file_write(str_text(&path), str_text(&text), text.length, err);
    str_release(&path);
    str_release(&text);
    return status;
}

int partial_forget(const struct conversion *c, struct err *err)
{
    struct arena arena = { 0 };
    DIR *dir = opendir(c->partial);
    struct dirent *entry;
    int status = dir ? 0 : err_set_errno(err, ERR_FAILED, "%s", c->partial);

    while (dir && !status && (entry = readdir(dir)))
        if (str_ends_with(entry->d_name, DONE))
            status =
                file_remove_tree(arena_printf(&arena, "%s/%s", c->partial, entry->d_name), err);
    if (dir)
        closedir(dir);
    /* The journal is removed last: without it the conversion would start from the beginning. */
    if (!status)
        status = file_remove_tree(notes_path(&arena, c), err);
    if (!status)
        status = file_sync_folder(c->partial, err);
    arena_release(&arena);
    return status;
}
