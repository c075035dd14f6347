/*
 * served.c - from a folder to a job and weights
 */
#include "serve/served.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hub.h"
#include "base/log.h"
#include "ckpt/carried.h"
#include "config/hf_config.h"
#include "weights/cells.h"
#include "weights/rectangles.h"

/* The tokenizer of a checkpoint lies in it, wherever its run was moved to; older ones have it where
 * their job says. Else it is what came with the weights. */
static void find_tokenizer(struct served *served)
{
    const char *own = arena_printf(&served->arena, "%s/" STORE_CARRIED, served->folder);
    const char *base = served->base;

    if (served->weights.store)
        base = arena_printf(&served->arena, "%s/" STORE_CARRIED, base);
    if (served->is_checkpoint && carried_has_tokenizer(own))
        served->job.data.tokenizer = own;
    else if ((!served->job.data.tokenizer || !file_exists(served->job.data.tokenizer)) &&
             carried_has_tokenizer(base))
        served->job.data.tokenizer = base;
}

/* A carried one that has changed since is damaged; another one may be meant. */
static int check_tokenizer(const struct served *served, const char *path, const char *other,
                           const struct tokenizer *tokenizer, struct err *err)
{
    char hash[TOKENIZER_HASH_BYTES];

    tokenizer_hash_text(tokenizer, hash);
    enum tokenizer_likeness likeness = tokenizer_hash_compare(hash, served->tokenizer_hash);
    if (!*served->tokenizer_hash || likeness == TOKENIZER_SAME || likeness == TOKENIZER_UNKNOWN)
        return 0;
    if (other) {
        log_warn("%s is not the tokenizer that %s was trained with: ids may stand for other text",
                 path, served->folder);
        return 0;
    }
    return err_set(
        err, ERR_DATA,
        "%s is not the tokenizer that %s was trained with: its hash is %s, not %s (hint: "
        "--tokenizer DIR)",
        path, served->folder, hash, served->tokenizer_hash);
}

int served_open_tokenizer(const struct served *served, const char *other,
                          struct tokenizer **tokenizer, struct err *err)
{
    const char *path = other ? other : served->job.data.tokenizer;

    if (!path)
        return err_set(err, ERR_CONFIG,
                       "the model's job has no data.tokenizer (hint: --tokenizer DIR)");
    if (tokenizer_open(tokenizer, path, err) < 0)
        return other ? -1 : err_add(err, "the job's data.tokenizer, else --tokenizer DIR");
    if (check_tokenizer(served, path, other, *tokenizer, err) == 0)
        return 0;
    tokenizer_close(*tokenizer);
    *tokenizer = NULL;
    return -1;
}

bool served_is(const char *path)
{
    struct arena arena = { 0 };
    struct err ignored;
    int is = hf_folder_is(path) || store_count(path, &ignored) > 0 ||
             file_exists(arena_printf(&arena, "%s/manifest.json", path)) ||
             file_is_folder(arena_printf(&arena, "%s/checkpoints", path));

    arena_release(&arena);
    return is;
}

static int read_job(struct served *served, struct err *err)
{
    cJSON *state = cJSON_Parse(store_state(served->weights.store));
    const cJSON *job = cJSON_GetObjectItemCaseSensitive(state, "job");
    const cJSON *hash = cJSON_GetObjectItemCaseSensitive(state, "tokenizer");
    int status;

    const char *changed =
        carried_changed(arena_printf(&served->arena, "%s/" STORE_CARRIED, served->folder),
                        cJSON_GetObjectItemCaseSensitive(state, "carried"), &served->arena);

    if (changed)
        log_warn("%s has changed since it was saved", changed);
    if (cJSON_IsString(hash))
        snprintf(served->tokenizer_hash, sizeof served->tokenizer_hash, "%s", hash->valuestring);

    if (cJSON_IsString(job))
        status = job_read_model(&served->job, job->valuestring, strlen(job->valuestring), "its job",
                                NULL, 0, &served->arena, err);
    else
        status = err_set(err, ERR_DATA, "it does not contain its job");
    cJSON_Delete(state);
    served->weights.half_away =
        !status && served->job.optimizer.weight_rounding == WEIGHT_ROUNDING_HALF_AWAY;
    if (status < 0) {
        err->code = ERR_DATA;
        return err_add(err, "%s", served->folder);
    }
    return 0;
}

