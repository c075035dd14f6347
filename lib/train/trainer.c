/*
 * trainer.c - compile, feed, step, evaluate
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/num.h"
#include "data/stream/indexed.h"
#include "layout/axes.h"
#include "model/model.h"
#include "plan/programs.h"
#include "plan/suggest.h"
#include "train/algo_cache.h"
#include "train/consistency.h"
#include "train/instruct_job.h"
#include "train/lr.h"
#include "train/numerics.h"
#include "train/replicas.h"
#include "train/trainer_impl.h"
#include "weights/init_weights.h"
#include "weights/inputs.h"

/* ---- making it ---- */

static struct loader_options loader_options_of(struct trainer *t)
{
    const struct job *job = t->job;
    struct loader_dataset *datasets =
        arena_array(&t->program.arena, struct loader_dataset, job->data.n_train);

    for (int i = 0; i < job->data.n_train; i++)
        datasets[i] = (struct loader_dataset){ job->data.train[i].path, job->data.train[i].weight };
    return (struct loader_options){ .datasets = datasets,
                                    .n_datasets = job->data.n_train,
                                    .samples = job->samples.train,
                                    .packing = job->data.packing,
                                    .lengths = t->lengths,
                                    .n_lengths = t->n_shorter ? t->n_shorter + 1 : 0,
                                    .vocab_size = job->model.vocab_size,
                                    .seq_len = job->data.seq_len,
                                    .global_batch = job->train.global_batch,
                                    .micro_batch = job->train.micro_batch,
                                    .sizes = job->parallel.micro_batches.values,
                                    .n_sizes = job->parallel.micro_batches.n,
                                    .dp_rank = mesh_data_rank(&t->program.mesh, t->world_rank),
                                    .dp_size = job->parallel.dp,
                                    .seed = job->train.seed,
                                    .split = job->eval.split,
                                    .first_step = t->step,
                                    .n_steps = job->train.steps };
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

    progress_phase(t->options.progress, "opening the data");
    loader_close(t->train);
    t->train = NULL;
    for (int i = 0; i < t->job->data.n_train && !t->job->samples.train; i++)
        if (check_there("data.train", t->job->data.train[i].path, err) < 0)
            return -1;
    return loader_open(&t->train, &options, err);
}

/* Evaluation reads one micro-batch a rank at a time. */
static int open_held_out(struct trainer *t, struct err *err)
{
    struct loader_dataset own = { t->job->eval.data, 1 };
    struct loader_options options = loader_options_of(t);

    if (!trainer_has_held_out(t))
        return 0;
    options.held_out = 1;
    options.n_sizes = 0;
    options.global_batch = options.micro_batch * options.dp_size;
    if (t->job->samples.eval) {
        options.samples = t->job->samples.eval;
        options.split = 0;
    } else if (t->job->eval.data) {
        if (check_there("eval.data", t->job->eval.data, err) < 0)
            return -1;
        /* Token files, whatever is trained on: sequences of seq_len without padding. */
        options.samples = NULL;
        options.n_lengths = 0;
        options.datasets = &own;
        options.n_datasets = 1;
        options.split = 0;
    }
    if (loader_open(&t->held_out, &options, err) < 0)
        return err_add(err, "held-out data");
    t->n_held_out_batches = ceil_div(loader_n_samples(t->held_out), options.global_batch);
    return 0;
}

int trainer_has_held_out(const struct trainer *t)
{
    return t->job->eval.data || t->job->eval.split > 0;
}

/* One rank sees to it that the stages' programs fit each other. */
static int verify_stages(const struct trainer *t, struct err *err)
{
    struct arena arena = { 0 };
    int n = t->job->parallel.pp;

    if (n == 1 || t->world_rank)
        return 0;
    struct program *programs = arena_array(&arena, struct program, n);
    int status = programs_compile_ranks(programs, t->job, t->options.kernels, err);
    for (int i = 0; i < n; i++)
        program_release(&programs[i]);
    arena_release(&arena);
    return status;
}

