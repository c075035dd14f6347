/*
 * numerics_lines.h - the fields of a job that determine the bits of its run
 *
 * Which fields these are, where their lines stand in the description and when they have one, is a
 * part of each field's row (fields.c). train/numerics.h adds what is not of the job: the version of
 * the engine's arithmetic, and the kernels. A resume compares descriptions line by line, so a line
 * that is printed must stay as it is: a checkpoint has the text of the lmtrain that wrote it.
 */
#ifndef CONFIG_NUMERICS_LINES_H
#define CONFIG_NUMERICS_LINES_H

#include <stdint.h>

#include "base/str.h"
#include "config/job.h"

/* What a resume does where the checkpoint has another value than the job. */
enum numerics_change {
    NUMERICS_NONE,       /* the field is no part of the numerics */
    NUMERICS_RUN,        /* refused: it would be another run */
    NUMERICS_ARITHMETIC, /* refused without --accept-numerics: the same run, computed otherwise */
    NUMERICS_LAYOUT,     /* logged: how the work is divided, and with it the order of sums */
    NUMERICS_RECIPE,     /* logged: what a user may adjust during a run */
};

/*
 * Append a line "KEY VALUE" for each field that is part of the numerics and has an effect in this
 * job, in fixed order. data: the loader's fingerprint, for the line of data.train, whose key is
 * "data". The job is resolved.
 */
void numerics_lines(const struct job *job, uint64_t data, struct str *out);

/* Those of the model alone. */
void numerics_model_lines(const struct model_spec *spec, struct str *out);

/* Of the field whose line has this key; NUMERICS_NONE if no field has. */
enum numerics_change numerics_change_of(const char *key);

/* What the field of such a line is, in a few words (the beginning of its help); NULL: no
 * field's. */
const char *numerics_meaning_of(const char *key, struct arena *arena);

/* "Part of the numerics: a resume ...", the sentence of man 5 on such a field, or "". */
const char *numerics_change_text(enum numerics_change change);

#endif
