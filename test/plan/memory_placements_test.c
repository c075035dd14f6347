/*
 * memory_placements_test.c - no choice is slower, in the simulation, than ZeRO-Offload's placement
 * or Gemini's within the same bytes
 *
 * Those are planned here by the job's keys, as somebody would who knows no other, with nothing,
 * little or all of layers computed again; each is itself what the plan makes of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "kernels/gpu_sizes.h"
#include "plan/memory_fit.h"
#include "plan/plan.h"
#include "plan/step_time.h"
#include "program/passes.h"

#define MIB (INT64_C(1) << 20)

struct fixture {
    struct arena arena;
    struct kernels *kernels;
    struct cluster cluster;
};

static void open_fixture(struct fixture *f)
{
    struct device_spec *device;
    struct err err;

    *f = (struct fixture){ .arena = { 0 } };
    device = arena_array(&f->arena, struct device_spec, 1);
    if (kernels_gpu_sizes_create(&f->kernels, &err) ||
        device_read(device, "rtx4090", &f->arena, &err))
        fail_msg("%s", err.text);
    cluster_of_device(&f->cluster, device, 8, &f->arena);
}

static void close_fixture(struct fixture *f)
{
    kernels_destroy(f->kernels);
    arena_release(&f->arena);
}

static void read_job(struct fixture *f, struct job *job, const char *memory, const char *recompute,
                     int pp, int64_t limit)
{
    char text[900];
    struct err err;

    snprintf(text, sizeof text,
             "{model: {vocab_size: 4096, hidden_size: 512, n_layers: 6, n_heads: 8, n_kv_heads: 8, "
             "ffn_size: 1536, max_seq_len: 512}, data: {train: a, seq_len: 512}, device: cuda, "
             "parallel: {pp: %d}, train: {steps: 10, global_batch: 32, micro_batch: 4, dtype: "
             "bf16}, recompute: %s, memory: {%s, host_bytes: 64GiB, device_bytes: %lld}}",
             pp, recompute, memory, (long long)limit);
    if (job_read_text(job, text, strlen(text), "job.yaml", NULL, 0, &f->arena, &err) ||
        job_resolve(job, pp, &f->arena, &err))
        fail_msg("%s", err.text);
    job->rates = &f->cluster;
}

/* What the plan has of ranks, for when it is closed. */
static void keep_ranks(struct fixture *f, struct memory_fit *fit, int n)
{
    struct memory_fit_rank *ranks = arena_array(&f->arena, struct memory_fit_rank, n);
    struct rank_offload *offload = arena_array(&f->arena, struct rank_offload, n);

    memcpy(ranks, fit->ranks, sizeof *ranks * (size_t)n);
    memcpy(offload, fit->offload, sizeof *offload * (size_t)n);
    fit->ranks = ranks;
    fit->offload = offload;
}

/* Nanoseconds of a planned step; 0: the job does not fit. */
static int64_t plan_step(struct fixture *f, const struct job *job, struct memory_fit *fit)
{
    struct step_time time = { .ns = 0 };
    struct plan plan;
    struct err err;

    if (plan_open_with(&plan, job, f->kernels, &err) < 0) {
        assert_int_equal(err.code, ERR_DEVICE);
    } else {
        assert_int_equal(0, step_time_predict(&time, &plan, &f->cluster, &f->arena, &err));
        for (int i = 0; i < job->parallel.pp; i++)
            assert_true((int64_t)program_space_bytes(&plan.programs[i], SPACE_DEVICE) <=
                        job->memory.device_bytes);
        *fit = *plan.memory;
        keep_ranks(f, fit, job->parallel.pp);
    }
    plan_close(&plan);
    return time.ns;
}

static const char *const of_others[] = {
    "offload: [optimizer, gradients], update: host",
    "offload: [optimizer, gradients, weights]",
};
static const char *const levels[] = { "none", "selective", "full" };

