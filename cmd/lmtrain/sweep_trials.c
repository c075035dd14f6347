/*
 * sweep_trials.c - the command line of a trial, its share of the machine, and how far it came
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "ckpt/store.h"
#include "device/device.h"
#include "device/visible_gpus.h"
#include "launch/launch_context.h"
#include "launch/remote/hosts.h"
#include "launch/slurm/slurm.h"
#include "sweep/metric.h"
#include "sweep/space.h"
#include "sweep_run.h"
#include "tuned.h"

/* ---- shares ---- */

static void set_variable(struct sweep_slot *slot, const char *name, const char *value)
{
    struct trial_place *place = &slot->place;

    CHECK(place->n_variables < TRIAL_VARIABLES_MAX);
    place->variables[place->n_variables++] = (struct trial_variable){ name, value };
}

/* The n GPUs that there are, as $CUDA_VISIBLE_DEVICES names them, or 0 to n - 1. */
static const char **list_gpus(int n, struct arena *arena)
{
    struct visible_gpu gpus[MACHINE_GPUS_MAX];
    const char **names = arena_array(arena, const char *, max_int(1, n));
    int n_listed = visible_gpus_find(gpus, getenv("CUDA_VISIBLE_DEVICES"), MACHINE_GPUS_MAX, NULL);

    CHECK(n <= n_listed);
    for (int i = 0; i < n; i++)
        names[i] = gpus[i].name ? arena_printf(arena, "%.*s", gpus[i].n_bytes, gpus[i].name)
                                : arena_printf(arena, "%d", i);
    return names;
}

static int divide_gpus(struct sweep_session *s, struct err *err)
{
    const struct job *job = &s->job;
    int n_gpus = job->device == JOB_DEVICE_CPU ? 0 : device_cuda_seen();
    int one_copy = job->parallel.tp * job->parallel.pp * job->parallel.cp;
    int per_trial = job->ranks         ? job->ranks
                    : job->parallel.dp ? job->parallel.dp * one_copy
                                       : max_int(one_copy, n_gpus / s->n_slots);
    const char **names = list_gpus(n_gpus, s->arena);

    if (!n_gpus)
        return 0;
    if (per_trial * s->n_slots > n_gpus)
        return err_set(err, ERR_CONFIG,
                       "sweep.parallel is %d and each trial has %d rank%s, but there %s %d GPU%s "
                       "(hint: parallel: %d)",
                       s->n_slots, per_trial, str_s(per_trial), n_gpus == 1 ? "is" : "are", n_gpus,
                       str_s(n_gpus), max_int(1, n_gpus / per_trial));
    for (int i = 0; i < s->n_slots; i++) {
        struct str text = { 0 };

        for (int k = 0; k < per_trial; k++)
            str_printf(&text, k ? ",%s" : "%s", names[i * per_trial + k]);
        set_variable(&s->slots[i], "CUDA_VISIBLE_DEVICES", arena_strdup(s->arena, str_text(&text)));
        str_release(&text);
    }
    return 0;
}

static int divide_cores(struct sweep_session *s, struct err *err)
{
    for (int i = 0; i < s->n_slots; i++) {
        struct rank_cores *cores = arena_array(s->arena, struct rank_cores, 1);

        if (launch_cores_of(i, s->n_slots, cores, err) < 0)
            return -1;
        s->slots[i].place.cores = cores->all;
        s->slots[i].place.n_cores = cores->n_all;
    }
    return 0;
}

/* Hosts first to end - 1 as one text, with commas between. */
static const char *join_hosts(const struct host_list *list, int first, int end, struct arena *arena)
{
    struct str names = { 0 };

    for (int k = first; k < end; k++) {
        str_printf(&names, k > first ? ",%s" : "%s", list->hosts[k].name);
        if (list->hosts[k].n_slots)
            str_printf(&names, ":%d", list->hosts[k].n_slots);
    }
    const char *text = arena_strdup(arena, str_text(&names));
    str_release(&names);
    return text;
}

/* Neighbouring ones together, as in a list of one run. */
static void deal_hosts(struct sweep_session *s, const struct host_list *list)
{
    for (int i = 0; i < s->n_slots; i++)
        s->slots[i].name = join_hosts(list, i * list->n_hosts / s->n_slots,
                                      (i + 1) * list->n_hosts / s->n_slots, s->arena);
}

