/*
 * sensitivity_test.c - faster parts, a slow rank, other layouts by one change
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <cmocka.h>

#include "kernels/gpu_sizes.h"
#include "plan/changes.h"
#include "plan/sensitivity.h"

struct fixture {
    struct arena arena;
    struct kernels *kernels;
    struct pool *pool;
    struct device_spec device;
    struct cluster cluster;
    struct job job;
    struct plan plan;
    struct step_time time;
    struct sensitivity found;
};

#define JOB(more) \
    "{model: {vocab_size: 4096, hidden_size: 1024, n_layers: 8, n_heads: 16, ffn_size: 4096," \
    " max_seq_len: 1024}, data: {train: a, seq_len: 1024}, device: cuda," \
    " train: {steps: 100, global_batch: 32, micro_batch: 1, dtype: bf16}" more "}"

static const char *const jobs[] = {
    JOB(", ranks: 1"),
    JOB(", ranks: 8, parallel: {dp: 8, zero: 1}, recompute: full"),
    JOB(", ranks: 16, parallel: {tp: 2, pp: 4, dp: 2, zero: 2}, recompute: selective"),
    JOB(", ranks: 32, parallel: {tp: 4, pp: 4, schedule: interleaved, chunks: 2}"),
    JOB(", ranks: 2, parallel: {pp: 2}, recompute_layers: {full: [4, 1], selective: [0, 2]}"),
};
enum { N_JOBS = sizeof jobs / sizeof *jobs };

static void open_fixture(struct fixture *f, const char *text)
{
    struct err err;

    *f = (struct fixture){ .arena = { 0 } };
    if (kernels_gpu_sizes_create(&f->kernels, &err) || pool_create(&f->pool, 2, NULL, &err) ||
        device_read(&f->device, "a100-sxm-80", &f->arena, &err) ||
        job_read_text(&f->job, text, strlen(text), "job.yaml", NULL, 0, &f->arena, &err) ||
        job_resolve(&f->job, f->job.ranks, &f->arena, &err) < 0)
        fail_msg("%s", err.text);
    cluster_of_device(&f->cluster, &f->device, f->job.ranks, &f->arena);
    if (plan_open_with(&f->plan, &f->job, f->kernels, &err) ||
        step_time_predict(&f->time, &f->plan, &f->cluster, &f->arena, &err))
        fail_msg("%s", err.text);
}

static void find(struct fixture *f)
{
    struct plan plan = f->plan;
    struct err err;

    plan.pool = f->pool;
    if (sensitivity_find(&f->found, &plan, &f->cluster, &f->time, &f->arena, &err))
        fail_msg("%s", err.text);
}

static void close_fixture(struct fixture *f)
{
    plan_close(&f->plan);
    pool_destroy(f->pool);
    kernels_destroy(f->kernels);
    arena_release(&f->arena);
}

/* Of a job by one change: its step and what it needs. */
static struct other_layout predict(struct fixture *f, enum change change)
{
    struct job job;
    struct plan plan;
    struct step_time time;
    struct err err;

    assert_true(changes_make(&job, &f->job, change, &f->arena));
    if (plan_open_with(&plan, &job, f->kernels, &err) ||
        step_time_predict(&time, &plan, &f->cluster, &f->arena, &err))
        fail_msg("%s", err.text);
    struct other_layout other = { .ns = time.ns, .fit = plan_judge(&plan, &f->cluster, 0) };
    plan_close(&plan);
    return other;
}

static void test_hardware(void **state)
{
    (void)state;
    for (int i = 0; i < N_JOBS; i++) {
        struct fixture f;

        open_fixture(&f, jobs[i]);
        find(&f);
        int64_t ns = f.time.ns, faster = ns;
        int64_t least = (int64_t)((double)ns / SENSITIVITY_FASTER);
        for (int part = 0; part < N_DEVICE_PARTS; part++) {
            assert_true(f.found.faster_ns[part] <= ns);
            assert_true(f.found.faster_ns[part] >= least);
            faster -= ns - f.found.faster_ns[part];
        }
        assert_true(f.found.faster_ns[PART_PRODUCTS] < ns);
        /* One rank alone has no links. */
        if (f.job.world_size == 1)
            assert_int_equal(f.found.faster_ns[PART_NIC], ns);
        /* Together they are no more than all of a step. */
        assert_true(faster >= least);
        /* What the slow rank computes is a tenth longer, and nothing else. */
        assert_true(f.found.slow_ns > ns);
        assert_true((double)f.found.slow_ns <= (double)ns * SENSITIVITY_SLOWER);
        close_fixture(&f);
    }
}

