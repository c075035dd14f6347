/*
 * verify_ranks.c - the programs of a mesh's ranks, run against each other without their numbers
 *
 * Each rank's actions are walked as the executor does (run/executor.c): a transfer is handed to its
 * stream and begins when those before it on the stream, and those of other streams that touch its
 * operands, are done; a compute op waits for the transfers that touch what it touches, a function's
 * end for those that touch what dies with it, a gate for all. A send and the receive it meets are
 * done when both have begun, a collective when all ranks of its group have begun it, a gate when
 * all have come to one: nothing is buffered, so what ends here ends with any communicator. Whatever
 * may happen goes on being possible until it happens, so one order of walking tells of all.
 */
#include <string.h>

#include "base/num.h"
#include "program/passes.h"
#include "program/verify_ranks_impl.h"

/* ---- outlines ---- */

static void add_event(struct arena *arena, struct outline *o, enum event_kind kind, int what)
{
    o->events =
        arena_grow(arena, o->events, sizeof *o->events, &o->events_capacity, o->n_events + 1);
    o->events[o->n_events++] = (struct event){ kind, what };
}

static void add_base(struct arena *arena, struct outline *o, int base)
{
    /* Once is enough, until something else is handed over. */
    for (int i = o->n_events - 1; i >= 0 && o->events[i].kind == EVENT_TOUCH; i--)
        if (o->events[i].what == base)
            return;
    add_event(arena, o, EVENT_TOUCH, base);
}

/* An op that is run at once waits for the users of what it touches. */
static void add_touches(struct arena *arena, struct outline *o, const struct rank *rank,
                        const struct op *op)
{
    for (int k = 0; k < ORDER_MAX_USERS; k++) {
        int id = k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];

        if (order_user(&rank->order, id, 0) != ORDER_NOBODY)
            add_base(arena, o, program_base(rank->program, id));
    }
}

static void outline(struct arena *arena, struct rank *rank, int function, int *known_at)
{
    const struct program *p = rank->program;
    const struct function *f = &p->functions[function];
    struct outline *o = &rank->outlines[function];
    int n_givens = 0;

    for (int i = 0; i < f->n_ops; i++)
        n_givens += order_is_given(&f->ops[i]);
    o->givens = arena_array(arena, struct given, n_givens);
    o->n_variants = n_givens ? order_n_variants(&rank->order, function) : 1;
    for (int i = 0; i < f->n_ops; i++) {
        if (order_is_given(&f->ops[i])) {
            struct given *g = &o->givens[o->n_givens];

            *g = (struct given){ .op = i, .last = arena_array(arena, int, o->n_variants) };
            for (int m = 0; m < o->n_variants; m++)
                g->last[m] = NONE;
            add_event(arena, o, EVENT_GIVE, o->n_givens++);
            continue;
        }
        add_touches(arena, o, rank, &f->ops[i]);
    }
    if (!n_givens)
        return;
    order_known_at(p, function, known_at);
    unsigned streams = order_drains(p, function, known_at);
    if (streams)
        add_event(arena, o, EVENT_DRAIN, (int)streams);
}

static void open_rank(struct ranks *r, int number, const struct program *p)
{
    struct rank *rank = &r->list[number];
    int n_ops = 0;
    char *runs = arena_array(&r->arena, char, p->n_functions);

    rank->program = p;
    rank->outlines = arena_array(&r->arena, struct outline, p->n_functions);
    order_open(&rank->order, p, &r->arena);
    rank->users = arena_array(&r->arena, int, rank->order.n_users);
    for (int i = 0; i < rank->order.n_users; i++)
        rank->users[i] = NONE;
    for (int i = 0; i < p->entries[r->entry].n_actions; i++)
        if (p->entries[r->entry].actions[i].kind == ACTION_RUN)
            runs[p->entries[r->entry].actions[i].function] = 1;
    for (int f = 0; f < p->n_functions; f++)
        n_ops = max_int(n_ops, p->functions[f].n_ops);
    int *known_at = arena_array(&r->arena, int, n_ops);
    for (int f = 0; f < p->n_functions; f++)
        if (runs[f])
            outline(&r->arena, rank, f, known_at);
}

/* ---- giving ---- */

void queue_push(struct arena *arena, struct queue *q, int transfer)
{
    q->transfers = arena_grow(arena, q->transfers, sizeof(int), &q->capacity, q->n + 1);
    q->transfers[q->n++] = transfer;
}

static int *last_of(const struct outline *o, int given, int micro_batch)
{
    return &o->givens[given].last[order_variant(o->n_variants, micro_batch)];
}

