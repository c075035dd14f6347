/*
 * run_test.c - a program's collectives on GPUs, staged and enqueued, among the ops around them
 *
 * Layers over tensor-parallel ranks (support/tp_layers.h), whose values share memory, and gradients
 * that are added up over micro-batches while others are on their way: against the same on the host,
 * under every order of queues, with graphs (a step is run often enough that they replay) and with
 * what dies overwritten at its death. Numbers are small whole ones, so any order of adding is exact
 * and every difference is a read too early or a write too late.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "program/passes.h"
#include "run/run_impl.h"
#include "support/tp_layers.h"

enum { N_LAYERS = 4, N_STEPS = 4, TOKENS = 8, D = 8, F = 8, TP_MAX = 4 };
enum way { ON_HOST, STAGED, ENQUEUED, N_WAYS };

struct player {
    struct comm_hub *hub;
    int rank, tp_size, residual, poison;
    enum way way;
    int timed, traced;
    int fails;       /* one_by_one.h */
    int overlaps;    /* build_overlap's program */
    int leaves_mark; /* breaks: compute does not wait for collectives */
    float out[N_STEPS][TOKENS * D];
};

/* -1, 0 or 1 */
static float whole_number(int step, int cell, int64_t i)
{
    struct rng_block block = rng_at(31, RNG_TEST, (uint64_t)(1000 * step + cell), (uint64_t)i);

    return (float)(block.word[0] % 3) - 1;
}

static void put(struct run *run, int value, int step, int cell, int64_t n)
{
    float numbers[F * D > TOKENS * D ? F * D : TOKENS * D];

    for (int64_t i = 0; i < n; i++)
        numbers[i] = whole_number(step, cell, i);
    run_put(run, value, 0, 0, numbers, (size_t)n * sizeof(float));
}

static void fill_cells(struct run *run, const struct tp_layers *t, const struct player *me,
                       int step)
{
    put(run, t->x, step, 1000 * me->rank, TOKENS / me->tp_size * D);
    for (int l = 0; l < t->n_layers; l++) {
        put(run, t->w1[l], step, 1000 * me->rank + 1 + l, F / me->tp_size * D);
        put(run, t->w2[l], step, 1000 * me->rank + 101 + l, F / me->tp_size * D);
    }
}

static void forget_users(struct run *run)
{
    for (int i = 0; i < run->functions[0].list[0].n_ops; i++)
        if (!run->functions[0].list[0].ops[i].is_async)
            run->functions[0].list[0].ops[i].n_users = 0;
}

/* The world of one rank. */
struct place {
    struct pool *pool;
    struct device *device;
    struct kernels *kernels;
    struct comm *comm;
    struct worker *worker;
};

static struct place open_place(const struct player *me)
{
    struct place p = { .device = device_host() };
    struct err err;

    CHECK(pool_create(&p.pool, 1, NULL, &err) == 0);
    CHECK(comm_thread_create(&p.comm, me->hub, me->rank, &err) == 0);
    CHECK(worker_create(&p.worker, -1, &err) == 0);
    if (me->way == ON_HOST) {
        CHECK(kernels_cpu_create(&p.kernels, p.pool, NULL, &err) == 0);
        return p;
    }
    CHECK(device_cuda_open(&p.device, 0, &err) == 0);
    CHECK(kernels_cuda_create(&p.kernels, p.device, &err) == 0);
    if (me->way == ENQUEUED)
        CHECK(comm_nccl_create(&p.comm, p.comm, p.device, &err) == 0);
    return p;
}

static void close_place(struct place *p)
{
    worker_destroy(p->worker);
    comm_destroy(p->comm);
    kernels_destroy(p->kernels);
    device_destroy(p->device);
    pool_destroy(p->pool);
}

/* out = x + x, as it was; and then, while x is gathered, a sum that does not wait for it, and one
 * that does. */
static void build_overlap(struct tp_layers *t)
{
    struct program *p = &t->program;
    int gathered = program_value(p, TOKENS, D, DTYPE_F32);
    int sum = program_value(p, TOKENS, D, DTYPE_F32);
    int own = program_cell(p, ROLE_SCALAR, "own", TOKENS, D, DTYPE_F32);
    int whole = program_cell(p, ROLE_SCALAR, "whole", TOKENS, D, DTYPE_F32);
    const struct op ops[] = {
        { .kind = OP_ALL_GATHER,
          .in = { t->x },
          .out = { gathered },
          .attributes.axis = AXIS_TP,
          .stream = STREAM_TP,
          .layer = -1 },
        { .kind = OP_ADD, .in = { own, own }, .out = { sum }, .layer = -1 },
        { .kind = OP_ADD, .in = { gathered, sum }, .out = { whole }, .layer = -1 },
    };

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        program_emit(p, t->function, &ops[i]);
}

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

