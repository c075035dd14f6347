/*
 * copy.h - to_host and to_device: bytes from one space to the other
 *
 * On a GPU one copy on the stream's queue, between its memory and pinned memory of the host. On the
 * CPU the comm thread copies a piece a turn, so that transfers between ranks go on meanwhile.
 */
#ifndef RUN_COPY_H
#define RUN_COPY_H

#include "run/stream_op.h"

struct copy {
    struct stream_op base;
    const unsigned char *from;
    unsigned char *to;
    size_t n_bytes; /* dense on both sides */
    size_t n_given; /* of them copied, or on their way, in this run */
};

/* All but the base's fields for a device and a worker, which are zero. */
struct copy copy_of(void *to, const void *from, size_t n_bytes);

#endif
