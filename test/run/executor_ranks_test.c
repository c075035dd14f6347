/*
 * executor_ranks_test.c - collectives of a small program executed by three ranks, which are threads
 *
 * Each rank's bucket is reduced into shards, micro-batch by micro-batch; in the end shards are
 * gathered and doubled, which every rank can check.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "program/passes.h"
#include "run/run.h"
#include "support/tiny_model.h"

#define N_RANKS 3
#define PAUSE_NS 50000000
#define N_SHARD 5

struct rank {
    struct comm_hub *hub;
    int number;
    int fails;  /* at the gate, with a reduce under way */
    int fixed;  /* the bucket is no input: two reduces follow each other with nothing between */
    int stalls; /* the last rank, with its second micro-batch, until the others wait for it */
    struct progress_slot slot;
    struct rank *all;
    bool measured;   /* the last rank reads its second micro-batches for PAUSE_NS longer */
    double own_time; /* of three steps */
    double all_time; /* likewise, waiting included */
    float doubled[N_RANKS * N_SHARD];
    double total;
};

struct spread_program {
    struct program program;
    int bucket, shard, sum, doubled, part, total;
};

/* Each micro-batch the bucket is reduced into a shard, in the end gathered and doubled. */
static void build_spread(struct spread_program *s, enum cell_role role)
{
    struct mesh mesh = mesh_data_parallel(N_RANKS);
    struct program *p = &s->program;

    program_init(p, &mesh);
    s->bucket = program_cell(p, role, "bucket", 1, N_RANKS * N_SHARD, DTYPE_F32);
    s->part = program_cell(p, ROLE_SCALAR, "part", 1, 1, DTYPE_F64);
    p->values[s->bucket].spread[AXIS_DP] = SPREAD_PARTIAL;
    p->values[s->part].spread[AXIS_DP] = SPREAD_PARTIAL;
    s->shard = program_cell(p, ROLE_GRADIENT, "shard", 1, N_SHARD, DTYPE_F32);
    s->total = program_cell(p, ROLE_SCALAR, "total", 1, 1, DTYPE_F64);
    s->sum = program_value(p, 1, N_RANKS * N_SHARD, DTYPE_F32);
    s->doubled = program_cell(p, ROLE_SCALAR, "doubled", 1, N_RANKS * N_SHARD, DTYPE_F32);
    int reduce = program_function(p, "reduce", 0), gather = program_function(p, "gather", 0);
    program_emit(p, reduce,
                 &(struct op){ .kind = OP_REDUCE_SCATTER,
                               .attributes.axis = AXIS_DP,
                               .in = { s->bucket },
                               .out = { s->shard },
                               .stream = STREAM_DP_REDUCE,
                               .layer = -1 });
    program_emit(p, gather,
                 &(struct op){ .kind = OP_ALL_GATHER,
                               .attributes.axis = AXIS_DP,
                               .in = { s->shard },
                               .out = { s->sum },
                               .stream = STREAM_DP_GATHER,
                               .layer = -1 });
    program_emit(p, gather,
                 &(struct op){ .kind = OP_ALL_REDUCE_SCALAR,
                               .attributes.axis = AXIS_DP,
                               .in = { s->part },
                               .out = { s->total },
                               .stream = STREAM_DP_REDUCE,
                               .layer = -1 });
    program_emit(
        p, gather,
        &(struct op){
            .kind = OP_ADD, .in = { s->sum, s->sum }, .out = { s->doubled }, .layer = -1 });
    int nothing = program_function(p, "nothing", 0);
    struct chunk_functions chunk = { .forward = reduce,
                                     .backward = nothing,
                                     .weight = nothing,
                                     .last = nothing,
                                     .receive_forward = -1,
                                     .send_forward = -1,
                                     .receive_backward = -1,
                                     .send_backward = -1 };
    schedule_alone(p, &chunk, -1, gather, 2);
}

static struct spread_program *loading;
static __thread struct run *loading_run;
static __thread int loading_rank;

/* The others wait for this rank, under the name of what they wait for, and it is seen to be behind.
 */
