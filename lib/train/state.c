/*
 * state.c - a trainer's state as JSON of a checkpoint, and a checkpoint into a trainer (save.c is
 * the other way)
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/num.h"
#include "ckpt/store.h"
#include "train/algo_cache.h"
#include "train/trainer_impl.h"
#include "weights/cells.h"
#include "weights/init_weights.h"
#include "weights/slices.h"
#include "weights/state_convert.h"

/* ---- what a checkpoint says ---- */

static void add_choices(const struct trainer *t, cJSON *state)
{
    struct str text = { 0 };

    kernels_choices_print(t->options.kernels, &text);
    if (text.length)
        cJSON_AddStringToObject(state, ALGO_CACHE_FIELD, str_text(&text));
    str_release(&text);
}

/* [[first, n], ...] */
static void add_gaps(const struct trainer *t, cJSON *list)
{
    for (int i = 0; i < t->n_gaps; i++) {
        double gap[2] = { (double)t->gaps[i].first, (double)t->gaps[i].n };

        cJSON_AddItemToArray(list, cJSON_CreateDoubleArray(gap, 2));
    }
}

void trainer_describe_state(const struct trainer *t, const char *extra, struct str *out)
{
    cJSON *state = cJSON_CreateObject();
    char hash[24];

    snprintf(hash, sizeof hash, "%016" PRIx64, t->numerics);
    cJSON_AddNumberToObject(state, "step", (double)t->step);
    cJSON_AddNumberToObject(state, "updates", (double)t->updates);
    cJSON_AddNumberToObject(state, "tokens", (double)t->tokens);
    cJSON_AddNumberToObject(state, "skipped", (double)t->n_skipped);
    if (t->n_reruns)
        cJSON_AddNumberToObject(state, "reruns", (double)t->n_reruns);
    if (t->program.ports.gradient_scale) {
        cJSON_AddNumberToObject(state, "loss_scale", t->loss_scale);
        cJSON_AddNumberToObject(state, "clean_steps", (double)t->n_clean);
    }
    if (t->n_gaps)
        add_gaps(t, cJSON_AddArrayToObject(state, "left_out"));
    cJSON_AddStringToObject(state, "numerics", hash);
    cJSON_AddStringToObject(state, "numerics_text", str_text(&t->description));
    if (t->numerics_changes)
        cJSON_AddRawToObject(state, "numerics_changes", t->numerics_changes);
    cJSON_AddNumberToObject(state, "world_size", t->world_size);
    struct str job = { 0 };
    job_print_absolute(t->job, &job);
    cJSON_AddStringToObject(state, "job", str_text(&job));
    str_release(&job);
    add_choices(t, state);
    if (t->carried.tokenizer)
        cJSON_AddStringToObject(state, "tokenizer", t->carried.tokenizer);
    if (t->carried.hashes)
        cJSON_AddRawToObject(state, "carried", t->carried.hashes);
    cJSON_AddItemToObject(state, "run", extra ? cJSON_CreateRaw(extra) : cJSON_CreateObject());
    char *text = cJSON_PrintUnformatted(state);
    CHECK(text);
    str_clear(out);
    str_add(out, text);
    free(text);
    cJSON_Delete(state);
}

/* Adapters of a model that lies elsewhere are saved without it. */
enum slices_of trainer_saved_parameters(const struct trainer *t)
{
    return t->job->lora.rank && t->job->train.init ? SLICES_OF_TRAINED : SLICES_OF_ALL;
}

int trainer_redescribe(struct trainer *t, const char *folder, const char *extra, struct err *err)
{
    struct str state = { 0 };

    trainer_describe_state(t, extra, &state);
    int status = store_restate(folder, t->step, str_text(&state), err);
    str_release(&state);
    return status;
}

void trainer_set_carried(struct trainer *t, const struct trainer_carried *carried)
{
    t->carried = *carried;
}

/* ---- restoring ---- */

static int64_t number_of(const cJSON *state, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(state, name);

    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < 9e15
               ? (int64_t)item->valuedouble
               : -1;
}

/* Of a run in another dtype there is none: it begins as a new one. */
static void read_loss_scale(struct trainer *t, const cJSON *state)
{
    int64_t scale = number_of(state, "loss_scale"), n_clean = number_of(state, "clean_steps");
    const struct job *job = t->job;

    if (!t->program.ports.gradient_scale || scale < 1 || scale & (scale - 1) || n_clean < 0)
        return;
    t->loss_scale =
        (double)max_i64(job->train.loss_scale.min, min_i64(job->train.loss_scale.max, scale));
    t->n_clean = n_clean;
}

