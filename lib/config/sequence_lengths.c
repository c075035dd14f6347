/*
 * sequence_lengths.c - the given lengths, or halves of the longest
 */
#include "config/sequence_lengths.h"

#define LENGTH_AUTO_MIN 64 /* shorter ones would spend their time between ops */

const int *lengths_without_packing(const struct job_counts *given, int seq_len, int64_t unit,
                                   int *n, struct arena *arena)
{
    int *lengths = arena_array(arena, int, given->n + 4);

    *n = 0;
    for (int i = 0; i < given->n; i++)
        lengths[(*n)++] = given->values[i];
    for (int part = 8; part > 1 && given->n == 0; part /= 2)
        if (seq_len % part == 0 && seq_len / part >= LENGTH_AUTO_MIN && seq_len / part % unit == 0)
            lengths[(*n)++] = seq_len / part;
    lengths[(*n)++] = seq_len;
    return lengths;
}

const int *lengths_of_job(const struct job *job, int *n, struct arena *arena)
{
    *n = 0;
    if (job->data.packing)
        return NULL;
    return lengths_without_packing(&job->data.lengths, job->data.seq_len, job_length_unit(job), n,
                                   arena);
}
