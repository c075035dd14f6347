/*
 * no_cuda.c - what stands for GPUs in builds without CUDA: cuda/ has the same names, which win
 */
#include "device/device.h"

__attribute__((weak)) int device_cuda_count(const char **why)
{
    if (why)
        *why = "this lmtrain was built without CUDA (hint: `make CUDA=1`, or device: cpu)";
    return 0;
}

__attribute__((weak)) int device_cuda_open(struct device **device, int index, struct err *err)
{
    (void)device;
    return err_set(err, ERR_DEVICE,
                   "no GPU %d: this lmtrain was built without CUDA (hint: `make "
                   "CUDA=1`)",
                   index);
}

__attribute__((weak)) int device_cuda_seen(void)
{
    return 0;
}

__attribute__((weak)) int device_cuda_version(void)
{
    return 0;
}

__attribute__((weak)) int device_cuda_pci(int index, char *pci, size_t size)
{
    (void)index;
    (void)pci;
    (void)size;
    return -1;
}

__attribute__((weak)) int device_cuda_library(int i, struct device_library *library,
                                              struct err *err)
{
    (void)i;
    (void)library;
    (void)err;
    return 0;
}
