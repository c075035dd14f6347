/*
 * pretrain.c - the cadence of a run: log, evaluate, save, stop
 */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "ckpt/carried.h"
#include "ckpt/store.h"
#include "data/stream/token_meta.h"
#include "progress/progress.h"
#include "train/algo_cache.h"
#include "train/peak.h"
#include "train/pretrain_impl.h"
#include "train/recheck.h"
#include "train/replicas.h"
#include "train/run_lock.h"
#include "train/signals.h"
#include "train/vendor_memory.h"
#include "weights/model_files.h"

#define LOOK_SECONDS 1 /* between looks at whether the run's folder is still there */

enum { FOLDER_LOST = 1000 }; /* among signals' numbers */

/* ---- the run folder ---- */

int pretrain_path(const struct pretrain *p, char *path, const char *name, struct err *err)
{
    if (snprintf(path, PATH_BYTES, "%s/%s", p->job->output, name) >= PATH_BYTES)
        return err_set(err, ERR_CONFIG, "output: path too long");
    return 0;
}

/* Text is made with it only later; that it is missing is better known now. */
static int check_tokenizer(struct pretrain *p, struct err *err)
{
    const struct job *job = p->job;
    struct tokenizer *tokenizer;

    if (!job->data.tokenizer)
        return 0;
    progress_phase_path(p->progress, "reading", job->data.tokenizer);
    if (tokenizer_open(&tokenizer, job->data.tokenizer, err) < 0)
        return err_add(err, "data.tokenizer");
    int n_tokens = tokenizer_vocab_size(tokenizer);
    tokenizer_hash_text(tokenizer, p->tokenizer_hash);
    tokenizer_close(tokenizer);
    if (n_tokens <= job->model.vocab_size)
        return 0;
    return err_set(
        err, ERR_CONFIG,
        "model.vocab_size is %d, but data.tokenizer %s has %d tokens (hint: at least that many)",
        job->model.vocab_size, job->data.tokenizer, n_tokens);
}

/* Where the job names none: that of the weights which it begins with. Without one the token files
 * must be of one tokenizer, which is then the model's. */
static int find_hash(struct pretrain *p, struct err *err)
{
    const char *base = model_files_base(p->job, &p->arena);
    struct tokenizer *tokenizer;
    struct token_meta meta;
    struct err ignored;

    if (base && carried_has_tokenizer(base) && tokenizer_open(&tokenizer, base, &ignored) == 0) {
        tokenizer_hash_text(tokenizer, p->tokenizer_hash);
        tokenizer_close(tokenizer);
        return 0;
    }
    for (int i = 0; i < p->job->data.n_train && !p->job->samples.train && !*p->tokenizer_hash;
         i++) {
        progress_phase_path(p->progress, "reading", p->job->data.train[i].path);
        int found = token_meta_read(p->job->data.train[i].path, &meta, err);

        if (found < 0)
            return err_add(err, "data.train");
        if (found)
            memcpy(p->tokenizer_hash, meta.tokenizer, sizeof meta.tokenizer);
    }
    return 0;
}

static int check_tokens(const struct pretrain *p, const char *prefix, const char *key,
                        struct err *err)
{
    const struct job *job = p->job;
    struct arena arena = { 0 };
    const char *whose = job->data.tokenizer
                            ? arena_printf(&arena, "data.tokenizer %s", job->data.tokenizer)
                        : job->train.init ? "the model's"
                                          : "that of data.train";
    int status = token_meta_compare(
        prefix, p->tokenizer_hash, whose,
        "make it again with lmtrain data tokenize, or set data.check_tokenizer: false", err);

    arena_release(&arena);
    if (status < 0 && !job->data.check_tokenizer) {
        log_warn("%s: %s", key, err->text);
        return 0;
    }
    return status < 0 ? err_add(err, "%s", key) : 0;
}

/* Token files of another tokenizer give no error, but a model of nothing. */
static int check_token_files(const struct pretrain *p, struct err *err)
{
    const struct job *job = p->job;

    for (int i = 0; i < job->data.n_train && !job->samples.train; i++) {
        progress_phase_path(p->progress, "reading", job->data.train[i].path);
        if (check_tokens(p, job->data.train[i].path, "data.train", err) < 0)
            return -1;
    }
    for (int i = 0; i < job->eval.sets.n; i++)
        if (!(job->samples.eval_sets && job->samples.eval_sets[i]) &&
            check_tokens(p, strchr(job->eval.sets.values[i], '=') + 1, "eval.sets", err) < 0)
            return -1;
    if (!job->eval.data || job->samples.eval)
        return 0;
    return check_tokens(p, job->eval.data, "eval.data", err);
}

