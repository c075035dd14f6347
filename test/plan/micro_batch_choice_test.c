/*
 * micro_batch_choice_test.c - sizes for a job: no slower than equal ones, within memory, as asked
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "kernels/gpu_sizes.h"
#include "plan/fit.h"
#include "plan/micro_batch_choice.h"
#include "plan/step_time.h"

struct fixture {
    struct arena arena;
    struct kernels *kernels;
    struct device_spec device;
    struct cluster cluster;
    struct job job;
};

static void open_fixture(struct fixture *f, const char *const *sets, int n_sets)
{
    static const char text[] =
        "{model: {vocab_size: 4096, hidden_size: 1024, n_layers: 8, n_heads: 16, ffn_size: 4096,"
        " max_seq_len: 1024}, data: {train: a, seq_len: 1024}, device: cuda, ranks: 4,"
        " train: {steps: 100, global_batch: 32, dtype: bf16}, recompute: none,"
        " parallel: {pp: 4, schedule: dynamic, chunks: 1, micro_batches: auto}}";
    struct err err;

    *f = (struct fixture){ .arena = { 0 } };
    if (kernels_gpu_sizes_create(&f->kernels, &err) ||
        device_read(&f->device, "a100-sxm-80", &f->arena, &err) ||
        job_read_text(&f->job, text, strlen(text), "job.yaml", sets, n_sets, &f->arena, &err))
        fail_msg("%s", err.text);
    cluster_of_device(&f->cluster, &f->device, f->job.ranks, &f->arena);
}

static void close_fixture(struct fixture *f)
{
    kernels_destroy(f->kernels);
    arena_release(&f->arena);
}

static struct micro_batch_sizes choose(struct fixture *f)
{
    struct micro_batch_sizes found;
    struct err err;
    int sum = 0, dp = f->job.ranks / f->job.parallel.pp / f->job.parallel.tp;

    if (micro_batch_choice(&found, &f->job, f->job.ranks, &f->cluster, f->kernels, &f->arena, &err))
        fail_msg("%s", err.text);
    assert_false(f->job.parallel.micro_batches_auto);
    assert_int_equal(f->job.parallel.micro_batches.n, found.n);
    for (int m = 0; m < found.n; m++) {
        sum += found.sizes[m];
        assert_int_equal(f->job.parallel.micro_batches.values[m], found.sizes[m]);
        assert_in_range(found.sizes[m], 1, f->job.train.micro_batch);
    }
    assert_int_equal(sum * dp, f->job.train.global_batch);
    return found;
}

/* The simulated step of compiled programs. */
static int64_t step_of(struct fixture *f, const struct job *read, struct plan_fit *fit)
{
    struct job job = *read;
    struct step_time time;
    struct plan plan;
    struct err err;

    job.rates = &f->cluster;
    if (job_resolve(&job, job.ranks, &f->arena, &err) ||
        plan_open_with(&plan, &job, f->kernels, &err) ||
        step_time_predict(&time, &plan, &f->cluster, &f->arena, &err))
        fail_msg("%s", err.text);
    *fit = plan_judge(&plan, &f->cluster, 0);
    plan_close(&plan);
    return time.simulated.ns;
}

/* The list's time is that of its programs but for transfers that wait for each other and the
 * update, and the best of equal sizes takes longer there, too. */
static void test_is_faster(void **state)
{
    struct fixture f;
    struct plan_fit fit;

    (void)state;
    open_fixture(&f, NULL, 0);
    struct micro_batch_sizes found = choose(&f), again;
    struct job even = f.job;
    int64_t ns = step_of(&f, &f.job, &fit);

    assert_true(fit.fits);
    assert_true(found.ns < found.even_ns);
    assert_in_range(ns, found.ns * 98 / 100, found.ns * 110 / 100);
    even.parallel.micro_batches = (struct job_counts){ NULL, 0 };
    even.parallel.schedule = PIPELINE_1F1B;
    even.train.micro_batch = found.even;
    assert_true(ns < step_of(&f, &even, &fit));

    f.job.parallel.micro_batches_auto = 1;
    f.job.train.micro_batch = 0;
    again = choose(&f);
    assert_int_equal(again.n, found.n);
    assert_memory_equal(again.sizes, found.sizes, sizeof *found.sizes * (size_t)found.n);
    close_fixture(&f);
}

/* None is larger than train.micro_batch, or than tp ranks can divide. */
static void test_what_is_given(void **state)
{
    static const char *const largest[] = { "train.micro_batch=2" };
    static const char *const odd[] = { "parallel.tp=2", "ranks=8", "data.seq_len=1023",
                                       "parallel.sequence_parallel=true" };
    struct fixture f;

    (void)state;
    open_fixture(&f, largest, 1);
    choose(&f);
    assert_in_range(f.job.train.micro_batch, 1, 2);
    close_fixture(&f);
    open_fixture(&f, odd, 4);
    struct micro_batch_sizes found = choose(&f);
    for (int m = 0; m < found.n; m++)
        assert_int_equal(found.sizes[m] % 2, 0);
    close_fixture(&f);
}

/* A device that has no room for the sizes that would be best. */
static void test_memory(void **state)
{
    struct fixture f;
    struct plan_fit fit;

    (void)state;
    open_fixture(&f, NULL, 0);
    choose(&f);
    int roomy = f.job.train.micro_batch;
    step_of(&f, &f.job, &fit);
    close_fixture(&f);

    open_fixture(&f, NULL, 0);
    size_t available = plan_available_bytes(&f.device, 0);
    f.device.reserve += (int64_t)available - (int64_t)fit.needed * 9 / 10;
    choose(&f);
    step_of(&f, &f.job, &fit);
    assert_true(fit.fits);
    assert_true(f.job.train.micro_batch < roomy);
    close_fixture(&f);
}

static void test_refusals(void **state)
{
    static const char *const sets[] = { "ranks=12" };
    struct micro_batch_sizes found;
    struct fixture f;
    struct err err;

    (void)state;
    open_fixture(&f, sets, 1);
    assert_int_equal(job_resolve(&f.job, 12, &f.arena, &err), -1);
    assert_non_null(strstr(err.text, "parallel.micro_batches is auto: they are chosen for the "));
    assert_int_equal(micro_batch_choice(&found, &f.job, 12, &f.cluster, f.kernels, &f.arena, &err),
                     -1);
    assert_string_equal(err.text,
                        "job.yaml: train.global_batch is 32, not a multiple of dp 3 (hint: 33)");
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_faster),
        cmocka_unit_test(test_what_is_given),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
