/*
 * unpack.h - files that are compressed as a whole, mapped as what is in them
 */
#ifndef DATA_UNPACK_H
#define DATA_UNPACK_H

#include "base/err.h"
#include "base/file.h"

/*
 * file_map_open; but what gzip or zstd have compressed (by its first bytes; several of them one
 * behind the other too) goes to a file without a name in TMPDIR (or /tmp) first, and that is mapped.
 * Nothing of the file is trusted. Returns 0, or -1 and ERR_DATA; ERR_FAILED if there is no room.
 */
int unpack_map(struct file_map *map, const char *path, struct err *err);

/* Bytes of path without an ending .gz or .zst. */
size_t unpack_name_length(const char *path);

#endif
