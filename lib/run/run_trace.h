/*
 * run_trace.h - when each op of an entry began and ended, as records
 *
 * A record is of an op of an action, by their places in the program, so that it can be matched with
 * what was predicted for the same place. Compute ops are timed on the thread that runs them, async
 * ops on the comm thread; waiting of the first for the second has records of its own. On a GPU
 * compute ops are timed one by one (run_set_timed), and async ops that the device's queues run have
 * no records.
 */
#ifndef RUN_RUN_TRACE_H
#define RUN_RUN_TRACE_H

#include <stdint.h>

#include "base/arena.h"
#include "program/program.h"

#define RUN_RECORD_WAIT (-1) /* the op of a record of waiting */

struct run_record {
    int32_t action, op;       /* of the entry; of the action's function */
    int64_t begin_ns, end_ns; /* on this machine's monotonic clock */
    int32_t stream;           /* enum stream */
    int32_t waited;           /* of waiting: enum stream, of the op that is waited for */
};
_Static_assert(sizeof(struct run_record) == 32, "records are files' format");

struct resolved_op;

struct run_trace {
    struct run_record *records;
    int n, capacity;             /* more are not kept */
    int action;                  /* at hand */
    struct resolved_op **posted; /* async ops whose records are owed */
    int n_posted, posted_capacity;
};

/* Room for one run of the entry, in the arena. */
void run_trace_open(struct run_trace *trace, const struct program *program, enum entry_kind entry,
                    struct arena *arena);

struct run;

/* From now on, between entries: record into trace; NULL: nothing. */
void run_set_trace(struct run *run, struct run_trace *trace);

#endif
