/*
 * hooks.c - the queue of events and the thread that runs their commands
 *
 * The mutex is held neither while a process is started or waited for nor while anything is logged:
 * who puts an event is a training step.
 */
#include "train/hooks.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"
#include "train/guarded_command_impl.h"

enum { WHY_BYTES = 160 };

static const double poll_seconds = 0.02;
static const double slack_seconds = 5; /* to start or end a process on a busy machine */

static const char *const names[N_HOOK_KINDS] = { "on_step", "on_eval", "on_save", "on_end" };

struct hook_event {
    enum hook_kind kind;
    char *members;
    int64_t n_left_out; /* of its kind, since the one before it */
};

struct hooks {
    char *commands[N_HOOK_KINDS], *log, *run;
    double seconds, grace_seconds;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct hook_event waiting[N_HOOKS_WAITING + 1];
    int n_waiting;
    int64_t n_left_out[N_HOOK_KINDS]; /* to be said with the next event */
    int64_t n_lost[N_HOOK_KINDS];     /* in all */
    int64_t n_failed[N_HOOK_KINDS];
    struct guarded_command given_up; /* does not even end on SIGKILL */
    bool is_running;                 /* a command is under way */
    bool is_closing;                 /* the thread ends when nothing is left */
    bool is_over;                    /* nor is anything run any more */
    bool has_ended;                  /* the thread touches nothing of this any more */
};

/* ---- a command: in the thread, without the mutex ---- */

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = (long)(poll_seconds * 1e9) }, NULL);
}

static bool is_over(struct hooks *h)
{
    pthread_mutex_lock(&h->mutex);
    bool over = h->is_over;
    pthread_mutex_unlock(&h->mutex);
    return over;
}

static bool has_within(double seconds, bool (*holds)(struct guarded_command *),
                       struct guarded_command *c)
{
    for (double end = clock_seconds() + seconds; !holds(c); nap())
        if (clock_seconds() >= end)
            return false;
    return true;
}

/* 0, or -1 with the reason to end it. */
static int wait_for_command(struct hooks *h, struct guarded_command *c, char why[WHY_BYTES])
{
    char limit[32];

    for (double end = clock_seconds() + h->seconds; !guarded_command_has_ended(c); nap()) {
        if (is_over(h)) {
            snprintf(why, WHY_BYTES, "the run has ended");
            return -1;
        }
        if (clock_seconds() >= end) {
            snprintf(why, WHY_BYTES, "it takes more than %s",
                     str_duration(limit, sizeof limit, h->seconds));
            return -1;
        }
    }
    return 0;
}

static int judge(const struct guarded_command *c, char why[WHY_BYTES])
{
    if (c->is_lost)
        snprintf(why, WHY_BYTES, "how it ended is not known: another has waited for it");
    else if (WIFSIGNALED(c->status))
        snprintf(why, WHY_BYTES, "it is killed by signal %d", WTERMSIG(c->status));
    else if (WEXITSTATUS(c->status))
        snprintf(why, WHY_BYTES, "it exits with status %d", WEXITSTATUS(c->status));
    else
        return 0;
    return -1;
}

/* With its group. */
static void end_command(struct hooks *h, struct guarded_command *c)
{
    if (!guarded_command_has_ended(c)) {
        guarded_command_signal(c, SIGTERM);
        has_within(h->grace_seconds, guarded_command_has_ended, c);
    }
    guarded_command_signal(c, SIGKILL);
    guarded_command_release(c);
    if (!has_within(h->grace_seconds, guarded_command_is_gone, c))
        h->given_up = *c;
}

static int run_command(struct hooks *h, const struct hook_event *event, const char *input,
                       char why[WHY_BYTES])
{
    char hook[64];
    const char *const variables[] = { hook, NULL };
    const struct guarded_command_options options = { .command = h->commands[event->kind],
                                                     .log = h->log,
                                                     .input = input,
                                                     .variables = variables,
                                                     .grace_seconds = h->grace_seconds };
    struct guarded_command command;

    snprintf(hook, sizeof hook, "LMTRAIN_HOOK=%s", names[event->kind]);
    if (!guarded_command_is_gone(&h->given_up)) {
        snprintf(why, WHY_BYTES, "process %d of an earlier one does not end on SIGKILL",
                 (int)(h->given_up.process ? h->given_up.process : h->given_up.guard));
        return -1;
    }
    if (guarded_command_start(&command, &options) < 0) {
        snprintf(why, WHY_BYTES, "it cannot be started: %s", strerror(errno));
        return -1;
    }
    int failed = wait_for_command(h, &command, why);
    if (!failed)
        failed = judge(&command, why);
    end_command(h, &command);
    return failed;
}

static void run_event(struct hooks *h, const struct hook_event *event)
{
    struct str input = { 0 };
    char why[WHY_BYTES];

    str_printf(&input, "{\"hook\":\"%s\",\"run\":", names[event->kind]);
    json_add_string(&input, h->run);
    str_printf(&input, ",\"left_out\":%lld,%s}\n", (long long)event->n_left_out, event->members);
    int failed = run_command(h, event, str_text(&input), why);
    str_release(&input);
    if (!failed)
        return;
    pthread_mutex_lock(&h->mutex);
    bool is_first = h->n_failed[event->kind]++ == 0;
    pthread_mutex_unlock(&h->mutex);
    if (is_first)
        log_warn("hooks.%s: %s (hint: its output is in %s); further failures are only counted",
                 names[event->kind], why, h->log);
}

