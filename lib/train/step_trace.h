/*
 * step_trace.h - records of traced steps as files: OUTPUT/trace/step-N.rank-R
 *
 * A line "lmtrain trace 2 step N rank R of WORLD, K records, clock AT OFFSET ERROR, AT OFFSET
 * ERROR", then K records (run/run_trace.h) in this machine's byte order. The clock's numbers are
 * ns: what leads from the rank's clock to rank 0's, before and after the step
 * (train/clock_offset.h).
 */
#ifndef TRAIN_STEP_TRACE_H
#define TRAIN_STEP_TRACE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "run/run_trace.h"
#include "train/clock_offset.h"

struct step_trace {
    int64_t step;
    struct clock_offset begin, end;
    int rank, world_size, n;
    struct run_record *records; /* [n] */
};

/* Returns 0, or -1 and ERR_FAILED. */
int step_trace_write(const struct step_trace *trace, const char *output, struct err *err);

/* Read a file; records in the arena. Returns 0, or -1 and ERR_DATA. */
int step_trace_read(struct step_trace *trace, const char *path, struct arena *arena,
                    struct err *err);

#endif
