/*
 * place.c - the offset of every value in its segment
 *
 * Cells are laid out one after the other in their segment. A plain value that is read by another
 * function than the one that writes it goes to a stash, with one copy a slot (stash.c). All others
 * live within one run of a function, from their first write to their last read, and share the
 * scratch segment: the largest first, each at the lowest offset that is free during its life in
 * every function (offline bin packing by decreasing size, as in Pisarchyk and Lee 2020, "greedy by
 * size"). Values in host memory are treated alike in the host's segments. Functions never run at
 * the same time, so all of them use the same scratch.
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

/* The ops of one function between which a plain value lives; first > last: it does not. */
struct lifetime {
    int first, last;
    int next; /* list of placed values that are born with the same op */
};

/* The values of one function that have been placed, by time. */
struct calendar {
    int *born;    /* by op: newest short-lived value that is born with it, 0 none */
    int *lasting; /* the others */
    int n_lasting;
};

/* A range of the scratch segment. */
struct byte_range {
    size_t begin, end;
};

struct placing {
    struct program *program;
    char *written, *stashed;    /* by value: by the current function; into the stash */
    struct lifetime *lifetimes; /* [function][value] */
    struct calendar *calendars; /* by function */
    int *order;                 /* pass values, largest first */
    int n_order;
    struct byte_range *taken; /* in use while the current value lives */
    int n_taken;
    int *seen;    /* by value: the current value when it was added to taken */
    int *until;   /* by op of the current function: the op to which its operands live */
    int *awaited; /* by base value: the first later op before which all its users are complete */
};

static struct lifetime *lifetime_of(const struct placing *c, int function, int value)
{
    return &c->lifetimes[(size_t)function * (size_t)c->program->n_values + (size_t)value];
}

static void live_at(struct placing *c, int function, int value, int begin, int end)
{
    struct lifetime *l = lifetime_of(c, function, value);

    if (l->first > l->last) {
        *l = (struct lifetime){ .first = begin, .last = end };
        return;
    }
    l->first = min_int(l->first, begin);
    l->last = max_int(l->last, end);
}

static int operand_base(const struct program *p, const struct op *op, int k)
{
    return program_base(p, k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS]);
}

/*
 * The op to which each op's operands live, from the end to the front: run waits for a collective
 * before the next compute op that touches any of its base values, and the next collective that does
 * begins after it, so it is complete when that one is waited for (order.h; verify_memory.c derives
 * the same from vector clocks).
 */
static void find_until(struct placing *c, const struct function *f)
{
    const struct program *p = c->program;

    for (int v = 0; v < p->n_values; v++)
        c->awaited[v] = f->n_ops;
    for (int i = f->n_ops - 1; i >= 0; i--) {
        const struct op *op = &f->ops[i];

        c->until[i] = order_is_async(op) ? f->n_ops : i;
        for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++)
            c->until[i] = min_int(c->until[i], c->awaited[operand_base(p, op, k)]);
        for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++)
            if (operand_base(p, op, k))
                c->awaited[operand_base(p, op, k)] = c->until[i];
    }
}

static void find_lifetimes_in(struct placing *c, int function)
{
    const struct program *p = c->program;
    const struct function *f = &p->functions[function];

    for (int v = 0; v < p->n_values; v++)
        *lifetime_of(c, function, v) = (struct lifetime){ .first = 1, .last = 0 };
    memset(c->written, 0, (size_t)p->n_values);
    find_until(c, f);
    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];
        int end = c->until[i];

        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            int v = program_base(p, op->in[k]);

            if (!v || p->values[v].role != ROLE_NONE)
                continue;
            live_at(c, function, v, i, end);
            if (!c->written[v])
                c->stashed[v] = 1;
        }
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
            int v = program_base(p, op->out[k]);

            if (!v || p->values[v].role != ROLE_NONE)
                continue;
            live_at(c, function, v, i, end);
            c->written[v] = 1;
        }
    }
}

