/*
 * replay.c - the actions of all ranks, executed symbolically against each other
 *
 * Of each function an outline is made once: which async ops it posts, what it waits for, and in
 * which order. A rank is then advanced through its actions as far as possible, its streams after
 * it, rank by rank, until all are at their end or none can advance. One order of advancing is
 * enough: an event that is enabled stays enabled until it happens (the system is a Kahn network),
 * so every order reaches the same end, or the same deadlock.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/replay_impl.h"

/* ---- outlines ---- */

static void add_event(struct arena *arena, struct replay_outline *o, struct replay_event event)
{
    o->events =
        arena_grow(arena, o->events, sizeof *o->events, &o->events_capacity, o->n_events + 1);
    o->events[o->n_events++] = event;
}

static void add_touch(struct arena *arena, struct replay_outline *o, int value, int op)
{
    /* Once is enough until the next post. */
    for (int i = o->n_events - 1; i >= 0 && o->events[i].kind == EVENT_TOUCH; i--)
        if (o->events[i].what == value)
            return;
    add_event(arena, o, (struct replay_event){ EVENT_TOUCH, value, op });
}

/* An op that runs at once waits for the users of its operands. */
static void add_touches(struct arena *arena, struct replay_outline *o,
                        const struct replay_rank *rank, const struct function *f, int at)
{
    const struct op *op = &f->ops[at];

    for (int k = 0; k < ORDER_N_OPERANDS; k++) {
        int id = k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];

        int base = program_base(rank->program, id);

        if (order_user(&rank->order, id, 0) != ORDER_NO_USER)
            add_touch(arena, o, program_n_parts(rank->program, base) > 1 ? id : base, at);
    }
}

static void outline(struct arena *arena, struct replay_rank *rank, int function, int *completed_at)
{
    const struct program *p = rank->program;
    const struct function *f = &p->functions[function];
    struct replay_outline *o = &rank->outlines[function];
    int n_posted_ops = 0;

    for (int i = 0; i < f->n_ops; i++)
        n_posted_ops += order_is_async(&f->ops[i]);
    o->posted_ops = arena_array(arena, struct replay_posted_op, n_posted_ops);
    if (n_posted_ops)
        o->variants = order_variants(&rank->order, function);
    for (int i = 0; i < f->n_ops; i++) {
        if (order_is_async(&f->ops[i])) {
            o->posted_ops[o->n_posted_ops] = (struct replay_posted_op){ .op = i };
            add_event(arena, o, (struct replay_event){ EVENT_POST, o->n_posted_ops++, i });
            continue;
        }
        add_touches(arena, o, rank, f, i);
    }
    if (!n_posted_ops)
        return;
    order_completion(p, function, completed_at);
    unsigned streams = order_drains(p, function, completed_at);
    if (streams)
        add_event(arena, o, (struct replay_event){ EVENT_DRAIN, (int)streams, f->n_ops });
}

static void open_rank(struct replay *r, int number, const struct program *p)
{
    struct replay_rank *rank = &r->list[number];
    int n_ops = 0;
    char *runs = arena_array(&r->arena, char, p->n_functions);

    rank->program = p;
    rank->outlines = arena_array(&r->arena, struct replay_outline, p->n_functions);
    order_open(&rank->order, p, &r->arena);
    rank->users = arena_array(&r->arena, int, rank->order.n_users);
    for (int i = 0; i < rank->order.n_users; i++)
        rank->users[i] = REPLAY_NONE;
    const struct order_rounds *parts = rank->order.parts[r->entry];
    for (int k = 0; k < rank->order.n_parts[r->entry]; k++)
        for (int i = parts[k].begin; i < parts[k].begin + parts[k].n; i++)
            if (p->entries[r->entry].actions[i].kind == ACTION_RUN)
                runs[p->entries[r->entry].actions[i].function] = 1;
    for (int f = 0; f < p->n_functions; f++)
        n_ops = max_int(n_ops, p->functions[f].n_ops);
    int *completed_at = arena_array(&r->arena, int, n_ops);
    for (int f = 0; f < p->n_functions; f++)
        if (runs[f])
            outline(&r->arena, rank, f, completed_at);
}

/* ---- posting ---- */

