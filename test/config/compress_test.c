/*
 * compress_test.c - which jobs may have gradients compressed between ranks, and what the others
 * are told to do
 */
#include "config_fixture.h"

struct row {
    const char *parallel, *train, *rest;
    const char *text; /* NULL: it may */
};

static int resolve(struct job *job, const struct row *row, int n_ranks, struct arena *arena,
                   struct err *err)
{
    const char *text = arena_printf(
        arena,
        "model: %s\ndata: {train: a}\nparallel: {%s}\n"
        "train: {steps: 100, global_batch: 48%s}\n%s",
        strstr(row->parallel, "ep: 2") || strstr(row->rest, "moe:") ? "mixtral-tiny" : "llama-tiny",
        row->parallel, row->train, row->rest);

    return read_job(job, text, arena, err) || job_resolve(job, n_ranks, arena, err) ? -1 : 0;
}

static const struct row jobs[] = {
    { "compress: int8", "", "", NULL },
    { "compress: fp8, zero: 1, gradient_sum: late, pp: 2", ", dtype: bf16", "", NULL },
    { "compress: topk, compress_ratio: 1, compress_start: 0, tp: 2", "", "", NULL },
    { "compress: topk", ", recheck_every: 5, micro_batch: 4", "", NULL },
    { "compress: powersgd, compress_rank: 64, zero: 1, pp: 2", "", "", NULL },
    { "compress_activations: 0.1, compress_bits: 4, tp: 2", "", "", NULL },
    { "compress_activations: 0.1", "", "", NULL }, /* a note: tp is 1 */
    { "compress_activations: 0, tp: 2", "", "", "parallel.compress_activations is 0, not" },
    { "compress_activations: 0.1, compress_bits: 5, tp: 2", "", "",
      "j.yaml:3:54: parallel.compress_bits is 5, wanted 4 or 8" },
    { "compress_activations: 0.1, tp: 2, sequence_parallel: false", "", "",
      "(hint: sequence_parallel: true)" },
    { "compress_activations: 0.1, tp: 2, cp: 2", "", "",
      "given and cp 2: no rank has all queries of a key (hint: cp: 1, or compress_activations: "
      "none)" },
    { "compress_activations: 0.1, tp: 2, overlap: slices", "", "",
      "and overlap slices: codes are of all rows at once (hint: overlap: none)" },
    { "compress: int4", "", "",
      "parallel.compress is int4, not one of none, int8, fp8, topk, powersgd" },
    { "compress: int8, zero: 2", "", "", NULL },
    { "compress: topk, zero: 3, gradient_sum: late", "", "", NULL },
    { "compress: int8, zero: 3, gradient_sum: early", "", "", "(hint: gradient_sum: late)" },
    { "compress: fp8, gradient_sum: early", "", "",
      "j.yaml:3:41: parallel.compress is fp8, but gradient_sum early sums the gradients of "
      "each micro-batch over the ranks: as many times the bytes, and no less memory, as what is "
      "lost is as large as the sums (hint: gradient_sum: late)" },
    { "compress: int8, cp: 2", "", "", NULL },
    { "compress: int8, ep: 2", "", "", NULL },
    { "compress: int8, zero: 1, zero_group: 2", "", "", NULL }, /* a note: within groups */
    { "compress: int8", ", dtype: bf16, gradient_dtype: bf16", "",
      "parallel.compress is int8 and train.gradient_dtype bf16: what is lost is fp32, and takes "
      "the "
      "place of gradients of fp32: those of bf16 would need more memory, not less (hint: "
      "train.gradient_dtype: fp32)" },
    { "compress: fp8", ", dtype: fp16", "", NULL },
    { "compress: int8", "", "memory: {offload: [optimizer]}\n", NULL },
    { "compress: int8, mode: auto", "", "", NULL },
    { "compress: int8, compress_ratio: 0.1", "", "",
      "j.yaml:3:44: parallel.compress_ratio is given, but compress is int8 (hint: compress: "
      "topk)" },
    { "compress: topk, compress_ratio: 0", "", "", "parallel.compress_ratio is 0, not" },
    { "compress: topk, compress_ratio: 1.5", "", "", "parallel.compress_ratio is 1.5, not" },
    { "compress: topk, compress_rank: 4", "", "",
      "j.yaml:3:43: parallel.compress_rank is given, but compress is topk (hint: compress: "
      "powersgd)" },
    { "compress: powersgd, compress_ratio: 0.1", "", "",
      "parallel.compress_ratio is given, but compress is powersgd (hint: compress: topk)" },
    { "compress: powersgd, compress_rank: 0", "", "", "parallel.compress_rank is 0, not" },
    { "compress: powersgd, compress_rank: 65", "", "", "parallel.compress_rank is 65, not" },
    { "compress_start: 5", "", "",
      "parallel.compress_start is given, but compress is none (hint: compress: int8)" },
    { "compress: topk", ", recheck_every: 5, micro_batch: 12", "",
      "parallel.compress is topk, and train.recheck_every checks the only micro-batch of a "
      "step, in which each rank has lost something else (hint: more micro-batches, or "
      "recheck_every: 0)" },
    { "compress: topk", "", "moe: {stash_factor: 2.0, expert_tp: 1}\n",
      "parallel.compress begins after 10 updates, and a step that is run again for want of "
      "memory (moe.stash_factor) would compress before (hint: compress_start: 0, or "
      "moe.stash_factor: 0)" },
    { "compress: topk, bucket_mb: 4096", "", "",
      "j.yaml:3:39: parallel.compress is topk, whose buckets have at most 2048 MiB, and "
      "bucket_mb is 4096 (hint: 2048)" },
    { "compress: topk, compress_start: 0", "", "moe: {stash_factor: 2.0, expert_tp: 1}\n", NULL },
    { "compress: powersgd, bucket_mb: 4096", "", "",
      "parallel.compress is powersgd, whose buckets have at most 2048 MiB, and bucket_mb is 4096" },
    { "compress: int8, bucket_mb: 4096", "", "", NULL },
};

