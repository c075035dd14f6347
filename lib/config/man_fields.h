/*
 * man_fields.h - the job's fields as a part of a manual page, and as others call them
 */
#ifndef CONFIG_MAN_FIELDS_H
#define CONFIG_MAN_FIELDS_H

#include "base/arena.h"
#include "base/completion.h"
#include "base/str.h"

/* Every field as .SS and .TP sections of troff, for man/lmtrain-job.5. */
void job_manual(struct str *out);

/*
 * What an option of this name, that a command with --set lacks, most likely means: "--set
 * train.steps=5", or a text; in arena. exact: only fields of just that key or last name, and other
 * tools' names; else the nearest too. value NULL: VALUE is shown. NULL if there is nothing like it.
 */
const char *job_option_hint(const char *name, const char *value, bool exact, struct arena *arena);

/* Every key, with the words that it may be set to, for the shell's completion of --set. */
void job_completion(const struct completion_shell *shell, struct str *out);

#endif
