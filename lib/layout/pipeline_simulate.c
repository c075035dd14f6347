/*
 * pipeline_simulate.c - lists are checked, counted and simulated
 *
 * All functions here accept any list, not only those of the kinds above: a list written by hand is
 * checked by the same rules.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "layout/pipeline_simulate_impl.h"

/* ---- one rank's list ---- */

/* How far a chunk is: F's, I's (or B's) and W's (or B's) done. Orders are increasing, so each is
 * also the micro-batch that has to come next, and alive is what lies between two of them. */
struct progress {
    int f, i, w;
};

static const char *const kind_names[N_STEP_KINDS] = { "F", "B", "I", "W" };

const char *step_text(char *buffer, size_t size, const struct pipeline_spec *spec,
                      const struct pipeline_step *step)
{
    const char *kind = (unsigned)step->kind < N_STEP_KINDS ? kind_names[step->kind] : "?";

    if (spec->n_chunks > 1)
        snprintf(buffer, size, "%s%d.%d", kind, step->micro_batch, step->chunk);
    else
        snprintf(buffer, size, "%s%d", kind, step->micro_batch);
    return buffer;
}

static int refuse(const struct pipeline *pipeline, int rank, int index, struct err *err,
                  const char *why, int value)
{
    char name[64];

    step_text(name, sizeof name, &pipeline->spec, &pipeline->ranks[rank].steps[index]);
    return err_set(err, ERR_FAILED, "rank %d, step %d (%s): %s %d", rank, index, name, why, value);
}

/* The step moves its chunk on. A B is an I whose W comes with it, so no W may be owed before it. */
static void advance(struct progress *at, enum pipeline_step_kind kind)
{
    at->f += kind == STEP_F;
    at->i += kind == STEP_I || kind == STEP_B;
    at->w += kind == STEP_W || kind == STEP_B;
}

/* Is the step the next of its kind, and what it needs from its own chunk before it in the list? */
static int check_step(const struct pipeline *pipeline, struct progress *chunks, int rank, int index,
                      struct err *err)
{
    const struct pipeline_step *step = &pipeline->ranks[rank].steps[index];
    const struct pipeline_spec *spec = &pipeline->spec;
    struct progress *at;
    int next;

    if ((unsigned)step->kind >= N_STEP_KINDS)
        return refuse(pipeline, rank, index, err, "no such kind of step:", (int)step->kind);
    if (step->chunk < 0 || step->chunk >= spec->n_chunks)
        return refuse(pipeline, rank, index, err, "chunk is not below", spec->n_chunks);
    if (step->micro_batch < 0 || step->micro_batch >= spec->n_micro_batches)
        return refuse(pipeline, rank, index, err, "micro-batch is not below",
                      spec->n_micro_batches);
    at = &chunks[step->chunk];
    next = step->kind == STEP_F ? at->f : step->kind == STEP_W ? at->w : at->i;
    if (step->micro_batch != next)
        return refuse(pipeline, rank, index, err,
                      "out of order, the next of this kind in its chunk is micro-batch", next);
    if ((step->kind == STEP_B || step->kind == STEP_I) && next >= at->f)
        return refuse(pipeline, rank, index, err, "comes before F of micro-batch", next);
    if (step->kind == STEP_W && next >= at->i)
        return refuse(pipeline, rank, index, err, "comes before I of micro-batch", next);
    if (step->kind == STEP_B && at->w < at->i)
        return refuse(pipeline, rank, index, err,
                      "adds to the weights' gradients before W of "
                      "micro-batch",
                      at->w);
    advance(at, step->kind);
    return 0;
}

static int check_steps(const struct pipeline *pipeline, struct progress *chunks, int rank, int from,
                       int to, struct err *err)
{
    for (int k = from; k < to; k++)
        if (check_step(pipeline, chunks, rank, k, err))
            return -1;
    return 0;
}

/* Has each kind of step in each chunk been done for as many micro-batches as the round is later by,
 * or for none? */
static bool is_whole_round(const struct progress *now, const struct progress *then, int n_chunks,
                           int shift)
{
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        int f = now[chunk].f - then[chunk].f, i = now[chunk].i - then[chunk].i;
        int w = now[chunk].w - then[chunk].w;

        if ((f && f != shift) || (i && i != shift) || (w && w != shift))
            return false;
    }
    return true;
}

/* The state `now` advanced by a number of rounds, one of which led from `then` to `now`. */
static void skip_rounds(struct progress *now, const struct progress *then, int n_chunks,
                        int n_rounds)
{
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        now[chunk].f += (now[chunk].f - then[chunk].f) * n_rounds;
        now[chunk].i += (now[chunk].i - then[chunk].i) * n_rounds;
        now[chunk].w += (now[chunk].w - then[chunk].w) * n_rounds;
    }
}

