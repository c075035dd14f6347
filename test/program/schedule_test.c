/*
 * schedule_test.c - the step's actions
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/tiny_model.h"

/* Each micro-batch: load, forward, backward; only the first starts over; the last runs `last`. */
static void order_of_actions(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_shard(&tiny, "llama", 2, 0);
    struct program *p = &tiny.program;
    for (int n = 1; n <= 12; n++) {
        schedule_alone(p, &tiny.chunk, -1, tiny.update, n);
        const struct entry *e = &p->entries[ENTRY_STEP];
        assert_int_equal(e->n_actions, 3 * n + 2);
        for (int m = 0; m < n; m++) {
            const struct action *a = &e->actions[3 * m];

            assert_int_equal(a[0].kind, ACTION_LOAD);
            assert_int_equal(a[1].kind, ACTION_RUN);
            assert_int_equal(a[2].kind, ACTION_RUN);
            assert_int_equal(a[1].function, tiny.forward);
            assert_int_equal(a[2].function, m + 1 < n ? tiny.backward : tiny.last);
            for (int k = 0; k < 3; k++)
                assert_int_equal(a[k].micro_batch, m);
            assert_int_equal(a[1].first, m == 0);
            assert_int_equal(a[2].first, m == 0);
        }
        assert_int_equal(e->actions[3 * n].kind, ACTION_GATE);
        assert_int_equal(e->actions[3 * n + 1].kind, ACTION_RUN);
        assert_int_equal(e->actions[3 * n + 1].function, tiny.update);
        assert_int_equal(e->actions[3 * n + 1].micro_batch, -1);
        place(p);
        for (int k = 0; k < p->n_stashes; k++)
            assert_int_equal(p->stashes[k].n_slots, 1);
    }
    tiny_release(&tiny);
}

/* ---- rounds that are repeated ---- */

enum { CHUNKS = 4 };

static int draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((uint32_t)(*seed >> 33) % (uint32_t)n);
}

/* Functions are numbers here; what is not sent has none. */
static void list_chunks(struct chunk_functions *chunks, const struct pipeline_spec *spec, int rank)
{
    int last = pipeline_n_stages(spec) - 1;
    int splits = spec->kind >= PIPELINE_ZB_H1;

    for (int i = 0; i < spec->n_chunks; i++) {
        int stage = pipeline_stage_of(spec, rank, i), f = 10 * i;
        int from = stage ? pipeline_rank_of(spec, stage - 1) : rank;
        int to = stage < last ? pipeline_rank_of(spec, stage + 1) : rank;

        chunks[i] = (struct chunk_functions){ .forward = f,
                                              .backward = f + 1,
                                              .weight = splits ? f + 2 : f + 1,
                                              .last = f + 3,
                                              .receive_forward = from == rank ? -1 : f + 4,
                                              .send_backward = from == rank ? -1 : f + 5,
                                              .send_forward = to == rank ? -1 : f + 6,
                                              .receive_backward = to == rank ? -1 : f + 7 };
    }
}

/* The actions of a rank with and without the stretches in which ranks repeat themselves. */
static void compare(const struct pipeline *pipeline, int rank, const int *size_of)
{
    struct chunk_functions chunks[2 * CHUNKS];
    struct pipeline plain = *pipeline;
    struct program repeated, walked;
    struct mesh mesh = mesh_data_parallel(1);
    int n = pipeline->spec.n_chunks;

    plain.stretches = NULL;
    list_chunks(chunks, &pipeline->spec, rank);
    list_chunks(chunks + n, &pipeline->spec, rank);
    for (int i = 0; i < n; i++)
        chunks[n + i].forward += 100;
    program_init(&repeated, &mesh);
    program_init(&walked, &mesh);
    schedule_step(&repeated, pipeline, rank, chunks, size_of, -1, 99);
    schedule_step(&walked, &plain, rank, chunks, size_of, -1, 99);
    const struct entry *a = &repeated.entries[ENTRY_STEP], *b = &walked.entries[ENTRY_STEP];
    assert_int_equal(a->n_actions, b->n_actions);
    assert_memory_equal(a->actions, b->actions, sizeof *a->actions * (size_t)a->n_actions);
    program_release(&repeated);
    program_release(&walked);
}

static void rounds_as_walked(void **state)
{
    uint64_t seed = 1;
    int size_of[256], n_stretches = 0;

    (void)state;
    for (int test = 0; test < 600; test++) {
        struct pipeline_spec spec = { .kind = (enum pipeline_kind)(test % PIPELINE_DYNAMIC),
                                      .n_ranks = 1 + draw(&seed, 6),
                                      .n_chunks = 1 + draw(&seed, CHUNKS),
                                      .n_micro_batches = 1 + draw(&seed, 256) };
        struct pipeline pipeline;
        struct arena arena = { 0 };
        struct err err;
        int odd = draw(&seed, 4) ? -1 : draw(&seed, spec.n_micro_batches);

        for (int m = 0; m < spec.n_micro_batches; m++)
            size_of[m] = m == odd;
        if (pipeline_check(&spec, &err))
            spec.n_chunks = spec.kind == PIPELINE_ZB_V ? 2 : 1;
        assert_int_equal(pipeline_build(&pipeline, &spec, &arena, &err), 0);
        assert_int_equal(pipeline_time(&pipeline, &arena, &err), 0);
        n_stretches += pipeline.stretches != NULL;
        for (int rank = 0; rank < spec.n_ranks; rank++)
            compare(&pipeline, rank, draw(&seed, 2) ? size_of : NULL);
        arena_release(&arena);
    }
    assert_true(n_stretches > 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(order_of_actions),
                                        cmocka_unit_test(rounds_as_walked) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
