/*
 * pretrain_report.c - what a run says of itself: metrics, events, the live line. Rank 0 alone
 *
 * A disk that does not take a line of figures is no reason to end a run; lines that it did not take
 * are kept, within limits (metrics.h), TensorBoard's curves have a gap.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/log_file.h"
#include "device/xid.h"
#include "ops/op_info.h"
#include "train/job_file.h"
#include "train/pretrain_impl.h"

/* A prediction that is farther off is worth a warning. */
#define PREDICTION_OFF 0.15

/* Between two lines of op times: at least so long, and this share of the run until then. */
#define OP_TIMES_SECONDS 3.0
#define OP_TIMES_SHARE 0.02

/* Earlier observations of the GPU are not reported; an Xid follows the failure within this time. */
static const double gpu_age_seconds = 10, xid_seconds = 0.25;

/* Reported once, and again if it recurs after it had ended. */
static void forgive(struct pretrain *p, int status, const struct err *err)
{
    if (status < 0 && !p->is_unwritten)
        log_warn("%s: data for it is kept in memory and written later, training continues",
                 err->text);
    p->is_unwritten = status < 0;
}

/* Until one was timed: its forwards are a third of as many forwards and backwards of a step. */
static void expect_evaluations(struct pretrain *p)
{
    int64_t n = pretrain_n_held_out_batches(p);

    if (n)
        terminal_expect_evaluations(p->terminal, p->job->eval.every_steps,
                                    (double)n / (3.0 * p->job->n_micro_batches));
}

/* A header, for runs that were gone on with have several parts in one file. */
static void begin_log(const struct pretrain *p)
{
    char line[160], when[64] = "";
    time_t now = time(NULL);
    struct tm parts;

    if (localtime_r(&now, &parts))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S %z", &parts);
    snprintf(line, sizeof line, "---- %s, process %d, rank 0 of %d", when, (int)getpid(),
             p->options->engine->rank.world_size);
    log_to_file(line);
}

void pretrain_log_open(const struct pretrain *p)
{
    char path[PATH_BYTES];
    struct log_file *file = NULL;
    struct err err;

    if (!p->is_first)
        return;
    if (!pretrain_path(p, path, "log", &err) && !file_make_folder(path, &err) &&
        !pretrain_path(p, path, "log/rank-0.log", &err))
        file = log_file_open(path, &err);
    if (!file) {
        log_warn("%s: the run continues without a log", err.text);
        return;
    }
    log_set_file(file);
    begin_log(p);
}

/* TensorBoard alone has it: lines that a disk did not take are written later, this is not. */
static void report_job(struct pretrain *p)
{
    struct arena scratch = { 0 };
    struct job_value *values;
    struct str text = { 0 };
    struct err err;
    int n = job_list_values(p->job, &values, &scratch);
    struct events_hparam *fields = arena_array(&scratch, struct events_hparam, n);

    for (int i = 0; i < n; i++)
        fields[i] = (struct events_hparam){ values[i].key, values[i].text };
    job_print_absolute(p->job, &text);
    if (metrics_job(p->metrics, fields, n, str_text(&text), &err) < 0)
        log_warn("%s: TensorBoard has no hparams of this run", err.text);
    str_release(&text);
    arena_release(&scratch);
}

int pretrain_report_open(struct pretrain *p, struct err *err)
{
    int64_t step = trainer_step_number(p->trainer);

    if (!p->is_first)
        return 0;
    if (*p->options->engine->gpu)
        p->gpu = gpu_watch_open(p->options->engine->gpu);
    if (job_file_write(p->job, err) < 0 ||
        (p->owes_evaluation && metrics_drop_eval(p->job->output, step, err) < 0) ||
        metrics_open(&p->metrics, p->job->output, step + 1, err) < 0)
        return -1;
    p->terminal = terminal_open(2, step, p->job->train.steps);
    report_job(p);
    pretrain_monitor_open(p);
    expect_evaluations(p);
    pretrain_status_open(p);
    return 0;
}

