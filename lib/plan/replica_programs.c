/*
 * replica_programs.c - by number of micro-batches
 */
#include "plan/replica_programs.h"

#include "plan/programs.h"

struct replica_entry {
    int n_micro_batches;
    struct program *programs;
};

void replica_programs_init(struct replica_programs *r, const struct plan *plan)
{
    *r = (struct replica_programs){ .plan = plan };
}

void replica_programs_release(struct replica_programs *r)
{
    for (int i = 0; i < r->n; i++)
        for (int rank = 0; rank < r->plan->job->parallel.pp; rank++)
            program_release(&r->entries[i].programs[rank]);
    arena_release(&r->arena);
}

int replica_micro_batches(const struct job *job, int data_rank)
{
    const struct job_counts *counts = &job->parallel.replica_micro_batches;

    return counts->n ? counts->values[data_rank] : job->n_micro_batches;
}

const struct program *replica_programs_find(struct replica_programs *r, int data_rank,
                                            struct err *err)
{
    struct job job = *r->plan->job;

    job.n_micro_batches = replica_micro_batches(&job, data_rank);
    if (job.n_micro_batches == r->plan->job->n_micro_batches)
        return r->plan->programs;
    for (int i = 0; i < r->n; i++)
        if (r->entries[i].n_micro_batches == job.n_micro_batches)
            return r->entries[i].programs;
    r->entries = arena_grow(&r->arena, r->entries, sizeof *r->entries, &r->capacity, r->n + 1);
    struct replica_entry *entry = &r->entries[r->n++];
    entry->n_micro_batches = job.n_micro_batches;
    entry->programs = arena_array(&r->arena, struct program, job.parallel.pp);
    return programs_compile_unverified(entry->programs, &job, r->plan->kernels, err)
               ? NULL
               : entry->programs;
}
