/*
 * run_job.c - a supervisor in a child process, its output in files
 */
#include "support/run_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/str.h"
#include "launch/launch.h"
#include "launch/node/daemon.h"
#include "launch/proc_impl.h"
#include "launch/remote/hosts.h"
#include "progress/progress.h"

static const double deadline_seconds = 200; /* sanitized ranks take ten times as long to start */

int run_job_is_rank(void)
{
    return launch_is_rank();
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void redirect(const char *folder, const char *name, int to)
{
    char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK(fd >= 0);
    dup2(fd, to);
    close(fd);
}

void run_job_as_daemon(int argc, char **argv)
{
    double link_seconds;
    struct err err;

    if (argc != 2 || strcmp(argv[1], "daemon"))
        return;
    int fd = hosts_answer(STDIN_FILENO, "test", &link_seconds, &err);
    if (fd < 0) {
        fprintf(stderr, "%s\n", err.text);
        _exit(1);
    }
    _exit(launch_daemon(fd, link_seconds));
}

/* A stand-in for ssh: what it is told to run on a host it runs here. */
static void prepare_hosts(const struct job_plan *plan, const char *folder, struct host_list *list,
                          struct arena *arena)
{
    static const char script[] =
        "while [ \"$1\" = -o ]; do shift 2; done\nshift\neval exec \"$@\"\n";
    char path[128], command[160];
    struct err err;

    snprintf(path, sizeof path, "%s/ssh", folder);
    snprintf(command, sizeof command, "sh %s", path);
    CHECK(!file_write(path, script, sizeof script - 1, &err));
    setenv("LMTRAIN_SSH", command, 1);
    setenv("LMTRAIN_INTERFACE", "127.0.0.1", 1);
    CHECK(!hosts_read(list, plan->hosts, arena, &err));
}

static void supervise_and_exit(const struct job_plan *plan, const char *folder)
{
    char *argv[] = { "rank", (char *)(uintptr_t)plan->scenario, NULL };
    char logs[128], last_rank[16];
    struct supervise_options options = { .n_ranks = plan->n_ranks,
                                         .argv = argv,
                                         .log_folder = logs,
                                         .hang_seconds = plan->hang_seconds,
                                         .hang_abort_seconds = plan->hang_abort_seconds,
                                         .n_restarts = plan->n_restarts,
                                         .again = plan->again };
    struct host_list hosts;
    struct arena arena = { 0 };
    struct err err;

    snprintf(logs, sizeof logs, "%s/log", folder);
    setenv("TEST_FOLDER", folder, 1);
    snprintf(last_rank, sizeof last_rank, "%d", plan->n_ranks - 1);
    setenv("TEST_LAST_RANK", last_rank, 1);
    redirect(folder, "stdout", STDOUT_FILENO);
    redirect(folder, "stderr", STDERR_FILENO);
    if (plan->hosts) {
        prepare_hosts(plan, folder, &hosts, &arena);
        options.hosts = &hosts;
    }
    int status = supervise(&options, &err);
    if (status < 0) {
        fprintf(stderr, "supervise failed: %s\n", err.text);
        status = 100;
    }
    arena_release(&arena);
    exit(status); /* not _exit: as main() would */
}

static char *read_output(const char *folder, const char *name)
{
    char path[128], *text = NULL;
    size_t n_bytes;
    struct err err;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_read(path, 1 << 20, ERR_FAILED, &text, &n_bytes, &err))
        text = strdup("");
    return text;
}

/* Has rank 0 printed something? However busy the machine, it is past the fence then, as all are. */
static int is_ready(const char *folder)
{
    char path[128];

    snprintf(path, sizeof path, "%s/stdout", folder);
    return file_size(path) > 0;
}

/* The last number in a file that ranks have written, or 0. */
static pid_t last_number(const char *folder, const char *name)
{
    char *text = read_output(folder, name);
    pid_t number = 0;

    for (char *at = text, *end; *at; at = end) {
        number = (pid_t)strtol(at, &end, 10);
        end += *end == '\n';
    }
    free(text);
    return number;
}

static void send_signal(const struct job_plan *plan, const struct job_result *result)
{
    /* It must not see the daemon's death and end by itself before it is killed. */
    if (plan->victim == VICTIM_BOTH)
        kill(result->supervisor, SIGSTOP);
    if (plan->victim != VICTIM_HEAD)
        kill(last_number(result->folder, "daemon"), plan->signal);
    if (plan->victim != VICTIM_DAEMON)
        kill(result->supervisor, plan->signal);
}

