/*
 * test_device.h - the kernels that tests of ops run on: the CPU's, or a GPU's
 *
 * LMTRAIN_TEST_DEVICE=cuda takes GPU 0, real or emulated (cuda/emulate): operands are copied there
 * with what lies around them, and back, so that guards are checked on either.
 */
#ifndef SUPPORT_TEST_DEVICE_H
#define SUPPORT_TEST_DEVICE_H

#include "kernels/kernels.h"

int test_device_is_cuda(void);

/*
 * A backend of its own; fails the test if there is none. n_threads: the CPU's. Close gives back all
 * but a GPU's device, which stays open until the process ends.
 */
struct kernels *test_device_open(int n_threads);
void test_device_close(struct kernels *kernels);

/* A device of one's own, for ranks that are threads: the host, or a view of GPU 0. The caller
 * destroys both. Returns 0, or -1 and ERR_DEVICE. */
int test_device_create(struct device **device, struct kernels **kernels, struct pool *pool,
                       struct err *err);

/* What an operand's memory is, guards included. */
struct test_extent {
    void *begin;
    size_t n_bytes;
};

/* Prepare, run with first, release; scratch is poisoned, and guarded behind. */
void test_device_run(const struct op_shape *op, const struct test_extent in[OPS_MAX_INPUTS],
                     const struct test_extent out[OPS_MAX_OUTPUTS], int n_threads, int first);

#endif