/* What runs beside an enqueued collective leaves it its multiprocessors; nothing else does. */
static void expect_beside(const struct run *run, const struct player *me)
{
    const struct resolved_function *f = &run->functions[0].list[0];

    for (int i = 0; i < f->n_ops; i++)
        CHECK(f->ops[i].call.beside ==
              (me->overlaps && me->way == ENQUEUED && i == 2 ? COMM_BLOCKS_TOGETHER : 0));
}

/* What each add was told to have beside it when calls were prepared early, in their order. */
static _Thread_local int told_beside[4], n_told;

static int note_beside(struct kernels *kernels, struct kernel_call *call, struct err *err)
{
    (void)err;
    if (kernels->is_early && n_told < COUNT(told_beside))
        told_beside[n_told++] = call->beside;
    return 0;
}

/* Those that leave multiprocessors to a collective are chosen for before those that are like
 * them. */
static void reserve_and_listen(const struct player *me, const struct program *program,
                               struct kernels *kernels)
{
    const struct kernels_backend *own = kernels->backend;
    struct kernels_backend listening = *own;
    struct err err;

    listening.entries[OP_ADD].prepare = note_beside;
    kernels->backend = &listening;
    n_told = 0;
    CHECK(run_reserve(program, kernels, NULL, &err) == 0);
    kernels->backend = own;
    for (int i = 0; i < n_told; i++)
        CHECK(told_beside[i] == (me->overlaps && i == 0 ? COMM_BLOCKS_TOGETHER : 0));
    CHECK(n_told == 3 || !me->overlaps || device_is_host(kernels->device));
}

static int has_graph(const struct run *run)
{
    const struct resolved_function *f = &run->functions[0].list[0];

    for (int i = 0; i < f->n_ranges; i++)
        if (f->ranges[i].graphs[0] || f->ranges[i].graphs[1])
            return 1;
    return 0;
}

/* Each op has one record, those of a stream come one after the other, all within the entry. */
static void expect_records(const struct run_trace *trace, const struct program *p, double begin,
                           double end)
{
    int64_t last_end[N_STREAMS] = { 0 };
    int n_ops[64] = { 0 };

    CHECK(p->functions[0].n_ops <= COUNT(n_ops));
    for (int i = 0; i < trace->n; i++) {
        const struct run_record *r = &trace->records[i];

        CHECK(r->action == 0);
        CHECK(r->begin_ns <= r->end_ns);
        CHECK(r->begin_ns >= last_end[r->stream]);
        CHECK((double)r->begin_ns >= begin * 1e9 - (double)trace->error_ns);
        CHECK((double)r->end_ns <= end * 1e9 + (double)trace->error_ns);
        last_end[r->stream] = r->end_ns;
        if (r->op == RUN_RECORD_WAIT)
            continue;
        CHECK(r->stream == (int)p->functions[0].ops[r->op].stream);
        n_ops[r->op]++;
    }
    for (int i = 0; i < p->functions[0].n_ops; i++)
        CHECK(n_ops[i] == 1);
}

static void run_traced(struct run *run, const struct program *p)
{
    struct run_trace trace;
    struct err err;

    CHECK(run_trace_open(&trace, run, ENTRY_STEP, &err) == 0);
    for (int i = 0; i < 2; i++) {
        run_set_trace(run, &trace);
        double begin = clock_seconds();
        CHECK(run_entry(run, ENTRY_STEP, 0, NULL, &err) == 0);
        expect_records(&trace, p, begin, clock_seconds());
        run_set_trace(run, NULL);
    }
    run_trace_close(&trace);
}

/* The op that failed, and its operands. */
static void expect_culprit(struct run *run, struct tp_layers *t, struct player *me)
{
    struct err err;

    fill_cells(run, t, me, 0);
    CHECK(run_entry(run, ENTRY_STEP, 0, NULL, &err) == -1);
    CHECK(err.code == ERR_DEVICE);
    CHECK(strstr(err.text, "add x: emulated GPU (GPU 0): wait: cudaErrorIllegalAddress"));
    CHECK(strstr(err.text, "\n  a [8 x 8] fp32, row stride 8, at 0x"));
}

