/*
 * place.c - the offset of every value in its segment
 *
 * Cells are laid out one after the other in their segment. A plain value that is read by another
 * function than the one that writes it goes to a stash, with one copy a slot (stash.c). All others
 * live within one run of a function, from their first write to their last read, and share the
 * scratch segment: the largest first, each at the lowest offset that is free during its life in
 * every function (offline bin packing by decreasing size, as in Pisarchyk and Lee 2020, "greedy by
 * size"). Values in host memory are treated alike in the host's segments. Functions never run at
 * the same time, so all of them use the same scratch. A value with a home lives there, too, cell or
 * not: during its stays (program.h), of which a function may have several.
 *
 *     scratch  | %13      | %17 |            op 3: %13 and %17 live
 *              | %21           |            op 9: both are dead, their bytes are used again
 *
 * Operands of async ops live until a compute op has waited for those (order.h), or to the end of
 * the function, which waits for the rest.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "program/order.h"
#include "program/passes.h"
#include "program/stash_impl.h"

/* In ops. Values that live longer are in a list of their own, which bounds how far the search goes
 * back. */
#define SHORT_LIFE 32

/* The ops of one function between which a value lives. */
struct stay {
    int value, function;
    int first, last;
    int other; /* stay of the same value that was found before, 0 none */
    int next;  /* list of stays of placed values that begin with the same op */
};

/* The stays of one function whose values have been placed, by time. */
struct calendar {
    int *born; /* by op: newest short stay that begins with it, 0 none */
    int *long_stays;
    int n_long, capacity;
};

/* A range of the scratch segment. */
struct byte_range {
    size_t begin, end;
};

struct placing {
    struct program *program;
    struct arena *arena;
    char *written, *stashed; /* by value: by the current function; into the stash */
    struct stay *stays;      /* from 1 on */
    int n_stays, capacity;
    int *of_value;              /* by value: its newest stay, 0 none */
    struct calendar *calendars; /* by function */
    int *order;                 /* pass values, largest first */
    int n_order;
    struct byte_range *taken; /* in use while the current value lives */
    int n_taken;
    int *seen;     /* by value: the current value when it was added to taken */
    int *until;    /* by op of the current function: the op to which its operands live */
    int *parts_at; /* by base value: the number of its first part */
    int *awaited;  /* by part: the first later op before which all its users are complete */
    int n_parts;
};

static void live_at(struct placing *c, int function, int value, int begin, int end)
{
    struct stay *s = &c->stays[c->of_value[value]];

    if (!c->of_value[value] || s->function != function) {
        c->stays = arena_grow(c->arena, c->stays, sizeof *c->stays, &c->capacity, c->n_stays + 2);
        c->stays[++c->n_stays] = (struct stay){ .value = value,
                                                .function = function,
                                                .first = begin,
                                                .last = end,
                                                .other = c->of_value[value] };
        c->of_value[value] = c->n_stays;
        return;
    }
    s->first = min_int(s->first, begin);
    s->last = max_int(s->last, end);
}

/* Another stay of a value that is brought again, unless what touched it last may still be under
 * way. */
static void begin_stay(struct placing *c, int function, int value, int begin, int end)
{
    struct stay *s = &c->stays[c->of_value[value]];

    if (c->of_value[value] && s->function == function && s->last < begin)
        s->function = -1 - function;
    live_at(c, function, value, begin, end);
}

/* Plain values, and cells that come and go. */
static bool is_temporary(const struct value *v)
{
    return !program_is_lasting(v);
}

static int operand(const struct op *op, int k)
{
    return k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
}

/* Of the parts that a value is in. */
static int *awaited_of(const struct placing *c, int id)
{
    const struct program *p = c->program;

    return c->awaited + c->parts_at[program_base(p, id)] + program_parts(p, id).first;
}

/*
 * The op to which each op's operands live, from the end to the front: run waits for a collective
 * before the next compute op that touches any of its base values, or the same parts of them, and
 * the next collective that does begins after it, so it is complete when that one is waited for
 * (order.h; verify_memory.c derives the same from vector clocks).
 */
