/*
 * numerics.h - everything that determines the bits of a run, as text and hash (design.md §5)
 */
#ifndef TRAIN_NUMERICS_H
#define TRAIN_NUMERICS_H

/* Is increased when the engine's arithmetic changes: runs of different versions are not equal. */
#define NUMERICS_VERSION 2 /* what is new in each: versions[] in numerics.c */

#include "base/str.h"
#include "config/job.h"

/*
 * One "key value" line each, in fixed order: model, data, seed, batch, dtypes, degrees, sums,
 * optimizer, kernels, and where those choose among algorithms a hash of what they chose. data: the
 * loader's fingerprint; identity: kernels_identity; choices: kernels_choices_print's text, the same
 * on all ranks (algo_cache_make); "": none.
 */
void numerics_describe(const struct job *job, uint64_t data, const char *identity,
                       const char *choices, struct str *out);

/* xxh64 of that text. */
uint64_t numerics_hash(const struct str *description);

/*
 * Check that weights of the model `theirs` can be used for the job's model: equal arithmetic,
 * except for dropout and the initialisation, and except for the scaling of RoPE where the job has
 * one (texts longer than the weights have seen) and trains no adapter (which others use with the
 * model's own). Returns 0, or -1 and ERR_CONFIG naming the first field that differs; path is the
 * source of the second model.
 */
int numerics_check_weights(const struct job *job, const struct model_spec *theirs, const char *path,
                           struct err *err);

/* What of a checkpoint's description is not as the job's, a line "KEY is now X, was Y" each. */
struct numerics_differences {
    struct str logged;   /* layout and recipe */
    struct str accepted; /* arithmetic: only with --accept-numerics */
};

/*
 * Compare the description of a job with that of the checkpoint from which it resumes. Each field's
 * row says what a difference means (config/numerics_lines.h); the version and the kernels are
 * arithmetic; the kernels' choices, too, unless the layout differs, which has other products.
 * accept: arithmetic may differ. Appends to *out, which starts as zeros. Returns 0, or -1 and
 * ERR_CONFIG, *out untouched: a key of the run differs, or arithmetic that is not accepted (all of
 * these are named, with both values and their meaning).
 */
int numerics_compare(const char *ours, const char *theirs, int accept,
                     struct numerics_differences *out, struct err *err);
void numerics_differences_release(struct numerics_differences *differences);

#endif