static void test_halved(void **state)
{
    (void)state;
    for (int i = 0; i < N_JOBS; i++) {
        struct fixture f;

        open_fixture(&f, jobs[i]);
        find(&f);
        struct other_layout by_hand = predict(&f, CHANGE_MICRO_BATCH);
        assert_string_equal(f.found.halved.change, "train.micro_batch: 2");
        assert_int_equal(f.found.halved.ns, by_hand.ns);
        assert_int_equal(f.found.halved.fit.needed, by_hand.fit.needed);
        close_fixture(&f);
    }
    struct fixture f;
    open_fixture(&f, JOB(", ranks: 32"));
    find(&f);
    assert_null(f.found.halved.change);
    close_fixture(&f);
}

/* Just too little memory for less recomputation: more of it would be used. */
static void test_roomier(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f, jobs[1]);
    find(&f);
    assert_null(f.found.roomier.change); /* all of it fits */
    struct other_layout keep_all = predict(&f, CHANGE_KEEP_ALL);
    size_t needed = plan_judge(&f.plan, &f.cluster, 0).needed;
    assert_true(keep_all.ns < f.time.ns && keep_all.fit.needed > needed);
    f.device.reserve = 0;
    f.device.memory = (int64_t)((double)needed / PLAN_MEMORY_SHARE) + 4096;
    assert_true(plan_judge(&f.plan, &f.cluster, 0).fits);
    find(&f);
    assert_string_equal(f.found.roomier.change, "recompute: none");
    assert_int_equal(f.found.roomier.ns, keep_all.ns);
    assert_false(f.found.roomier.fit.fits);

    /* What does not fit itself has no use for a faster layout. */
    f.device.memory /= 2;
    find(&f);
    assert_null(f.found.roomier.change);
    assert_non_null(f.found.halved.change);
    close_fixture(&f);
}

/* Each is a job of as many ranks that resolves; what is not possible is refused. */
static void test_changes(void **state)
{
    static const char *const texts[N_JOBS][N_CHANGES] = {
        { NULL, NULL, NULL, "train.micro_batch: 2", NULL, NULL },
        { "recompute: selective", "recompute: none", "parallel.zero: 0", "train.micro_batch: 2",
          NULL, NULL },
        { NULL, "recompute: none", "parallel.zero: 1", "train.micro_batch: 2", "parallel.tp: 1",
          "parallel.pp: 2" },
        { NULL, NULL, NULL, "train.micro_batch: 2", "parallel.tp: 2", "parallel.pp: 2" },
        /* Layers are of two stages. */
        { "recompute: selective", "recompute: none", NULL, "train.micro_batch: 2", NULL, NULL },
    };

    (void)state;
    for (int i = 0; i < N_JOBS; i++) {
        struct fixture f;

        open_fixture(&f, jobs[i]);
        for (int c = 0; c < N_CHANGES; c++) {
            struct str text = { 0 };
            struct job changed;
            bool is_made = changes_make(&changed, &f.job, (enum change)c, &f.arena);

            assert_int_equal(is_made, texts[i][c] != NULL);
            if (is_made) {
                changes_describe(&f.job, &changed, &text);
                assert_string_equal(str_text(&text), texts[i][c]);
                assert_int_equal(changed.parallel.tp * changed.parallel.pp * changed.parallel.dp,
                                 f.job.world_size);
                assert_int_equal(changed.train.micro_batch * changed.n_micro_batches *
                                     changed.parallel.dp,
                                 f.job.train.global_batch);
            }
            str_release(&text);
        }
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hardware),
        cmocka_unit_test(test_halved),
        cmocka_unit_test(test_roomier),
        cmocka_unit_test(test_changes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
