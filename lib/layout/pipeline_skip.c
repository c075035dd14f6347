/*
 * pipeline_skip.c - rounds of a simulation that need not be simulated
 *
 * A *round* is what all ranks did between an earlier time and now. Let each rank's list go on with
 * the steps of its round, `shift` micro-batches later, so many times. Then the next round is the
 * last one, later[r] later on rank r, if each step finds the same one of the two that it waits for
 * the later one: its rank (later by later[r]), or the stage that it reads from (whose ends are
 * `apart` from one round to the next). By induction all rounds that follow are alike. Where the two
 * do not grow by as much, it is the rank that must be the later one, and the rounds are as many as
 * it stays so.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "layout/pipeline_simulate_impl.h"

/* ---- an earlier time ---- */

static void open_skipping(struct simulation_skip *s, const struct simulation *sim)
{
    int n_ranks = sim->pipeline->spec.n_ranks;

    s->next = arena_array(s->arena, int, n_ranks);
    s->last_end = arena_array(s->arena, int64_t, n_ranks);
    s->later = arena_array(s->arena, int64_t, n_ranks);
    for (int what = 0; what < N_ENDS; what++) {
        s->n_done[what] = arena_array(s->arena, int, sim->n_stages);
        s->apart[what] = arena_array(s->arena, int64_t, sim->n_stages);
    }
    s->n_patience = 1;
}

static void take(struct simulation_skip *s, const struct simulation *sim)
{
    for (int rank = 0; rank < sim->pipeline->spec.n_ranks; rank++) {
        s->next[rank] = sim->next[rank];
        s->last_end[rank] = sim->ranks[rank].last_end;
    }
    for (int what = 0; what < N_ENDS; what++)
        memcpy(s->n_done[what], sim->n_done[what], sizeof(int) * (size_t)sim->n_stages);
    s->n_left = s->n_patience;
}

/* ---- is it a round? ---- */

/* Whether all ranks that have moved are where they were, shifted by a number of micro-batches.
 * Returns this number, or 0. */
static int find_shift(const struct simulation_skip *s, const struct simulation *sim)
{
    int shift = 0;

    for (int rank = 0; rank < sim->pipeline->spec.n_ranks; rank++) {
        const struct pipeline_list *list = &sim->pipeline->ranks[rank];
        const struct pipeline_step *now = &list->steps[sim->next[rank]];
        const struct pipeline_step *then = &list->steps[s->next[rank]];

        if (now == then)
            continue;
        if (sim->next[rank] == list->n_steps || now->kind != then->kind ||
            now->chunk != then->chunk || now->micro_batch <= then->micro_batch ||
            (shift && now->micro_batch - then->micro_batch != shift))
            return 0;
        shift = now->micro_batch - then->micro_batch;
    }
    return shift;
}

/* How much further each stage is: by a round, or not at all. */
static bool is_whole(const struct simulation_skip *s, const struct simulation *sim, int shift)
{
    for (int what = 0; what < N_ENDS; what++)
        for (int stage = 0; stage < sim->n_stages; stage++) {
            int more = sim->n_done[what][stage] - s->n_done[what][stage];

            if (more && more != shift)
                return false;
        }
    return true;
}

/* The stage that waits for this one's F, or I; -1: none. */
static int reader_of(const struct simulation *sim, int what, int stage)
{
    if (what == END_I)
        return stage - 1;
    return stage + 1 < sim->n_stages ? stage + 1 : -1;
}

/*
 * For how many rounds are the ends that a stage's reader finds as far apart as in the last one?
 * They have to be there, or will be by then; those that are there are looked at.
 */
