/*
 * value_gradient_test.c - the gradient of what is computed from a parameter
 *
 * A head whose weight's rows count by direction alone (Baichuan 2): in the forward, of each
 * micro-batch,
 *
 *     y, norm      = normalize_rows weight
 *     dx, dy, loss += head_cross_entropy x, y, ...     dy is a plain value, so from zero
 *     weight.grad  += normalize_rows_grad dy, weight, norm
 *
 * and where the vocabulary is split over tp, dy takes a linear_dw a piece of the rows. Here the
 * programs are built by hand, run, and laid out over ranks.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "program/passes.h"
#include "run/run.h"
#include "support/op_facts.h"
#include "support/tiny_model.h"

enum { ROWS = 6, HIDDEN = 5, VOCABULARY = 8, MICRO_BATCHES = 3 };

struct head {
    struct program program;
    int x, target, scale, weight, parameter, dy, loss;
    struct chunk_functions chunk;
    int update;
};

static void emit(struct head *h, struct op op)
{
    op.layer = -1;
    program_emit(&h->program, h->chunk.forward, &op);
}

/* All rows at once, with the loss. */
static void emit_whole(struct head *h, int y)
{
    int dx = program_value(&h->program, ROWS, HIDDEN, DTYPE_F32);

    h->loss = program_cell(&h->program, ROLE_SCALAR, "loss", 1, 1, DTYPE_F64);
    emit(h, (struct op){ .kind = OP_HEAD_CROSS_ENTROPY,
                         .attributes.chunk = 4,
                         .in = { h->x, y, h->target, h->scale },
                         .out = { dx, h->dy, h->loss } });
}

/* In two pieces; their logits stand for gradients of these. */
static void emit_pieces(struct head *h, int y)
{
    struct program *p = &h->program;
    const int rows[] = { 0, 4, ROWS };

    for (int i = 0; i < 2; i++) {
        int n = rows[i + 1] - rows[i];
        int x = program_view(p, h->x, rows[i] * HIDDEN, n, HIDDEN, HIDDEN);
        int logits = program_value(p, n, p->values[y].rows, DTYPE_F32);

        emit(h, (struct op){ .kind = OP_LINEAR, .in = { x, y }, .out = { logits } });
        emit(h, (struct op){ .kind = OP_LINEAR_DW,
                             .in = { logits, x },
                             .out = { h->dy },
                             .first = i ? FIRST_NEVER : FIRST_MICRO_BATCH });
    }
}

static void build(struct head *h, int dp, int tp, int pieces)
{
    const struct parameter_split by_rows = { .along = SPREAD_ROWS,
                                             .n_pieces = 1,
                                             .pieces = { VOCABULARY } };
    struct mesh mesh = mesh_data_parallel(dp);
    struct program *p = &h->program;

    memset(h, 0, sizeof *h);
    mesh.size[AXIS_TP] = tp;
    program_init(p, &mesh);
    h->x = program_cell(p, ROLE_INPUT, "x", ROWS, HIDDEN, DTYPE_F32);
    h->target = program_cell(p, ROLE_INPUT, "target", ROWS, 1, DTYPE_I32);
    h->scale = program_cell(p, ROLE_SCALAR, "scale", 1, 1, DTYPE_F32);
    program_split_rows(p, h->x);
    program_split_rows(p, h->target);
    h->parameter =
        program_parameter(p, "head.weight", 2, VOCABULARY, HIDDEN, DTYPE_F32, INIT_NORMAL, 0.02);
    program_split_parameter(p, h->parameter, AXIS_TP, &by_rows);
    h->weight = p->parameters[h->parameter].weight;
    int forward = program_function(p, "forward 0", 0);
    int backward = program_function(p, "backward 0", 0);
    h->update = program_function(p, "update", 0);
    h->chunk = (struct chunk_functions){ forward, backward, backward, backward, -1, -1, -1, -1, 0 };

    int64_t n = p->values[h->weight].rows;
    int y = program_value(p, n, HIDDEN, DTYPE_F32), norm = program_value(p, n, 1, DTYPE_F32);
    h->dy = program_value(p, n, HIDDEN, DTYPE_F32);
    emit(h, (struct op){ .kind = OP_NORMALIZE_ROWS,
                         .attributes.eps = 1e-12,
                         .in = { h->weight },
                         .out = { y, norm } });
    if (pieces)
        emit_pieces(h, y);
    else
        emit_whole(h, y);
    emit(h, (struct op){ .kind = OP_NORMALIZE_ROWS_GRAD,
                         .attributes.eps = 1e-12,
                         .in = { h->dy, h->weight, norm },
                         .out = { program_add_gradient(p, h->parameter) } });
}

