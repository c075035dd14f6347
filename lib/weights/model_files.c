/*
 * model_files.c - gathering them
 */
#include "weights/model_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/carried.h"
#include "ckpt/hf_folder.h"
#include "ckpt/store.h"
#include "tokenizer/tokenizer.h"
#include "weights/special_tokens.h"

/* One file as another; a source that is not there is left out. */
static int copy_as(const char *from, const char *to, struct err *err)
{
    size_t n_bytes;
    char *data;

    if (!file_exists(from))
        return 0;
    if (file_read(from, (size_t)256 << 20, ERR_DATA, &data, &n_bytes, err) < 0)
        return -1;
    int status = file_write(to, data, n_bytes, err);
    free(data);
    return status;
}

/* A tokenizer that is named by its file: in a folder it must be the only one. */
static int put_file(const char *path, const char *folder, struct arena *arena, struct err *err)
{
    static const char *const beside[] = { "tokenizer_config.json", "special_tokens_map.json",
                                          "added_tokens.json",     "chat_template.jinja",
                                          "chat_template.json",    "generation_config.json" };
    const char *slash = strrchr(path, '/'), *other;
    const char *from = slash ? arena_strndup(arena, path, (size_t)(slash - path) + 1) : "";
    const char *name = tokenizer_file_name(path, &other);

    if (copy_as(path, arena_printf(arena, "%s/%s", folder, name), err) < 0)
        return -1;
    if (other && copy_as(arena_printf(arena, "%s%s", from, other),
                         arena_printf(arena, "%s/%s", folder, other), err) < 0)
        return -1;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (copy_as(arena_printf(arena, "%s%s", from, beside[i]),
                    arena_printf(arena, "%s/%s", folder, beside[i]), err) < 0)
            return -1;
    return 0;
}

int model_files_put_tokenizer(const char *path, const char *folder, struct err *err)
{
    struct arena arena = { 0 };
    int status = carried_remove_tokenizer(folder, err);

    if (!status)
        status = file_is_folder(path) ? carried_copy(path, folder, CARRIED_TOKENIZER, err)
                                      : put_file(path, folder, &arena, err);
    arena_release(&arena);
    return status;
}

const char *model_files_base(const struct job *job, struct arena *arena)
{
    const char *from[] = { job->train.init, job->output };
    struct err ignored;

    if (!job->train.init)
        return NULL;
    if (hf_folder_is(job->train.init))
        return job->train.init;
    for (int i = 0; i < 2; i++) {
        const char *newest = store_newest(from[i], arena, &ignored);
        const char *folder = newest ? arena_printf(arena, "%s/" STORE_CARRIED, newest) : NULL;

        if (folder && file_is_folder(folder))
            return folder;
    }
    return NULL;
}

static int gather(const struct job *job, const char *base, const char *folder, struct err *err)
{
    if (base && carried_copy(base, folder, CARRIED_CONFIG, err) < 0)
        return -1;
    if (job->data.tokenizer && model_files_put_tokenizer(job->data.tokenizer, folder, err) < 0)
        return err_add(err, "data.tokenizer");
    if (job->kind == JOB_PRETRAIN || !job->data.chat_template)
        return 0;
    if (special_tokens_set_template(folder, job->data.chat_template, err) < 0)
        return err_add(err, "data.template");
    return carried_remove_templates(folder, err);
}

int model_files_of_run(const struct job *job, const char **out, struct arena *arena,
                       struct err *err)
{
    const char *base = model_files_base(job, arena);
    const char *folder = arena_printf(arena, "%s/checkpoints/" CARRIED_OF_RUN, job->output);
    const char *partial = arena_printf(arena, "%s.partial", folder);

    *out = NULL;
    if (!base && !job->data.tokenizer)
        return 0;
    if (file_remove_tree(partial, err) < 0 || file_make_folder(partial, err) < 0 ||
        gather(job, base, partial, err) < 0 || file_sync_folder(partial, err) < 0 ||
        file_remove_tree(folder, err) < 0)
        return -1;
    if (rename(partial, folder) < 0)
        return err_set_errno(err, ERR_FAILED, "cannot rename %s to %s", partial, folder);
    *out = folder;
    return 0;
}
