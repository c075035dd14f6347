/*
 * whole_run_test.c - all steps of a run: bytes of a checkpoint in any layout, what waits for it,
 * sums over devices of two kinds
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/gpu_sizes.h"
#include "plan/whole_run.h"

struct fixture {
    struct arena arena;
    struct kernels *kernels;
    struct device_spec device;
    struct cluster cluster;
    struct job job;
    struct plan plan;
    struct step_time time;
};

#define JOB(more) \
    "{model: {vocab_size: 512, hidden_size: 64, n_layers: 4, n_heads: 4, ffn_size: 128," \
    " max_seq_len: 128}, data: {train: a, seq_len: 128}, device: cuda," \
    " train: {steps: 100, global_batch: 32, micro_batch: 1, dtype: bf16}" more "}"

static void open_run(struct fixture *f, const char *text, int n_ranks)
{
    struct err err;

    *f = (struct fixture){ .arena = { 0 } };
    if (kernels_gpu_sizes_create(&f->kernels, &err) ||
        device_read(&f->device, "h100-sxm", &f->arena, &err) ||
        job_read_text(&f->job, text, strlen(text), "job.yaml", NULL, 0, &f->arena, &err) ||
        job_resolve(&f->job, n_ranks, &f->arena, &err) < 0)
        fail_msg("%s", err.text);
    cluster_of_device(&f->cluster, &f->device, n_ranks, &f->arena);
    if (plan_open_with(&f->plan, &f->job, f->kernels, &err) ||
        step_time_predict(&f->time, &f->plan, &f->cluster, &f->arena, &err))
        fail_msg("%s", err.text);
}

static void close_run(struct fixture *f)
{
    plan_close(&f->plan);
    kernels_destroy(f->kernels);
    arena_release(&f->arena);
}

static struct whole_run find(struct fixture *f)
{
    struct whole_run run;

    whole_run_find(&run, &f->plan, &f->cluster, &f->time);
    return run;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* A checkpoint has each parameter with its moments once, however they are divided. */
static void test_bytes(void **state)
{
    static const struct {
        const char *text;
        int n_ranks;
    } layouts[] = {
        { JOB(""), 1 },
        { JOB(", parallel: {dp: 4}"), 4 },
        { JOB(", parallel: {dp: 4, zero: 1}"), 4 },
        { JOB(", parallel: {dp: 4, zero: 3}"), 4 },
        { JOB(", parallel: {tp: 2, dp: 2, zero: 2}"), 4 },
        { JOB(", parallel: {pp: 2, tp: 2}"), 4 },
        { JOB(", parallel: {pp: 2, schedule: interleaved, chunks: 2}"), 2 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct fixture f;

        open_run(&f, layouts[i].text, layouts[i].n_ranks);
        double n = (double)model_spec_n_parameters(&f.job.model);
        assert_true(find(&f).checkpoints.bytes == 12 * n);
        close_run(&f);
    }
    struct fixture f;
    open_run(&f, JOB(", optimizer: {states: bf16}"), 1);
    /* Norms keep fp32 masters. */
    double n_norms = (2 * 4 + 1) * 64, n_all = (double)model_spec_n_parameters(&f.job.model);
    assert_true(find(&f).checkpoints.bytes == 6 * (n_all - n_norms) + 8 * n_norms);
    close_run(&f);
}

/* How many there are, and when steps wait for them. */
static void test_checkpoints(void **state)
{
    struct fixture f;

    (void)state;
    open_run(&f, JOB(", checkpoint: {every_steps: 30}, parallel: {dp: 2}"), 2);
    struct whole_run without = find(&f);
    assert_int_equal(without.checkpoints.n, 4);
    assert_true(without.checkpoints.save_seconds == 0 && without.checkpoints.load_seconds == 0);
    assert_true(is_near(without.seconds, 100 * (double)f.time.ns / 1e9));

    double step = (double)f.time.ns / 1e9, bytes = without.checkpoints.bytes;
    f.cluster.links.storage_write = bytes / (step / 10);
    f.cluster.links.storage_read = bytes;
    struct whole_run hidden = find(&f);
    assert_true(is_near(hidden.checkpoints.save_seconds, step / 10));
    assert_true(hidden.checkpoints.stall_seconds == 0);
    assert_true(is_near(hidden.seconds, without.seconds + step / 10));
    /* Both ranks keep all, and read it. */
    assert_true(is_near(hidden.checkpoints.load_seconds, 2));

    f.cluster.links.storage_write = bytes / (3 * step);
    struct whole_run waits = find(&f);
    assert_true(waits.checkpoints.stall_seconds > 2 * step);
    assert_true(waits.checkpoints.stall_seconds < 3 * step);
    assert_true(
        is_near(waits.seconds, without.seconds + 3 * waits.checkpoints.stall_seconds + 3 * step));

    /* A rank's half over its link to the host, which two share. */
    f.cluster.links.host_bandwidth = bytes / 100;
    f.cluster.links.host_shared_by = 2;
    assert_true(is_near(find(&f).checkpoints.save_seconds, 100));
    close_run(&f);
}

static void test_sums(void **state)
{
    struct fixture f;
    struct cluster_island islands[2];

    (void)state;
    open_run(&f, JOB(", parallel: {dp: 4}"), 4);
    islands[0] = islands[1] = f.cluster.islands[0];
    islands[0].n_nodes = islands[1].n_nodes = 1;
    islands[0].per_node = 3;
    islands[1].per_node = 8;
    islands[0].watts = 1000;
    islands[0].price_per_hour = 2;
    f.cluster.islands = islands;
    f.cluster.n_islands = 2;
    assert_true(find(&f).kilowatt_hours == 0 && find(&f).price == 0);
    islands[1].watts = 400;
    islands[1].price_per_hour = 1;
    struct whole_run run = find(&f);
    assert_true(is_near(run.kilowatt_hours, 3.4 * run.seconds / 3600));
    assert_true(is_near(run.price, 7 * run.seconds / 3600));
    assert_true(is_near(run.device_days, 4 * run.seconds / 86400));
    assert_true(is_near(run.device_days_at_peak, run.megatron_flops / 989e12 / 86400));
    assert_true(run.tokens == 100 * 32 * 128);
    close_run(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_sums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
