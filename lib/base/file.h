/*
 * file.h - files and folders, whole or not at all
 *
 * Files are made 0600 and folders 0700 (design.md §9) and are never written through a symbolic
 * link.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Read all of path, at most limit_bytes, into *data (heap, yours to free, with a 0 byte behind the
 * end) and *n_bytes. Returns 0, or -1 and `code` with the path in the text.
 */
int file_read(const char *path, size_t limit_bytes, enum err_code code, char **data,
              size_t *n_bytes, struct err *err);

/* Write path whole: to a file beside it, fsync, rename, fsync of the folder. ERR_FAILED on failure.
 */
int file_write(const char *path, const void *data, size_t n_bytes, struct err *err);

/* Make the folder and its parents; one that exists is fine. */
int file_make_folders(const char *path, struct err *err);

/* fsync of a folder, so that renames in it last. */
int file_sync_folder(const char *path, struct err *err);

/* Remove a file, or a folder with all that is in it; what is not there is fine. Follows no links.
 */
int file_remove_tree(const char *path, struct err *err);

int file_exists(const char *path);
int file_is_folder(const char *path);
/* -1 if it cannot be told. */
int64_t file_size(const char *path);

/*
 * A read-only mapping of a whole file. data is NULL for an empty file. The file must not shrink
 * while it is mapped.
 */
struct file_map {
    const unsigned char *data;
    size_t n_bytes;
};

int file_map_open(struct file_map *map, const char *path, struct err *err);
void file_map_close(struct file_map *map);

#endif