/* What rank 0 looks at before anything is made. */
static int check_inputs(struct pretrain *p, struct err *err)
{
    if (check_tokenizer(p, err) < 0 || (!*p->tokenizer_hash && find_hash(p, err) < 0))
        return -1;
    return check_token_files(p, err);
}

/* The other files of checkpoints. Only after this process has the lock of the run. */
static int gather_files(struct pretrain *p, struct err *err)
{
    struct trainer_carried carried = { .tokenizer = *p->tokenizer_hash ? p->tokenizer_hash : NULL };
    struct str hashes = { 0 };
    int status = model_files_of_run(p->job, &carried.folder, &p->arena, err);

    if (!status && carried.folder)
        status = carried_describe(carried.folder, &hashes, err);
    if (!status && carried.folder)
        carried.hashes = arena_strdup(&p->arena, str_text(&hashes));
    str_release(&hashes);
    trainer_set_carried(p->trainer, &carried);
    return status;
}

/* The run's folder is this job's, until it ends. That nothing can be saved there is better known
 * now. */
static int take_folder(struct pretrain *p, struct err *err)
{
    char path[PATH_BYTES];

    progress_phase_path(p->progress, "opening the run folder", p->job->output);
    if (p->lock >= 0) /* of a folder that is gone */
        close(p->lock);
    p->lock = run_lock(p->job->output, err);
    if (p->lock < 0 || pretrain_path(p, path, "checkpoints", err) < 0 ||
        file_make_folder(path, err) < 0)
        return -1;
    file_share_folder(path);
    file_sweep_parts(p->job->output);
    return 0;
}

/*
 * Whether the folder is no longer where it was: its lock is missing, or another file. Looked at
 * once a second, for a step may be shorter and a file system slow.
 */
static int has_lost_folder(struct pretrain *p)
{
    char path[PATH_BYTES];
    struct stat ours, theirs;
    struct err ignored;
    double now = clock_seconds();

    if (!p->is_first || now - p->looked_at < LOOK_SECONDS ||
        pretrain_path(p, path, "lock", &ignored) < 0 || fstat(p->lock, &ours) < 0)
        return 0;
    p->looked_at = now;
    if (stat(path, &theirs) < 0)
        return errno == ENOENT || errno == ENOTDIR;
    return ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino;
}

/* Make the folder again, with all that rank 0 writes outside of checkpoints. */
static int restore_folder(struct pretrain *p, struct err *err)
{
    struct err lost;

    log_warn("%s was deleted or moved during the run: it is created again with a checkpoint of "
             "step %" PRId64 "; earlier checkpoints and metrics are lost",
             p->job->output, trainer_step_number(p->trainer));
    if (take_folder(p, err) < 0)
        return err_add(err, "the run folder was deleted or moved, and cannot be created again");
    pretrain_log_open(p);
    if (gather_files(p, &lost) < 0)
        log_warn("%s: further checkpoints have no tokenizer", lost.text);
    return pretrain_report_reopen(p, err);
}

/* ---- a step and what follows it ---- */

static int note_skipped(struct pretrain *p, const struct trainer_result *r, struct err *err)
{
    char text[96];

    if (r->rerun) {
        if (p->is_first)
            log_info("step %" PRId64 ": more rows of experts than moe.stash_factor %g has memory "
                     "for: the step was run again, which recomputed them (%" PRId64 " so far)",
                     r->step, p->job->moe.stash_factor, trainer_n_reruns(p->trainer));
        pretrain_report_event(p, "rerun", "rows of experts were recomputed");
    }
    if (r->scale_fell) {
        snprintf(text, sizeof text, "gradients not finite at loss scale %.0f, which is halved",
                 r->loss_scale);
        log_info("step %" PRId64 ": %s: the step is skipped", r->step, text);
        pretrain_report_event(p, "skipped", text);
        return 0;
    }
    p->n_skipped_in_a_row = r->skipped ? p->n_skipped_in_a_row + 1 : 0;
    if (!r->skipped)
        return 0;
    if (p->is_first && !r->refused)
        log_warn("step %" PRId64 ": gradients are not finite: the step is skipped (%d in a row)",
                 r->step, p->n_skipped_in_a_row);
    pretrain_report_event(p, "skipped", r->refused ? "a spike" : "gradients not finite");
    p->agreed = p->n_skipped_in_a_row > p->job->train.max_skipped;
    if (p->agreed)
        return err_set(err, ERR_FAILED,
                       "%d step%s in a row had %s, more than train.max_skipped "
                       "%d (hint: a lower optimizer.lr, more warm-up)",
                       p->n_skipped_in_a_row, str_s(p->n_skipped_in_a_row),
                       r->refused ? "spikes" : "non-finite gradients", p->job->train.max_skipped);
    return 0;
}

