/*
 * replay_rounds.c - rounds of a step through which ranks need not be advanced
 *
 * What ranks can do next follows from their positions in the actions, from the transfers in flight,
 * how far these are and what they wait for, and from how far the ends of channels and the ranks of
 * groups are apart. Micro-batches matter only by their distance to each other. A *snapshot* is all
 * of that as numbers, with micro-batches relative to the current one. If two snapshots are equal,
 * and from the second on each rank's actions are for n rounds those that it did between the two,
 * only shifted, then everything that follows is what happened in between, n times, and the ranks
 * can be moved to where the last of these rounds leaves them.
 *
 * Slots do not enter a snapshot as long as they shift too: two micro-batches that share a slot do
 * so one round later. That is plain where slots are m % n; where a table maps them it is looked up.
 *
 * Which earlier snapshot to compare with is chosen as in Brent's cycle detection (Brent 1980).
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/replay_impl.h"

/* ---- snapshots ---- */

void replay_snapshot_add(struct replay_snapshot *s, int number)
{
    s->numbers = arena_grow(s->arena, s->numbers, sizeof(int), &s->capacity, s->n + 1);
    s->numbers[s->n++] = number;
}

/* Relative to the snapshot's micro-batch; a constant for what is not for a micro-batch. */
static int relative_micro_batch(const struct replay_snapshot *s, int micro_batch)
{
    return micro_batch < 0 ? INT32_MIN : micro_batch - s->micro_batch;
}

void replay_snapshot_add_micro_batch(struct replay_snapshot *s, int micro_batch)
{
    replay_snapshot_add(s, relative_micro_batch(s, micro_batch));
}

/* Of a transfer of the rank: 0 if it is complete, else its stream and its position there. */
static int position_in_flight(const struct replay *r, const struct replay_rank *rank, int transfer)
{
    if (transfer == REPLAY_NONE || transfer < r->n_dropped || replay_at(r, transfer)->is_done)
        return 0;
    const struct replay_transfer *t = replay_at(r, transfer);
    const struct replay_queue *q = &rank->streams[t->op->stream];

    return 1 + (int)t->op->stream + (t->place - q->n_done) * N_STREAMS;
}

static void add_transfer(const struct replay *r, const struct replay_rank *rank,
                         const struct replay_transfer *t, struct replay_snapshot *s)
{
    replay_snapshot_add(s, t->function);
    replay_snapshot_add(s, t->posted->op);
    replay_snapshot_add(s, relative_micro_batch(s, t->micro_batch));
    replay_snapshot_add(s, t->has_begun + 2 * t->is_done);
    replay_snapshot_add(s, replay_distance(r, t));
    for (int i = 0; i < min_int(t->n_after, ORDER_MAX_AFTER); i++)
        if (position_in_flight(r, rank, t->after[i]))
            replay_snapshot_add(s, position_in_flight(r, rank, t->after[i]));
    replay_snapshot_add(s, 0);
}

/* The rank's position, which usually differs first if anything does. */
static void add_position(const struct replay *r, const struct replay_rank *rank,
                         struct replay_snapshot *s)
{
    const struct entry *e = &rank->program->entries[r->entry];
    const struct action over = { .kind = UINT8_MAX };
    const struct action *a = rank->action < e->n_actions ? &e->actions[rank->action] : &over;

    replay_snapshot_add(s, a->kind);
    replay_snapshot_add(s, a->first);
    replay_snapshot_add(s, a->function);
    replay_snapshot_add(s, a->kind == UINT8_MAX ? 0 : relative_micro_batch(s, a->micro_batch));
    replay_snapshot_add(s, rank->event);
    replay_snapshot_add(s, rank->is_at_gate);
    replay_snapshot_add(s, rank->n_gates - r->list[0].n_gates);
    for (int i = 0; i < N_STREAMS; i++)
        replay_snapshot_add(s, rank->streams[i].n - rank->streams[i].n_done);
}

