/*
 * search_fit_test.c - what searched layouts keep and send away: under less memory, and as a plan
 * says it
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gpu_sizes.h"
#include "plan/fit.h"
#include "plan/search_job.h"
#include "plan/step_time.h"

struct fixture {
    struct arena arena;
    struct kernels *kernels;
    struct device_spec device;
    struct cluster cluster;
    struct job job;
};

static void open_fixture(struct fixture *f)
{
    struct err err;

    *f = (struct fixture){ .arena = { 0 } };
    if (kernels_gpu_sizes_create(&f->kernels, &err))
        fail_msg("%s", err.text);
}

static void close_fixture(struct fixture *f)
{
    kernels_destroy(f->kernels);
    arena_release(&f->arena);
}

static void read_job(struct fixture *f, const char *text)
{
    struct err err;

    if (job_read_text(&f->job, text, strlen(text), "job.yaml", NULL, 0, &f->arena, &err))
        fail_msg("%s", err.text);
}

/* Devices with so much memory, `per_node` of them under the fast link. */
static void make_cluster(struct fixture *f, int n_ranks, int per_node, int64_t memory)
{
    struct err err;

    if (device_read(&f->device, "h100-sxm", &f->arena, &err))
        fail_msg("%s", err.text);
    f->device.memory = memory;
    f->device.reserve = 0;
    f->device.fast_domain = per_node;
    cluster_of_device(&f->cluster, &f->device, n_ranks, &f->arena);
}

#define MODEL_8 \
    "model: {vocab_size: 512, hidden_size: 64, n_layers: 8, n_heads: 4, ffn_size: 128, " \
    "max_seq_len: 128}, data: {train: a, seq_len: 128}, device: cuda, "

/* The layout of a two-stage pipeline with this text, on devices of so many bytes, with what the job
 * then says it takes. */
static struct search_row find_recomputed(const char *text, int64_t memory)
{
    struct search_result result;
    struct fixture f;
    struct plan plan;
    struct step_time time;
    struct err err;
    char job[500];

    open_fixture(&f);
    snprintf(job, sizeof job,
             "{" MODEL_8 "train: {steps: 1, global_batch: 64, micro_batch: 8, dtype: bf16}, %s"
             " parallel: {mode: semi, tp: 1, pp: 2, zero: 0, schedule: 1f1b, bucket_mb: 32}}",
             text);
    read_job(&f, job);
    make_cluster(&f, 2, 2, memory);
    f.job.search.memory_share = 1;
    f.job.search.within = 0;
    f.job.memory.recompute_early = 0; /* auto is chosen behind the search, of what is left */
    if (search_job(&result, &f.job, 2, 50, &f.cluster, f.kernels, NULL, &f.arena, &err))
        fail_msg("%s", err.text);
    struct search_row row = result.rows[0];
    assert_true(row.bytes <= (size_t)memory);
    assert_int_equal(row.estimate_bytes, row.bytes);
    assert_int_equal(f.job.recompute, row.layout.recompute);
    f.job.rates = &f.cluster;
    if (job_resolve(&f.job, 2, &f.arena, &err) || plan_open_with(&plan, &f.job, f.kernels, &err) ||
        step_time_predict(&time, &plan, &f.cluster, &f.arena, &err))
        fail_msg("%s", err.text);
    assert_int_equal(time.ns, row.ns);
    assert_int_equal(plan_judge(&plan, &f.cluster, 1).needed, row.bytes);
    plan_close(&plan);
    close_fixture(&f);
    return row;
}

/* Where not all can be kept, layers compute some again, in less time than with one setting of all;
 * less memory takes no less time. */
static void test_layers_are_recomputed_where_memory_is_short(void **state)
{
    const int64_t much = (int64_t)1 << 30;
    struct search_row none = find_recomputed("recompute: none,", much);
    struct search_row selective = find_recomputed("recompute: selective,", much);
    struct search_row full = find_recomputed("recompute: full,", much);
    int64_t before = 0;

    (void)state;
    assert_true(none.bytes > selective.bytes && selective.bytes > full.bytes);
    assert_true(none.ns < selective.ns && selective.ns < full.ns);
    for (int i = 4; i >= 0; i--) {
        size_t memory =
            i == 4 ? none.bytes : full.bytes + (none.bytes - full.bytes) / 4 * (size_t)i;
        struct search_row row = find_recomputed("recompute: auto,", (int64_t)memory);

        assert_int_equal(row.layout.recompute, RECOMPUTE_AUTO);
        assert_true(row.ns >= none.ns && row.ns <= full.ns && row.ns >= before);
        assert_true(row.bytes < selective.bytes || row.ns <= selective.ns);
        assert_int_equal(row.recompute_ns > 0, i < 4);
        before = row.ns;
    }
}

/* memory.device_bytes is the limit; what fits no device does so with what leaves it, which takes
 * time. */
static void test_the_limit_is_the_jobs(void **state)
{
    const int64_t much = (int64_t)1 << 30;
    struct search_row least = find_recomputed("recompute: full,", much);
    size_t less = least.bytes / 4 * 3;
    char text[200];

    (void)state;
    snprintf(text, sizeof text, "recompute: auto, memory: {device_bytes: %zu},", least.bytes);
    struct search_row row = find_recomputed(text, much);
    assert_true(row.bytes <= least.bytes && row.recompute_ns > 0);
    assert_int_equal(row.moved_bytes, 0);
    snprintf(text, sizeof text,
             "recompute: auto, memory: {device_bytes: %zu, offload: auto, host_bytes: 1 GiB},",
             less);
    row = find_recomputed(text, much);
    assert_true(row.bytes <= less && row.moved_bytes > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_are_recomputed_where_memory_is_short),
        cmocka_unit_test(test_the_limit_is_the_jobs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
