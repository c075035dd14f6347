/*
 * verify_stash.c - what is read of a stash belongs to the micro-batch that reads it
 *
 * Slots are written again and again. Which micro-batch a slot holds follows from which functions
 * read and write a value, not from their ops: values that are used alike share one table of slots
 * here, so that all actions of a step are walked in little time.
 *
 * Where stashes share slots, a slot belongs to one of them at a time: as soon as another one writes
 * to it, nothing that was there before can be read.
 *
 * Where micro-batch m is in slot m % n and all micro-batches written so far followed one another,
 * the first and the last of them determine the contents of every slot, without a table. A round of
 * actions that leaves all such classes as it found them, but for the shift, finds the same when it
 * is repeated; and what a round only reads it finds as long as that has been written: so repeated
 * rounds need not be walked. This assumes nothing of how stash.c assigned the slots.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/order.h"
#include "program/verify_impl.h"

#define NEVER 0

/* What a function does to a value. A read after the function's own write finds what it wrote. */
enum { USE_READS_FIRST = 1, USE_WRITES = 2 };

/* Values of one stash that every function uses in the same way. */
struct use_class {
    int stash, is_loaded;
    unsigned char *uses; /* by function */
    int n_slots;
    int has_table; /* the contents of slots are in `holds`; else first and next determine them */
    int *holds;    /* by slot: micro-batch + 2 */
    int first,
        next; /* micro-batches first .. next - 1 were written, in this order; none if both are 0 */
    const int *slots; /* the stash's */
    int *owners; /* by slot, if the stash shares slots: 1 + the stash that owns it; else NULL */
};

/* A class that a function or a load uses. */
struct class_use {
    struct use_class *class;
    int uses;
};

struct class_list {
    struct class_use *list;
    int n;
};

struct stash_walk {
    const struct program *program;
    struct use_class *classes;
    struct use_class *then; /* first and next of each class, before the round */
    int n_classes;
    int *class_of; /* by base value: 1 + its class; 0: it is not in a stash */
    struct class_list *by_function, *by_stash, loaded;
    unsigned char **uses; /* by base value */
    struct verify_way *way;
    struct err *err;
};

static int slot_number(const struct use_class *c, int micro_batch)
{
    if (micro_batch < 0 || c->n_slots == 1)
        return 0;
    if (!c->slots)
        return micro_batch % c->n_slots;
    CHECK(c->slots[micro_batch] >= 0);
    CHECK(c->slots[micro_batch] < c->n_slots);
    return c->slots[micro_batch];
}

/* ---- classes ---- */

static void note_use(struct stash_walk *w, int function, int id, int use)
{
    unsigned char *uses = w->uses[program_base(w->program, id)];

    if (uses && (use == USE_WRITES || !(uses[function] & USE_WRITES)))
        uses[function] |= (unsigned char)use;
}

/* Operands in the order in which verify.c reads and writes them. */
static void note_op(struct stash_walk *w, int function, const struct op *op)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        note_use(w, function, op->in[k], USE_READS_FIRST);
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
        if (op->out[k] && verify_reads_output(w->program, op, k))
            note_use(w, function, op->out[k], USE_READS_FIRST);
        note_use(w, function, op->out[k], USE_WRITES);
    }
}

static bool is_alike(const struct stash_walk *w, const struct use_class *c, int id)
{
    const struct value *v = &w->program->values[id];

    return c->stash == v->stash && c->is_loaded == (v->role == ROLE_INPUT) &&
           !memcmp(c->uses, w->uses[id], (size_t)w->program->n_functions);
}

static void classify(struct stash_walk *w, struct arena *arena, int id)
{
    const struct value *v = &w->program->values[id];
    int c = 0;

    while (c < w->n_classes && !is_alike(w, &w->classes[c], id))
        c++;
    if (c == w->n_classes) {
        struct use_class *new = &w->classes[w->n_classes++];

        *new = (struct use_class){
            .stash = v->stash, .is_loaded = v->role == ROLE_INPUT, .uses = w->uses[id], .n_slots = 1
        };
        if (w->program->n_stashes) {
            new->n_slots = w->program->stashes[v->stash].n_slots;
            new->slots = w->program->stashes[v->stash].slots;
        }
        new->holds = arena_array(arena, int, new->n_slots);
    }
    w->class_of[id] = 1 + c;
}

static void add_class(struct arena *arena, const struct stash_walk *w, struct class_list *list,
                      int class, int uses)
{
    if (!list->list)
        list->list = arena_array(arena, struct class_use, w->n_classes);
    list->list[list->n++] = (struct class_use){ &w->classes[class], uses };
}

/* List the classes that each action uses, so that a walk visits no others. */
static void list_classes(struct stash_walk *w, struct arena *arena)
{
    const struct program *p = w->program;

    w->by_function = arena_array(arena, struct class_list, p->n_functions);
    w->by_stash = arena_array(arena, struct class_list, p->n_stashes + 1);
    for (int c = 0; c < w->n_classes; c++) {
        const struct use_class *class = &w->classes[c];

        for (int f = 0; f < p->n_functions; f++)
            if (class->uses[f])
                add_class(arena, w, &w->by_function[f], c, class->uses[f]);
        add_class(arena, w, &w->by_stash[class->stash], c, 0);
        if (class->is_loaded)
            add_class(arena, w, &w->loaded, c, USE_WRITES);
    }
}

