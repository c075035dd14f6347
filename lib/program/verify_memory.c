/*
 * verify_memory.c - nothing that lives at the same time overlaps
 *
 * Cells and stash values live forever as far as memory is concerned, so they must be disjoint: one
 * pass in the order of addresses. (Which of several stash values has a slot that they share is
 * checked by verify_stash.c.) Scratch values are swept over time, function by function, with the
 * live ones sorted by space and address: a new value can overlap only with its two neighbours. A
 * program of n ops is therefore checked in about n log n steps. Lifetimes are derived here again,
 * from order.h, and not taken from place.c.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "program/order.h"
#include "program/verify_impl.h"

struct memory_extent {
    size_t begin, end;
    int first, last; /* ops between which the value lives; scratch only */
    int value;
    enum space space; /* scratch only */
};

/* In bytes, with the gaps between rows of a view. */
static size_t length_of(const struct value *v)
{
    return (size_t)((v->rows - 1) * v->stride + v->cols) * dtype_bytes(v->dtype);
}

/* The end as an offset in its segment, or in a slot. */
static size_t end_of(const struct program *p, int id)
{
    return p->values[id].place_bytes + length_of(&p->values[id]);
}

static int overlap(const struct program *p, const char *where, int a, int b, struct err *err)
{
    char x[32], y[32];

    return err_set(err, ERR_FAILED, "program: %s: %s and %s overlap in memory", where,
                   verify_value_text(p, a, x, sizeof x), verify_value_text(p, b, y, sizeof y));
}

/* ---- bounds ---- */

static size_t limit_of(const struct program *p, const struct value *v)
{
    return v->scope == SCOPE_STASH ? p->stashes[v->stash].slot_bytes : p->segment_bytes[v->segment];
}

static int check_inside(const struct program *p, struct err *err)
{
    char text[32];

    for (int id = 1; id < p->n_values; id++) {
        const struct value *v = &p->values[id];

        if (program_base(p, id) != id) {
            const struct value *base = &p->values[program_base(p, id)];

            if (v->segment != base->segment || v->place_bytes < base->place_bytes ||
                end_of(p, id) > end_of(p, program_base(p, id)))
                return err_set(err, ERR_FAILED, "program: view %s does not lie inside its base",
                               verify_value_text(p, id, text, sizeof text));
        } else if (end_of(p, id) > limit_of(p, v)) {
            /* A value that no function uses has no memory. */
            if (!program_is_lasting(v) && !v->place_bytes && v->segment == SEGMENT_WEIGHTS)
                continue;
            return err_set(err, ERR_FAILED, "program: %s ends outside segment %s",
                           verify_value_text(p, id, text, sizeof text), segment_name(v->segment));
        }
        if (segment_space(v->segment) != v->space)
            return err_set(err, ERR_FAILED,
                           "program: %s lies in segment %s, wanted memory of the %s",
                           verify_value_text(p, id, text, sizeof text), segment_name(v->segment),
                           space_name(v->space));
    }
    return 0;
}

/* ---- stashes ---- */

/* The first stash that shares the slots of stash i; i itself if none before it does. */
static int first_sharer(const struct program *p, int i)
{
    for (int k = 0; k < i; k++)
        if (p->stashes[i].shared && p->stashes[k].shared == p->stashes[i].shared)
            return k;
    return i;
}

/* By stash: whether an entry uses it that is ENTRY_RERUN (is_rerun), or another one. */
static char *stash_users(const struct program *p, bool is_rerun, struct arena *arena)
{
    char *users = arena_array(arena, char, p->n_stashes + 1);
    char *runs = arena_array(arena, char, p->n_functions), loads = 0;

    for (int e = 0; e < N_ENTRIES; e++)
        for (int i = 0; (e == ENTRY_RERUN) == is_rerun && i < p->entries[e].n_actions; i++) {
            const struct action *a = &p->entries[e].actions[i];

            loads |= a->kind == ACTION_LOAD;
            if (a->kind == ACTION_RUN)
                runs[a->function] = 1;
        }
    for (int id = 1; id < p->n_values && p->n_stashes; id++)
        if (loads && p->values[id].role == ROLE_INPUT && p->values[id].scope == SCOPE_STASH)
            users[p->values[id].stash] = 1;
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; runs[f] && i < p->functions[f].n_ops; i++)
            for (int k = 0; k < OPS_MAX_INPUTS + OPS_MAX_OUTPUTS; k++) {
                const struct op *op = &p->functions[f].ops[i];
                int id = k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
                const struct value *v = &p->values[program_base(p, id)];

                if (v->scope == SCOPE_STASH && p->n_stashes)
                    users[v->stash] = 1;
            }
    return users;
}

