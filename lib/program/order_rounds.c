/*
 * order_rounds.c - where the actions of an entry repeat themselves
 *
 * A step of many micro-batches is mostly one round of actions, repeated with the micro-batches
 * shifted by a constant. A question about all actions can then be asked of one round, and the
 * answer carried over to the others. (Where this is sound is shown where it is used:
 * verify_rounds.c, replay_rounds.c.)
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/order.h"

/* Actions that are not for a micro-batch are repeated unchanged. */
static bool is_later(const struct action *now, const struct action *before, int shift)
{
    return now->micro_batch == before->micro_batch + (before->micro_batch >= 0 ? shift : 0) &&
           now->function == before->function && now->kind == before->kind &&
           now->first == before->first;
}

enum { BLOCK = 16 };

/* The same for a block of actions that are all for micro-batches, compared as words, which
 * vectorises. */
static bool is_block_later(const struct action *now, const struct action *before, int shift)
{
    const int is_last = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
    uint64_t x[BLOCK], y[BLOCK], others = 0;
    uint64_t later = (uint64_t)(uint32_t)shift << (is_last ? 32 : 0);

    _Static_assert(sizeof *now == sizeof *x, "an action is a word");
    _Static_assert(offsetof(struct action, micro_batch) == 4, "its end says the micro-batch");
    memcpy(x, now, sizeof x);
    memcpy(y, before, sizeof y);
    for (int k = 0; k < BLOCK; k++)
        others |= x[k] - y[k] - later;
    return !others;
}

/* How many actions from i on, at most `most`, equal those n actions before them, shifted. */
static int count_later(const struct entry *entry, int i, int n, int shift, int64_t most)
{
    int n_same = 0, n_most = (int)min_i64(most, entry->n_actions - i);
    const struct action *now = &entry->actions[i], *before = now - n;

    while (n_same < n_most) {
        if (n_same + BLOCK <= n_most && is_block_later(&now[n_same], &before[n_same], shift))
            n_same += BLOCK;
        else if (is_later(&now[n_same], &before[n_same], shift))
            n_same++;
        else
            break;
    }
    return n_same;
}

int order_count_rounds(const struct entry *entry, int i, int n, int shift, int most)
{
    return n < 1 || i < n ? 0 : count_later(entry, i, n, shift, (int64_t)most * n) / n;
}

/* The search for rounds, from the front of an entry to its end. */
struct looking {
    const struct entry *entry;
    int far_at; /* the action at which long rounds are searched next */
};

/* The number of actions in rounds of n actions that begin with action i; n if there is only one
 * round. */
static int count_actions(const struct entry *e, int i, int n, int *n_compared)
{
    const struct action *first = &e->actions[i], *next = first + n;
    int shift = next->micro_batch - first->micro_batch;

    if (next->function != first->function || next->kind != first->kind || shift <= 0)
        return n;
    int n_later = count_later(e, i + n, n, shift, e->n_actions);
    *n_compared += n_later;
    return n + n_later / n * n;
}

/*
 * The rounds beginning with action i that cover most actions: a round of many may contain
 * repetitions of few. Long rounds are searched only at some actions, so that the search takes less
 * time than walking.
 */
static struct order_rounds look_at(struct looking *l, int i)
{
    const struct entry *e = l->entry;
    int n_left = e->n_actions - i, most = 64, n_compared = 0, best = 0, best_actions = 0;

    if (e->actions[i].micro_batch < 0)
        return (struct order_rounds){ .begin = i };
    if (i >= l->far_at) {
        most = max_int(most, i / 8);
        l->far_at = 2 * i;
    }
    for (int n = 1; n <= most && 2 * n <= n_left && n_compared <= 8 * most; n++) {
        int n_actions = count_actions(e, i, n, &n_compared);

        if (n_actions < 2 * n || n_actions <= best_actions)
            continue;
        best = n;
        best_actions = n_actions;
    }
    if (!best)
        return (struct order_rounds){ .begin = i };
    return (struct order_rounds){ i, best,
                                  e->actions[i + best].micro_batch - e->actions[i].micro_batch,
                                  best_actions / best };
}

/* The next rounds from action i on; if there are none, begin is the entry's end. */
static struct order_rounds next_rounds(struct looking *l, int i)
{
    for (int n_failures = 0; i < l->entry->n_actions; n_failures++) {
        struct order_rounds rounds = look_at(l, i);

        if (rounds.n)
            return rounds;
        /* A search at every action takes long if there are no rounds. */
        i = min_int(i + (1 << min_int(n_failures, 15)), l->entry->n_actions);
    }
    return (struct order_rounds){ .begin = l->entry->n_actions };
}

const struct order_rounds *order_list_rounds(const struct entry *entry, int *n_parts,
                                             struct arena *arena)
{
    struct looking looking = { .entry = entry };
    struct order_rounds *list = NULL;
    int n = 0, capacity = 0;

    for (int i = 0; i < entry->n_actions;) {
        struct order_rounds next = next_rounds(&looking, i);

        list = arena_grow(arena, list, sizeof *list, &capacity, n + 2);
        if (i < next.begin)
            list[n++] = (struct order_rounds){ i, next.begin - i, 0, 1 };
        if (next.n)
            list[n++] = next;
        i = next.begin + next.n * next.n_times;
    }
    *n_parts = n;
    return list;
}

int order_count_micro_batches(const struct entry *entry, const struct order_rounds *parts,
                              int n_parts)
{
    int n = 0;

    for (const struct order_rounds *part = parts; part < parts + n_parts; part++)
        for (int i = part->begin; i < part->begin + part->n; i++) {
            int m = entry->actions[i].micro_batch;

            if (m >= 0)
                n = max_int(n, m + part->shift * (part->n_times - 1) + 1);
        }
    return n;
}