static void who_may(void **state)
{
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct err err = { 0 };
        struct job job;
        int status = resolve(&job, &jobs[i], 4, &arena, &err);

        if (!jobs[i].text && status)
            fail_msg("%s: %s", jobs[i].parallel, err.text);
        if (jobs[i].text && (!status || !strstr(err.text, jobs[i].text)))
            fail_msg("%s: \"%s\", not \"%s\"", jobs[i].parallel, err.text, jobs[i].text);
    }
    arena_release(&arena);
}

static void what_is_chosen(void **state)
{
    static const struct row rows[] = { { "compress: topk", "", "", NULL },
                                       { "compress: int8", "", "", NULL },
                                       { "compress: topk, compress_ratio: 0.2", "", "", NULL },
                                       { "compress: powersgd", "", "", NULL },
                                       { "compress: powersgd, compress_rank: 2, compress_start: 0",
                                         "", "", NULL },
                                       { "compress: int8, cp: 2, zero: 3", "", "", NULL },
                                       { "compress: int8, ep: 2", "", "", NULL } };
    struct arena arena = { 0 };
    struct err err;
    struct job job;

    (void)state;
    assert_int_equal(resolve(&job, &rows[0], 2, &arena, &err), 0);
    struct codec_choice choice = job_codec(&job);
    assert_int_equal(choice.codec, CODEC_TOP_K);
    assert_true(choice.ratio == 0.01);
    assert_int_equal(choice.start, 10);
    assert_int_equal(resolve(&job, &rows[1], 2, &arena, &err), 0);
    choice = job_codec(&job);
    assert_int_equal(choice.codec, CODEC_INT8);
    assert_true(choice.ratio == 0);
    assert_int_equal(choice.start, 0);
    assert_int_equal(resolve(&job, &rows[2], 2, &arena, &err), 0);
    assert_true(job_codec(&job).ratio == 0.2);
    assert_false(has_note(&job, "more bytes than no codec"));
    assert_int_equal(resolve(&job, &rows[2], 4, &arena, &err), 0);
    assert_true(has_note(&job, "parallel.compress: topk of 0.2 sends each rank more bytes than no "
                               "codec, as dp is 4 (hint: compress_ratio: 0.017)"));
    assert_int_equal(resolve(&job, &rows[3], 2, &arena, &err), 0);
    choice = job_codec(&job);
    assert_int_equal(choice.codec, CODEC_POWERSGD);
    assert_int_equal(choice.rank, 8);
    assert_int_equal(choice.start, 10);
    assert_int_equal(resolve(&job, &rows[4], 2, &arena, &err), 0);
    assert_int_equal(job_codec(&job).rank, 2);
    assert_int_equal(job_codec(&job).start, 0);
    /* Alone there is nothing to send. */
    assert_int_equal(resolve(&job, &rows[2], 1, &arena, &err), 0);
    assert_int_equal(job_codec(&job).codec, CODEC_NONE);
    assert_true(has_note(&job, "parallel.compress = none (dp is 1: nothing is exchanged)"));
    assert_int_equal(resolve(&job, &rows[5], 2, &arena, &err), 0);
    assert_int_equal(job_codec(&job).codec, CODEC_NONE);
    assert_true(has_note(&job, "(dp is 1: sums over cp are not compressed)"));
    /* Sums over ranks are of the whole step under any zero. */
    assert_int_equal(resolve(&job, &rows[5], 4, &arena, &err), 0);
    assert_int_equal(job.parallel.gradient_sum, GRADIENT_SUM_LATE);
    assert_true(has_note(&job, "parallel.gradient_sum = late (auto: compress; zero 3, too, then "
                               "keeps each rank's whole sums, and as much again that the codec has "
                               "lost)"));
    assert_true(has_note(&job, "parallel.compress: what the codec sums over dp is then summed over "
                               "cp 2 as it is, in fp32"));
    assert_int_equal(resolve(&job, &rows[6], 4, &arena, &err), 0);
    assert_true(has_note(&job, "gradients of experts are of the 2 ranks that have the same ones "
                               "(dp 4 / ep 2)"));
    assert_int_equal(resolve(&job, &rows[6], 2, &arena, &err), 0);
    assert_true(has_note(&job, "gradients of experts are not exchanged, as each rank has others "
                               "(ep is dp)"));
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(who_may),
                                        cmocka_unit_test(what_is_chosen) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
