/*
 * verify_ranks.c - the programs of a pipeline's ranks, run against each other without their numbers
 *
 * Each rank's actions are walked as the executor does: a transfer is handed to its stream and
 * begins when those before it on the stream, and those of other streams that touch its operand, are
 * done; a compute op waits for the transfers that touch what it touches. A send and the receive it
 * meets are done when both have begun, a collective of the whole pipeline when all ranks have begun
 * it: nothing is buffered, so what ends here ends with any communicator. What concerns one rank
 * alone, or data-parallel ranks, which run the same program, is done as soon as it has begun.
 */
#include <string.h>

#include "base/num.h"
#include "program/passes.h"

#define NONE (-1)
#define MAX_AFTER 4 /* as COLLECTIVE_MAX_AFTER of run */

/* What happens in a function, in order, as far as transfers are concerned. */
struct event {
    int op;   /* an asynchronous one, or */
    int base; /* NONE: else a base value that a compute op touches */
};

struct outline {
    struct event *events;
    int n_events, capacity;
};

/* An asynchronous op that was handed to its stream. */
struct transfer {
    int rank, function, op, micro_batch;
    int after[MAX_AFTER], n_after; /* transfers */
    int number;                    /* on its channel */
    int has_begun, is_done;
};

struct queue {
    int *transfers; /* in order */
    int n, capacity, n_done;
};

/* All sends from one rank to another in one direction of the data, and the receives they meet. */
struct channel {
    struct queue ends[2]; /* receives, sends */
    enum stream streams[2];
};

struct rank {
    const struct program *program;
    struct outline *outlines; /* by function */
    char *is_touched;         /* by base value: some asynchronous op touches it */
    int *users_at, *users; /* by base value and slot: the last transfer that touches it, or NONE */
    struct queue streams[N_STREAMS];
    int n_meetings; /* of the whole pipeline, begun */
    int action, event;
};

struct ranks {
    struct rank *list;
    int n;
    struct channel *channels; /* from * n * 2 + to * 2 + is_backward */
    struct transfer *transfers;
    int n_transfers, capacity;
    enum entry_kind entry;
    struct arena arena;
    struct err *err;
};

static const struct op *op_of(const struct ranks *r, const struct transfer *t)
{
    return &r->list[t->rank].program->functions[t->function].ops[t->op];
}

static int fail(const struct ranks *r, const struct transfer *t, const char *what)
{
    const struct program *p = r->list[t->rank].program;

    return err_set(r->err, ERR_FAILED, "program: %s: pipeline rank %d, %s, micro-batch %d: %s",
                   entry_name(r->entry), t->rank, p->functions[t->function].name, t->micro_batch,
                   what);
}

/* ---- outlines ---- */

static void mark(struct rank *rank, const struct op *op)
{
    const struct program *p = rank->program;

    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        rank->is_touched[program_base(p, op->in[k])] = 1;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        rank->is_touched[program_base(p, op->out[k])] = 1;
    rank->is_touched[0] = 0;
}

static void add_event(struct arena *arena, struct outline *o, struct event event)
{
    o->events = arena_grow(arena, o->events, sizeof event, &o->capacity, o->n_events + 1);
    o->events[o->n_events++] = event;
}

static void add_base(struct arena *arena, struct outline *o, const struct rank *rank, int value)
{
    int base = program_base(rank->program, value);

    if (!rank->is_touched[base])
        return;
    /* Once is enough, until something else is handed over. */
    for (int i = o->n_events - 1; i >= 0 && o->events[i].base != NONE; i--)
        if (o->events[i].base == base)
            return;
    add_event(arena, o, (struct event){ NONE, base });
}

static void outline(struct arena *arena, struct rank *rank, int function)
{
    const struct function *f = &rank->program->functions[function];
    struct outline *o = &rank->outlines[function];

    for (int i = 0; i < f->n_ops; i++) {
        if (op_is_collective(f->ops[i].kind)) {
            add_event(arena, o, (struct event){ i, NONE });
            continue;
        }
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            add_base(arena, o, rank, f->ops[i].in[k]);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            add_base(arena, o, rank, f->ops[i].out[k]);
    }
}

static void open_rank(struct ranks *r, int number, const struct program *p)
{
    struct rank *rank = &r->list[number];
    int n_users = 0;

    rank->program = p;
    rank->outlines = arena_array(&r->arena, struct outline, p->n_functions);
    rank->is_touched = arena_array(&r->arena, char, p->n_values);
    rank->users_at = arena_array(&r->arena, int, p->n_values);
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            if (op_is_collective(p->functions[f].ops[i].kind))
                mark(rank, &p->functions[f].ops[i]);
    for (int f = 0; f < p->n_functions; f++)
        outline(&r->arena, rank, f);
    for (int id = 0; id < p->n_values; id++) {
        int is_stash = p->values[id].scope == SCOPE_STASH && p->n_stashes;

        rank->users_at[id] = n_users;
        n_users += is_stash ? p->stashes[p->values[id].stash].n_slots : 1;
    }
    rank->users = arena_array(&r->arena, int, n_users);
    for (int i = 0; i < n_users; i++)
        rank->users[i] = NONE;
}

