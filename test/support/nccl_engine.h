/*
 * nccl_engine.h - the engine of a rank that is a thread with a GPU of its own and NCCL
 */
#ifndef SUPPORT_NCCL_ENGINE_H
#define SUPPORT_NCCL_ENGINE_H

#include "comm/comm.h"
#include "train/engine.h"

/*
 * Open device, kernels, worker and comm; engine->rank is set by the caller. Called in the rank's
 * thread, by all ranks of the hub at once: an error ends the process (threads may not use cmocka).
 */
void nccl_engine_open(struct engine *engine, struct comm_hub *hub);
void nccl_engine_close(struct engine *engine);

#endif
