/*
 * library.cuh - vendors' libraries, opened when first wanted, so that lmtrain starts without them
 *
 * They are looked for in the folders of $LMTRAIN_CUDA_LIBRARIES (separated by colons), where the
 * loader looks by itself, in lib64 of $CUDA_HOME and of /usr/local/cuda, and in an active Python
 * environment's nvidia packages. A handle stays open until the process ends.
 *
 * Under emulation symbols are those of cuda/emulate's stand-ins.
 */
#ifndef CUDA_LIBRARY_CUH
#define CUDA_LIBRARY_CUH

#include "cuda/cuda.cuh"

/*
 * file: its name with the major version, "libcublasLt.so.13". Returns 0, or -1 and ERR_DEVICE with
 * the loader's words and where it was looked for.
 */
int cuda_library_open(void **handle, const char *file, struct err *err);

/* What stands at the name, NULL if there is nothing. */
void *cuda_library_symbol(void *handle, const char *name);

/* Set a function pointer of a table: CUDA_SYMBOL(handle, table->matmul, cublasLtMatmul); 0 if the
 * library lacks it. */
#ifdef LMTRAIN_EMULATE
#define CUDA_SYMBOL(handle, field, name) \
    ((void)(handle), (field) = (decltype(field))(void *)name, (field) != NULL)
#else
#define CUDA_SYMBOL(handle, field, name) \
    ((field) = (decltype(field))cuda_library_symbol(handle, #name), (field) != NULL)
#endif

#endif
