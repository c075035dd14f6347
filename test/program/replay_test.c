/*
 * replay_test.c - who watches a replay sees each transfer given, begun and done, in that order, and
 * neither begun before what it comes after nor done before all whom it meets have begun
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "program/replay.h"
#include "support/tiny_model.h"

enum { PP = 4, TP = 2, N_RANKS = PP * TP };

struct watching {
    const struct replay *replay;
    int n_given, n_begun, n_done, n_met;
    int n_left; /* transfers given until the watch fails; 0: it does not */
};

static int sees_given(void *context, const struct replay_transfer *t)
{
    struct watching *w = context;

    assert_false(t->has_begun);
    assert_false(t->is_done);
    w->n_given++;
    return w->n_left && !--w->n_left ? -1 : 0;
}

static int sees_begun(void *context, const struct replay_transfer *t,
                      const struct replay_transfer *first)
{
    struct watching *w = context;
    const struct replay_queue *stream = &w->replay->list[t->rank].streams[t->op->stream];

    assert_true(t->has_begun);
    assert_false(t->is_done);
    assert_true(first->has_begun);
    assert_int_equal(first->op->kind, t->op->kind);
    assert_int_equal(stream->n_done, t->place);
    for (int i = 0; i < t->n_after; i++)
        assert_true(w->replay->transfers[t->after[i]].is_done);
    w->n_begun++;
    return 0;
}

static int sees_done(void *context, const struct replay_transfer *t,
                     const struct replay_transfer *other)
{
    struct watching *w = context;

    assert_true(t->is_done);
    assert_true(other->has_begun);
    assert_true(other->is_done);
    if (t != other) {
        assert_int_equal(replay_other_rank(w->replay, t), other->rank);
        assert_int_equal(replay_other_rank(w->replay, other), t->rank);
        w->n_met++;
    }
    w->n_done += 1 + (t != other);
    return 0;
}

static int sees_stuck(void *context)
{
    (void)context;
    fail_msg("nobody can go on");
    return -1;
}

static void compile(struct program *stages, const struct mesh *mesh, const struct program **list)
{
    struct model_spec spec = tiny_spec("llama");
    struct err err;

    spec.n_layers = 8;
    for (int stage = 0; stage < PP; stage++) {
        struct compile_train options = tiny_compile(&spec, 1);

        options.mesh = *mesh;
        options.n_micro_batches = 12;
        options.pipeline.kind = PIPELINE_1F1B;
        options.pipeline.rank = stage;
        if (compile_train(&stages[stage], &options, &err) < 0)
            fail_msg("%s", err.text);
    }
    for (int rank = 0; rank < N_RANKS; rank++)
        list[rank] = &stages[mesh_coordinate(mesh, rank, AXIS_PP)];
}

/* Returns what the replay does. n_left: see struct watching. */
static int replay_step(int in_full, int n_left, struct watching *w)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct program stages[PP];
    const struct program *list[N_RANKS];
    const struct replay_watch watch = { w, sees_given, sees_begun, sees_done, sees_stuck };
    struct replay replay = { .mesh = &mesh, .entry = ENTRY_STEP, .watch = &watch };

    mesh.size[AXIS_TP] = TP;
    mesh.size[AXIS_PP] = PP;
    compile(stages, &mesh, list);
    *w = (struct watching){ .replay = &replay, .n_left = n_left };
    int status = replay_run(&replay, list, in_full);
    for (int rank = 0; !status && rank < N_RANKS; rank++)
        assert_true(replay_is_over(&replay, rank));
    replay_release(&replay);
    for (int i = 0; i < PP; i++)
        program_release(&stages[i]);
    return status;
}

static void each_is_seen(void **state)
{
    struct watching full, less;

    (void)state;
    assert_int_equal(replay_step(1, 0, &full), 0);
    assert_int_equal(full.n_begun, full.n_given);
    assert_int_equal(full.n_done, full.n_given);
    /* Boundaries of 12 micro-batches, both ways. */
    assert_int_equal(full.n_met, 2 * 12 * (PP - 1) * TP);
    assert_int_equal(replay_step(0, 0, &less), 0);
    assert_int_equal(less.n_done, less.n_given);
    assert_true(less.n_given < full.n_given);
}

static void the_watch_ends_it(void **state)
{
    struct watching w;

    (void)state;
    assert_int_equal(replay_step(1, 17, &w), -1);
    assert_int_equal(w.n_given, 17);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_seen),
        cmocka_unit_test(the_watch_ends_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