static int after_step(struct pretrain *p, const struct trainer_result *r, struct err *err)
{
    const struct job *job = p->job;
    int last = r->step == job->train.steps;

    if (++p->n_stepped == 2)
        vendor_memory_take(p->options->engine,
                           program_space_bytes(trainer_program(p->trainer), SPACE_DEVICE));
    pretrain_upload_report(p);
    if (note_skipped(p, r, err) < 0 || pretrain_saved(p, err) < 0)
        return -1;
    if (pretrain_recheck_update(p, err) < 0 ||
        (is_due(job->train.compare_every, r->step) && pretrain_compare(p, err) < 0))
        return -1;
    int spiked = pretrain_heed_spike(p, r, err);
    if (spiked)
        return spiked < 0 ? -1 : 0;
    int owes = p->owes_save && !trainer_save_pending(p->trainer);
    if ((is_due(job->checkpoint.every_steps, r->step) || owes) && !last &&
        pretrain_save(p, err) < 0)
        return -1;
    if (pretrain_local_is_due(p, r->step) && !owes && pretrain_local_save(p, err) < 0)
        return -1;
    /* One that is left on a signal is owed: what follows heeds that. */
    return pretrain_owes_evaluation(p) && !last && pretrain_evaluate(p, err) < 0 ? -1 : 0;
}

static bool is_over(const struct pretrain *p)
{
    return p->stopped || trainer_step_number(p->trainer) >= p->job->train.steps;
}

/* All ranks' largest number; beside it, if that is due, a sample of the ranks' times. */
static int agree(struct pretrain *p, int64_t *pending, struct err *err)
{
    int64_t both = 2 * *pending + rank_watch_step(p->watch);

    if (trainer_agree(p->trainer, &both, err) < 0)
        return -1;
    *pending = both / 2;
    if (both % 2 && rank_watch_sample(p->watch, pretrain_monitor_straggler, p, err) < 0)
        return -1;
    pretrain_report_op_times(p);
    return 0;
}

/* Save and stop if any rank got a signal; save if rank 0 no longer finds the run's folder. */
static int heed_signals(struct pretrain *p, struct err *err)
{
    int64_t pending = signals_pending();

    if (has_lost_folder(p)) {
        if (restore_folder(p, err) < 0)
            return -1;
        pending = FOLDER_LOST; /* a signal is heeded after the next step */
    }
    if (agree(p, &pending, err) < 0)
        return -1;
    if (!pending)
        return 0;
    if (pending == FOLDER_LOST)
        return pretrain_save_anew(p, err);
    log_info("signal %d: saving step %" PRId64, (int)pending, trainer_step_number(p->trainer));
    if (pretrain_save_last(p, err) < 0)
        return -1;
    p->agreed = 1;
    return err_set(err, ERR_REQUEUE,
                   "saved step %" PRId64 " of %" PRId64
                   " on a signal: the same command continues from here",
                   trainer_step_number(p->trainer), p->job->train.steps);
}

/* Save and stop where the options say so: all ranks have the same step. */
static int heed_stop(struct pretrain *p, struct err *err)
{
    int64_t step = trainer_step_number(p->trainer);

    if (!p->options->stop_at || step < p->options->stop_at)
        return 0;
    if (pretrain_report_last_op_times(p, err) < 0 || pretrain_save_last(p, err) < 0)
        return -1;
    pretrain_report_event(p, "paused", "saved and stopped, as --stop-at says");
    p->agreed = 1;
    return err_set(err, ERR_REQUEUE,
                   "saved step %" PRId64 " of %" PRId64
                   " and stopped, as --stop-at says: the same command without it continues from "
                   "here",
                   step, p->job->train.steps);
}

/* After a checkpoint of a step whose evaluation was interrupted by a signal, or not begun,
 * evaluation comes first. */
static int run_owed_evaluation(struct pretrain *p, struct err *err)
{
    if (!p->owes_evaluation)
        return 0;
    p->owes_evaluation = 0;
    if (pretrain_evaluate(p, err) < 0)
        return -1;
    return is_over(p) ? 0 : heed_signals(p, err);
}

int pretrain_keep_folder(struct pretrain *p, struct err *err)
{
    p->looked_at = -INFINITY;
    int64_t is_lost = has_lost_folder(p);

    if (is_lost && restore_folder(p, err) < 0)
        return -1;
    if (trainer_agree(p->trainer, &is_lost, err) < 0)
        return -1;
    if (!is_lost)
        return 0;
    return pretrain_save_anew(p, err) < 0 ? -1 : 1;
}

