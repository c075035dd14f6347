/*
 * trainer_data.c - the loaders of the training data and of the held-out data
 */
#include "base/fault.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/num.h"
#include "data/stream/indexed.h"
#include "layout/axes.h"
#include "train/trainer_impl.h"

static const struct loader_dataset *datasets_of(struct trainer *t)
{
    const struct job *job = t->job;

    if (t->datasets)
        return t->datasets;
    t->datasets = arena_array(&t->program.arena, struct loader_dataset, job->data.n_train);
    for (int i = 0; i < job->data.n_train; i++)
        t->datasets[i] =
            (struct loader_dataset){ job->data.train[i].path, job->data.train[i].weight };
    return t->datasets;
}

int64_t trainer_data_step(const struct trainer *t)
{
    int64_t step = t->step;

    for (int i = 0; i < t->n_gaps; i++)
        if (step >= t->gaps[i].first)
            step += t->gaps[i].n;
    return step;
}

static int64_t n_left_out(const struct trainer *t)
{
    int64_t n = 0;

    for (int i = 0; i < t->n_gaps; i++)
        n += t->gaps[i].n;
    return n;
}

static struct loader_options loader_options_of(struct trainer *t)
{
    const struct job *job = t->job;
    const struct mesh *mesh = &t->program.mesh;

    return (struct loader_options){ .datasets = datasets_of(t),
                                    .n_datasets = job->data.n_train,
                                    .samples = job->samples.train,
                                    .blends_samples = job->samples.are_blended,
                                    .packing = job->data.packing,
                                    .lengths = t->lengths,
                                    .n_lengths = t->n_shorter ? t->n_shorter + 1 : 0,
                                    .vocab_size = job->model.vocab_size,
                                    .seq_len = job->data.seq_len,
                                    .global_batch = job->train.global_batch,
                                    .micro_batch = job->train.micro_batch,
                                    .sizes = job->parallel.micro_batches.values,
                                    .n_sizes = job->parallel.micro_batches.n,
                                    .counts = job->parallel.replica_micro_batches.values,
                                    .dp_rank = mesh_data_rank(mesh, t->world_rank),
                                    .dp_size = job->parallel.dp,
                                    .cut = job_context_cut(job),
                                    .ulysses_rank =
                                        mesh_coordinate(mesh, t->world_rank, axes_heads()),
                                    .cp_rank = mesh_coordinate(mesh, t->world_rank, axes_keys()),
                                    .ring = job->parallel.cp_kind == CP_RING,
                                    .ring_window = model_spec_window(&job->model, 0),
                                    .window = t->program.ports.window_first ? job->model.window : 0,
                                    .seed = job->train.seed,
                                    .split = job->eval.split,
                                    .first_step = trainer_data_step(t),
                                    .n_steps = job->train.steps + n_left_out(t) };
}

/* Names the key, and what a prefix is, where the file is simply not there. */
static int check_there(const char *key, const char *prefix, struct err *err)
{
    struct str path = { 0 };
    char hint[1024]; /* HUB_HINT_MAX at least */

    str_printf(&path, "%s.idx", prefix);
    int there = file_exists(str_text(&path));
    str_release(&path);
    if (there)
        return 0;
    if (hub_is_name(prefix))
        return err_set(err, ERR_DATA, "%s: there is no %s.idx%s", key, prefix,
                       hub_hint(hint, sizeof hint, prefix, HUB_DATASET));
    indexed_hint(prefix, hint, sizeof hint);
    return err_set(err, ERR_DATA, "%s: there is no %s.idx (hint: %s)", key, prefix, hint);
}

int trainer_open_data(struct trainer *t, struct err *err)
{
    struct loader_options options = loader_options_of(t);

    loader_close(t->train);
    t->train = NULL;
    progress_phase_path(t->options.progress, "opening",
                        t->job->samples.train ? t->job->samples.train : "the data");
    for (int i = 0; i < t->job->data.n_train && !t->job->samples.train; i++) {
        progress_phase_path(t->options.progress, "opening", t->job->data.train[i].path);
        if (check_there("data.train", t->job->data.train[i].path, err) < 0)
            return -1;
    }
    fault_at("data", -1);
    t->data_step = options.first_step;
    return loader_open(&t->train, &options, err);
}

