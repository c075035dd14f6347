/*
 * pipeline.c - which pipelines are possible, the stages of their ranks, and the functions that
 * write their lists
 */
#include "layout/pipeline.h"

#include <string.h>

#include "base/num.h"
#include "layout/pipeline_impl.h"

const struct choice pipeline_choices[] = { { "gpipe", PIPELINE_GPIPE },
                                           { "1f1b", PIPELINE_1F1B },
                                           { "interleaved", PIPELINE_INTERLEAVED },
                                           { "breadth-first", PIPELINE_BREADTH_FIRST },
                                           { "zb-h1", PIPELINE_ZB_H1 },
                                           { "zb-h2", PIPELINE_ZB_H2 },
                                           { "zb-v", PIPELINE_ZB_V },
                                           { "dynamic", PIPELINE_DYNAMIC },
                                           { 0 } };

/* One row per kind: the numbers of chunks that it allows, and the function that writes its
 * lists. */
static const struct schedule_family {
    int least_chunks, most_chunks;
    const char *instead; /* for other numbers of chunks */
    void (*write)(struct list_writer *writer, const struct pipeline_spec *spec, int rank);
} families[N_PIPELINE_KINDS] = {
    [PIPELINE_GPIPE] = { 1, 1, "schedule breadth-first", write_gpipe },
    [PIPELINE_1F1B] = { 1, 1, "schedule interleaved", write_1f1b },
    [PIPELINE_INTERLEAVED] = { 1, PIPELINE_CHUNKS_MAX, NULL, write_interleaved },
    [PIPELINE_BREADTH_FIRST] = { 1, PIPELINE_CHUNKS_MAX, NULL, write_breadth_first },
    [PIPELINE_ZB_H1] = { 1, 1, "schedule zb-v with 2 chunks", write_zb_h1 },
    [PIPELINE_ZB_H2] = { 1, 1, "schedule zb-v with 2 chunks", write_zb_h2 },
    [PIPELINE_ZB_V] = { 2, 2, "schedule interleaved", write_zb_v },
    [PIPELINE_DYNAMIC] = { 1, PIPELINE_CHUNKS_MAX, NULL, write_interleaved },
};

const char *pipeline_name(enum pipeline_kind kind)
{
    return choice_word(pipeline_choices, (int)kind);
}

/* ---- what can be ---- */

static int check_range(const char *what, int value, int most, struct err *err)
{
    if (value >= 1 && value <= most)
        return 0;
    return err_set(err, ERR_CONFIG, "a pipeline of %d %s: 1 to %d are allowed (hint: %d)", value,
                   what, most, value < 1 ? 1 : most);
}

static int check_chunks(const struct pipeline_spec *spec, struct err *err)
{
    const struct schedule_family *family = &families[spec->kind];
    int n = spec->n_chunks;

    if (check_range("chunks per rank", n, PIPELINE_CHUNKS_MAX, err))
        return -1;
    if (n >= family->least_chunks && n <= family->most_chunks)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "schedule %s runs %d chunk%s on each rank, not %d (hint: %d chunk%s, or %s)",
                   pipeline_name(spec->kind), family->least_chunks,
                   family->least_chunks > 1 ? "s" : "", n, family->least_chunks,
                   family->least_chunks > 1 ? "s" : "",
                   n > 1 ? family->instead : "schedule 1f1b, zb-h1 or zb-h2");
}

static int check_group(const struct pipeline_spec *spec, struct err *err)
{
    int grouped = spec->kind == PIPELINE_INTERLEAVED || spec->kind == PIPELINE_DYNAMIC;

    if (spec->group == 0)
        return 0;
    if (!grouped)
        return err_set(err, ERR_CONFIG,
                       "schedule %s has no groups of micro-batches, but group is %d "
                       "(hint: leave it out, or use schedule interleaved)",
                       pipeline_name(spec->kind), spec->group);
    if (spec->group >= spec->n_ranks)
        return 0;
    return err_set(
        err, ERR_CONFIG,
        "groups of %d micro-batches leave ranks of a pipeline of %d without work (hint: at "
        "least %d)",
        spec->group, spec->n_ranks, spec->n_ranks);
}

static int check_sizes(const struct pipeline_spec *spec, struct err *err)
{
    if (spec->kind != PIPELINE_DYNAMIC)
        return 0;
    if (!spec->sizes)
        return err_set(err, ERR_CONFIG,
                       "schedule dynamic needs the sizes of the micro-batches (hint: "
                       "micro_batches: [1, 2, 4, 4, 2, 1], or schedule interleaved)");
    for (int m = 0; m < spec->n_micro_batches; m++)
        if (spec->sizes[m] < 1)
            return err_set(
                err, ERR_CONFIG,
                "micro-batch %d has %d sequences, but must have 1 or more (hint: leave it "
                "out, or 1)",
                m, spec->sizes[m]);
    return 0;
}

static int64_t steps_of_rank(const struct pipeline_spec *spec)
{
    return 3LL * spec->n_chunks * spec->n_micro_batches;
}

