/*
 * compress.c - which jobs may have gradients compressed on their way between ranks
 */
#include "config/read_impl.h"

static const char *place_of(const struct job *job, const char *field)
{
    return job_place(job, (const char *const[]){ field, "parallel.compress", NULL });
}

/* What its codes cannot carry, or would lose for good. */
static int check_others(const struct job *job, const char *word, struct err *err)
{
    if (job->parallel.cp > 1 || job->parallel.ep > 1)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress is %s and %s %d: sums over these ranks are not "
                       "compressed (hint: %s: 1, or compress: none)",
                       place_of(job, job->parallel.cp > 1 ? "parallel.cp" : "parallel.ep"), word,
                       job->parallel.cp > 1 ? "cp" : "ep",
                       job->parallel.cp > 1 ? job->parallel.cp : job->parallel.ep,
                       job->parallel.cp > 1 ? "cp" : "ep");
    if (job->parallel.zero_group && job->parallel.zero_group < job->parallel.dp)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress is %s and zero_group %d of dp %d: sums over groups "
                       "are not compressed (hint: zero_group: 0, or compress: none)",
                       place_of(job, "parallel.zero_group"), word, job->parallel.zero_group,
                       job->parallel.dp);
    if (job->train.gradient_dtype != DTYPE_F32)
        return err_set(
            err, ERR_CONFIG,
            "%s: parallel.compress is %s and train.gradient_dtype %s: what is lost would "
            "be rounded (hint: train.gradient_dtype: fp32)",
            place_of(job, "train.gradient_dtype"), word, dtype_name(job->train.gradient_dtype));
    if (job->train.dtype == DTYPE_F16)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress is %s and train.dtype fp16: what is lost would have "
                       "the loss scale of another step (hint: train.dtype: bf16)",
                       place_of(job, "train.dtype"), word);
    if (job->memory.offload != OFFLOAD_NONE)
        return err_set(
            err, ERR_CONFIG,
            "%s: parallel.compress is %s and memory.offload is given: gradients that are "
            "away are not compressed (hint: memory.offload: none, or compress: none)",
            place_of(job, "memory.offload"), word);
    return 0;
}

int compress_resolve(struct job *job, struct arena *arena, struct err *err)
{
    const char *word = choice_word(codec_choices, (int)job->parallel.compress);

    if (job->parallel.compress == CODEC_NONE)
        return 0;
    if (job->parallel.zero > 1)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress is %s, but zero %d sums the gradients of each "
                       "micro-batch over the ranks (hint: zero: 0 or 1)",
                       place_of(job, "parallel.zero"), word, job->parallel.zero);
    if (job->parallel.gradient_sum == GRADIENT_SUM_EARLY)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress is %s, but gradient_sum early sums the gradients of "
                       "each micro-batch over the ranks (hint: gradient_sum: late)",
                       place_of(job, "parallel.gradient_sum"), word);
    if (job->parallel.mode != PARALLEL_MANUAL)
        return err_set(err, ERR_CONFIG,
                       "%s: parallel.compress is %s, but parallel.mode is %s: layouts that cannot "
                       "compress would be searched, too (hint: mode: manual)",
                       place_of(job, "parallel.mode"), word,
                       choice_word(parallel_mode_choices, (int)job->parallel.mode));
    if (check_others(job, word, err))
        return -1;
    if (job->parallel.dp == 1) {
        job->parallel.compress = CODEC_NONE;
        job_note(job, arena, "parallel.compress = none (dp is 1: nothing is exchanged)");
    }
    return 0;
}
