/*
 * output_impl.h - what the ranks print
 *
 * Bytes of a rank's stdout and stderr come in as they are read, and go as whole lines to rank-N.log
 * (base/log_file.h); lines of stderr that are warnings or errors (log.h's and CHECK's prefixes) go
 * also to our stderr, with "rank N: " in front. What rank 0 prints goes to our own stdout and
 * stderr unchanged; it writes its log itself (train/pretrain_report.c).
 */
#ifndef LAUNCH_HEAD_OUTPUT_IMPL_H
#define LAUNCH_HEAD_OUTPUT_IMPL_H

#include "base/err.h"
#include "base/str.h"
#include "launch/head/screen_impl.h"

struct output;

/*
 * log_folder is made if need be, and the logs of all ranks but 0 in it; NULL: no logs. screen shows
 * what is to be seen.
 */
int output_create(struct output **output, int n_ranks, const char *log_folder,
                  struct screen *screen, struct err *err);
void output_destroy(struct output *output);

enum output_stream { OUTPUT_STDOUT, OUTPUT_STDERR };

/* Take what rank has printed on a stream. Waits for the disk. */
void output_take(struct output *output, int rank, enum output_stream stream, const char *bytes,
                 size_t n_bytes);

/* The rank has ended: pass on what it left without a newline. */
void output_end(struct output *output, int rank);

/* Show no more warnings and errors: they are consequences. Logs are still written. */
void output_quiet(struct output *output);

/* The last lines of rank's stderr, at most about 1 KiB; "" for rank 0, whose are on the screen. */
void output_tail(const struct output *output, int rank, struct str *text);

#endif