/*
 * Ahead of the second of these rounds. In a whole round each step is the next of its kind if that
 * of the round before was; what else is asked of it compares counts that each grow by as much in
 * every round: so if the first and the last have it, all in between do. Returns the step to go on
 * with: behind the rounds, or, where one of them is refused, the second, to find which.
 */
static int check_rounds(const struct pipeline *pipeline, struct progress *chunks,
                        const struct progress *then, int rank, const struct list_rounds *rounds)
{
    int n_chunks = pipeline->spec.n_chunks, end = rounds->begin + rounds->n * rounds->n_times;
    size_t n_bytes = sizeof(struct progress) * (size_t)n_chunks;
    struct progress kept[PIPELINE_CHUNKS_MAX];
    struct err err;

    memcpy(kept, chunks, n_bytes);
    if (is_whole_round(chunks, then, n_chunks, rounds->shift)) {
        skip_rounds(chunks, then, n_chunks, rounds->n_times - 2);
        if (!check_steps(pipeline, chunks, rank, end - rounds->n, end, &err))
            return end;
    }
    memcpy(chunks, kept, n_bytes);
    return rounds->begin + rounds->n;
}

static int check_all_steps(const struct pipeline *pipeline, struct progress *chunks, int rank,
                           struct err *err)
{
    const struct pipeline_list *list = &pipeline->ranks[rank];
    struct progress then[PIPELINE_CHUNKS_MAX];
    struct list_rounds rounds = { 0 };

    for (int k = 0; k < list->n_steps;) {
        list_next_rounds(list, k, &rounds);
        if (check_steps(pipeline, chunks, rank, k, rounds.begin, err))
            return -1;
        memcpy(then, chunks, sizeof *then * (size_t)pipeline->spec.n_chunks);
        k = rounds.begin + rounds.n;
        if (check_steps(pipeline, chunks, rank, rounds.begin, k, err))
            return -1;
        if (rounds.n_times > 2)
            k = check_rounds(pipeline, chunks, then, rank, &rounds);
        if (k == rounds.begin + rounds.n && rounds.n_times > 1) {
            int end = rounds.begin + rounds.n * rounds.n_times;

            if (check_steps(pipeline, chunks, rank, k, end, err))
                return -1;
            k = end;
        }
    }
    return 0;
}

static int check_list(const struct pipeline *pipeline, int rank, struct err *err)
{
    const struct pipeline_spec *spec = &pipeline->spec;
    struct progress chunks[PIPELINE_CHUNKS_MAX] = { 0 };
    int n = spec->n_micro_batches;

    CHECK(spec->n_chunks <= PIPELINE_CHUNKS_MAX);
    if (check_all_steps(pipeline, chunks, rank, err))
        return -1;
    for (int chunk = 0; chunk < spec->n_chunks; chunk++) {
        const struct progress *at = &chunks[chunk];

        if (at->w < n) /* and so, perhaps, I and F */
            return err_set(
                err, ERR_FAILED,
                "rank %d, step %d (the end of its list): chunk %d has done F of %d, I of "
                "%d and W of %d micro-batches, not of all %d",
                rank, pipeline->ranks[rank].n_steps, chunk, at->f, at->i, at->w, n);
    }
    return 0;
}

/* Alive is a difference of counts, so several chunks may be added up. No step takes a slot of the
 * class that it frees, hence looking after each step is enough. */
static void count_steps(const struct pipeline_list *list, int only_chunk, int from, int to,
                        struct progress *at, struct pipeline_slots *most)
{
    for (int k = from; k < to; k++) {
        if (only_chunk >= 0 && list->steps[k].chunk != only_chunk)
            continue;
        advance(at, list->steps[k].kind);
        most->f_to_i = max_int(most->f_to_i, at->f - at->i);
        most->f_to_w = max_int(most->f_to_w, at->f - at->w);
        most->i_to_w = max_int(most->i_to_w, at->i - at->w);
    }
}

/* Differences grow by as much in every round: they are largest in the first or in the last. */
static struct pipeline_slots count_slots(const struct pipeline *pipeline, int rank, int only_chunk)
{
    const struct pipeline_list *list = &pipeline->ranks[rank];
    struct pipeline_slots most = { 0, 0, 0 };
    struct progress at = { 0, 0, 0 };
    struct list_rounds rounds = { 0 };

