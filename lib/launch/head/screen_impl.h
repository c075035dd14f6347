/*
 * screen_impl.h - what the head shows, written by a thread of its own
 *
 * A paused terminal (Ctrl-S), or a pipe without a reader, blocks its writer. The head must not
 * block, or it could not terminate the ranks when one dies: it queues output here, and a thread
 * writes it. The order is kept and nothing is dropped. To bound the queue, a caller that forwards
 * output of ranks checks screen_is_full first and then leaves the output in the ranks' pipes, so
 * that the ranks block instead.
 */
#ifndef LAUNCH_HEAD_SCREEN_IMPL_H
#define LAUNCH_HEAD_SCREEN_IMPL_H

#include <stddef.h>

#include "base/err.h"

struct screen;

/*
 * From now on this process's log lines go there as well. The caller has blocked the signals that
 * the thread shall not get, SIGPIPE among them.
 */
int screen_open(struct screen **screen, struct err *err);

/* Show bytes on fd (STDOUT_FILENO, STDERR_FILENO). Never waits, but for screen NULL. */
void screen_put(struct screen *screen, int fd, const char *bytes, size_t n_bytes);

int screen_is_full(struct screen *screen);

/* Readable when a full one has room again; screen_rest makes it unreadable. */
int screen_fd(const struct screen *screen);
void screen_rest(struct screen *screen);

/*
 * Log lines go to stderr again. Waits until all is shown, or until a signal can be read from
 * signal_fd (a signalfd) that is not SIGCHLD: then what is left is not shown.
 */
void screen_close(struct screen *screen, int signal_fd);

/*
 * Around a fork whose child goes on without exec: between them the thread stands still where it
 * holds nothing, neither the heap nor anything else that the child would wait for. NULL: none.
 */
void screen_before_fork(struct screen *screen);
void screen_after_fork(struct screen *screen);

/* In a forked child, where the thread is not: log lines go to stderr again. */
void screen_forget(void);

#endif