static void find_owners(struct stash_walk *w, struct arena *arena)
{
    const struct program *p = w->program;
    int **owners = arena_array(arena, int *, p->n_stashes + 1);

    for (int i = 0; i < p->n_stashes; i++) {
        int k = 0;

        while (p->stashes[k].shared != p->stashes[i].shared)
            k++;
        if (p->stashes[i].shared)
            owners[i] = k < i ? owners[k] : arena_array(arena, int, p->stashes[i].n_slots);
    }
    for (int c = 0; c < w->n_classes; c++)
        w->classes[c].owners = owners[w->classes[c].stash];
}

static void find_classes(struct stash_walk *w, struct arena *arena)
{
    const struct program *p = w->program;
    int n = 0;

    w->uses = arena_array(arena, unsigned char *, p->n_values);
    w->class_of = arena_array(arena, int, p->n_values);
    for (int id = 1; id < p->n_values; id++)
        if (p->values[id].scope == SCOPE_STASH && program_base(p, id) == id) {
            w->uses[id] = arena_array(arena, unsigned char, p->n_functions);
            n++;
        }
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            note_op(w, f, &p->functions[f].ops[i]);
    w->classes = arena_array(arena, struct use_class, n);
    for (int id = 1; id < p->n_values; id++)
        if (w->uses[id])
            classify(w, arena, id);
    list_classes(w, arena);
    find_owners(w, arena);
}

/* ---- the walk ---- */

/* Nothing has been written. With in_full all classes have tables, with which tests compare the walk
 * without. */
static void clear(const struct stash_walk *w, struct use_class *c)
{
    c->first = c->next = 0;
    c->has_table = c->slots || c->owners || w->way->in_full;
    if (c->has_table)
        memset(c->holds, 0, sizeof *c->holds * (size_t)c->n_slots);
}

/* From now on the contents of slots are in the table. */
static void open_table(struct use_class *c)
{
    memset(c->holds, 0, sizeof *c->holds * (size_t)c->n_slots);
    for (int m = max_int(c->first, c->next - c->n_slots); m < c->next; m++)
        c->holds[slot_number(c, m)] = m + 2;
    c->has_table = 1;
}

/* The contents of a micro-batch's slot: the micro-batch + 2, or NEVER. */
static int held(const struct use_class *c, int micro_batch)
{
    int slot = slot_number(c, micro_batch);

    if (c->has_table)
        return c->owners && c->owners[slot] != 1 + c->stash ? NEVER : c->holds[slot];
    int last = c->next - 1 - slot;
    last = last < 0 ? -1 : last / c->n_slots * c->n_slots + slot;
    return last < c->first ? NEVER : last + 2;
}

static int holds_own(const struct use_class *c, int micro_batch)
{
    if (c->has_table || micro_batch < 0)
        return held(c, micro_batch) == micro_batch + 2;
    return c->first <= micro_batch && micro_batch < c->next && c->next - micro_batch <= c->n_slots;
}

static void own(const struct stash_walk *w, const struct use_class *c, int slot)
{
    const struct class_list *of_stash = &w->by_stash[c->stash];

    c->owners[slot] = 1 + c->stash;
    for (int i = 0; i < of_stash->n; i++)
        of_stash->list[i].class->holds[slot] = NEVER;
}

static void hold(const struct stash_walk *w, struct use_class *c, int micro_batch)
{
    if (!c->has_table) {
        if (c->first == c->next && micro_batch >= 0)
            c->first = c->next = micro_batch;
        c->next += micro_batch == c->next;
        if (micro_batch >= 0 && micro_batch == c->next - 1)
            return;
        open_table(c);
    }
    int slot = slot_number(c, micro_batch);
    if (c->owners && c->owners[slot] != 1 + c->stash)
        own(w, c, slot);
    c->holds[slot] = micro_batch + 2;
}

/* Refuse this operand if its slot holds another micro-batch. */
static int check_operand(const struct stash_walk *w, const struct action *a, const struct op *op,
                         int id)
{
    const struct program *p = w->program;
    int class = w->class_of[program_base(p, id)] - 1;

    if (class < 0 || !(w->classes[class].uses[a->function] & USE_READS_FIRST))
        return 0;
    int holds = held(&w->classes[class], a->micro_batch);
    if (holds == a->micro_batch + 2)
        return 0;
    return verify_complain(p, &p->functions[a->function], op, id,
                           holds == NEVER && !w->classes[class].owners
                               ? "is read before it is written"
                               : "is of another micro-batch: its slot was reused too early",
                           w->err);
}

