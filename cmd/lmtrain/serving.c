/*
 * serving.c - from --tp, --pp and --ranks to ranks that hold a model together
 */
#include "serving.h"

#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/num.h"
#include "cmd.h"
#include "serve/ensemble.h"
#include "sweep/history.h"

void serving_options(struct serving *s, struct option *out)
{
    const struct option table[SERVING_N_OPTIONS] = {
        option_int("tp", &s->tp, "N", 1, 1024, "tensor parallel size (default: 1)"),
        option_int("pp", &s->pp, "N", 1, 1024, "pipeline parallel size (default: 1)"),
        option_int("ranks", &s->n_ranks, "N", 1, 1000000,
                   "number of ranks, a multiple of tp * pp; RANKS / (tp * pp) replicas divide the "
                   "work (default: tp * pp)"),
        option_text("hosts", &s->hosts, "FILE|HOST,...",
                    "run on these hosts through ssh, as for pretrain"),
        option_named("device", &s->device, "auto|cpu|cuda", job_device_choices,
                     "device to compute on; auto: GPUs if there are any, else CPU (default: auto)"),
    };

    memcpy(out, table, sizeof table);
}

static bool is_asked(const struct serving *s)
{
    return s->tp || s->pp || s->n_ranks || s->hosts;
}

int serving_find(struct serving *s, const char *command, int alone, struct arena *arena,
                 struct err *err)
{
    int size = max_int(1, s->tp) * max_int(1, s->pp);

    s->job = (struct job){ .source = command, .output = "", .ranks = s->n_ranks };
    s->job.device = s->device ? (enum job_device)choice_find(job_device_choices, s->device)->value
                              : JOB_DEVICE_AUTO;
    s->job.parallel.tp = max_int(1, s->tp);
    s->job.parallel.pp = max_int(1, s->pp);
    s->job.parallel.cp = 1;
    s->job.train.hang_seconds = 60;
    s->job.train.hang_abort_seconds = 600;
    s->ranks = (struct ranks){ .context = CONTEXT_PLAIN, .n_ranks = 1 };
    s->is_alone = alone || (!is_asked(s) && !launch_is_rank());
    if (s->is_alone)
        return 0;
    if (ranks_find(&s->ranks, &s->job, s->hosts, arena, err) < 0)
        return -1;
    if (s->ranks.context != CONTEXT_RANK && s->ranks.n_ranks % size)
        return err_set(
            err, ERR_CONFIG,
            "%s: %d rank%s not a multiple of the %d of one model replica: --tp %d * --pp %d",
            command, s->ranks.n_ranks, s->ranks.n_ranks == 1 ? " is" : "s are", size,
            s->job.parallel.tp, s->job.parallel.pp);
    return 0;
}

int serving_starts(const struct serving *s)
{
    return !s->is_alone && ranks_are_started(&s->ranks, &s->job);
}

bool serving_is_shared(const struct serving *s)
{
    return serving_starts(s) || (s->has_joined && s->rank.world_size > 1);
}

void serving_catch_signals(const struct serving *s)
{
    if (s->ranks.context != CONTEXT_RANK)
        interrupt_catch(s->stop_words);
}

/* ---- starting ---- */

static bool takes_value(const struct options *options, const char *word)
{
    for (int i = 0; i < options->n_options; i++)
        if (!strncmp(word, "--", 2) && !strcmp(word + 2, options->table[i].name))
            return options->table[i].kind != OPTION_FLAG;
    return false;
}

static bool is_option(const char *word, const char *name)
{
    size_t n = strlen(name);

    return !strncmp(word, name, n) && (!word[n] || word[n] == '=');
}

/* The words of the command line without those that select the launcher. */
static const char *const *words_of_rank(const struct options *options, int argc, char **argv,
                                        struct arena *arena)
{
    const char **words = arena_array(arena, const char *, argc + 1);
    int n = 0;

    for (int i = 1; i < argc; i++) {
        int n_words = i + 1 < argc && takes_value(options, argv[i]) ? 2 : 1;

        if (!strcmp(argv[i], "--"))
            n_words = argc - i;
        if (!is_option(argv[i], "--hosts") && !is_option(argv[i], "--ranks"))
            for (int k = 0; k < n_words; k++)
                words[n++] = argv[i + k];
        i += n_words - 1;
    }
    return words;
}

int serving_start(const struct serving *s, const struct options *options, int argc, char **argv,
                  struct arena *arena)
{
    struct option_list none = { 0 };
    struct ranks_command command = { .name = argv[0],
                                     .sets = &none,
                                     .more = words_of_rank(options, argc, argv, arena),
                                     .stop_words = s->stop_words,
                                     .keeps_nothing = true };

    return ranks_start(&s->ranks, &s->job, &command, arena);
}

/* ---- being one ---- */

int serving_join(struct serving *s)
{
    struct err err;

    if (s->ranks.context != CONTEXT_RANK) {
        s->rank = (struct launch_rank){ 0, 1, 0, 1, 0 };
        return 0;
    }
    int status = ranks_join(&s->rank, &s->job, RANKS_WITHOUT_LOGS, &err);
    s->has_joined = !status;
    return status;
}

