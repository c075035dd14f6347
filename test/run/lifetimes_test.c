/*
 * lifetimes_test.c - values that collectives touch share memory, and nothing is lost
 *
 * Layers over tensor-parallel ranks (support/tp_layers.h), with all that dies overwritten by NaN at
 * its death, against the same layers in one piece. Numbers are small whole ones, so any order of
 * adding is exact.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <pthread.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "program/passes.h"
#include "run/run_impl.h"
#include "support/tp_layers.h"

enum { N_LAYERS = 5, N_STEPS = 3, TOKENS = 8, D = 4, F = 8, TP_MAX = 4 };

struct player {
    struct comm_hub *hub;
    int rank, tp_size, residual, poison;
    int late; /* a gather at the end of the function that nobody awaits */
    float out[N_STEPS][TOKENS / 2 * D];
};

/* -1, 0 or 1 */
static float whole_number(int step, int cell, int64_t i)
{
    struct rng_block block = rng_at(31, RNG_TEST, (uint64_t)(1000 * step + cell), (uint64_t)i);

    return (float)(block.word[0] % 3) - 1;
}

static void fill_cells(struct run *run, const struct tp_layers *t, const struct player *me,
                       int step)
{
    int64_t rows = TOKENS / me->tp_size, part = F / me->tp_size;
    float *x = run_data(run, t->x, 0);

    for (int64_t i = 0; i < rows * D; i++)
        x[i] = whole_number(step, 0, me->rank * rows * D + i);
    for (int l = 0; l < N_LAYERS; l++) {
        float *w1 = run_data(run, t->w1[l], 0), *w2 = run_data(run, t->w2[l], 0);

        for (int64_t i = 0; i < part; i++)
            for (int64_t k = 0; k < D; k++) {
                w1[i * D + k] = whole_number(step, 1 + l, (me->rank * part + i) * D + k);
                w2[k * part + i] = whole_number(step, 101 + l, k * F + me->rank * part + i);
            }
    }
}

static void emit_late(struct tp_layers *t)
{
    struct op op = t->program.functions[t->function].ops[0];

    op.out[0] = program_value(&t->program, TOKENS, D, DTYPE_F32);
    program_emit(&t->program, t->function, &op);
}

/* All of scratch has died but what the function's end waited for, and that alone is waited for. */
static void check_end(const struct run *run, const struct tp_layers *t, const struct player *me)
{
    const unsigned char *scratch = run->memory.segment[SEGMENT_SCRATCH];

    CHECK(run->functions[t->function].list[0].drains == (me->late ? 1u << STREAM_TP : 0));
    for (size_t i = 0; me->poison && !me->late && i < t->program.segment_bytes[SEGMENT_SCRATCH];
         i++)
        CHECK(scratch[i] == 0xff);
}

static void *play_rank(void *argument)
{
    struct player *me = argument;
    struct tp_layers t;
    struct pool *pool;
    struct kernels *kernels;
    struct comm *comm;
    struct worker *worker;
    struct run *run;
    struct err err;

    tp_layers_build(&t, N_LAYERS, me->tp_size, me->residual, TOKENS, D, F);
    if (me->late)
        emit_late(&t);
    CHECK(pool_create(&pool, 1, NULL, &err) == 0);
    CHECK(kernels_cpu_create(&kernels, pool, NULL, &err) == 0);
    CHECK(comm_thread_create(&comm, me->hub, me->rank, &err) == 0);
    CHECK(worker_create(&worker, -1, &err) == 0);
    struct run_scratch scratch = { .kernels = kernels, .mesh = t.program.mesh };
    program_size_scratch(&t.program, run_scratch_bytes, &scratch);
    place(&t.program);
    CHECK(verify(&t.program, &err) == 0);
    struct run_options options = { .program = &t.program,
                                   .kernels = kernels,
                                   .comm = comm,
                                   .worker = worker,
                                   .poison = me->poison };
    CHECK(run_create(&run, &options, &err) == 0);
    for (int step = 0; step < N_STEPS; step++) {
        fill_cells(run, &t, me, step);
        CHECK(run_entry(run, ENTRY_STEP, 0, NULL, &err) == 0);
        check_end(run, &t, me);
        memcpy(me->out[step], run_data(run, t.out, 0), program_value_bytes(&t.program, t.out));
    }
    run_destroy(run);
    worker_destroy(worker);
    comm_destroy(comm);
    kernels_destroy(kernels);
    pool_destroy(pool);
    program_release(&t.program);
    return NULL;
}

/* One token through all layers, then doubled. */
static void expect_token(int step, int token, int residual, double *x)
{
    double h[F], y[D];

    for (int k = 0; k < D; k++)
        x[k] = (double)whole_number(step, 0, token * D + k);
    for (int l = 0; l < N_LAYERS; l++) {
        for (int i = 0; i < F; i++) {
            h[i] = 0;
            for (int k = 0; k < D; k++)
                h[i] += x[k] * (double)whole_number(step, 1 + l, i * D + k);
        }
        for (int k = 0; k < D; k++) {
            y[k] = 0;
            for (int i = 0; i < F; i++)
                y[k] += h[i] * (double)whole_number(step, 101 + l, k * F + i);
        }
        for (int k = 0; k < D; k++)
            x[k] = residual ? x[k] + y[k] : y[k];
    }
    for (int k = 0; k < D; k++) {
        x[k] *= 2;
        assert_true(fabs(x[k]) < 1 << 20); /* so fp32 was exact */
    }
}

static void check_layers(int tp_size, int residual, int poison, int late)
{
    struct player players[TP_MAX];
    pthread_t threads[TP_MAX];
    struct comm_hub *hub;
    struct err err;
    int n_nonzero = 0;

    assert_int_equal(comm_hub_create(&hub, tp_size, &err), 0);
    for (int r = 0; r < tp_size; r++) {
        players[r] = (struct player){ .hub = hub,
                                      .rank = r,
                                      .tp_size = tp_size,
                                      .residual = residual,
                                      .poison = poison,
                                      .late = late };
        assert_int_equal(pthread_create(&threads[r], NULL, play_rank, &players[r]), 0);
    }
    for (int r = 0; r < tp_size; r++)
        pthread_join(threads[r], NULL);
    comm_hub_destroy(hub);
    for (int step = 0; step < N_STEPS; step++)
        for (int token = 0; token < TOKENS; token++) {
            int rows = TOKENS / tp_size;
            const float *out = players[token / rows].out[step] + token % rows * D;
            double wanted[D];

            expect_token(step, token, residual, wanted);
            for (int k = 0; k < D; k++) {
                if (!((double)out[k] == wanted[k]))
                    fail_msg("tp %d, step %d, token %d: %g at %d, wanted %g", tp_size, step, token,
                             (double)out[k], k, wanted[k]);
                n_nonzero += wanted[k] != 0;
            }
        }
    assert_true(n_nonzero > N_STEPS * TOKENS);
}

static void layers(void **state)
{
    (void)state;
    for (int tp_size = 2; tp_size <= TP_MAX; tp_size *= 2)
        for (int residual = 0; residual < 2; residual++)
            for (int poison = 0; poison < 2; poison++)
                for (int late = 0; late < 2; late++)
                    check_layers(tp_size, residual, poison, late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