static int check_stash(const struct program *p, int i, size_t *ends, struct err *err)
{
    const struct stash *stash = &p->stashes[i], *first = &p->stashes[first_sharer(p, i)];

    if (first != stash &&
        (first->begin_bytes != stash->begin_bytes || first->n_slots != stash->n_slots ||
         first->slot_bytes != stash->slot_bytes || first->segment != stash->segment))
        return err_set(err, ERR_FAILED, "program: stash %d shares slots that lie elsewhere", i);
    if (first != stash)
        return 0;
    if (stash->n_slots < 1 || stash->begin_bytes < ends[stash->segment])
        return err_set(err, ERR_FAILED, "program: stash %d overlaps the one before", i);
    ends[stash->segment] = stash->begin_bytes + (size_t)stash->n_slots * stash->slot_bytes;
    if (ends[stash->segment] > p->segment_bytes[stash->segment])
        return err_set(err, ERR_FAILED, "program: the last stash ends outside segment %s",
                       segment_name(stash->segment));
    return 0;
}

/*
 * Of those that one entry uses, each begins at the end of the one before with all of its slots, or
 * where the slots begin that it shares; those that other entries use as well come first.
 */
static int check_stashes(const struct program *p, const char *users, const char *others,
                         struct err *err)
{
    size_t ends[N_SEGMENTS] = { 0 };

    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < p->n_stashes; i++)
            if (users[i] && others[i] == !turn && check_stash(p, i, ends, err) < 0)
                return -1;
    return 0;
}

/* ---- cells and stash: by address ---- */

static int by_address(const void *a, const void *b)
{
    const struct memory_extent *x = a, *y = b;

    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : x->value - y->value;
}

static int check_lasting(const struct program *p, enum segment segment,
                         struct memory_extent *extents, struct err *err)
{
    int n = 0;

    for (int id = 1; id < p->n_values; id++) {
        const struct value *v = &p->values[id];

        if (program_base(p, id) == id && v->segment == segment && program_is_lasting(v) &&
            v->scope != SCOPE_STASH)
            extents[n++] =
                (struct memory_extent){ v->place_bytes, v->place_bytes + length_of(v), 0, 0, id,
                                        v->space };
    }
    qsort(extents, (size_t)n, sizeof *extents, by_address);
    for (int i = 1; i < n; i++)
        if (extents[i].begin < extents[i - 1].end)
            return overlap(p, segment_name(segment), extents[i - 1].value, extents[i].value, err);
    return 0;
}

/*
 * In slot 0, of these stashes. Values of one stash are disjoint. Values of stashes that share slots
 * are disjoint or begin at one offset; those have a common user (order.h).
 */
static int check_slots(const struct program *p, enum segment segment, const char *users,
                       struct memory_extent *extents, struct err *err)
{
    size_t end = 0;
    int n = 0;

    for (int id = 1; id < p->n_values; id++) {
        const struct value *v = &p->values[id];
        size_t begin = v->place_bytes;

        if (program_base(p, id) != id || v->scope != SCOPE_STASH || v->segment != segment ||
            !p->n_stashes || !users[v->stash])
            continue;
        begin += p->stashes[v->stash].begin_bytes;
        extents[n++] = (struct memory_extent){ begin, begin + length_of(v), 0, 0, id, v->space };
    }
    qsort(extents, (size_t)n, sizeof *extents, by_address);
    for (int i = 1; i < n; i++) {
        const struct memory_extent *e = &extents[i];

        end = extents[i - 1].end > end ? extents[i - 1].end : end;
        for (int k = i - 1; k >= 0 && extents[k].begin == e->begin; k--)
            if (p->values[extents[k].value].stash == p->values[e->value].stash)
                return overlap(p, "stash", extents[k].value, e->value, err);
        if (e->begin < end && e->begin != extents[i - 1].begin)
            return overlap(p, "stash", extents[i - 1].value, e->value, err);
    }
    return 0;
}

/* ---- values over others ---- */

/* What the shared memory of a value and the one that it is over holds, in the current function. */
enum content { CONTENT_OTHER, CONTENT_UNDER, CONTENT_OVER };

struct overlays {
    const struct program *program;
    const struct function *function;
    int *lodger;           /* by value: a value that is over it or a view of it, 0 none */
    int *next;             /* by value that is over another: the next one over the same base */
    char *is_output;       /* by value that is over another: the op between them writes it */
    enum content *content; /* likewise */
    struct err *err;
};

static int complain(const struct overlays *o, const struct op *op, int id, const char *what)
{
    char text[32];

    return err_set(o->err, ERR_FAILED, "program: %s: %s: %s %s", o->function->name,
                   op_info(op->kind)->name, verify_value_text(o->program, id, text, sizeof text),
                   what);
}

/* The base of an operand, without following `over`. */
static int value_of(const struct overlays *o, int operand)
{
    int base = o->program->values[operand].base;

    return base ? base : operand;
}

