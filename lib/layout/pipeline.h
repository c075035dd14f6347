/*
 * pipeline.h - the order in which each rank of a pipeline runs its forwards and backwards
 *
 * A pipeline has n_ranks ranks with n_chunks chunks each, so n_ranks * n_chunks stages, and runs
 * n_micro_batches through them. A schedule is one list of steps per rank: F (forward), B (backward:
 * gradients of input and weights), or B in two, I (gradient of the input) and later W (gradients of
 * the weights). A rank runs its list in order and a step waits for what it needs; transfers, slots
 * and functions are added when steps become actions (program/schedule.c). It is pure arithmetic: it
 * knows no device, no communicator and no clock; costs are integers of any unit.
 *
 * Promises (test/layout/pipeline_test.c has them for every p <= 8, chunks <= 4, m <= 16):
 *   - complete: each stage runs F and B (or I and W) of each micro-batch once;
 *   - ordered: in each chunk the F's, the B's or I's, and the W's each come in increasing order of
 *     the micro-batch. That is what the bitwise law (lib/README.md) requires of accumulators, and it makes the
 *     micro-batches alive in a chunk a window of consecutive numbers: slot m % n serves, see
 *     pipeline_slots;
 *   - live: with sends that are buffered or posted together with their receives, it always ends.
 *
 * The kinds, for p ranks of which this is r, v chunks and m micro-batches:
 *
 *   gpipe          all F's, then all B's. Huang et al. 2019, arXiv:1811.06965; the backwards come
 *                  in increasing order here. v = 1.
 *   1f1b           min(p-1-r, m) F's, then (F, B), then the B's that remain. Narayanan et al. 2019
 *                  (PipeDream), flushed as in arXiv:2006.09503. v = 1.
 *   interleaved    Narayanan et al. 2021, arXiv:2104.04473, §2.2: groups of micro-batches, each
 *                  forward through chunk 0, then 1, ...; backward with the chunks reversed; warm-up
 *                  2(p-1-r) + (v-1)g F's for groups of at most g. There p must divide m and g = p.
 *                  Here m is cut evenly into as many groups of at least p as there are (one if m <
 *                  p), larger groups first: the same where p divides m. v = 1 is 1f1b.
 *   breadth-first  all F's of chunk 0, then of chunk 1, ...; B's with the chunks reversed. Lamy-
 *                  Poirier 2023, arXiv:2211.05953. v = 1 is gpipe.
 *   zb-h1, zb-h2   Qi et al. 2023, arXiv:2401.10241, §2: 1f1b with B in two and W's put off: by r
 *                  further I's (h1, memory as 1f1b's first rank), by 2r with 2(p-r)-1 F's of
 *                  warm-up (h2, twice that). v = 1. zb-h2 with m < 2p-1 warms up with all m and has
 *                  a bubble.
 *   zb-v           the same paper, §6: v = 2, rank r holds the stages r and 2p-1-r. With m < 2p-1
 *                  the phases are the same less the micro-batches that are not there; a bubble
 *                  remains.
 *   dynamic        interleaved for micro-batches of given sizes. sizes[j] is the number of
 *                  sequences of micro-batch j, so [1,2,4,4,2,1] is six micro-batches of 14
 *                  sequences in all; small ones first and last make filling and draining short,
 *                  large ones between them make the products large. The order of micro-batches
 *                  stays as given (the law). What the sizes decide is the grouping: of
 *                  interleaved's with groups of at least p, p+1, ... 4p the one that ends first in
 *                  pipeline_simulate with F = I = W = sizes[j] and no transfer time, the one with
 *                  the smallest groups (least memory) among equals.
 */
#ifndef LAYOUT_PIPELINE_H
#define LAYOUT_PIPELINE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/choice.h"
#include "base/err.h"
#include "base/str.h"

enum pipeline_kind {
    PIPELINE_GPIPE,
    PIPELINE_1F1B,
    PIPELINE_INTERLEAVED,
    PIPELINE_BREADTH_FIRST,
    PIPELINE_ZB_H1,
    PIPELINE_ZB_H2,
    PIPELINE_ZB_V,
    PIPELINE_DYNAMIC,
    N_PIPELINE_KINDS
};

/* "gpipe", "1f1b", ... as in job files. */
extern const struct choice pipeline_choices[];
const char *pipeline_name(enum pipeline_kind kind);

#define PIPELINE_RANKS_MAX 1024
#define PIPELINE_CHUNKS_MAX 64
#define PIPELINE_MICRO_BATCHES_MAX 131072
/* Over all ranks: what compiles and is verified in a second (scripts/bench/compile); 18,204
 * micro-batches of 96 ranks. */