static void read_gaps(struct trainer *t, const cJSON *list)
{
    const cJSON *item;

    t->n_gaps = 0;
    cJSON_ArrayForEach(item, list)
    {
        const cJSON *first = cJSON_GetArrayItem(item, 0), *n = cJSON_GetArrayItem(item, 1);

        if (t->n_gaps == TRAINER_MAX_GAPS || !cJSON_IsNumber(first) || !cJSON_IsNumber(n) ||
            n->valuedouble < 1)
            continue;
        t->gaps[t->n_gaps].first = (int64_t)first->valuedouble;
        t->gaps[t->n_gaps++].n = (int64_t)n->valuedouble;
    }
}

static void add_lines(cJSON *list, const struct str *lines)
{
    char *copy = strdup(str_text(lines)), *rest = copy, *line;

    CHECK(copy);
    while ((line = strsep(&rest, "\n")))
        if (*line)
            cJSON_AddItemToArray(list, cJSON_CreateString(line));
    free(copy);
}

/*
 * At which steps of the run its numerics changed, and how, for a later reader of a checkpoint: what
 * the restored one says, and the change that this resume is.
 */
static void note_numerics(struct trainer *t, const cJSON *state,
                          const struct numerics_differences *differences)
{
    const cJSON *before = cJSON_GetObjectItemCaseSensitive(state, "numerics_changes");
    const cJSON *from = cJSON_GetObjectItemCaseSensitive(state, "numerics");
    cJSON *changes = cJSON_IsArray(before) ? cJSON_Duplicate(before, 1) : cJSON_CreateArray();
    char hash[24];

    if (differences->logged.length || differences->accepted.length) {
        cJSON *change = cJSON_CreateObject();

        snprintf(hash, sizeof hash, "%016" PRIx64, t->numerics);
        cJSON_AddNumberToObject(change, "step", (double)t->step);
        cJSON_AddStringToObject(change, "from", cJSON_IsString(from) ? from->valuestring : "");
        cJSON_AddStringToObject(change, "to", hash);
        add_lines(cJSON_AddArrayToObject(change, "accepted"), &differences->accepted);
        add_lines(cJSON_AddArrayToObject(change, "logged"), &differences->logged);
        cJSON_AddItemToArray(changes, change);
    }
    free(t->numerics_changes);
    t->numerics_changes = cJSON_GetArraySize(changes) ? cJSON_PrintUnformatted(changes) : NULL;
    cJSON_Delete(changes);
}

static int read_state(struct trainer *t, const char *text, struct numerics_differences *differences,
                      struct err *err)
{
    cJSON *state = cJSON_Parse(text);
    const cJSON *description = cJSON_GetObjectItemCaseSensitive(state, "numerics_text");
    const cJSON *run = cJSON_GetObjectItemCaseSensitive(state, "run");
    int status = -1;

    t->step = number_of(state, "step");
    t->updates = number_of(state, "updates");
    t->tokens = number_of(state, "tokens");
    t->n_skipped = number_of(state, "skipped");
    t->n_reruns = cJSON_HasObjectItem(state, "reruns") ? number_of(state, "reruns") : 0;
    read_loss_scale(t, state);
    read_gaps(t, cJSON_GetObjectItemCaseSensitive(state, "left_out"));
    if (t->step < 0 || t->updates < 0 || t->tokens < 0 || t->n_skipped < 0 ||
        !cJSON_IsString(description))
        err_set(err, ERR_DATA, "%s",
                cJSON_HasObjectItem(state, "converted")
                    ? "it has weights, but no training state to resume from (hint: give it as "
                      "train.init)"
                    : "its training state is incomplete");
    else
        status = numerics_compare(str_text(&t->description), description->valuestring,
                                  t->options.accept_numerics, differences, err);
    if (!status)
        note_numerics(t, state, differences);
    free(t->restored_extra);
    t->restored_extra = run ? cJSON_PrintUnformatted(run) : NULL;
    cJSON_Delete(state);
    return status;
}

static int read_store(void *context, const struct store_slice *slice, struct err *err)
{
    return store_read(context, slice, err);
}

static void list_slices(const struct trainer *t, bool is_local, struct slices *list)
{
    slices_to_read(list, t->run, &t->program, &t->place, trainer_saved_parameters(t));
    if (is_local)
        slices_make_whole(list);
}