static void finish(struct head *h, int gather)
{
    struct err err;

    schedule_alone(&h->program, &h->chunk, gather, h->update, MICRO_BATCHES);
    place(&h->program);
    if (verify(&h->program, &err) < 0)
        fail_msg("%s", err.text);
}

/* ---- run ---- */

struct rig {
    struct head head;
    struct run *run;
};

static float number(int what, int i)
{
    struct rng_block b = rng_at(1, RNG_TEST, (uint64_t)what, (uint64_t)i);

    return rng_normal(b.word[0], b.word[1]);
}

static int load(void *context, int micro_batch, struct err *err)
{
    struct rig *rig = context;
    float *x = run_data(rig->run, rig->head.x, micro_batch);
    int32_t *target = run_data(rig->run, rig->head.target, micro_batch);

    (void)err;
    for (int i = 0; i < ROWS * HIDDEN; i++)
        x[i] = number(micro_batch, i);
    for (int i = 0; i < ROWS; i++)
        target[i] = (3 * i + micro_batch) % VOCABULARY - (i == 4);
    return 0;
}

/* What one step adds up, micro-batch by micro-batch, in double precision. */
static void expected_gradient(const double *w, int pieces, double *dw)
{
    double y[VOCABULARY * HIDDEN], norm[VOCABULARY], x[ROWS * HIDDEN], dx[ROWS * HIDDEN];
    double dy[VOCABULARY * HIDDEN], logits[ROWS * VOCABULARY], scale = 0.5, loss;
    struct tensor of_w = { (double *)w, VOCABULARY, HIDDEN, HIDDEN, DTYPE_F64 };
    struct tensor of_y = { y, VOCABULARY, HIDDEN, HIDDEN, DTYPE_F64 };
    struct tensor of_norm = { norm, VOCABULARY, 1, 1, DTYPE_F64 };
    struct tensor of_dy = { dy, VOCABULARY, HIDDEN, HIDDEN, DTYPE_F64 };
    struct tensor of_x = { x, ROWS, HIDDEN, HIDDEN, DTYPE_F64 };
    struct tensor of_dx = { dx, ROWS, HIDDEN, HIDDEN, DTYPE_F64 };
    struct tensor of_logits = { logits, ROWS, VOCABULARY, VOCABULARY, DTYPE_F64 };
    struct tensor of_scale = { &scale, 1, 1, 1, DTYPE_F64 };
    struct tensor of_loss = { &loss, 1, 1, 1, DTYPE_F64 };
    struct op_shape grad = { .kind = OP_NORMALIZE_ROWS_GRAD,
                             .attributes.eps = 1e-12,
                             .in = { of_dy, of_w, of_norm },
                             .out = { { dw, VOCABULARY, HIDDEN, HIDDEN, DTYPE_F64 } } };

    reference_run(&(struct op_shape){ .kind = OP_NORMALIZE_ROWS,
                                      .attributes.eps = 1e-12,
                                      .in = { of_w },
                                      .out = { of_y, of_norm } },
                  1);
    for (int m = 0; m < MICRO_BATCHES; m++) {
        int32_t target[ROWS];
        struct tensor of_target = { target, ROWS, 1, 1, DTYPE_I32 };

        for (int i = 0; i < ROWS * HIDDEN; i++)
            x[i] = (double)number(m, i);
        for (int i = 0; i < ROWS; i++)
            target[i] = (3 * i + m) % VOCABULARY - (i == 4);
        if (pieces) {
            reference_run(
                &(struct op_shape){ .kind = OP_LINEAR, .in = { of_x, of_y }, .out = { of_logits } },
                1);
            reference_run(&(struct op_shape){ .kind = OP_LINEAR_DW,
                                              .in = { of_logits, of_x },
                                              .out = { of_dy } },
                          1);
        } else {
            reference_run(&(struct op_shape){ .kind = OP_HEAD_CROSS_ENTROPY,
                                              .in = { of_x, of_y, of_target, of_scale },
                                              .out = { of_dx, of_dy, of_loss } },
                          1);
        }
        reference_run(&grad, m == 0);
    }
}

