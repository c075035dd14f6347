/*
 * interrupt.c - the handler calls only what may be called in one: write, unlink, raise and their
 * like
 */
#include "base/interrupt.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { N_MARKED = 16 };

static _Atomic(const char *) advice;
static _Atomic(const char *) marked[N_MARKED];
static atomic_int is_terminal;

static void say(const char *text)
{
    if (write(2, text, strlen(text)) < 0)
        return;
}

/* readdir may allocate: the system call itself does not. Names that begin with a dot stay. */
static void remove_folder(const char *path)
{
    static _Alignas(struct dirent64) char entries[8192];
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    long n;

    while (fd >= 0 && (n = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0)
        for (long at = 0; at < n;) {
            const struct dirent64 *entry = (const struct dirent64 *)(const void *)(entries + at);

            if (entry->d_name[0] != '.')
                unlinkat(fd, entry->d_name, 0);
            at += entry->d_reclen;
        }
    if (fd >= 0)
        close(fd);
    rmdir(path);
}

static void remove_marked(const char *path)
{
    if (path && unlink(path) < 0 && errno == EISDIR)
        remove_folder(path);
}

static void on_signal(int number)
{
    const char *text = atomic_load(&advice);

    say(atomic_load(&is_terminal) ? "\r\033[K" : "");
    say("lmtrain: interrupted by ");
    say(number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "SIGHUP");
    if (text) {
        say(": ");
        say(text);
    }
    say("\n");
    for (int i = 0; i < N_MARKED; i++)
        remove_marked(atomic_load(&marked[i]));
    /* Blocked while this runs: it ends the process on return. */
    signal(number, SIG_DFL);
    raise(number);
}

void interrupt_catch(const char *text)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction action = { .sa_handler = on_signal }, before;

    atomic_store(&is_terminal, isatty(2));
    atomic_store(&advice, text);
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

void interrupt_mark(const char *path)
{
    for (int i = 0; i < N_MARKED; i++) {
        const char *none = NULL;

        if (atomic_compare_exchange_strong(&marked[i], &none, path))
            return;
    }
}

void interrupt_forget(const char *path)
{
    for (int i = 0; i < N_MARKED; i++) {
        const char *is = path;

        if (path && atomic_compare_exchange_strong(&marked[i], &is, NULL))
            return;
    }
}