int pipeline_check(const struct pipeline_spec *spec, struct err *err)
{
    int64_t n_steps;

    CHECK((unsigned)spec->kind < N_PIPELINE_KINDS);
    if (check_range("ranks", spec->n_ranks, PIPELINE_RANKS_MAX, err) || check_chunks(spec, err) ||
        check_range("micro-batches", spec->n_micro_batches, PIPELINE_MICRO_BATCHES_MAX, err) ||
        check_group(spec, err) || check_sizes(spec, err))
        return -1;
    n_steps = steps_of_rank(spec) * spec->n_ranks;
    if (n_steps > PIPELINE_STEPS_MAX)
        return err_set(err, ERR_CONFIG,
                       "%d ranks of %d chunks with %d micro-batches are up to %lld steps, but at "
                       "most %d are allowed (hint: larger micro-batches, at most %lld of them)",
                       spec->n_ranks, spec->n_chunks, spec->n_micro_batches, (long long)n_steps,
                       PIPELINE_STEPS_MAX,
                       PIPELINE_STEPS_MAX / (3LL * spec->n_ranks * spec->n_chunks));
    return 0;
}

/* ---- placement ---- */

int pipeline_n_stages(const struct pipeline_spec *spec)
{
    return spec->n_ranks * spec->n_chunks;
}

int pipeline_stage_of(const struct pipeline_spec *spec, int rank, int chunk)
{
    CHECK(rank >= 0 && rank < spec->n_ranks);
    CHECK(chunk >= 0 && chunk < spec->n_chunks);
    if (spec->kind == PIPELINE_ZB_V && chunk == 1)
        return 2 * spec->n_ranks - 1 - rank;
    return chunk * spec->n_ranks + rank;
}

int pipeline_rank_of(const struct pipeline_spec *spec, int stage)
{
    CHECK(stage >= 0 && stage < pipeline_n_stages(spec));
    if (spec->kind == PIPELINE_ZB_V && stage >= spec->n_ranks)
        return 2 * spec->n_ranks - 1 - stage;
    return stage % spec->n_ranks;
}

int pipeline_chunk_of(const struct pipeline_spec *spec, int stage)
{
    CHECK(stage >= 0 && stage < pipeline_n_stages(spec));
    return stage / spec->n_ranks;
}

int pipeline_target_of(const struct pipeline_spec *spec, int rank, enum pipeline_step_kind kind,
                       int chunk)
{
    int stage = pipeline_stage_of(spec, rank, chunk) + (kind == STEP_F ? 1 : -1);

    return kind == STEP_W || stage >= pipeline_n_stages(spec) ? -1 : stage;
}

/* ---- lists ---- */

int write_step(struct list_writer *writer, enum pipeline_step_kind kind, int chunk)
{
    struct pipeline_list *list = writer->list;
    int micro_batch = writer->next[kind][chunk]++;

    if (micro_batch < writer->n_micro_batches) {
        CHECK(list->n_steps < writer->capacity);
        list->steps[list->n_steps++] =
            (struct pipeline_step){ .kind = kind, .chunk = chunk, .micro_batch = micro_batch };
    }
    return micro_batch;
}

void write_steps(struct list_writer *writer, enum pipeline_step_kind kind, int chunk, int n)
{
    for (int k = 0; k < n; k++)
        write_step(writer, kind, chunk);
}

int n_written(const struct list_writer *writer, enum pipeline_step_kind kind, int chunk)
{
    return writer->next[kind][chunk];
}

void build_lists(struct pipeline *pipeline, const struct pipeline_spec *spec, struct arena *arena)
{
    struct list_writer writer;

    pipeline->spec = *spec;
    pipeline->ranks = arena_array(arena, struct pipeline_list, spec->n_ranks);
    pipeline->starts = NULL;
    pipeline->stretches = NULL;
    for (int rank = 0; rank < spec->n_ranks; rank++) {
        struct pipeline_list *list = &pipeline->ranks[rank];

        memset(&writer, 0, sizeof writer);
        writer.list = list;
        writer.capacity = (int)steps_of_rank(spec);
        writer.n_micro_batches = spec->n_micro_batches;
        list->steps = arena_array(arena, struct pipeline_step, writer.capacity);
        families[spec->kind].write(&writer, spec, rank);
    }
}

int pipeline_build(struct pipeline *pipeline, const struct pipeline_spec *spec, struct arena *arena,
                   struct err *err)
{
    struct pipeline_spec chosen = *spec;

    if (pipeline_check(spec, err))
        return -1;
    chosen.sizes = NULL;
    if (spec->kind == PIPELINE_DYNAMIC) {
        int *sizes = arena_array(arena, int, spec->n_micro_batches);

        memcpy(sizes, spec->sizes, (size_t)spec->n_micro_batches * sizeof *sizes);
        chosen.sizes = sizes;
        if (chosen.group == 0)
            chosen.group = choose_group(&chosen);
    }
    build_lists(pipeline, &chosen, arena);
    if (spec->kind == PIPELINE_INTERLEAVED || spec->kind == PIPELINE_DYNAMIC)
        pipeline->spec.group = largest_group(&chosen);
    return 0;
}
