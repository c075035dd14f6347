/*
 * share.c - the least time by halving
 */
#include "plan/share.h"

#include "base/err.h"
#include "base/num.h"

/* What the rank does in that time, at least one. */
static int64_t count_of(const struct share_pace *pace, int64_t time)
{
    return max_i64(1, (time - pace->ramp) / pace->ns);
}

static int64_t count_all(const struct share_pace *paces, int n_ranks, int64_t time)
{
    int64_t all = 0;

    for (int i = 0; i < n_ranks; i++)
        all += count_of(&paces[i], time);
    return all;
}

/* The least time in which the ranks do n; 0: one each is enough. */
static int64_t least_time(const struct share_pace *paces, int n_ranks, int64_t n)
{
    int64_t low = 0, high = 0;

    for (int i = 0; i < n_ranks; i++)
        high = max_i64(high, paces[i].ramp + n * paces[i].ns);
    if (n == n_ranks)
        return 0;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        *(count_all(paces, n_ranks, middle) >= n ? &high : &low) = middle;
    }
    return high;
}

int64_t share_micro_batches(int *counts, const struct share_pace *paces, int n_ranks, int64_t n)
{
    if (n < n_ranks)
        return -1;
    int64_t time = least_time(paces, n_ranks, n);
    int64_t n_above = count_all(paces, n_ranks, time) - n, longest = 0;

    /* Less time would not do, so those that are ready at its very end are more than n_above. */
    for (int i = n_ranks - 1; i >= 0; i--) {
        int64_t count = count_of(&paces[i], time);

        if (n_above > 0 && count > 1 && paces[i].ramp + count * paces[i].ns == time) {
            count--;
            n_above--;
        }
        counts[i] = (int)count;
        longest = max_i64(longest, paces[i].ramp + count * paces[i].ns);
    }
    CHECK(!n_above);
    return longest;
}
