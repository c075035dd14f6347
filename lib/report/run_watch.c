/*
 * run_watch.c - status files and the tail of metrics.jsonl as a struct run_watch
 */
#include "report/run_watch.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "report/json_values.h"

#define STATUS_BYTES_MAX ((size_t)64 << 20)
#define TAIL_BYTES ((size_t)1 << 18) /* of metrics.jsonl */

/* A status is renewed each second. File systems of several hosts and clocks need some slack. */
#define SILENT_SECONDS 15.0
/* On its own host a process that is gone is known to be; its last write may be as old as that. */
#define GONE_SECONDS 3.0

/* ---- JSON ---- */

static int64_t integer_of(const cJSON *object, const char *key, int64_t otherwise)
{
    double value = json_number(object, key, NAN);

    return fabs(value) < 9e15 ? (int64_t)value : otherwise;
}

/* Without control characters: it goes to a terminal. */
static const char *text_of(const cJSON *object, const char *key, struct arena *arena)
{
    char *text = arena_strdup(arena, json_text(object, key, ""));

    str_make_printable(text);
    return text;
}

/* NULL if it is not there, or no object. */
static cJSON *read_object(const char *path)
{
    struct err ignored;
    size_t n_bytes;
    char *text;

    if (file_read(path, STATUS_BYTES_MAX, ERR_DATA, &text, &n_bytes, &ignored) < 0)
        return NULL;
    cJSON *object = cJSON_ParseWithLength(text, n_bytes);
    free(text);
    if (!cJSON_IsObject(object)) {
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

/* ---- status files ---- */

static void take_figures(struct run_watch *w, const cJSON *run)
{
    w->total_steps = integer_of(run, "steps", 0);
    w->has_step = cJSON_HasObjectItem(run, "step_s");
    w->step = (struct metrics_step){
        .step = integer_of(run, "step", 0),
        .loss = json_number(run, "loss", NAN),
        .loss_mean = json_number(run, "loss_mean", NAN),
        .grad_norm = json_number(run, "grad_norm", NAN),
        .lr = json_number(run, "lr", NAN),
        .tokens = integer_of(run, "tokens", 0),
        .tokens_per_s = json_number(run, "tokens_per_s", 0),
        .learned_per_s = json_number(run, "learned_per_s", 0),
        .step_s = json_number(run, "step_s", NAN),
        .mfu = json_number(run, "mfu", 0),
        .memory_bytes = (uint64_t)max_i64(0, integer_of(run, "memory_bytes", 0)),
        .skipped = integer_of(run, "skipped", 0),
        .reruns = integer_of(run, "reruns", 0),
        .loss_scale = json_number(run, "loss_scale", 0),
    };
}

static void take_run(struct run_watch *w, const cJSON *run, struct arena *arena)
{
    w->host = text_of(run, "host", arena);
    w->text = text_of(run, "text", arena);
    w->status = text_of(run, "status", arena);
    w->note = text_of(run, "note", arena);
    w->pid = (int)integer_of(run, "pid", 0);
    w->n_ranks = (int)integer_of(run, "n_ranks", 1);
    w->started_at = json_number(run, "started_at", 0);
    w->begun_at = json_number(run, "begun_at", 0);
    w->useful_s = json_number(run, "useful_s", 0);
    w->left_s = json_number(run, "left_s", NAN);
    w->saved_step = integer_of(run, "saved_step", -1);
    w->restarts = integer_of(run, "restarts", 0);
    w->pauses = integer_of(run, "pauses", 0);
    const cJSON *best = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(run, "best"), 0);
    const cJSON *step = cJSON_GetArrayItem(best, 0), *loss = cJSON_GetArrayItem(best, 1);
    if (cJSON_IsNumber(step) && cJSON_IsNumber(loss) && fabs(step->valuedouble) < 9e15) {
        w->best_step = (int64_t)step->valuedouble;
        w->best_loss = loss->valuedouble;
    }
    take_figures(w, run);
}

/* age_s: since what the file says was true. */
static void take_ranks(struct run_watch *w, const cJSON *file, double age_s, struct arena *arena)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(file, "ranks"), *item;
    const char *host = text_of(file, "host", arena);
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0, capacity = w->n_listed;

    w->ranks = arena_grow(arena, w->ranks, sizeof *w->ranks, &capacity, w->n_listed + n + 1);
    cJSON_ArrayForEach(item, list)
    {
        struct watch_rank *r = &w->ranks[w->n_listed++];

        *r = (struct watch_rank){ .rank = (int)integer_of(item, "rank", 0),
                                  .micro_batch = (int)integer_of(item, "micro_batch", -1),
                                  .step = integer_of(item, "step", 0),
                                  .resident_bytes = integer_of(item, "resident_bytes", 0),
                                  .peak_bytes = integer_of(item, "peak_bytes", 0),
                                  .heard_s = json_number(item, "heard_s", 0) + age_s,
                                  .waits =
                                      cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "waits")),
                                  .host = text_of(item, "host", arena),
                                  .state = text_of(item, "state", arena),
                                  .doing = text_of(item, "doing", arena),
                                  .gpu = text_of(item, "gpu", arena) };
        if (!*r->host)
            r->host = host;
    }
}

