/*
 * output_impl.h - what the ranks print
 *
 * Rank 0 writes to our own stdout and stderr, so that a terminal stays one. The other ranks write
 * into pipes: all goes to rank-N.log, and lines of stderr that are warnings or errors (log.h's and
 * CHECK's prefixes) also to our stderr, with "rank N: " in front.
 */
#ifndef LAUNCH_OUTPUT_IMPL_H
#define LAUNCH_OUTPUT_IMPL_H

#include <poll.h>

#include "base/err.h"
#include "base/str.h"

struct output;

/* log_folder is made if need be; NULL: no logs. */
int output_create(struct output **output, int n_ranks, const char *log_folder, struct err *err);
void output_destroy(struct output *output);

/*
 * Make rank's pipes and log. fds get the descriptors for its stdout and stderr: our own 1 and 2 for
 * rank 0. output_started, after the fork, closes what is the child's.
 */
int output_prepare(struct output *output, int rank, int fds[2], struct err *err);
void output_started(struct output *output, int rank);

/* The descriptors to poll: fills at most 2 * n_ranks and returns how many. */
int output_poll(const struct output *output, struct pollfd *polls);

/* Pass on what is there, without waiting, of one rank or (rank -1) of all. */
void output_read(struct output *output, int rank);

/* From now on show no more lines of warning or error: they are consequences. Logs go on. */
void output_quiet(struct output *output);

/* The last lines of rank's stderr, at most about 1 KiB; "" for rank 0, whose are on the screen. */
void output_tail(const struct output *output, int rank, struct str *text);

#endif