static void *run_events(void *context)
{
    struct hooks *h = context;

    pthread_mutex_lock(&h->mutex);
    while (!h->is_over && (!h->is_closing || h->n_waiting)) {
        if (!h->n_waiting) {
            pthread_cond_wait(&h->changed, &h->mutex);
            continue;
        }
        struct hook_event event = h->waiting[0];

        memmove(h->waiting, h->waiting + 1, (size_t)--h->n_waiting * sizeof *h->waiting);
        h->is_running = true;
        pthread_mutex_unlock(&h->mutex);
        run_event(h, &event);
        free(event.members);
        pthread_mutex_lock(&h->mutex);
        h->is_running = false;
    }
    h->has_ended = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
    return NULL;
}

/* ---- its caller ---- */

static void release(struct hooks *h)
{
    for (int i = 0; i < h->n_waiting; i++)
        free(h->waiting[i].members);
    for (int kind = 0; kind < N_HOOK_KINDS; kind++)
        free(h->commands[kind]);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->mutex);
    free(h->log);
    free(h->run);
    free(h);
}

static struct hooks *make(const struct hooks_options *options)
{
    struct hooks *h = calloc(1, sizeof *h);

    CHECK(h);
    for (int kind = 0; kind < N_HOOK_KINDS; kind++)
        if (options->commands[kind] && *options->commands[kind]) {
            h->commands[kind] = strdup(options->commands[kind]);
            CHECK(h->commands[kind]);
        }
    h->log = strdup(options->log);
    h->run = strdup(options->run);
    CHECK(h->log && h->run);
    h->seconds = options->seconds;
    h->grace_seconds = options->grace_seconds;
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->changed, NULL);
    return h;
}

int hooks_create(struct hooks **hooks, const struct hooks_options *options, struct err *err)
{
    bool has_any = false;

    *hooks = NULL;
    for (int kind = 0; kind < N_HOOK_KINDS; kind++)
        has_any |= options->commands[kind] && *options->commands[kind];
    if (!has_any)
        return 0;
    struct hooks *made = make(options);
    signal(SIGCHLD, SIG_DFL);
    int failed = thread_start(NULL, NULL, run_events, made);
    if (failed) {
        release(made);
        errno = failed;
        return err_set_errno(err, ERR_DEVICE, "hooks: cannot start a thread");
    }
    *hooks = made;
    return 0;
}

/* The step that waits already, or the first of a full queue's kind; NULL: there is room. */
static struct hook_event *event_to_replace(struct hooks *h, enum hook_kind kind)
{
    for (int i = 0; i < h->n_waiting; i++)
        if (h->waiting[i].kind == kind &&
            (kind == HOOK_STEP || (kind != HOOK_END && h->n_waiting >= N_HOOKS_WAITING)))
            return &h->waiting[i];
    return NULL;
}

void hooks_put(struct hooks *h, enum hook_kind kind, const char *members)
{
    if (!h || !h->commands[kind])
        return;
    char *copy = strdup(members);
    CHECK(copy);
    pthread_mutex_lock(&h->mutex);
    struct hook_event *replaced = event_to_replace(h, kind);
    if (replaced) {
        h->n_lost[kind]++;
        free(replaced->members);
        replaced->members = copy;
        replaced->n_left_out++;
    } else if (h->n_waiting < N_HOOKS_WAITING + (kind == HOOK_END)) {
        h->waiting[h->n_waiting++] = (struct hook_event){ kind, copy, h->n_left_out[kind] };
        h->n_left_out[kind] = 0;
    } else {
        h->n_lost[kind]++;
        h->n_left_out[kind]++;
        free(copy);
    }
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
}

static void tell(const struct hooks *h)
{
    for (int kind = 0; kind < N_HOOK_KINDS; kind++) {
        if (h->n_failed[kind] > 1)
            log_warn("hooks.%s: %lld commands failed", names[kind], (long long)h->n_failed[kind]);
        if (h->n_lost[kind])
            log_info("hooks.%s: %lld event%s left out, as commands took longer than what lay "
                     "between them",
                     names[kind], (long long)h->n_lost[kind], h->n_lost[kind] == 1 ? "" : "s");
    }
    if (h->n_waiting)
        log_warn("hooks: %d event%s left at the end of the run, not run", h->n_waiting,
                 h->n_waiting == 1 ? "" : "s");
}

void hooks_close(struct hooks *h, double seconds, bool (*may_wait)(void *context), void *context)
{
    if (!h)
        return;
    double end = clock_seconds() + seconds;

    pthread_mutex_lock(&h->mutex);
    h->is_closing = true;
    pthread_cond_broadcast(&h->changed);
    while (!h->has_ended) {
        /* Then the command is ended, for which the thread gets its graces. */
        if (!h->is_over && (clock_seconds() >= end || !may_wait(context))) {
            h->is_over = true;
            end = clock_seconds() + 2 * h->grace_seconds + slack_seconds;
            pthread_cond_broadcast(&h->changed);
        }
        if (h->is_over && clock_seconds() >= end)
            break;
        pthread_mutex_unlock(&h->mutex);
        nap();
        pthread_mutex_lock(&h->mutex);
    }
    bool has_ended = h->has_ended;
    tell(h);
    pthread_mutex_unlock(&h->mutex);
    if (has_ended)
        release(h);
}