/* The model is safe when its last evaluation begins. */
static int finish(struct pretrain *p, struct err *err)
{
    int64_t step = trainer_step_number(p->trainer);

    if (pretrain_keep_folder(p, err) < 0 || pretrain_report_last_op_times(p, err) < 0 ||
        pretrain_save_last(p, err) < 0)
        return -1;
    int left = pretrain_owes_evaluation(p) ? pretrain_evaluate(p, err) : 0;
    if (left <= 0) {
        pretrain_clean(p);
        return left;
    }
    p->agreed = 1;
    return err_set(
        err, ERR_REQUEUE,
        "step %" PRId64 " of %" PRId64
        " is saved, its evaluation was interrupted by a signal: the same command evaluates it",
        step, p->job->train.steps);
}

static void perform_fault(struct pretrain *p)
{
    enum fault fault = fault_at("step", trainer_step_number(p->trainer) + 1);

    if (fault == FAULT_FLIP)
        replicas_flip(p->trainer);
    if (fault == FAULT_SLOW)
        trainer_slow(p->trainer, TRAINER_SLOW_COMPUTE);
}

static int run_steps(struct pretrain *p, struct err *err)
{
    struct trainer_result r;

    if (run_owed_evaluation(p, err) < 0 || (!is_over(p) && heed_stop(p, err) < 0))
        return -1;
    while (!is_over(p)) {
        double begin = clock_seconds();

        perform_fault(p);
        if (trainer_step(p->trainer, &r, err) < 0)
            return -1;
        pretrain_monitor_step(p, &r, clock_seconds() - begin);
        pretrain_report_step(p, &r, clock_seconds() - begin);
        pretrain_status_step(p);
        if (after_step(p, &r, err) < 0)
            return -1;
        /* A run that is over ends as it would have without the signal. */
        if (!is_over(p) && (heed_signals(p, err) < 0 || heed_stop(p, err) < 0))
            return -1;
    }
    return finish(p, err);
}

/* ---- beginning and end ---- */

/* Resident anonymous and shared memory of this process, in bytes; 0 if unknown. */
static size_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long kib, total = 0;

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %lu kB", &kib) == 1 ||
            sscanf(line, "RssShmem: %lu kB", &kib) == 1)
            total += kib;
    if (file)
        fclose(file);
    return (size_t)total * 1024;
}

static void greet(const struct pretrain *p)
{
    const struct job *job = p->job;
    const struct engine *engine = p->options->engine;
    char count[40], planned[32];

    log_info("%s: %s parameters, %d x %d token%s per step, %d micro-batch%s per rank, %s",
             job->model.name[0] ? job->model.name : "model",
             str_count(count, sizeof count, model_spec_n_parameters(&job->model)),
             job->train.global_batch, job->data.seq_len, str_s(job->data.seq_len),
             job->n_micro_batches, str_es(job->n_micro_batches), dtype_name(job->train.dtype));
    log_info("%d rank%s x %d thread%s, %s; %s planned per rank; peak %.0f GFLOP/s %s",
             engine->rank.world_size, engine->rank.world_size == 1 ? "" : "s",
             pool_n_threads(engine->pool), pool_n_threads(engine->pool) == 1 ? "" : "s",
             kernels_identity(engine->kernels),
             str_bytes(planned, sizeof planned, program_memory_bytes(trainer_program(p->trainer))),
             p->peak_flops * 1e-9,
             engine_stated_flops(engine, job->train.dtype) > 0 ? "stated" : "measured");
    if (!device_is_host(engine->device))
        log_info("on %s", engine->device->description);
    if (engine->isa_note[0])
        log_info("%s", engine->isa_note);
    if (job->untied_by)
        log_warn("%s: " JOB_UNTIED, job->untied_by);
    log_info("numerics %016" PRIx64, trainer_numerics(p->trainer));
    if (p->is_first)
        cautions_of_job(job);
}

static void say_goodbye(const struct pretrain *p)
{
    char took[32], held[32], planned[32];

    log_info("done: step %" PRId64 " in %s; %s planned, %s used by the process",
             trainer_step_number(p->trainer),
             str_duration(took, sizeof took, clock_seconds() - p->begin),
             str_bytes(planned, sizeof planned, program_memory_bytes(trainer_program(p->trainer))),
             str_bytes(held, sizeof held, resident_bytes()));
    pretrain_monitor_say(p);
    log_info("the model is in %s", p->job->output);
}

