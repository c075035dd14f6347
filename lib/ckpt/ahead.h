/*
 * ahead.h - a second thread that does the next piece of work while the first does this one
 *
 * Reading a file and writing another keep two cores and both ends of a disk busy. One piece is
 * under way at a time: begin, (do something else,) end, begin, ...
 */
#ifndef CKPT_AHEAD_H
#define CKPT_AHEAD_H

#include "base/err.h"

struct ahead;

/* The work of one piece, done by the other thread; 0, or -1 with err. */
typedef int (*ahead_fn)(void *context, struct err *err);

/* Start the thread, which takes no signals. ERR_DEVICE if there can be none. */
int ahead_create(struct ahead **ahead, ahead_fn fn, void *context, struct err *err);

/* Have fn called once. The one before must have ended. */
void ahead_begin(struct ahead *ahead);

/* Wait for it; its result. What it wrote is then this thread's. */
int ahead_end(struct ahead *ahead, struct err *err);

/* Waits for what is under way. NULL is fine. */
void ahead_destroy(struct ahead *ahead);

#endif
