/*
 * gpu_place.h - where in a machine the GPUs of its ranks sit
 *
 * A rank's cores and memory are taken near its GPU (launch/cores.h), so this is asked before the
 * GPU is opened.
 */
#ifndef TRAIN_GPU_PLACE_H
#define TRAIN_GPU_PLACE_H

#include "config/job.h"
#include "launch/launch.h"

struct gpu_place {
    char pci[32]; /* of this rank's GPU; "": none, or not known */
    int *nodes;   /* the NUMA node of each local rank's GPU, as this rank sees GPUs; -1: unknown */
};

/* The GPU of a local rank, of n_gpus, which local ranks share evenly. */
static inline int gpu_place_index(int local_rank, int n_gpus)
{
    return local_rank % n_gpus;
}

void gpu_place_find(struct gpu_place *place, const struct launch_rank *rank,
                    enum job_device device);
void gpu_place_release(struct gpu_place *place);

#endif
