/*
 * launch.c - the clock of scripts/bench/launch
 *
 * `launch start N` starts N ranks that put, fence, get and leave, and prints the seconds from exec
 * until the last is past the fence, and until all is over.
 *
 * `launch watch EXE OUT COMMAND... -- FOLDER...` runs COMMAND, which breaks something, and prints
 * the seconds from its end until "error:" (or "killed") is in the file OUT ("-" if it never is),
 * until no process of the binary EXE is left, and until nothing in any FOLDER is either.
 *
 * `launch dead PID` is such a command for what breaks by itself: it ends when the process does.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "launch/launch.h"
#include "launch/supervise.h"

enum { RANKS_MAX = 4096 };
static const double patience_seconds = 45, death_seconds = 60;
static const char times_variable[] = "LAUNCH_BENCH_TIMES";

static int fail(const char *what)
{
    fprintf(stderr, "launch: %s: %s\n", what, strerror(errno));
    return 1;
}

/* ---- start ---- */

static int be_a_rank(void)
{
    struct launch_rank rank;
    struct err err;
    int value, fd = open(getenv(times_variable), O_WRONLY | O_CLOEXEC);
    size_t n_bytes = sizeof value;

    if (fd < 0)
        return fail("the file of times");
    if (launch_join(&rank, &err) ||
        launch_put("address", &rank.world_rank, sizeof rank.world_rank, &err) ||
        launch_fence(60, &err) ||
        launch_get("address", (rank.world_rank + 1) % rank.world_size, &value, &n_bytes, 10, &err))
        launch_abort((int)err.code, err.text);
    double now = clock_seconds();
    if (pwrite(fd, &now, sizeof now, (off_t)(sizeof now * (size_t)rank.world_rank)) < 0)
        return fail("the file of times");
    launch_leave();
    return 0;
}

static int be_the_head(int n_ranks)
{
    char *argv[] = { "rank", NULL };
    struct supervise_options options = { .n_ranks = n_ranks, .argv = argv };
    struct err err;
    int status = supervise(&options, &err);

    if (status < 0)
        fprintf(stderr, "launch: %s\n", err.text);
    return status;
}

static int start(const char *n_text)
{
    static double times[RANKS_MAX];
    char path[] = "/tmp/lmtrain-bench-XXXXXX", job[] = "job";
    int64_t n;
    int status, fd = mkstemp(path);
    double last = 0;

    if (fd < 0 || str_to_i64(n_text, &n) || n < 1 || n > RANKS_MAX)
        return fail("start N");
    setenv(times_variable, path, 1);
    double since = clock_seconds();
    pid_t child = fork();
    if (!child) {
        execl("/proc/self/exe", "launch", job, n_text, NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    double over = clock_seconds();
    ssize_t n_bytes = pread(fd, times, sizeof times, 0);
    unlink(path);
    if (status || n_bytes != (ssize_t)sizeof *times * n)
        return fail("the ranks");
    for (int i = 0; i < n; i++)
        if (times[i] > last)
            last = times[i];
    printf("%.4f %.4f\n", last - since, over - since);
    return 0;
}

/* ---- watch ---- */

static int has_words(const char *path)
{
    static char text[1 << 16];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "error:") || strstr(text, "Killed") || strstr(text, "killed");
}

static int n_processes(const char *exe)
{
    DIR *folder = opendir("/proc");
    char path[300], to[4096];
    int n = 0;

    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/exe", entry->d_name);
        ssize_t length = readlink(path, to, sizeof to - 1);
        to[length > 0 ? length : 0] = '\0';
        n += !strcmp(to, exe);
    }
    if (folder)
        closedir(folder);
    return n;
}

/* Entries but those of the script that measures; a folder whose host is gone has none. */
static int n_entries(const char *path)
{
    DIR *folder = opendir(path);
    int n = 0;

    for (struct dirent *entry; folder && (entry = readdir(folder));)
        n += entry->d_name[0] != '.' && !str_starts_with(entry->d_name, "lmtrain-cli.");
    if (folder)
        closedir(folder);
    return n;
}

static int are_empty(char *const *folders)
{
    for (; *folders; folders++)
        if (n_entries(*folders))
            return 0;
    return 1;
}

static void print_seconds(double seconds, const char *end)
{
    if (seconds < 0)
        printf("-%s", end);
    else
        printf("%.3f%s", seconds, end);
}

static int watch(char **argv)
{
    const char *exe = argv[0], *out = argv[1];
    char **command = argv + 2, **folders = command;
    double told = -1, gone = -1, clean = -1;
    int status;

    while (*folders && strcmp(*folders, "--") != 0)
        folders++;
    if (!*folders)
        return fail("watch ... -- FOLDER...");
    *folders++ = NULL;
    pid_t child = fork();
    if (!child) {
        execvp(command[0], command);
        _exit(127);
    }
    if (waitpid(child, &status, 0) < 0 || status)
        return fail("what should break something");
    double since = clock_seconds();
    for (double now = since; clean < 0 && now < since + patience_seconds; now = clock_seconds()) {
        if (told < 0 && has_words(out))
            told = now - since;
        if (gone < 0 && !n_processes(exe))
            gone = now - since;
        if (gone >= 0 && are_empty(folders))
            clean = now - since;
        else
            usleep(2000);
    }
    if (told < 0 && has_words(out))
        told = clean;
    print_seconds(told, " ");
    print_seconds(gone, " ");
    print_seconds(clean, "\n");
    return 0;
}

/* Alive, and not a zombie that nobody has waited for yet. */
static int is_alive(const char *pid)
{
    char path[64], text[512];

    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *state = strrchr(text, ')');
    return state && state[1] && state[2] != 'Z' && state[2] != 'X';
}

static int dead(const char *pid)
{
    if (!is_alive(pid))
        return fail("no such process");
    for (double until = clock_seconds() + death_seconds; clock_seconds() < until; usleep(500))
        if (!is_alive(pid))
            return 0;
    return fail("it lives");
}

int main(int argc, char **argv)
{
    int64_t n;

    if (launch_is_rank())
        return be_a_rank();
    if (argc == 3 && !strcmp(argv[1], "job") && !str_to_i64(argv[2], &n))
        return be_the_head((int)n);
    if (argc == 3 && !strcmp(argv[1], "start"))
        return start(argv[2]);
    if (argc > 5 && !strcmp(argv[1], "watch"))
        return watch(argv + 2);
    if (argc == 3 && !strcmp(argv[1], "dead"))
        return dead(argv[2]);
    fprintf(stderr, "usage: launch start N | launch watch EXE OUT COMMAND... -- FOLDER... |"
                    " launch dead PID\n");
    return 2;
}
