/*
 * offload_impl.h - the parts of the pass offload
 */
#ifndef PROGRAM_OFFLOAD_IMPL_H
#define PROGRAM_OFFLOAD_IMPL_H

#include "program/program.h"

/*
 * offload_update.c: behind the choice of homes, before copies are inserted: ops of TRAIT_ON_HOST
 * whose states are all at home in host memory become host ops.
 */
void offload_update(struct program *program);

#endif
