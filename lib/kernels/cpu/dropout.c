/*
 * dropout.c - being written
 */
#include "kernels/cpu/families_impl.h"

void CPU_ISA_NAME(cpu_fill_dropout)(struct kernels_backend *backend)
{
    (void)backend;
}