static void find_until(struct placing *c, const struct function *f)
{
    const struct program *p = c->program;

    for (int i = 0; i < c->n_parts; i++)
        c->awaited[i] = f->n_ops;
    for (int i = f->n_ops - 1; i >= 0; i--) {
        const struct op *op = &f->ops[i];

        c->until[i] = order_is_async(op) ? f->n_ops : i;
        for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++)
            for (int j = 0; j < program_parts(p, operand(op, k)).n; j++)
                c->until[i] = min_int(c->until[i], awaited_of(c, operand(op, k))[j]);
        for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++)
            for (int j = 0; operand(op, k) && j < program_parts(p, operand(op, k)).n; j++)
                awaited_of(c, operand(op, k))[j] = c->until[i];
    }
}

static void find_stays_in(struct placing *c, int function)
{
    const struct program *p = c->program;
    const struct function *f = &p->functions[function];

    memset(c->written, 0, (size_t)p->n_values);
    find_until(c, f);
    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];
        int end = c->until[i];

        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            int v = program_base(p, op->in[k]);

            if (!v || !is_temporary(&p->values[v]))
                continue;
            live_at(c, function, v, i, end);
            if (!c->written[v] && !p->values[v].home)
                c->stashed[v] = 1;
        }
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
            int v = program_base(p, op->out[k]);

            if (!v || !is_temporary(&p->values[v]))
                continue;
            if (op->kind == OP_TO_DEVICE)
                begin_stay(c, function, v, i, end);
            else
                live_at(c, function, v, i, end);
            c->written[v] = 1;
        }
    }
}

/* As find_stays_in has marked the stays that were followed by another one. */
static void unmark_stays(struct placing *c)
{
    for (int s = 1; s <= c->n_stays; s++)
        if (c->stays[s].function < 0)
            c->stays[s].function = -1 - c->stays[s].function;
}

static enum segment segment_of_cell(const struct value *v)
{
    if (v->space != SPACE_DEVICE)
        return v->space == SPACE_HOST ? SEGMENT_HOST_CELLS : SEGMENT_FILE_CELLS;
    switch (v->role) {
    case ROLE_WEIGHT:
    case ROLE_CODES:
        return SEGMENT_WEIGHTS;
    case ROLE_MASTER:
    case ROLE_MOMENT1:
    case ROLE_MOMENT2:
    case ROLE_SCALE:
    case ROLE_EMA:
    case ROLE_ERROR:
        return SEGMENT_STATES;
    case ROLE_GRADIENT:
        return SEGMENT_GRADIENTS;
    case ROLE_CACHE:
        return SEGMENT_CACHE;
    case ROLE_PAGES:
        return SEGMENT_STASH;
    default:
        return SEGMENT_INPUTS;
    }
}

/* Cells, one after the other. The offsets of stash values are assigned by stash.c. */
static void place_in_a_row(struct placing *c)
{
    struct program *p = c->program;

    for (int id = 1; id < p->n_values; id++) {
        struct value *v = &p->values[id];
        size_t n_bytes = placed_bytes(p, id);

        if (v->base || v->over)
            continue;
        if (c->stashed[id]) {
            v->scope = SCOPE_STASH;
            v->segment = p->stashes[v->stash].segment;
        } else if (program_is_lasting(v)) {
            v->segment = segment_of_cell(v);
            v->place_bytes = p->segment_bytes[v->segment];
            p->segment_bytes[v->segment] += n_bytes;
        }
    }
}

static int larger(const void *a, const void *b, void *context)
{
    const struct program *p = context;
    int x = *(const int *)a, y = *(const int *)b;
    size_t bytes_x = program_value_bytes(p, x), bytes_y = program_value_bytes(p, y);

    if (bytes_x != bytes_y)
        return bytes_x > bytes_y ? -1 : 1;
    return x - y;
}

static void take(struct placing *c, int value, int other)
{
    size_t begin = c->program->values[other].place_bytes;
    size_t n_bytes = placed_bytes(c->program, other);

    if (c->seen[other] == value ||
        c->program->values[other].space != c->program->values[value].space)
        return;
    c->seen[other] = value;
    c->taken[c->n_taken++] = (struct byte_range){ begin, begin + n_bytes };
}

/* Add the ranges of all placed values that live during this stay. */
static void take_during(struct placing *c, const struct stay *stay)
{
    const struct calendar *calendar = &c->calendars[stay->function];
    int last = min_int(stay->last, c->program->functions[stay->function].n_ops - 1);

    for (int i = max_int(0, stay->first - SHORT_LIFE); i <= last; i++)
        for (int s = calendar->born[i]; s; s = c->stays[s].next)
            if (c->stays[s].last >= stay->first)
                take(c, stay->value, c->stays[s].value);
    for (int i = 0; i < calendar->n_long; i++) {
        const struct stay *other = &c->stays[calendar->long_stays[i]];

        if (other->first <= stay->last && other->last >= stay->first)
            take(c, stay->value, other->value);
    }
}