int serving_check(const struct serving *s, const struct model_spec *spec, struct err *err)
{
    if (s->job.parallel.pp > spec->n_layers)
        return err_set(err, ERR_CONFIG, "--pp is %d, the model has %d layer%s", s->job.parallel.pp,
                       spec->n_layers, str_s(spec->n_layers));
    return job_check_tp(spec, s->job.parallel.tp, "--tp", err);
}

/* The best trials of a sweep, as its end names them, in the arena. Returns how many, or -1. */
static int sweep_members(const char *folder, const char ***out, struct arena *arena,
                         struct err *err)
{
    struct history history;

    if (history_read(&history, history_path(folder, arena), arena, err) < 0)
        return -1;
    if (!history.n_ensemble)
        return err_set(err, ERR_CONFIG,
                       "--ensemble %s: the sweep has no ensemble, or has not ended (hint: "
                       "sweep.ensemble: 3, and its command again)",
                       folder);
    const char **paths = arena_array(arena, const char *, history.n_ensemble);
    for (int i = 0; i < history.n_ensemble; i++)
        paths[i] = history_trial_folder(folder, history.ensemble[i], arena);
    *out = paths;
    return history.n_ensemble;
}

static int list_members(const char *ensemble, const char ***out, struct arena *arena,
                        struct err *err)
{
    char *copy = arena_strdup(arena, ensemble), *rest = NULL;
    const char **paths = NULL;
    int n = 0, capacity = 0;

    if (file_exists(history_path(ensemble, arena)))
        return sweep_members(ensemble, out, arena, err);
    for (char *path = strtok_r(copy, ",", &rest); path; path = strtok_r(NULL, ",", &rest)) {
        paths = arena_grow(arena, paths, sizeof *paths, &capacity, n + 1);
        paths[n++] = path;
        if (cmd_check_model(path, err) < 0)
            return err_add(err, "--ensemble");
    }
    *out = paths;
    return n ? n : err_set(err, ERR_CONFIG, "--ensemble names no model");
}

int serving_open_model(struct served *served, const char *model, const char *ensemble,
                       const char *adapter, const char *weights, struct err *err)
{
    struct arena arena = { 0 };
    const char **paths = NULL;

    if (!ensemble)
        return served_open_adapted(served, model, adapter, weights, err);
    int n = list_members(ensemble, &paths, &arena, err);
    int status = n < 0 ? -1 : served_open_adapted(served, paths[0], adapter, weights, err);
    if (!status && n > 1 && ensemble_open(served, paths + 1, n - 1, weights, err) < 0) {
        served_close(served);
        status = -1;
    }
    arena_release(&arena);
    return status;
}

/* All ranks fail like this one: one of them says it. */
static int fail_alike(struct serving *s, const struct err *err)
{
    s->is_told = err->code == ERR_CONFIG && s->rank.world_rank != 0;
    return -1;
}

/* Ranks that were started from different folders, or on hosts with different files. */
static int check_same(struct serving *s, const struct served *served, struct err *err)
{
    struct str text = { 0 };

    str_printf(&text, "%s\n", cmd_build());
    job_print(&served->job, &text);
    for (int i = 0; i < served->n_members; i++)
        job_print(&served->members[i].job, &text);
    int status = replica_agree(&s->replica, "the version or the model",
                               XXH64(str_text(&text), text.length, 0), err);
    str_release(&text);
    return status < 0 ? fail_alike(s, err) : 0;
}

void serving_tell(const struct serving *s, const struct served *served)
{
    if (served->job.untied_by && !serving_starts(s) && s->rank.world_rank == 0)
        log_warn("%s: " JOB_UNTIED, served->job.untied_by);
}

int serving_open(struct serving *s, struct served *served, int n_threads, struct err *err)
{
    const struct engine_request request = { n_threads, s->job.device };

    if (engine_open(&s->engine, &s->rank, &request, err) < 0)
        return -1;
    s->has_engine = true;
    if (s->rank.world_size == 1 && s->job.parallel.tp * s->job.parallel.pp == 1)
        return 0;
    if (replica_open(&s->replica, s->engine.comm, s->engine.worker,
                     progress_join(s->rank.local_rank), s->job.parallel.tp, s->job.parallel.pp,
                     err) < 0)
        return fail_alike(s, err);
    served->replica = &s->replica;
    for (int i = 0; i < served->n_members; i++)
        served->members[i].replica = &s->replica;
    return check_same(s, served, err);
}

int serving_fail(const struct serving *s, const struct err *err)
{
    if (s->is_told)
        return (int)err->code;
    return s->has_joined ? ranks_fail(&s->rank, err) : cmd_fail(err);
}

void serving_close(struct serving *s)
{
    if (s->has_engine)
        engine_close(&s->engine);
    if (s->has_joined)
        launch_leave();
}
