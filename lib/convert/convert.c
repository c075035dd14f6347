/*
 * convert.c - which way it goes
 */
#include "convert/convert.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "config/hf_config.h"
#include "convert/convert_impl.h"

void conversion_tell(struct conversion *c, const char *doing, int64_t n_bytes)
{
    c->done += n_bytes;
    if (c->options->progress)
        c->options->progress(c->options->context, doing, c->done, c->total);
}

static int is_empty_folder(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int n = 0;

    while (dir && (entry = readdir(dir)))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (dir)
        closedir(dir);
    return dir && n == 0;
}

/* Nothing that is there is replaced: it may be somebody's only copy. */
static int check_target(const char *to, struct err *err)
{
    if (!file_exists(to) || is_empty_folder(to))
        return 0;
    return err_set(err, ERR_CONFIG, "--to %s is there already (hint: another name, or remove it)",
                   to);
}

/* The family of a checkpoint: of the folder it came from, else the plainest. */
static int find_family(struct conversion *c, struct err *err)
{
    const char *carried = c->from.folder;

    if (c->from.weights.store)
        carried = arena_printf(&c->arena, "%s/" STORE_CARRIED, carried);
    if (file_exists(arena_printf(&c->arena, "%s/config.json", carried)))
        c->family = hf_config_family(carried, &c->arena, err);
    else if (!(c->family = hf_config_family_of(&c->from.job.model)))
        err_set(err, ERR_CONFIG,
                "%s: no family that transformers has is of this model's shape: it cannot become a "
                "Hugging Face folder",
                c->from.folder);
    return c->family ? 0 : -1;
}

/* A name without slashes at its end, or with the folder beside it still to be made. */
static const char *plain_path(struct arena *arena, const char *path)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/')
        length--;
    return arena_strndup(arena, path, length);
}

static int make_parent(struct arena *arena, const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/');

    if (!slash || slash == path)
        return 0;
    return file_make_folders(arena_strndup(arena, path, (size_t)(slash - path)), err);
}

static int convert_any(struct conversion *c, struct err *err)
{
    struct convert_options options = *c->options;
    struct err ignored;

    if (!served_is(options.from))
        return hf_folder_refuse(options.from, err);
    options.to = plain_path(&c->arena, options.to);
    c->options = &options;
    c->partial = store_partial(options.to, &c->arena);
    if (check_target(options.to, err) < 0 || served_open(&c->from, options.from, err) < 0)
        return -1;
    int status = find_family(c, err);
    if (!status)
        status = make_parent(&c->arena, options.to, err);
    if (!status) {
        snprintf(c->result->family, sizeof c->result->family, "%s", c->family);
        c->result->to_checkpoint = c->from.weights.folder != NULL;
        status = c->from.weights.folder ? convert_to_checkpoint(c, err) : convert_to_folder(c, err);
    }
    if (!status && options.verify && convert_verify(c, err) < 0) {
        file_remove_tree(options.to, &ignored);
        status = -1;
    }
    served_close(&c->from);
    return status;
}

int convert_carry(const char *from, const char *to, int with_config, struct err *err)
{
    return carry_files(from, to, with_config, err);
}

int convert_model(const struct convert_options *options, struct convert_result *result,
                  struct err *err)
{
    struct conversion conversion = { .options = options, .result = result };
    struct err ignored;

    *result = (struct convert_result){ 0 };
    int status = convert_any(&conversion, err);
    if (status < 0 && conversion.partial && err->code != ERR_CONFIG)
        file_remove_tree(conversion.partial, &ignored);
    arena_release(&conversion.arena);
    return status;
}
