/*
 * programs.h - the programs of a job's ranks, with the scratch that this machine's kernels need
 */
#ifndef PLAN_PROGRAMS_H
#define PLAN_PROGRAMS_H

#include "config/job.h"
#include "kernels/kernels.h"
#include "model/compile_job.h"

/* Whether ops are ordered by the prices of a cluster that the job names, which all ranks must then
 * have alike: slices, weights that are gathered ahead, layers that are recomputed early. */
bool programs_go_by_prices(const struct job *job);

/* Whose program: of a resolved job's pipeline rank, for these kernels. */
struct programs_request {
    const struct job *job;
    struct kernels *kernels;
    int pp_rank;
    const struct pipeline *built; /* of compile_pipeline, if several ranks are compiled; or NULL */
    const struct compile_watch *watch; /* NULL: none */
    bool unverified;                   /* priced, not run */
};

/*
 * The program of one rank. As compile_train; *program is the caller's to release, on failure too.
 */
int programs_compile(struct program *program, const struct programs_request *request,
                     struct err *err);

/* A rank's program and, at its places, one for micro-batches of each shorter length. */
struct programs_by_length {
    struct program *longest; /* the caller's */
    struct program *shorter; /* [n_shorter], in the arena */
    const int *lengths; /* [n_shorter + 1], of the longest too; NULL: sequences are packed or cut */
    int n_shorter;
};

/* Fills all but `longest`. All programs are the caller's to release, on failure too. */
int programs_compile_by_length(struct programs_by_length *programs,
                               const struct programs_request *request, struct arena *arena,
                               struct err *err);

/*
 * The programs [pp] of all pipeline ranks, not verified: to be priced, not run. All are the
 * caller's to release, on failure too.
 */
int programs_compile_unverified(struct program *programs, const struct job *job,
                                struct kernels *kernels, struct err *err);

/* The same, verified together. */
int programs_compile_ranks(struct program *programs, const struct job *job, struct kernels *kernels,
                           struct err *err);

#endif