/* Whose the choice is, NULL: the solver's. */
static const char *check(struct fixture *f, int pp, int64_t limit)
{
    struct memory_fit fit, other;
    struct job job;

    read_job(f, &job, "offload: auto", "auto", pp, limit);
    int64_t ns = plan_step(f, &job, &fit);
    assert_true(ns > 0 && fit.simulated_ns == ns && fit.solved_ns >= ns);
    assert_true(!fit.placement == (fit.solved_ns == ns));
    for (size_t i = 0; i < sizeof of_others / sizeof *of_others; i++)
        for (size_t k = 0; k < sizeof levels / sizeof *levels; k++) {
            read_job(f, &job, of_others[i], levels[k], pp, limit);
            int64_t theirs = plan_step(f, &job, &other);
            if (theirs && theirs < ns)
                fail_msg("pp %d, %lld bytes: %lld ns; %s, recompute %s: %lld", pp, (long long)limit,
                         (long long)ns, of_others[i], levels[k], (long long)theirs);
        }
    return fit.placement;
}

/* At some of these budgets the solver's own choice is slower. */
static void none_is_faster(void **state)
{
    static const int budgets[] = { 240, 320, 400 };
    struct fixture f;
    int n_others = 0;

    (void)state;
    open_fixture(&f);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        n_others += check(&f, 1, budgets[i] * MIB) != NULL;
    assert_true(n_others > 0);
    close_fixture(&f);
}

static void nor_of_a_pipeline(void **state)
{
    struct fixture f;

    (void)state;
    open_fixture(&f);
    check(&f, 2, 200 * MIB);
    check(&f, 2, 280 * MIB);
    close_fixture(&f);
}

/* Within the bytes of the host that Gemini's takes, the least of a budget, too. */
static void what_fits_theirs_fits(void **state)
{
    static const int budgets[] = { 220, 240 };
    struct memory_fit fit, other;
    struct fixture f;
    struct job job;

    (void)state;
    open_fixture(&f);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        read_job(&f, &job, of_others[1], "full", 1, budgets[i] * MIB);
        int64_t theirs = plan_step(&f, &job, &other);
        assert_true(theirs > 0);
        read_job(&f, &job, "offload: auto", "auto", 1, budgets[i] * MIB);
        job.memory.host_bytes = other.ranks[0].host_bytes;
        int64_t ns = plan_step(&f, &job, &fit);
        assert_true(ns > 0 && ns <= theirs);
    }
    close_fixture(&f);
}

/* Of what a list does not allow nothing leaves, whoever is faster. */
static void a_list_is_kept(void **state)
{
    static const struct {
        const char *memory;
        bool leaves[N_AWAY_KINDS];
    } lists[] = {
        { "offload: [optimizer]", { [AWAY_STATES] = true } },
        { "offload: [optimizer, gradients]", { [AWAY_STATES] = true, [AWAY_GRADIENTS] = true } },
        { "offload: [optimizer, gradients, activations], update: device",
          { [AWAY_STATES] = true, [AWAY_GRADIENTS] = true } },
    };
    struct memory_fit fit;
    struct fixture f;
    struct job job;

    (void)state;
    open_fixture(&f);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        read_job(&f, &job, lists[i].memory, "auto", 1, 400 * MIB);
        assert_true(plan_step(&f, &job, &fit) > 0);
        for (int kind = 0; kind < N_AWAY_KINDS; kind++)
            assert_true(lists[i].leaves[kind] || !fit.ranks[0].away_bytes[kind]);
        if (job.memory.update == UPDATE_DEVICE)
            assert_false(fit.offload[0].updates_on_host);
    }
    close_fixture(&f);
}

/* Where nothing leaves, there is nothing to compare. */
static void nothing_to_compare(void **state)
{
    struct memory_fit fit;
    struct fixture f;
    struct job job;

    (void)state;
    open_fixture(&f);
    read_job(&f, &job, "offload: auto", "auto", 1, 2000 * MIB);
    assert_true(plan_step(&f, &job, &fit) > 0);
    assert_null(fit.placement);
    assert_true(!fit.simulated_ns && !fit.solved_ns);
    close_fixture(&f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_is_faster),        cmocka_unit_test(nor_of_a_pipeline),
        cmocka_unit_test(what_fits_theirs_fits), cmocka_unit_test(a_list_is_kept),
        cmocka_unit_test(nothing_to_compare),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
