/*
 * upload.c - see the header
 *
 * The thread and its caller share struct upload under a mutex, which neither holds while it waits,
 * logs, starts a process or touches a file: a caller is a training step. All waits have bounds,
 * for a process in a system call of a dead file system does not even end on SIGKILL. Such a one is
 * given up: it is named in the report, and no other is started before it has gone.
 */
#include "train/upload.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"
#include "train/guarded_command_impl.h"

enum { N_REPORTS_MAX = 16, PATH_MAX_BYTES = 4096, WHY_BYTES = 160 };

static const double first_pause_seconds = 1, pause_factor = 4;

/* What the thread gets, beside graces, to start or end a process on a busy machine. */
static const double slack_seconds = 5;

struct upload_item {
    char folder[PATH_MAX_BYTES];
    int64_t step; /* -1: none */
};

struct upload {
    char *command, *log;
    double seconds, grace_seconds;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct upload_item current, next;
    struct guarded_command given_up; /* the thread's: is not gone, or was never started */
    int64_t kept_step;               /* current is cancelled if it is of a later one */
    bool is_closing;                 /* the thread ends when nothing is left */
    bool is_over;                    /* nor does it try any more */
    bool has_ended;                  /* the thread touches nothing of this any more */
    bool is_detached;                /* it did not end in time, and keeps this */
    struct upload_report reports[N_REPORTS_MAX];
    int n_reports;
};

/* Functions that follow are called with the mutex held, unless they say otherwise. */

/* Wait on the condition, which lets go of the mutex, for at most `seconds`. */
static void pause_for(struct upload *u, double seconds)
{
    struct timespec until;
    int64_t ns;

    clock_gettime(CLOCK_MONOTONIC, &until);
    ns = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_timedwait(&u->changed, &u->mutex, &until);
}

static void add_report(struct upload *u, const struct upload_item *item, bool is_done,
                       const char *text)
{
    struct upload_report *report = &u->reports[u->n_reports];

    if (u->n_reports == N_REPORTS_MAX)
        return;
    u->n_reports++;
    report->step = item->step;
    report->is_done = is_done;
    snprintf(report->text, sizeof report->text, "the checkpoint of step %" PRId64 " %s", item->step,
             text);
}

/* ---- a try ---- */

/* Whether the current upload is to end, and why. */
static bool must_stop(const struct upload *u, char why[WHY_BYTES])
{
    if (u->current.step > u->kept_step)
        snprintf(why, WHY_BYTES, "the run has gone back to step %" PRId64, u->kept_step);
    else if (u->is_over)
        snprintf(why, WHY_BYTES, "the run has ended");
    return u->current.step > u->kept_step || u->is_over;
}

/* Until the command has ended by itself: 0; or -1 with the reason to end it. */
static int wait_for_command(struct upload *u, struct guarded_command *c, char why[WHY_BYTES])
{
    double end = clock_seconds() + u->seconds;
    char limit[32];

    while (!guarded_command_has_ended(c)) {
        if (must_stop(u, why))
            return -1;
        if (clock_seconds() >= end) {
            snprintf(why, WHY_BYTES, "the command takes more than %s",
                     str_duration(limit, sizeof limit, u->seconds));
            return -1;
        }
        pause_for(u, 0.05);
    }
    return 0;
}

/* Until the condition holds, or the grace is over: whether it holds. */
static bool has_within_grace(struct upload *u, bool (*holds)(struct guarded_command *),
                             struct guarded_command *c)
{
    double end = clock_seconds() + u->grace_seconds;

    while (!holds(c)) {
        if (clock_seconds() >= end)
            return false;
        pause_for(u, 0.05);
    }
    return true;
}

/* End what is left of a command and its guard. -1: not even SIGKILL does. */
static int end_command(struct upload *u, struct guarded_command *c, char why[WHY_BYTES])
{
    if (!guarded_command_has_ended(c)) {
        guarded_command_signal(c, SIGTERM);
        has_within_grace(u, guarded_command_has_ended, c);
    }
    guarded_command_signal(c, SIGKILL);
    guarded_command_release(c);
    if (has_within_grace(u, guarded_command_is_gone, c))
        return 0;
    u->given_up = *c;
    snprintf(why, WHY_BYTES, "process %d does not end on SIGKILL (is a file system gone?)",
             (int)(c->process ? c->process : c->guard));
    return -1;
}

