/*
 * executor_test.c - small programs executed: order, slots, hooks, poison, collectives
 *
 * The program: y = x + x and z = y + x forward, w = z + x and grad += w' z backward, total = grad +
 * grad in the end. With x = c everywhere, z = 3 c, w = 4 c and each of the 4 rows adds 12 c^2 to
 * each of grad.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <pthread.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/num.h"
#include "program/passes.h"
#include "run/run.h"
#include "support/tiny_model.h"

#define ROWS 4
#define COLS 8
#define N_TRACE_MAX 64

struct rig {
    struct program program;
    struct pool *pool;
    struct kernels *kernels;
    struct run *run;
    int x, y, z, w, grad, total, view;
    int forward, backward, end;
    int fail_at; /* micro-batch whose load fails; -1 none */
    int fail_gate;
    char trace[N_TRACE_MAX];
    int n_trace;
};

static void emit_add(struct rig *rig, int function, int a, int b, int y)
{
    program_emit(&rig->program, function,
                 &(struct op){ .kind = OP_ADD, .in = { a, b }, .out = { y }, .layer = 3 });
}

static void build_program(struct rig *rig, enum first_mode first)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct program *p = &rig->program;

    program_init(p, &mesh);
    rig->x = program_cell(p, ROLE_INPUT, "x", ROWS, COLS, DTYPE_F32);
    rig->y = program_value(p, ROWS, COLS, DTYPE_F32);
    rig->z = program_value(p, ROWS, COLS, DTYPE_F32);
    rig->w = program_value(p, ROWS, COLS, DTYPE_F32);
    rig->grad = program_cell(p, ROLE_GRADIENT, "grad", COLS, COLS, DTYPE_F32);
    rig->view = program_view(p, rig->grad, COLS, 2, COLS, COLS);
    rig->total = program_cell(p, ROLE_SCALAR, "total", COLS, COLS, DTYPE_F32);
    rig->forward = program_function(p, "forward 0", 0);
    rig->backward = program_function(p, "backward 0", 0);
    rig->end = program_function(p, "end", 0);
    emit_add(rig, rig->forward, rig->x, rig->x, rig->y);
    emit_add(rig, rig->forward, rig->y, rig->x, rig->z);
    emit_add(rig, rig->backward, rig->z, rig->x, rig->w);
    program_emit(p, rig->backward,
                 &(struct op){ .kind = OP_LINEAR_DW,
                               .in = { rig->w, rig->z },
                               .out = { rig->grad },
                               .first = first,
                               .layer = 3 });
    emit_add(rig, rig->end, rig->grad, rig->grad, rig->total);
}

static struct action load_action(int micro_batch)
{
    return (struct action){ .kind = ACTION_LOAD, .micro_batch = micro_batch };
}

static struct action run_action(int function, int micro_batch, int first)
{
    return (struct action){ .kind = ACTION_RUN,
                            .function = (int16_t)function,
                            .micro_batch = micro_batch,
                            .first = (uint8_t)first };
}

/* Two forwards ahead of their backwards, which takes two slots, then the end behind a gate. */
static void set_actions(struct rig *rig)
{
    const struct action actions[] = {
        load_action(0),
        run_action(rig->forward, 0, 1),
        load_action(1),
        run_action(rig->forward, 1, 0),
        run_action(rig->backward, 0, 1),
        run_action(rig->backward, 1, 0),
        { .kind = ACTION_GATE, .micro_batch = -1 },
        run_action(rig->end, -1, 0),
    };
    struct entry *step = &rig->program.entries[ENTRY_STEP];
    struct entry *alone = &rig->program.entries[ENTRY_EVALUATE];

    step->actions = arena_array(&rig->program.arena, struct action, 8);
    memcpy(step->actions, actions, sizeof actions);
    step->n_actions = 8;
    alone->actions = arena_array(&rig->program.arena, struct action, 3);
    alone->actions[0] = actions[0];
    alone->actions[1] = actions[1];
    alone->actions[2] = actions[4];
    alone->n_actions = 3;
}

