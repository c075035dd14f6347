/*
 * upload.c - see the header
 *
 * The thread and its caller share struct upload under a mutex. The command is started by vfork, for
 * a fork would copy the page tables of a process that may have much memory, some of it a GPU's;
 * between vfork and exec the child makes system calls alone.
 */
#include "train/upload.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

enum { N_REPORTS_MAX = 16, PATH_MAX_BYTES = 4096, NICENESS = 10 };

static const double grace_seconds = 5, first_pause_seconds = 1, pause_factor = 4;

struct upload_item {
    char folder[PATH_MAX_BYTES];
    int64_t step; /* -1: none */
};

struct upload {
    struct upload_options options;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct upload_item current, next;
    bool is_closing; /* the thread ends when nothing is left */
    bool is_over;    /* nor does it try any more */
    struct upload_report reports[N_REPORTS_MAX];
    int n_reports;
};

/* ---- the command ---- */

static bool belongs_to_launcher(const char *variable)
{
    static const char *const prefixes[] = { "PMIX_", "PMI_", "PRTE_", "OMPI_", "LMTRAIN_" };

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (str_starts_with(variable, prefixes[i]))
            return true;
    return false;
}

/* This process's environment without launchers' variables, with the checkpoint's. Both lists are
 * the caller's to free; the other texts are borrowed. */
static char **environment_of(const struct upload_item *item, struct str *texts)
{
    extern char **environ;
    int n = 0, n_kept = 0;
    char **list;

    while (environ[n])
        n++;
    list = calloc((size_t)n + 3, sizeof *list);
    CHECK(list);
    for (int i = 0; i < n; i++)
        if (!belongs_to_launcher(environ[i]))
            list[n_kept++] = environ[i];
    str_printf(texts, "LMTRAIN_CHECKPOINT=%s", item->folder);
    size_t second = texts->length + 1;
    str_add_char(texts, '\0');
    str_printf(texts, "LMTRAIN_STEP=%" PRId64, item->step);
    list[n_kept++] = texts->data;
    list[n_kept++] = texts->data + second;
    return list;
}

struct command_start {
    char *const *argv;
    char **env;
    int in, out;
    pid_t parent;
};

/* In the child of a vfork: system calls alone. */
static void become_command(const struct command_start *start)
{
    sigset_t none;

    for (int signal_number = 1; signal_number < NSIG; signal_number++)
        signal(signal_number, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    setpriority(PRIO_PROCESS, 0, NICENESS);
    dup2(start->in, STDIN_FILENO);
    dup2(start->out, STDOUT_FILENO);
    dup2(start->out, STDERR_FILENO);
    syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (getppid() == start->parent)
        execve("/bin/sh", start->argv, start->env);
    _exit(127);
}

/* A function of its own, without variables that a vfork might change. */
__attribute__((noinline)) static pid_t vfork_command(const struct command_start *start)
{
    pid_t process = vfork();

    if (process == 0)
        become_command(start);
    return process;
}

/* Its process, or -1 with errno. */
static pid_t start_command(const struct upload *u, const struct upload_item *item)
{
    char *command = strdup(u->options.command);
    char *argv[] = { "sh", "-c", command, NULL };
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(u->options.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct str texts = { 0 };
    struct command_start start = { argv, environment_of(item, &texts), in, out, getpid() };
    pid_t process = -1;

    if (command && in >= 0 && out >= 0)
        process = vfork_command(&start);
    int number = errno;
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    free(start.env);
    str_release(&texts);
    free(command);
    errno = number;
    return process;
}

/* Wait on the condition for at most `seconds`; the mutex is held. */
static void pause_for(struct upload *u, double seconds)
{
    struct timespec until;
    int64_t ns;

    clock_gettime(CLOCK_REALTIME, &until);
    ns = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_timedwait(&u->changed, &u->mutex, &until);
}

/* Until the process has ended or its time is up, or nothing is to be tried any more: 1 with its
 * status, 0 if it still runs. The mutex is held, but while this waits. */
static int wait_for_process(struct upload *u, pid_t process, double seconds, bool ends_early,
                            int *status)
{
    double end = clock_seconds() + seconds;

    while (waitpid(process, status, WNOHANG) == 0) {
        if (clock_seconds() >= end || (ends_early && u->is_over))
            return 0;
        pause_for(u, 0.05);
    }
    return 1;
}

/* One try: 0, or -1 with what went wrong. The mutex is held. */
static int try_upload(struct upload *u, const struct upload_item *item, char why[128])
{
    char took[32];
    int status = 0;

    pthread_mutex_unlock(&u->mutex);
    pid_t process = start_command(u, item);
    int number = errno;
    pthread_mutex_lock(&u->mutex);
    if (process < 0) {
        snprintf(why, 128, "the command cannot be started: %s", strerror(number));
        return -1;
    }
    if (!wait_for_process(u, process, u->options.seconds, true, &status)) {
        if (u->is_over)
            snprintf(why, 128, "the run has ended");
        else
            snprintf(why, 128, "the command takes more than %s",
                     str_duration(took, sizeof took, u->options.seconds));
        kill(-process, SIGTERM);
        if (!wait_for_process(u, process, grace_seconds, false, &status)) {
            kill(-process, SIGKILL);
            waitpid(process, &status, 0);
        }
        return -1;
    }
    kill(-process, SIGKILL); /* what it left behind */
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFEXITED(status))
        snprintf(why, 128, "the command exits with status %d", WEXITSTATUS(status));
    else
        snprintf(why, 128, "the command is killed by signal %d", WTERMSIG(status));
    return -1;
}

/* ---- the thread ---- */

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

static void upload_current(struct upload *u)
{
    double pause = first_pause_seconds, begin = clock_seconds();
    char why[128] = "the run has ended", text[384], took[32];
    int n_tries = 0, failed = -1;

    while (failed && n_tries < UPLOAD_TRIES && !u->is_over) {
        if (n_tries) {
            log_warn("uploading the checkpoint of step %" PRId64 ": %s; tried again in %.0f s",
                     u->current.step, why, pause);
            double end = clock_seconds() + pause;
            while (clock_seconds() < end && !u->is_over)
                pause_for(u, end - clock_seconds());
            pause *= pause_factor;
            if (u->is_over)
                break;
        }
        n_tries++;
        failed = try_upload(u, &u->current, why);
    }
    if (failed)
        snprintf(text, sizeof text, "is not uploaded: %s (%d tr%s; see %.200s)", why, n_tries,
                 n_tries == 1 ? "y" : "ies", u->options.log);
    else
        snprintf(text, sizeof text, "is uploaded, in %s",
                 str_duration(took, sizeof took, clock_seconds() - begin));
    add_report(u, &u->current, !failed, text);
    u->current.step = -1;
}

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
    pthread_mutex_unlock(&u->mutex);
    return NULL;
}

int upload_create(struct upload **upload, const struct upload_options *options, struct err *err)
{
    struct upload *made = calloc(1, sizeof *made);
    sigset_t all, before;

    if (!made)
        return err_set(err, ERR_DEVICE, "out of host memory");
    made->options = *options;
    made->current.step = made->next.step = -1;
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&made->thread, NULL, upload_main, made);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(made);
        errno = failed;
        return err_set_errno(err, ERR_DEVICE, "cannot start the uploading thread");
    }
    *upload = made;
    return 0;
}

/* ---- its caller ---- */

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
    pthread_mutex_unlock(&u->mutex);
    CHECK(pthread_join(u->thread, NULL) == 0);
}

void upload_destroy(struct upload *u)
{
    if (!u)
        return;
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->mutex);
    free(u);
}
