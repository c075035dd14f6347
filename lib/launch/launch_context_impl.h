/*
 * launch_context_impl.h - the decision of launch_context.h as a function of what can be seen, so
 * that a test can show it any cluster
 */
#ifndef LAUNCH_LAUNCH_CONTEXT_IMPL_H
#define LAUNCH_LAUNCH_CONTEXT_IMPL_H

#include <stddef.h>

#include "launch/launch_context.h"

struct context_view {
    /* getenv, or a test's table. */
    const char *(*get)(const void *context, const char *name);
    const void *context;
    /*
     * The title of the Slurm daemon that we descend from, "slurmstepd: [12.0]" or "[12.batch]";
     * NULL if there is none to be seen. The environment alone is not enough: sbatch hands the
     * variables of the step that it is called from on to the batch script.
     */
    const char *stepd;
};

enum context_verdict {
    VERDICT_RANK,
    VERDICT_ALLOCATION,
    VERDICT_PLAIN,
    VERDICT_STEP, /* refused: several tasks of a step, no PMIx */
    VERDICT_PMI,  /* refused: several processes of another launcher, no PMIx */
};

/* The value of a variable; NULL also where it is empty. */
const char *context_get(const struct context_view *view, const char *name);

/* A view's get that is getenv. */
const char *context_from_environment(const void *context, const char *name);

/* Pure. */
enum context_verdict context_decide(const struct context_view *view);

/*
 * Say why a verdict is a refusal; mpi_list is what `srun --mpi=list` said, NULL if it said nothing.
 * Always returns -1, ERR_CONFIG.
 */
int context_refuse(const struct context_view *view, enum context_verdict verdict,
                   const char *mpi_list, struct err *err);

#endif