static int divide_hosts(struct sweep_session *s, const char *text, struct err *err)
{
    struct host_list list;

    if (hosts_read(&list, text, s->arena, err) < 0)
        return -1;
    if (list.n_hosts < s->n_slots)
        return err_set(err, ERR_CONFIG,
                       "sweep.parallel is %d, but --hosts has %d host%s (hint: parallel: %d)",
                       s->n_slots, list.n_hosts, str_s(list.n_hosts), list.n_hosts);
    deal_hosts(s, &list);
    for (int i = 0; i < s->n_slots; i++)
        s->slots[i].hosts = s->slots[i].name;
    return 0;
}

/* This machine, whatever it is a part of. */
static int divide_machine(struct sweep_session *s, struct err *err)
{
    return divide_gpus(s, err) < 0 ? -1 : divide_cores(s, err);
}

/*
 * Trials that run srun get nodes of the allocation. One node is divided as a machine is, if we are
 * on it: its trials then start their ranks themselves.
 */
static int divide_allocation(struct sweep_session *s, struct err *err)
{
    struct host_list list;

    if (slurm_node_names(&list, s->arena, err) < 0)
        return -1;
    if (list.n_hosts == 1 && getenv("SLURMD_NODENAME")) {
        for (int i = 0; i < s->n_slots; i++) {
            set_variable(&s->slots[i], "SLURM_JOB_ID", NULL);
            set_variable(&s->slots[i], "SLURM_JOBID", NULL);
        }
        return divide_machine(s, err);
    }
    if (list.n_hosts < s->n_slots)
        return err_set(err, ERR_CONFIG,
                       "sweep.parallel is %d, but this Slurm allocation has %d node%s (hint: "
                       "parallel: %d, or --nodes=%d for sbatch or salloc)",
                       s->n_slots, list.n_hosts, str_s(list.n_hosts), list.n_hosts, s->n_slots);
    deal_hosts(s, &list);
    for (int i = 0; i < s->n_slots; i++)
        set_variable(&s->slots[i], SLURM_NODES_VARIABLE, s->slots[i].name);
    return 0;
}

int sweep_divide(struct sweep_session *s, const char *hosts, struct err *err)
{
    enum launch_context context;

    if (launch_context(&context, err) < 0)
        return -1;
    if (context == CONTEXT_RANK)
        return err_set(err, ERR_CONFIG,
                       "lmtrain sweep starts its trials itself, and cannot be a rank of srun or "
                       "mpirun (hint: without them)");
    if (hosts)
        return divide_hosts(s, hosts, err);
    if (s->n_slots == 1)
        return 0;
    return context == CONTEXT_ALLOCATION ? divide_allocation(s, err) : divide_machine(s, err);
}

/* ---- how far ---- */

int64_t sweep_saved_step(const struct sweep_session *s, int trial)
{
    struct arena arena = { 0 };
    struct err ignored;
    const char *folder = history_trial_folder(s->output, trial, &arena);
    bool is_run = file_is_folder(arena_printf(&arena, "%s/checkpoints", folder));
    const char *newest = is_run ? store_newest(folder, &arena, &ignored) : NULL;
    const char *name = newest ? strrchr(newest, '-') : NULL;
    int64_t step = name ? strtoll(name + 1, NULL, 10) : -1;

    arena_release(&arena);
    return step;
}

/* Whether the same command would have nothing left to do: of a run that ended before the sweep was
 * killed, without a line in the history. */
static bool is_finished(const char *folder, int64_t saved, struct arena *arena)
{
    const char *path = arena_printf(arena, "%s/job.yaml", folder);
    struct job job;
    struct err ignored;

    return file_exists(path) && job_read(&job, path, NULL, 0, arena, &ignored) == 0 &&
           job.train.steps && saved >= job.train.steps &&
           (job.kind == JOB_PRETRAIN || !tuned_is_unfinished(&job));
}

int sweep_look(const struct sweep_session *s, int trial, struct history_record *out,
               struct err *err)
{
    const struct history_header *h = &s->history.header;
    int rung = s->judge.trials[trial].rung;
    bool is_last = rung == h->n_rungs - 1, is_eval = str_starts_with(h->metric, "eval");
    int64_t saved = sweep_saved_step(s, trial), last = is_last ? INT64_MAX : h->rungs[rung];
    struct arena arena = { 0 };
    const char *folder = history_trial_folder(s->output, trial, &arena);
    struct metric_value value;

    bool is_there = is_last ? saved >= 0 && is_finished(folder, saved, &arena) : saved >= last;
    int status = metric_read(folder, h->metric, last, &value, err);
    arena_release(&arena);
    if (status < 0)
        return -1;
    /* An evaluation follows the checkpoint of its step, and is owed if it is missing. */
    if (!is_there || value.step < 0 || (is_eval && value.step < (is_last ? saved : last)))
        return 0;
    *out = (struct history_record){ .event = HISTORY_VALUE,
                                    .trial = trial,
                                    .rung = rung,
                                    .step = value.step,
                                    .value = value.value };
    return 1;
}

