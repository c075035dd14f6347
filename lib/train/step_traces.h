/*
 * step_traces.h - the traces that a run has, of one step or more, and of some of its ranks
 */
#ifndef TRAIN_STEP_TRACES_H
#define TRAIN_STEP_TRACES_H

#include "train/step_trace.h"

/* Which are wanted. */
struct step_traces_choice {
    const int64_t *steps; /* n_steps 0: the last that was traced */
    const int64_t *ranks; /* n_ranks 0: all, the first n_ranks_max of each step */
    int n_steps, n_ranks;
    int n_ranks_max;
};

struct step_traces {
    struct step_trace *items; /* by step, then rank */
    int n;
    int n_left_out; /* ranks of the step that has most, beyond n_ranks_max */
    int world_size;
};

/*
 * A list of numbers from 0 on, "8", "0,2,5" or "0-7,16", in the arena, ascending, each once; at
 * most n_max. Returns how many, or -1 and ERR_CONFIG, which names the option.
 */
int step_traces_parse(const char *option, const char *text, int n_max, int64_t **list,
                      struct arena *arena, struct err *err);

/* Of the run in this folder; in the arena. Returns 0, or -1 and ERR_DATA, also if what is chosen
 * was not traced. */
int step_traces_read(struct step_traces *traces, const char *run,
                     const struct step_traces_choice *choice, struct arena *arena, struct err *err);

#endif