/* It begins after the users of what it touches, and is their user from now on. */
static int follow_users(struct ranks *r, struct transfer *t, int number)
{
    struct rank *rank = &r->list[t->rank];
    int users[ORDER_MAX_USERS], n = order_users(&rank->order, t->op, t->micro_batch, users);

    for (int k = 0; k < n; k++) {
        int user = rank->users[users[k]];

        rank->users[users[k]] = number;
        if (user == NONE || r->transfers[user].is_done ||
            r->transfers[user].op->stream == t->op->stream)
            continue;
        if (t->n_after == ORDER_MAX_AFTER)
            return meetings_fail(r, t, "comes after too many others");
        t->after[t->n_after++] = user;
    }
    return 0;
}

/* An op is handed to its stream. The rank has waited for what it must. */
static int give(struct ranks *r, int number, const struct action *a, int given)
{
    struct rank *rank = &r->list[number];
    struct outline *o = &rank->outlines[a->function];
    const struct op *op = &rank->program->functions[a->function].ops[o->givens[given].op];
    int at = r->n_transfers;

    r->transfers = arena_grow(&r->arena, r->transfers, sizeof *r->transfers, &r->capacity, at + 1);
    r->n_transfers++;
    struct transfer *t = &r->transfers[at];
    *t = (struct transfer){ .rank = number,
                            .function = a->function,
                            .micro_batch = a->micro_batch,
                            .given = &o->givens[given],
                            .op = op };
    if (follow_users(r, t, at) < 0)
        return -1;
    *last_of(o, given, a->micro_batch) = at;
    t->place = rank->streams[op->stream].n;
    queue_push(&r->arena, &rank->streams[op->stream], at);
    return meetings_join(r, t);
}

/* ---- running ---- */

static int can_begin(const struct ranks *r, const struct transfer *t)
{
    for (int i = 0; i < t->n_after; i++)
        if (!r->transfers[t->after[i]].is_done)
            return 0;
    return 1;
}

/* The first transfers of a stream. Returns 1 if anything happened, or -1. */
static int advance_stream(struct ranks *r, struct queue *q)
{
    int moved = 0;

    for (; q->n_done < q->n; q->n_done++) {
        struct transfer *t = &r->transfers[q->transfers[q->n_done]];

        if (!t->has_begun && !can_begin(r, t))
            return moved;
        if (!t->has_begun) {
            moved = 1;
            if (meetings_begin(r, t) < 0)
                return -1;
        }
        if (!t->is_done && meetings_poll(r, t) < 0)
            return -1;
        if (!t->is_done)
            return moved;
        moved = 1;
    }
    return moved;
}

static int is_drained(const struct rank *rank, int streams)
{
    for (int s = 0; s < N_STREAMS; s++)
        if ((streams >> s & 1) && rank->streams[s].n_done < rank->streams[s].n)
            return 0;
    return 1;
}

#define ALL_STREAMS ((1 << N_STREAMS) - 1)

int is_rank_over(const struct ranks *r, int rank)
{
    const struct rank *k = &r->list[rank];

    return k->action == k->program->entries[r->entry].n_actions && is_drained(k, ALL_STREAMS);
}

/* Returns 1 when it is passed. */
static int pass_gate(struct ranks *r, struct rank *rank)
{
    if (!is_drained(rank, ALL_STREAMS))
        return 0;
    if (!rank->is_at_gate)
        rank->n_gates++;
    rank->is_at_gate = 1;
    for (int i = 0; i < r->n; i++)
        if (r->list[i].n_gates < rank->n_gates)
            return 0;
    rank->is_at_gate = 0;
    return 1;
}

static int is_done(const struct ranks *r, int transfer)
{
    return transfer == NONE || r->transfers[transfer].is_done;
}

/* The user of a value that given ops touch. */
static int is_user_done(const struct ranks *r, const struct rank *rank, int value, int micro_batch)
{
    return is_done(r, rank->users[order_user(&rank->order, value, micro_batch)]);
}

/* Inputs may be written once no transfer reads them. */
static int can_load(const struct ranks *r, const struct rank *rank, const struct action *a)
{
    for (int i = 0; i < rank->order.n_inputs; i++)
        if (!is_user_done(r, rank, rank->order.inputs[i], a->micro_batch))
            return 0;
    return 1;
}

