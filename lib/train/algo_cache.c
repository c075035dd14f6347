/*
 * algo_cache.c - see the header
 */
#include "train/algo_cache.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "ckpt/store.h"
#include "layout/axes.h"
#include "train/trainer_impl.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)

static void path_of(const struct job *job, struct str *path)
{
    str_printf(path, "%s/kernels.txt", job->output);
}

/* What the newest checkpoint says, NULL where there is none: a run whose folder was not copied
 * whole. */
static char *text_of_checkpoint(const struct job *job)
{
    struct arena arena = { 0 };
    struct store *store;
    struct err ignored;
    char *text = NULL;
    const char *folder = arena_printf(&arena, "%s/checkpoints", job->output);
    const char *newest =
        store_count(folder, &ignored) > 0 ? store_newest(folder, &arena, &ignored) : NULL;

    if (newest && store_open(&store, newest, &ignored) == 0) {
        cJSON *state = cJSON_Parse(store_state(store));
        const cJSON *kernels = cJSON_GetObjectItemCaseSensitive(state, ALGO_CACHE_FIELD);

        if (cJSON_IsString(kernels))
            text = strdup(kernels->valuestring);
        cJSON_Delete(state);
        store_close(store);
    }
    arena_release(&arena);
    return text;
}

void algo_cache_recall(const struct job *job, struct kernels *kernels)
{
    struct str path = { 0 };
    struct err err;
    size_t n_bytes;
    char *text = NULL;

    if (!kernels_are_gpu(kernels))
        return;
    path_of(job, &path);
    if (!file_exists(str_text(&path)) ||
        file_read(str_text(&path), FILE_BYTES_MAX, ERR_DATA, &text, &n_bytes, &err) < 0)
        text = text_of_checkpoint(job);
    if (text && kernels_choices_load(kernels, text, &err) < 0)
        log_warn("%s: %s: kernels are selected again, and bits may differ", str_text(&path),
                 err.text);
    free(text);
    str_release(&path);
}

/* The lowest rank of a pipeline rank. */
static int first_of(const struct mesh *mesh, int pp_rank)
{
    int rank = 0;

    while (mesh_coordinate(mesh, rank, axes_stages()) != pp_rank)
        rank++;
    return rank;
}

/* *text, with its end, becomes root's, to be freed by the caller; own: what root prints. */
static int learn(struct trainer *t, int root, const struct str *own, char **text, struct err *err)
{
    uint64_t n_bytes = own->length + 1;

    *text = NULL;
    if (trainer_broadcast(t, &n_bytes, sizeof n_bytes, root, err) < 0)
        return -1;
    *text = malloc(n_bytes);
    CHECK(*text);
    if (t->world_rank == root)
        memcpy(*text, str_text(own), n_bytes);
    return trainer_broadcast(t, *text, n_bytes, root, err);
}

/* Have the libraries choose for all ops of all programs, but for what is chosen already. */
static int reserve(struct trainer *t, struct err *err)
{
    int status = run_reserve(&t->program, t->options.kernels, t->options.progress, err);

    for (int i = 0; i < t->n_shorter && !status; i++)
        status = run_reserve(&t->shorter[i], t->options.kernels, t->options.progress, err);
    return status;
}

/*
 * A rank that cannot take what another chose ends this on all of them. Of stages that chose for the
 * same product the first goes last, and stays.
 */
static int share(struct trainer *t, struct err *err)
{
    struct kernels *kernels = t->options.kernels;
    const struct mesh *mesh = &t->program.mesh;
    struct str own = { 0 };
    int status = 0;

    kernels_choices_print(kernels, &own);
    kernels_choices_forget(kernels);
    for (int stage = mesh->size[axes_stages()] - 1; stage >= 0 && !status; stage--) {
        char *text;

        status = learn(t, first_of(mesh, stage), &own, &text, err);
        if (!status)
            status = trainer_settle(t, kernels_choices_load(kernels, text, err), err);
        free(text);
    }
    str_release(&own);
    return status;
}

int algo_cache_make(struct trainer *t, struct err *err)
{
    if (!kernels_are_gpu(t->options.kernels))
        return 0;
    progress_phase(t->options.progress, "measuring and selecting kernels");
    int status = trainer_settle(t, reserve(t, err), err);
    if (!status)
        status = share(t, err);
    /* What another rank chose has not been run by this one's library, maybe. */
    return status ? status : trainer_settle(t, reserve(t, err), err);
}

int algo_cache_keep(const struct job *job, struct kernels *kernels, struct err *err)
{
    struct str path = { 0 }, text = { 0 };
    int status = 0;

    kernels_choices_print(kernels, &text);
    path_of(job, &path);
    if (text.length)
        status = file_write(str_text(&path), str_text(&text), text.length, err);
    str_release(&path);
    str_release(&text);
    return status;
}