static void check_awaited(struct rank *me)
{
    const struct timespec pause = { 0, 1000000 };

    for (int r = 0; r < N_RANKS - 1; r++) {
        struct progress_slot *slot = &me->all[r].slot;

        /* Before, they may wait for the first micro-batch's sum for a moment. */
        for (int i = 0; i < 60000; i++) {
            if (atomic_load(&slot->waits) && !strcmp(slot->text, "all_gather dp shard"))
                break;
            nanosleep(&pause, NULL);
        }
        CHECK(atomic_load(&slot->waits));
        CHECK(!strcmp(slot->text, "all_gather dp shard"));
        CHECK(atomic_load(&slot->awaits) > atomic_load(&me->slot.position));
        CHECK(atomic_load(&slot->group_first) == 0);
        CHECK(atomic_load(&slot->group_stride) == 1);
        CHECK(atomic_load(&slot->group_size) == N_RANKS);
    }
    CHECK(!atomic_load(&me->slot.waits));
    CHECK(!strcmp(me->slot.text, "reading data"));
}

/* Rank r's bucket is 10^r (m + 1) + element. */
static int load_bucket(void *context, int micro_batch, struct err *err)
{
    static const float scale[N_RANKS] = { 1, 10, 100 };
    float *bucket = run_data(loading_run, loading->bucket, micro_batch);
    struct rank *rank = context;

    (void)err;
    if (rank && rank->stalls && rank->number == N_RANKS - 1 && micro_batch == 1)
        check_awaited(rank);
    if (rank && rank->measured && rank->number == N_RANKS - 1 && micro_batch == 1)
        nanosleep(&(struct timespec){ 0, PAUSE_NS }, NULL);
    for (int i = 0; i < N_RANKS * N_SHARD; i++)
        bucket[i] = scale[loading_rank] * (float)(micro_batch + 1) + (float)i;
    return 0;
}

static int failing_gate(void *context, struct err *err)
{
    (void)context;
    return err_set(err, ERR_FAILED, "the save failed");
}

static void *play_rank(void *argument)
{
    struct rank *rank = argument;
    struct spread_program s;
    struct run_hooks hooks = { .context = rank, .load = load_bucket };
    struct pool *pool;
    struct kernels *kernels;
    struct comm *comm;
    struct worker *worker;
    struct err err;

    build_spread(&s, rank->fixed ? ROLE_SCALAR : ROLE_INPUT);
    CHECK(pool_create(&pool, 1, NULL, &err) == 0);
    CHECK(kernels_cpu_create(&kernels, pool, NULL, &err) == 0);
    CHECK(comm_thread_create(&comm, rank->hub, rank->number, &err) == 0);
    CHECK(worker_create(&worker, -1, &err) == 0);
    struct run_scratch scratch = { .kernels = kernels, .mesh = s.program.mesh };
    program_size_scratch(&s.program, run_scratch_bytes, &scratch);
    place(&s.program);
    CHECK(verify(&s.program, &err) == 0);
    struct run_options options = { .program = &s.program,
                                   .kernels = kernels,
                                   .comm = comm,
                                   .worker = worker,
                                   .progress = &rank->slot,
                                   .poison = 1 };
    CHECK(run_create(&loading_run, &options, &err) == 0);
    loading_rank = rank->number;
    *(double *)run_data(loading_run, s.part, 0) = 0.5 + rank->number;
    if (rank->fixed) {
        load_bucket(NULL, 0, &err);
        hooks.load = NULL;
    }
    hooks.gate = rank->fails ? failing_gate : NULL;
    CHECK(run_set_measured(loading_run, rank->measured, &err) == 0);
    double begin = clock_seconds();
    for (int step = 0; step < 3 && !rank->fails; step++)
        CHECK(run_entry(loading_run, ENTRY_STEP, 0, &hooks, &err) == 0);
    rank->all_time = clock_seconds() - begin;
    struct run_own_time own = run_take_own_time(loading_run);
    rank->own_time = own.seconds;
    CHECK(own.n_steps == (rank->measured ? 3 : 0));
    CHECK(run_take_own_time(loading_run).n_steps == 0);
    if (rank->fails)
        CHECK(run_entry(loading_run, ENTRY_STEP, 0, &hooks, &err) == -1);
    memcpy(rank->doubled, run_data(loading_run, s.doubled, 0), sizeof rank->doubled);
    rank->total = *(double *)run_data(loading_run, s.total, 0);
    run_destroy(loading_run);
    worker_destroy(worker);
    comm_destroy(comm);
    kernels_destroy(kernels);
    pool_destroy(pool);
    program_release(&s.program);
    return NULL;
}

