/*
 * pipeline_rounds.c - where a list of steps repeats itself
 *
 * The list of a pipeline of many micro-batches is for the most part one round of steps, over and
 * over, each time a few micro-batches later.
 */
#include "base/num.h"
#include "layout/pipeline_impl.h"

int list_count_rounds(const struct pipeline_list *list, int i, int n, int shift, int most)
{
    int n_same = 0;

    if (n < 1 || i < n)
        return 0;
    int n_most = (int)min_i64((int64_t)most * n, list->n_steps - i);
    const struct pipeline_step *now = &list->steps[i], *before = now - n;
    while (n_same < n_most && now[n_same].kind == before[n_same].kind &&
           now[n_same].chunk == before[n_same].chunk &&
           (int64_t)now[n_same].micro_batch - before[n_same].micro_batch == shift)
        n_same++;
    return n_same / n;
}

/* The shortest round that begins with step i and is done again at once. One that is longer than all
 * that came before is left for later: so looking takes no longer than walking. */
static int find_round(const struct pipeline_list *list, int i, struct list_rounds *rounds)
{
    const struct pipeline_step *steps = list->steps;

    for (int k = i + 1; 2 * k - i <= list->n_steps && k - i <= i + 64; k++) {
        int64_t by = (int64_t)steps[k].micro_batch - steps[i].micro_batch;
        int n = k - i, shift = (int)min_i64(by, INT32_MAX);

        if (by <= 0 || !list_count_rounds(list, k, n, shift, 1))
            continue;
        *rounds = (struct list_rounds){ i, n, shift,
                                        1 + list_count_rounds(list, k, n, shift, list->n_steps) };
        return 1;
    }
    return 0;
}

int list_next_rounds(const struct pipeline_list *list, int i, struct list_rounds *rounds)
{
    int n_failures = 0;

    while (i < list->n_steps) {
        if (find_round(list, i, rounds))
            return 1;
        /* Looking everywhere in vain takes long. */
        n_failures = min_int(n_failures + 1, 16);
        i += max_int(1, (1 << n_failures) / 2);
    }
    *rounds = (struct list_rounds){ .begin = list->n_steps };
    return 0;
}
