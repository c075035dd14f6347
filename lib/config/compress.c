/*
 * compress.c - which jobs may have gradients compressed on their way between ranks
 */
#include "base/num.h"
#include "config/read_impl.h"
#include "ops/ops.h"

/* Numbers of elements are i32, and a bucket may have one large parameter more. */
#define TABLE_BUCKET_MB_MAX 2048

static const char *place_of(const struct job *job, const char *field)
{
    return job_place(job, (const char *const[]){ field, "parallel.compress", NULL });
}

static double ratio_of(const struct job *job)
{
    return job->parallel.compress_ratio_given ? job->parallel.compress_ratio : 0.01;
}

static int rank_of(const struct job *job)
{
    return job->parallel.compress_rank ? job->parallel.compress_rank : 8;
}

struct codec_choice job_codec(const struct job *job)
{
    enum codec codec = job->parallel.compress;
    bool is_top_k = codec == CODEC_TOP_K, is_factored = codec == CODEC_POWERSGD;
    int64_t start = job->parallel.compress_start;

    if (codec == CODEC_NONE)
        return (struct codec_choice){ 0 };
    if (start < 0)
        start = is_top_k || is_factored ? min_i64(job->train.steps / 10, OPS_UPDATES_MAX - 1) : 0;
    return (struct codec_choice){ .codec = codec,
                                  .ratio = is_top_k ? ratio_of(job) : 0,
                                  .rank = is_factored ? rank_of(job) : 0,
                                  .start = start };
}

/*
 * What is lost replaces the sums, in fp32, until it is known that the step counts. Sums of bf16
 * would need memory of their own beside that: 10 bytes an element with the error, where fp32 takes
 * 8.
 */
static int check_dtype(const struct job *job, const char *word, struct err *err)
{
    if (job->train.gradient_dtype == DTYPE_F32)
        return 0;
    return err_set(
        err, ERR_CONFIG,
        "%s: parallel.compress is %s and train.gradient_dtype %s: what is lost is fp32, and takes "
        "the place of gradients of fp32: those of %s would need more memory, not less (hint: "
        "train.gradient_dtype: fp32)",
        place_of(job, "train.gradient_dtype"), word, dtype_name(job->train.gradient_dtype),
        dtype_name(job->train.gradient_dtype));
}

/* A key that one codec alone has. */
static int check_key(const struct job *job, const char *key, bool is_given, enum codec codec,
                     const char *word, struct err *err)
{
    if (!is_given || job->parallel.compress == codec)
        return 0;
    return err_set(err, ERR_CONFIG, "%s: %s is given, but compress is %s (hint: compress: %s)",
                   place_of(job, key), key, word, choice_word(codec_choices, (int)codec));
}

/* The keys beside it: only where they apply. */
static int check_parameters(const struct job *job, const char *word, struct err *err)
{
    enum codec codec = job->parallel.compress;
    long long start = job_codec(job).start;

    if (check_key(job, "parallel.compress_ratio", job->parallel.compress_ratio_given, CODEC_TOP_K,
                  word, err) ||
        check_key(job, "parallel.compress_rank", job->parallel.compress_rank, CODEC_POWERSGD, word,
                  err))
        return -1;
    if (job->parallel.compress == CODEC_NONE && job->parallel.compress_start >= 0)
        return err_set(
            err, ERR_CONFIG,
            "%s: parallel.compress_start is given, but compress is none (hint: compress: "
            "int8)",
            place_of(job, "parallel.compress_start"));
    if (job->parallel.compress != CODEC_NONE && job->train.recheck_every &&
        job->n_micro_batches == 1)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress is %s, and train.recheck_every checks the only "
                       "micro-batch of a step, in which each rank has lost something else (hint: "
                       "more micro-batches, or recheck_every: 0)",
                       place_of(job, "train.recheck_every"), word);
    if (start && job->model.n_experts && job->moe.expert_tp == EXPERT_TP_ONE &&
        job->moe.stash_factor > 0)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress begins after %lld updates, and a step that is run "
                       "again for want of memory (moe.stash_factor) would compress before (hint: "
                       "compress_start: 0, or moe.stash_factor: 0)",
                       place_of(job, "parallel.compress_start"), start);
    if ((codec == CODEC_TOP_K || codec == CODEC_POWERSGD) &&
        job->parallel.bucket_mb > TABLE_BUCKET_MB_MAX)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress is %s, whose buckets have at most %d MiB, and "
                       "bucket_mb is %d (hint: %d)",
                       place_of(job, "parallel.bucket_mb"), word, TABLE_BUCKET_MB_MAX,
                       job->parallel.bucket_mb, TABLE_BUCKET_MB_MAX);
    return 0;
}