    for (int k = 0; k < list->n_steps;) {
        list_next_rounds(list, k, &rounds);
        count_steps(list, only_chunk, k, rounds.begin, &at, &most);
        struct progress then = at;
        k = rounds.begin + rounds.n * rounds.n_times;
        count_steps(list, only_chunk, rounds.begin, rounds.begin + rounds.n, &at, &most);
        if (!rounds.n)
            continue;
        skip_rounds(&at, &then, 1, rounds.n_times - 2);
        count_steps(list, only_chunk, k - rounds.n, k, &at, &most);
    }
    return most;
}

struct pipeline_slots pipeline_slots(const struct pipeline *pipeline, int rank, int chunk)
{
    CHECK(chunk >= 0 && chunk < pipeline->spec.n_chunks);
    CHECK(rank >= 0 && rank < pipeline->spec.n_ranks);
    return count_slots(pipeline, rank, chunk);
}

struct pipeline_slots pipeline_peak(const struct pipeline *pipeline, int rank)
{
    CHECK(rank >= 0 && rank < pipeline->spec.n_ranks);
    return count_slots(pipeline, rank, -1);
}

/* ---- all ranks together ---- */

int simulation_source_of(const struct simulation *sim, const struct pipeline_step *step, int stage)
{
    if (step->kind == STEP_F)
        return stage - 1;
    if (step->kind == STEP_W || stage + 1 == sim->n_stages)
        return -1;
    return stage + 1;
}

int64_t simulation_cost_of(const struct simulation *sim, const struct pipeline_step *step,
                           int stage)
{
    int64_t cost = 0;
    int at = simulation_kind_of(sim, step->micro_batch) * sim->n_stages + stage;

    if (step->kind == STEP_F)
        cost += sim->costs->f[at];
    if (step->kind == STEP_I || step->kind == STEP_B)
        cost += sim->costs->i[at];
    if (step->kind == STEP_W || step->kind == STEP_B)
        cost += sim->costs->w[at];
    return cost * simulation_size_of(sim, step->micro_batch);
}

/* When what the step needs from another stage is there; 0 if it needs nothing, -1: not yet
 * known. */
int64_t simulation_ready_at(const struct simulation *sim, int rank,
                            const struct pipeline_step *step, int stage)
{
    int source = simulation_source_of(sim, step, stage);

    if (source < 0)
        return 0;
    int64_t end = simulation_end(sim, simulation_end_kind(step), source, step->micro_batch);
    if (end >= 0 && sim->rank_of[source] != rank)
        end += simulation_transfer_of(sim, step->micro_batch);
    return end;
}

/* Run the rank's next step. 0 if what it needs is not there yet. */
static int run_step(struct simulation *sim, int rank)
{
    const struct pipeline_step *step = &sim->pipeline->ranks[rank].steps[sim->next[rank]];
    struct pipeline_rank_timing *timing = &sim->ranks[rank];
    int stage = simulation_stage_of(sim, rank, step->chunk);
    int64_t ready = simulation_ready_at(sim, rank, step, stage);

    if (ready < 0)
        return 0;
    int64_t start = max_i64(timing->last_end, ready);
    int64_t cost = simulation_cost_of(sim, step, stage);
    if (step->kind != STEP_W)
        simulation_set_end(sim, simulation_end_kind(step), stage, step->micro_batch, start + cost);
    if (sim->next[rank] == 0)
        timing->first_start = start;
    timing->starts[sim->next[rank]++] = start;
    timing->last_end = start + cost;
    timing->busy += cost;
    return 1;
}

/* The message of a deadlock: the first few ranks and what they wait for. */
static int report_stuck(const struct simulation *sim, struct err *err)
{
    const struct pipeline_spec *spec = &sim->pipeline->spec;
    int n_named = 0;

    err_set(err, ERR_FAILED, "the schedule deadlocks");
    for (int rank = 0; rank < spec->n_ranks && n_named < 8; rank++) {
        const struct pipeline_list *list = &sim->pipeline->ranks[rank];
        const struct pipeline_step *step = &list->steps[sim->next[rank]];
        int stage, source;
        char name[64], before[sizeof err->text];

        if (sim->next[rank] == list->n_steps)
            continue;
        stage = pipeline_stage_of(spec, rank, step->chunk);
        source = simulation_source_of(sim, step, stage);
        snprintf(before, sizeof before, "%s", err->text);
        err_set(
            err, ERR_FAILED, "%.1700s%s rank %d, step %d (%s), waits for %s of stage %d on rank %d",
            before, n_named++ ? ";" : ":", rank, sim->next[rank],
            step_text(name, sizeof name, spec, step), step->kind == STEP_F ? "F" : "the backward",
            source, pipeline_rank_of(spec, source));
    }
    return -1;
}