static void rig_open_first(struct rig *rig, int poison, struct progress_slot *progress,
                           enum first_mode first)
{
    struct err err;

    memset(rig, 0, sizeof *rig);
    rig->fail_at = -1;
    build_program(rig, first);
    set_actions(rig);
    if (pool_create(&rig->pool, 2, NULL, &err) < 0 ||
        kernels_cpu_create(&rig->kernels, rig->pool, NULL, &err) < 0)
        fail_msg("%s", err.text);
    struct run_scratch scratch = { .kernels = rig->kernels, .mesh = rig->program.mesh };
    program_size_scratch(&rig->program, run_scratch_bytes, &scratch);
    place(&rig->program);
    if (verify(&rig->program, &err) < 0)
        fail_msg("%s", err.text);
    struct run_options options = { .program = &rig->program,
                                   .kernels = rig->kernels,
                                   .progress = progress,
                                   .poison = poison,
                                   .timed = 1 };
    if (run_create(&rig->run, &options, &err) < 0)
        fail_msg("%s", err.text);
    run_set_timed(rig->run, 1);
}

static void rig_open(struct rig *rig, int poison, struct progress_slot *progress)
{
    rig_open_first(rig, poison, progress, FIRST_MICRO_BATCH);
}

static void rig_close(struct rig *rig)
{
    run_destroy(rig->run);
    program_release(&rig->program);
    kernels_destroy(rig->kernels);
    pool_destroy(rig->pool);
}

static void trace(struct rig *rig, char c)
{
    assert_true(rig->n_trace + 1 < N_TRACE_MAX);
    rig->trace[rig->n_trace++] = c;
}

static int load(void *context, int micro_batch, struct err *err)
{
    struct rig *rig = context;
    float *x = run_data(rig->run, rig->x, micro_batch);

    trace(rig, (char)('0' + micro_batch));
    if (micro_batch == rig->fail_at)
        return err_set(err, ERR_DATA, "the data end at micro-batch %d", micro_batch);
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(micro_batch + 1);
    return 0;
}

static int gate(void *context, struct err *err)
{
    struct rig *rig = context;

    trace(rig, 'g');
    return rig->fail_gate ? err_set(err, ERR_FAILED, "the save failed") : 0;
}

static int run_rig(struct rig *rig, enum entry_kind entry, int first, struct err *err)
{
    struct run_hooks hooks = { .context = rig, .load = load, .gate = gate };

    return run_entry(rig->run, entry, first, &hooks, err);
}

static void must_run(struct rig *rig, enum entry_kind entry, int first)
{
    struct err err;

    if (run_rig(rig, entry, first, &err) < 0)
        fail_msg("%s", err.text);
}

static void check_all(struct rig *rig, int value, float expected)
{
    const float *data = run_data(rig->run, value, 0);

    for (int i = 0; i < COLS * COLS; i++)
        assert_true(data[i] == expected);
}

/* ---- tests ---- */

/* 48 (1 + 4), and the same in the next step: the first micro-batch starts over. */
static void a_step(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, 0, NULL);
    for (int step = 0; step < 3; step++) {
        must_run(&rig, ENTRY_STEP, 0);
        check_all(&rig, rig.grad, 240);
        check_all(&rig, rig.total, 480);
    }
    assert_string_equal(rig.trace, "01g01g01g");
    rig_close(&rig);
}

/* Each op that ran has a time, in all of them no more than the step took; the others have none. */
static void times(void **state)
{
    struct rig rig;
    double sum = 0;

    (void)state;
    rig_open(&rig, 0, NULL);
    double begin = clock_seconds();
    must_run(&rig, ENTRY_STEP, 0);
    double took = clock_seconds() - begin;
    for (int f = 0; f < rig.program.n_functions; f++)
        for (int i = 0; i < rig.program.functions[f].n_ops; i++) {
            assert_true(run_op_seconds(rig.run, f, i) > 0);
            sum += run_op_seconds(rig.run, f, i);
        }
    assert_true(sum > 0);
    assert_true(sum <= took);
    run_clear_times(rig.run);
    for (int f = 0; f < rig.program.n_functions; f++)
        for (int i = 0; i < rig.program.functions[f].n_ops; i++)
            assert_true(run_op_seconds(rig.run, f, i) == 0);
    assert_true(run_wait_seconds(rig.run) == 0);
    rig_close(&rig);
}

