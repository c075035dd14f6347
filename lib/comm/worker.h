/*
 * worker.h - the one thread of a rank that talks to others
 *
 * Work is given to a stream. Within a stream it is done in the order in which it was given, one
 * piece at a time; streams don't wait for each other: the thread goes round those that have work
 * and polls each. So what a stream waits for can come through another one.
 *
 * A ticket names a piece of work; it is done when all up to it in its stream are. Giving work
 * allocates nothing: a stream is a ring of fixed size, and worker_post waits while it is full. The
 * first error stops the worker: what is under way is abandoned (its memory must live as long as the
 * comm), later work is dropped, and every wait returns the error.
 */
#ifndef COMM_WORKER_H
#define COMM_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { WORKER_STREAMS = 24 };

struct worker;

/*
 * One turn at a piece of work: an enum comm_progress (0, COMM_DONE, when it is done: what does all
 * at once just returns 0), or -1 with the error.
 */
typedef int (*worker_fn)(void *argument, struct err *err);

/* core: where the thread is bound; -1 nowhere. */
int worker_create(struct worker **worker, int core, struct err *err);
void worker_destroy(struct worker *worker); /* after what was given is done */

/* argument must live until the work is done. Returns its ticket, which is not 0. */
uint64_t worker_post(struct worker *worker, int stream, worker_fn fn, void *argument);

/* Has all up to ticket been done? Never blocks. */
int worker_done(const struct worker *worker, uint64_t ticket);

/* Wait for it; 0, or -1 and the worker's first error. Ticket 0 is always done. */
int worker_wait(struct worker *worker, uint64_t ticket, struct err *err);

/*
 * Post to stream 0 and wait. What does not return before it is done (comm's blocking calls) keeps
 * all streams from going on: none may have work under way then.
 */
int worker_call(struct worker *worker, worker_fn fn, void *argument, struct err *err);

#endif