static void enter(struct placing *c, int stay)
{
    struct stay *s = &c->stays[stay];
    struct calendar *calendar = &c->calendars[s->function];

    if (s->last - s->first > SHORT_LIFE) {
        calendar->long_stays = arena_grow(c->arena, calendar->long_stays, sizeof stay,
                                          &calendar->capacity, calendar->n_long + 1);
        calendar->long_stays[calendar->n_long++] = stay;
        return;
    }
    s->next = calendar->born[s->first];
    calendar->born[s->first] = stay;
}

static int by_begin(const void *a, const void *b)
{
    const struct byte_range *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static size_t lowest_gap(struct byte_range *taken, int n_taken, size_t n_bytes)
{
    size_t at = 0;

    qsort(taken, (size_t)n_taken, sizeof *taken, by_begin);
    for (int i = 0; i < n_taken; i++) {
        if (taken[i].begin >= at + n_bytes)
            break;
        if (taken[i].end > at)
            at = taken[i].end;
    }
    return at;
}

static void place_by_lifetime(struct placing *c)
{
    static const enum segment scratch_of[N_SPACES] = { SEGMENT_SCRATCH, SEGMENT_HOST_SCRATCH,
                                                       SEGMENT_FILE_SCRATCH };
    struct program *p = c->program;

    for (int id = 1; id < p->n_values; id++)
        if (!p->values[id].base && is_temporary(&p->values[id]) && !c->stashed[id] &&
            c->of_value[id])
            c->order[c->n_order++] = id;
    qsort_r(c->order, (size_t)c->n_order, sizeof *c->order, larger, p);
    for (int i = 0; i < c->n_order; i++) {
        struct value *v = &p->values[c->order[i]];
        size_t n_bytes = placed_bytes(p, c->order[i]);

        c->n_taken = 0;
        for (int s = c->of_value[c->order[i]]; s; s = c->stays[s].other)
            take_during(c, &c->stays[s]);
        v->scope = SCOPE_PASS;
        v->segment = scratch_of[v->space];
        v->place_bytes = lowest_gap(c->taken, c->n_taken, n_bytes);
        for (int s = c->of_value[c->order[i]]; s; s = c->stays[s].other)
            enter(c, s);
        if (v->place_bytes + n_bytes > p->segment_bytes[v->segment])
            p->segment_bytes[v->segment] = v->place_bytes + n_bytes;
    }
}

/* Views get the segment and offset of their base. */
static void place_views(struct program *p)
{
    for (int id = 1; id < p->n_values; id++) {
        struct value *v = &p->values[id];
        const struct value *base = &p->values[program_base(p, id)];

        if (base == v)
            continue;
        v->scope = base->scope;
        v->segment = base->segment;
        v->stash = base->stash;
        v->place_bytes = base->place_bytes + (size_t)v->offset * dtype_bytes(v->dtype);
    }
}

/* One op runs at a time on each stream, so the largest scratch is enough for all ops of the
 * stream. */
static void place_scratch(struct program *p)
{
    size_t largest[N_STREAMS] = { 0 };

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            if (op->scratch_bytes > largest[op->stream])
                largest[op->stream] = op->scratch_bytes;
        }
    p->segment_bytes[SEGMENT_LIBRARY] = largest[STREAM_COMPUTE];
    for (int s = STREAM_COMPUTE + 1; s < N_STREAMS; s++) {
        p->stream_scratch[s] = p->segment_bytes[SEGMENT_COMM];
        p->segment_bytes[SEGMENT_COMM] += align_up(largest[s], PLACE_ALIGNMENT);
    }
}

