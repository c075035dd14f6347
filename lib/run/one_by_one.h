/*
 * one_by_one.h - LMTRAIN_CUDA_SYNC=1: which op failed on a GPU
 *
 * A kernel's failure is reported at some later wait, without the op. Asked to, the executor
 * makes no graphs and waits for the device after each op; the error then has the op's name and its
 * operands. Training takes a few times as long.
 */
#ifndef RUN_ONE_BY_ONE_H
#define RUN_ONE_BY_ONE_H

#include "device/device.h"

struct run;
struct resolved_op;

/* Whether the environment asks for it; never for the host. */
int one_by_one_is_wanted(const struct device *device);

/* After the op was given to the queue: 0, or -1 and the device's failure with the op's operands. At
 * once 0 where a run is not one by one. */
int one_by_one_wait(struct run *run, const struct resolved_op *op, int queue, struct err *err);

#endif