static enum segment segment_of_cell(const struct value *v)
{
    if (v->space == SPACE_HOST)
        return SEGMENT_HOST_CELLS;
    switch (v->role) {
    case ROLE_WEIGHT:
        return SEGMENT_WEIGHTS;
    case ROLE_MASTER:
    case ROLE_MOMENT1:
    case ROLE_MOMENT2:
        return SEGMENT_STATES;
    case ROLE_GRADIENT:
        return SEGMENT_GRADIENTS;
    case ROLE_CACHE:
        return SEGMENT_CACHE;
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
        size_t n_bytes = align_up(program_value_bytes(p, id), PLACE_ALIGNMENT);

        if (v->base || v->over)
            continue;
        if (c->stashed[id]) {
            v->scope = SCOPE_STASH;
            v->segment = p->stashes[v->stash].segment;
        } else if (v->role != ROLE_NONE) {
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

static bool is_used(const struct placing *c, int value)
{
    for (int f = 0; f < c->program->n_functions; f++) {
        const struct lifetime *l = lifetime_of(c, f, value);

        if (l->first <= l->last)
            return true;
    }
    return false;
}

static void take(struct placing *c, int value, int other)
{
    size_t begin = c->program->values[other].place_bytes;
    size_t n_bytes = align_up(program_value_bytes(c->program, other), PLACE_ALIGNMENT);

    if (c->seen[other] == value ||
        c->program->values[other].space != c->program->values[value].space)
        return;
    c->seen[other] = value;
    c->taken[c->n_taken++] = (struct byte_range){ begin, begin + n_bytes };
}

/* Add the ranges of all placed values that live at the same time as `value` in this function. */
static void take_of_function(struct placing *c, int function, int value)
{
    const struct calendar *calendar = &c->calendars[function];
    const struct lifetime *l = lifetime_of(c, function, value);
    int last = min_int(l->last, c->program->functions[function].n_ops - 1);

    if (l->first > l->last)
        return;
    for (int i = max_int(0, l->first - SHORT_LIFE); i <= last; i++)
        for (int v = calendar->born[i]; v; v = lifetime_of(c, function, v)->next)
            if (lifetime_of(c, function, v)->last >= l->first)
                take(c, value, v);
    for (int i = 0; i < calendar->n_lasting; i++) {
        const struct lifetime *other = lifetime_of(c, function, calendar->lasting[i]);

        if (other->first <= l->last && other->last >= l->first)
            take(c, value, calendar->lasting[i]);
    }
}

static void enter(struct placing *c, int function, int value)
{
    struct calendar *calendar = &c->calendars[function];
    struct lifetime *l = lifetime_of(c, function, value);

    if (l->first > l->last)
        return;
    if (l->last - l->first > SHORT_LIFE) {
        calendar->lasting[calendar->n_lasting++] = value;
        return;
    }
    l->next = calendar->born[l->first];
    calendar->born[l->first] = value;
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
    struct program *p = c->program;

    for (int id = 1; id < p->n_values; id++)
        if (!p->values[id].base && p->values[id].role == ROLE_NONE && !c->stashed[id] &&
            is_used(c, id))
            c->order[c->n_order++] = id;
    qsort_r(c->order, (size_t)c->n_order, sizeof *c->order, larger, p);
    for (int i = 0; i < c->n_order; i++) {
        struct value *v = &p->values[c->order[i]];
        size_t n_bytes = align_up(program_value_bytes(p, c->order[i]), PLACE_ALIGNMENT);

        c->n_taken = 0;
        for (int f = 0; f < p->n_functions; f++)
            take_of_function(c, f, c->order[i]);
        v->scope = SCOPE_PASS;
        v->segment = v->space == SPACE_HOST ? SEGMENT_HOST_SCRATCH : SEGMENT_SCRATCH;
        v->place_bytes = lowest_gap(c->taken, c->n_taken, n_bytes);
        for (int f = 0; f < p->n_functions; f++)
            enter(c, f, c->order[i]);
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
    struct placing c = { .program = program };

    c.written = arena_array(&arena, char, n_values);
    c.stashed = arena_array(&arena, char, n_values);
    c.order = arena_array(&arena, int, n_values);
    c.taken = arena_array(&arena, struct byte_range, n_values);
    c.seen = arena_array(&arena, int, n_values);
    c.lifetimes = arena_array(&arena, struct lifetime, n_values * n_functions);
    c.calendars = arena_array(&arena, struct calendar, n_functions);
    for (size_t f = 0; f < n_functions; f++) {
        c.calendars[f].born = arena_array(&arena, int, program->functions[f].n_ops);
        c.calendars[f].lasting = arena_array(&arena, int, n_values);
        n_ops = max_int(n_ops, program->functions[f].n_ops);
    }
    c.until = arena_array(&arena, int, n_ops);
    c.awaited = arena_array(&arena, int, n_values);
    memset(program->segment_bytes, 0, sizeof program->segment_bytes);
    for (int f = 0; f < program->n_functions; f++)
        find_lifetimes_in(&c, f);
    for (int id = 1; id < program->n_values; id++)
        c.stashed[id] |= program->values[id].role == ROLE_INPUT && !program->values[id].base;
    divide_stash(program, c.stashed);
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

        alike = a->base == b->base && a->over == b->over && a->role == b->role &&
                a->scope == b->scope && a->segment == b->segment &&
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
    larger->segment_bytes[v->segment] += align_up(program_value_bytes(p, id), PLACE_ALIGNMENT);
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