/* Whether the op is the one between a value and the one that it is over. */
static int turns(const struct overlays *o, const struct op *op, int k, int lodger)
{
    const struct value *over = &o->program->values[lodger];
    const struct value *under = &o->program->values[over->over];
    int from = o->is_output[lodger] ? over->over : lodger;
    int to = o->is_output[lodger] ? lodger : over->over;

    return k == 0 && (op_info(op->kind)->outputs[0].flags & OPERAND_IN_PLACE) &&
           op->in[OPS_FIRST] == from && op->out[OPS_FIRST] == to && over->rows == under->rows &&
           over->cols == under->cols && over->dtype == under->dtype &&
           over->stride == under->stride && over->offset == under->offset;
}

static int check_input(const struct overlays *o, const struct op *op, int id)
{
    const struct program *p = o->program;
    int value = value_of(o, id);

    if (p->values[value].over && o->content[value] == CONTENT_UNDER)
        return complain(o, op, id,
                        o->is_output[value] ? "is read before it is written over another value"
                                            : "is read where it was written over");
    for (int l = o->lodger[value]; l; l = o->next[l]) {
        if (!program_overlap(p, id, p->values[l].over))
            continue;
        if (o->content[l] == CONTENT_OVER || (o->is_output[l] && o->content[l] != CONTENT_UNDER))
            return complain(o, op, id, "is read where another value lies over it");
    }
    return 0;
}

static int check_output(const struct overlays *o, const struct op *op, int k)
{
    const struct program *p = o->program;
    int id = op->out[k], value = value_of(o, id);

    for (int l = o->lodger[value]; l; l = o->next[l]) {
        if (!program_overlap(p, id, p->values[l].over))
            continue;
        if (o->content[l] == CONTENT_OVER && !turns(o, op, k, l))
            return complain(o, op, id, "is written where another value lies over it");
        o->content[l] = CONTENT_UNDER;
    }
    if (!p->values[value].over)
        return 0;
    if (o->is_output[value] ? !turns(o, op, k, value) : o->content[value] == CONTENT_UNDER)
        return complain(o, op, id, "cannot be written over another value here");
    o->content[value] = CONTENT_OVER;
    return 0;
}

static int check_overlays(struct overlays *o)
{
    const struct program *p = o->program;

    memset(o->content, 0, sizeof *o->content * (size_t)p->n_values);
    for (int i = 0; i < o->function->n_ops; i++) {
        const struct op *op = &o->function->ops[i];

        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            if (op->in[k] && check_input(o, op, op->in[k]) < 0)
                return -1;
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (op->out[k] && check_output(o, op, k) < 0)
                return -1;
    }
    for (int id = 1; id < p->n_values; id++)
        if (p->values[id].over &&
            o->content[id] == (o->is_output[id] ? CONTENT_UNDER : CONTENT_OVER))
            return complain(o, &o->function->ops[0], o->is_output[id] ? p->values[id].over : id,
                            "is not written over in the end");
    return 0;
}

/* The direction of the pair: a value that is over another is the input of the op between them if
 * that writes the other. */
static void find_directions(struct overlays *o, const struct function *f)
{
    for (int i = 0; i < f->n_ops; i++) {
        int in = f->ops[i].in[OPS_FIRST];

        if (in && o->program->values[in].over &&
            o->program->values[in].over == f->ops[i].out[OPS_FIRST])
            o->is_output[in] = 0;
    }
}

int verify_in_place(const struct program *program, struct err *err)
{
    struct arena arena = { 0 };
    struct overlays o = { .program = program,
                          .lodger = arena_array(&arena, int, program->n_values),
                          .next = arena_array(&arena, int, program->n_values),
                          .is_output = arena_array(&arena, char, program->n_values),
                          .content = arena_array(&arena, enum content, program->n_values),
                          .err = err };
    int status = 0;

    for (int id = 1; id < program->n_values; id++) {
        int under = program->values[id].over, whole = program_whole(program, under);

        if (!under)
            continue;
        o.is_output[id] = 1;
        o.next[id] = o.lodger[whole];
        o.lodger[whole] = id;
    }
    for (int f = 0; f < program->n_functions; f++)
        find_directions(&o, &program->functions[f]);
    for (int f = 0; !status && f < program->n_functions; f++) {
        o.function = &program->functions[f];
        status = check_overlays(&o);
    }
    arena_release(&arena);
    return status;
}

/* ---- scratch: by time ---- */

