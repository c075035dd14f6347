/*
 * init_from.c - a run that begins with weights from elsewhere: a HF folder, a checkpoint, another
 * run
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "ckpt/grown_vocab.h"
#include "train/numerics.h"
#include "train/trainer_impl.h"
#include "weights/cells.h"
#include "weights/init_weights.h"
#include "weights/slices.h"

/* The model that a folder holds, by its config.json or by the checkpoint's job. */
static int read_model(struct trainer *t, const char *path, struct weights *weights, struct job *job,
                      struct err *err)
{
    struct arena *arena = &t->program.arena;

    if (hf_folder_is(path)) {
        if (job_read_folder(job, path, NULL, 0, arena, err) < 0)
            return -1;
        return weights_open(weights, path, &job->model, arena, err);
    }
    if (weights_open(weights, path, NULL, arena, err) < 0)
        return -1;
    cJSON *state = cJSON_Parse(store_state(weights->store));
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(state, "job");
    int status = cJSON_IsString(text)
                     ? job_read_model(job, text->valuestring, strlen(text->valuestring), path, NULL,
                                      0, arena, err)
                     : err_set(err, ERR_DATA, "%s does not contain its job", path);
    cJSON_Delete(state);
    return status;
}

/* The growth of the vocabulary is reported when the data is prepared (cmd); here it is not reported
 * again. */
static int grow(struct trainer *t, struct vocab_source *source, struct job *theirs, struct err *err)
{
    const struct model_spec *ours = &t->job->model;

    source->rows_there = source->rows = theirs->model.vocab_size;
    if (t->job->kind == JOB_PRETRAIN || theirs->model.vocab_size >= ours->vocab_size)
        return 0;
    theirs->model.vocab_size = ours->vocab_size;
    return grown_vocab_grow(source, ours, ours->vocab_size, &t->program.arena, err);
}

static int read_source(void *context, const struct store_slice *slice, struct err *err)
{
    return grown_vocab_read(context, slice, err);
}

int trainer_begin(struct trainer *t, struct err *err)
{
    const char *path = t->job->train.init;
    struct slices list = { 0 };
    struct weights weights = { 0 };
    struct vocab_source source = { .weights = &weights };
    struct job theirs;

    t->is_gathered = false;
    if (!path)
        return 0;
    progress_phase(t->options.progress, "reading the initial weights");
    int status = read_model(t, path, &weights, &theirs, err);
    if (!status)
        status = grow(t, &source, &theirs, err);
    if (!status)
        status = numerics_check_weights(t->job, &theirs.model, path, err);
    slices_of_masters(&list, t->run, &t->program, &t->place);
    for (int i = 0; i < list.n && !status; i++) {
        progress_beat(t->options.progress);
        status = cells_read(t->run, &list.slices[i], read_source, &source, err);
    }
    slices_release(&list);
    weights_close(&weights);
    if (status < 0)
        return err_add(err, "train.init");
    return init_weights_from_masters(t->run, &t->program, &t->place, t->options.pool, err);
}
