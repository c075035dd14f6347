/*
 * library.cu - see library.cuh
 */
#include "cuda/library.cuh"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "base/str.h"
}

#ifdef LMTRAIN_EMULATE

int cuda_library_open(void **handle, const char *file, struct err *err)
{
    const char *missing = getenv("LMTRAIN_EMULATE_WITHOUT"); /* part of a file's name */

    if (missing && *missing && strstr(file, missing))
        return err_set(err, ERR_DEVICE, "%s is not found", file);
    *handle = NULL;
    return 0;
}

void *cuda_library_symbol(void *, const char *)
{
    return NULL;
}

#else

static int open_at(void **handle, const char *folder, size_t length, const char *file)
{
    char path[4096];

    snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, file);
    *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    return *handle != NULL;
}

/* pattern, with any number of asterisks, names folders. */
static int open_matching(void **handle, const char *pattern, const char *file)
{
    glob_t found;
    int opened = 0;

    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && !opened; i++)
            opened = open_at(handle, found.gl_pathv[i], strlen(found.gl_pathv[i]), file);
        globfree(&found);
    }
    return opened;
}

static int open_listed(void **handle, const char *folders, const char *file)
{
    while (folders && *folders) {
        size_t length = strcspn(folders, ":");

        if (length && open_at(handle, folders, length, file))
            return 1;
        folders += length + (folders[length] == ':');
    }
    return 0;
}

static int open_below(void **handle, const char *variable, const char *below, const char *file)
{
    const char *root = getenv(variable);
    char pattern[4096];

    if (!root || !*root)
        return 0;
    snprintf(pattern, sizeof pattern, "%s/%s", root, below);
    return open_matching(handle, pattern, file);
}

int cuda_library_open(void **handle, const char *file, struct err *err)
{
    char why[512] = "";

    if (open_listed(handle, getenv("LMTRAIN_CUDA_LIBRARIES"), file))
        return 0;
    *handle = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    if (*handle)
        return 0;
    snprintf(why, sizeof why, "%s", dlerror());
    if (open_below(handle, "CUDA_HOME", "lib64", file) ||
        open_matching(handle, "/usr/local/cuda/lib64", file) ||
        open_below(handle, "VIRTUAL_ENV", "lib/python3*/site-packages/nvidia/*/lib", file))
        return 0;
    return err_set(err, ERR_DEVICE,
                   "%s cannot be opened: %s (hint: set LMTRAIN_CUDA_LIBRARIES to its folder)", file,
                   why);
}

void *cuda_library_symbol(void *handle, const char *name)
{
    return dlsym(handle, name);
}

#endif
