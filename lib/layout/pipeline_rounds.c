/*
 * pipeline_rounds.c - where a list of steps repeats itself
 *
 * The list of a pipeline with many micro-batches is mostly one round of steps, repeated with the
 * micro-batches shifted.
 */
#include "base/num.h"
#include "layout/pipeline_impl.h"

/* How many steps from i on, at most `most`, are those n steps before them, so much later. */
static int count_later(const struct pipeline_list *list, int i, int n, int64_t shift, int64_t most)
{
    int n_same = 0, n_most = (int)min_i64(most, list->n_steps - i);
    const struct pipeline_step *now = &list->steps[i], *before = now - n;

    while (n_same < n_most && now[n_same].kind == before[n_same].kind &&
           now[n_same].chunk == before[n_same].chunk &&
           (int64_t)now[n_same].micro_batch - before[n_same].micro_batch == shift)
        n_same++;
    return n_same;
}

int list_count_rounds(const struct pipeline_list *list, int i, int n, int shift, int most)
{
    return n < 1 || i < n ? 0 : count_later(list, i, n, shift, (int64_t)most * n) / n;
}

/* How many steps the rounds of n steps that begin with step i have; n where there is but one. */
static int count_steps(const struct pipeline_list *list, int i, int n, int *n_compared)
{
    const struct pipeline_step *first = &list->steps[i], *next = first + n;
    int64_t shift = (int64_t)next->micro_batch - first->micro_batch;

    if (next->kind != first->kind || next->chunk != first->chunk || shift <= 0 || shift > INT32_MAX)
        return n;
    int n_later = count_later(list, i + n, n, shift, list->n_steps);
    *n_compared += n_later;
    return n + n_later / n * n;
}

/*
 * The rounds that begin with step i and go furthest: there may be short ones within one of many.
 * Long ones are looked for now and then, for all that was passed: looking takes less than walking.
 */
static struct list_rounds look_at(const struct pipeline_list *list, int i, int *far_at)
{
    int n_left = list->n_steps - i, most = 64, n_compared = 0, best = 0, best_steps = 0;

    if (i >= *far_at) {
        most = max_int(most, i / 8);
        *far_at = 2 * i;
    }
    for (int n = 1; n <= most && 2 * n <= n_left && n_compared <= 8 * most; n++) {
        int n_steps = count_steps(list, i, n, &n_compared);

        if (n_steps < 2 * n || n_steps <= best_steps)
            continue;
        best = n;
        best_steps = n_steps;
    }
    if (!best)
        return (struct list_rounds){ .begin = i };
    return (struct list_rounds){ .begin = i,
                                 .n = best,
                                 .shift =
                                     list->steps[i + best].micro_batch - list->steps[i].micro_batch,
                                 .n_times = best_steps / best };
}

void list_next_rounds(const struct pipeline_list *list, int i, struct list_rounds *rounds)
{
    int far_at = rounds->far_at;

    for (int n_failures = 0; i < list->n_steps; n_failures++) {
        *rounds = look_at(list, i, &far_at);
        rounds->far_at = far_at;
        if (rounds->n)
            return;
        /* Looking everywhere in vain takes long. */
        i = min_int(i + (1 << min_int(n_failures, 15)), list->n_steps);
    }
    *rounds = (struct list_rounds){ .begin = list->n_steps };
}
