/*
 * trainer_trace.c - steps of which each rank keeps when its ops began and ended
 */
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "train/step_trace.h"
#include "train/trainer_impl.h"

#define N_PINGS 16

static bool has(const struct job_counts *list, int64_t value)
{
    for (int i = 0; i < list->n; i++)
        if (list->values[i] == value)
            return true;
    return false;
}

/* Whether the next step is traced, by some rank. */
static bool is_traced(const struct trainer *t)
{
    return has(&t->job->trace.steps, t->step + 1);
}

static bool is_traced_here(const struct trainer *t)
{
    return is_traced(t) && (!t->job->trace.ranks.n || has(&t->job->trace.ranks, t->world_rank));
}

/*
 * How rank 0's clock differs: all agree on the largest of what each says, which is what rank 0
 * says, its clock. That was read between the two readings here, so the shortest exchange is the
 * best.
 */
static int compare_clocks(struct trainer *t, int64_t *offset_ns, int64_t *error_ns, struct err *err)
{
    *offset_ns = 0;
    *error_ns = INT64_MAX;
    for (int i = 0; i < N_PINGS && t->world_size > 1; i++) {
        double begin = clock_seconds();
        int64_t first = t->world_rank == 0 ? (int64_t)(begin * 1e9) : INT64_MIN;

        if (trainer_agree(t, &first, err) < 0)
            return -1;
        double end = clock_seconds();
        int64_t half = (int64_t)((end - begin) * 1e9 / 2);
        if (half >= *error_ns)
            continue;
        *error_ns = half;
        *offset_ns = first - (int64_t)(begin * 1e9) - half;
    }
    /* Ranks of a machine have one clock. */
    if (t->world_rank == 0 || t->world_size == 1)
        *offset_ns = *error_ns = 0;
    return 0;
}

int trainer_begin_trace(struct trainer *t, struct err *err)
{
    if (!is_traced(t))
        return 0;
    if (compare_clocks(t, &t->trace_offset_ns, &t->trace_error_ns, err) < 0)
        return -1;
    if (!is_traced_here(t))
        return 0;
    run_trace_open(&t->trace, &t->program, ENTRY_STEP, &t->trace_arena);
    run_set_trace(t->run, &t->trace);
    return 0;
}

void trainer_end_trace(struct trainer *t)
{
    struct step_trace trace = { .step = t->step + 1,
                                .rank = t->world_rank,
                                .world_size = t->world_size,
                                .n = t->trace.n,
                                .records = t->trace.records,
                                .offset_ns = t->trace_offset_ns,
                                .error_ns = t->trace_error_ns };
    struct err err;

    if (!is_traced_here(t))
        return;
    run_set_trace(t->run, NULL);
    if (step_trace_write(&trace, t->job->output, &err))
        log_warn("%s: step %lld has no trace of this rank", err.text, (long long)trace.step);
    arena_release(&t->trace_arena);
}
