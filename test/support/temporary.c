/*
 * temporary.c - a folder in $TMPDIR
 */
#include "support/temporary.h"

#include <stdio.h>
#include <stdlib.h>

int temporary_folder(char *path, size_t size)
{
    const char *base = getenv("TMPDIR");
    int length = snprintf(path, size, "%s/lmtrain-test-XXXXXX", base && *base ? base : "/tmp");

    if (length < 0 || (size_t)length >= size)
        return -1;
    return mkdtemp(path) ? 0 : -1;
}
