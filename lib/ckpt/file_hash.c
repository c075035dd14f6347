/*
 * file_hash.c - XXH3-64 of a whole file
 */
#include "ckpt/file_hash.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#define BUFFER_BYTES ((size_t)4 << 20)

int file_hash(int fd, uint64_t *hash, void (*tick)(void *context, int64_t n_bytes), void *context)
{
    unsigned char *buffer = malloc(BUFFER_BYTES);
    XXH3_state_t state;
    ssize_t n = -1;

    XXH3_64bits_reset(&state);
    while (buffer && ((n = read(fd, buffer, BUFFER_BYTES)) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0) {
            XXH3_64bits_update(&state, buffer, (size_t)n);
            if (tick)
                tick(context, n);
        }
    free(buffer);
    *hash = XXH3_64bits_digest(&state);
    return n == 0 ? 0 : -1;
}