/* Files of an earlier launch in the folder are not of these ranks. */
static double read_ranks(struct run_watch *w, const char *folder, double now, struct arena *arena)
{
    DIR *dir = opendir(folder);
    double newest = 0;

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!str_starts_with(entry->d_name, "ranks") || !str_ends_with(entry->d_name, ".json"))
            continue;
        cJSON *file = read_object(arena_printf(arena, "%s/%s", folder, entry->d_name));
        double written_at = json_number(file, "written_at", 0);

        if (file && written_at >= w->started_at - SILENT_SECONDS) {
            take_ranks(w, file, fmax(0, now - json_number(file, "said_at", now)), arena);
            newest = fmax(newest, written_at);
        }
        cJSON_Delete(file);
    }
    if (dir)
        closedir(dir);
    return newest;
}

static int compare_ranks(const void *a, const void *b)
{
    const struct watch_rank *x = a, *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

static bool is_gone(const struct run_watch *w)
{
    char host[256] = "";

    gethostname(host, sizeof host - 1);
    return w->pid > 0 && !strcmp(host, w->host) && kill(w->pid, 0) < 0 && errno == ESRCH;
}

static enum watch_state judge(const struct run_watch *w, const char *state, double run_age,
                              double ranks_age)
{
    bool is_silent = run_age > SILENT_SECONDS || (run_age > GONE_SECONDS && is_gone(w));

    if (!strcmp(state, "done"))
        return WATCH_DONE;
    if (!strcmp(state, "saved"))
        return WATCH_SAVED;
    /* A failed rank 0 may be restarted; what starts the ranks writes until it gives up. */
    if (is_silent || !strcmp(state, "failed")) {
        if (ranks_age < GONE_SECONDS)
            return WATCH_RESTARTING;
        return !strcmp(state, "failed") ? WATCH_FAILED : WATCH_SILENT;
    }
    return WATCH_RUNNING;
}

static void read_status(struct run_watch *w, const char *folder, double now, struct arena *arena)
{
    const char *status = arena_printf(arena, "%s/status", folder);
    cJSON *run = read_object(arena_printf(arena, "%s/run.json", status));

    if (!run)
        return;
    take_run(w, run, arena);
    double written_at = json_number(run, "written_at", 0);
    double ranks_at = read_ranks(w, status, now, arena);
    double run_age = fmax(0, now - written_at);

    take_ranks(w, run, run_age, arena);
    if (w->n_listed)
        qsort(w->ranks, (size_t)w->n_listed, sizeof *w->ranks, compare_ranks);
    w->state = judge(w, text_of(run, "state", arena), run_age,
                     ranks_at > 0 ? fmax(0, now - ranks_at) : INFINITY);
    w->age_s = w->state == WATCH_RESTARTING ? fmax(0, now - ranks_at) : run_age;
    cJSON_Delete(run);
}

/* ---- metrics.jsonl ---- */

static void take_evaluation(struct run_watch *w, const cJSON *line, struct arena *arena)
{
    const char *set = text_of(line, "eval_set", arena);
    int i = 0, capacity = w->n_evaluations;

    while (i < w->n_evaluations && strcmp(w->evaluations[i].set, set) != 0)
        i++;
    if (i == w->n_evaluations) {
        w->evaluations = arena_grow(arena, w->evaluations, sizeof *w->evaluations, &capacity,
                                    w->n_evaluations + 1);
        w->n_evaluations++;
    }
    w->evaluations[i] = (struct watch_evaluation){ .step = integer_of(line, "step", 0),
                                                   .loss = json_number(line, "eval_loss", NAN),
                                                   .set = set };
}

static void take_event(struct run_watch *w, const cJSON *line, struct arena *arena)
{
    if (w->n_events == N_WATCH_EVENTS)
        memmove(w->events, w->events + 1, sizeof *w->events * (N_WATCH_EVENTS - 1));
    else
        w->n_events++;
    w->events[w->n_events - 1] = (struct watch_event){ .step = integer_of(line, "step", 0),
                                                       .time = json_number(line, "time", 0),
                                                       .event = text_of(line, "event", arena),
                                                       .text = text_of(line, "text", arena) };
    const char *event = w->events[w->n_events - 1].event;
    if (!strcmp(event, "died"))
        w->death = w->events[w->n_events - 1].text;
    else if (!strcmp(event, "started") || !strcmp(event, "resumed"))
        w->death = "";
}

/* A step's line serves where there is no status. */
static void take_line(struct run_watch *w, const cJSON *line, struct arena *arena)
{
    if (cJSON_HasObjectItem(line, "event"))
        take_event(w, line, arena);
    else if (cJSON_HasObjectItem(line, "eval_loss"))
        take_evaluation(w, line, arena);
    else if (w->state == WATCH_NO_STATUS && cJSON_HasObjectItem(line, "step_s"))
        take_figures(w, line);
}

static void read_metrics(struct run_watch *w, const char *path, struct arena *arena)
{
    struct err ignored;
    struct file_map map;

    if (file_map_open(&map, path, &ignored) < 0)
        return;
    const char *text = (const char *)map.data;
    size_t at = map.n_bytes > TAIL_BYTES ? map.n_bytes - TAIL_BYTES : 0;
    /* The first line of a tail is torn. */
    for (bool is_whole = at == 0; at < map.n_bytes; is_whole = true) {
        const char *end = memchr(text + at, '\n', map.n_bytes - at);

        if (!end)
            break;
        cJSON *line = is_whole ? cJSON_ParseWithLength(text + at, (size_t)(end - text) - at) : NULL;
        if (line)
            take_line(w, line, arena);
        cJSON_Delete(line);
        at = (size_t)(end - text) + 1;
    }
    file_map_close(&map);
}

int run_watch_read(struct run_watch *watch, const char *folder, double now, struct arena *arena,
                   struct err *err)
{
    const char *metrics = arena_printf(arena, "%s/metrics.jsonl", folder);
    const char *job = arena_printf(arena, "%s/job.yaml", folder);

    *watch = (struct run_watch){
        .age_s = -1,
        .saved_step = -1,
        .best_step = -1,
        .left_s = NAN,
        .step = { .loss_mean = NAN, .grad_norm = NAN, .lr = NAN, .step_s = NAN },
        .host = "",
        .text = "",
        .status = "",
        .note = "",
        .death = ""
    };
    if (!file_is_folder(folder))
        return err_set(err, ERR_DATA, "%s is not there, or no folder (hint: the job's output)",
                       folder);
    read_status(watch, folder, now, arena);
    if (watch->state == WATCH_NO_STATUS && !file_exists(metrics) && !file_exists(job))
        return err_set(err, ERR_DATA,
                       "%s has no run in it: neither status/ nor metrics.jsonl (hint: the job's "
                       "output, or wait until the run has begun)",
                       folder);
    read_metrics(watch, metrics, arena);
    if (watch->state == WATCH_SILENT && *watch->death) {
        watch->state = WATCH_FAILED;
        watch->text = watch->death;
    }
    return 0;
}

const char *run_watch_state(enum watch_state state)
{
    static const char *const words[] = { [WATCH_NO_STATUS] = "without status",
                                         [WATCH_RUNNING] = "running",
                                         [WATCH_RESTARTING] = "restarting",
                                         [WATCH_SILENT] = "silent",
                                         [WATCH_DONE] = "done",
                                         [WATCH_SAVED] = "saved",
                                         [WATCH_FAILED] = "failed" };

    return words[state];
}

bool run_watch_goes_on(enum watch_state state)
{
    return state == WATCH_RUNNING || state == WATCH_RESTARTING;
}