void place(struct program *program)
{
    struct arena arena = { 0 };
    size_t n_values = (size_t)program->n_values, n_functions = (size_t)program->n_functions;
    int n_ops = 0;
    struct placing c = { .program = program, .arena = &arena };

    c.written = arena_array(&arena, char, n_values);
    c.stashed = arena_array(&arena, char, n_values);
    c.order = arena_array(&arena, int, n_values);
    c.taken = arena_array(&arena, struct byte_range, n_values);
    c.seen = arena_array(&arena, int, n_values);
    c.stays = arena_array(&arena, struct stay, 1);
    c.capacity = 1;
    c.of_value = arena_array(&arena, int, n_values);
    c.calendars = arena_array(&arena, struct calendar, n_functions);
    for (size_t f = 0; f < n_functions; f++) {
        c.calendars[f].born = arena_array(&arena, int, program->functions[f].n_ops);
        n_ops = max_int(n_ops, program->functions[f].n_ops);
    }
    c.until = arena_array(&arena, int, n_ops);
    c.parts_at = arena_array(&arena, int, n_values);
    for (int id = 0; id < program->n_values; id++) {
        c.parts_at[id] = c.n_parts;
        c.n_parts += program_base(program, id) == id ? program_n_parts(program, id) : 0;
    }
    c.awaited = arena_array(&arena, int, c.n_parts);
    memset(program->segment_bytes, 0, sizeof program->segment_bytes);
    for (int f = 0; f < program->n_functions; f++)
        find_stays_in(&c, f);
    unmark_stays(&c);
    for (int id = 1; id < program->n_values; id++)
        c.stashed[id] |= program->values[id].role == ROLE_INPUT && !program->values[id].base;
    divide_stash(program, c.stashed);
    page_size_pool(program);
    place_in_a_row(&c);
    place_by_lifetime(&c);
    place_views(program);
    place_scratch(program);
    arena_release(&arena);
}

/* ---- a program in the memory of another ---- */

static int is_alike(const struct program *p, const struct program *q)
{
    int alike = p->n_values == q->n_values && p->n_functions == q->n_functions;

    for (int id = 1; alike && id < p->n_values; id++) {
        const struct value *a = &p->values[id], *b = &q->values[id];

        alike = a->base == b->base && a->over == b->over && a->home == b->home &&
                a->role == b->role && a->scope == b->scope && a->segment == b->segment &&
                program_has_content(p, id) == program_has_content(q, id) &&
                program_value_bytes(p, id) <= program_value_bytes(q, id);
    }
    return alike;
}

/* The scratch of collectives keeps its offset. */
static int is_alike_in(const struct function *a, const struct function *b)
{
    int alike = a->n_ops == b->n_ops;

    for (int i = 0; alike && i < a->n_ops; i++) {
        const struct op *x = &a->ops[i], *y = &b->ops[i];

        alike = x->kind == y->kind && x->stream == y->stream &&
                !memcmp(x->in, y->in, sizeof x->in) && !memcmp(x->out, y->out, sizeof x->out) &&
                (x->stream == STREAM_COMPUTE || x->scratch_bytes <= y->scratch_bytes);
    }
    return alike;
}

static bool is_alike_at(const struct entry *a, const struct entry *b)
{
    return a->n_actions == b->n_actions &&
           (!a->n_actions ||
            !memcmp(a->actions, b->actions, sizeof *a->actions * (size_t)a->n_actions));
}

static void move_value(struct program *p, int id, struct program *larger)
{
    struct value *v = &p->values[id];

    v->stash = larger->values[id].stash;
    if (!program_has_content(p, id)) {
        v->place_bytes = larger->values[id].place_bytes;
        return;
    }
    v->place_bytes = larger->segment_bytes[v->segment];
    larger->segment_bytes[v->segment] += placed_bytes(p, id);
}

int place_within(struct program *program, struct program *larger, struct err *err)
{
    struct program *p = program;
    int alike = is_alike(p, larger);

    for (int f = 0; alike && f < p->n_functions; f++)
        alike = is_alike_in(&p->functions[f], &larger->functions[f]);
    for (int e = 0; alike && e < N_ENTRIES; e++)
        alike = is_alike_at(&p->entries[e], &larger->entries[e]);
    if (!alike)
        return err_set(err, ERR_CONFIG,
                       "the steps of two lengths of sequences differ in more than "
                       "their sizes (hint: data.packing: true)");
    for (int id = 1; id < p->n_values; id++)
        if (program_base(p, id) == id)
            move_value(p, id, larger);
    p->stashes = larger->stashes;
    p->n_stashes = larger->n_stashes;
    place_views(p);
    memcpy(p->stream_scratch, larger->stream_scratch, sizeof p->stream_scratch);
    size_t *library = &larger->segment_bytes[SEGMENT_LIBRARY];
    if (*library < p->segment_bytes[SEGMENT_LIBRARY])
        *library = p->segment_bytes[SEGMENT_LIBRARY];
    memcpy(p->segment_bytes, larger->segment_bytes, sizeof p->segment_bytes);
    return 0;
}