/* An op that was handed over must be done before it is told anew. */
static int can_give(const struct ranks *r, const struct rank *rank, const struct action *a,
                    int given)
{
    const struct outline *o = &rank->outlines[a->function];
    const struct op *op = &rank->program->functions[a->function].ops[o->givens[given].op];
    const struct queue *q = &rank->streams[op->stream];

    return is_done(r, *last_of(o, given, a->micro_batch)) && q->n - q->n_done < ORDER_MAX_GIVEN;
}

/* Returns 1 if the event has come to pass, 0 if it has to wait, or -1. */
static int happen(struct ranks *r, int number, const struct action *a, const struct event *event)
{
    const struct rank *rank = &r->list[number];

    if (event->kind == EVENT_TOUCH)
        return is_user_done(r, rank, event->what, a->micro_batch);
    if (event->kind == EVENT_DRAIN)
        return is_drained(rank, event->what);
    if (!can_give(r, rank, a, event->what))
        return 0;
    return give(r, number, a, event->what) < 0 ? -1 : 1;
}

/* One event, or the end of an action. Returns 1 if it happened, 0 if it has to wait, or -1. */
static int advance_action(struct ranks *r, int number)
{
    struct rank *rank = &r->list[number];
    const struct action *a = &rank->program->entries[r->entry].actions[rank->action];
    const struct outline *o = a->kind == ACTION_RUN ? &rank->outlines[a->function] : NULL;
    int moved = 1;

    if (o && rank->event < o->n_events) {
        moved = happen(r, number, a, &o->events[rank->event]);
        rank->event += moved > 0;
        return moved;
    }
    if (a->kind == ACTION_GATE)
        moved = pass_gate(r, rank);
    else if (a->kind == ACTION_LOAD)
        moved = can_load(r, rank, a);
    if (moved) {
        rank->action++;
        rank->event = 0;
    }
    return moved;
}

static int has_loaded(const struct ranks *r, const struct rank *rank, int since)
{
    return rank->action > since &&
           rank->program->entries[r->entry].actions[rank->action - 1].kind == ACTION_LOAD;
}

/*
 * As far as it comes, but not beyond the loading of the next micro-batch, so that ranks stay in
 * step as far as they can and what they do repeats soon. Returns 1 if that was any way at all, or
 * -1.
 */
static int advance_rank(struct ranks *r, int number)
{
    struct rank *rank = &r->list[number];
    int n_actions = rank->program->entries[r->entry].n_actions, since = rank->action;
    int any = 0, moved, step, n_gates = rank->n_gates;

    do {
        moved = 0;
        while (rank->action < n_actions && !has_loaded(r, rank, since) &&
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

static int walk_entry(struct ranks *r, struct verify_way *way)
{
    struct ranks_rounds rounds = { 0 };
    int n_over = 0;

    while (n_over < r->n) {
        int moved = 0;

        n_over = 0;
        if (!way->in_full)
            ranks_skip_rounds(r, &rounds);
        for (int i = 0; i < r->n; i++) {
            int before = r->list[i].action, step = advance_rank(r, i);

            if (step < 0)
                return -1;
            way->n_walked += r->list[i].action - before;
            moved |= step;
            n_over += is_rank_over(r, i);
        }
        if (!moved && n_over < r->n)
            return meetings_fail_stuck(r);
    }
    return 0;
}

/* Axes that the mesh has are the programs'. Returns whether it has all of theirs. */
static int check_mesh(const struct program *const *programs, const struct mesh *mesh)
{
    int is_whole = 1;

    for (int i = 0; i < mesh_world_size(mesh); i++)
        for (int axis = 0; axis < N_AXES; axis++) {
            int size = programs[i]->mesh.size[axis];

            CHECK(mesh->size[axis] == 1 || mesh->size[axis] == size);
            is_whole &= mesh->size[axis] == size;
        }
    return is_whole;
}

int verify_ranks_in_way(const struct program *const *programs, const struct mesh *mesh,
                        struct verify_way *way, struct err *err)
{
    int status = 0, n = mesh_world_size(mesh), is_whole = check_mesh(programs, mesh);

    for (int e = 0; e < N_ENTRIES && !status; e++) {
        struct ranks r = {
            .n = n, .mesh = mesh, .is_whole = is_whole, .entry = (enum entry_kind)e, .err = err
        };

        r.list = arena_array(&r.arena, struct rank, n);
        meetings_open(&r);
        for (int i = 0; i < n; i++)
            open_rank(&r, i, programs[i]);
        status = walk_entry(&r, way);
        arena_release(&r.arena);
    }
    return status;
}

int verify_ranks(const struct program *const *programs, const struct mesh *mesh, struct err *err)
{
    return verify_ranks_in_way(programs, mesh, &(struct verify_way){ 0 }, err);
}