static int64_t count_ends(struct simulation_skip *s, const struct simulation *sim, int what,
                          int stage, int shift)
{
    int reader = reader_of(sim, what, stage), n = sim->n_done[what][stage];

    if (reader < 0 || sim->n_done[what][reader] == s->n_done[what][reader])
        return INT64_MAX;
    int grows = n != s->n_done[what][stage];
    int m = s->n_done[what][reader] + shift, now = sim->n_done[what][reader];
    if (m >= n && !grows)
        return 0;
    int64_t apart =
        grows ? s->later[sim->rank_of[stage]]
              : simulation_end(sim, what, stage, m) - simulation_end(sim, what, stage, m - shift);
    s->apart[what][stage] = apart;
    for (; m < n; m++)
        if (simulation_end(sim, what, stage, m) - simulation_end(sim, what, stage, m - shift) !=
            apart)
            return max_i64(m - now, 0) / shift;
    return grows ? INT64_MAX : (n - now) / shift;
}

/* For how many rounds a rank that did nothing in the last one will do nothing. */
static int64_t count_waiting(const struct simulation_skip *s, const struct simulation *sim,
                             int rank, int shift)
{
    const struct pipeline_list *list = &sim->pipeline->ranks[rank];
    const struct pipeline_step *step = &list->steps[sim->next[rank]];

    if (sim->next[rank] == list->n_steps)
        return INT64_MAX;
    int source = simulation_source_of(sim, step, simulation_stage_of(sim, rank, step->chunk));
    if (source < 0)
        return 0;
    int what = simulation_end_kind(step), n = sim->n_done[what][source];
    if (n > step->micro_batch)
        return 0;
    return n == s->n_done[what][source] ? INT64_MAX : (step->micro_batch - n) / shift;
}

/* For how many rounds each step of the rank's last one waits for what it did then. */
static int64_t count_alike(const struct simulation_skip *s, const struct simulation *sim, int rank)
{
    const struct pipeline_list *list = &sim->pipeline->ranks[rank];
    int64_t n_rounds = INT64_MAX, free_at = s->last_end[rank], later = s->later[rank];

    for (int k = s->next[rank]; k < sim->next[rank]; k++) {
        const struct pipeline_step *step = &list->steps[k];
        int stage = simulation_stage_of(sim, rank, step->chunk);
        int source = simulation_source_of(sim, step, stage);
        int64_t apart = source < 0 ? later : s->apart[simulation_end_kind(step)][source];
        int64_t slack = free_at - simulation_ready_at(sim, rank, step, stage);

        if (apart != later && slack < 0)
            return 0;
        if (apart > later)
            n_rounds = min_i64(n_rounds, slack / (apart - later));
        free_at = sim->ranks[rank].starts[k] + simulation_cost_of(sim, step, stage);
    }
    return n_rounds;
}

/* How many rounds like the last one all ranks have before them. */
static int count_rounds(struct simulation_skip *s, const struct simulation *sim, int shift)
{
    int n_ranks = sim->pipeline->spec.n_ranks;
    int64_t n_rounds = sim->pipeline->spec.n_micro_batches / shift;

    if (!is_whole(s, sim, shift))
        return 0;
    for (int rank = 0; rank < n_ranks; rank++)
        s->later[rank] = sim->ranks[rank].last_end - s->last_end[rank];
    for (int what = 0; what < N_ENDS; what++)
        for (int stage = 0; stage < sim->n_stages && n_rounds > 0; stage++)
            n_rounds = min_i64(n_rounds, count_ends(s, sim, what, stage, shift));
    for (int rank = 0; rank < n_ranks && n_rounds > 0; rank++) {
        int is_waiting = sim->next[rank] == s->next[rank];

        n_rounds = min_i64(n_rounds, is_waiting ? count_waiting(s, sim, rank, shift)
                                                : count_alike(s, sim, rank));
    }
    for (int rank = 0; rank < n_ranks && n_rounds > 0; rank++) {
        int n = sim->next[rank] - s->next[rank];

        if (n)
            n_rounds = list_count_rounds(&sim->pipeline->ranks[rank], sim->next[rank], n, shift,
                                         (int)n_rounds);
    }
    return (int)n_rounds;
}

/* ---- then put them further on ---- */

