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

/*
 * Bytes that a pass hides are free, and others are not, so lists that go on need ways of any bytes
 * moved: those that move nothing, and those of each of some equal ranges, have a front each, by
 * bytes and ns. Of a front its hull is kept first, then others evenly.
 */
enum { N_RANGES_MAX = 56, N_OF_RANGE = 8, STILL_SHARE = 8 };

struct thinning {
    const struct memory_sum *items;
    int n;
    int64_t most_moved;
    int n_ranges; /* beside that of no bytes */
    bool *kept;
    int *front; /* of the current range, as indices; by bytes, with ns that decrease */
    int n_front;
};

static int range_of(const struct thinning *t, int i)
{
    int64_t moved = t->items[i].moved;

    return moved ? 1 + (int)((double)(t->n_ranges - 1) * (double)moved / (double)t->most_moved) : 0;
}

static void find_front(struct thinning *t, const int *ranges, int range)
{
    int64_t best = 0;

    t->n_front = 0;
    for (int i = 0; i < t->n; i++) {
        if (ranges[i] != range || (t->n_front && t->items[i].ns >= best))
            continue;
        best = t->items[i].ns;
        t->front[t->n_front++] = i;
    }
}

/* Whether the middle one is below the line from a to b. */
static bool is_below(const struct thinning *t, int a, int middle, int b)
{
    const struct memory_sum *first = &t->items[t->front[a]], *last = &t->items[t->front[b]];
    const struct memory_sum *between = &t->items[t->front[middle]];
    double width = (double)(last->bytes - first->bytes);
    double part = (double)(between->bytes - first->bytes);

    return (double)(between->ns - first->ns) * width < (double)(last->ns - first->ns) * part;
}

/* Indices of the front that are its lower hull. Returns how many. */
static int find_hull(const struct thinning *t, int *hull)
{
    int n = 0;

    for (int i = 0; i < t->n_front; i++) {
        while (n > 1 && !is_below(t, hull[n - 2], hull[n - 1], i))
            n--;
        hull[n++] = i;
    }
    return n;
}

static void keep_some(struct thinning *t, const int *places, int n, int n_max)
{
    for (int i = 0; i < n_max && n; i++) {
        int at = n_max > 1 ? (int)((int64_t)i * (n - 1) / (n_max - 1)) : 0;

        t->kept[t->front[places[at]]] = true;
    }
}

/* Of n_max equal steps of bytes the first of each, which has most ns. */
static void keep_evenly(struct thinning *t, int n_max)
{
    int64_t first = t->items[t->front[0]].bytes, last = t->items[t->front[t->n_front - 1]].bytes;

    for (int i = 0, step = 0; i < t->n_front && step < n_max; i++)
        if (t->items[t->front[i]].bytes >= first + (last - first) / n_max * step) {
            t->kept[t->front[i]] = true;
            while (step < n_max &&
                   t->items[t->front[i]].bytes >= first + (last - first) / n_max * step)
                step++;
        }
}

static int thin(struct memory_sum *items, int n, int n_max, struct arena *scratch)
{
    struct thinning t = { .items = items,
                          .n = n,
                          .most_moved = 1,
                          .n_ranges = min_int(N_RANGES_MAX, n_max / N_OF_RANGE),
                          .kept = arena_array(scratch, bool, n),
                          .front = arena_array(scratch, int, n) };
    int *hull = arena_array(scratch, int, n), *ranges = arena_array(scratch, int, n), n_kept = 0;

    for (int i = 0; i < n; i++)
        t.most_moved = max_i64(t.most_moved, items[i].moved);
    for (int i = 0; i < n; i++)
        ranges[i] = range_of(&t, i);
    for (int r = 0; r <= t.n_ranges; r++) {
        int n_still = t.most_moved > 1 ? n_max / STILL_SHARE : n_max;
        int n_each = r ? (n_max - n_still) / t.n_ranges : n_still;

        find_front(&t, ranges, r);
        int n_hull = find_hull(&t, hull), n_best = min_int(n_hull, n_each);
        keep_some(&t, hull, n_hull, n_best);
        if (t.n_front && n_each > n_best)
            keep_evenly(&t, n_each - n_best);
    }
    for (int i = 0; i < n; i++)
        if (t.kept[i])
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

/*
 * Many ways of which none moves anything: of each of so many equal ranges of bytes the one with
 * the least time, and the one with fewest bytes. A list that is thinned anyway is then sorted in a
 * tenth of the time.
 */
enum { N_OF_BOUND = 4, MANY = 16 };

static bool are_still(const struct memory_sums *sums)
{
    bool are = true;

    for (int i = 0; i < sums->n && are; i++)
        are = !sums->items[i].moved;
    return are;
}

static void keep_in_range(struct memory_sum *of_range, const struct memory_sum *item)
{
    struct memory_sum *fastest = &of_range[0], *smallest = &of_range[1];

    if (fastest->last < 0) {
        *fastest = *smallest = *item;
        return;
    }
    if (item->ns < fastest->ns || (item->ns == fastest->ns && item->bytes < fastest->bytes))
        *fastest = *item;
    if (item->bytes < smallest->bytes ||
        (item->bytes == smallest->bytes && item->ns < smallest->ns))
        *smallest = *item;
}

static struct memory_sum sum_of(const struct memory_sums *sums, int i,
                                const struct memory_sums *options, int o)
{
    const struct memory_sum *sum = &sums->items[i], *option = &options->items[o];

    return (struct memory_sum){ .bytes = sum->bytes + option->bytes,
                                .ns = sum->ns + option->ns,
                                .moved = sum->moved + option->moved,
                                .before = i,
                                .last = o };
}

/* Lists are by bytes. Returns how many are left. */
static int add_in_ranges(const struct memory_sums *sums, const struct memory_sums *options,
                         int n_ranges, struct memory_sum *items)
{
    int64_t first = sums->items[0].bytes + options->items[0].bytes;
    int64_t last = sums->items[sums->n - 1].bytes + options->items[options->n - 1].bytes;
    int64_t width = (last - first) / n_ranges + 1;
    int n = 0;

    for (int i = 0; i < 2 * n_ranges; i++)
        items[i].last = -1;
    for (int o = 0; o < options->n; o++)
        for (int i = 0; i < sums->n; i++) {
            const struct memory_sum item = sum_of(sums, i, options, o);

            keep_in_range(&items[2 * ((item.bytes - first) / width)], &item);
        }
    for (int i = 0; i < 2 * n_ranges; i++)
        if (items[i].last >= 0)
            items[n++] = items[i];
    return n;
}

struct memory_sums memory_sums_add(const struct memory_sums *sums,
                                   const struct memory_sums *options, int n_max,
                                   struct arena *arena)
{
    struct arena scratch = { 0 };
    int64_t n_all = (int64_t)sums->n * options->n;
    bool are_many = n_all > MANY * (int64_t)n_max && are_still(sums) && are_still(options);
    struct memory_sum *items = arena_array(&scratch, struct memory_sum,
                                           are_many ? 2 * N_OF_BOUND * (int64_t)n_max : n_all);
    int n = are_many ? add_in_ranges(sums, options, N_OF_BOUND * n_max, items) : 0;

    for (int o = 0; o < options->n && !are_many; o++)
        for (int i = 0; i < sums->n; i++)
            items[n++] = sum_of(sums, i, options, o);
    struct memory_sums best = memory_sums_best(items, n, false, n_max, arena);
    best.is_thinned |= are_many || sums->is_thinned || options->is_thinned;
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