/* A function reads a slot of another micro-batch: report the first op that does. */
static int name_reader(const struct stash_walk *w, const struct action *a)
{
    const struct function *f = &w->program->functions[a->function];

    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];

        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            if (check_operand(w, a, op, op->in[k]) < 0)
                return -1;
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (op->out[k] && verify_reads_output(w->program, op, k) &&
                check_operand(w, a, op, op->out[k]) < 0)
                return -1;
    }
    CHECK(!"an op that reads the slot");
}

static const struct class_list *list_of(const struct stash_walk *w, const struct action *a)
{
    static const struct class_list none = { 0 };

    if (a->kind == ACTION_LOAD)
        return &w->loaded;
    return a->kind == ACTION_RUN ? &w->by_function[a->function] : &none;
}

/* Returns 0 if the function reads a slot that does not hold its micro-batch. */
static int walk_action(struct stash_walk *w, const struct action *a)
{
    const struct class_list *list = list_of(w, a);

    w->way->n_walked_slots++;
    for (int i = 0; i < list->n; i++) {
        const struct class_use *u = &list->list[i];

        if ((u->uses & USE_READS_FIRST) && !holds_own(u->class, a->micro_batch))
            return 0;
        if (u->uses & USE_WRITES)
            hold(w, u->class, a->micro_batch);
    }
    return 1;
}

static int walk_actions(struct stash_walk *w, enum entry_kind kind, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        const struct action *a = &w->program->entries[kind].actions[i];

        if (walk_action(w, a))
            continue;
        name_reader(w, a);
        return err_add(w->err, "%s, micro-batch %d", entry_name(kind), a->micro_batch);
    }
    return 0;
}

/* ---- rounds ---- */

static void note_classes(struct stash_walk *w)
{
    for (int c = 0; c < w->n_classes; c++) {
        w->then[c].first = w->classes[c].first;
        w->then[c].next = w->classes[c].next;
    }
}

/* Whether an action's use of a class is correct in n_more repetitions of the round, given that it
 * was in this one. */
static int goes_on(const struct stash_walk *w, const struct class_use *u,
                   const struct order_rounds *part, int micro_batch, int n_more)
{
    const struct use_class *now = u->class, *then = &w->then[now - w->classes];

    if (now->has_table || micro_batch < 0)
        return 0;
    /* Written in every round: the state is the same, shifted. */
    if (now->next == then->next + part->shift && now->first == then->first &&
        then->first < then->next)
        return 1;
    /* Only read: the micro-batches of all repetitions have been written, and their slots are not
     * reused. */
    return now->next == then->next && !(u->uses & USE_WRITES) &&
           micro_batch + n_more * part->shift < now->next;
}

/* The round that ends before action `end` was walked. Whether n_more repetitions give the same
 * result. */
static bool is_known(const struct stash_walk *w, const struct entry *e,
                     const struct order_rounds *part, int end, int n_more)
{
    for (int i = end - part->n; i < end; i++) {
        const struct class_list *list = list_of(w, &e->actions[i]);

        for (int k = 0; k < list->n; k++)
            if (!goes_on(w, &list->list[k], part, e->actions[i].micro_batch, n_more))
                return false;
    }
    return true;
}

static void move_on(struct stash_walk *w, int n_more)
{
    for (int c = 0; c < w->n_classes; c++)
        w->classes[c].next += n_more * (w->classes[c].next - w->then[c].next);
}

/* The first round determines the result of the others, or else the second: before the first one
 * slots may be empty. */
static int walk_part(struct stash_walk *w, enum entry_kind kind, const struct order_rounds *part)
{
    const struct entry *e = &w->program->entries[kind];
    int n_more = part->n_times, begin = part->begin;

    for (int k = 0; k < 2 && n_more > 2 && !w->way->in_full; k++, begin += part->n) {
        note_classes(w);
        if (walk_actions(w, kind, begin, begin + part->n) < 0)
            return -1;
        n_more--;
        if (is_known(w, e, part, begin + part->n, n_more)) {
            move_on(w, n_more);
            return 0;
        }
    }
    return walk_actions(w, kind, begin, begin + n_more * part->n);
}

static int walk_entry(struct stash_walk *w, enum entry_kind kind, struct arena *arena)
{
    const struct entry *e = &w->program->entries[kind];
    int n_parts, status = 0;

    if (!e->n_actions)
        return 0;
    const struct order_rounds *parts = order_list_rounds(e, &n_parts, arena);
    for (int c = 0; c < w->n_classes; c++)
        clear(w, &w->classes[c]);
    for (int k = 0; k < n_parts && !status; k++)
        status = walk_part(w, kind, &parts[k]);
    return status;
}

int verify_stash(const struct program *program, struct verify_way *way, struct err *err)
{
    struct arena arena = { 0 };
    struct stash_walk w = { .program = program, .way = way, .err = err };
    int status = 0;

    find_classes(&w, &arena);
    w.then = arena_array(&arena, struct use_class, w.n_classes);
    for (int e = 0; e < N_ENTRIES && !status; e++)
        status = walk_entry(&w, (enum entry_kind)e, &arena);
    arena_release(&arena);
    return status;
}
