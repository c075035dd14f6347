/*
 * watcher_logs.c - the watcher's own log, and the logs of its ranks
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/log_file.h"
#include "launch/watch/watcher_process_impl.h"

/* The last lines of a rank's log, as far as they are this job's; "" if it has none. */
void watcher_read_tail(const struct watcher *w, int i, char text[WATCHER_TAIL_BYTES + 1])
{
    off_t begin = atomic_load(&w->page->log_starts[i]);
    char path[4096];

    text[0] = '\0';
    if (begin < 0)
        return;
    snprintf(path, sizeof path, "%s/rank-%d.log", w->start->options.log_folder,
             w->ranks[i].world_rank);
    log_file_tail(path, begin, text, WATCHER_TAIL_BYTES + 1);
}

/* Ranks append to their logs through their own descriptors. */
void watcher_bound_logs(struct watcher *w)
{
    char path[4096];

    for (int i = 0; i < w->n && w->start->options.log_folder; i++) {
        if (atomic_load(&w->page->log_starts[i]) < 0)
            continue;
        snprintf(path, sizeof path, "%s/rank-%d.log", w->start->options.log_folder,
                 w->ranks[i].world_rank);
        if (log_file_bound(path))
            atomic_store(&w->page->log_starts[i], 0);
    }
}

void watcher_open_log(struct watcher *w)
{
    char path[4096];
    struct err ignored;
    int length =
        snprintf(path, sizeof path, "%s/watcher-%s.log", w->start->options.log_folder, w->host);

    if (w->has_log || !w->start->options.log_folder || length >= (int)sizeof path)
        return;
    w->has_log = true;
    if (file_make_folder(w->start->options.log_folder, &ignored))
        return;
    int log = file_open_write(path, O_WRONLY | O_APPEND, &ignored);
    int screen = log < 0 ? -1 : fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (screen >= 0) {
        dup2(log, STDERR_FILENO);
        log_set_screen(screen, "");
    }
    if (log >= 0)
        close(log);
}