/* What codecs keep from step to step: errors, or factors. */
struct codec_state {
    void (*list)(struct slices *slices, const struct run *run, const struct program *program,
                 const struct mesh_place *place, bool is_saved);
    void (*clear)(struct run *run, const struct program *program);
    const char *dropped; /* of %d data-parallel ranks */
};

/* What is lost is of ranks: of as many others it means nothing. */
static const struct codec_state codec_states[] = {
    { slices_of_errors, slices_clear_errors,
      "parallel.compress: the checkpoint has not what %d data-parallel ranks have lost of "
      "gradients "
      "so far: that is dropped, and starts from zero" },
    { slices_of_factors, slices_clear_factors,
      "parallel.compress: the checkpoint has no factors of this compress_rank and layout: %d "
      "data-parallel ranks start from random ones" },
};
enum { N_CODEC_STATES = sizeof codec_states / sizeof *codec_states };

static int read_codec_state(struct trainer *t, const struct codec_state *s, struct store *store,
                            bool is_local, struct err *err)
{
    struct slices list = { 0 };
    bool is_there = true;
    int status = 0;

    s->list(&list, t->run, &t->program, &t->place, false);
    if (is_local)
        slices_make_whole(&list);
    for (int i = 0; i < list.n && is_there; i++) {
        const struct store_slice *want = &list.slices[i], *there = store_find(store, want->name);

        is_there = there && there->rows == want->rows && there->cols == want->cols;
    }
    if (!is_there)
        s->clear(t->run, &t->program);
    if (!is_there && t->world_rank == 0)
        log_info(s->dropped, t->job->parallel.dp);
    for (int i = 0; i < list.n && is_there && !status; i++)
        status = cells_read(t->run, &list.slices[i], read_store, store, err);
    slices_release(&list);
    return status;
}

/* Scales are of the blocks of parts: ranks that divide parameters otherwise have other blocks. */
static int check_scales(const struct store *store, const struct slices *list, struct err *err)
{
    for (int i = 0; i < list->n; i++) {
        const struct store_slice *want = &list->slices[i], *there = store_find(store, want->name);

        if (!str_ends_with(want->name, ".scale") || !there || there->rows == want->rows)
            continue;
        return err_set(err, ERR_CONFIG,
                       "optimizer states are kept in blocks of parameters' parts, of which %.200s "
                       "has %lld in the checkpoint and %lld here (hint: the parallel.tp and "
                       "parallel.cp that it was saved with, or a new run from its weights: "
                       "train.init and a different output folder)",
                       want->name, (long long)there->rows, (long long)want->rows);
    }
    return 0;
}

/* A checkpoint of a run without averages: they begin with its weights. */
static int read_slice(struct trainer *t, struct store *store, struct store_slice *slice,
                      int *n_begun, struct err *err)
{
    size_t length = strlen(slice->name), n_suffix = strlen(SLICES_EMA);

    if (length > n_suffix && !strcmp(slice->name + length - n_suffix, SLICES_EMA) &&
        !store_find(store, slice->name)) {
        char *name = strndup(slice->name, length - n_suffix);

        CHECK(name);
        slice->name = name;
        ++*n_begun;
        int status = cells_read(t->run, slice, read_store, store, err);
        free(name);
        return status;
    }
    return cells_read(t->run, slice, read_store, store, err);
}

/* Numerics have refused it unless the command accepts it. */
static int convert_states(struct trainer *t, struct store *store, struct err *err)
{
    int n = state_convert(t->run, &t->program, &t->place, store, err);

    if (n > 0 && t->world_rank == 0)
        log_info("optimizer.states: those of the checkpoint are converted (%d moments)", n);
    return n < 0 ? -1 : 0;
}

static int read_slices(struct trainer *t, struct store *store, bool is_local, struct err *err)
{
    struct slices list = { 0 };
    int status = 0, n_begun = 0;

    list_slices(t, is_local, &list);
    if (!is_local && check_scales(store, &list, err) < 0) {
        slices_release(&list);
        return -1;
    }
    slices_clear_split(t->run, &t->program, &t->place);
    if (trainer_saved_parameters(t) == SLICES_OF_TRAINED)
        status = trainer_begin(t, err);
    for (int i = 0; i < list.n && !status; i++) {
        progress_beat(t->options.progress);
        if (!is_local && state_convert_wants(store, &list.slices[i]))
            continue;
        status = read_slice(t, store, &list.slices[i], &n_begun, err);
    }
    if (!status && !is_local)
        status = convert_states(t, store, err);
    if (n_begun && t->world_rank == 0)
        log_info("train.ema: the checkpoint has no average of weights: it begins with them");
    slices_release(&list);
    for (int i = 0; i < N_CODEC_STATES && !status; i++)
        status = read_codec_state(t, &codec_states[i], store, is_local, err);
    if (!status)
        status = init_weights_from_masters(t->run, &t->program, &t->place, t->options.pool, err);
    return status;
}

