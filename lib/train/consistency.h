/*
 * consistency.h - what all ranks of a run must have in common, compared before they begin
 *
 * A rank of another job file, of another build or on a processor that other kernels are chosen for
 * would part ways with the others somewhere in the run, without anybody noticing.
 */
#ifndef TRAIN_CONSISTENCY_H
#define TRAIN_CONSISTENCY_H

#include "train/trainer.h"

/*
 * All ranks must hold the same text, `what` for people; only its hash is exchanged if they do.
 * Else ERR_CONFIG on all of them with the first line that differs, as rank 0 and the first rank of
 * another text have it, their hosts, and `hint`. A line that is indented (YAML) is named with the
 * keys that it stands under: "optimizer.lr: 0.01". Collective.
 */
int consistency_text(struct trainer *trainer, const char *what, const char *text, const char *hint,
                     struct err *err);

/* Where texts of lines part ways: those two lines as above, "" past an end. For tests. */
void consistency_first_difference(const char *a, const char *b, struct str *in_a, struct str *in_b);

#endif