void replay_queue_push(struct arena *arena, struct replay_queue *q, int transfer)
{
    q->transfers = arena_grow(arena, q->transfers, sizeof(int), &q->capacity, q->n + 1);
    q->transfers[q->n++] = transfer;
}

static bool is_done(const struct replay *r, int transfer)
{
    return transfer == REPLAY_NONE || transfer < r->n_dropped || replay_at(r, transfer)->is_done;
}

/* Those before the first that is not done, if they are half of what is kept. */
static void drop_done(struct replay *r)
{
    int oldest = r->n_transfers;

    for (int i = 0; i < r->n; i++)
        for (int s = 0; s < N_STREAMS; s++) {
            const struct replay_queue *q = &r->list[i].streams[s];

            if (q->n_done < q->n)
                oldest = min_int(oldest, q->transfers[q->n_done]);
        }
    int n = oldest - r->n_dropped, n_kept = r->n_transfers - oldest;
    if (!n || n < n_kept)
        return;
    memmove(r->transfers, r->transfers + n, sizeof *r->transfers * (size_t)n_kept);
    r->n_dropped = oldest;
}

/* It begins after the users of its operands, and is their user from now on. */
static void follow_users(struct replay *r, struct replay_transfer *t, int number)
{
    struct replay_rank *rank = &r->list[t->rank];
    int users[ORDER_MAX_USERS], n = order_users(&rank->order, t->op, t->micro_batch, users);

    for (int k = 0; k < n; k++) {
        int user = rank->users[users[k]];

        rank->users[users[k]] = number;
        if (is_done(r, user) || replay_at(r, user)->op->stream == t->op->stream)
            continue;
        if (t->n_after < ORDER_MAX_AFTER)
            t->after[t->n_after] = user;
        t->n_after++;
    }
}

/* Post an op to its stream; the rank has done the waiting that this requires. */
static int post_op(struct replay *r, int number, const struct action *a, int posted)
{
    struct replay_rank *rank = &r->list[number];
    struct replay_outline *o = &rank->outlines[a->function];
    const struct op *op = &rank->program->functions[a->function].ops[o->posted_ops[posted].op];
    int at = r->n_transfers;

    if (r->clock && at - r->n_dropped == r->capacity)
        drop_done(r);
    r->transfers = arena_grow(&r->arena, r->transfers, sizeof *r->transfers, &r->capacity,
                              at - r->n_dropped + 1);
    r->n_transfers++;
    struct replay_transfer *t = replay_at(r, at);
    *t = (struct replay_transfer){ .rank = number,
                                   .function = a->function,
                                   .micro_batch = a->micro_batch,
                                   .posted = &o->posted_ops[posted],
                                   .op = op };
    follow_users(r, t, at);
    t->place = rank->streams[op->stream].n;
    replay_queue_push(&r->arena, &rank->streams[op->stream], at);
    replay_join(r, t);
    return r->watch->on_post(r->watch->context, t);
}

/* ---- running ---- */

static bool can_begin(const struct replay *r, const struct replay_transfer *t)
{
    for (int i = 0; i < min_int(t->n_after, ORDER_MAX_AFTER); i++)
        if (!is_done(r, t->after[i]))
            return false;
    return true;
}

/* The first transfers of a stream. Returns 1 if anything happened, or -1. */
static int advance_stream(struct replay *r, struct replay_queue *q)
{
    int moved = 0;

    for (; q->n_done < q->n; q->n_done++) {
        struct replay_transfer *t = replay_at(r, q->transfers[q->n_done]);

        if (!t->has_begun && !can_begin(r, t))
            return moved;
        if (!t->has_begun) {
            moved = 1;
            if (replay_begin(r, t) < 0)
                return -1;
        }
        if (!t->is_done && replay_poll(r, t) < 0)
            return -1;
        if (!t->is_done)
            return moved;
        moved = 1;
    }
    return moved;
}

static bool is_drained(const struct replay_rank *rank, int streams)
{
    for (int s = 0; s < N_STREAMS; s++)
        if ((streams >> s & 1) && rank->streams[s].n_done < rank->streams[s].n)
            return false;
    return true;
}

#define ALL_STREAMS ((1 << N_STREAMS) - 1)

int replay_is_over(const struct replay *r, int rank)
{
    const struct replay_rank *k = &r->list[rank];

    return k->action == k->program->entries[r->entry].n_actions && is_drained(k, ALL_STREAMS);
}

