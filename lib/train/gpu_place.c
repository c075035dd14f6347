/*
 * gpu_place.c - CUDA says a GPU's PCI address, sysfs the NUMA node of that
 */
#include "train/gpu_place.h"

#include <stdlib.h>

#include "device/device.h"
#include "device/pci.h"

/* Returns the node, -1 if it is not known. */
static int find(int index, char *pci, size_t size)
{
    if (device_cuda_pci(index, pci, size) < 0) {
        pci[0] = '\0';
        return -1;
    }
    return pci_numa_node(PCI_SYSFS, pci);
}

void gpu_place_find(struct gpu_place *place, const struct launch_rank *rank, enum job_device device)
{
    int n = device == JOB_DEVICE_CPU || !device_cuda_seen() ? 0 : device_cuda_count(NULL);
    char pci[sizeof place->pci];

    *place = (struct gpu_place){ .nodes = calloc((size_t)rank->local_size, sizeof(int)) };
    CHECK(place->nodes);
    for (int i = 0; i < rank->local_size; i++)
        place->nodes[i] = n ? find(gpu_place_index(i, n), pci, sizeof pci) : -1;
    if (n)
        find(gpu_place_index(rank->local_rank, n), place->pci, sizeof place->pci);
}

void gpu_place_release(struct gpu_place *place)
{
    free(place->nodes);
    place->nodes = NULL;
}