static int judge(const struct guarded_command *c, char why[WHY_BYTES])
{
    if (c->is_lost)
        snprintf(why, WHY_BYTES, "how the command ended is not known: another has waited for it");
    else if (WIFSIGNALED(c->status))
        snprintf(why, WHY_BYTES, "the command is killed by signal %d", WTERMSIG(c->status));
    else if (WEXITSTATUS(c->status))
        snprintf(why, WHY_BYTES, "the command exits with status %d", WEXITSTATUS(c->status));
    else
        return 0;
    return -1;
}

/* 0, or -1 with what went wrong. */
static int try_upload(struct upload *u, char why[WHY_BYTES])
{
    char folder[PATH_MAX_BYTES + 32], step[64];
    const char *const variables[] = { folder, step, NULL };
    const struct guarded_command_options options = { .command = u->command,
                                                     .log = u->log,
                                                     .variables = variables,
                                                     .grace_seconds = u->grace_seconds };
    struct guarded_command command;

    snprintf(folder, sizeof folder, "LMTRAIN_CHECKPOINT=%s", u->current.folder);
    snprintf(step, sizeof step, "LMTRAIN_STEP=%" PRId64, u->current.step);

    if (!guarded_command_is_gone(&u->given_up)) {
        snprintf(why, WHY_BYTES, "process %d of an earlier try has not ended",
                 (int)(u->given_up.process ? u->given_up.process : u->given_up.guard));
        return -1;
    }
    pthread_mutex_unlock(&u->mutex);
    int failed = guarded_command_start(&command, &options);
    int number = errno;
    pthread_mutex_lock(&u->mutex);
    if (failed) {
        snprintf(why, WHY_BYTES, "the command cannot be started: %s", strerror(number));
        return -1;
    }
    failed = wait_for_command(u, &command, why);
    if (!failed)
        failed = judge(&command, why);
    /* What a command that succeeded left behind cannot make it fail. */
    char left[WHY_BYTES];
    if (end_command(u, &command, left) < 0 && failed)
        memcpy(why, left, sizeof left);
    return failed;
}

/* ---- the thread ---- */

static void pause_between(struct upload *u, const char *why, double seconds)
{
    char ignored[WHY_BYTES];
    double end = clock_seconds() + seconds;

    pthread_mutex_unlock(&u->mutex);
    log_warn("uploading the checkpoint of step %" PRId64 ": %s; tried again in %.0f s",
             u->current.step, why, seconds);
    pthread_mutex_lock(&u->mutex);
    while (clock_seconds() < end && !must_stop(u, ignored))
        pause_for(u, end - clock_seconds());
}

static void upload_current(struct upload *u)
{
    double pause = first_pause_seconds, begin = clock_seconds();
    char why[WHY_BYTES], stop[WHY_BYTES], text[400], took[32];
    int n_tries = 0, failed = -1;

    while (failed && n_tries < UPLOAD_TRIES && !must_stop(u, n_tries ? stop : why)) {
        if (n_tries) {
            pause_between(u, why, pause);
            pause *= pause_factor;
            if (must_stop(u, stop))
                break;
        }
        n_tries++;
        failed = try_upload(u, why);
    }
    if (failed)
        snprintf(text, sizeof text, "is not uploaded: %s (%d tr%s; see %.190s)", why, n_tries,
                 n_tries == 1 ? "y" : "ies", u->log);
    else
        snprintf(text, sizeof text, "is uploaded, in %s",
                 str_duration(took, sizeof took, clock_seconds() - begin));
    add_report(u, &u->current, !failed, text);
    u->current.step = -1;
    u->kept_step = INT64_MAX;
}

/* Takes the mutex. */
static void *upload_main(void *context)
{
    struct upload *u = context;

    pthread_mutex_lock(&u->mutex);
    while (!u->is_closing || u->next.step >= 0) {
        if (u->next.step < 0) {
            pthread_cond_wait(&u->changed, &u->mutex);
            continue;
        }
        u->current = u->next;
        u->next.step = -1;
        upload_current(u);
        pthread_cond_broadcast(&u->changed);
    }
    u->has_ended = true;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->mutex);
    return NULL;
}

static void release(struct upload *u)
{
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->mutex);
    free(u->command);
    free(u->log);
    free(u);
}

static struct upload *make(const struct upload_options *options)
{
    struct upload *u = calloc(1, sizeof *u);
    pthread_condattr_t monotonic;

