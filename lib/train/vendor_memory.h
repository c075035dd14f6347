/*
 * vendor_memory.h - what is left of a GPU's memory to vendors: its own account less what was
 * planned
 *
 * The context, modules, graphs and what NCCL and cuDNN keep are no part of any plan. They are
 * measured in a run's second step, when all of it is there, and remembered for this machine
 * ($XDG_CACHE_HOME/lmtrain/gpu-account), so that `doctor` can say them. `plan` does not: its text
 * depends on no machine's past.
 */
#ifndef TRAIN_VENDOR_MEMORY_H
#define TRAIN_VENDOR_MEMORY_H

#include <stddef.h>

#include "train/engine.h"

/*
 * Say what the device says and remember the vendors' part. Nothing where the rank computes on the
 * host, or shares its GPU with other ranks. What cannot be written is not remembered.
 */
void vendor_memory_take(const struct engine *engine, size_t planned_bytes);

/*
 * What this machine's last account said. Returns 1, with the vendors' bytes and the device's name
 * in *name; 0 if there is none.
 */
int vendor_memory_recall(size_t *vendor_bytes, char *name, size_t size);

#endif
