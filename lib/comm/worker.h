/*
 * worker.h - the one thread of a rank that talks to others
 *
 * Work is done in the order in which it was given. A ticket numbers each piece, from 1; it is done
 * when all up to it are. Giving work allocates nothing: the queue is a ring of fixed size, and
 * worker_post waits while it is full. The first error stops the worker: later work is dropped and
 * every wait returns it.
 */
#ifndef COMM_WORKER_H
#define COMM_WORKER_H

#include <stdint.h>

#include "base/err.h"

struct worker;

typedef int (*worker_fn)(void *argument, struct err *err);

/* core: where the thread is bound; -1 nowhere. */
int worker_create(struct worker **worker, int core, struct err *err);
void worker_destroy(struct worker *worker); /* after what was given is done */

/* argument must live until the work is done. Returns its ticket. */
uint64_t worker_post(struct worker *worker, worker_fn fn, void *argument);

/* Has all up to ticket been done? Never blocks. */
int worker_done(const struct worker *worker, uint64_t ticket);

/* Wait for it; 0, or -1 and the worker's first error. Ticket 0 is always done. */
int worker_wait(struct worker *worker, uint64_t ticket, struct err *err);

/* Post and wait. */
int worker_call(struct worker *worker, worker_fn fn, void *argument, struct err *err);

#endif
