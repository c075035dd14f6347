/*
 * pipeline_interleaved.c - interleaved 1F1B, and the grouping of dynamic
 *
 * Narayanan et al. 2021, section 2.2 and figure 4. Forwards and backwards each have an order over
 * (chunk, micro-batch), the same on all ranks; a rank warms up with as many forwards as are needed
 * until its first backward is ready, then alternates.
 *
 * Why groups of at least p, and why cut evenly. Let entry k be the k-th forward or backward of a
 * rank. On rank 0, backward b comes after forward 2(p-1) + (v-1)g + b, which (beyond chunk 0) needs
 * the forward q entries before it on rank p-1, q being its group's size; there it comes after
 * backward b + 2p-3 - q, which needs a backward q' entries before that on rank 0. So b waits for b
 * + 2p-3 - q - q', which has to be less than b: groups of p are enough, and a short rest (Megatron
 * refuses one below p) could wait for itself. And on rank p-1 a backward of the last chunk needs
 * (v-1)q <= (v-1)g, so the warm-up counts with the largest group.
 */
#include "base/num.h"
#include "layout/pipeline_impl.h"

static int n_groups(const struct pipeline_spec *spec)
{
    int least = spec->group ? spec->group : spec->n_ranks;

    return max_int(spec->n_micro_batches / least, 1);
}

int largest_group(const struct pipeline_spec *spec)
{
    return (int)ceil_div(spec->n_micro_batches, n_groups(spec));
}

/* Walks the order over (chunk, micro-batch): group by group, chunk by chunk, one by one. */
struct cursor {
    int n_chunks, n_groups, n_micro_batches;
    int group, chunk, in_group; /* chunk counts from the first in this direction */
};

static int group_size(const struct cursor *cursor)
{
    int larger = cursor->n_micro_batches % cursor->n_groups;

    return cursor->n_micro_batches / cursor->n_groups + (cursor->group < larger);
}

/* The chunk of this entry; the cursor moves on. */
static int cursor_next(struct cursor *cursor)
{
    int chunk = cursor->chunk;

    if (++cursor->in_group == group_size(cursor)) {
        cursor->in_group = 0;
        if (++cursor->chunk == cursor->n_chunks) {
            cursor->chunk = 0;
            cursor->group++;
        }
    }
    return chunk;
}

void write_interleaved(struct list_writer *writer, const struct pipeline_spec *spec, int rank)
{
    int n = spec->n_micro_batches * spec->n_chunks, last = spec->n_chunks - 1;
    int warmup = 2 * (spec->n_ranks - 1 - rank) + last * largest_group(spec);
    struct cursor forward = { .n_chunks = spec->n_chunks,
                              .n_groups = n_groups(spec),
                              .n_micro_batches = spec->n_micro_batches };
    struct cursor backward = forward;

    if (spec->n_chunks == 1) {
        write_1f1b(writer, spec, rank);
        return;
    }
    warmup = min_int(warmup, n);
    for (int k = 0; k < warmup; k++)
        write_step(writer, STEP_F, cursor_next(&forward));
    for (int k = warmup; k < n; k++) {
        write_step(writer, STEP_F, cursor_next(&forward));
        write_step(writer, STEP_B, last - cursor_next(&backward));
    }
    for (int k = 0; k < warmup; k++)
        write_step(writer, STEP_B, last - cursor_next(&backward));
}

static int64_t time_of(const struct pipeline_spec *spec, struct arena *arena)
{
    struct pipeline_timing timing;
    struct pipeline pipeline;
    struct err err;

    build_lists(&pipeline, spec, arena);
    CHECK(simulate_units(&timing, &pipeline, arena, &err) == 0);
    return timing.makespan;
}

int choose_group(const struct pipeline_spec *spec)
{
    int largest = min_int(4 * spec->n_ranks, spec->n_micro_batches), best = 0, tried = 0;
    int64_t best_time = INT64_MAX;

    for (int group = spec->n_ranks; group <= max_int(largest, spec->n_ranks); group++) {
        struct pipeline_spec candidate = *spec;
        struct arena scratch = { 0 };
        int64_t time;

        candidate.group = group;
        if (n_groups(&candidate) == tried)
            continue;
        tried = n_groups(&candidate);
        time = time_of(&candidate, &scratch);
        arena_release(&scratch);
        if (time < best_time) {
            best_time = time;
            best = group;
        }
    }
    return best;
}
