/*
 * file_tier.c - see the header
 */
#include "run/file_tier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/num.h"
#include "base/str.h"

/* The limit of a process, past which the kernel sends a signal instead of an error. */
static bool is_over_limit(size_t n_bytes)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
           (rlim_t)n_bytes > limit.rlim_cur;
}

static int refuse(enum err_code code, const char *folder, size_t n_bytes, int error,
                  struct err *err)
{
    char size[32];

    return err_set(err, code, "memory.file: no file of %s (%zu bytes) in %s: %s%s",
                   str_bytes(size, sizeof size, n_bytes), n_bytes, folder, strerror(error),
                   error == ENOSPC   ? " (hint: free some room, or a smaller job)"
                   : error == EFBIG  ? " (hint: a higher limit of files' sizes, ulimit -f)"
                   : error == ENOENT ? " (hint: make the folder, on each node)"
                                     : "");
}

/* Both descriptors of a file that has no name any more. */
static int open_nameless(struct file_tier *tier, const char *folder)
{
    struct str path = { 0 };

    str_printf(&path, "%s/lmtrain-memory-XXXXXX", folder);
    tier->fd = mkostemp(path.data, O_CLOEXEC);
    if (tier->fd >= 0) {
        tier->direct_fd = open(path.data, O_RDWR | O_DIRECT | O_CLOEXEC);
        unlink(path.data);
    }
    int error = tier->fd >= 0 ? 0 : errno;
    str_release(&path);
    return error;
}

int file_tier_open(struct file_tier *tier, const char *folder, size_t n_bytes, bool is_summed,
                   struct err *err)
{
    n_bytes = align_up(n_bytes, FILE_TIER_ALIGNMENT);
    *tier = (struct file_tier){ .fd = -1, .direct_fd = -1, .n_bytes = n_bytes };
    int error = open_nameless(tier, folder);
    if (error)
        return refuse(ERR_CONFIG, folder, n_bytes, error, err);
    error = is_over_limit(n_bytes) ? EFBIG : posix_fallocate(tier->fd, 0, (off_t)n_bytes);
    if (error)
        return refuse(ERR_DEVICE, folder, n_bytes, error, err);
    if (is_summed)
        tier->sums = calloc(n_bytes / FILE_TIER_ALIGNMENT, sizeof *tier->sums);
    if (is_summed && !tier->sums)
        return err_set(err, ERR_DEVICE, "out of host memory");
    return 0;
}

void file_tier_close(struct file_tier *tier)
{
    if (tier->direct_fd >= 0)
        close(tier->direct_fd);
    if (tier->fd >= 0)
        close(tier->fd);
    free(tier->sums);
    *tier = (struct file_tier){ .fd = -1, .direct_fd = -1 };
}

int file_tier_fd(const struct file_tier *tier, const void *data, size_t offset, size_t n_bytes)
{
    bool is_aligned = !(((uintptr_t)data | offset | n_bytes) % FILE_TIER_ALIGNMENT);

    return is_aligned && tier->direct_fd >= 0 ? tier->direct_fd : tier->fd;
}

static int complain(const char *verb, size_t offset, size_t n_bytes, int error, struct err *err)
{
    return err_set(err, ERR_DEVICE, "memory.file: cannot %s %zu bytes at %zu: %s", verb, n_bytes,
                   offset, error ? strerror(error) : "it ends before");
}

int file_tier_read(const struct file_tier *tier, void *data, const void *address, size_t n_bytes,
                   struct err *err)
{
    size_t at = file_tier_offset(address), done = 0;

    while (done < n_bytes) {
        ssize_t n =
            pread(tier->fd, (unsigned char *)data + done, n_bytes - done, (off_t)(at + done));

        if (n <= 0 && !(n < 0 && errno == EINTR))
            return complain("read", at + done, n_bytes - done, n ? errno : 0, err);
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int file_tier_write(struct file_tier *tier, void *address, const void *data, size_t n_bytes,
                    struct err *err)
{
    size_t at = file_tier_offset(address), done = 0;

    file_tier_forget(tier, address, n_bytes);
    while (done < n_bytes) {
        ssize_t n = pwrite(tier->fd, (const unsigned char *)data + done, n_bytes - done,
                           (off_t)(at + done));

        if (n < 0 && errno != EINTR)
            return complain("write", at + done, n_bytes - done, errno, err);
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* ---- sums ---- */

void file_tier_forget(struct file_tier *tier, const void *address, size_t n_bytes)
{
    size_t begin = file_tier_offset(address), end = begin + n_bytes;

    if (!tier->sums || !n_bytes)
        return;
    for (size_t i = begin / FILE_TIER_ALIGNMENT; i * FILE_TIER_ALIGNMENT < end; i++)
        tier->sums[i].n_bytes = 0;
    /* The one that begins before and ends within, if there is such. */
    for (size_t i = begin / FILE_TIER_ALIGNMENT; i-- > 0;)
        if (tier->sums[i].n_bytes) {
            if (i * FILE_TIER_ALIGNMENT + tier->sums[i].n_bytes > begin)
                tier->sums[i].n_bytes = 0;
            break;
        }
}

void file_tier_note(struct file_tier *tier, const void *address, size_t n_bytes, uint64_t hash)
{
    size_t at = file_tier_offset(address);

    if (!tier->sums || at % FILE_TIER_ALIGNMENT)
        return;
    tier->sums[at / FILE_TIER_ALIGNMENT] = (struct file_sum){ n_bytes, hash };
}

bool file_tier_is_intact(const struct file_tier *tier, const void *address, size_t n_bytes,
                         uint64_t hash)
{
    size_t at = file_tier_offset(address);

    if (!tier->sums || at % FILE_TIER_ALIGNMENT)
        return true;
    const struct file_sum *sum = &tier->sums[at / FILE_TIER_ALIGNMENT];
    return sum->n_bytes != n_bytes || sum->hash == hash;
}
