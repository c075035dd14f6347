/*
 * file_hash.h - XXH3-64 of a whole file
 */
#ifndef CKPT_FILE_HASH_H
#define CKPT_FILE_HASH_H

#include <stdint.h>

/*
 * The hash of a file from the offset of fd to its end; tick, if any, is called with the number of
 * bytes read. 0, or -1 with errno.
 */
int file_hash(int fd, uint64_t *hash, void (*tick)(void *context, int64_t n_bytes), void *context);

#endif
