/*
 * suggest_test.c - what would fit does: each suggestion applied and compiled again
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
#include "plan/suggest.h"
#include "plan/suggest_search.h"
#include "program/passes.h"

struct fixture {
    struct arena arena;
    struct kernels *kernels;
    struct job job;
    size_t planned;
};

#define JOB(more) \
    "{model: {vocab_size: 4096, hidden_size: 512, n_layers: 8, n_heads: 8, ffn_size: 2048," \
    " max_seq_len: 512}, data: {train: a, seq_len: 512}, device: cuda," \
    " train: {steps: 100, global_batch: 64, micro_batch: 4, dtype: bf16}" more "}"

static size_t most_bytes(const struct plan *plan)
{
    return program_memory_bytes(&plan->programs[plan->shown]);
}

/* The job's text with these overrides, resolved: what its largest rank needs. */
static size_t compile(struct fixture *f, const char *text, const char *const *sets, int n_sets,
                      int n_ranks, struct job *job)
{
    struct plan plan;
    struct err err;

    if (job_read_text(job, text, strlen(text), "job.yaml", sets, n_sets, &f->arena, &err) ||
        job_resolve(job, n_ranks, &f->arena, &err) < 0 ||
        plan_open_with(&plan, job, f->kernels, &err))
        fail_msg("%s", err.text);
    size_t n_bytes = most_bytes(&plan);
    plan_close(&plan);
    return n_bytes;
}

static void open_fixture(struct fixture *f, const char *text, int n_ranks)
{
    struct err err;

    *f = (struct fixture){ .arena = { 0 } };
    if (kernels_gpu_sizes_create(&f->kernels, &err))
        fail_msg("%s", err.text);
    f->planned = compile(f, text, NULL, 0, n_ranks, &f->job);
}

static void close_fixture(struct fixture *f)
{
    kernels_destroy(f->kernels);
    arena_release(&f->arena);
}

/* "a: 1 with b: 2" as overrides "a=1", "b=2"; ranks into *n_ranks. */
static int split(char *change, const char **sets, int *n_ranks)
{
    int n = 0;

    for (char *at = change; at;) {
        char *next = strstr(at, " with "), *colon;

        if (next)
            *next = 0;
        colon = strstr(at, ": ");
        assert_non_null(colon);
        memmove(colon + 1, colon + 2, strlen(colon + 2) + 1);
        *colon = '=';
        if (!strncmp(at, "ranks=", 6))
            sscanf(at, "ranks=%d", n_ranks);
        else
            sets[n++] = at;
        at = next ? next + strlen(" with ") : NULL;
    }
    return n;
}

static void test_suggestions_fit(void **state)
{
    static const struct {
        const char *text;
        int n_ranks;
    } jobs[] = {
        { JOB(""), 1 },
        { JOB(", parallel: {dp: 4}"), 4 },
        { JOB(", parallel: {tp: 2, pp: 2, dp: 2, zero: 1}, recompute: selective"), 8 },
        { JOB(", parallel: {pp: 4}, recompute: full"), 4 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        for (int part = 3; part < 10; part += 3) {
            struct fixture f;
            struct suggestions found;

            open_fixture(&f, jobs[i].text, jobs[i].n_ranks);
            size_t available = f.planned * (size_t)part / 10;
            suggest_find(&found, &f.job, f.kernels, f.planned, available, 1024, &f.arena);
            assert_true(part < 9 || found.n > 0);
            for (int k = 0; k < found.n; k++) {
                const char *sets[8];
                int n_ranks = jobs[i].n_ranks;
                struct job job;

                assert_true(found.found[k].bytes <= available);
                int n = split(arena_strdup(&f.arena, found.found[k].change), sets, &n_ranks);
                if (n_ranks > jobs[i].n_ranks)
                    sets[n++] = "parallel.dp=auto";
                /* What is chosen within the limit may be more than the least; that it fits is what
                 * compiling it asks. */
                bool is_chosen = strstr(found.found[k].change, "auto") != NULL;
                if (is_chosen)
                    sets[n++] = arena_printf(&f.arena, "memory.device_bytes=%zu", available);
                size_t n_bytes = compile(&f, jobs[i].text, sets, n, n_ranks, &job);
                assert_true(is_chosen || n_bytes == found.found[k].bytes);
            }
            close_fixture(&f);
        }
}

/* Ranks are suggested up to what there is; without any fit the smallest is named. */
static void test_limits(void **state)
{
    struct fixture f;
    struct suggestions found;
    struct str text = { 0 };

    (void)state;
    open_fixture(&f, JOB(", recompute: full"), 1);
    suggest_find(&found, &f.job, f.kernels, f.planned, 1 << 20, 0, &f.arena);
    assert_int_equal(found.n, 0);
    assert_non_null(found.smallest);
    assert_true(found.smallest_bytes < f.planned && found.smallest_bytes > 1 << 20);
    suggest_print(&found, &text);
    assert_true(str_starts_with(str_text(&text), "even "));
    suggest_find(&found, &f.job, f.kernels, f.planned, f.planned / 8, 64, &f.arena);
    assert_true(found.n > 0 && strstr(found.found[0].change, "ranks: "));
    suggest_find(&found, &f.job, f.kernels, f.planned, 1, 64, &f.arena);
    assert_int_equal(found.n, 0);
    str_release(&text);
    close_fixture(&f);
}

/* ---- searches ---- */

static void suggest(struct fixture *f, const char *text, int64_t memory, int n_ranks,
                    int n_ranks_max, struct str *out)
{
    struct device_spec device;
    struct cluster cluster;
    struct search_result result;
    struct job job = { 0 }, searched;
    struct err err;

    if (device_read(&device, "h100-sxm", &f->arena, &err) ||
        job_read_text(&job, text, strlen(text), "job.yaml", NULL, 0, &f->arena, &err))
        fail_msg("%s", err.text);
    device.memory = memory;
    device.reserve = 0;
    cluster_of_device(&cluster, &device, n_ranks, &f->arena);
    searched = job;
    assert_int_equal(
        search_job(&result, &searched, n_ranks, 1, &cluster, f->kernels, NULL, &f->arena, &err),
        -1);
    str_clear(out);
    suggest_search(&job, n_ranks, n_ranks_max, &cluster, f->kernels, NULL, out);
}

static void test_searches(void **state)
{
    static const char open[] = JOB(", parallel: auto");
    static const char given[] = JOB(", parallel: {mode: semi, zero: 0}, recompute: none");
    struct fixture f;
    struct str text = { 0 };

    (void)state;
    open_fixture(&f, JOB(""), 1);
    suggest(&f, open, 150 << 20, 1, 64, &text);
    assert_true(strstr(str_text(&text), " ranks (tp ") && strstr(str_text(&text), " MiB a rank)"));
    suggest(&f, open, 150 << 20, 1, 1, &text);
    assert_null(strstr(str_text(&text), " ranks"));
    suggest(&f, open, 1 << 20, 1, 64, &text);
    assert_int_equal(text.length, 0);
    /* Of what the job gives, what would have to be given up. */
    suggest(&f, given, 475 << 20, 2, 2, &text);
    assert_non_null(strstr(str_text(&text), "recompute: full ("));
    assert_non_null(strstr(str_text(&text), "train.micro_batch: 2 ("));
    assert_null(strstr(str_text(&text), " ranks"));
    str_release(&text);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_suggestions_fit),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_searches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
