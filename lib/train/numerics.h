/*
 * numerics.h - all that decides a run's bits, as text and hash (design.md §5)
 */
#ifndef TRAIN_NUMERICS_H
#define TRAIN_NUMERICS_H

#include "base/str.h"
#include "config/job.h"

/*
 * One "key value" line each, in fixed order: model, data, seed, batch, dtypes, degrees, sums,
 * optimizer, kernels, and where those choose among algorithms a hash of what they chose. data: the
 * loader's fingerprint; identity: kernels_identity; choices: kernels_choices_print's text, the same
 * on all ranks (choices_make); "": none.
 */
void numerics_describe(const struct job *job, uint64_t data, const char *identity,
                       const char *choices, struct str *out);

/* xxh64 of that text. */
uint64_t numerics_hash(const struct str *description);

/*
 * Whether weights of one model are weights of another: all of its arithmetic but dropout and what
 * random weights begin with. Else ERR_CONFIG naming the first field that differs; path is where
 * `theirs` is from.
 */
int numerics_check_weights(const struct model_spec *ours, const struct model_spec *theirs,
                           const char *path, struct err *err);

#endif
