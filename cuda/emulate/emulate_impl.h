/*
 * emulate_impl.h - what the files of the emulated GPU share
 *
 *   emulate.cc  launches and their limits, devices
 *   machine.cc  which GPUs there are, which of them are visible, and where they sit
 *   threads.cc  threads as fibers, blocks, the order of both, where threads meet
 *   shared.cc   a block's shared memory: guard page, poison, asynchronous copies
 *   memory.cc   device and pinned memory, copies
 *   faults.cc   names the kernel whose thread touches memory that is not its own
 *   streams.cc  queues, hardware queues, events, capture and graphs
 */
#ifndef EMULATE_IMPL_H
#define EMULATE_IMPL_H

#include "cuda_runtime.h"

/* ---- threads.cc ---- */

/* All blocks of a launch, by the calling OS thread. */
void emulate_run_grid(const emulate_launch &launch, const std::function<void()> &body);

/* "emulated GPU: kernel: block 0,0,0 thread 1,0,0: ", of the thread that runs or ran last; with
 * what is wrong, and the end of the process. */
void emulate_print_place(void);
[[noreturn]] void emulate_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

bool emulate_is_in_kernel(void);
int emulate_thread(void); /* its index in its block */

/* ---- emulate.cc ---- */

/* The value of an environment variable: its place in a list of names that ends with NULL, 0 where
 * it is not set. Ends the process where it is none of them. */
int emulate_choice(const char *variable, const char *const *names);

int emulate_device(void); /* cudaSetDevice's of this OS thread */

/* ---- machine.cc ---- */

int emulate_n_visible(void); /* GPUs of this process */

/* ---- shared.cc ---- */

/* Before a launch's first block, before and after each, by the OS thread that runs them. */
void emulate_shared_open(size_t n_bytes, int n_threads);
void emulate_block_begins(void);
void emulate_block_ends(void);

/* ---- memory.cc ---- */

size_t emulate_memory_bytes(void); /* of a device */

/* ---- faults.cc ---- */

/* SIGSEGV and SIGBUS of kernels are named from here on. */
void emulate_name_faults(void);

/* Whether an address lies in a guard page behind such memory; then how far behind its end. */
bool emulate_is_behind_shared(const void *at, size_t *beyond, size_t *n_bytes);
bool emulate_is_behind_block(const void *at, size_t *beyond, size_t *n_bytes);

/* ---- streams.cc ---- */

/* cudaSuccess, or what a call that may not be made while a stream of this thread is captured gives
 * then; the capture is invalid from there on. */
cudaError_t emulate_refuse_in_capture(void);

#endif
