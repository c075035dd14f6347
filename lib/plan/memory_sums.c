/*
 * memory_sums.c - sums of ways, and which of them are worth keeping
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "plan/memory_sums_impl.h"

static int by_bytes(const void *a, const void *b)
{
    const struct memory_sum *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->ns != y->ns)
        return x->ns < y->ns ? -1 : 1;
    if (x->moved != y->moved)
        return x->moved < y->moved ? -1 : 1;
    if (x->scratch != y->scratch)
        return x->scratch < y->scratch ? -1 : 1;
    if (x->before != y->before)
        return x->before < y->before ? -1 : 1;
    return x->last < y->last ? -1 : x->last > y->last;
}

/* ---- of those in order of bytes, the ones that are not worse than an earlier one ---- */

/* Indices of items, by increasing ns and decreasing bytes moved. */
struct stairs {
    int *steps;
    int n;
};

/* How many steps have at most so many ns. */
static int find_step(const struct stairs *stairs, const struct memory_sum *items, int64_t ns)
{
    int low = 0, high = stairs->n;

    while (low < high) {
        int middle = (low + high) / 2;

        if (items[stairs->steps[middle]].ns <= ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns whether item i is better than all so far in ns or bytes moved; it is then a step. */
static bool climb(struct stairs *stairs, const struct memory_sum *items, int i)
{
    int at = find_step(stairs, items, items[i].ns), end = at;

    if (at > 0 && items[stairs->steps[at - 1]].moved <= items[i].moved)
        return false;
    if (at > 0 && items[stairs->steps[at - 1]].ns == items[i].ns)
        at--;
    while (end < stairs->n && items[stairs->steps[end]].moved >= items[i].moved)
        end++;
    memmove(stairs->steps + at + 1, stairs->steps + end,
            sizeof *stairs->steps * (size_t)(stairs->n - end));
    stairs->steps[at] = i;
    stairs->n += at + 1 - end;
    return true;
}

static bool is_as_good(const struct memory_sum *a, const struct memory_sum *b)
{
    return a->bytes <= b->bytes && a->ns <= b->ns && a->moved <= b->moved &&
           a->scratch <= b->scratch;
}

/* The same with scratch: of one layer's ways, which are few. */
static int keep_by_four(struct memory_sum *items, int n)
{
    int n_kept = 0;

    for (int i = 0; i < n; i++) {
        bool is_worse = false;

        for (int j = 0; j < n_kept && !is_worse; j++)
            is_worse = is_as_good(&items[j], &items[i]);
        if (!is_worse)
            items[n_kept++] = items[i];
    }
    return n_kept;
}

static int keep_by_three(struct memory_sum *items, int n, struct arena *scratch)
{
    struct stairs stairs = { arena_array(scratch, int, n + 1), 0 };
    bool *kept = arena_array(scratch, bool, n);
    int n_kept = 0;

    for (int i = 0; i < n; i++)
        kept[i] = climb(&stairs, items, i);
    for (int i = 0; i < n; i++)
        if (kept[i])
            items[n_kept++] = items[i];
    return n_kept;
}

/* ---- thinning ---- */

/* ns and bytes moved of each list run from 0 to 1, and so do bytes: what is near the hull has
 * little of their sum. */
struct extent {
    double ns, moved, bytes;
};

static double hull_sum(const struct memory_sum *item, const struct extent *of)
{
    return (double)item->ns / of->ns + (double)item->moved / of->moved +
           (double)item->bytes / of->bytes;
}

static int thin(struct memory_sum *items, int n, int n_max, struct arena *scratch)
{
    struct extent of = { 1, 1, 1 };
    bool *kept = arena_array(scratch, bool, n);
    int n_ranges = n_max / 4, n_kept = 0;

    for (int i = 0; i < n; i++) {
        of.ns = of.ns > (double)items[i].ns ? of.ns : (double)items[i].ns;
        of.moved = of.moved > (double)items[i].moved ? of.moved : (double)items[i].moved;
        of.bytes = of.bytes > (double)items[i].bytes ? of.bytes : (double)items[i].bytes;
    }
    for (int r = 0; r < n_ranges; r++) {
        int begin = (int)((int64_t)n * r / n_ranges), end = (int)((int64_t)n * (r + 1) / n_ranges);
        int fastest = begin, least = begin, nearest = begin;

        for (int i = begin; i < end; i++) {
            fastest = items[i].ns < items[fastest].ns ? i : fastest;
            least = items[i].moved < items[least].moved ? i : least;
            nearest = hull_sum(&items[i], &of) < hull_sum(&items[nearest], &of) ? i : nearest;
        }
        kept[fastest] = kept[least] = kept[nearest] = true;
    }
    kept[0] = kept[n - 1] = true;
    for (int i = 0; i < n; i++)
        if (kept[i])
            items[n_kept++] = items[i];
    return n_kept;
}

struct memory_sums memory_sums_best(struct memory_sum *items, int n, bool counts_scratch, int n_max,
                                    struct arena *arena)
{
    struct arena scratch = { 0 };
    struct memory_sums best = { 0 };

    qsort(items, (size_t)n, sizeof *items, by_bytes);
    n = counts_scratch ? keep_by_four(items, n) : keep_by_three(items, n, &scratch);
    if (n > n_max) {
        n = thin(items, n, n_max, &scratch);
        best.is_thinned = true;
    }
    best.items = arena_array(arena, struct memory_sum, n);
    if (n)
        memcpy(best.items, items, sizeof *items * (size_t)n);
    best.n = n;
    arena_release(&scratch);
    return best;
}

/* ---- sums ---- */

struct memory_sums memory_sums_add(const struct memory_sums *sums,
                                   const struct memory_sums *options, int64_t cap, int n_max,
                                   struct arena *arena)
{
    struct arena scratch = { 0 };
    struct memory_sum *items =
        arena_array(&scratch, struct memory_sum, (size_t)sums->n * (size_t)options->n);
    int n = 0;

    for (int o = 0; o < options->n; o++) {
        const struct memory_sum *option = &options->items[o];

        for (int i = 0; i < sums->n && option->scratch <= cap; i++)
            items[n++] = (struct memory_sum){ .bytes = sums->items[i].bytes + option->bytes,
                                              .ns = sums->items[i].ns + option->ns,
                                              .moved = sums->items[i].moved + option->moved,
                                              .before = i,
                                              .last = o };
    }
    struct memory_sums best = memory_sums_best(items, n, false, n_max, arena);
    best.is_thinned |= sums->is_thinned || options->is_thinned;
    arena_release(&scratch);
    return best;
}

struct memory_sums memory_sums_join(const struct memory_sums *chunks,
                                    const struct memory_sums *chunk, int n_max, struct arena *arena)
{
    struct arena scratch = { 0 };
    struct memory_sum *items =
        arena_array(&scratch, struct memory_sum, (size_t)chunks->n * (size_t)chunk->n);
    int n = 0;

    for (int i = 0; i < chunks->n; i++)
        for (int k = 0; k < chunk->n; k++) {
            const struct memory_sum *a = &chunks->items[i], *b = &chunk->items[k];

            items[n++] = (struct memory_sum){ .bytes = max_i64(a->bytes, b->bytes),
                                              .ns = a->ns + b->ns,
                                              .moved = a->moved + b->moved,
                                              .before = i,
                                              .last = k };
        }
    struct memory_sums best = memory_sums_best(items, n, false, n_max, arena);
    best.is_thinned |= chunks->is_thinned || chunk->is_thinned;
    arena_release(&scratch);
    return best;
}