/* Each rank in turn runs a step if it can, until none can: all ranks advance at one pace, so that
 * the state repeats soon. */
static int run_all(struct simulation *sim, struct arena *arena, struct err *err)
{
    int n_ranks = sim->pipeline->spec.n_ranks, progress = 1, done = 0;
    struct simulation_skip skipping = { .arena = arena };

    while (progress) {
        progress = 0;
        done = 1;
        if (!sim->costs->sizes && !sim->costs->kinds)
            simulation_skip_rounds(sim, &skipping);
        for (int rank = 0; rank < n_ranks; rank++) {
            if (sim->next[rank] == sim->pipeline->ranks[rank].n_steps)
                continue;
            progress |= run_step(sim, rank);
            done = 0;
        }
    }
    return done ? 0 : report_stuck(sim, err);
}

static void summarise(struct pipeline_timing *timing, const struct simulation *sim)
{
    int64_t busiest = 0;

    *timing = (struct pipeline_timing){ .ranks = sim->ranks, .stretches = sim->stretches };
    for (int rank = 0; rank < sim->pipeline->spec.n_ranks; rank++) {
        struct pipeline_rank_timing *at = &sim->ranks[rank];

        at->peak = pipeline_peak(sim->pipeline, rank);
        timing->makespan = max_i64(timing->makespan, at->last_end);
        timing->span = max_i64(timing->span, at->last_end - at->first_start);
        busiest = max_i64(busiest, at->busy);
    }
    timing->bubble = timing->span - busiest;
}

int pipeline_simulate(struct pipeline_timing *timing, const struct pipeline *pipeline,
                      const struct pipeline_costs *costs, struct arena *arena, struct err *err)
{
    const struct pipeline_spec *spec = &pipeline->spec;
    struct simulation sim = { .pipeline = pipeline,
                              .costs = costs,
                              .n_stages = pipeline_n_stages(spec) };
    int64_t n_ends = (int64_t)sim.n_stages * spec->n_micro_batches;

    for (int rank = 0; rank < spec->n_ranks && !pipeline->starts; rank++)
        if (check_list(pipeline, rank, err))
            return -1;
    for (int what = 0; what < N_ENDS; what++) {
        sim.ends[what] = arena_array(arena, int64_t, n_ends);
        sim.n_done[what] = arena_array(arena, int, sim.n_stages);
    }
    sim.rank_of = arena_array(arena, int, sim.n_stages);
    sim.stages = arena_array(arena, int, sim.n_stages);
    for (int stage = 0; stage < sim.n_stages; stage++) {
        int rank = pipeline_rank_of(spec, stage);

        sim.rank_of[stage] = rank;
        sim.stages[rank * spec->n_chunks + pipeline_chunk_of(spec, stage)] = stage;
    }
    sim.next = arena_array(arena, int, spec->n_ranks);
    sim.ranks = arena_array(arena, struct pipeline_rank_timing, spec->n_ranks);
    for (int rank = 0; rank < spec->n_ranks; rank++)
        sim.ranks[rank].starts = arena_array(arena, int64_t, pipeline->ranks[rank].n_steps);
    if (run_all(&sim, arena, err))
        return -1;
    summarise(timing, &sim);
    return 0;
}

int pipeline_verify(const struct pipeline *pipeline, struct arena *scratch, struct err *err)
{
    int64_t *zeros = arena_array(scratch, int64_t, pipeline_n_stages(&pipeline->spec));
    struct pipeline_costs costs = { .f = zeros, .i = zeros, .w = zeros };
    struct pipeline_timing timing;

    return pipeline_simulate(&timing, pipeline, &costs, scratch, err);
}

int simulate_units(struct pipeline_timing *timing, const struct pipeline *pipeline,
                   struct arena *arena, struct err *err)
{
    int n_stages = pipeline_n_stages(&pipeline->spec);
    int64_t *ones = arena_array(arena, int64_t, n_stages);
    struct pipeline_costs costs = {
        .f = ones, .i = ones, .w = ones, .sizes = pipeline->spec.sizes
    };

    for (int stage = 0; stage < n_stages; stage++)
        ones[stage] = 1;
    return pipeline_simulate(timing, pipeline, &costs, arena, err);
}

int pipeline_time(struct pipeline *pipeline, struct arena *arena, struct err *err)
{
    int n_ranks = pipeline->spec.n_ranks;
    struct pipeline_timing timing;
    const int64_t **starts = arena_array(arena, const int64_t *, n_ranks);

    if (simulate_units(&timing, pipeline, arena, err))
        return -1;
    for (int rank = 0; rank < n_ranks; rank++)
        starts[rank] = timing.ranks[rank].starts;
    pipeline->starts = starts;
    pipeline->stretches = timing.stretches;
    return 0;
}

