/*
 * run_job.c - a supervisor in a child process, its output in files
 */
#include "support/run_job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "launch/launch.h"

static const double deadline_seconds = 60;

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

static void supervise_and_exit(const struct job_plan *plan, const char *folder)
{
    char *argv[] = { "rank", (char *)(uintptr_t)plan->scenario, NULL };
    char logs[128];
    struct supervise_options options = { .n_ranks = plan->n_ranks,
                                         .argv = argv,
                                         .log_folder = logs,
                                         .hang_seconds = plan->hang_seconds,
                                         .hang_abort_seconds = plan->hang_abort_seconds };
    struct err err;

    snprintf(logs, sizeof logs, "%s/log", folder);
    setenv("TEST_FOLDER", folder, 1);
    redirect(folder, "stdout", STDOUT_FILENO);
    redirect(folder, "stderr", STDERR_FILENO);
    int status = supervise(&options, &err);
    if (status < 0) {
        fprintf(stderr, "supervise failed: %s\n", err.text);
        status = 100;
    }
    exit(status); /* not _exit: as main() would, with the PMIx library still at work */
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
            kill(result->supervisor, plan->signal);
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

void run_job_note_pid(pid_t pid)
{
    const char *folder = getenv("TEST_FOLDER");
    char path[256];
    FILE *file;

    CHECK(folder);
    snprintf(path, sizeof path, "%s/pids", folder);
    file = fopen(path, "ae");
    CHECK(file);
    fprintf(file, "%d\n", (int)pid);
    fclose(file);
}

/* Gone, or dead and only not yet taken by init. */
static int is_gone(pid_t pid)
{
    char path[64], text[256] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (!file)
        return 1;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    return !end || end[2] == 'Z' || end[2] == 'X';
}

static void check_processes(const char *folder)
{
    char *pids = read_output(folder, "pids");

    for (char *at = pids; *at;) {
        pid_t pid = (pid_t)strtol(at, &at, 10);
        int tries = 0;

        while (!is_gone(pid) && tries++ < 500)
            usleep(2000);
        if (!is_gone(pid))
            fprintf(stderr, "process %d is left\n", (int)pid);
        CHECK(is_gone(pid));
        while (*at == '\n')
            at++;
    }
    free(pids);
}

void run_job_check_clean(struct job_result *result)
{
    char prefix[64];
    DIR *folder = opendir("/dev/shm");
    struct dirent *entry;
    struct err err;

    snprintf(prefix, sizeof prefix, "lmtrain-%u-%d-", (unsigned)getuid(), (int)result->supervisor);
    CHECK(folder);
    while ((entry = readdir(folder)))
        CHECK(strncmp(entry->d_name, prefix, strlen(prefix)));
    closedir(folder);
    check_processes(result->folder);
    file_remove_tree(result->folder, &err);
    free(result->out);
    free(result->err);
}
