/*
 * early_layers_test.c - how many layers are recomputed early, by simulation
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gpu_sizes.h"
#include "plan/early_layers.h"
#include "plan/memory_fit.h"
#include "plan/programs.h"
#include "plan/step_time.h"

#define N_STAGES 2

static const char text[] =
    "{model: {vocab_size: 512, hidden_size: 1024, n_layers: 8, n_heads: 8, n_kv_heads: 8, "
    "ffn_size: 2816, max_seq_len: 1024}, data: {train: a, seq_len: 1024}, device: cuda, "
    "cluster: configs/clusters/dgx-h100.yaml, parallel: {pp: 2}, recompute: full, "
    "train: {steps: 10, global_batch: 32, micro_batch: 4, dtype: bf16}}";

struct early {
    struct arena arena;
    struct kernels *kernels;
    struct job job;
};

static void open_early(struct early *e, const char *const *sets, int n_sets)
{
    struct err err;

    *e = (struct early){ 0 };
    if (kernels_gpu_sizes_create(&e->kernels, &err) ||
        job_read_text(&e->job, text, strlen(text), "job.yaml", sets, n_sets, &e->arena, &err) ||
        job_resolve(&e->job, N_STAGES, &e->arena, &err))
        fail_msg("%s", err.text);
}

static void close_early(struct early *e)
{
    kernels_destroy(e->kernels);
    arena_release(&e->arena);
}

/* With so many layers: a step's time, and each rank's bytes. */
static int64_t step_ns(struct early *e, int n_layers, int64_t bytes[N_STAGES])
{
    struct program programs[N_STAGES];
    struct step_replica all = { ALL_DATA_RANKS, programs };
    struct job job = e->job;
    struct simulated_step step;
    struct cluster cluster;
    struct err err;

    job.memory.recompute_early = n_layers;
    assert_true(memory_known_cluster(&cluster, &job, &e->arena));
    if (programs_compile_unverified(programs, &job, e->kernels, &err) ||
        step_time_simulate(&step, &job, &all, 1, &cluster, NULL, NULL, &e->arena, &err))
        fail_msg("%s", err.text);
    for (int rank = 0; rank < N_STAGES; rank++) {
        bytes[rank] = (int64_t)program_space_bytes(&programs[rank], SPACE_DEVICE);
        program_release(&programs[rank]);
    }
    return step.ns;
}

static int find(struct early *e, const int64_t *limits)
{
    struct err err;
    int n;

    assert_true(early_layers_are_open(&e->job));
    if (early_layers_find(&n, &e->job, e->kernels, limits, &err))
        fail_msg("%s", err.text);
    return n;
}

static void the_fastest_that_fits(void **state)
{
    int64_t bytes[4][N_STAGES], ns[4];
    struct early e;

    (void)state;
    open_early(&e, NULL, 0);
    int n = find(&e, NULL), chosen = 0;
    for (int i = 0; i < 4; i++) { /* 0, 1, 2, 4 */
        ns[i] = step_ns(&e, i ? 1 << (i - 1) : 0, bytes[i]);
        chosen = ns[i] < ns[chosen] ? i : chosen;
    }
    assert_true(chosen > 0);
    assert_int_equal(n, 1 << (chosen - 1));
    /* Just enough for one layer, and not enough for any. */
    assert_true(bytes[2][1] > bytes[1][1] && bytes[1][1] > bytes[0][1]);
    int64_t limits[N_STAGES] = { bytes[1][0], bytes[1][1] };
    assert_int_equal(find(&e, limits), 1);
    limits[1]--;
    assert_int_equal(find(&e, limits), 0);
    limits[0] = limits[1] = 1;
    assert_int_equal(find(&e, limits), 0);
    close_early(&e);
}

/* Memory's choices take the number over. */
static void a_job_has_it(void **state)
{
    struct memory_fit_request request = { 0 };
    struct memory_fit *fit;
    struct early e;
    struct err err;

    (void)state;
    open_early(&e, NULL, 0);
    struct job job = e.job;
    assert_int_equal(compile_early_layers(&job), 0);
    assert_true(memory_is_chosen(&job));
    request.job = &e.job;
    request.kernels = e.kernels;
    if (memory_fit_job(&fit, &job, &request, &e.arena, &err))
        fail_msg("%s", err.text);
    assert_int_equal(compile_early_layers(&job), find(&e, NULL));
    assert_true(job.memory.recompute_early_chosen && programs_go_by_prices(&job));
    assert_false(early_layers_are_open(&job));
    close_early(&e);
}

/* Not where the job says the number, nothing is recomputed, or there are no prices. */
static void closed(void **state)
{
    static const char *const sets[] = { "memory.recompute_early=2", "recompute=none",
                                        "recompute=auto", "memory.device_bytes=64GiB",
                                        "cluster=none.yaml" };

    (void)state;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        struct early e;

        open_early(&e, &sets[i], 1);
        assert_false(early_layers_are_open(&e.job));
        assert_int_equal(compile_early_layers(&e.job), i ? 0 : 2);
        close_early(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_that_fits),
        cmocka_unit_test(a_job_has_it),
        cmocka_unit_test(closed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