/* In the 16 bits that the model came in, which neither of the two kinds holds for the other. */
static int open_folder(struct served *served, struct err *err)
{
    struct job *job = &served->job;
    const char *family = hf_config_family(served->folder, &served->arena, err);

    if (!family)
        return -1;
    if (job_read_folder(job, served->folder, NULL, 0, &served->arena, err) < 0) {
        err->code = ERR_DATA;
        return -1;
    }
    if (hf_folder_open(&served->weights.folder, served->folder, family, &job->model, err) < 0)
        return -1;
    enum dtype stored = hf_folder_common_dtype(served->weights.folder);
    job->train.dtype = stored == DTYPE_BF16 || stored == DTYPE_F16 ? stored : DTYPE_F32;
    return 0;
}

static int open_any(struct served *served, const char *path, struct err *err)
{
    if (hf_folder_is(path)) {
        served->folder = arena_strdup(&served->arena, path);
        return open_folder(served, err);
    }
    if (hub_is_name(path))
        return hf_folder_refuse(path, err);
    served->folder = store_newest(path, &served->arena, err);
    served->is_checkpoint = served->folder != NULL;
    return served->folder && store_open(&served->weights.store, served->folder, err) == 0
               ? read_job(served, err)
               : -1;
}

const char *served_family(struct served *served, struct err *err)
{
    const char *folder = served->weights.folder ? served->base : NULL;

    if (served->weights.store)
        folder = arena_printf(&served->arena, "%s/" STORE_CARRIED, served->base);
    if (file_exists(arena_printf(&served->arena, "%s/config.json", folder)))
        return hf_config_family(folder, &served->arena, err);
    const char *family = hf_config_family_of(&served->job.model, err);
    if (!family)
        err_add(err, "%s", served->folder);
    return family;
}

/* A checkpoint with adapters alone: the model's own weights are elsewhere. */
static int open_base(struct served *served, struct err *err)
{
    struct job *job = &served->job;
    char matrix[PARAMETER_NAME_MAX];

    /* Of the layers' matrices adapters never train any whole. */
    parameters_name(matrix, (struct parameter_id){ MODULE_ATTENTION_OUT, PART_WEIGHT, 0 });
    if (!served->weights.store || !job->lora.rank || !job->train.init ||
        store_find(served->weights.store, matrix))
        return 0;
    weights_close(&served->weights);
    job->tuning = NULL;
    served->base = job->train.init;
    struct model_spec there = job->model;
    struct job theirs;
    if (!hf_folder_is(job->train.init)) {
        served->base = store_newest(job->train.init, &served->arena, err);
        if (!served->base)
            return err_add(err, "%s has adapters for", served->folder);
    } else if (job_read_folder(&theirs, job->train.init, NULL, 0, &served->arena, err) == 0) {
        there.vocab_size = theirs.model.vocab_size; /* before tokens were added */
    } else {
        return err_add(err, "%s has adapters for", served->folder);
    }
    if (weights_open(&served->weights, served->base, &there, &served->arena, err) < 0)
        return err_add(err, "%s has adapters for", served->folder);
    return served_adapt(served, served->folder, err);
}