#define PIPELINE_STEPS_MAX (5 << 20)

struct pipeline_spec {
    enum pipeline_kind kind;
    int n_ranks;
    int n_chunks; /* per rank */
    int n_micro_batches;
    /* interleaved, dynamic: least micro-batches of a group; 0: p, or as chosen by dynamic */
    int group;
    const int *sizes; /* dynamic: [n_micro_batches]; no other kind reads it */
};

/*
 * Whether the pipeline is possible: 0, or -1 and ERR_CONFIG with the reason and the nearest
 * possible value. Whether there are enough layers for the stages is checked by stage.h.
 */
int pipeline_check(const struct pipeline_spec *spec, struct err *err);

/* ---- where stages are ---------------------------------------------------------------------------
 * Looped, stage = chunk * n_ranks + rank; zb-v's V is rank, then 2 * n_ranks - 1 - rank. A rank's
 * chunks are numbered in the order of their stages. Neighbouring stages may share a rank (the
 * middle of the V; a single rank): nothing is sent between them. */
int pipeline_n_stages(const struct pipeline_spec *spec);
int pipeline_stage_of(const struct pipeline_spec *spec, int rank, int chunk);
int pipeline_rank_of(const struct pipeline_spec *spec, int stage);
int pipeline_chunk_of(const struct pipeline_spec *spec, int stage);

/* ---- lists ---- */

enum pipeline_step_kind {
    STEP_F, /* needs F of the stage before */
    STEP_B, /* I and W in one: needs its own F, and B or I of the stage behind */
    STEP_I, /* needs what B needs; what the stage before waits for */
    STEP_W, /* needs its own I */
    N_STEP_KINDS
};

struct pipeline_step {
    enum pipeline_step_kind kind;
    int chunk;
    int micro_batch;
};

struct pipeline_list {
    int n_steps;
    struct pipeline_step *steps;
};

/*
 * A stretch of time in which all ranks repeat themselves: of each rank r the steps from begin[r] on
 * are n_times rounds of n[r] steps (0: it waits, or is at its end), each round `shift`
 * micro-batches later than the one before, and later[r] in time.
 */
struct pipeline_stretch {
    int shift, n_times;
    const int *begin, *n;
    const int64_t *later;
    struct pipeline_stretch *next; /* a later one, of each rank */
};

struct pipeline {
    struct pipeline_spec spec;   /* group is the largest group of interleaved and dynamic */
    struct pipeline_list *ranks; /* [spec.n_ranks] */
    /* [spec.n_ranks][n_steps] by pipeline_time; NULL before that. The lists then satisfy
     * pipeline_verify and must not change. */
    const int64_t *const *starts;
    const struct pipeline_stretch
        *stretches; /* of starts, by pipeline_time; NULL: none are known */
};

/* Build all ranks' lists in the arena (sizes is copied as well). Fails as pipeline_check. */
int pipeline_build(struct pipeline *pipeline, const struct pipeline_spec *spec, struct arena *arena,
                   struct err *err);

/*
 * Are the lists, from wherever they come, complete, ordered and live, as promised above? 0, or -1
 * and ERR_FAILED with the rank and the step (counted from 0), and who waits for whom.
 */
int pipeline_verify(const struct pipeline *pipeline, struct arena *scratch, struct err *err);

/*
 * How many micro-batches of a chunk are alive at once: what to allocate per chunk, micro-batch m in
 * slot m % n. From the list alone: a slot is taken when its step begins and free when the step that
 * last reads it has ended. Asks for lists that pipeline_verify accepts.
 */
struct pipeline_slots {
    int f_to_i; /* from F to B or I: what only the input's gradient reads */
    int f_to_w; /* from F to B or W: what the weights' gradients read */
    int i_to_w; /* from I to W: what I makes for W; 0 if all are B's */
};

struct pipeline_slots pipeline_slots(const struct pipeline *pipeline, int rank, int chunk);

/* The same, over all chunks of the rank together: alive at one time, so at most the chunks' sum. */
struct pipeline_slots pipeline_peak(const struct pipeline *pipeline, int rank);

/* ---- time ---- */

struct pipeline_costs {
    const int64_t *f, *i, *w; /* [n_stages]; B is i + w */
    int64_t transfer;         /* of a boundary from one rank to another */
    const int *sizes;         /* [n_micro_batches] by which all of these are multiplied; NULL: 1 */
    /* [n_micro_batches]: which costs each has, where they are not proportional to a size: f, i and
     * w are then [n_kinds][n_stages]; NULL: 0 each. */
    const int *kinds;
    const int64_t *transfers; /* with kinds: of each kind, in place of transfer */
};

