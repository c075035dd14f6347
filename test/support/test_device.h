/*
 * test_device.h - the kernels that tests of ops run on: the CPU's, or a GPU's
 *
 * LMTRAIN_TEST_DEVICE=cuda takes GPU 0, real or emulated (cuda/emulate): operands are copied there
 * with what lies around them, and back, so that guards are checked on either.
 */
#ifndef SUPPORT_TEST_DEVICE_H
#define SUPPORT_TEST_DEVICE_H

#include <stdbool.h>

#include "kernels/kernels.h"

bool test_device_is_cuda(void);

/* Set an environment variable; returns a copy of what it was, or NULL, for test_put_back. */
char *test_set_aside(const char *name, const char *value);
void test_put_back(const char *name, char *kept);

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
                     const struct test_extent out[OPS_MAX_OUTPUTS], int n_threads, bool first);

/* Whether the CPU's backend, as LMTRAIN_CPU_ISA leaves it, multiplies bf16 by itself. */
bool test_has_bf16(void);

/*
 * For tests of what an instruction set promises: call tests() with each of LMTRAIN_CPU_ISA's values
 * that this machine has, each in a process of its own. Returns the sum of failures.
 */
int test_each_isa(int (*tests)(void));

#endif