static int restore(struct trainer *t, const char *folder, bool is_local,
                   struct numerics_differences *differences, struct err *err)
{
    struct store *store;

    t->is_gathered = false;
    progress_phase_path(t->options.progress, "reading the checkpoint", folder);
    if (store_open(&store, folder, err) < 0)
        return -1;
    int status = read_state(t, store_state(store), differences, err);
    if (!status)
        status = read_slices(t, store, is_local, err);
    store_close(store);
    if (status < 0)
        return err_add(err, "%s", folder);
    return trainer_open_data(t, err);
}

int trainer_restore(struct trainer *t, const char *folder, struct numerics_differences *differences,
                    struct err *err)
{
    return restore(t, folder, false, differences, err);
}

int trainer_restore_local(struct trainer *t, const char *folder,
                          struct numerics_differences *differences, struct err *err)
{
    return restore(t, folder, true, differences, err);
}

/* Whether it was saved by this rank of this layout: its tensors are those that would be read. */
static int check_layout(const struct trainer *t, const struct store *store, const cJSON *state,
                        struct err *err)
{
    struct slices list = { 0 };
    int is_same = number_of(state, "world_size") == t->world_size;

    list_slices(t, false, &list);
    for (int i = 0; i < N_CODEC_STATES; i++)
        codec_states[i].list(&list, t->run, &t->program, &t->place, false);
    slices_make_whole(&list);
    slices_keep_once(&list);
    is_same = is_same && store_n_tensors(store) == list.n;
    for (int i = 0; i < list.n && is_same; i++) {
        const struct store_slice *want = &list.slices[i], *there = store_find(store, want->name);

        is_same = there && there->dtype == want->dtype && there->n_dims == want->n_dims &&
                  there->rows == want->rows && there->cols == want->cols;
    }
    slices_release(&list);
    return is_same ? 0 : err_set(err, ERR_DATA, "it is of another layout");
}

int trainer_examine_local(const struct trainer *t, const char *folder, char **state,
                          struct err *err)
{
    struct store *store;
    char hash[24];

    if (store_open(&store, folder, err) < 0)
        return -1;
    cJSON *tree = cJSON_Parse(store_state(store));
    const cJSON *numerics = cJSON_GetObjectItemCaseSensitive(tree, "numerics");
    snprintf(hash, sizeof hash, "%016" PRIx64, t->numerics);
    int status = check_layout(t, store, tree, err);
    if (!status && (!cJSON_IsString(numerics) || strcmp(numerics->valuestring, hash) != 0))
        status = err_set(err, ERR_DATA, "it is of other numerics");
    if (!status)
        *state = strdup(store_state(store));
    if (!status && !*state)
        status = err_set(err, ERR_DEVICE, "out of host memory");
    cJSON_Delete(tree);
    store_close(store);
    return status;
}

static int begin_again(struct trainer *t, struct err *err)
{
    t->step = t->updates = t->tokens = t->n_skipped = t->n_reruns = t->n_clean = 0;
    t->loss_scale = trainer_initial_loss_scale(t->job);
    free(t->restored_extra);
    free(t->numerics_changes);
    t->restored_extra = t->numerics_changes = NULL;
    slices_clear(t->run, &t->program, &t->place);
    for (int i = 0; i < N_CODEC_STATES; i++)
        codec_states[i].clear(t->run, &t->program);
    init_parameters(t->run, &t->program, &t->place, t->options.pool, t->job->train.seed);
    return trainer_begin(t, err) < 0 ? -1 : trainer_open_data(t, err);
}

int trainer_return_to(struct trainer *t, const char *folder, struct err *err)
{
    struct numerics_differences differences = { 0 };
    struct data_gap gaps[TRAINER_MAX_GAPS];
    int n_gaps = t->n_gaps;

    memcpy(gaps, t->gaps, sizeof gaps);
    int status = folder ? trainer_restore(t, folder, &differences, err) : begin_again(t, err);
    numerics_differences_release(&differences);
    /* The checkpoint may be older than what is left out; a seek heeds that. */
    memcpy(t->gaps, gaps, sizeof gaps);
    t->n_gaps = n_gaps;
    return status;
}
