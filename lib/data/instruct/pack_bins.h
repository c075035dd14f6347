/*
 * pack_bins.h - best fit: things of known size into bins of one size
 *
 * Best fit decreasing (D. S. Johnson, "Near-optimal bin packing algorithms", 1973): the things are
 * taken from the longest on, each goes into the fullest bin that still holds it. It uses at most
 * 11/9 of the fewest bins possible, + 1. The result depends on sizes and order alone.
 */
#ifndef DATA_INSTRUCT_PACK_BINS_H
#define DATA_INSTRUCT_PACK_BINS_H

#include <stdint.h>

#include "base/err.h"

/*
 * Things of 1..room go into bins: bin_of[i] is thing i's, from 0 on without a gap. Returns the
 * number of bins, or -1 and ERR_DEVICE without memory.
 */
int64_t pack_bins(const int32_t *sizes, int64_t n, int32_t room, int32_t *bin_of, struct err *err);

#endif