int trainer_seek_data(struct trainer *t, struct err *err)
{
    return t->data_step == trainer_data_step(t) ? 0 : trainer_open_data(t, err);
}

void trainer_leave_out(struct trainer *t, int64_t first_step, int64_t n)
{
    int64_t first = first_step;
    int at = t->n_gaps;

    CHECK(t->n_gaps < TRAINER_MAX_GAPS && n > 0);
    for (int i = 0; i < t->n_gaps; i++)
        if (first >= t->gaps[i].first)
            first += t->gaps[i].n;
    for (; at > 0 && t->gaps[at - 1].first > first; at--)
        t->gaps[at] = t->gaps[at - 1];
    t->gaps[at].first = first;
    t->gaps[at].n = n;
    t->n_gaps++;
}

int trainer_n_gaps(const struct trainer *t)
{
    return t->n_gaps;
}

int trainer_open_data_of(struct trainer *t, int dp_rank, struct loader **loader, struct err *err)
{
    struct loader_options options = loader_options_of(t);

    options.dp_rank = dp_rank;
    return loader_open(loader, &options, err);
}

/* Evaluation reads one micro-batch a rank at a time. */
static struct loader_options held_out_options(struct trainer *t)
{
    struct loader_options options = loader_options_of(t);

    options.held_out = 1;
    options.n_sizes = 0;
    options.counts = NULL;
    options.global_batch = options.micro_batch * options.dp_size;
    return options;
}

/* data: of the key, files of their own; NULL: a split of the training data. samples: what its rows
 * were made into, NULL of token files. */
static int open_set(struct trainer *t, const char *name, const char *key, const char *data,
                    const char *samples, struct err *err)
{
    struct held_out_set *set = &t->held_out_sets[t->n_held_out_sets];
    struct loader_options options = held_out_options(t);
    struct loader_dataset own = { data, 1 };

    progress_phase_path(t->options.progress, "opening", data ? data : "the held-out data");
    if (samples) {
        options.samples = samples;
        options.blends_samples = false;
        options.split = 0;
    } else if (data) {
        if (check_there(key, data, err) < 0)
            return -1;
        /* Token files, whatever is trained on: sequences of seq_len without padding. */
        options.samples = NULL;
        options.n_lengths = 0;
        options.datasets = &own;
        options.n_datasets = 1;
        options.split = 0;
    }
    *set = (struct held_out_set){ .name = name };
    if (loader_open(&set->loader, &options, err) < 0)
        return err_add(err, "held-out data%s%s", *name ? " " : "", name);
    set->n_batches = ceil_div(loader_n_samples(set->loader), options.global_batch);
    t->n_held_out_sets++;
    return 0;
}

int trainer_open_held_out(struct trainer *t, struct err *err)
{
    const struct job *job = t->job;
    const struct job_texts *sets = &job->eval.sets;

    t->held_out_sets = arena_array(&t->arena, struct held_out_set, sets->n + 1);
    if ((job->eval.data || job->eval.split > 0) &&
        open_set(t, "", "eval.data", job->eval.data, job->samples.eval, err) < 0)
        return -1;
    for (int i = 0; i < sets->n; i++) {
        const char *pair = sets->values[i];
        size_t n = strcspn(pair, "=");

        if (open_set(t, arena_strndup(&t->arena, pair, n), "eval.sets", pair + n + 1,
                     job->samples.eval_sets ? job->samples.eval_sets[i] : NULL, err) < 0)
            return -1;
    }
    if (t->n_held_out_sets)
        trainer_choose_held_out_set(t, 0);
    return 0;
}

int trainer_has_held_out(const struct trainer *t)
{
    return t->job->eval.data || t->job->eval.split > 0 || t->job->eval.sets.n;
}

int trainer_n_held_out_sets(const struct trainer *t)
{
    return t->n_held_out_sets;
}

const char *trainer_choose_held_out_set(struct trainer *t, int set)
{
    CHECK(set >= 0);
    CHECK(set < t->n_held_out_sets);
    t->held_out = t->held_out_sets[set].loader;
    t->n_held_out_batches = t->held_out_sets[set].n_batches;
    return t->held_out_sets[set].name;
}
