/*
 * checkpoint_dir_impl.h - files of a checkpoint's folder, by plain name and through no link
 *
 * For lib/ckpt alone. A folder is an open descriptor, so that a rename of it while we read does not
 * mix two checkpoints; path is for messages.
 */
#ifndef CKPT_CHECKPOINT_DIR_IMPL_H
#define CKPT_CHECKPOINT_DIR_IMPL_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

struct folder {
    int fd;
    const char *path; /* borrowed */
};

/* -1 and ERR_DATA if path is not a folder. The path itself may be a link: runs/ often is. */
int folder_open(struct folder *folder, const char *path, struct err *err);
void folder_close(struct folder *folder);

/* A regular file of n_bytes for reading, or of any size if n_bytes is negative; -1 and ERR_DATA. */
int folder_open_file(const struct folder *folder, const char *name, int64_t n_bytes,
                     struct err *err);

/* All of a file, at most limit_bytes, on the heap. */
int folder_read_file(const struct folder *folder, const char *name, size_t limit_bytes, char **data,
                     size_t *n_bytes, struct err *err);

/* The path without slashes at its end and with a suffix. */
char *store_path_with(struct arena *arena, const char *path, const char *suffix);

#endif
