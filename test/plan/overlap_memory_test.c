/*
 * overlap_memory_test.c - slices that overlap: auto would choose are left out where they do not
 * fit, or would travel too slowly beside compute and sums
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "kernels/gpu_sizes.h"
#include "plan/programs.h"
#include "support/temporary.h"

static const char text[] =
    "{model: {vocab_size: 512, hidden_size: 4096, n_layers: 2, n_heads: 32, n_kv_heads: 32, "
    "ffn_size: 11008, max_seq_len: 2048}, data: {train: a, seq_len: 2048}, device: cuda, "
    "cluster: configs/clusters/dgx-h100.yaml, parallel: {tp: 2}, "
    "train: {steps: 10, global_batch: 16, micro_batch: 4, dtype: bf16}}";

struct compiled {
    int64_t n_bytes;
    int n_cut; /* sites */
};

static struct compiled compile(struct job *job, struct kernels *kernels, enum job_overlap overlap,
                               int64_t device_bytes)
{
    const struct programs_request request = { .job = job, .kernels = kernels };
    struct program program = { 0 };
    struct compiled c = { 0 };
    struct err err;

    job->parallel.overlap = overlap;
    job->memory.device_bytes = device_bytes;
    if (programs_compile(&program, &request, &err))
        fail_msg("%s", err.text);
    c.n_bytes = (int64_t)program_space_bytes(&program, SPACE_DEVICE);
    for (const struct slice_site *site = program.slice_sites; site; site = site->next)
        c.n_cut += site->n_slices > 1;
    program_release(&program);
    return c;
}

static void slices_that_do_not_fit_are_left_out(void **state)
{
    struct arena arena = { 0 };
    struct kernels *kernels;
    struct job job;
    struct err err;

    (void)state;
    if (kernels_gpu_sizes_create(&kernels, &err) ||
        job_read_text(&job, text, strlen(text), "job.yaml", NULL, 0, &arena, &err) ||
        job_resolve(&job, 2, &arena, &err))
        fail_msg("%s", err.text);
    struct compiled none = compile(&job, kernels, JOB_OVERLAP_NONE, 0);
    struct compiled cut = compile(&job, kernels, JOB_OVERLAP_AUTO, 0);
    assert_true(cut.n_cut > 0 && cut.n_bytes > none.n_bytes);
    struct compiled just = compile(&job, kernels, JOB_OVERLAP_AUTO, cut.n_bytes);
    assert_true(just.n_cut == cut.n_cut && just.n_bytes == cut.n_bytes);
    struct compiled less = compile(&job, kernels, JOB_OVERLAP_AUTO, cut.n_bytes - 1);
    assert_true(less.n_cut == 0 && less.n_bytes == none.n_bytes);
    kernels_destroy(kernels);
    arena_release(&arena);
}

static char folder[64];

/* The cluster of the text with a table in which a collective takes a tenth of a second longer
 * beside compute: its path. */
static const char *slow_cluster(struct arena *arena)
{
    const char *path = arena_printf(arena, "%s/slow.yaml", folder);
    const char *table = "{\"beside_ns\": 100000000}";
    char *cluster;
    size_t n;
    struct err err;

    if (file_read("configs/clusters/dgx-h100.yaml", 1 << 20, ERR_CONFIG, &cluster, &n, &err))
        fail_msg("%s", err.text);
    const char *both = arena_printf(arena, "%.*stables: slow.json\n", (int)n, cluster);
    free(cluster);
    if (file_write(path, both, strlen(both), &err) ||
        file_write(arena_printf(arena, "%s/slow.json", folder), table, strlen(table), &err))
        fail_msg("%s", err.text);
    return path;
}

/* Where gradients are summed over ranks, too: dp. */
static void slow_beside_compute_and_sums(void **state)
{
    struct arena arena = { 0 };
    struct kernels *kernels;
    struct err err;

    (void)state;
    const char *slow = slow_cluster(&arena);
    if (kernels_gpu_sizes_create(&kernels, &err))
        fail_msg("%s", err.text);
    for (int dp = 1; dp <= 2; dp++) {
        struct job job;

        if (job_read_text(&job, text, strlen(text), "job.yaml", NULL, 0, &arena, &err) ||
            job_resolve(&job, 2 * dp, &arena, &err))
            fail_msg("%s", err.text);
        struct compiled quick = compile(&job, kernels, JOB_OVERLAP_AUTO, 0);
        job.cluster = slow;
        struct compiled late = compile(&job, kernels, JOB_OVERLAP_AUTO, 0);
        assert_true(quick.n_cut > 0);
        assert_int_equal(late.n_cut, dp == 1 ? quick.n_cut : 0);
    }
    kernels_destroy(kernels);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_that_do_not_fit_are_left_out),
        cmocka_unit_test(slow_beside_compute_and_sums),
    };
    struct err err;

    if (temporary_folder(folder, sizeof folder) < 0)
        return 1;
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_tree(folder, &err);
    return status;
}
