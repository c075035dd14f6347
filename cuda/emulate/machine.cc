/*
 * machine.cc - which emulated GPUs there are, which of them this process may use, and where they sit
 *
 * $LMTRAIN_EMULATE_DEVICES is how many the machine has; then $CUDA_VISIBLE_DEVICES chooses among
 * them as it does among real ones, by number or by UUID (those of test/device/nvml_stub.c). Where
 * the first is not set, a process has one. $LMTRAIN_EMULATE_PCI has the addresses of the machine's
 * GPUs, separated by commas.
 */
#include "emulate_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "device/visible_gpus.h"
}

enum { N_MAX = MACHINE_GPUS_MAX };

/* Those of this process, by their numbers in the machine. */
static int find_visible(struct visible_gpu gpus[N_MAX])
{
    const char *text = getenv("LMTRAIN_EMULATE_DEVICES"), *list = getenv("CUDA_VISIBLE_DEVICES");
    char names[N_MAX][48];
    const char *uuids[N_MAX];
    int n = text ? atoi(text) : 1;

    n = n < 0 ? 0 : n < N_MAX ? n : N_MAX;
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "GPU-00000000-0000-0000-0000-%012d", i);
        uuids[i] = names[i];
    }
    return visible_gpus_find(gpus, text ? list : NULL, n, uuids);
}

int emulate_n_visible(void)
{
    struct visible_gpu gpus[N_MAX];

    return find_visible(gpus);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    const char *at = getenv("LMTRAIN_EMULATE_PCI");
    struct visible_gpu gpus[N_MAX];

    if (device >= find_visible(gpus))
        return cudaErrorInvalidValue;
    for (int i = gpus[device].index; at && i > 0; i--)
        if ((at = strchr(at, ',')))
            at++;
    if (!at || !*at)
        return cudaErrorInvalidValue;
    snprintf(text, (size_t)size, "%.*s", (int)strcspn(at, ","), at);
    return cudaSuccess;
}
