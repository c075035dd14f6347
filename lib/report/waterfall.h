/*
 * waterfall.h - the parts of a whole as bars below each other, each where the one before ends
 *
 *     products   612 ms  ############
 *     attention  204 ms              ####
 *     waits      184 ms                  ####
 */
#ifndef REPORT_WATERFALL_H
#define REPORT_WATERFALL_H

#include "base/str.h"

struct waterfall {
    double whole, begin; /* begin: of the next part */
    int width;           /* characters of the whole */
};

/*
 * Set *out to the bar of the next part: blanks up to its begin, then at least one mark; nothing for
 * a part below 0.05 % of the whole, which tables print as 0.0 %. Parts that are together more than
 * the whole (by rounding) end with it.
 */
void waterfall_next(struct waterfall *waterfall, double part, struct str *out);

#endif
