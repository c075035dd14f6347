/*
 * pretrain_status.c - rank 0's status file, which `lmtrain watch` reads: status/run.json
 *
 * Training puts the last step's figures; the file's thread adds what is true at each write: what
 * the run does between steps, the time that is left, and, of a run of one process, its rank.
 */
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "launch/excluded.h"
#include "progress/status_file.h"
#include "train/pretrain_impl.h"

#define PUT_SECONDS 0.2 /* between two, of steps that are shorter */

struct run_status_writer {
    struct status_file *file;
    struct terminal *terminal;
    struct progress_slot *slot; /* of the only rank; NULL: there are others, which others see */
    uint64_t beat;              /* the thread's: at its last write */
    double heard_at;
    double put_at; /* training's */
    double started_at;
};

static void add_double(struct str *out, const char *key, double value)
{
    if (isfinite(value))
        str_printf(out, ",\"%s\":%.9g", key, value);
}

static void add_text(struct str *out, const char *key, const char *text)
{
    str_printf(out, ",\"%s\":", key);
    json_add_string(out, text);
}

/* ---- in the file's thread ---- */

static void add_own_rank(struct run_status_writer *w, struct str *out)
{
    uint64_t beat = atomic_load(&w->slot->beat);
    double now = clock_seconds();

    if (beat != w->beat)
        w->heard_at = now;
    w->beat = beat;
    status_look_at_memory(w->slot, getpid());
    atomic_store(&w->slot->pid, (int32_t)getpid());
    str_add(out, ",\"ranks\":[");
    status_add_rank(
        out, &(struct status_rank){
                 .rank = 0, .state = "running", .heard_s = now - w->heard_at, .slot = w->slot });
    str_add(out, "]");
}

static void add_now(void *context, struct str *out)
{
    struct run_status_writer *w = context;
    struct terminal_view view;

    terminal_look(w->terminal, &view);
    add_double(out, "left_s", view.left_s);
    add_text(out, "status", view.status);
    add_text(out, "note", view.note);
    if (w->slot)
        add_own_rank(w, out);
}

/* ---- in training ---- */

static void add_step(const struct pretrain *p, struct str *out)
{
    const struct metrics_step *m = &p->account.last;

    str_printf(out, ",\"step\":%lld,\"steps\":%lld", (long long)trainer_step_number(p->trainer),
               (long long)p->job->train.steps);
    if (m->step) {
        add_double(out, "loss", m->loss);
        add_double(out, "loss_mean", m->loss_mean);
        add_double(out, "grad_norm", m->grad_norm);
        add_double(out, "lr", m->lr);
        add_double(out, "tokens_per_s", m->tokens_per_s);
        add_double(out, "learned_per_s", m->learned_per_s);
        add_double(out, "step_s", m->step_s);
        add_double(out, "mfu", m->mfu);
        add_double(out, "loss_scale", m->loss_scale);
        str_printf(out, ",\"memory_bytes\":%llu", (unsigned long long)m->memory_bytes);
    }
    str_printf(out,
               ",\"tokens\":%lld,\"skipped\":%lld,\"reruns\":%lld,\"restarts\":%lld"
               ",\"pauses\":%lld",
               (long long)trainer_tokens(p->trainer), (long long)trainer_n_skipped(p->trainer),
               (long long)trainer_n_reruns(p->trainer), (long long)pretrain_n_restarts(p),
               (long long)p->account.n_pauses);
    if (p->whole_step >= 0)
        str_printf(out, ",\"saved_step\":%lld", (long long)p->whole_step);
    for (int i = 0; i < p->best.n; i++)
        str_printf(out, "%s[%lld,%.9g]%s", i ? "," : ",\"best\":[", (long long)p->best.list[i].step,
                   p->best.list[i].loss, i + 1 < p->best.n ? "" : "]");
    add_double(out, "useful_s", p->account.useful_s);
}

static void put(struct pretrain *p, const char *state, const char *text)
{
    struct run_status_writer *w = p->status;
    struct str out = { 0 };

    str_printf(&out, ",\"pid\":%d,\"started_at\":%.3f,\"begun_at\":%.3f,\"n_ranks\":%d",
               (int)getpid(), w->started_at, p->account.begun_at,
               p->options->engine->rank.world_size);
    add_text(&out, "host", launch_host());
    add_text(&out, "state", state);
    if (*text)
        add_text(&out, "text", text);
    add_step(p, &out);
    status_file_put(w->file, str_text(&out));
    str_release(&out);
    w->put_at = clock_seconds();
}

/* The path of the file goes to path. */
static int make_folder(const struct pretrain *p, char *path, struct err *err)
{
    char folder[PATH_BYTES];

    if (pretrain_path(p, folder, STATUS_FOLDER, err) < 0 || file_make_folder(folder, err) < 0)
        return -1;
    return pretrain_path(p, path, STATUS_FOLDER "/run.json", err);
}

void pretrain_status_reopen(const struct pretrain *p)
{
    char path[PATH_BYTES];
    struct err ignored;

    if (p->status)
        make_folder(p, path, &ignored);
}

void pretrain_status_open(struct pretrain *p)
{
    char path[PATH_BYTES];
    struct err err;

    if (!p->is_first)
        return;
    if (make_folder(p, path, &err) < 0) {
        log_warn("%s: `lmtrain watch` will not see this run", err.text);
        return;
    }
    p->status = arena_array(&p->arena, struct run_status_writer, 1);
    *p->status = (struct run_status_writer){ .terminal = p->terminal,
                                             .heard_at = clock_seconds(),
                                             .started_at = status_now() };
    if (!p->options->engine->rank.under_pmix)
        p->status->slot = p->progress;
    p->status->file = status_file_open(path, add_now, p->status);
    put(p, "running", "");
}

void pretrain_status_step(struct pretrain *p)
{
    if (p->status && clock_seconds() - p->status->put_at >= PUT_SECONDS)
        put(p, "running", "");
}

void pretrain_status_close(struct pretrain *p, const struct err *why)
{
    if (!p->status)
        return;
    put(p, !why ? "done" : why->code == ERR_REQUEUE ? "saved" : "failed", why ? why->text : "");
    status_file_close(p->status->file, 2 * STATUS_SECONDS);
    p->status = NULL;
}