int pretrain_report_reopen(struct pretrain *p, struct err *err)
{
    struct metrics *old = p->metrics;

    p->metrics = NULL;
    pretrain_status_reopen(p);
    if (old)
        metrics_close(old);
    return job_file_write(p->job, err) < 0 ||
                   metrics_open(&p->metrics, p->job->output, trainer_step_number(p->trainer) + 1,
                                err) < 0
               ? -1
               : 0;
}

/* TensorBoard takes the first end of a session: one that was stopped has not ended. */
void pretrain_report_close(struct pretrain *p, const struct err *why)
{
    struct err ignored;

    if (!p->metrics)
        return;
    if (!why || why->code != ERR_REQUEUE)
        metrics_end(p->metrics, !why, &ignored);
    metrics_close(p->metrics);
    p->metrics = NULL;
}

/* The GPU's state at the thread's last poll; NVML is not called here. Returns gpu, or NULL. */
static const struct metrics_gpu *see_gpu(struct pretrain *p, struct metrics_gpu *gpu, char *words,
                                         size_t size)
{
    struct gpu_sight sight;

    if (gpu_watch_see(p->gpu, p->options->engine->gpu, &sight) < 0 || sight.state.is_lost ||
        sight.age_seconds > gpu_age_seconds)
        return NULL;
    *gpu = (struct metrics_gpu){
        .memory_bytes = sight.state.memory_used_bytes,
        .sm_mhz = sight.state.sm_mhz,
        .power_watts = sight.state.power_watts,
        .temperature_celsius = sight.state.temperature_celsius,
        .throttle = nvml_throttle_words(
            sight.state.throttle < 0 ? 0 : sight.state.throttle & ~NVML_IDLE, words, size),
    };
    return gpu;
}

void pretrain_report_gpu_loss(struct pretrain *p, struct err *err)
{
    const struct engine *engine = p->options->engine;
    struct gpu_sight sight;

    if (err->code != ERR_DEVICE || engine->rank.under_pmix || !p->gpu)
        return; /* the watcher of this rank reports it */
    gpu_watch_wait_xid(p->gpu, engine->gpu, xid_seconds);
    if (!gpu_watch_see(p->gpu, engine->gpu, &sight) && sight.xid)
        err_add(err, "GPU %d (%s, %s): Xid %d, %s (hint: %s)", sight.index, sight.gpu.pci,
                sight.gpu.uuid, sight.xid, xid_words(sight.xid), xid_advice(sight.xid));
}

/* Once a process: the mean of the steps after the first, which touch memory and load code. */
static void compare_with_plan(struct pretrain *p, double took)
{
    enum { N_WARM = 2, N_COMPARED = 10 };
    double predicted = p->job->searched.predicted_ms;

    if (!(predicted > 0) || p->n_timed >= N_COMPARED)
        return;
    p->timed_seconds += p->n_timed >= N_WARM ? took : 0;
    if (++p->n_timed < N_COMPARED)
        return;
    double measured = 1e3 * p->timed_seconds / (N_COMPARED - N_WARM);
    double off = predicted / measured - 1;
    char text[256];

    snprintf(text, sizeof text, "a step takes %.1f ms, %.1f ms were predicted for %s (%+.1f %%)",
             measured, predicted, p->job->searched.cluster ? p->job->searched.cluster : "it",
             100 * off);
    if (off > PREDICTION_OFF || off < -PREDICTION_OFF)
        log_warn("%s (hint: lmtrain plan --calibrate %.4g, or lmtrain bench cluster)", text,
                 measured / 1e3);
    else
        log_info("%s", text);
    pretrain_report_event(p, "predicted", text);
}

/* layers: room for the numbers of as many as the model has. */
static struct metrics_experts experts_of(const struct job *job, const struct trainer_result *r,
                                         int *layers)
{
    int n = 0;

    for (int i = 0; i < job->model.n_layers && r->n_expert_layers; i++)
        if (model_spec_has_experts(&job->model, i))
            layers[n++] = i;
    CHECK(n == r->n_expert_layers);
    return (struct metrics_experts){ n, job->model.n_experts, layers, r->expert_layers };
}