struct pipeline_rank_timing {
    int64_t first_start;
    int64_t last_end;
    int64_t busy;               /* the rest of last_end - first_start it waits */
    struct pipeline_slots peak; /* pipeline_peak */
    int64_t *starts;            /* [n_steps] of its list */
};

struct pipeline_timing {
    int64_t makespan; /* from the first start to the last end of all */
    int64_t span;   /* the longest from a rank's first start to its last end: its step, if the next
                       * step follows at once (the "cost" of arXiv:2401.10241) */
    int64_t bubble; /* span less the largest busy */
    struct pipeline_rank_timing *ranks;       /* [n_ranks], in the arena */
    const struct pipeline_stretch *stretches; /* those that were found; likewise */
};

/*
 * Run the lists: each rank in order, a step begins when its rank is free and what it needs is
 * there, which across ranks takes the transfer time. Nothing else is modelled: transfers neither
 * queue nor keep a rank busy. Fails as pipeline_verify for lists that can't be run to their end.
 */
int pipeline_simulate(struct pipeline_timing *timing, const struct pipeline *pipeline,
                      const struct pipeline_costs *costs, struct arena *arena, struct err *err);

/*
 * When each step starts where F = I = W = 1 (times sizes) and transfers take no time:
 * pipeline->starts, in the arena. By start, then by rank, is one order of all steps of all ranks
 * that keeps every list's and in which a step comes after what it needs. Who walks it and, at each
 * step, appends the send to the producer's actions and the receive to the consumer's, gets one
 * order of sends and receives on each channel; and no circle of waiting even where a send waits for
 * its receive and a receive for its slot, as all that anything waits for comes earlier in this one
 * order. Fails as pipeline_verify.
 */
int pipeline_time(struct pipeline *pipeline, struct arena *arena, struct err *err);

/* The stage that needs the result of a step besides the rank's own chunk, or -1. */
int pipeline_target_of(const struct pipeline_spec *spec, int rank, enum pipeline_step_kind kind,
                       int chunk);

/*
 * A walk in that order over the steps of a rank and those of its neighbours, with which it
 * exchanges boundaries, whose results it gets: it costs nothing for all the others.
 */
#define PIPELINE_WALK_RANKS 3
struct pipeline_walk {
    const struct pipeline *pipeline;
    int n_ranks;
    int ranks[PIPELINE_WALK_RANKS];
    int next[PIPELINE_WALK_RANKS];
    int64_t starts[PIPELINE_WALK_RANKS]; /* of those; INT64_MAX at the end */
    unsigned char is_walked[PIPELINE_WALK_RANKS][N_STEP_KINDS][PIPELINE_CHUNKS_MAX];
};

/* A walk over the steps of the rank and of its two neighbours on the ring. Needs pipeline_time. */
struct pipeline_walk pipeline_walk_neighbours(const struct pipeline *pipeline, int rank);

/* One step of one rank: pipeline.ranks[rank].steps[step]. */
struct pipeline_place {
    int rank, step;
};

/* The next step. Returns 0 at the end, *place is then untouched. */
int pipeline_walk_next(struct pipeline_walk *walk, struct pipeline_place *place);

/* When the next step starts; INT64_MAX at the end. */
int64_t pipeline_walk_time(const struct pipeline_walk *walk);

/*
 * The number of rounds of the walk in a stretch: from time *begin on, each of time *length. 0 if
 * there are fewer than two.
 */
int pipeline_walk_rounds(const struct pipeline_walk *walk, const struct pipeline_stretch *stretch,
                         int64_t *begin, int64_t *length);

/* Between two of these rounds: skip n_rounds of them. */
void pipeline_walk_skip(struct pipeline_walk *walk, const struct pipeline_stretch *stretch,
                        int n_rounds);

/*
 * A picture, one line per rank, time to the right, a dot where it waits:
 *     rank 0  F0 F1 .  .  B0 -  F2
 * F = I = W = 1 unit (times sizes under dynamic), a step of more units drawn on with dashes. F3.1
 * is micro-batch 3 in chunk 1; .1 is left out where there is one chunk. Lines are cut at n_units
 * with "..."; 0 cuts nowhere. Fails as pipeline_verify; text is then untouched.
 */
int pipeline_print(const struct pipeline *pipeline, int n_units, struct str *text, struct err *err);

#endif
