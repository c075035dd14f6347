/*
 * crew.h - ranks as threads of this process, each with a trainer of one tiny job
 */
#ifndef SUPPORT_CREW_H
#define SUPPORT_CREW_H

#include "train/trainer.h"

#define CREW_MAX 8

struct crew_rank {
    int rank;
    const char *build;       /* NULL: all the same */
    size_t available_bytes;  /* 0: not known */
    void *context;           /* of work */
    struct trainer *trainer; /* NULL where it could not be made */
    int status;              /* of trainer_create, else of work */
    struct err err;
};

/* What a rank does with its trainer. Runs on a thread: no asserts of cmocka's. */
typedef int (*crew_fn)(struct crew_rank *rank, struct err *err);

/*
 * n ranks (rank and trainer are filled in) do work with trainers of a llama of a vocabulary of 64
 * in bf16; zero: the job's. Returns when all are done; whatever went wrong is in them.
 */
void crew_run(struct crew_rank *ranks, int n, int zero, crew_fn work);

#endif
