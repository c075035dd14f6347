/*
 * file_queue.h - reads and writes of a file that are under way
 *
 * By io_uring where the build has liburing and the kernel allows it, else by a thread with pread
 * and pwrite. LMTRAIN_FILE_IO=thread in the environment: always by a thread (some kernels and disks
 * are quicker so, and io_uring is not everywhere to be trusted).
 *
 * A queue is used by one thread at a time.
 */
#ifndef RUN_FILE_QUEUE_H
#define RUN_FILE_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum { FILE_QUEUE_DEPTH = 8 };

struct file_queue;

/* The owner's; it stays where it is until it is done. */
struct file_request {
    bool is_write;
    int fd;
    unsigned char *data;
    size_t offset, n_bytes;
    size_t n_moved;      /* the queue's */
    int error;           /* errno once it is done, 0: all is well */
    _Atomic int is_done; /* to be asked after file_queue_look */
};

/* Returns 0, or -1 and ERR_FAILED: there is neither. */
int file_queue_create(struct file_queue **queue, struct err *err);
void file_queue_destroy(
    struct file_queue *queue); /* after what is under way is done; NULL: nothing */

/* Give a request, whose fields down to n_bytes are set. At most FILE_QUEUE_DEPTH are under way. */
void file_queue_give(struct file_queue *queue, struct file_request *request);

/* See what is done. Blocks never. */
void file_queue_look(struct file_queue *queue);

/* "io_uring" or "thread" */
const char *file_queue_way(const struct file_queue *queue);

#endif