/* Where an entry is one micro-batch, its caller says what starts over. */
static void first_comes_from_the_caller(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, 0, NULL);
    must_run(&rig, ENTRY_EVALUATE, 1);
    check_all(&rig, rig.grad, 48);
    must_run(&rig, ENTRY_EVALUATE, 0);
    check_all(&rig, rig.grad, 96);
    must_run(&rig, ENTRY_EVALUATE, 1);
    check_all(&rig, rig.grad, 48);
    rig_close(&rig);
}

/* The last micro-batch alone, 48 * 4. */
static void starting_over_always(void **state)
{
    struct rig rig;

    (void)state;
    rig_open_first(&rig, 0, NULL, FIRST_ALWAYS);
    must_run(&rig, ENTRY_STEP, 0);
    check_all(&rig, rig.grad, 192);
    rig_close(&rig);
}

static size_t slot_bytes_of(const struct rig *rig, int id)
{
    return rig->program.stashes[rig->program.values[id].stash].slot_bytes;
}

static void addresses(void **state)
{
    struct rig rig;

    (void)state;
    rig_open(&rig, 0, NULL);
    unsigned char *x = run_data(rig.run, rig.x, 0), *z = run_data(rig.run, rig.z, 0);
    assert_ptr_equal(run_data(rig.run, rig.x, 1), x + slot_bytes_of(&rig, rig.x));
    assert_ptr_equal(run_data(rig.run, rig.z, 1), z + slot_bytes_of(&rig, rig.z));
    assert_ptr_equal(run_data(rig.run, rig.grad, 1), run_data(rig.run, rig.grad, 0));
    assert_ptr_equal(run_data(rig.run, rig.view, 0),
                     (float *)run_data(rig.run, rig.grad, 0) + COLS);
    must_run(&rig, ENTRY_STEP, 0);
    /* Both slots hold their own micro-batch. */
    assert_true(*(float *)run_data(rig.run, rig.x, 0) == 1);
    assert_true(*(float *)run_data(rig.run, rig.x, 1) == 2);
    assert_true(*(float *)run_data(rig.run, rig.z, 0) == 3);
    assert_true(*(float *)run_data(rig.run, rig.z, 1) == 6);
    rig_close(&rig);
}

static void failing_load_ends_the_entry(void **state)
{
    struct rig rig;
    struct err err;

    (void)state;
    rig_open(&rig, 0, NULL);
    rig.fail_at = 1;
    assert_int_equal(run_rig(&rig, ENTRY_STEP, 0, &err), -1);
    assert_int_equal(err.code, ERR_DATA);
    assert_string_equal(err.text, "the data end at micro-batch 1");
    assert_string_equal(rig.trace, "01");
    check_all(&rig, rig.grad, 0);
    rig_close(&rig);
}

/* Nothing behind the gate is touched. */
static void failing_gate_keeps_the_cells(void **state)
{
    struct rig rig;
    struct err err;

    (void)state;
    rig_open(&rig, 0, NULL);
    rig.fail_gate = 1;
    assert_int_equal(run_rig(&rig, ENTRY_STEP, 0, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    check_all(&rig, rig.grad, 240);
    check_all(&rig, rig.total, 0);
    rig_close(&rig);
}

static void hooks_may_be_missing(void **state)
{
    struct rig rig;
    struct err err;

    (void)state;
    rig_open(&rig, 0, NULL);
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < ROWS * COLS; i++)
            ((float *)run_data(rig.run, rig.x, m))[i] = 1;
    assert_int_equal(run_entry(rig.run, ENTRY_STEP, 0, NULL, &err), 0);
    check_all(&rig, rig.grad, 96);
    rig_close(&rig);
}

static int is_poison(const void *data, size_t n_bytes)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < n_bytes; i++)
        if (bytes[i] != 0xff)
            return 0;
    return 1;
}