/* ---- transfers ---- */

static void push(struct ranks *r, struct queue *q, int transfer)
{
    q->transfers = arena_grow(&r->arena, q->transfers, sizeof(int), &q->capacity, q->n + 1);
    q->transfers[q->n++] = transfer;
}

static int *user_of(const struct rank *rank, int value, int micro_batch)
{
    int base = program_base(rank->program, value);

    return &rank->users[rank->users_at[base] + program_slot(rank->program, base, micro_batch)];
}

static struct channel *channel_of(const struct ranks *r, const struct transfer *t)
{
    const struct op *op = op_of(r, t);
    int other = (t->rank + op->attributes.peer + r->n) % r->n;
    int from = op->kind == OP_SEND ? t->rank : other, to = op->kind == OP_SEND ? other : t->rank;
    int is_backward = op->stream >= STREAM_B_TO_NEXT;

    return &r->channels[(from * r->n + to) * 2 + is_backward];
}

static int join_channel(struct ranks *r, struct transfer *t)
{
    const struct op *op = op_of(r, t);
    int sends = op->kind == OP_SEND;
    struct channel *channel = channel_of(r, t);
    struct queue *end = &channel->ends[sends];

    if (!end->n)
        channel->streams[sends] = op->stream;
    if (channel->streams[sends] != op->stream)
        return fail(r, t, "a channel has transfers on two streams, whose order is open");
    t->number = end->n;
    push(r, end, (int)(t - r->transfers));
    return 0;
}

/* An op is handed to its stream. The rank has waited for what it must. */
static int post(struct ranks *r, int number, const struct action *a, int op_index)
{
    struct rank *rank = &r->list[number];
    const struct op *op = &rank->program->functions[a->function].ops[op_index];
    int at = r->n_transfers;

    r->transfers = arena_grow(&r->arena, r->transfers, sizeof *r->transfers, &r->capacity, at + 1);
    r->n_transfers++;
    struct transfer *t = &r->transfers[at];
    *t = (struct transfer){ number, a->function, op_index, a->micro_batch, { 0 }, 0, 0, 0, 0 };
    for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
        int id = k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
        int *user = id ? user_of(rank, id, a->micro_batch) : NULL;

        if (!user)
            continue;
        if (*user != NONE && *user != at && !r->transfers[*user].is_done) {
            if (t->n_after == MAX_AFTER)
                return fail(r, t, "a transfer comes after too many others");
            t->after[t->n_after++] = *user;
        }
        *user = at;
    }
    push(r, &rank->streams[op->stream], at);
    if (op->kind == OP_SEND || op->kind == OP_RECEIVE)
        return join_channel(r, t);
    return 0;
}

/* ---- running ---- */

static int can_begin(const struct ranks *r, const struct transfer *t)
{
    for (int i = 0; i < t->n_after; i++)
        if (!r->transfers[t->after[i]].is_done)
            return 0;
    return 1;
}

static int check_pair(const struct ranks *r, const struct transfer *a, const struct transfer *b)
{
    const struct op *sends = op_of(r, a), *receives = op_of(r, b);
    const struct program *from = r->list[a->rank].program, *to = r->list[b->rank].program;

    if (a->micro_batch != b->micro_batch)
        return fail(r, b, "receives what is sent of another micro-batch");
    if (program_value_bytes(from, sends->in[0]) != program_value_bytes(to, receives->out[0]) ||
        from->values[sends->in[0]].dtype != to->values[receives->out[0]].dtype)
        return fail(r, b, "receives other bytes than are sent");
    return 0;
}

/* A send and a receive that have both begun. Returns 1 if they are done now. */
static int meet(struct ranks *r, struct transfer *t)
{
    struct channel *channel = channel_of(r, t);
    struct queue *others = &channel->ends[op_of(r, t)->kind == OP_RECEIVE];

    if (t->number >= others->n)
        return 0;
    struct transfer *other = &r->transfers[others->transfers[t->number]];
    if (!other->has_begun)
        return 0;
    if (op_of(r, t)->kind == OP_SEND ? check_pair(r, t, other) : check_pair(r, other, t))
        return -1;
    t->is_done = other->is_done = 1;
    return 1;
}

/* All ranks have come as far as this meeting of the whole pipeline. */
static int all_meet(const struct ranks *r, const struct transfer *t)
{
    for (int i = 0; i < r->n; i++)
        if (r->list[i].n_meetings < t->number)
            return 0;
    return 1;
}

