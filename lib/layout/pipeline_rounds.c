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

/* Rounds of n steps that begin with step i. */
static struct list_rounds rounds_of(const struct pipeline_list *list, int i, int n)
{
    const struct pipeline_step *first = &list->steps[i], *next = first + n;
    int64_t by = (int64_t)next->micro_batch - first->micro_batch;
    int shift = (int)min_i64(by, INT32_MAX);

    if (next->kind != first->kind || next->chunk != first->chunk || by <= 0 ||
        !list_count_rounds(list, i + n, n, shift, 1))
        return (struct list_rounds){ .begin = i };
    return (struct list_rounds){ i, n, shift,
                                 1 + list_count_rounds(list, i + n, n, shift, list->n_steps), 0 };
}

/*
 * The rounds that begin with step i and go furthest: there may be short ones within one of many. Long
 * ones are looked for now and then, for all that was passed: looking takes less than walking.
 */
static struct list_rounds look_at(const struct pipeline_list *list, int i, int *far_at)
{
    struct list_rounds best = { .begin = i };
    int n_left = list->n_steps - i, most = 64;

    if (i >= *far_at) {
        most = max_int(most, i / 8);
        *far_at = 2 * i;
    }
    for (int n = 1; n <= most && 2 * n <= n_left; n++) {
        struct list_rounds found = rounds_of(list, i, n);

        if (found.n * found.n_times > best.n * best.n_times)
            best = found;
        if (best.n * best.n_times > min_int(16 * most, n_left / 2))
            break;
    }
    return best;
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
