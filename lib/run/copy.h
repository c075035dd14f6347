/*
 * copy.h - to_host and to_device: bytes from one space to the other
 *
 * On a GPU one copy on the stream's queue, between its memory and pinned memory of the host. On the
 * CPU the comm thread copies a piece a turn, so that transfers between ranks go on meanwhile, at
 * the rate of a link if one is given. Where one side lies in the file: file_copy.h.
 */
#ifndef RUN_COPY_H
#define RUN_COPY_H

#include "run/stream_op.h"
#include "run/throttle.h"

struct copy {
    struct stream_op base;
    const unsigned char *from;
    unsigned char *to;
    size_t n_bytes; /* dense on both sides */
    size_t n_given; /* of them copied, or on their way, in this run */
    /* Not for a GPU, whose link is real. */
    struct throttle *throttle; /* the stream's */
    double bytes_per_s;        /* 0: as fast as it goes */
};

/* But for what the base has for a device and a worker, and the throttle and its rate. */
struct copy copy_of(void *to, const void *from, size_t n_bytes);

/* How many of its bytes may be moved by now: all, but for the throttle. */
size_t copy_due(const struct copy *c);

/* All of it is there, and due. */
void copy_end(struct copy *c);

#endif