/* The first transfer of a stream that is not done. Returns 1 if anything happened. */
static int advance_stream(struct ranks *r, struct rank *rank, struct queue *q)
{
    while (q->n_done < q->n && r->transfers[q->transfers[q->n_done]].is_done)
        q->n_done++;
    if (q->n_done == q->n)
        return 0;
    struct transfer *t = &r->transfers[q->transfers[q->n_done]];
    const struct op *op = op_of(r, t);
    int began = !t->has_begun && can_begin(r, t);
    if (!began && !t->has_begun)
        return 0;
    t->has_begun = 1;
    if (op->kind == OP_SEND || op->kind == OP_RECEIVE) {
        int met = meet(r, t);

        return met ? met : began;
    }
    int of_all = op->attributes.axis == AXIS_PP;
    if (began && of_all)
        t->number = ++rank->n_meetings;
    t->is_done = !of_all || all_meet(r, t);
    return t->is_done || began;
}

static int is_over(const struct rank *rank, const struct entry *entry)
{
    if (rank->action < entry->n_actions)
        return 0;
    for (int s = 0; s < N_STREAMS; s++)
        if (rank->streams[s].n_done < rank->streams[s].n)
            return 0;
    return 1;
}

/* The transfer that the rank's next event waits for, or NONE. */
static int waits_for(const struct ranks *r, const struct rank *rank, const struct action *a,
                     const struct event *event)
{
    const struct op *op = &rank->program->functions[a->function].ops[max_int(event->op, 0)];
    int bases[2] = { event->base, 0 };

    /* An op that was handed over must be done before it is told anew: it touches the same. */
    if (event->base == NONE) {
        bases[0] = op->in[0] ? program_base(rank->program, op->in[0]) : 0;
        bases[1] = op->out[0] ? program_base(rank->program, op->out[0]) : 0;
    }
    for (int i = 0; i < 2; i++) {
        int user = bases[i] ? *user_of(rank, bases[i], a->micro_batch) : NONE;
        const struct transfer *t = user == NONE ? NULL : &r->transfers[user];

        if (t && !t->is_done &&
            (event->base != NONE || (t->function == a->function && t->op == event->op)))
            return user;
    }
    return NONE;
}

/* As far as it comes. Returns 1 if that was any way at all, or -1. */
static int advance_rank(struct ranks *r, int number)
{
    struct rank *rank = &r->list[number];
    const struct entry *entry = &rank->program->entries[r->entry];
    int moved = 0;

    while (rank->action < entry->n_actions) {
        const struct action *a = &entry->actions[rank->action];
        const struct outline *o = a->kind == ACTION_RUN ? &rank->outlines[a->function] : NULL;

        if (!o || rank->event == o->n_events) {
            rank->action++;
            rank->event = 0;
            moved = 1;
            continue;
        }
        const struct event *event = &o->events[rank->event];
        if (waits_for(r, rank, a, event) != NONE)
            break;
        if (event->base == NONE && post(r, number, a, event->op))
            return -1;
        rank->event++;
        moved = 1;
    }
    for (int s = 0; s < N_STREAMS; s++)
        for (int more; (more = advance_stream(r, rank, &rank->streams[s])) != 0; moved = 1)
            if (more < 0)
                return -1;
    return moved;
}

/* Nobody moves: say for what the first that is not at its end waits. */
static int fail_stuck(const struct ranks *r)
{
    for (int i = 0; i < r->n; i++) {
        const struct rank *rank = &r->list[i];

        for (int s = 0; s < N_STREAMS; s++)
            if (rank->streams[s].n_done < rank->streams[s].n)
                return fail(r, &r->transfers[rank->streams[s].transfers[rank->streams[s].n_done]],
                            "waits for ever");
    }
    return err_set(r->err, ERR_FAILED, "program: %s: ranks of the pipeline wait for ever",
                   entry_name(r->entry));
}

static int walk_entry(struct ranks *r)
{
    int n_over = 0;

    while (n_over < r->n) {
        int moved = 0;

        n_over = 0;
        for (int i = 0; i < r->n; i++) {
            int how = advance_rank(r, i);

            if (how < 0)
                return -1;
            moved |= how;
            n_over += is_over(&r->list[i], &r->list[i].program->entries[r->entry]);
        }
        if (!moved && n_over < r->n)
            return fail_stuck(r);
    }
    for (int i = 0; i < r->n; i++)
        if (r->list[i].n_meetings != r->list[0].n_meetings)
            return err_set(r->err, ERR_FAILED,
                           "program: %s: pipeline rank %d has other collectives than rank 0",
                           entry_name(r->entry), i);
    return 0;
}

int verify_ranks(const struct program *programs, int n_ranks, struct err *err)
{
    int status = 0;

    for (int e = 0; e < N_ENTRIES && !status; e++) {
        struct ranks r = { .n = n_ranks, .entry = (enum entry_kind)e, .err = err };

        r.list = arena_array(&r.arena, struct rank, n_ranks);
        r.channels = arena_array(&r.arena, struct channel, (size_t)n_ranks * (size_t)n_ranks * 2);
        for (int i = 0; i < n_ranks; i++)
            open_rank(&r, i, &programs[i]);
        status = walk_entry(&r);
        arena_release(&r.arena);
    }
    return status;
}
