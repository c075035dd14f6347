/*
 * gather_ahead_test.c - weights travel while others of them are used already
 *
 * Two ranks gather two flat cells. The second rank gives its part of the second cell only after the
 * first rank has used the first cell: an executor that waited for more than what an op reads would
 * stand still here.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "program/passes.h"
#include "run/run.h"

#define N_RANKS 2
#define N_SHARD 8
#define N (N_RANKS * N_SHARD)
#define N_STEPS 3

struct read_ahead {
    struct program program;
    int weights[2], own[2], used[2], own_used;
};

static const float table[N] = { 1, 2, 3, 4, 5, 6, 7, 8, 10, 20, 30, 40, 50, 60, 70, 80 };

static void build_gather(struct read_ahead *a, int i, int function)
{
    struct program *p = &a->program;

    a->weights[i] = program_cell(p, ROLE_WEIGHT, i ? "weights.1" : "weights.0", 1, N, DTYPE_F32);
    a->own[i] =
        program_local_shard(p, i ? "weights.1:shard" : "weights.0:shard", a->weights[i], AXIS_DP);
    a->used[i] = program_cell(p, ROLE_SCALAR, i ? "used.1" : "used.0", 1, N, DTYPE_F32);
    program_emit(p, function,
                 &(struct op){ .kind = OP_ALL_GATHER,
                               .attributes.axis = AXIS_DP,
                               .in = { a->own[i] },
                               .out = { a->weights[i] },
                               .stream = STREAM_DP_GATHER,
                               .layer = -1 });
}

static void build_use(struct read_ahead *a, int i, int function)
{
    program_emit(&a->program, function,
                 &(struct op){ .kind = OP_ADD,
                               .in = { a->weights[i], a->weights[i] },
                               .out = { a->used[i] },
                               .layer = -1 });
}

/* The own part of what is gathered next step, plus the rank's own part of a table. */
static void build_own_use(struct read_ahead *a, int function)
{
    struct program *p = &a->program;
    int all = program_cell(p, ROLE_CONSTANT, "table", 1, N, DTYPE_F32);

    p->values[all].content = table;
    int part = program_local_shard(p, "table:shard", all, AXIS_DP);
    a->own_used = program_cell(p, ROLE_SCALAR, "own_used", 1, N_SHARD, DTYPE_F32);
    program_emit(
        p, function,
        &(struct op){
            .kind = OP_ADD, .in = { a->own[0], part }, .out = { a->own_used }, .layer = -1 });
}

static void build(struct read_ahead *a)
{
    struct mesh mesh = mesh_data_parallel(N_RANKS);
    struct program *p = &a->program;
    struct entry *step = &p->entries[ENTRY_STEP];
    int functions[4];
    static const char *const names[4] = { "gather 0", "gather 1", "use 0", "use 1" };

    program_init(p, &mesh);
    for (int i = 0; i < 4; i++)
        functions[i] = program_function(p, names[i], 0);
    for (int i = 0; i < 2; i++) {
        build_gather(a, i, functions[i]);
        build_use(a, i, functions[2 + i]);
    }
    build_own_use(a, functions[3]);
    step->actions = arena_array(&p->arena, struct action, 6);
    /* gather 0, load 0, gather 1, use 0, load 1, use 1 */
    static const int order[6] = { 0, -1, 1, 2, -1, 3 };
    for (int i = 0, n_loads = 0; i < 6; i++)
        step->actions[step->n_actions++] =
            order[i] < 0
                ? (struct action){ .kind = ACTION_LOAD, .micro_batch = n_loads++ }
                : (struct action){ .kind = ACTION_RUN, .function = (int16_t)functions[order[i]] };
}

struct player {
    struct comm_hub *hub;
    int rank, step;
    atomic_int *n_used; /* steps in which rank 0 has used the first cell */
    float used[2][N], own_used[N_SHARD];
};

/* The hook stands where a load does: between the gathers, and behind the first use. */
static int meet(void *context, int micro_batch, struct err *err)
{
    const struct timespec pause = { 0, 1000000 };
    struct player *me = context;

    (void)err;
    if (me->rank == 0 && micro_batch == 1)
        atomic_store(me->n_used, me->step + 1);
    if (me->rank == 1 && micro_batch == 0) {
        for (int i = 0; i < 60000 && atomic_load(me->n_used) <= me->step; i++)
            nanosleep(&pause, NULL);
        CHECK(atomic_load(me->n_used) > me->step);
    }
    return 0;
}

static void *play(void *argument)
{
    struct player *me = argument;
    struct run_hooks hooks = { .context = me, .load = meet };
    struct read_ahead a = { 0 };
    struct kernels *kernels;
    struct worker *worker;
    struct comm *comm;
    struct pool *pool;
    struct run *run;
    struct err err;

    build(&a);
    place(&a.program);
    CHECK(verify(&a.program, &err) == 0);
    CHECK(pool_create(&pool, 1, NULL, &err) == 0);
    CHECK(kernels_cpu_create(&kernels, pool, NULL, &err) == 0);
    CHECK(comm_thread_create(&comm, me->hub, me->rank, &err) == 0);
    CHECK(worker_create(&worker, -1, &err) == 0);
    struct run_options options = {
        .program = &a.program, .kernels = kernels, .comm = comm, .worker = worker
    };
    CHECK(run_create(&run, &options, &err) == 0);
    for (me->step = 0; me->step < N_STEPS; me->step++) {
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < N_SHARD; k++)
                ((float *)run_data(run, a.own[i], 0))[k] =
                    (float)(1000 * me->step + 100 * i + 10 * me->rank + k);
        CHECK(run_entry(run, ENTRY_STEP, 0, &hooks, &err) == 0);
    }
    for (int i = 0; i < 2; i++)
        memcpy(me->used[i], run_data(run, a.used[i], 0), sizeof me->used[i]);
    memcpy(me->own_used, run_data(run, a.own_used, 0), sizeof me->own_used);
    run_destroy(run);
    worker_destroy(worker);
    comm_destroy(comm);
    kernels_destroy(kernels);
    pool_destroy(pool);
    program_release(&a.program);
    return NULL;
}

static void used_while_others_travel(void **state)
{
    struct player players[N_RANKS] = { { 0 } };
    pthread_t threads[N_RANKS];
    atomic_int n_used = 0;
    struct comm_hub *hub;
    struct err err;

    (void)state;
    assert_int_equal(comm_hub_create(&hub, N_RANKS, &err), 0);
    for (int r = 0; r < N_RANKS; r++) {
        players[r] = (struct player){ .hub = hub, .rank = r, .n_used = &n_used };
        assert_int_equal(pthread_create(&threads[r], NULL, play, &players[r]), 0);
    }
    for (int r = 0; r < N_RANKS; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(hub);
    for (int r = 0; r < N_RANKS; r++) {
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < N; k++) {
                int wanted = 1000 * (N_STEPS - 1) + 100 * i + 10 * (k / N_SHARD) + k % N_SHARD;

                assert_true(players[r].used[i][k] == (float)(2 * wanted));
            }
        for (int k = 0; k < N_SHARD; k++) {
            float own = (float)(1000 * (N_STEPS - 1) + 10 * r + k);

            assert_true(players[r].own_used[k] == own + table[r * N_SHARD + k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(used_while_others_travel) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