/* NULL of one rank. */
static const struct metrics_exposed *
exposed_of(const struct pretrain *p, struct metrics_exposed *exposed, struct arena *arena)
{
    enum { N_MAX = 64 };
    struct run_exposed list[N_MAX];

    if (p->options->engine->rank.world_size == 1)
        return NULL;
    int n = run_list_exposed(trainer_run(p->trainer), list, N_MAX);
    struct rank_exposed most = rank_watch_most_exposed(p->watch);
    struct metrics_exposed_kind *kinds = arena_array(arena, struct metrics_exposed_kind, n + 1);

    for (int i = 0; i < n; i++) {
        run_exposed_text(&list[i], kinds[i].name, sizeof kinds[i].name);
        kinds[i].seconds = list[i].seconds;
    }
    *exposed = (struct metrics_exposed){ n, kinds, most.rank, most.seconds };
    return exposed;
}

/* Of all ranks' states: the mean of what is not logged yet, this step included. */
static double note_loss(struct pretrain *p, double loss, int logged)
{
    struct loss_window *window = &p->unlogged;

    if (isfinite(loss)) {
        window->n++;
        window->sum += loss;
    }
    double mean = window->n ? window->sum / (double)window->n : NAN;
    if (logged)
        *window = (struct loss_window){ 0 };
    return mean;
}

static void note_learning(struct pretrain *p, const struct trainer_result *r)
{
    char text[512];
    const char *event = learning_note(&p->learning, p->job, r->step, r->loss, text, sizeof text);

    if (!event)
        return;
    log_warn("step %" PRId64 ": %s", r->step, text);
    pretrain_report_event(p, event, text);
}

void pretrain_report_step(struct pretrain *p, const struct trainer_result *r, double took)
{
    const struct job *job = p->job;
    struct err err;
    char words[256];
    struct arena scratch = { 0 };
    struct metrics_gpu gpu;
    struct metrics_exposed exposed;
    double tokens_per_s = (double)r->read / took;
    int logged = r->step % job->train.log_every == 0 || r->step == job->train.steps || r->step == 1;
    struct metrics_step m = {
        .step = r->step,
        .loss = r->loss,
        .loss_mean = note_loss(p, r->loss, logged),
        .z_loss = r->z_loss,
        .grad_norm = r->grad_norm,
        .lr = r->lr,
        .tokens = trainer_tokens(p->trainer),
        .tokens_per_s = tokens_per_s,
        .learned_per_s = r->read > r->tokens ? (double)r->tokens / took : 0,
        .step_s = took,
        .mfu = tokens_per_s * model_spec_flops_per_token(&job->model, job->data.seq_len) /
               p->peak_flops,
        .memory_bytes = program_memory_bytes(trainer_program(p->trainer)),
        .skipped = trainer_n_skipped(p->trainer),
        .reruns = trainer_n_reruns(p->trainer),
        .useful_s = p->account.useful_s,
        .loss_scale = r->loss_scale,
        .is_compressed = r->is_compressed,
        .compress_error = r->compress_error,
        .numerics = trainer_numerics(p->trainer),
        .balance = r->balance,
        .most_used = r->most_used,
        .least_used = r->least_used,
        .dropped = r->dropped,
    };

    if (!p->is_first)
        return;
    m.elapsed_s = pretrain_monitor_elapsed(p);
    compare_with_plan(p, took);
    pretrain_monitor_write(p, &m);
    terminal_step(p->terminal, &m, logged);
    note_learning(p, r);
    if (!logged)
        return;
    m.gpu = see_gpu(p, &gpu, words, sizeof words);
    int *layers = arena_array(&scratch, int, job->model.n_layers);
    m.experts = experts_of(job, r, layers);
    m.exposed = exposed_of(p, &exposed, &scratch);
    forgive(p, metrics_step(p->metrics, &m, &err), &err);
    arena_release(&scratch);
    pretrain_hooks_line(p, HOOK_STEP);
    pretrain_tracking_line(p);
}