static void *play_rank(void *argument)
{
    struct player *me = argument;
    struct place p = open_place(me);
    struct tp_layers t;
    struct run *run;
    struct err err;

    tp_layers_build(&t, me->fails || me->overlaps ? 0 : N_LAYERS, me->tp_size, me->residual, TOKENS,
                    D, F);
    if (me->overlaps)
        build_overlap(&t);
    struct run_scratch scratch = { .kernels = p.kernels, .mesh = t.program.mesh };
    program_size_scratch(&t.program, run_scratch_bytes, &scratch);
    place(&t.program);
    CHECK(verify(&t.program, &err) == 0);
    struct run_options options = { .program = &t.program,
                                   .kernels = p.kernels,
                                   .comm = p.comm,
                                   .worker = p.worker,
                                   .poison = me->poison,
                                   .timed = me->timed };
    reserve_and_listen(me, &t.program, p.kernels);
    CHECK(run_create(&run, &options, &err) == 0);
    CHECK(run->enqueues == (me->way == ENQUEUED));
    expect_beside(run, me);
    if (me->leaves_mark)
        forget_users(run);
    for (int step = 0; step < N_STEPS && !me->fails; step++) {
        if (me->timed)
            run_set_timed(run, step >= N_STEPS / 2);
        fill_cells(run, &t, me, step);
        if (me->traced && step >= N_STEPS / 2)
            run_traced(run, &t.program);
        else
            CHECK(run_entry(run, ENTRY_STEP, 0, NULL, &err) == 0);
        CHECK(run_get(run, t.out, 0, 0, me->out[step], program_value_bytes(&t.program, t.out),
                      &err) == 0);
        for (int i = 0; me->timed && i < t.program.functions[0].n_ops; i++)
            CHECK((run_op_seconds(run, 0, i) > 0) == (step >= N_STEPS / 2) ||
                  (op_is_collective(t.program.functions[0].ops[i].kind) && me->way != ENQUEUED));
    }
    /* Steps whose ops are not timed replay what was recorded. */
    CHECK(me->way == ON_HOST || me->poison || !me->residual || has_graph(run));
    if (me->fails)
        expect_culprit(run, &t, me);
    run_destroy(run);
    close_place(&p);
    program_release(&t.program);
    return NULL;
}

static void play(struct player players[TP_MAX], const struct player *example, enum way way)
{
    pthread_t threads[TP_MAX];
    struct comm_hub *hub;
    struct err err;

    assert_int_equal(comm_hub_create(&hub, example->tp_size, &err), 0);
    for (int r = 0; r < example->tp_size; r++) {
        players[r] = *example;
        players[r].hub = hub;
        players[r].rank = r;
        players[r].way = way;
        assert_int_equal(pthread_create(&threads[r], NULL, play_rank, &players[r]), 0);
    }
    for (int r = 0; r < example->tp_size; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(hub);
}

static const char *const orders[] = { "eager", "lazy", "1", "2", "3" };

/* How many orders show a difference from the host. */
static int n_differ(const struct player *example, enum way way)
{
    struct player wanted[TP_MAX], got[TP_MAX];
    struct player whole = *example;
    int n = 0;

    whole.leaves_mark = 0;
    play(wanted, &whole, ON_HOST);
    for (int i = 0; i < COUNT(orders); i++) {
        int differs = 0;

        setenv("LMTRAIN_EMULATE_STREAMS", orders[i], 1);
        play(got, example, way);
        for (int r = 0; r < example->tp_size; r++)
            differs |= memcmp(wanted[r].out, got[r].out, sizeof wanted[r].out) != 0;
        n += differs;
    }
    return n;
}

/* What is launched was loaded before. */
static void layers(void **state)
{
    (void)state;
    setenv("LMTRAIN_EMULATE_LOADING", "strict", 1);
    for (int tp_size = 2; tp_size <= TP_MAX; tp_size *= 2)
        for (int residual = 0; residual < 2; residual++)
            for (int poison = 0; poison < 2; poison++)
                for (enum way way = STAGED; way < N_WAYS; way++) {
                    struct player example = { .tp_size = tp_size,
                                              .residual = residual,
                                              .poison = poison };

                    assert_int_equal(n_differ(&example, way), 0);
                }
}

/* Each op's time is known once it is asked for, collectives' too, and nothing else changes. */
static void times(void **state)
{
    struct player example = { .tp_size = 2, .residual = 1, .timed = 1 };

    (void)state;
    for (enum way way = STAGED; way < N_WAYS; way++)
        assert_int_equal(n_differ(&example, way), 0);
}

/* Ops and collectives of a step have records, on the comm thread and on queues, whatever the order
 * in which these go on; and nothing else changes. */
static void traces(void **state)
{
    struct player example = { .tp_size = 2, .residual = 1, .traced = 1 };

    (void)state;
    for (enum way way = ON_HOST; way < N_WAYS; way++)
        assert_int_equal(n_differ(&example, way), 0);
}

static void beside(void **state)
{
    struct player example = { .tp_size = 2, .overlaps = 1 };

    (void)state;
    assert_int_equal(n_differ(&example, STAGED), 0);
    assert_int_equal(n_differ(&example, ENQUEUED), 0);
}

/* An executor whose compute ops forget to wait is found out. */
static void missing_wait(void **state)
{
    struct player example = { .tp_size = 2, .leaves_mark = 1 };

    (void)state;
    assert_true(n_differ(&example, ENQUEUED) > 0);
}

/* Asked to wait after each op, a run says which of them failed. Last: the failure stays. */
static void culprit(void **state)
{
    struct player players[TP_MAX], example = { .tp_size = 1, .fails = 1 };

    (void)state;
    setenv("LMTRAIN_CUDA_SYNC", "1", 1);
    setenv("LMTRAIN_EMULATE_FAIL", "add", 1);
    play(players, &example, STAGED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers), cmocka_unit_test(times),        cmocka_unit_test(traces),
        cmocka_unit_test(beside), cmocka_unit_test(missing_wait), cmocka_unit_test(culprit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