/* Returns 1 when the rank passes the gate. */
static int pass_gate(struct replay *r, int number)
{
    struct replay_rank *rank = &r->list[number];

    if (!is_drained(rank, ALL_STREAMS))
        return 0;
    if (!rank->is_at_gate) {
        rank->n_gates++;
        if (r->clock)
            r->clock->on_reach(r->clock->context, number, rank->n_gates);
    }
    rank->is_at_gate = 1;
    for (int i = 0; i < r->n; i++)
        if (r->list[i].n_gates < rank->n_gates)
            return 0;
    rank->is_at_gate = 0;
    if (r->clock)
        r->clock->on_pass(r->clock->context, number, rank->n_gates);
    return 1;
}

/* Whether the users of a value that async ops touch are complete. */
static bool are_users_done(const struct replay *r, const struct replay_rank *rank, int value,
                           int micro_batch)
{
    int users[PROGRAM_MAX_PARTS], n = order_users_of(&rank->order, value, micro_batch, users);

    for (int i = 0; i < n; i++)
        if (!is_done(r, rank->users[users[i]]))
            return false;
    return true;
}

/* ---- the clock ---- */

/* The rank runs what its function has up to this op, from where the event before it was. */
static void run_up_to(const struct replay *r, int number, const struct action *a, int op)
{
    const struct replay_rank *rank = &r->list[number];
    const struct replay_outline *o = &rank->outlines[a->function];
    int begin = rank->event ? o->events[rank->event - 1].op : 0;

    if (r->clock && op > begin)
        r->clock->on_run(r->clock->context, number, a, begin, op);
}

static void wait_for_users(const struct replay *r, int number, int value, int micro_batch)
{
    int users[PROGRAM_MAX_PARTS];
    int n = order_users_of(&r->list[number].order, value, micro_batch, users);

    for (int i = 0; r->clock && i < n; i++)
        r->clock->on_wait(r->clock->context, number, users[i]);
}

static void wait_for_inputs(const struct replay *r, int number, const struct action *a)
{
    const struct order *order = &r->list[number].order;

    for (int i = 0; i < order->n_inputs; i++)
        wait_for_users(r, number, order->inputs[i], a->micro_batch);
}

/* Inputs may be written once no transfer reads them. */
static bool can_load(const struct replay *r, const struct replay_rank *rank, const struct action *a)
{
    for (int i = 0; i < rank->order.n_inputs; i++)
        if (!are_users_done(r, rank, rank->order.inputs[i], a->micro_batch))
            return false;
    return true;
}

/* A posted op must be complete before it is posted again. */
static bool can_post(const struct replay *r, const struct replay_rank *rank, const struct action *a,
                     int posted)
{
    const struct replay_outline *o = &rank->outlines[a->function];
    const struct op *op = &rank->program->functions[a->function].ops[o->posted_ops[posted].op];
    const struct replay_queue *q = &rank->streams[op->stream];
    int variant = order_variant(&o->variants, a->micro_batch);

    for (int i = q->n_done; i < q->n; i++) {
        const struct replay_transfer *t = replay_at(r, q->transfers[i]);

        if (t->posted == &o->posted_ops[posted] &&
            order_variant(&o->variants, t->micro_batch) == variant)
            return false;
    }
    return q->n - q->n_done < ORDER_MAX_POSTED;
}

/* What is posted to a stream that is free begins before the rank goes on: what runs beside it is
 * known to a clock only then. */
static int start_posted(struct replay *r, int number, const struct action *a, int posted)
{
    struct replay_rank *rank = &r->list[number];
    int op = rank->outlines[a->function].posted_ops[posted].op;
    enum stream stream = rank->program->functions[a->function].ops[op].stream;

    return r->clock ? advance_stream(r, &rank->streams[stream]) : 0;
}

/* Returns 1 if the event happened, 0 if it has to wait, or -1. */
static int try_event(struct replay *r, int number, const struct action *a,
                     const struct replay_event *event)
{
    const struct replay_rank *rank = &r->list[number];

    if (event->kind == EVENT_TOUCH   ? !are_users_done(r, rank, event->what, a->micro_batch)
        : event->kind == EVENT_DRAIN ? !is_drained(rank, event->what)
                                     : !can_post(r, rank, a, event->what))
        return 0;
    run_up_to(r, number, a, event->op);
    if (event->kind == EVENT_TOUCH)
        wait_for_users(r, number, event->what, a->micro_batch);
    else if (event->kind == EVENT_DRAIN && r->clock)
        r->clock->on_drain(r->clock->context, number, (unsigned)event->what);
    else if (event->kind == EVENT_POST)
        return post_op(r, number, a, event->what) < 0 || start_posted(r, number, a, event->what) < 0
                   ? -1
                   : 1;
    return 1;
}

