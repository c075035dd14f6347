/*
 * overlap_memory_test.c - slices that overlap: auto would choose are left out where they do not fit
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gpu_sizes.h"
#include "plan/programs.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_that_do_not_fit_are_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
