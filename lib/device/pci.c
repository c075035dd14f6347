/*
 * pci.c - one number of one file
 */
#include "device/pci.h"

#include <stdio.h>
#include <string.h>

int pci_numa_node(const char *sysfs, const char *address)
{
    char path[512];
    int node = -1;

    /* An address comes from a driver: it names no other file. */
    if (!*address || strspn(address, "0123456789abcdef:.") != strlen(address))
        return -1;
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", sysfs, address);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    int n_read = fscanf(file, "%d", &node);
    fclose(file);
    return n_read == 1 && node >= 0 ? node : -1;
}