static void add_stretch(struct simulation_skip *s, struct simulation *sim, int shift, int n_rounds)
{
    struct pipeline_stretch *stretch = arena_new(s->arena, struct pipeline_stretch);
    size_t n_ranks = (size_t)sim->pipeline->spec.n_ranks;
    int *begin = arena_array(s->arena, int, n_ranks), *n = arena_array(s->arena, int, n_ranks);
    int64_t *later = arena_array(s->arena, int64_t, n_ranks);

    memcpy(begin, s->next, n_ranks * sizeof *begin);
    memcpy(later, s->later, n_ranks * sizeof *later);
    for (size_t rank = 0; rank < n_ranks; rank++)
        n[rank] = sim->next[rank] - s->next[rank];
    *stretch = (struct pipeline_stretch){ shift, 1 + n_rounds, begin, n, later, NULL };
    if (sim->last)
        *sim->last = stretch;
    else
        sim->stretches = stretch;
    sim->last = &stretch->next;
}

static void move_rank(const struct simulation_skip *s, struct simulation *sim, int rank,
                      int n_rounds)
{
    const struct pipeline_list *list = &sim->pipeline->ranks[rank];
    struct pipeline_rank_timing *timing = &sim->ranks[rank];
    int from = sim->next[rank], n = from - s->next[rank];
    int64_t later = s->later[rank];

    for (int k = s->next[rank]; k < from; k++) {
        int stage = simulation_stage_of(sim, rank, list->steps[k].chunk);

        timing->busy += n_rounds * simulation_cost_of(sim, &list->steps[k], stage);
    }
    for (int k = from; k < from + n * n_rounds; k++)
        timing->starts[k] = timing->starts[k - n] + later;
    timing->last_end += n_rounds * later;
    sim->next[rank] += n * n_rounds;
}

/* The ends that the reader will ask for are known from those of the last round. */
static void move_stage(const struct simulation_skip *s, struct simulation *sim, int what, int stage,
                       int shift, const int *n_read, int n_rounds)
{
    int first = s->n_done[what][stage], n = sim->n_done[what][stage];
    int reader = reader_of(sim, what, stage), end = n + n_rounds * shift;

    if (n == first)
        return;
    for (int m = reader < 0 ? end : max_int(n, n_read[reader]); m < end; m++) {
        int before = first + (m - first) % shift;
        int64_t later = (m - before) / shift * s->later[sim->rank_of[stage]];

        simulation_set_end(sim, what, stage, m, simulation_end(sim, what, stage, before) + later);
    }
    sim->n_done[what][stage] = end;
}

static void go_on(struct simulation_skip *s, struct simulation *sim, int shift, int n_rounds)
{
    struct arena scratch = { 0 };
    int *n_read = arena_array(&scratch, int, sim->n_stages);

    add_stretch(s, sim, shift, n_rounds);
    for (int rank = 0; rank < sim->pipeline->spec.n_ranks; rank++)
        if (sim->next[rank] != s->next[rank])
            move_rank(s, sim, rank, n_rounds);
    for (int what = 0; what < N_ENDS; what++) {
        for (int stage = 0; stage < sim->n_stages; stage++) {
            int n = sim->n_done[what][stage];

            n_read[stage] = n + (n == s->n_done[what][stage] ? 0 : n_rounds * shift);
        }
        for (int stage = 0; stage < sim->n_stages; stage++)
            move_stage(s, sim, what, stage, shift, n_read, n_rounds);
    }
    arena_release(&scratch);
}

void simulation_skip_rounds(struct simulation *sim, struct simulation_skip *s)
{
    if (!s->next) {
        open_skipping(s, sim);
        take(s, sim);
        return;
    }
    int shift = find_shift(s, sim), n_rounds = shift ? count_rounds(s, sim, shift) : 0;
    if (n_rounds > 0) {
        go_on(s, sim, shift, n_rounds);
        s->n_patience = 1;
        take(s, sim);
    } else if (--s->n_left <= 0) {
        /* Brent's way: whatever period there is, in the end the distance to `then` is one. */
        s->n_patience *= 2;
        take(s, sim);
    }
}