static void add_rank(const struct replay *r, const struct replay_rank *rank,
                     struct replay_snapshot *s)
{
    for (int i = 0; i < N_STREAMS; i++) {
        const struct replay_queue *q = &rank->streams[i];

        for (int k = q->n_done; k < q->n; k++)
            add_transfer(r, rank, replay_at(r, q->transfers[k]), s);
    }
    for (int f = 0; f < rank->program->n_functions; f++)
        for (int g = 0; g < rank->outlines[f].n_posted_ops; g++)
            replay_snapshot_add(s, rank->outlines[f].posted_ops[g].partner !=
                                       NULL); /* does not change back */
    replay_snapshot_peers(r, (int)(rank - r->list), s);
    if (r->clock)
        r->clock->on_snapshot(r->clock->context, (int)(rank - r->list), s, &s->kept);
}

/* Relative to the first rank's micro-batch. Returns 0 if its action is not for a micro-batch. */
static int begin_snapshot(const struct replay *r, struct replay_snapshot *s)
{
    const struct replay_rank *rank = &r->list[0];
    const struct entry *e = &rank->program->entries[r->entry];

    s->n = 0;
    if (rank->action >= e->n_actions || e->actions[rank->action].micro_batch < 0)
        return 0;
    s->micro_batch = e->actions[rank->action].micro_batch;
    for (int i = 0; i < r->n; i++)
        add_position(r, &r->list[i], s);
    s->n_places = s->n;
    return 1;
}

static void finish_snapshot(const struct replay *r, struct replay_snapshot *s)
{
    for (int i = 0; i < r->n; i++)
        add_rank(r, &r->list[i], s);
}

/* ---- slots that shift with the micro-batches ---- */

/* The slot that corresponds, one round later, to each slot of a stash or of stashes that share
 * slots. */
struct slot_moves {
    int *to, *from; /* by slot: 1 + the slot; 0: not known yet */
};

static int maps_slot(const struct slot_moves *moves, int slot, int later)
{
    if (!moves->to[slot] && !moves->from[later]) {
        moves->to[slot] = 1 + later;
        moves->from[later] = 1 + slot;
    }
    return moves->to[slot] == 1 + later && moves->from[later] == 1 + slot;
}

static struct slot_moves *open_moves(const struct program *p, struct arena *arena)
{
    struct slot_moves *moves = arena_array(arena, struct slot_moves, p->n_stashes + 1);

    for (int i = 0; i < p->n_stashes; i++) {
        const struct stash *stash = &p->stashes[i];
        int k = 0;

        while (k < i && !(stash->shared && p->stashes[k].shared == stash->shared))
            k++;
        if (k < i)
            moves[i] = moves[k];
        else if (stash->slots)
            moves[i] = (struct slot_moves){ arena_array(arena, int, stash->n_slots),
                                            arena_array(arena, int, stash->n_slots) };
    }
    return moves;
}

/* The first micro-batch, from m on, whose slot does not correspond to the one a round later; n if
 * all do. */
static int find_first_mismatch(const struct program *p, int m, int shift, int n)
{
    struct arena arena = { 0 };
    struct slot_moves *moves = open_moves(p, &arena);
    int is_equal_map = 1;

    for (m = max_int(m, 0); m + shift < n; m++) {
        for (int i = 0; is_equal_map && i < p->n_stashes; i++)
            if (p->stashes[i].slots)
                is_equal_map =
                    maps_slot(&moves[i], p->stashes[i].slots[m], p->stashes[i].slots[m + shift]);
        if (!is_equal_map)
            break;
    }
    arena_release(&arena);
    return is_equal_map ? n : m;
}

static bool has_tables(const struct program *p)
{
    for (int i = 0; i < p->n_stashes; i++)
        if (p->stashes[i].slots)
            return true;
    return false;
}

/* For how many rounds, at most `most`, the slots of the micro-batches of the last round, and of
 * transfers in flight, shift with the micro-batches. */
static int count_slot_rounds(const struct replay *r, const struct replay_rank *rank, int since,
                             int shift, int most)
{
    const struct entry *e = &rank->program->entries[r->entry];
    int lowest = INT32_MAX, highest = -1;

    if (!has_tables(rank->program))
        return most;
    for (int i = since; i <= min_int(rank->action, e->n_actions - 1); i++)
        if (e->actions[i].micro_batch >= 0) {
            lowest = min_int(lowest, e->actions[i].micro_batch);
            highest = max_int(highest, e->actions[i].micro_batch);
        }
    for (int s = 0; s < N_STREAMS; s++)
        for (int k = rank->streams[s].n_done; k < rank->streams[s].n; k++) {
            int m = replay_at(r, rank->streams[s].transfers[k])->micro_batch;

            lowest = m >= 0 ? min_int(lowest, m) : lowest;
        }
    int odd =
        find_first_mismatch(rank->program, lowest - shift, shift, rank->order.n_micro_batches);
    return min_int(most, odd <= highest ? 0 : (odd - 1 - highest) / shift + 1);
}