static int begin(struct pretrain *p, struct err *err)
{
    struct engine *engine = p->options->engine;
    struct trainer_options options = {
        .job = p->job,
        .pool = engine->pool,
        .kernels = engine->kernels,
        .comm = engine->comm,
        .worker = engine->worker,
        .progress = p->progress,
        .n_sharing = engine->n_sharing,
        .n_local = engine->rank.local_size,
        .build = p->options->build,
        .accept_numerics = p->options->accept_numerics,
    };
    struct numerics_differences differences = { 0 };

    spikes_init(&p->spikes, p->job->train.spike_z, p->job->train.spike_window);
    if (p->is_first && (check_inputs(p, err) < 0 || take_folder(p, err) < 0))
        return -1;
    pretrain_log_open(p);
    if (pretrain_preflight(p, err) < 0)
        return -1;
    options.available_bytes = engine_available_bytes(engine);
    algo_cache_recall(p->job, engine->kernels);
    int status = trainer_create(&p->trainer, &options, err);
    /* A trainer is made by all ranks or by none, unless they have lost each other. */
    p->agreed = status < 0 && err->code != ERR_PEER;
    if (!status)
        status = pretrain_resume(p, &differences, err);
    if (!status) {
        p->replicas = replicas_create(p->trainer);
        status = recheck_create(&p->recheck, p->trainer, err);
        p->agreed = status < 0 && err->code != ERR_PEER;
    }
    if (!status) {
        p->whole_step = p->saved_step;
        trainer_set_gate(p->trainer, pretrain_gate, p);
        if (p->job->train.on_spike == SPIKE_SKIPPED)
            trainer_set_refuse(p->trainer, pretrain_refuse, p);
        status = peak_find(engine, p->job->train.dtype, &p->peak_flops, err);
    }
    if (!status)
        status = rank_watch_create(&p->watch, p->trainer, p->job, err);
    if (!status)
        status = pretrain_report_open(p, err);
    if (!status && p->is_first)
        status = gather_files(p, err);
    if (!status)
        status = pretrain_upload_open(p, err);
    if (!status)
        status = pretrain_hooks_open(p, err);
    if (!status)
        status = pretrain_tracking_open(p, err);
    if (!status && p->is_first)
        status = algo_cache_keep(p->job, engine->kernels, err);
    if (!status) {
        greet(p);
        if (p->preflight)
            pretrain_report_event(p, "preflight", p->preflight);
        pretrain_report_changes(p, &differences);
    }
    numerics_differences_release(&differences);
    return status;
}

int pretrain(const struct pretrain_options *options, int *agreed, struct err *err)
{
    struct pretrain p = { .options = options,
                          .job = options->job,
                          .is_first = options->engine->rank.world_rank == 0,
                          .lock = -1,
                          .best_eval = INFINITY,
                          .saved_step = -1,
                          .local_step = -1,
                          .resumed_local = -1,
                          .compared_step = -1,
                          .evaluated_step = -1,
                          .begin = clock_seconds() };

    if (!p.is_first)
        log_set_level(LOG_WARN);
    p.progress = progress_join(options->engine->rank.local_rank);
    signals_catch();
    signals_answer(p.is_first ? PRETRAIN_ANSWER_STARTING : NULL);
    int status = begin(&p, err);
    signals_answer(p.is_first ? PRETRAIN_ANSWER_STEP : NULL);
    if (!status)
        status = run_steps(&p, err);
    pretrain_upload_close(&p, !status);
    pretrain_local_close(&p, !status);
    if (!status && p.is_first)
        say_goodbye(&p);
    if (status < 0)
        pretrain_report_gpu_loss(&p, err);
    pretrain_hooks_close(&p, status < 0 ? err : NULL);
    pretrain_tracking_close(&p, status < 0 ? err : NULL);
    pretrain_status_close(&p, status < 0 ? err : NULL);
    pretrain_monitor_close(&p);
    gpu_watch_close(p.gpu);
    if (p.terminal)
        terminal_close(p.terminal);
    pretrain_report_close(&p, status < 0 ? err : NULL);
    *agreed = status == 0 || p.agreed;
    /* Others may be reading this rank's memory: it goes with the process, which the caller ends. */
    if (!*agreed && options->engine->rank.world_size > 1)
        return -1;
    rank_watch_destroy(p.watch);
    spikes_release(&p.spikes);
    recheck_destroy(p.recheck);
    replicas_destroy(p.replicas);
    trainer_destroy(p.trainer);
    if (p.lock >= 0)
        close(p.lock);
    arena_release(&p.arena);
    return status;
}
