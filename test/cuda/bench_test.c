/*
 * bench_test.c - a step that sums by NCCL is planned and opened for that by bench, too
 *
 * The executor refuses a run whose sums are others than those that its memory was planned for.
 * Nothing is measured: what an emulated GPU reaches takes minutes.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <stdlib.h>

#include <cmocka.h>

#include "support/nccl_engine.h"
#include "train/bench_impl.h"

enum { N_RANKS = 2 };

static const char text[] =
    "model: {vocab_size: 64, hidden_size: 32, n_layers: 1, n_heads: 2, n_kv_heads: 2, "
    "ffn_size: 48}\n"
    "data: {train: tokens, seq_len: 16}\n"
    "train: {steps: 1, global_batch: 4, micro_batch: 1, dtype: bf16}\n"
    "parallel: {zero: 2, gradient_sum: early, reductions: fast}\n"
    "output: run\n";

struct rank {
    struct comm_hub *hub;
    const struct job *job;
    struct engine engine;
};

static void *play_rank(void *argument)
{
    struct rank *r = argument;
    struct engine *engine = &r->engine;
    struct bench bench = { 0 };
    struct run *run;
    struct err err;

    nccl_engine_open(engine, r->hub);
    CHECK(bench_compile(&bench.program, r->job, engine, &err) == 0);
    CHECK(bench_open_run(&run, &bench, r->job, engine, &err) == 0);
    run_destroy(run);
    bench_release(&bench);
    nccl_engine_close(engine);
    return NULL;
}

static void sums_of_nccl(void **state)
{
    struct arena arena = { 0 };
    struct comm_hub *hub;
    struct rank ranks[N_RANKS];
    pthread_t threads[N_RANKS];
    struct job job;
    struct err err;

    (void)state;
    if (job_read_text(&job, text, sizeof text - 1, "job", NULL, 0, &arena, &err) < 0 ||
        job_resolve(&job, N_RANKS, &arena, &err) < 0 || comm_hub_create(&hub, N_RANKS, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < N_RANKS; i++) {
        ranks[i] = (struct rank){ .hub = hub,
                                  .job = &job,
                                  .engine = { .rank = { .world_rank = i, .world_size = N_RANKS },
                                              .n_sharing = N_RANKS } };
        assert_int_equal(pthread_create(&threads[i], NULL, play_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < N_RANKS; i++)
        pthread_join(threads[i], NULL);
    comm_hub_destroy(hub);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(sums_of_nccl) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