static int compile(struct trainer *t, struct err *err)
{
    const struct trainer_options *o = &t->options;
    struct mesh mesh = job_mesh(t->job);
    int pp_rank = mesh_coordinate(&mesh, t->world_rank, axes_stages());

    progress_phase(o->progress, "compiling the step");
    struct programs_by_length programs = { .longest = &t->program };
    struct programs_request request = { .job = t->job, .kernels = o->kernels, .pp_rank = pp_rank };
    int status = programs_compile_by_length(&programs, &request, &t->arena, err);
    t->shorter = programs.shorter;
    t->n_shorter = programs.n_shorter;
    t->lengths = programs.lengths;
    return status < 0 ? status : verify_stages(t, err);
}

static size_t free_bytes(const struct trainer *t)
{
    struct device *device = t->options.kernels->device;

    return device->ops->memory(device).free_bytes;
}

/* Refused before anything is allocated, with what would help; what vendors' libraries took for
 * themselves since `before` were free, on this rank and on those that share the device with it, is
 * not their programs' to have. */
static int check_fit(struct trainer *t, size_t before, struct err *err)
{
    size_t available = t->options.available_bytes, after = free_bytes(t);
    size_t taken = before > after ? (before - after) / (size_t)max_int(1, t->options.n_sharing) : 0;

    if (available)
        available = available > taken ? available - taken : 1;
    return suggest_check(t->job, t->options.kernels, program_memory_bytes(&t->program), available,
                         err);
}

static int open_run(struct trainer *t, struct err *err)
{
    struct run_options options = { .program = &t->program,
                                   .shorter = t->shorter,
                                   .n_shorter = t->n_shorter,
                                   .kernels = t->options.kernels,
                                   .comm = t->options.comm,
                                   .worker = t->options.worker,
                                   .progress = t->options.progress,
                                   .poison = t->job->poison,
                                   .fast = t->job->parallel.reductions == REDUCTIONS_FAST };

    progress_phase(t->options.progress, "allocating and preparing kernels");
    if (run_create(&t->run, &options, err) < 0)
        return -1;
    int experts = t->program.ports.router_stats_total;
    if (experts)
        t->expert_stats = arena_alloc(&t->arena, program_value_bytes(&t->program, experts));
    progress_phase(t->options.progress, "filling the parameters");
    init_constants(t->run, &t->program, &t->job->model);
    init_parameters(t->run, &t->program, &t->place, t->options.pool, t->job->train.seed);
    return 0;
}

/* The build first: another one may print the same job otherwise. */
static int check_same_job(struct trainer *t, struct err *err)
{
    struct str text = { 0 };

    if (consistency_text(t, "the version of lmtrain", t->options.build ? t->options.build : "",
                         "install one build on all hosts", err) < 0)
        return -1;
    job_print(t->job, &text);
    int status = consistency_text(
        t, "the job", str_text(&text),
        "start all ranks with the same job file, --set and working directory", err);
    str_release(&text);
    return status;
}

/* What ranks choose together, and what they compute, is of kernels that are alike. */
static int check_same_kernels(struct trainer *t, struct err *err)
{
    return consistency_text(
        t, "the description of the kernels", kernels_identity(t->options.kernels),
        "use the same kind of CPU and GPU and the same versions of the GPU libraries "
        "on all hosts, or set LMTRAIN_CPU_ISA to what all hosts support",
        err);
}

/* Data, which is of each rank's host; and what was chosen for all. */
static int check_same_numerics(struct trainer *t, struct err *err)
{
    struct kernels *kernels = t->options.kernels;
    struct str choices = { 0 };

    kernels_choices_print(kernels, &choices);
    numerics_describe(t->job, loader_fingerprint(t->train), kernels_identity(kernels),
                      str_text(&choices), &t->description);
    str_release(&choices);
    t->numerics = numerics_hash(&t->description);
    return consistency_text(t, "the description of the numerics", str_text(&t->description),
                            "use the same data on all hosts", err);
}

static int choose_kernels(struct trainer *t, struct err *err)
{
    size_t before = free_bytes(t);
    int status = algo_cache_make(t, err);

    return status ? status : trainer_settle(t, check_fit(t, before, err), err);
}

