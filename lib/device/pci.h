/*
 * pci.h - where in a machine a device of the PCI bus sits, by what the kernel says in sysfs
 */
#ifndef DEVICE_PCI_H
#define DEVICE_PCI_H

#define PCI_SYSFS "/sys"

/*
 * The NUMA node that the device of this address ("0000:17:00.0") is nearest to. -1: the kernel does
 * not know, as in most virtual machines and where there is but one; or there is no such device.
 */
int pci_numa_node(const char *sysfs, const char *address);

#endif
