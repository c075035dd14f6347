/*
 * clock_offset.c - see the header
 */
#include "train/clock_offset.h"

#include <math.h>

#include "base/num.h"

/* How far the offset can drift between `at` and any time of the exchange. */
static int64_t drift_of(const struct clock_exchange *e, int64_t at)
{
    int64_t farthest = max_i64(e->received - at, at - e->sent);

    return (int64_t)ceil((double)farthest * CLOCK_DRIFT_MAX);
}

struct clock_offset clock_offset_of(const struct clock_exchange *exchanges, int n)
{
    int64_t first = exchanges[0].sent, last = exchanges[0].received;
    int64_t least = INT64_MIN, most = INT64_MAX;

    for (int i = 1; i < n; i++) {
        first = min_i64(first, exchanges[i].sent);
        last = max_i64(last, exchanges[i].received);
    }
    int64_t at = first + (last - first) / 2;
    for (int i = 0; i < n; i++) {
        const struct clock_exchange *e = &exchanges[i];
        int64_t drift = drift_of(e, at);

        least = max_i64(least, e->other - e->received - drift);
        most = min_i64(most, e->other - e->sent + drift);
    }
    /* Bounds that contradict each other: a clock was set meanwhile, by at least what is between
     * them. */
    int64_t between = most > least ? most - least : least - most;
    return (struct clock_offset){ .at = at,
                                  .ns = (most < least ? most : least) + between / 2,
                                  .error = (between + 1) / 2 };
}

int64_t clock_offset_map(const struct clock_offset *begin, const struct clock_offset *end,
                         int64_t time)
{
    if (end->at == begin->at)
        return time + begin->ns;
    double share = (double)(time - begin->at) / (double)(end->at - begin->at);
    return time + begin->ns + llround((double)(end->ns - begin->ns) * share);
}
