/*
 * cudnn.h - the functions of cuDNN's backend API that cudnn.cc stands in for
 *
 * As struct cudnn_api has them: enums are int, opaque pointers void *.
 */
#ifndef EMULATE_CUDNN_H
#define EMULATE_CUDNN_H

#include "cuda_runtime.h"

extern "C" {
size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(int status);
void cudnnGetLastErrorString(char *text, size_t n_bytes);
int cudnnCreate(void **handle);
int cudnnDestroy(void *handle);
int cudnnSetStream(void *handle, cudaStream_t stream);
int cudnnBackendCreateDescriptor(int type, void **descriptor);
int cudnnBackendDestroyDescriptor(void *descriptor);
int cudnnBackendFinalize(void *descriptor);
int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t n, const void *values);
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t n_wanted, int64_t *n,
                             void *values);
int cudnnBackendExecute(void *handle, void *plan, void *variant_pack);
}

#endif
