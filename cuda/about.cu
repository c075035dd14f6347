/*
 * about.cu - which CUDA this build is of, the vendors' libraries that it finds, where GPUs sit
 *
 * Nothing here makes a context, and libraries are opened but not started: a driver that is too old
 * for them is no matter.
 */
#include "cuda/library.cuh"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef LMTRAIN_EMULATE
#include "cuda/emulate/cublasLt.h"
#include "cuda/emulate/cudnn.h"
#include "cuda/emulate/nccl.h"
#else
#include <cublasLt.h>
#include <nccl.h>
extern "C" size_t cudnnGetVersion(void); /* cuDNN's headers are not needed to build */
#endif

#ifndef CUDART_VERSION
#define CUDART_VERSION 13000 /* the emulated one */
#endif

extern "C" int device_cuda_version(void)
{
    return CUDART_VERSION;
}

extern "C" int device_cuda_pci(int index, char *pci, size_t size)
{
    char text[32] = "";
    cudaError_t error = cudaDeviceGetPCIBusId(text, sizeof text, index);

    if (error != cudaSuccess) {
        cudaGetLastError();
        return -1;
    }
    for (char *c = text; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    snprintf(pci, size, "%s", text);
    return 0;
}

/* ---- libraries ---- */

static size_t cublaslt_version(void *handle)
{
    decltype(&cublasLtGetVersion) get_version;

    return CUDA_SYMBOL(handle, get_version, cublasLtGetVersion) ? get_version() : 0;
}

static size_t cudnn_version(void *handle)
{
    decltype(&cudnnGetVersion) get_version;

    return CUDA_SYMBOL(handle, get_version, cudnnGetVersion) ? get_version() : 0;
}

static size_t nccl_version(void *handle)
{
    decltype(&ncclGetVersion) get_version;
    int version = 0;

    if (CUDA_SYMBOL(handle, get_version, ncclGetVersion))
        get_version(&version);
    return (size_t)version;
}

static const struct {
    const char *name, *files[2]; /* the second where there is no first */
    size_t (*version)(void *handle);
    size_t oldest; /* that will do; 0: any */
} libraries[] = {
    { "cuBLASLt", { "libcublasLt.so.13", "libcublasLt.so.12" }, cublaslt_version, 0 },
    { "cuDNN", { "libcudnn.so.9", NULL }, cudnn_version, 0 },
    { "NCCL", { "libnccl.so.2", NULL }, nccl_version, 21800 }, /* ncclCommSplit */
};

static void version_text(size_t version, char *text, size_t size)
{
    snprintf(text, size, "%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

static void refuse_old(int i, struct device_library *library, struct err *err)
{
    char oldest[sizeof library->version];

    version_text(libraries[i].oldest, oldest, sizeof oldest);
    err_set(err, ERR_DEVICE, "%s is %s, %s or newer is needed", library->file, library->version,
            oldest);
    library->file = NULL;
}

extern "C" int device_cuda_library(int i, struct device_library *library, struct err *err)
{
    void *handle = NULL;
    struct err ignored;

    if (i < 0 || i >= (int)(sizeof libraries / sizeof *libraries))
        return 0;
    library->name = libraries[i].name;
    library->file = libraries[i].files[0];
    library->version[0] = '\0';
    if (cuda_library_open(&handle, library->file, err) < 0) {
        library->file = libraries[i].files[1];
        if (!library->file || cuda_library_open(&handle, library->file, &ignored) < 0)
            return 1;
    }
    size_t version = libraries[i].version(handle);
    version_text(version, library->version, sizeof library->version);
    if (version < libraries[i].oldest)
        refuse_old(i, library, err);
    return 1;
}