/* Of all ranks' steps; without other ranks, or where they are not compared, of this one's. */
static struct rank_op_times take_op_times(struct pretrain *p)
{
    struct rank_op_times times = { 0 };

    if (p->watch)
        return rank_watch_take_op_times(p->watch);
    struct run_op_times own = run_take_op_times(trainer_run(p->trainer));
    times.n_rank_steps = own.n_steps;
    memcpy(times.seconds, own.seconds, sizeof times.seconds);
    return times;
}

static int longest_first(const void *pa, const void *pb)
{
    const struct metrics_op *a = pa, *b = pb;

    return (a->seconds < b->seconds) - (a->seconds > b->seconds);
}

static void write_op_times(struct pretrain *p)
{
    struct metrics_op ops[N_OP_KINDS];
    int n = 0;
    struct err err;

    struct rank_op_times times = take_op_times(p);
    if (!times.n_rank_steps)
        return;
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (times.seconds[kind] > 0)
            ops[n++] = (struct metrics_op){ op_name((enum op_kind)kind),
                                            times.seconds[kind] / (double)times.n_rank_steps };
    qsort(ops, (size_t)n, sizeof *ops, longest_first);
    p->account.op_times_next =
        clock_seconds() + fmax(OP_TIMES_SECONDS, OP_TIMES_SHARE * pretrain_monitor_elapsed(p));
    forgive(p,
            metrics_op_times(p->metrics, trainer_step_number(p->trainer), times.n_rank_steps, ops,
                             n, &err),
            &err);
}

void pretrain_report_op_times(struct pretrain *p)
{
    if (p->metrics && clock_seconds() >= p->account.op_times_next)
        write_op_times(p);
}

int pretrain_report_last_op_times(struct pretrain *p, struct err *err)
{
    if (rank_watch_gather_op_times(p->watch, err) < 0)
        return -1;
    if (p->metrics)
        write_op_times(p);
    return 0;
}

void pretrain_report_eval(struct pretrain *p, const char *set, double loss, int64_t tokens)
{
    const struct metrics_evaluation evaluation = { .step = trainer_step_number(p->trainer),
                                                   .set = set,
                                                   .loss = loss,
                                                   .tokens = tokens,
                                                   .elapsed_s = pretrain_monitor_elapsed(p) };
    struct err err;

    if (!p->metrics)
        return;
    forgive(p, metrics_eval(p->metrics, &evaluation, &err), &err);
    pretrain_hooks_line(p, HOOK_EVAL);
    pretrain_tracking_line(p);
}

void pretrain_report_event_at(struct pretrain *p, int64_t step, const char *event, const char *text)
{
    struct err err;

    if (p->metrics)
        forgive(p, metrics_event(p->metrics, step, event, text, &err), &err);
}

void pretrain_report_event(struct pretrain *p, const char *event, const char *text)
{
    pretrain_report_event_at(p, trainer_step_number(p->trainer), event, text);
}

/* Each line is an event; `say` logs it, of all ranks' on rank 0 alone. */
static void report_lines(struct pretrain *p, const char *event, const struct str *lines,
                         void (*say)(const char *line))
{
    char *copy = strdup(str_text(lines)), *rest = copy, *line;

    while (copy && (line = strsep(&rest, "\n")))
        if (*line && p->is_first) {
            say(line);
            pretrain_report_event(p, event, line);
        }
    free(copy);
}

static void say_changed(const char *line)
{
    log_info("changed since the checkpoint: %s", line);
}

static void say_accepted(const char *line)
{
    log_warn("other numerics than the checkpoint, by --accept-numerics: %s", line);
}

void pretrain_report_changes(struct pretrain *p, const struct numerics_differences *differences)
{
    report_lines(p, "changed", &differences->logged, say_changed);
    report_lines(p, "numerics", &differences->accepted, say_accepted);
}
