/*
 * replay_rounds.c - the rounds of a step through which ranks need not be walked
 *
 * What ranks can do next follows from where each of them is in its actions, which transfers are
 * under way, how far, for what they wait, and how far apart the ends of channels and the ranks of
 * groups are. Micro-batches count only by their distance to each other, and by the slots that they
 * fall into. All of that is written down here as seen from the micro-batch at hand. If it reads the
 * same at two times, and from the second on each rank's actions are for so many rounds those that
 * it did in between, only later, then all that follows is what happened in between again and again,
 * and the ranks can be put where the last of these rounds leaves them.
 */
#include <string.h>

#include "base/num.h"
#include "program/replay_impl.h"

/* ---- what is going on, as seen from a micro-batch ---- */

void replay_add(struct replay_story *s, int number)
{
    s->numbers = arena_grow(s->arena, s->numbers, sizeof(int), &s->capacity, s->n + 1);
    s->numbers[s->n++] = number;
}

/* What is of no micro-batch is so at any time. */
static int from_here(const struct replay_story *s, int micro_batch)
{
    return micro_batch < 0 ? INT32_MIN : micro_batch - s->micro_batch;
}

/* Of the rank's own transfers: 0 for what is over, else its stream and place there. */
static int under_way(const struct replay *r, const struct replay_rank *rank, int transfer)
{
    if (transfer == REPLAY_NONE || r->transfers[transfer].is_done)
        return 0;
    const struct replay_transfer *t = &r->transfers[transfer];
    const struct replay_queue *q = &rank->streams[t->op->stream];

    return 1 + (int)t->op->stream + (t->place - q->n_done) * N_STREAMS;
}

static void tell_transfer(const struct replay *r, const struct replay_rank *rank,
                          const struct replay_transfer *t, struct replay_story *s)
{
    replay_add(s, t->function);
    replay_add(s, t->given->op);
    replay_add(s, from_here(s, t->micro_batch));
    replay_add(s, t->has_begun + 2 * t->is_done);
    replay_add(s, replay_distance(r, t));
    for (int i = 0; i < t->n_after; i++)
        if (under_way(r, rank, t->after[i]))
            replay_add(s, under_way(r, rank, t->after[i]));
    replay_add(s, 0);
}

/* Where the rank is: what differs first, as a rule, if anything does. */
static void tell_place(const struct replay *r, const struct replay_rank *rank,
                       struct replay_story *s)
{
    const struct entry *e = &rank->program->entries[r->entry];
    const struct action over = { .kind = UINT8_MAX };
    const struct action *a = rank->action < e->n_actions ? &e->actions[rank->action] : &over;

    replay_add(s, a->kind);
    replay_add(s, a->first);
    replay_add(s, a->function);
    replay_add(s, a->kind == UINT8_MAX ? 0 : from_here(s, a->micro_batch));
    replay_add(s, rank->event);
    replay_add(s, rank->is_at_gate);
    replay_add(s, rank->n_gates - r->list[0].n_gates);
    for (int i = 0; i < N_STREAMS; i++)
        replay_add(s, rank->streams[i].n - rank->streams[i].n_done);
}

/* What is bound to n sets of slots in turn, from the micro-batch at hand on. */
static void tell_slots(const struct replay *r, const struct replay_rank *rank, const int *slots,
                       int n, struct replay_story *s)
{
    for (int i = 0; i < n; i++)
        replay_add(s, under_way(r, rank, slots[(i + s->micro_batch) % n]));
}

static void tell_rank(const struct replay *r, const struct replay_rank *rank,
                      struct replay_story *s)
{
    const struct program *p = rank->program;

    for (int i = 0; i < N_STREAMS; i++) {
        const struct replay_queue *q = &rank->streams[i];

        for (int k = q->n_done; k < q->n; k++)
            tell_transfer(r, rank, &r->transfers[q->transfers[k]], s);
    }
    for (int id = 1; id < p->n_values; id++)
        if (rank->order.users_at[id] != ORDER_NOBODY)
            tell_slots(r, rank, &rank->users[rank->order.users_at[id]], order_n_slots(p, id), s);
    for (int f = 0; f < p->n_functions; f++)
        for (int g = 0; g < rank->outlines[f].n_givens; g++) {
            const struct replay_given *given = &rank->outlines[f].givens[g];

            tell_slots(r, rank, given->last, rank->outlines[f].n_variants, s);
            replay_add(s, given->partner != NULL); /* the same for good */
        }
    replay_tell(r, (int)(rank - r->list), s);
}

