/*
 * where_impl.h - the decision of where.h as a function of what can be seen, so that a test can show
 * it any cluster
 */
#ifndef LAUNCH_WHERE_IMPL_H
#define LAUNCH_WHERE_IMPL_H

#include <stddef.h>

#include "launch/where.h"

struct where_view {
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

enum where_verdict {
    VERDICT_RANK,
    VERDICT_ALLOCATION,
    VERDICT_PLAIN,
    VERDICT_STEP, /* refused: several tasks of a step, no PMIx */
    VERDICT_PMI,  /* refused: several processes of another launcher, no PMIx */
};

/* The value of a variable; NULL also where it is empty. */
const char *where_get(const struct where_view *view, const char *name);

/* A view's get that is getenv. */
const char *where_from_environment(const void *context, const char *name);

/* Pure. */
enum where_verdict where_decide(const struct where_view *view);

/*
 * Say why a verdict is a refusal; mpi_list is what `srun --mpi=list` said, NULL if it said nothing.
 * Always returns -1, ERR_CONFIG.
 */
int where_refuse(const struct where_view *view, enum where_verdict verdict, const char *mpi_list,
                 struct err *err);

#endif
