/*
 * job_file.h - OUTPUT/job.yaml: the job with every field, as a run was started
 *
 * The file is replaced at each start of the run. So that no other file is, it begins with a line
 * that names lmtrain and holds a hash of the rest. A file without that line is the user's own job,
 * as with `output: .`, and is never touched; one with the line whose rest was changed is kept
 * beside the new one. Files of versions that wrote no such line are known by their form.
 */
#ifndef TRAIN_JOB_FILE_H
#define TRAIN_JOB_FILE_H

#include "config/job.h"

/*
 * Whether a run may write OUTPUT/job.yaml: 0, or -1 and ERR_CONFIG if a file of that name is not
 * lmtrain's. For the start of a command, before anything is made; job_file_write checks it again.
 */
int job_file_check(const struct job *job, struct err *err);

/* Write it, whole or not at all; an edited one becomes job.yaml.edited, with a line in the log. */
int job_file_write(const struct job *job, struct err *err);

#endif
