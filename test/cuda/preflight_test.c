/*
 * preflight_test.c - the preflight check of two ranks with emulated GPUs, one a node, over NCCL
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/nccl_engine.h"
#include "train/preflight.h"

enum { N_RANKS = 2 };

struct rank {
    struct comm_hub *hub;
    struct engine engine;
    struct arena arena;
    struct preflight result;
};

/* Threads may not use cmocka: they CHECK. */
static void *play_rank(void *argument)
{
    const struct preflight_request request = {
        .min_ratio = 0, .seconds = 0.05, .dtype = DTYPE_BF16, .output = "build"
    };
    struct rank *r = argument;
    struct engine *engine = &r->engine;
    struct err err;

    nccl_engine_open(engine, r->hub);
    CHECK(preflight_run(&r->result, &request, engine, &r->arena, &err) == 0);
    nccl_engine_close(engine);
    return NULL;
}

static void check_result(const struct preflight *p)
{
    assert_int_equal(p->worst, PREFLIGHT_OK);
    assert_int_equal(p->n_pairs, 2); /* both directions */
    for (int i = 0; i < N_RANKS; i++) {
        const struct preflight_rank *r = &p->ranks[i];

        assert_true(r->speed[PREFLIGHT_PRODUCT] > 0);
        assert_true(r->speed[PREFLIGHT_LINK] > 0);
        assert_true(r->link_seconds > 0);
        assert_true(r->tested_bytes > 0);
        assert_int_equal(r->hash, p->ranks[0].hash);
        assert_true(p->pairs[i].bytes_per_second > 0);
    }
}

static void two_gpus(void **state)
{
    struct comm_hub *hub;
    static struct rank ranks[N_RANKS];
    pthread_t threads[N_RANKS];
    struct err err;

    (void)state;
    setenv("LMTRAIN_EMULATE_MEMORY_GIB", "2",
           1); /* too little to measure copies, which takes long */
    assert_int_equal(comm_hub_create(&hub, N_RANKS, &err), 0);
    for (int i = 0; i < N_RANKS; i++) {
        ranks[i] = (struct rank){
            .hub = hub,
            .engine = { .rank = { .world_rank = i, .world_size = N_RANKS, .local_size = 1 },
                        .n_sharing = 1 }
        };
        assert_int_equal(pthread_create(&threads[i], NULL, play_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < N_RANKS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < N_RANKS; i++)
        check_result(&ranks[i].result);
    assert_memory_equal(ranks[0].result.ranks, ranks[1].result.ranks,
                        N_RANKS * sizeof *ranks[0].result.ranks);
    for (int i = 0; i < N_RANKS; i++)
        arena_release(&ranks[i].arena);
    comm_hub_destroy(hub);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(two_gpus) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