/* Dead values are NaN, what lives is not, and the results are the same. */
static void poison(void **state)
{
    const size_t n_bytes = ROWS * COLS * sizeof(float);
    struct rig rig;

    (void)state;
    rig_open(&rig, 1, NULL);
    assert_true(is_poison(run_data(rig.run, rig.z, 0), n_bytes));
    assert_false(is_poison(run_data(rig.run, rig.grad, 0), n_bytes));
    for (int step = 0; step < 2; step++) {
        must_run(&rig, ENTRY_STEP, 0);
        check_all(&rig, rig.grad, 240);
        check_all(&rig, rig.total, 480);
        assert_true(is_poison(run_data(rig.run, rig.y, 0), n_bytes));
        assert_true(is_poison(run_data(rig.run, rig.w, 0), n_bytes));
        for (int m = 0; m < 2; m++) {
            assert_true(is_poison(run_data(rig.run, rig.z, m), n_bytes));
            assert_false(is_poison(run_data(rig.run, rig.x, m), n_bytes));
        }
    }
    rig_close(&rig);
}

static void progress_is_published(void **state)
{
    static struct progress_slot slot;
    struct rig rig;

    (void)state;
    rig_open(&rig, 0, &slot);
    uint64_t begin = atomic_load(&slot.beat);
    assert_true(begin > 0); /* kernels are prepared: no hang */
    must_run(&rig, ENTRY_STEP, 0);
    assert_int_equal(atomic_load(&slot.beat) - begin, 2 * 2 + 2 * 2 + 1 + 2); /* and 2 loads */
    assert_int_equal(atomic_load(&slot.position), 2 * 2 + 2 * 2 + 1);
    assert_int_equal(atomic_load(&slot.micro_batch), -1);
    assert_int_equal(atomic_load(&slot.waits), 0);
    assert_string_equal(slot.text, "add layers.3");
    rig_close(&rig);
}

static void too_large_to_allocate(void **state)
{
    struct rig rig;
    struct run *run = NULL;
    struct err err;

    (void)state;
    rig_open(&rig, 0, NULL);
    struct run_options options = { .program = &rig.program, .kernels = rig.kernels };
    rig.program.segment_bytes[SEGMENT_GRADIENTS] = (size_t)1 << 50;
    assert_int_equal(run_create(&run, &options, &err), -1);
    assert_int_equal(err.code, ERR_DEVICE);
    assert_null(run);
    rig.program.segment_bytes[SEGMENT_GRADIENTS] = 256;
    rig_close(&rig);
}

/* ---- collectives: three ranks as threads ---- */

#define N_RANKS 3
#define N_SHARD 5

struct rank {
    struct comm_hub *hub;
    int number;
    int fails;  /* at the gate, with a reduce under way */
    int fixed;  /* the bucket is no input: two reduces follow each other with nothing between */
    int stalls; /* the last rank, with its second micro-batch, until the others wait for it */
    struct progress_slot slot;
    struct rank *all;
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
    struct chunk_functions chunk = { reduce, nothing, nothing, nothing, -1, -1, -1, -1 };
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
    for (int step = 0; step < 3 && !rank->fails; step++)
        CHECK(run_entry(loading_run, ENTRY_STEP, 0, &hooks, &err) == 0);
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
        cmocka_unit_test(a_step),
        cmocka_unit_test(times),
        cmocka_unit_test(first_comes_from_the_caller),
        cmocka_unit_test(starting_over_always),
        cmocka_unit_test(addresses),
        cmocka_unit_test(failing_load_ends_the_entry),
        cmocka_unit_test(failing_gate_keeps_the_cells),
        cmocka_unit_test(hooks_may_be_missing),
        cmocka_unit_test(poison),
        cmocka_unit_test(progress_is_published),
        cmocka_unit_test(too_large_to_allocate),
        cmocka_unit_test(collectives),
        cmocka_unit_test(waits_are_published),
        cmocka_unit_test(one_collective_posted_twice),
        cmocka_unit_test(failure_with_collectives_under_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