void run_job(const struct job_plan *plan, struct job_result *result)
{
    const char *temporary = getenv("TMPDIR");
    double start = seconds_now();
    int signalled = plan->signal == 0, wait_status = 0;

    *result = (struct job_result){ .status = 101 };
    snprintf(result->folder, sizeof result->folder, "%.40s/lmtrain-test-XXXXXX",
             temporary ? temporary : "/tmp");
    CHECK(mkdtemp(result->folder));
    fflush(NULL);
    result->supervisor = fork();
    CHECK(result->supervisor >= 0);
    if (!result->supervisor)
        supervise_and_exit(plan, result->folder);
    for (;;) {
        double seconds = seconds_now() - start;

        if (waitpid(result->supervisor, &wait_status, WNOHANG) == result->supervisor)
            break;
        if (!signalled && is_ready(result->folder)) {
            send_signal(plan, result);
            if (plan->is_twice) {
                usleep(20000);
                send_signal(plan, result);
            }
            signalled = 1;
        }
        if (seconds > deadline_seconds) {
            kill(result->supervisor, SIGKILL);
            waitpid(result->supervisor, &wait_status, 0);
            break;
        }
        usleep(2000);
    }
    if (WIFEXITED(wait_status))
        result->status = WEXITSTATUS(wait_status);
    result->seconds = seconds_now() - start;
    result->out = read_output(result->folder, "stdout");
    result->err = read_output(result->folder, "stderr");
}

static void note(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void note(const char *name, const char *format, ...)
{
    const char *folder = getenv("TEST_FOLDER");
    char path[256];
    va_list arguments;

    CHECK(folder);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "ae");
    CHECK(file);
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fclose(file);
}

void run_job_note_pid(pid_t pid)
{
    const char *page = getenv("LMTRAIN_PROGRESS"), *last = getenv("PMIX_RANK");
    const char *end = page ? strrchr(page, '/') : NULL;

    note("pids", "%d\n", (int)pid);
    if (pid != getpid())
        return;
    note("pids", "%d\n", (int)getppid());
    if (end)
        note("folders", "%.*s\n", (int)(end - page), page);
    /* In rank order or not, the last line shall be the last rank's. */
    if (last && !strcmp(last, getenv("TEST_LAST_RANK") ? getenv("TEST_LAST_RANK") : "-"))
        note("daemon", "%d\n", (int)getppid());
}

/* Gone, or dead and only not yet taken by init. */
static int is_gone(pid_t pid)
{
    struct proc_stat stat;

    return proc_stat(pid, &stat) || proc_is_dead(&stat);
}

static void check_processes(const char *folder)
{
    char *pids = read_output(folder, "pids");

    for (char *at = pids; *at;) {
        pid_t pid = (pid_t)strtol(at, &at, 10);
        int tries = 0;

        while (!is_gone(pid) && tries++ < 1500)
            usleep(2000);
        if (!is_gone(pid))
            fprintf(stderr, "process %d is left\n", (int)pid);
        CHECK(is_gone(pid));
        while (*at == '\n')
            at++;
    }
    free(pids);
}

void run_job_await_processes(const struct job_result *result)
{
    check_processes(result->folder);
}

static void check_folders(const char *folder)
{
    char *folders = read_output(folder, "folders"), *save = NULL;

    for (char *path = strtok_r(folders, "\n", &save); path; path = strtok_r(NULL, "\n", &save)) {
        for (int tries = 0; file_exists(path) && tries < 1500; tries++)
            usleep(2000);
        if (file_exists(path))
            fprintf(stderr, "%s is left\n", path);
        CHECK(!file_exists(path));
    }
    free(folders);
}

void run_job_check_clean(struct job_result *result)
{
    struct err err;

    check_folders(result->folder);
    check_processes(result->folder);
    file_remove_tree(result->folder, &err);
    free(result->out);
    free(result->err);
}

void run_job_check_says(const struct job_result *result, const char *words)
{
    if (!strstr(result->err, words))
        fail_msg("'%s' is not in:\n%s", words, result->err);
}

void run_job_publish(const struct launch_rank *rank, const char *text, int waits)
{
    struct progress_slot *slot = progress_join(rank->local_rank);

    snprintf(slot->text, sizeof slot->text, "%s", text);
    atomic_store(&slot->step, 7);
    atomic_store(&slot->micro_batch, 3);
    atomic_store(&slot->op, 12);
    atomic_store(&slot->waits, waits);
    atomic_fetch_add(&slot->beat, 1);
}

int run_job_leave(int status)
{
    launch_leave();
    return status;
}
