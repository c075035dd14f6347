/*
 * file_tier.h - the file of a rank: the segments of what neither device nor host has memory for
 *
 * One file of exactly the planned size, preallocated, so that a full disk is noticed before the
 * first step. It has no name once it is open, so nothing of it is left when the rank ends, however
 * it does. What is in it is never needed again after that.
 *
 * A place in it has an address that no memory has (its highest bit is set): arithmetic within a
 * segment is that of memory, and who accesses it as memory dies at once.
 */
#ifndef RUN_FILE_TIER_H
#define RUN_FILE_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define FILE_TIER_ALIGNMENT ((size_t)4096)

/* What was written as a whole, for reads of the same. */
struct file_sum {
    size_t n_bytes; /* 0: nothing */
    uint64_t hash;
};

struct file_tier {
    int fd;         /* -1: there is no file */
    int direct_fd;  /* past the page cache, for what is aligned; -1: not on this file system */
    size_t n_bytes; /* a multiple of the alignment */
    struct file_sum *sums; /* by where a value begins, over the alignment; NULL: not summed */
};

/*
 * Returns 0, or -1 and ERR_CONFIG (there is no such folder, or no permission) or ERR_DEVICE (no
 * room) with the folder and the bytes. is_summed: with room for a checksum of each value.
 */
int file_tier_open(struct file_tier *tier, const char *folder, size_t n_bytes, bool is_summed,
                   struct err *err);
void file_tier_close(struct file_tier *tier); /* also after a failure, or if zeroed with fd -1 */

static inline bool file_tier_has(const void *address)
{
    return ((uintptr_t)address & ~(UINTPTR_MAX >> 1)) != 0;
}

static inline unsigned char *file_tier_address(size_t offset)
{
    return (unsigned char *)(~(UINTPTR_MAX >> 1) | (uintptr_t)offset);
}

static inline size_t file_tier_offset(const void *address)
{
    return (size_t)((uintptr_t)address & (UINTPTR_MAX >> 1));
}

/* Which of its descriptors takes such a transfer. */
int file_tier_fd(const struct file_tier *tier, const void *data, size_t offset, size_t n_bytes);

/* Any bytes, at once. Several threads may. 0, or -1 and ERR_DEVICE. */
int file_tier_read(const struct file_tier *tier, void *data, const void *address, size_t n_bytes,
                   struct err *err);
int file_tier_write(struct file_tier *tier, void *address, const void *data, size_t n_bytes,
                    struct err *err);

/* Where it is summed: the bytes there are others now, of this hash (0 bytes: of none), and whether
 * what was read there as a whole is what was last written as such. */
void file_tier_note(struct file_tier *tier, const void *address, size_t n_bytes, uint64_t hash);
void file_tier_forget(struct file_tier *tier, const void *address, size_t n_bytes);
bool file_tier_is_intact(const struct file_tier *tier, const void *address, size_t n_bytes,
                         uint64_t hash);

#endif
