/*
 * peak_test.c - ranks that share cores or a GPU do not count them twice
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "train/peak.h"

enum { RANKS_MAX = 64 };

static void stated(void **state)
{
    struct peak_part parts[4] = { { .node = 1, .hardware = 7, .stated = 100 },
                                  { .node = 1, .hardware = 7, .stated = 100 },
                                  { .node = 1, .hardware = 8, .stated = 50 },
                                  { .node = 2, .hardware = 7, .stated = 100 } };

    (void)state;
    assert_true(peak_stated(parts, 4) == 250);
    parts[0].hardware = parts[1].hardware = 0; /* a GPU each */
    assert_true(peak_stated(parts, 4) == 350);
    parts[2].stated = 0;
    assert_true(peak_stated(parts, 4) == 0);
}

static void measured(void **state)
{
    const struct peak_part parts[4] = { { .node = 1, .flops = { 10, 30, 20 } },
                                        { .node = 2, .flops = { 1, 2, 3 } },
                                        { .node = 1, .flops = { 50, 20, 20 } },
                                        { .node = 2, .flops = { 6, 2, 1 } } };

    (void)state;
    assert_true(peak_measured(parts, 4, 0.5) == (60 + 7) / 0.5);
    assert_true(peak_measured(parts, 1, 0.5) == 60);
}

/* ---- ranks as threads ---- */

struct member {
    struct comm_hub *hub;
    int rank, n_ranks, status;
    double flops;
};

static void *take_part(void *argument)
{
    struct member *member = argument;
    struct launch_rank alone = { .world_size = 1, .local_size = 1 };
    struct engine engine;
    struct err err;

    member->status =
        engine_open(&engine, &alone, &(struct engine_request){ 1, JOB_DEVICE_CPU }, &err);
    if (member->status)
        return NULL;
    comm_destroy(engine.comm);
    engine.rank.world_rank = member->rank;
    engine.rank.world_size = member->n_ranks;
    member->status = comm_thread_create(&engine.comm, member->hub, member->rank, &err) ||
                     peak_find(&engine, DTYPE_F32, &member->flops, &err);
    engine_close(&engine);
    return NULL;
}

/* However busy the machine: n ranks do no more than its cores can. */
static void shared_cores(void **state)
{
    struct launch_rank alone = { .world_size = 1, .local_size = 1 };
    struct member members[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    struct engine engine;
    struct comm_hub *hub;
    double one_core, one_rank;
    cpu_set_t cpus;
    struct err err;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    int n_cores = CPU_COUNT(&cpus), n = 3 * n_cores;
    if (n > RANKS_MAX)
        n = RANKS_MAX;
    assert_int_equal(comm_hub_create(&hub, n, &err), 0);
    assert_int_equal(
        engine_open(&engine, &alone, &(struct engine_request){ 1, JOB_DEVICE_CPU }, &err), 0);
    assert_int_equal(engine_peak_flops(&engine, DTYPE_F32, &one_core, &err), 0);
    assert_int_equal(peak_find(&engine, DTYPE_F32, &one_rank, &err), 0);
    assert_true(one_rank > 1e8);
    engine_close(&engine);
    for (int i = 0; i < n; i++) {
        members[i] = (struct member){ .hub = hub, .rank = i, .n_ranks = n };
        assert_int_equal(pthread_create(&threads[i], NULL, take_part, &members[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++) {
        assert_int_equal(members[i].status, 0);
        assert_true(members[i].flops == members[0].flops);
    }
    print_message("%d ranks on %d cores: %.0f GFLOP/s, one core alone %.0f\n", n, n_cores,
                  members[0].flops * 1e-9, one_core * 1e-9);
    assert_true(members[0].flops > 1e7);
    if (n > 2 * n_cores)
        assert_true(members[0].flops < 2 * n_cores * one_core);
    comm_hub_destroy(hub);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stated),
        cmocka_unit_test(measured),
        cmocka_unit_test(shared_cores),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