int served_adapt(struct served *served, const char *path, struct err *err)
{
    const char *family = served_family(served, err);

    if (!family)
        return -1;
    if (served->weights.adapter || (served->job.tuning && served->job.tuning->has_lora))
        return err_set(err, ERR_DATA, "%s has adapters already", served->folder);
    if (weights_adapt(&served->weights, path, family, &served->job.model, err) < 0)
        return -1;
    served->job.tuning = adapter_tuning(served->weights.adapter);
    served->job.model.vocab_size = adapter_vocab_size(served->weights.adapter);
    if (path != served->folder && adapter_tokenizer(served->weights.adapter)) {
        served->job.data.tokenizer = adapter_tokenizer(served->weights.adapter);
        *served->tokenizer_hash = '\0';
    }
    return 0;
}

static int open_model(struct served *served, const char *path, struct err *err)
{
    if (open_any(served, path, err) < 0)
        return -1;
    served->base = served->folder;
    return open_base(served, err);
}

int served_open(struct served *served, const char *path, struct err *err)
{
    memset(served, 0, sizeof *served);
    if (open_model(served, path, err) < 0) {
        served_close(served);
        return -1;
    }
    find_tokenizer(served);
    return 0;
}

const char *const served_weights_words[N_SERVED_WEIGHTS + 1] = {
    [SERVED_TRAINED] = "trained",
    [SERVED_AVERAGES] = "ema",
};

int served_use_weights(struct served *served, const char *word, struct err *err)
{
    if (!strcmp(word, served_weights_words[SERVED_TRAINED]))
        return 0;
    return weights_use_average(&served->weights, err) < 0 ? err_add(err, "%s", served->folder) : 0;
}

int served_open_adapted(struct served *served, const char *path, const char *adapter,
                        const char *weights, struct err *err)
{
    if (served_open(served, path, err) < 0)
        return -1;
    if ((!weights || served_use_weights(served, weights, err) == 0) &&
        (!adapter || served_adapt(served, adapter, err) == 0))
        return 0;
    served_close(served);
    return -1;
}

void served_close(struct served *served)
{
    for (int i = 0; i < served->n_members; i++) {
        weights_close(&served->members[i].weights);
        arena_release(&served->members[i].arena);
    }
    free(served->members);
    weights_close(&served->weights);
    arena_release(&served->arena);
    memset(served, 0, sizeof *served);
}

static int read_weights(void *context, const struct store_slice *slice, struct err *err)
{
    return weights_read(context, slice, err);
}

/* Rectangle by rectangle: what a tensor-parallel rank has of it; padding stays zero. */
static int load_one(const struct served *served, struct run *run, const struct program *program,
                    int parameter, struct err *err)
{
    const struct parameter *p = &program->parameters[parameter];
    struct store_slice slice = { .name = p->name,
                                 .dtype = program->values[p->weight].dtype,
                                 .n_dims = p->n_dims };
    char *data = run_data(run, p->weight, 0);
    struct tensor_rectangle r;

    rectangles_whole(program, parameter, &slice.rows, &slice.cols);
    const struct mesh_place alone = { 0 };
    const struct mesh_place *place = served->replica ? &served->replica->place : &alone;
    struct rectangle_walk walk = rectangle_walk(program, parameter, place, 0, p->rows * p->cols);
    while (rectangle_next(&walk, &r)) {
        rectangle_to_slice(&r, &slice);
        slice.stride = r.stride;
        slice.data = data + (size_t)r.local * dtype_bytes(slice.dtype);
        if (cells_read(run, &slice, read_weights, (void *)(uintptr_t)&served->weights, err) < 0)
            return err_add(err, "%s", served->folder);
    }
    return 0;
}

int served_load(struct served *served, struct run *run, const struct program *program,
                struct err *err)
{
    for (int i = 0; i < program->n_parameters; i++) {
        replica_beat(served->replica, "reading weights");
        if (load_one(served, run, program, i, err) < 0)
            return -1;
    }
    return 0;
}

void served_run_options(const struct served *served, struct run_options *options)
{
    const struct replica *r = served->replica;

    if (!r)
        return;
    options->comm = r->comm;
    options->worker = r->worker;
    options->progress = r->progress;
    options->first_rank = r->first_rank;
}
