/*
 * append.h - records at the end of a file, whole or not at all
 */
#ifndef REPORT_APPEND_H
#define REPORT_APPEND_H

#include <stddef.h>

#include "base/err.h"

/*
 * Write data at the end of fd, in one call where the system lets us, so that a kill or another
 * reader meets whole records. What fails half way, on a full disk, is cut off again.
 */
int append_whole(int fd, const char *path, const void *data, size_t n_bytes, struct err *err);

#endif