/* On to the rank's next step that is walked. */
static void find_next(struct pipeline_walk *walk, int i)
{
    const struct pipeline *pipeline = walk->pipeline;
    const struct pipeline_list *list = &pipeline->ranks[walk->ranks[i]];
    int step = walk->next[i];

    while (step < list->n_steps &&
           !walk->is_walked[i][list->steps[step].kind][list->steps[step].chunk])
        step++;
    walk->next[i] = step;
    walk->starts[i] = step == list->n_steps ? INT64_MAX : pipeline->starts[walk->ranks[i]][step];
}

/* The walked rank's start of a step, or INT64_MAX behind its last one. */
static int64_t start_of(const struct pipeline_walk *walk, int i, int step)
{
    const struct pipeline *pipeline = walk->pipeline;
    int rank = walk->ranks[i];

    return step < pipeline->ranks[rank].n_steps ? pipeline->starts[rank][step] : INT64_MAX;
}

int64_t pipeline_walk_time(const struct pipeline_walk *walk)
{
    int64_t earliest = INT64_MAX;

    for (int i = 0; i < walk->n_ranks; i++)
        earliest = min_i64(earliest, walk->starts[i]);
    return earliest;
}

int pipeline_walk_rounds(const struct pipeline_walk *walk, const struct pipeline_stretch *stretch,
                         int64_t *begin, int64_t *length)
{
    int64_t end = INT64_MAX;

    *begin = *length = 0;
    for (int i = 0; i < walk->n_ranks; i++) {
        int rank = walk->ranks[i], n = stretch->n[rank], first = stretch->begin[rank];

        end = min_i64(end, start_of(walk, i, first + n * stretch->n_times));
        if (n && *length && stretch->later[rank] != *length)
            return 0;
        if (n) {
            *begin = max_i64(*begin, start_of(walk, i, first));
            *length = stretch->later[rank];
        } else if (first) {
            *begin = max_i64(*begin, start_of(walk, i, first - 1) + 1);
        }
    }
    if (!*length || end <= *begin)
        return 0;
    return (int)min_i64((end - *begin) / *length, stretch->n_times);
}

void pipeline_walk_skip(struct pipeline_walk *walk, const struct pipeline_stretch *stretch,
                        int n_rounds)
{
    for (int i = 0; i < walk->n_ranks; i++) {
        int rank = walk->ranks[i], n = stretch->n[rank];

        if (walk->next[i] >= stretch->begin[rank] + n * stretch->n_times)
            continue;
        walk->next[i] += n * n_rounds;
        find_next(walk, i);
    }
}

/* No step takes no time, so a rank has one at most that starts at any time. */
int pipeline_walk_next(struct pipeline_walk *walk, struct pipeline_place *place)
{
    int64_t earliest = INT64_MAX;
    int found = -1;

    for (int i = 0; i < walk->n_ranks; i++) {
        if (walk->starts[i] >= earliest)
            continue;
        earliest = walk->starts[i];
        found = i;
    }
    if (found < 0)
        return 0;
    *place = (struct pipeline_place){ walk->ranks[found], walk->next[found]++ };
    find_next(walk, found);
    return 1;
}

/* All of the rank's own steps; of another's those whose results it gets. */
static void add_rank(struct pipeline_walk *walk, int rank, int own)
{
    const struct pipeline_spec *spec = &walk->pipeline->spec;
    int i = walk->n_ranks++;

    walk->ranks[i] = rank;
    for (int kind = 0; kind < N_STEP_KINDS; kind++)
        for (int chunk = 0; chunk < spec->n_chunks; chunk++) {
            int to = pipeline_target_of(spec, rank, (enum pipeline_step_kind)kind, chunk);

            walk->is_walked[i][kind][chunk] =
                rank == own || (to >= 0 && pipeline_rank_of(spec, to) == own);
        }
    find_next(walk, i);
}

struct pipeline_walk pipeline_walk_neighbours(const struct pipeline *pipeline, int rank)
{
    struct pipeline_walk walk = { .pipeline = pipeline };
    int n = pipeline->spec.n_ranks, before = (rank + n - 1) % n, after = (rank + 1) % n;

    CHECK(pipeline->starts);
    for (int i = 0; i < n; i++)
        if (i == rank || i == before || i == after)
            add_rank(&walk, i, rank);
    return walk;
}
