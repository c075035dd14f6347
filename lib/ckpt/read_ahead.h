/*
 * read_ahead.h - a second thread that does the next piece of work while the first does this one
 *
 * Reading a file and writing another keep two cores and both ends of a disk busy. One piece is
 * under way at a time: begin, (do something else,) end, begin, ...
 */
#ifndef CKPT_READ_AHEAD_H
#define CKPT_READ_AHEAD_H

#include "base/err.h"

struct read_ahead;

/* The work of one piece, done by the other thread; 0, or -1 with err. */
typedef int (*read_ahead_fn)(void *context, struct err *err);

/* Start the thread, which takes no signals. ERR_DEVICE if there can be none. */
int read_ahead_create(struct read_ahead **ahead, read_ahead_fn fn, void *context, struct err *err);

/* Have fn called once. The one before must have ended. */
void read_ahead_begin(struct read_ahead *ahead);

/* Wait for it; its result. What it wrote is then this thread's. */
int read_ahead_end(struct read_ahead *ahead, struct err *err);

/* Waits for what is under way. NULL is fine. */
void read_ahead_destroy(struct read_ahead *ahead);

#endif
