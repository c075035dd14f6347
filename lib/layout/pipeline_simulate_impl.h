/*
 * pipeline_simulate_impl.h - a run of all ranks' lists, and the rounds of it that need no running
 */
#ifndef LAYOUT_PIPELINE_SIMULATE_IMPL_H
#define LAYOUT_PIPELINE_SIMULATE_IMPL_H

#include "layout/pipeline_impl.h"

/* What other stages wait for: F's, and I's or B's. */
enum { END_F, END_I, N_ENDS };

struct simulation {
    const struct pipeline *pipeline;
    const struct pipeline_costs *costs;
    int n_stages;
    int *rank_of; /* [n_stages] */
    int *stages;  /* [n_ranks][n_chunks] */
    /* [n_micro_batches][n_stages]: 1 + the end of F, of I or B; 0: not yet, or in a round that was
     * not run and awaited by none that is */
    int64_t *ends[N_ENDS];
    int *n_done[N_ENDS]; /* [n_stages]: F's, I's or B's done */
    int *next;           /* [n_ranks] steps done */
    struct pipeline_rank_timing *ranks;
    struct pipeline_stretch *stretches, **last; /* skipped; last: where the next one goes */
};

/* The run as it was at an earlier time, to hold the present against. All zero but the arena at
 * first. */
struct simulation_skip {
    struct arena *arena;
    int *next, *n_done[N_ENDS];
    int64_t *last_end;      /* [n_ranks] */
    int64_t *later;         /* [n_ranks]: by how much a round is later, of now */
    int64_t *apart[N_ENDS]; /* [n_stages]: the same of what the stage's reader finds */
    int n_left, n_patience;
};

/*
 * Between two turns: where all that ranks have done since an earlier time will be done again, only
 * later, puts them as far on as that is known to go. Micro-batches all have one size.
 */
void simulation_skip_rounds(struct simulation *sim, struct simulation_skip *skipping);

/* The stage from whose F (of a step F) or I a step has to wait, or -1. */
int simulation_source_of(const struct simulation *sim, const struct pipeline_step *step, int stage);
int64_t simulation_cost_of(const struct simulation *sim, const struct pipeline_step *step,
                           int stage);
int64_t simulation_ready_at(const struct simulation *sim, int rank,
                            const struct pipeline_step *step, int stage);

static inline int simulation_end_kind(const struct pipeline_step *step)
{
    return step->kind == STEP_F ? END_F : END_I;
}

static inline int simulation_stage_of(const struct simulation *sim, int rank, int chunk)
{
    return sim->stages[rank * sim->pipeline->spec.n_chunks + chunk];
}

static inline int simulation_size_of(const struct simulation *sim, int micro_batch)
{
    return sim->costs->sizes ? sim->costs->sizes[micro_batch] : 1;
}

static inline int simulation_kind_of(const struct simulation *sim, int micro_batch)
{
    return sim->costs->kinds ? sim->costs->kinds[micro_batch] : 0;
}

static inline int64_t simulation_transfer_of(const struct simulation *sim, int micro_batch)
{
    if (sim->costs->kinds)
        return sim->costs->transfers[sim->costs->kinds[micro_batch]];
    return sim->costs->transfer * simulation_size_of(sim, micro_batch);
}

/* -1: not yet known. */
static inline int64_t simulation_end(const struct simulation *sim, int what, int stage,
                                     int micro_batch)
{
    return sim->ends[what][(int64_t)micro_batch * sim->n_stages + stage] - 1;
}

static inline void simulation_set_end(struct simulation *sim, int what, int stage, int micro_batch,
                                      int64_t end)
{
    sim->ends[what][(int64_t)micro_batch * sim->n_stages + stage] = end + 1;
    sim->n_done[what][stage] = micro_batch + 1;
}

#endif
