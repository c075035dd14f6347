/*
 * embedded.c - finding a file in the binary
 */
#include "config/embedded.h"

#include <stddef.h>
#include <string.h>

const struct embedded_file *embedded_find(const char *path)
{
    for (int i = 0; i < n_embedded_files; i++)
        if (!strcmp(embedded_files[i].path, path))
            return &embedded_files[i];
    return NULL;
}
