/*
 * decompress.h - files that are compressed as a whole, mapped as what is in them
 */
#ifndef DATA_ROWS_DECOMPRESS_H
#define DATA_ROWS_DECOMPRESS_H

#include "base/err.h"
#include "base/file.h"

/* What a file may unpack to: this many times its size, and so much whatever its size. */
#define DECOMPRESS_RATIO_MAX 100
#define DECOMPRESS_BYTES_MIN ((int64_t)64 << 20)

/*
 * file_map_open; but what gzip, xz or zstd have compressed (by its first bytes; several of them one
 * behind the other too) goes to a file without a name in TMPDIR (or /tmp) first, and that is
 * mapped. Nothing of the file is trusted: it is refused where it unpacks to more than the above.
 * Returns 0, or -1 and ERR_DATA; ERR_FAILED if there is no room, or would be next to none left.
 */
int decompress_map(struct file_map *map, const char *path, struct err *err);

/* Bytes of path without an ending .gz, .xz or .zst. */
size_t decompress_name_length(const char *path);

#endif