/* ---- started ---- */

struct words {
    const char **items;
    int n, capacity;
    struct arena *arena;
};

static void add_word(struct words *w, const char *word)
{
    w->items = arena_grow(w->arena, w->items, sizeof *w->items, &w->capacity, w->n + 1);
    w->items[w->n++] = word;
}

static void add_option(struct words *w, const char *option, const char *value)
{
    add_word(w, option);
    add_word(w, value);
}

/* Evaluations at the rungs, where the job has none in between. */
static void add_evaluations(struct words *w, const struct sweep_session *s)
{
    const struct history_header *h = &s->history.header;

    if (h->n_rungs > 1 && !s->job.eval.every_steps && str_starts_with(h->metric, "eval"))
        add_option(w, "--set",
                   arena_printf(w->arena, "eval.every_steps=%lld", (long long)h->rungs[0]));
}

/* The command line of a trial, with job_file as its job, up to --set output. */
static void add_command(struct words *w, const struct sweep_session *s, int trial,
                        const char *job_file)
{
    struct sweep_row settings;

    space_settings(&s->job, trial, &settings, w->arena);
    add_word(w, "lmtrain");
    add_option(w, s->history.header.command, job_file);
    for (int i = 0; i < s->sets->n; i++)
        add_option(w, "--set", s->sets->items[i]);
    add_option(w, "--set", "sweep=null");
    add_evaluations(w, s);
    for (int i = 0; i < settings.n; i++)
        add_option(
            w, "--set",
            arena_printf(w->arena, "%s=%s", settings.settings[i].key, settings.settings[i].value));
    add_option(
        w, "--set",
        arena_printf(w->arena, "output=\"%s\"", history_trial_folder(s->output, trial, w->arena)));
}

int sweep_start(struct sweep_session *s, struct sweep_slot *slot, struct err *err)
{
    const struct history_header *h = &s->history.header;
    int trial = slot->trial, rung = s->judge.trials[trial].rung;
    struct arena arena = { 0 };
    struct words w = { .arena = &arena };

    add_command(&w, s, trial, s->trial_job);
    if (slot->hosts)
        add_option(&w, "--hosts", slot->hosts);
    if (rung < h->n_rungs - 1)
        add_option(&w, "--stop-at", arena_printf(&arena, "%lld", (long long)h->rungs[rung]));
    add_word(&w, NULL);
    slot->began_at = sweep_saved_step(s, trial);
    slot->process =
        trial_start(w.items, &slot->place, history_trial_log(s->output, trial, &arena), err);
    arena_release(&arena);
    if (slot->process > 0)
        return 0;
    slot->process = 0;
    return -1;
}

/* ---- one trial, in this process ---- */

static int check_trial(const struct sweep_session *s, int trial, struct err *err)
{
    int n = space_n_trials(&s->job);

    if (s->job.sweep.stop != SWEEP_STOP_NONE)
        return err_set(err, ERR_CONFIG,
                       "--trial runs a trial to its end, but sweep.stop is %s, which compares "
                       "trials on the way (hint: --join, with sweep.asynchronous; lmtrain sweep "
                       "without either, in an allocation of several nodes; or --set "
                       "sweep.stop=none)",
                       choice_word(sweep_stop_choices, (int)s->job.sweep.stop));
    if (trial < 0 || trial >= n)
        return err_set(err, ERR_CONFIG,
                       "--trial is %d, but the sweep has trials 0 to %d (hint: sbatch "
                       "--array=0-%d)",
                       trial, n - 1, n - 1);
    return 0;
}

int sweep_become_trial(const struct sweep_request *q, const char *job_file, struct arena *arena)
{
    struct sweep_session s = { .sets = &q->sets, .arena = arena };
    struct words w = { .arena = arena };
    struct err err;

    if (sweep_read_job(&s, q, job_file, &err) < 0 || check_trial(&s, q->trial, &err) < 0)
        return cmd_fail(&err);
    history_describe(&s.history.header, &s.job, job_file, arena);
    add_command(&w, &s, q->trial, job_file);
    if (q->hosts)
        add_option(&w, "--hosts", q->hosts);
    add_word(&w, NULL);
    fflush(NULL);
    execv("/proc/self/exe", (char *const *)(uintptr_t)w.items);
    err_set_errno(&err, ERR_FAILED, "the trial cannot be started");
    return cmd_fail(&err);
}