/* Seen from the first rank's micro-batch. Returns 0 where it is at none. */
static int begin_story(const struct replay *r, struct replay_story *s)
{
    const struct replay_rank *rank = &r->list[0];
    const struct entry *e = &rank->program->entries[r->entry];

    s->n = 0;
    if (rank->action >= e->n_actions || e->actions[rank->action].micro_batch < 0)
        return 0;
    s->micro_batch = e->actions[rank->action].micro_batch;
    for (int i = 0; i < r->n; i++)
        tell_place(r, &r->list[i], s);
    s->n_places = s->n;
    return 1;
}

static void finish_story(const struct replay *r, struct replay_story *s)
{
    for (int i = 0; i < r->n; i++)
        tell_rank(r, &r->list[i], s);
}

/* ---- going on later ---- */

/* How many rounds all ranks have before them: from where they are, and one more that is begun. */
static int count_rounds(const struct replay *r, const struct replay_rounds *rounds, int shift)
{
    int n_rounds = INT32_MAX;

    for (int i = 0; i < r->n; i++) {
        const struct replay_rank *rank = &r->list[i];
        const struct entry *e = &rank->program->entries[r->entry];
        int n = rank->action - rounds->actions[i];

        if (n)
            n_rounds =
                min_int(n_rounds, order_count_rounds(e, rank->action, n, shift, e->n_actions) - 1);
    }
    return n_rounds == INT32_MAX ? 0 : n_rounds;
}

static void turn(struct replay *r, int *slots, int n, int by)
{
    int *before = n > 1 ? arena_array(&r->arena, int, n) : NULL;

    if (n == 1)
        return;
    memcpy(before, slots, sizeof *slots * (size_t)n);
    for (int i = 0; i < n; i++)
        slots[(i + by) % n] = before[i];
}

static void move_rank(struct replay *r, struct replay_rank *rank, int by)
{
    const struct program *p = rank->program;

    for (int i = 0; i < N_STREAMS; i++) {
        const struct replay_queue *q = &rank->streams[i];

        for (int k = q->n_done; k < q->n; k++)
            if (r->transfers[q->transfers[k]].micro_batch >= 0)
                r->transfers[q->transfers[k]].micro_batch += by;
    }
    for (int id = 1; id < p->n_values; id++)
        if (rank->order.users_at[id] != ORDER_NOBODY)
            turn(r, &rank->users[rank->order.users_at[id]], order_n_slots(p, id), by);
    for (int f = 0; f < p->n_functions; f++)
        for (int g = 0; g < rank->outlines[f].n_givens; g++)
            turn(r, rank->outlines[f].givens[g].last, rank->outlines[f].n_variants, by);
}

static void go_on(struct replay *r, struct replay_rounds *rounds, int n_rounds, int shift)
{
    for (int i = 0; i < r->n; i++) {
        r->list[i].action += n_rounds * (r->list[i].action - rounds->actions[i]);
        move_rank(r, &r->list[i], n_rounds * shift);
    }
    rounds->then.n = 0;
}

static int is_same(const struct replay_story *a, const struct replay_story *b, int n)
{
    return !memcmp(a->numbers, b->numbers, sizeof(int) * (size_t)n);
}

static void take(const struct replay *r, struct replay_rounds *rounds)
{
    struct replay_story s = rounds->then;

    rounds->then = rounds->now;
    rounds->now = s;
    for (int i = 0; i < r->n; i++)
        rounds->actions[i] = r->list[i].action;
    rounds->n_left = rounds->n_patience *= 2;
}

void replay_skip_rounds(struct replay *r, struct replay_rounds *rounds)
{
    struct replay_story *now = &rounds->now, *then = &rounds->then;

    if (!rounds->actions) {
        rounds->actions = arena_array(&r->arena, int, r->n);
        now->arena = then->arena = &r->arena;
        rounds->n_patience = 1;
    }
    if (!begin_story(r, now))
        return;
    int shift = now->micro_batch - then->micro_batch;
    if (then->n && shift > 0 && now->n_places == then->n_places &&
        is_same(now, then, now->n_places)) {
        finish_story(r, now);
        int n_rounds =
            now->n == then->n && is_same(now, then, now->n) ? count_rounds(r, rounds, shift) : 0;
        if (n_rounds > 0) {
            go_on(r, rounds, n_rounds, shift);
            return;
        }
    }
    /* Brent's way: whatever period there is, in the end the distance to `then` is one. */
    if (rounds->n_left-- <= 0) {
        if (now->n == now->n_places)
            finish_story(r, now);
        take(r, rounds);
    }
}
