/*
 * driver.c - a libcuda.so.1 that takes kernels and forgets them
 *
 * cuDNN makes plans for a device that it is only told about, but hands each kernel to the driver
 * when the plan is made. This stands in for the driver on machines without a GPU, so that plans
 * can be asked for there (cudnn_plans.cu): it says that there is no device, and nothing can be
 * launched. It has what cuDNN 9.19 looks for.
 */
#include <stdio.h>

enum { SUCCESS = 0, NO_DEVICE = 100, NOT_SUPPORTED = 801 };

static int something;
static char last_kernel[256];

/* Name of the kernel that was asked for last. */
const char *stand_in_last_kernel(void);
int cuLibraryLoadData(void **library, const void *code);
int cuLibraryUnload(void *library);
int cuLibraryGetKernel(void **kernel, void *library, const char *name);
int cuKernelSetAttribute(void);

const char *stand_in_last_kernel(void)
{
    return last_kernel;
}

/* code, and six more arguments that nobody reads. */
int cuLibraryLoadData(void **library, const void *code)
{
    (void)code;
    *library = &something;
    return SUCCESS;
}

int cuLibraryUnload(void *library)
{
    (void)library;
    return SUCCESS;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)library;
    snprintf(last_kernel, sizeof last_kernel, "%s", name);
    *kernel = &something;
    return SUCCESS;
}

/* Kernels may have as much shared memory as they ask for. */
int cuKernelSetAttribute(void)
{
    return SUCCESS;
}

#define REFUSE(name, status) \
    int name(void); \
    int name(void) \
    { \
        return status; \
    }
REFUSE(cuInit, NO_DEVICE)
REFUSE(cuDeviceGet, NO_DEVICE)
REFUSE(cuDeviceGetCount, NO_DEVICE)
REFUSE(cuDriverGetVersion, NOT_SUPPORTED)
REFUSE(cuGetErrorName, NOT_SUPPORTED)
REFUSE(cuGetErrorString, NOT_SUPPORTED)
REFUSE(cuCtxGetCurrent, NOT_SUPPORTED)
REFUSE(cuCtxGetLimit, NOT_SUPPORTED)
REFUSE(cuCtxPopCurrent, NOT_SUPPORTED)
REFUSE(cuCtxPushCurrent, NOT_SUPPORTED)
REFUSE(cuKernelGetAttribute, NOT_SUPPORTED)
REFUSE(cuLaunchKernel, NOT_SUPPORTED)
REFUSE(cuLaunchKernelEx, NOT_SUPPORTED)
REFUSE(cuLaunchCooperativeKernel, NOT_SUPPORTED)
REFUSE(cuLibraryLoadFromFile, NOT_SUPPORTED)
REFUSE(cuLinkAddData, NOT_SUPPORTED)
REFUSE(cuLinkComplete, NOT_SUPPORTED)
REFUSE(cuLinkCreate, NOT_SUPPORTED)
REFUSE(cuLinkDestroy, NOT_SUPPORTED)
REFUSE(cuOccupancyMaxPotentialClusterSize, NOT_SUPPORTED)
REFUSE(cuStreamGetCtx, NOT_SUPPORTED)
