/*
 * sequence_lengths.h - how long a job's sequences are where they are not packed
 */
#ifndef CONFIG_SEQUENCE_LENGTHS_H
#define CONFIG_SEQUENCE_LENGTHS_H

#include "config/job.h"

/*
 * The lengths of micro-batches without packing, ascending, the last seq_len; in the arena. given:
 * data.lengths; where it is empty, halves of seq_len that are multiples of unit.
 */
const int *lengths_without_packing(const struct job_counts *given, int seq_len, int64_t unit,
                                   int *n, struct arena *arena);

/* Those of a job; with packing n is 0 and NULL is returned. */
const int *lengths_of_job(const struct job *job, int *n, struct arena *arena);

#endif
