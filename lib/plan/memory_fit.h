/*
 * memory_fit.h - what of a job's values is kept, computed again and away, so that its ranks fit
 *
 * For each pipeline rank: the layers' keep-sets (keep_sets.h) and what may leave the device are put
 * to memory_solver.h, whose answer is compiled; the answer is asked for again with what its sums of
 * bytes were off by, until the compiled program fits, and no more than it must has left. So what
 * fits is what a run allocates, to the byte. Copies that the memory of the host has no place for go
 * to the file. Where something leaves, it is then compared, in the simulation of a step, with what
 * others place where (memory_placements.c), and the fastest is the choice.
 *
 * No bit of a result depends on it; but what is computed again may hold collectives, so ranks
 * choose under the same limits.
 */
#ifndef PLAN_MEMORY_FIT_H
#define PLAN_MEMORY_FIT_H

#include "config/cluster.h"
#include "config/job.h"
#include "kernels/kernels.h"
#include "plan/memory_solver.h"

/* What fits of one job, cluster and kernels under other limits have in common. Zeros at first; in
 * the arena of the fits. */
struct memory_reuse {
    const struct keep_sets *fronts;
    struct memory_lists **lists; /* [pp] */
};

struct memory_fit_request {
    const struct job *job; /* resolved */
    struct kernels *kernels;
    const struct cluster *cluster; /* NULL: memory_cluster's */
    /* What a rank's segments may take where the job does not say; 0: no limit. */
    int64_t device_bytes, host_bytes;
    const int64_t *rank_bytes;  /* [pp] in place of device_bytes; NULL: all alike */
    struct memory_reuse *reuse; /* NULL: nothing was fitted before */
    bool takes_least;           /* the least of everything, whatever the limits */
    bool or_least;              /* that where nothing fits, instead of an error */
    bool or_first_misfit;       /* the same of the first rank that does not fit, and no other */
    bool is_quick;              /* then: all that may leave does, without the solver */
};

/* Of one pipeline rank. */
struct memory_fit_rank {
    struct memory_choice choice;                  /* in kinds of the fit, of this rank's chunks */
    int64_t limit_bytes;                          /* of the device; 0: none */
    int64_t device_bytes, host_bytes, file_bytes; /* of the compiled program's segments */
    int64_t cell_bytes[N_AWAY_KINDS], away_bytes[N_AWAY_KINDS]; /* of all cells; of those away */
    int64_t activation_bytes; /* that leave for each micro-batch */
    int64_t step_ns;          /* of all ops of a step but collectives, where nothing is chosen */
    int n_compiled;
};

/* All in the arena of memory_fit. */
struct memory_fit {
    struct layer_keep_sets keep_sets;
    const struct rank_offload *offload;  /* [pp] */
    const struct memory_fit_rank *ranks; /* [pp] */
    const struct keep_sets *fronts;
    int64_t limit_bytes, host_limit_bytes; /* 0: none; of several the least */
    /* Of a step with the choice, and with the solver's where others were compared; 0: unknown, or
     * it does not fit. */
    int64_t simulated_ns, solved_ns;
    const char *placement; /* whose the choice is; NULL: the solver's */
};

/* The island of the cluster whose devices price the layers' fronts: the slowest that ranks of the
 * resolved job are on. */
int memory_island(const struct cluster *cluster, const struct job *job);

/* Whether there is anything to choose, or a limit to keep: recompute auto, values that may leave,
 * memory.device_bytes; buckets that are gathered ahead, layers that are recomputed early. */
bool memory_is_chosen(const struct job *job);

/*
 * Returns 0, or -1: ERR_DEVICE if a rank does not fit even with the least of everything, naming the
 * op with most bytes, or if the host has no room for what leaves; or that a program cannot be
 * compiled.
 */
int memory_fit(struct memory_fit *fit, const struct memory_fit_request *request,
               struct arena *arena, struct err *err);

/*
 * The same, and *job with the choice: what compile_job takes; *fit is NULL where there was nothing
 * to choose. So it is with recompute auto alone if the ranks fit with all that is kept: the job
 * then says recompute none. If they do not fit with the least either, the job has the least, or all
 * that is kept where the cells alone are too much. Their programs are then compared with the limits
 * by others, who say what would fit.
 */
int memory_fit_job(struct memory_fit **fit, struct job *job,
                   const struct memory_fit_request *request, struct arena *arena, struct err *err);

/*
 * The devices that copies and ops are priced by where no cluster is given: the job's rates, the
 * cluster that it was searched for, the GPU's data sheet, or a CPU of usual rates, with the job's
 * rates of links.
 */
int memory_cluster(struct cluster *cluster, const struct job *job, const struct kernels *kernels,
                   struct arena *arena, struct err *err);

/*
 * The cluster that the job names, with its tables; false: it names none, or it cannot be read. And
 * the text of both files, as far as they are files, which all ranks must have alike where programs
 * are made by them (slices).
 */
bool memory_known_cluster(struct cluster *cluster, const struct job *job, struct arena *arena);
void memory_cluster_text(const struct job *job, struct str *out);

#endif
