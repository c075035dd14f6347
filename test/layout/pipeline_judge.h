/*
 * pipeline_judge.h - the promises of a pipeline schedule, checked in the slowest and plainest way
 *
 * They are stated here a second time, independent of pipeline_verify, which has to agree with them.
 */
#ifndef TEST_LAYOUT_PIPELINE_JUDGE_H
#define TEST_LAYOUT_PIPELINE_JUDGE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "layout/pipeline.h"

#define RANKS_MAX 8
#define CHUNKS_MAX 4
#define MICRO_BATCHES_MAX 16

/* Of dynamic: small ones first and last, odd ones between. */
static const int sizes[MICRO_BATCHES_MAX] = { 1, 2, 4, 3, 1, 5, 2, 2, 4, 4, 1, 7, 3, 2, 2, 1 };

static inline struct pipeline_spec spec_of(enum pipeline_kind kind, int p, int v, int m)
{
    return (struct pipeline_spec){
        .kind = kind, .n_ranks = p, .n_chunks = v, .n_micro_batches = m, .sizes = sizes
    };
}

#define ABSENT (-1)

/* Where each step is in its rank's list. */
struct positions {
    int at[N_STEP_KINDS][CHUNKS_MAX][MICRO_BATCHES_MAX];
};

/* 0 if a step is none, or is there twice. */
static inline int find_positions(struct positions *positions, const struct pipeline *pipeline,
                                 int rank)
{
    const struct pipeline_list *list = &pipeline->ranks[rank];

    memset(positions, 0xff, sizeof *positions);
    for (int k = 0; k < list->n_steps; k++) {
        const struct pipeline_step *step = &list->steps[k];
        int *at;

        if (step->chunk < 0 || step->chunk >= pipeline->spec.n_chunks || step->micro_batch < 0 ||
            step->micro_batch >= pipeline->spec.n_micro_batches)
            return 0;
        at = &positions->at[step->kind][step->chunk][step->micro_batch];
        if (*at != ABSENT)
            return 0;
        *at = k;
    }
    return 1;
}

/* Where a micro-batch's F, I and W of a chunk are; B is both I and W. 0 if not each once. */
static inline int places_of(int places[3], const struct positions *positions, int chunk, int m)
{
    int f = positions->at[STEP_F][chunk][m], b = positions->at[STEP_B][chunk][m];
    int i = positions->at[STEP_I][chunk][m], w = positions->at[STEP_W][chunk][m];

    places[0] = f;
    places[1] = b == ABSENT ? i : b;
    places[2] = b == ABSENT ? w : b;
    if (f == ABSENT)
        return 0;
    return b == ABSENT ? i != ABSENT && w != ABSENT : i == ABSENT && w == ABSENT;
}

static inline int judge_rank(const struct pipeline *pipeline, int rank)
{
    struct positions positions;

    if (!find_positions(&positions, pipeline, rank))
        return 0;
    for (int chunk = 0; chunk < pipeline->spec.n_chunks; chunk++) {
        int last[3] = { ABSENT, ABSENT, ABSENT }, now[3];

        for (int m = 0; m < pipeline->spec.n_micro_batches; m++) {
            if (!places_of(now, &positions, chunk, m) || now[0] > now[1] || now[1] > now[2])
                return 0;
            for (int what = 0; what < 3; what++)
                if (now[what] <= last[what])
                    return 0;
            memcpy(last, now, sizeof last);
        }
    }
    return 1;
}

/* Strike off what can be done next on any rank, until nothing can. */
static inline int judge_liveness(const struct pipeline *pipeline)
{
    static char done[2][RANKS_MAX * CHUNKS_MAX][MICRO_BATCHES_MAX];
    const struct pipeline_spec *spec = &pipeline->spec;
    int next[RANKS_MAX] = { 0 }, n_stages = spec->n_ranks * spec->n_chunks, moved = 1, all = 0;

    memset(done, 0, sizeof done);
    while (moved) {
        moved = 0;
        all = 1;
        for (int rank = 0; rank < spec->n_ranks; rank++) {
            const struct pipeline_step *step = &pipeline->ranks[rank].steps[next[rank]];
            int stage, can;

            if (next[rank] == pipeline->ranks[rank].n_steps)
                continue;
            all = 0;
            stage = pipeline_stage_of(spec, rank, step->chunk);
            if (step->kind == STEP_W)
                can = 1;
            else if (step->kind == STEP_F)
                can = stage == 0 || done[0][stage - 1][step->micro_batch];
            else
                can = stage == n_stages - 1 || done[1][stage + 1][step->micro_batch];
            if (!can)
                continue;
            if (step->kind != STEP_W)
                done[step->kind != STEP_F][stage][step->micro_batch] = 1;
            next[rank]++;
            moved = 1;
        }
    }
    return all;
}

static inline int judge(const struct pipeline *pipeline)
{
    for (int rank = 0; rank < pipeline->spec.n_ranks; rank++)
        if (!judge_rank(pipeline, rank))
            return 0;
    return judge_liveness(pipeline);
}

#endif