static void check_run(int pieces)
{
    struct rig rig;
    struct pool *pool;
    struct kernels *kernels = NULL;
    struct err err;
    double w[VOCABULARY * HIDDEN], dw[VOCABULARY * HIDDEN];

    build(&rig.head, 1, 1, pieces);
    struct program *p = &rig.head.program;
    if (pool_create(&pool, 2, NULL, &err) || kernels_cpu_create(&kernels, pool, NULL, &err))
        fail_msg("%s", err.text);
    struct run_scratch scratch = { .kernels = kernels, .mesh = p->mesh };
    program_size_scratch(p, run_scratch_bytes, &scratch);
    finish(&rig.head, -1);
    struct run_options options = { .program = p, .kernels = kernels, .poison = 1 };
    if (run_create(&rig.run, &options, &err))
        fail_msg("%s", err.text);
    float *weight = run_data(rig.run, rig.head.weight, 0);
    for (int i = 0; i < VOCABULARY * HIDDEN; i++)
        w[i] = weight[i] = number(99, i);
    *(float *)run_data(rig.run, rig.head.scale, 0) = 0.5f;
    expected_gradient(w, pieces, dw);
    for (int step = 0; step < 2; step++) {
        struct run_hooks hooks = { .context = &rig, .load = load };

        if (run_entry(rig.run, ENTRY_STEP, 0, &hooks, &err))
            fail_msg("%s", err.text);
        const float *got = run_data(rig.run, p->parameters[rig.head.parameter].gradients[0], 0);
        for (int i = 0; i < VOCABULARY * HIDDEN; i++)
            assert_true(fabs((double)got[i] - dw[i]) < 1e-5);
    }
    run_destroy(rig.run);
    kernels_destroy(kernels);
    pool_destroy(pool);
    program_release(p);
}

static void micro_batches_add_up(void **state)
{
    (void)state;
    check_run(0);
    check_run(1);
}

/* ---- layouts ---- */

/* Its sum over ranks is owed where they have other rows each, as the accumulator's is. */
static void layouts_are_accepted(void **state)
{
    (void)state;
    for (int dp = 1; dp < 3; dp++)
        for (int tp = 1; tp < 3; tp++)
            for (int zero = 0; zero < (dp > 1 ? 4 : 1); zero++)
                for (int early = zero > 1; early < 2; early++) {
                    struct shard_options options = { .zero = zero, .early = early, .n_sizes = 1 };
                    struct head h;
                    int gather = -1;

                    build(&h, dp, tp, tp > 1);
                    const struct value *dy = &h.program.values[h.dy];
                    assert_int_equal(dy->spread[AXIS_DP], dp > 1 ? SPREAD_PARTIAL : SPREAD_SAME);
                    assert_int_equal(dy->spread[AXIS_TP], tp > 1 ? SPREAD_ROWS : SPREAD_SAME);
                    shard_gradients(&h.program, &h.chunk, 1, h.update, &options);
                    if (zero == 3) {
                        zero3_shard_weights(&h.program);
                    } else if (zero) {
                        gather = program_function(&h.program, "gather", 0);
                        gather_parameters(&h.program, &h.chunk, 1, gather);
                    }
                    schedule_alone(&h.program, &h.chunk, gather, h.update, MICRO_BATCHES);
                    if (zero == 3)
                        zero3_gather_weights(&h.program, ZERO3_GATHER_OP, 0);
                    struct err err;
                    place(&h.program);
                    if (verify(&h.program, &err) < 0)
                        fail_msg("dp %d tp %d zero %d: %s", dp, tp, zero, err.text);
                    program_release(&h.program);
                }
}

/* A plain value that is only ever added to was never started. */
static void must_be_started(void **state)
{
    struct head h;
    struct err err;

    (void)state;
    build(&h, 1, 1, 1);
    struct function *f = &h.program.functions[h.chunk.forward];
    for (int i = 0; i < f->n_ops; i++)
        if (f->ops[i].kind == OP_LINEAR_DW)
            f->ops[i].first = FIRST_NEVER;
    schedule_alone(&h.program, &h.chunk, -1, h.update, MICRO_BATCHES);
    assert_int_equal(verify(&h.program, &err), -1);
    assert_non_null(strstr(err.text, "is added to what was never started"));
    for (int i = 0; i < f->n_ops; i++)
        f->ops[i].first = FIRST_MICRO_BATCH;
    assert_int_equal(verify(&h.program, &err), -1);
    assert_non_null(strstr(err.text, "is written twice"));
    program_release(&h.program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(micro_batches_add_up),
        cmocka_unit_test(layouts_are_accepted),
        cmocka_unit_test(must_be_started),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
