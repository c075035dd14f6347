/*
 * slowdown.c - how long compute takes beside transfers
 */
#include "program/slowdown.h"

#include "base/num.h"

/* By how much longer ops take at this time; *until: when that changes next. */
static double slowdown_at(const struct slow_time *list, int n, int64_t time, int64_t *until)
{
    double slowdown = 0;

    *until = INT64_MAX;
    for (int i = 0; i < n; i++) {
        if (list[i].begin > time) {
            *until = min_i64(*until, list[i].begin);
        } else if (list[i].end > time) {
            *until = min_i64(*until, list[i].end);
            slowdown += list[i].slowdown;
        }
    }
    return slowdown;
}

int64_t slowdown_end(const struct slow_time *list, int n, int64_t time, int64_t ns)
{
    int64_t until;

    while (n > 0 && ns > 0) {
        double factor = 1 + slowdown_at(list, n, time, &until);

        if (until == INT64_MAX || (double)ns * factor <= (double)(until - time))
            return time + (int64_t)((double)ns * factor);
        ns -= (int64_t)((double)(until - time) / factor);
        time = until;
    }
    return time + ns;
}