/* index[v]: 1 + the index of v's extent, of its last stay; 0 if it has none yet. */
static void extend(const struct program *p, struct memory_extent *extents, int *n, int *index,
                   int id, int begin, int end)
{
    int v = program_base(p, id);

    if (!v || p->values[v].scope != SCOPE_PASS || program_is_lasting(&p->values[v]))
        return;
    if (!index[v]) {
        extents[*n] = (struct memory_extent){ p->values[v].place_bytes, end_of(p, v), begin, end, v,
                                              p->values[v].space };
        index[v] = ++*n;
    }
    struct memory_extent *e = &extents[index[v] - 1];
    e->first = min_int(e->first, begin);
    e->last = max_int(e->last, end);
}

/* A value that is brought again has another extent, unless it is still in use. */
static void part_from_last_stay(const struct program *p, const struct memory_extent *extents,
                                int *index, int id, int now)
{
    int v = program_base(p, id);

    if (index[v] && extents[index[v] - 1].last < now)
        index[v] = 0;
}

/* List extents in order of birth. They live until all ops that touch them are known to be
 * complete. */
static int list_extents(const struct program *p, int function, struct memory_extent *extents,
                        int *index, int *completed_at)
{
    const struct function *f = &p->functions[function];
    int n = 0;

    order_completion(p, function, completed_at);
    for (int i = 0; i < f->n_ops; i++) {
        int end = order_is_async(&f->ops[i]) ? completed_at[i] - 1 : i;

        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            extend(p, extents, &n, index, f->ops[i].in[k], i, end);
        if (f->ops[i].kind == OP_TO_DEVICE)
            part_from_last_stay(p, extents, index, f->ops[i].out[TO_DEVICE_Y], i);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            extend(p, extents, &n, index, f->ops[i].out[k], i, end);
    }
    for (int i = 0; i < n; i++)
        index[extents[i].value] = 0;
    return n;
}

/* Remove extents that died before `now`; the order stays. */
static int bury(const struct memory_extent **live, int n, int now)
{
    int kept = 0;

    for (int i = 0; i < n; i++)
        if (live[i]->last >= now)
            live[kept++] = live[i];
    return kept;
}

static bool is_behind(const struct memory_extent *a, const struct memory_extent *b)
{
    return a->space != b->space ? a->space > b->space : a->begin > b->begin;
}

/* The first of live[n], which are sorted by space and address, that is after e. */
static int position(const struct memory_extent *const *live, int n, const struct memory_extent *e)
{
    int low = 0, high = n;

    while (low < high) {
        int middle = (low + high) / 2;

        if (!is_behind(live[middle], e))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Scratch arrays, large enough for any function. */
struct sweep {
    struct memory_extent *extents;
    const struct memory_extent **live;
    int *index, *completed_at;
};

static int check_function(const struct program *p, int function, const struct sweep *s,
                          struct err *err)
{
    struct memory_extent *extents = s->extents;
    const struct memory_extent **live = s->live;
    const char *name = p->functions[function].name;
    int n = list_extents(p, function, extents, s->index, s->completed_at), n_live = 0;

    for (int i = 0; i < n; i++) {
        const struct memory_extent *e = &extents[i];

        if (i == 0 || e->first != extents[i - 1].first)
            n_live = bury(live, n_live, e->first);
        int at = position(live, n_live, e);
        if (at > 0 && live[at - 1]->space == e->space && live[at - 1]->end > e->begin)
            return overlap(p, name, live[at - 1]->value, e->value, err);
        if (at < n_live && live[at]->space == e->space && live[at]->begin < e->end)
            return overlap(p, name, e->value, live[at]->value, err);
        memmove(live + at + 1, live + at, sizeof *live * (size_t)(n_live - at));
        live[at] = e;
        n_live++;
    }
    return 0;
}

int verify_memory(const struct program *program, struct err *err)
{
    struct arena arena = { 0 };
    int n_ops = 0;

    for (int f = 0; f < program->n_functions; f++)
        n_ops = max_int(n_ops, program->functions[f].n_ops);
    int n_extents = program->n_values + n_ops;
    struct sweep sweep = { arena_array(&arena, struct memory_extent, n_extents),
                           arena_array(&arena, const struct memory_extent *, n_extents),
                           arena_array(&arena, int, program->n_values),
                           arena_array(&arena, int, n_ops) };
    const char *step = stash_users(program, false, &arena);
    const char *rerun = stash_users(program, true, &arena);
    int status = check_inside(program, err) || check_stashes(program, step, rerun, err) ||
                         check_stashes(program, rerun, step, err)
                     ? -1
                     : 0;

    for (int s = 0; !status && s < N_SEGMENTS; s++)
        if (check_slots(program, (enum segment)s, step, sweep.extents, err) < 0 ||
            check_slots(program, (enum segment)s, rerun, sweep.extents, err) < 0 ||
            check_lasting(program, (enum segment)s, sweep.extents, err) < 0)
            status = -1;
    for (int f = 0; !status && f < program->n_functions; f++)
        status = check_function(program, f, &sweep, err);
    arena_release(&arena);
    return status;
}
