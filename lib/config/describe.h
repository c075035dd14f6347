/*
 * describe.h - the job's fields as a part of a manual page
 */
#ifndef CONFIG_DESCRIBE_H
#define CONFIG_DESCRIBE_H

#include "base/str.h"

/* Every field as .SS and .TP sections of troff, for man/lmtrain-job.5. */
void job_manual(struct str *out);

/* Every key, with the words that it may be set to, for the shell's completion of --set. */
void job_completion(struct str *out);

#endif
