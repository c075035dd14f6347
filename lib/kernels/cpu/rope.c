/*
 * rope.c - being written
 */
#include "kernels/cpu/families_impl.h"

void CPU_ISA_NAME(cpu_fill_rope)(struct kernels_backend *backend)
{
    (void)backend;
}