/* One event, or the end of an action. Returns 1 if it happened, 0 if it has to wait, or -1. */
static int advance_action(struct replay *r, int number)
{
    struct replay_rank *rank = &r->list[number];
    const struct action *a = &rank->program->entries[r->entry].actions[rank->action];
    const struct replay_outline *o = a->kind == ACTION_RUN ? &rank->outlines[a->function] : NULL;
    int moved = 1;

    if (o && rank->event < o->n_events) {
        moved = try_event(r, number, a, &o->events[rank->event]);
        rank->event += moved > 0;
        return moved;
    }
    if (a->kind == ACTION_GATE)
        moved = pass_gate(r, number);
    else if (a->kind == ACTION_LOAD)
        moved = can_load(r, rank, a);
    if (moved && a->kind == ACTION_LOAD)
        wait_for_inputs(r, number, a);
    if (moved && o)
        run_up_to(r, number, a, rank->program->functions[a->function].n_ops);
    if (moved) {
        rank->action++;
        rank->event = 0;
    }
    return moved;
}

enum { LONG_TURN = 512 }; /* actions: more than most schedules have between two loads */

/* Whether the rank has loaded a micro-batch or, in a long turn, reached the turn's first function
 * again, for a later micro-batch. */
static bool is_turn_over(const struct replay *r, const struct replay_rank *rank, int since)
{
    const struct entry *e = &rank->program->entries[r->entry];
    const struct action *first = &e->actions[since], *now = &e->actions[rank->action];

    return rank->action > since &&
           (now[-1].kind == ACTION_LOAD ||
            (now - first >= LONG_TURN && now->kind == first->kind &&
             now->function == first->function && now->micro_batch > first->micro_batch));
}

/*
 * Advance the rank as far as possible, but not into the next micro-batch, so that ranks stay in
 * step and the state repeats soon. Returns 1 if anything happened, 0, or -1.
 */
static int advance_rank(struct replay *r, int number)
{
    struct replay_rank *rank = &r->list[number];
    int n_actions = rank->program->entries[r->entry].n_actions, since = rank->action;
    int any = 0, moved, step, n_gates = rank->n_gates;

    do {
        moved = 0;
        while (rank->action < n_actions && !is_turn_over(r, rank, since) &&
               (step = advance_action(r, number)) != 0) {
            if (step < 0)
                return -1;
            moved = 1;
        }
        for (int s = 0; s < N_STREAMS; s++) {
            step = advance_stream(r, &rank->streams[s]);
            if (step < 0)
                return -1;
            moved |= step;
        }
        any |= moved;
    } while (moved);
    return any || rank->n_gates != n_gates;
}

static int walk(struct replay *r, int in_full)
{
    struct replay_rounds rounds = { 0 };
    int n_over = 0;

    while (n_over < r->n) {
        int moved = 0;

        n_over = 0;
        if (!in_full)
            replay_skip_rounds(r, &rounds);
        for (int i = 0; i < r->n; i++) {
            int before = r->list[i].action, step = advance_rank(r, i);

            if (step < 0)
                return -1;
            r->n_walked += r->list[i].action - before;
            moved |= step;
            n_over += replay_is_over(r, i);
        }
        if (!moved && n_over < r->n)
            return r->watch->on_deadlock(r->watch->context);
    }
    return 0;
}

int replay_run(struct replay *replay, const struct program *const *programs, int in_full)
{
    replay->n = mesh_world_size(replay->mesh);
    replay->list = arena_array(&replay->arena, struct replay_rank, replay->n);
    replay_open_rendezvous(replay);
    for (int i = 0; i < replay->n; i++)
        open_rank(replay, i, programs[i]);
    if (replay->clock)
        replay->clock->on_open(replay->clock->context);
    return walk(replay, in_full);
}

void replay_release(struct replay *replay)
{
    arena_release(&replay->arena);
}
