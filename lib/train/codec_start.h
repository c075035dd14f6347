/*
 * codec_start.h - from which update on a run that goes on compresses its gradients
 *
 * parallel.compress_start is auto by default: with topk and powersgd it then follows from
 * train.steps, which may be another when the run goes on. Where the run began to compress, or will,
 * must not move with it: it is what the checkpoint's job has, which the next checkpoint's has as a
 * number.
 */
#ifndef TRAIN_CODEC_START_H
#define TRAIN_CODEC_START_H

#include <stdbool.h>

#include "config/job.h"

/*
 * Set parallel.compress_start of a job that leaves it to a codec with a late start, if it resumes:
 * resume is "auto" (what its output has), "none", or a run or a checkpoint. Returns whether it is
 * set. What cannot be read is reported by the resume that follows. The job is read, and not
 * resolved.
 */
bool codec_start_from_run(struct job *job, const char *resume, struct arena *arena);

#endif
