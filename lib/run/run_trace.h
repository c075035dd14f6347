/*
 * run_trace.h - when each op of an entry began and ended, as records
 *
 * A record is of an op of an action, by their places in the program, so that it can be matched with
 * what was predicted for the same place. Waiting for another op has records of its own.
 *
 * What this thread or the comm thread does is timed by the clock. What is given to a GPU's queues
 * is timed there: a pool of events, of which one stands before and one behind each op, is read when
 * the entry is over; times become those of the host's clock by an event whose time on that is known
 * (Perfetto's and CUPTI's way, too). Nothing waits for a queue meanwhile; but ops are given one by
 * one, not as recorded graphs.
 */
#ifndef RUN_RUN_TRACE_H
#define RUN_RUN_TRACE_H

#include <stdint.h>

#include "base/arena.h"
#include "device/device.h"
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
struct run;

struct run_trace {
    struct run_record *records;
    int n, capacity;             /* more are not kept */
    int action;                  /* at hand */
    struct resolved_op **posted; /* async ops whose records are owed by the comm thread */
    int n_posted, posted_capacity;
    double begun_at; /* what is timed at present; on a GPU the index of its event */
    int begun;
    int64_t error_ns; /* of a GPU's times on the host's clock */

    /* On a GPU; events[0] is the one whose time is known. */
    struct device *device;
    struct device_event **events;
    int n_events, n_used;
    int (*marks)[2]; /* [capacity]: events of a record; 0: it is by the clock */
    double anchor;   /* of events[0]; seconds */
    struct arena arena;
};

/* Room for one run of the entry at a time. Returns 0, or -1 and ERR_DEVICE; to be closed in either
 * case, when the run does not record into it any more. */
int run_trace_open(struct run_trace *trace, struct run *run, enum entry_kind entry,
                   struct err *err);
void run_trace_close(struct run_trace *trace);

/* From now on, between entries: record an entry into trace, from its beginning; NULL: nothing. */
void run_set_trace(struct run *run, struct run_trace *trace);

#endif