int trainer_create(struct trainer **out, const struct trainer_options *options, struct err *err)
{
    struct trainer *t = calloc(1, sizeof *t);

    if (!t)
        return err_set(err, ERR_DEVICE, "out of host memory");
    t->options = *options;
    t->job = options->job;
    t->loss_scale = t->job->train.dtype == DTYPE_F16 ? t->job->train.loss_scale.initial : 1;
    t->world_size = comm_world_size(options->comm);
    t->world_rank = comm_world_rank(options->comm);
    int status = trainer_join(t, err);
    if (!status)
        status = check_same_job(t, err);
    if (!status)
        status = check_same_kernels(t, err);
    if (!status)
        status = trainer_settle(t, compile(t, err), err);
    if (!status)
        status = choose_kernels(t, err);
    if (!status) {
        t->place = mesh_place(&t->program.mesh, t->world_rank);
        status = trainer_open_data(t, err);
        if (!status)
            status = open_held_out(t, err);
        status = trainer_settle(t, status, err);
    }
    if (!status)
        status = check_same_numerics(t, err);
    if (!status)
        status = trainer_settle(t, open_run(t, err), err);
    if (status < 0) {
        trainer_destroy(t);
        return -1;
    }
    *out = t;
    return 0;
}

void trainer_destroy(struct trainer *t)
{
    struct err ignored;

    if (!t)
        return;
    if (t->save)
        store_save_wait(t->save, &ignored);
    cells_reader_destroy(t->save_reader);
    run_destroy(t->run);
    loader_close(t->train);
    loader_close(t->held_out);
    program_release(&t->program);
    for (int i = 0; i < t->n_shorter; i++)
        program_release(&t->shorter[i]);
    arena_release(&t->arena);
    str_release(&t->description);
    str_release(&t->save_state);
    free(t->restored_extra);
    free(t->numerics_changes);
    free(t);
}

/* ---- a step ---- */

/* The program of this length. */
static int program_of(const struct trainer *t, int length)
{
    int i = 0;

    while (i < t->n_shorter && t->lengths[i] != length)
        i++;
    return i < t->n_shorter ? i + 1 : 0;
}

static int choose(void *context, int micro_batch)
{
    struct trainer *t = context;

    return t->n_shorter ? program_of(t, loader_length(t->train, t->step, micro_batch)) : 0;
}

int trainer_choose_held_out(void *context, int micro_batch)
{
    struct trainer *t = context;

    return t->n_shorter ? program_of(t, loader_length(t->held_out, t->held_out_batch, micro_batch))
                        : 0;
}

static int load_train(void *context, int micro_batch, struct err *err)
{
    struct trainer *t = context;
    struct micro_batch batch;

    if (loader_next(t->train, &batch, err) < 0)
        return -1;
    int chosen = choose(t, micro_batch);
    inputs_of_batch(t->run, chosen ? &t->shorter[chosen - 1] : &t->program, &batch, micro_batch);
    if (micro_batch + 1 < t->job->n_micro_batches)
        return 0;
    enum fault fault = fault_at("gradients", t->step + 1);
    const float nan = NAN;
    /* The factor of each gradient: the loss stays as it is, as when a kernel goes wrong. */
    if (fault == FAULT_NAN)
        run_put(t->run, t->program.ports.loss_scale, 0, 0, &nan, sizeof nan);
    if (fault == FAULT_FLIP)
        replicas_flip(t);
    return 0;
}

static void write_scalars(struct trainer *t, double lr, int64_t tokens)
{
    const struct ports *ports = &t->program.ports;
    float scalars[OPS_N_SCALARS], scale = (float)t->loss_scale;
    float loss_scale = scale * (1.0f / (float)tokens);
    double update = (double)(t->updates + 1);

    scalars[SCALAR_LR] = (float)lr;
    scalars[SCALAR_BIAS1] = (float)(1.0 - pow(t->job->optimizer.beta1, update));
    scalars[SCALAR_BIAS2] = (float)(1.0 - pow(t->job->optimizer.beta2, update));
    scalars[SCALAR_UPDATE] = (float)update;
    if (ports->gradient_scale)
        run_put(t->run, ports->gradient_scale, 0, 0, &scale, sizeof scale);
    run_put(t->run, ports->loss_scale, 0, 0, &loss_scale, sizeof loss_scale);
    run_put(t->run, ports->scalars, 0, 0, scalars, sizeof scalars);
}

/*
 * Micikevicius et al. 2018, section 3.2, and how torch's GradScaler goes about it. All ranks have
 * the same `skipped`, hence the same scale. Powers of two: no bit of what is not lost depends on
 * it.
 */
