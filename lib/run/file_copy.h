/*
 * file_copy.h - to_host and to_device where the far side is the rank's file
 *
 * The comm thread moves it piece by piece through buffers that are aligned (on a GPU pinned), of
 * which several are on their way to or from the disk at a time (file_queue.h); a turn copies a
 * piece and waits for nothing. Where the file is summed (run_options.poison), what comes back must
 * be what was written.
 */
#ifndef RUN_FILE_COPY_H
#define RUN_FILE_COPY_H

#include <xxhash.h>

#include "run/copy.h"
#include "run/file_queue.h"
#include "run/file_tier.h"

enum { FILE_LANE_BUFFERS = FILE_QUEUE_DEPTH, FILE_LANE_PIECE_BYTES = 256 << 10 };

struct file_buffer {
    unsigned char *data;
    struct file_request request;
    struct device_event *event; /* on a GPU: the device's copy from or to it was made */
};

/* What the copies of a stream, one at a time, go through. */
struct file_lane {
    struct file_tier *tier;
    struct device *device;
    struct file_queue *queue;
    unsigned char *memory; /* of the buffers */
    struct file_buffer buffers[FILE_LANE_BUFFERS];
    XXH3_state_t *hash; /* NULL: not summed */
};

/* Returns 0, or -1 and ERR_DEVICE or ERR_FAILED; to be closed in either case, or if zeroed. */
int file_lane_open(struct file_lane *lane, struct file_tier *tier, struct device *device,
                   struct err *err);
void file_lane_close(struct file_lane *lane);

/* Bytes of its buffers, beside the program's segments. */
#define FILE_LANE_BYTES ((size_t)FILE_LANE_BUFFERS * FILE_LANE_PIECE_BYTES)

struct file_copy {
    struct copy
        copy; /* one of its addresses is the file's; n_given: pieces were begun up to there */
    struct file_lane *lane;
    const char *name; /* of the value, for errors */
    size_t n_staged;  /* and have left the near side, or come to it, */
    size_t n_ended;   /* and are there */
};

struct file_copy file_copy_of(void *to, const void *from, size_t n_bytes, struct file_lane *lane,
                              const char *name);

#endif
