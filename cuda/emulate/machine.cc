/*
 * pci.cc - where emulated GPUs sit: the addresses in $LMTRAIN_EMULATE_PCI, separated by commas
 */
#include "cuda/emulate/cuda_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    const char *at = getenv("LMTRAIN_EMULATE_PCI");

    for (; at && device > 0; device--)
        if ((at = strchr(at, ',')))
            at++;
    if (!at || !*at)
        return cudaErrorInvalidValue;
    snprintf(text, (size_t)size, "%.*s", (int)strcspn(at, ","), at);
    return cudaSuccess;
}
