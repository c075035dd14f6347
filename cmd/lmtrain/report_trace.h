/*
 * report_trace.h - the steps that a run traced, with its plan: for tables, timelines and the page
 */
#ifndef CMD_REPORT_TRACE_H
#define CMD_REPORT_TRACE_H

#include "plan_subject.h"
#include "timelines.h"
#include "train/step_traces.h"

/* What is asked for. */
struct report_request {
    const char *trace, *to; /* files to write; NULL: none */
    const char *device, *cluster, *steps, *ranks;
    bool json;
};

/* What a run's log says of its ranks. */
struct report_rank {
    int n_ranks; /* 0: as many as the job says */
    bool is_gpu;
};

struct report_timelines {
    struct step_traces traces; /* n 0: there are none */
    struct plan_subject *subject;
    struct plan plan;
    struct timeline_list list; /* measured ranks, then predicted ones if there is a cluster */
    struct replica_programs replicas;
    bool has_replicas;
    struct kernels *kernels;
    struct pool *pool;
};

/*
 * Read the run's job and traces, plan it, and predict its step if the job or the request names a
 * cluster. must_have: an error if it has no traces; else the first ranks of the stages are
 * predicted then, and a cluster of the job's that cannot be read, which *err then says, is done
 * without. report_timelines_close in any case. Returns 0, or -1.
 */
int report_timelines_open(struct report_timelines *timelines, const struct report_request *request,
                          const char *run, const struct report_rank *rank, bool must_have,
                          struct arena *arena, struct err *err);
void report_timelines_close(struct report_timelines *timelines);

/* Write request->trace, and say so in out. Returns 0, or -1 and ERR_FAILED. */
int report_timelines_write(const struct report_timelines *timelines,
                           const struct report_request *request, const char *run, struct str *out,
                           struct err *err);

#endif