static void adapt_loss_scale(struct trainer *t, struct trainer_result *result)
{
    const struct job *job = t->job;

    if (!t->program.ports.gradient_scale)
        return;
    result->loss_scale = t->loss_scale;
    t->n_clean = result->skipped ? 0 : t->n_clean + 1;
    if (result->skipped && t->loss_scale > job->train.loss_scale.min) {
        t->loss_scale /= 2;
        /* A loss that is not finite itself has another cause. */
        result->scale_fell = isfinite(result->loss) != 0;
    } else if (job->train.loss_scale.growth_every &&
               t->n_clean >= job->train.loss_scale.growth_every) {
        t->loss_scale = fmin(2 * t->loss_scale, job->train.loss_scale.max);
        t->n_clean = 0;
    }
}

static void count_experts(const struct trainer *t, const double *stats,
                          struct trainer_result *result)
{
    const struct model_spec *s = &t->job->model;
    int n_layers = model_spec_n_expert_layers(s, s->n_layers);
    double n_micro_batches = (double)t->job->n_micro_batches * t->job->parallel.dp;
    double even = (double)t->job->train.global_batch * t->job->data.seq_len * s->n_active_experts /
                  max_int(1, s->n_experts);

    for (int layer = 0; layer < n_layers; layer++) {
        result->balance += *stats++ / n_micro_batches / n_layers;
        for (int e = 0; e < s->n_experts; e++, stats++) {
            double used = *stats / even;

            result->most_used = used > result->most_used ? used : result->most_used;
            result->least_used =
                (!layer && !e) || used < result->least_used ? used : result->least_used;
        }
    }
}

int trainer_step(struct trainer *t, struct trainer_result *result, struct err *err)
{
    const struct ports *ports = &t->program.ports;
    struct run_hooks hooks = { t, load_train, trainer_save_gate, choose };
    int experts = ports->router_stats_total;
    int32_t skipped = 0;
    double loss = 0, norm = 0;
    /* All that the host learns of a step, with one wait. */
    const struct run_piece told[4] = {
        { ports->skip_update, &skipped, sizeof skipped },
        { ports->loss_total, &loss, sizeof loss },
        { ports->norm, &norm, sizeof norm },
        { experts, t->expert_stats, experts ? program_value_bytes(&t->program, experts) : 0 },
    };
    int64_t tokens = loader_step_tokens(t->train, t->step);
    double lr = lr_at(t->job, t->step);

    if (t->options.progress)
        atomic_store_explicit(&t->options.progress->step, t->step + 1, memory_order_relaxed);
    write_scalars(t, lr, tokens);
    if (run_entry(t->run, ENTRY_STEP, 0, &hooks, err) < 0)
        return -1;
    if (run_get_all(t->run, told, 4, err) < 0)
        return -1;
    progress_phase(t->options.progress, "between steps");
    t->step++;
    t->updates += !skipped;
    t->n_skipped += skipped != 0;
    t->tokens += tokens;
    *result = (struct trainer_result){
        .step = t->step,
        .loss = loss / (double)tokens,
        .grad_norm = norm,
        .lr = lr,
        .tokens = tokens,
        .read = loader_step_read(t->train, t->step - 1),
        .skipped = skipped != 0,
    };
    adapt_loss_scale(t, result);
    if (experts)
        count_experts(t, t->expert_stats, result);
    return 0;
}

int trainer_gather_weights(struct trainer *t, struct err *err)
{
    return run_entry(t->run, ENTRY_GATHER, 0, NULL, err);
}

/* ---- properties of a trainer ---- */

int64_t trainer_step_number(const struct trainer *t)
{
    return t->step;
}

int64_t trainer_tokens(const struct trainer *t)
{
    return t->tokens;
}

int64_t trainer_n_skipped(const struct trainer *t)
{
    return t->n_skipped;
}

uint64_t trainer_numerics(const struct trainer *t)
{
    return t->numerics;
}

const struct program *trainer_program(const struct trainer *t)
{
    return &t->program;
}

struct run *trainer_run(const struct trainer *t)
{
    return t->run;
}

const char *trainer_restored_extra(const struct trainer *t)
{
    return t->restored_extra;
}