static void play_as(struct rank *ranks, struct rank like)
{
    pthread_t threads[N_RANKS];
    struct spread_program ids;
    struct comm_hub *hub;
    struct err err;

    build_spread(&ids, ROLE_INPUT);
    loading = &ids;
    assert_int_equal(comm_hub_create(&hub, N_RANKS, &err), 0);
    for (int r = 0; r < N_RANKS; r++) {
        ranks[r] = like;
        ranks[r].hub = hub;
        ranks[r].number = r;
        ranks[r].all = ranks;
    }
    for (int r = 0; r < N_RANKS; r++) {
        assert_int_equal(pthread_create(&threads[r], NULL, play_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < N_RANKS; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(hub);
    program_release(&ids.program);
}

static void play(struct rank *ranks, int fails, int fixed)
{
    play_as(ranks, (struct rank){ .fails = fails, .fixed = fixed });
}

static void check_doubled(const struct rank *ranks, int micro_batches)
{
    for (int r = 0; r < N_RANKS; r++) {
        for (int i = 0; i < N_RANKS * N_SHARD; i++) {
            float expected = 2 * (111 * (float)micro_batches + 2 * N_RANKS * (float)i);

            if (ranks[r].doubled[i] != expected)
                fail_msg("rank %d has %g at %d, wanted %g", r, (double)ranks[r].doubled[i], i,
                         (double)expected);
        }
        assert_true(ranks[r].total == 0.5 + 1.5 + 2.5);
    }
}

/* A load overwrites the bucket only after the reduce that reads it; the shard adds micro-batches
 * up. */
static void collectives(void **state)
{
    struct rank ranks[N_RANKS];

    (void)state;
    play(ranks, 0, 0);
    check_doubled(ranks, 1 + 2);
}

/* Who waits says in what and for whom, and positions tell who is behind. */
static void waits_are_published(void **state)
{
    struct rank ranks[N_RANKS];

    (void)state;
    play_as(ranks, (struct rank){ .stalls = 1 });
    check_doubled(ranks, 1 + 2);
    for (int r = 1; r < N_RANKS; r++)
        assert_int_equal(ranks[r].slot.position, ranks[0].slot.position);
}

/* A rank that is slow is so in its own time; the others wait for it, and that is not theirs. */
static void own_time_is_without_waiting(void **state)
{
    struct rank ranks[N_RANKS];
    const double pauses = 3 * 1e-9 * PAUSE_NS;

    (void)state;
    play_as(ranks, (struct rank){ .measured = true });
    check_doubled(ranks, 1 + 2);
    assert_true(ranks[N_RANKS - 1].own_time >= pauses);
    for (int r = 0; r < N_RANKS; r++)
        assert_true(ranks[r].own_time > 0 && ranks[r].own_time <= ranks[r].all_time);
    /* Of the first pause a rank that begins late sees less. */
    for (int r = 0; r < N_RANKS - 1; r++)
        assert_true(ranks[r].all_time - ranks[r].own_time >= pauses / 2);
}

/* The second reduce, which adds, must not make the first add that still waits in the queue. */
static void one_collective_posted_twice(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct rank ranks[N_RANKS];

        play(ranks, 0, 1);
        check_doubled(ranks, 1 + 1);
    }
}

/* The reduce of the last micro-batch still runs when the hook fails: its memory must outlive it. */
static void failure_with_collectives_under_way(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct rank ranks[N_RANKS];

        play(ranks, 1, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives),
        cmocka_unit_test(waits_are_published),
        cmocka_unit_test(own_time_is_without_waiting),
        cmocka_unit_test(one_collective_posted_twice),
        cmocka_unit_test(failure_with_collectives_under_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