    CHECK(u);
    u->command = strdup(options->command);
    u->log = strdup(options->log);
    CHECK(u->command && u->log);
    u->seconds = options->seconds;
    u->grace_seconds = options->grace_seconds;
    u->current.step = u->next.step = -1;
    u->kept_step = INT64_MAX;
    pthread_mutex_init(&u->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&u->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return u;
}

int upload_create(struct upload **upload, const struct upload_options *options, struct err *err)
{
    struct upload *made = make(options);

    signal(SIGCHLD, SIG_DFL);
    int failed = thread_start(&made->thread, NULL, upload_main, made);
    if (failed) {
        release(made);
        errno = failed;
        return err_set_errno(err, ERR_DEVICE, "cannot start the uploading thread");
    }
    *upload = made;
    return 0;
}

/* ---- its caller: these take the mutex ---- */

void upload_add(struct upload *u, const char *folder, int64_t step)
{
    char *path = realpath(folder, NULL);

    pthread_mutex_lock(&u->mutex);
    if (u->next.step >= 0)
        add_report(u, &u->next, false, "is not uploaded: a newer one comes first");
    snprintf(u->next.folder, sizeof u->next.folder, "%s", path ? path : folder);
    u->next.step = step;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->mutex);
    free(path);
}

int upload_holds(struct upload *u, int64_t steps[2])
{
    int n = 0;

    if (!u)
        return 0;
    pthread_mutex_lock(&u->mutex);
    if (u->current.step >= 0)
        steps[n++] = u->current.step;
    if (u->next.step >= 0)
        steps[n++] = u->next.step;
    pthread_mutex_unlock(&u->mutex);
    return n;
}

int upload_take_report(struct upload *u, struct upload_report *report)
{
    int taken = 0;

    if (!u)
        return 0;
    pthread_mutex_lock(&u->mutex);
    if (u->n_reports) {
        *report = u->reports[0];
        u->n_reports--;
        memmove(u->reports, u->reports + 1, (size_t)u->n_reports * sizeof *u->reports);
        taken = 1;
    }
    pthread_mutex_unlock(&u->mutex);
    return taken;
}

void upload_cancel_after(struct upload *u, int64_t step)
{
    char text[96];

    if (!u)
        return;
    pthread_mutex_lock(&u->mutex);
    double end = clock_seconds() + 2 * u->grace_seconds + slack_seconds;
    if (u->next.step > step) {
        snprintf(text, sizeof text, "is not uploaded: the run has gone back to step %" PRId64,
                 step);
        add_report(u, &u->next, false, text);
        u->next.step = -1;
    }
    if (u->current.step > step)
        u->kept_step = step;
    pthread_cond_broadcast(&u->changed);
    while (u->current.step > step && clock_seconds() < end)
        pause_for(u, 0.05);
    pthread_mutex_unlock(&u->mutex);
}

/* The thread is in a call that does not return. */
static void give_up_thread(struct upload *u)
{
    static const char text[] = "is not uploaded: the thread that uploads it does not end (is a "
                               "file system gone?)";

    if (u->current.step >= 0)
        add_report(u, &u->current, false, text);
    if (u->next.step >= 0)
        add_report(u, &u->next, false, text);
    u->next.step = -1;
    u->is_detached = true;
}

void upload_finish(struct upload *u, double seconds, bool (*may_wait)(void *context), void *context)
{
    double end = clock_seconds() + seconds;

    if (!u)
        return;
    pthread_mutex_lock(&u->mutex);
    u->is_closing = true;
    pthread_cond_broadcast(&u->changed);
    while ((u->current.step >= 0 || u->next.step >= 0) && clock_seconds() < end &&
           may_wait(context))
        pause_for(u, 0.05);
    u->is_over = true;
    pthread_cond_broadcast(&u->changed);
    end = clock_seconds() + 2 * u->grace_seconds + slack_seconds;
    while (!u->has_ended && clock_seconds() < end) {
        may_wait(context);
        pause_for(u, 0.05);
    }
    if (!u->has_ended)
        give_up_thread(u);
    bool is_detached = u->is_detached;
    pthread_mutex_unlock(&u->mutex);
    if (is_detached)
        pthread_detach(u->thread);
    else
        CHECK(pthread_join(u->thread, NULL) == 0);
}

void upload_destroy(struct upload *u)
{
    if (u && !u->is_detached)
        release(u);
}
