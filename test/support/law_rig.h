/*
 * law_rig.h - a small training run, one way or another, reduced to its bits
 */
#ifndef SUPPORT_LAW_RIG_H
#define SUPPORT_LAW_RIG_H

#include <stdint.h>

#include "layout/mesh.h"
#include "train/engine.h"

struct trainer;

#define LAW_STEPS 4

struct law_case {
    const char *folder;  /* scratch for checkpoints */
    const char *dataset; /* prefix, of law_write_dataset */
    const char *samples; /* of law_write_samples, in place of it; or NULL */
    const char *model;   /* "llama" (tied), "llama-untied", "llama-deep" (8 layers, tied), or "gpt2"
                            with dropout (tied); "normed": all norms and windows; "alibi" with
                            dropout (tied); "mixture", "pooled", "routed", "counted": experts */
    const char *dtype, *recompute, *gradient_sum;
    struct layer_keep_sets keep_sets;   /* zeros: as recompute says */
    const struct rank_offload *offload; /* [pp]; NULL: nothing is away */
    int n_ranks, n_threads; /* ranks are threads of this process; data-parallel, but for pp, tp */
    int pp, chunks;         /* of n_ranks; 0: 1, and as the schedule has it */
    int tp;                 /* of n_ranks; 0: 1 */
    int no_sequence_parallel;
    int cp;                    /* of n_ranks; 0: 1 */
    const char *cp_kind;       /* NULL: auto */
    const char *schedule;      /* NULL: 1f1b */
    const char *micro_batches; /* dynamic's sizes, "[1, 2, 1]"; NULL: 1 each */
    int global_batch;          /* 0: 16 */
    const char *tuning;  /* what else the job says, as --set: "train.freeze=..." or "lora.rank=4",
                           several with '|' between them; NULL: nothing */
    int zero, bucket_mb; /* bucket_mb 0: 1 */
    int zero_group;      /* 0: all data-parallel ranks */
    const char *hold;    /* NULL: pass */
    int poison;
    int seed;                 /* 0: 1 */
    int stop_after;           /* 0: never; else save, forget all, and go on from the checkpoint */
    int n_ranks_after;        /* ranks it goes on with; 0: the same */
    int zero_after;           /* and the zero stage then, plus 1; 0: the same */
    int zero_group_after;     /* and its groups, plus 1; 0: the same */
    int pp_after;             /* and the pipeline's ranks; 0: the same */
    const char *tuning_after; /* and what else the job says; NULL: the same */
    /* Called by every rank before each step, from 0 on, and behind the last; or NULL. */
    void (*before_step)(struct trainer *trainer, const struct mesh_place *place, int step);
};

struct law_outcome {
    double loss[LAW_STEPS], norm[LAW_STEPS];
    uint64_t
        parameters;  /* sum of hashes of all weights, equal on all data-parallel ranks (checked) */
    uint64_t states; /* sum of hashes of the blocks of all masters, moments and averages, each
                        once */
    uint64_t numerics;
    int64_t n_reruns; /* not compared */
};

/* A few thousand random tokens of a vocabulary of 64, in several documents. */
void law_write_dataset(const char *prefix);

/* Samples of 2 to 20 tokens, some of them learned. */
void law_write_samples(const char *prefix);

/*
 * cmocka's set-up and tear-down of a group: a folder, and in it a dataset of law_write_dataset and
 * samples of law_write_samples, whose prefix is law_samples().
 */
int law_setup(void **state);
int law_teardown(void **state);
const char *law_samples(void);

/* The plain case on what law_setup made: one rank of one thread, nothing recomputed, late sums. */
struct law_case law_base(const char *model, const char *dtype);

/* Fails the test, with `what` and the first value that differs, unless all bits are the same. */
void law_must_equal(const char *what, const struct law_outcome *wanted,
                    const struct law_outcome *got);

/* Run the case, unless it is left out (law_left_out), and hold it against what was wanted. */
void law_must_run_alike(const struct law_case *law, const struct law_outcome *wanted);

/*
 * Whether to leave the next of many cases out: under sanitizers, which take ten times as long, nine
 * of ten.
 */
int law_left_out(void);

/* The fields of a case's model (law_models.c). */
const char *law_model_text(const char *model);

/* The job of the case, resolved, in the arena. Fails the test on any error. */
void law_job(struct job *job, const struct law_case *law, struct arena *arena);

/* At least 4 micro-batches a step. Fails the test on any error. */
struct law_outcome law_run(const struct law_case *law);

/* The reference of a job with this number of ranks: one thread each, nothing recomputed. */
struct law_outcome law_reference(struct law_case base);

/*
 * The same run as one rank of processes that were launched: all steps, no stop. Collective. Under
 * zero 1 outcome's states are of this rank's shards alone: the sum over all ranks is the run's.
 */
int law_play_rank(const struct law_case *law, const struct launch_rank *launched,
                  struct law_outcome *outcome, struct err *err);

#endif