/* ---- skipping ---- */

/* How many more rounds all ranks have, without the one that has begun. */
static int count_rounds(const struct replay *r, const struct replay_rounds *rounds, int shift)
{
    int n_rounds = INT32_MAX;

    for (int i = 0; i < r->n && n_rounds > 0; i++) {
        const struct replay_rank *rank = &r->list[i];
        const struct entry *e = &rank->program->entries[r->entry];
        int n = rank->action - rounds->actions[i];

        if (n)
            n_rounds =
                min_int(n_rounds, order_count_rounds(e, rank->action, n, shift, e->n_actions) - 1);
    }
    for (int i = 0; i < r->n && n_rounds > 0 && n_rounds < INT32_MAX; i++)
        n_rounds = count_slot_rounds(r, &r->list[i], rounds->actions[i], shift, n_rounds);
    return n_rounds == INT32_MAX ? 0 : n_rounds;
}

/* Shift the transfers in flight by this number of micro-batches, and restore the users of their
 * slots. */
static void move_rank(struct replay *r, struct replay_rank *rank, int by)
{
    int users[ORDER_MAX_USERS];

    for (int i = 0; i < rank->order.n_users; i++)
        rank->users[i] = REPLAY_NONE;
    for (int s = 0; s < N_STREAMS; s++)
        for (int k = rank->streams[s].n_done; k < rank->streams[s].n; k++) {
            int number = rank->streams[s].transfers[k];
            struct replay_transfer *t = replay_at(r, number);

            t->micro_batch += t->micro_batch >= 0 ? by : 0;
            int n = order_users(&rank->order, t->op, t->micro_batch, users);
            for (int i = 0; i < n; i++)
                rank->users[users[i]] = max_int(rank->users[users[i]], number);
        }
}

static void skip_rounds(struct replay *r, struct replay_rounds *rounds, int n_rounds, int shift)
{
    if (r->clock)
        r->clock->on_skip(r->clock->context, n_rounds, shift, rounds->previous.kept);
    for (int i = 0; i < r->n; i++) {
        r->list[i].action += n_rounds * (r->list[i].action - rounds->actions[i]);
        move_rank(r, &r->list[i], n_rounds * shift);
    }
    rounds->previous.n = 0;
}

static bool is_equal(const struct replay_snapshot *a, const struct replay_snapshot *b, int n)
{
    return !memcmp(a->numbers, b->numbers, sizeof(int) * (size_t)n);
}

static void keep_snapshot(const struct replay *r, struct replay_rounds *rounds)
{
    struct replay_snapshot s = rounds->previous;

    rounds->previous = rounds->current;
    rounds->current = s;
    for (int i = 0; i < r->n; i++)
        rounds->actions[i] = r->list[i].action;
    rounds->n_left = rounds->n_patience *= 2;
}

void replay_skip_rounds(struct replay *r, struct replay_rounds *rounds)
{
    struct replay_snapshot *current = &rounds->current, *previous = &rounds->previous;

    if (!rounds->actions) {
        rounds->actions = arena_array(&r->arena, int, r->n);
        current->arena = previous->arena = &r->arena;
        rounds->n_patience = 1;
    }
    if (!begin_snapshot(r, current))
        return;
    int shift = current->micro_batch - previous->micro_batch;
    if (previous->n && shift > 0 && current->n_places == previous->n_places &&
        is_equal(current, previous, current->n_places)) {
        finish_snapshot(r, current);
        int n_rounds = current->n == previous->n && is_equal(current, previous, current->n)
                           ? count_rounds(r, rounds, shift)
                           : 0;
        if (n_rounds > 0) {
            skip_rounds(r, rounds, n_rounds, shift);
            rounds->n_left = 0;
            rounds->n_patience = 1;
            return;
        }
    }
    /* Brent's cycle detection: the distance to the previous snapshot doubles, so that it reaches a
     * multiple of any period. */
    if (rounds->n_left-- <= 0) {
        if (current->n == current->n_places)
            finish_snapshot(r, current);
        keep_snapshot(r, rounds);
    }
}