/* Of tensor-parallel gathers and sums. */
static int resolve_activations(struct job *job, struct arena *arena, struct err *err)
{
    const char *key = "parallel.compress_activations";

    if (job->parallel.compress_activations == 0)
        return 0;
    if (job->parallel.compress_bits != 4 && job->parallel.compress_bits != 8)
        return err_set(err, ERR_CONFIG, "%s: parallel.compress_bits is %d, wanted 4 or 8",
                       place_of(job, "parallel.compress_bits"), job->parallel.compress_bits);
    if (job->parallel.tp == 1) {
        job_note(job, arena, "parallel.compress_activations has no effect: tp is 1");
        return 0;
    }
    if (!job->parallel.sequence_parallel)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress_activations is given, but sequence_parallel is "
                       "false: ranks would sum whole rows (hint: sequence_parallel: true)",
                       place_of(job, key));
    if (job->parallel.cp > 1)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress_activations is given and cp %d: no rank has all "
                       "queries of a key (hint: cp: 1, or compress_activations: none)",
                       place_of(job, key), job->parallel.cp);
    if (job->parallel.overlap == JOB_OVERLAP_SLICES || job->parallel.overlap == JOB_OVERLAP_HALVES)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress_activations is given, and overlap %s: codes are of "
                       "all rows at once (hint: overlap: none)",
                       place_of(job, key),
                       choice_word(overlap_choices, (int)job->parallel.overlap));
    return 0;
}

/* Which sums are not those of the codec. */
static void note_axes(struct job *job, struct arena *arena)
{
    int n_same = job->parallel.dp / job->parallel.ep; /* ranks with the same experts */
    int group = job->parallel.zero_group;

    if (group && group < job->parallel.dp)
        job_note(job, arena,
                 "parallel.compress: codes travel within groups of zero_group %d; their sums are "
                 "then summed over the %d groups as they are, in fp32",
                 group, job->parallel.dp / group);
    if (job->parallel.cp > 1)
        job_note(job, arena,
                 "parallel.compress: what the codec sums over dp is then summed over cp %d as it "
                 "is, in fp32",
                 job->parallel.cp);
    if (job->parallel.ep > 1 && n_same == 1)
        job_note(job, arena,
                 "parallel.compress: gradients of experts are not exchanged, as each rank has "
                 "others (ep is dp)");
    else if (job->parallel.ep > 1)
        job_note(job, arena,
                 "parallel.compress: gradients of experts are of the %d ranks that have the same "
                 "ones (dp %d / ep %d)",
                 n_same, job->parallel.dp, job->parallel.ep);
}

int compress_resolve(struct job *job, struct arena *arena, struct err *err)
{
    if (resolve_activations(job, arena, err))
        return -1;
    const char *word = choice_word(codec_choices, (int)job->parallel.compress);

    if (check_parameters(job, word, err))
        return -1;
    if (job->parallel.compress == CODEC_NONE)
        return 0;
    if (job->parallel.gradient_sum == GRADIENT_SUM_EARLY)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress is %s, but gradient_sum early sums the gradients of "
                       "each micro-batch over the ranks: as many times the bytes, and no less "
                       "memory, as what is lost is as large as the sums (hint: gradient_sum: late)",
                       place_of(job, "parallel.gradient_sum"), word);
    if (check_dtype(job, word, err))
        return -1;
    if (job->parallel.mode != PARALLEL_MANUAL) /* a layout that is searched may have other ranks */
        return 0;
    if (job->parallel.compress == CODEC_TOP_K && 2 * ratio_of(job) * (job->parallel.dp - 1) > 1)
        job_note(job, arena,
                 "parallel.compress: topk of %g sends each rank more bytes than no codec, as "
                 "dp is %d (hint: compress_ratio: %.2g)",
                 ratio_of(job), job->parallel.dp, 0.1 / (2 * (job->parallel.dp - 1)));
    if (job->parallel.dp > 1) {
        note_axes(job, arena);
        return 0;
    }
    job->parallel.compress = CODEC_NONE;
    job->parallel.compress_ratio_given = job->parallel.compress_rank = 0;
    job->parallel.compress_start = -1;
    job_note(job, arena, "parallel.compress = none (dp is 1: %s)",
             job->parallel.cp > 1 ? "sums over cp are not compressed" : "nothing is exchanged");
    return 0;
}
