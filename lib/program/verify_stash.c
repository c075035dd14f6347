/*
 * verify_stash.c - what is read of a stash is of the micro-batch that reads it
 *
 * Slots are written again and again. Which micro-batch a slot holds follows from which functions
 * read and write a value, not from their ops: values that are alike in that share one table of
 * slots here, so that all actions of a step are walked in little time, however many there are.
 *
 * Where stashes share slots, a slot is of one of them at a time: as soon as another writes anything
 * to it, nothing that was there before can be read.
 */
#include <string.h>

#include "base/num.h"
#include "program/verify_impl.h"

#define NEVER 0

/* What a function does to a value: a read after its own write finds what it wrote. */
enum { USE_READS_FIRST = 1, USE_WRITES = 2 };

/* Values of one stash that each function uses alike. */
struct use_class {
    int stash, is_loaded;
    unsigned char *uses; /* by function */
    int *holds;          /* by slot: micro-batch + 2 */
};

struct class_list {
    int *classes, n;
};

struct stash_walk {
    const struct program *program;
    struct use_class *classes;
    int n_classes;
    int *class_of; /* by base value: 1 + its class; 0: it is not in a stash */
    struct class_list *by_function, *by_stash, loaded;
    int *
        *owners; /* by stash: of the slots that it shares, 1 + the stash whose each is; else NULL */
    unsigned char **uses; /* by base value */
    struct err *err;
};

static int n_slots_of(const struct program *p, const struct use_class *c)
{
    return p->n_stashes ? p->stashes[c->stash].n_slots : 1;
}

static int slot_number(const struct program *p, const struct use_class *c, int micro_batch)
{
    const int *slots = p->n_stashes ? p->stashes[c->stash].slots : NULL;

    if (micro_batch < 0)
        return 0;
    if (!slots)
        return micro_batch % n_slots_of(p, c);
    CHECK(slots[micro_batch] >= 0);
    CHECK(slots[micro_batch] < n_slots_of(p, c));
    return slots[micro_batch];
}

/* ---- classes ---- */

static void note_use(struct stash_walk *w, int function, int id, int use)
{
    unsigned char *uses = w->uses[program_base(w->program, id)];

    if (uses && (use == USE_WRITES || !(uses[function] & USE_WRITES)))
        uses[function] |= (unsigned char)use;
}

/* In the order in which verify.c reads and writes them. */
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

static int is_alike(const struct stash_walk *w, const struct use_class *c, int id)
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

        *new = (struct use_class){ v->stash, v->role == ROLE_INPUT, w->uses[id], NULL };
        new->holds = arena_array(arena, int, n_slots_of(w->program, new));
    }
    w->class_of[id] = 1 + c;
}

static void add_class(struct arena *arena, const struct stash_walk *w, struct class_list *list,
                      int class)
{
    if (!list->classes)
        list->classes = arena_array(arena, int, w->n_classes);
    list->classes[list->n++] = class;
}

/* Which classes an action has to do with, so that it asks for no others. */
static void list_classes(struct stash_walk *w, struct arena *arena)
{
    const struct program *p = w->program;

    w->by_function = arena_array(arena, struct class_list, p->n_functions);
    w->by_stash = arena_array(arena, struct class_list, p->n_stashes + 1);
    for (int c = 0; c < w->n_classes; c++) {
        const struct use_class *class = &w->classes[c];

        for (int f = 0; f < p->n_functions; f++)
            if (class->uses[f])
                add_class(arena, w, &w->by_function[f], c);
        add_class(arena, w, &w->by_stash[class->stash], c);
        if (class->is_loaded)
            add_class(arena, w, &w->loaded, c);
    }
}

static void list_owners(struct stash_walk *w, struct arena *arena)
{
    const struct program *p = w->program;

    w->owners = arena_array(arena, int *, p->n_stashes + 1);
    for (int i = 0; i < p->n_stashes; i++) {
        int k = 0;

        while (p->stashes[k].shared != p->stashes[i].shared)
            k++;
        if (p->stashes[i].shared)
            w->owners[i] = k < i ? w->owners[k] : arena_array(arena, int, p->stashes[i].n_slots);
    }
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
    list_owners(w, arena);
}

/* ---- the walk ---- */

/* What it holds of the micro-batch's slot: its number + 2, that of another, or NEVER. */
static int held(const struct stash_walk *w, const struct use_class *c, int micro_batch)
{
    int slot = slot_number(w->program, c, micro_batch);
    const int *owners = w->owners[c->stash];

    return owners && owners[slot] != 1 + c->stash ? NEVER : c->holds[slot];
}

static void hold(const struct stash_walk *w, const struct use_class *c, int micro_batch)
{
    int slot = slot_number(w->program, c, micro_batch);
    const struct class_list *list = &w->by_stash[c->stash];
    int *owners = w->owners[c->stash];

    if (owners && owners[slot] != 1 + c->stash) {
        owners[slot] = 1 + c->stash;
        for (int i = 0; i < list->n; i++)
            w->classes[list->classes[i]].holds[slot] = NEVER;
    }
    c->holds[slot] = micro_batch + 2;
}

/* If this operand is the first of its function to be read from a slot of another micro-batch. */
static int check_operand(const struct stash_walk *w, const struct action *a, const struct op *op,
                         int id)
{
    const struct program *p = w->program;
    int class = w->class_of[program_base(p, id)] - 1;

    if (class < 0 || !(w->classes[class].uses[a->function] & USE_READS_FIRST))
        return 0;
    int holds = held(w, &w->classes[class], a->micro_batch);
    if (holds == a->micro_batch + 2)
        return 0;
    return verify_complain(p, &p->functions[a->function], op, id,
                           holds == NEVER && !w->owners[w->classes[class].stash]
                               ? "is read before it is written"
                               : "is of another micro-batch: its slot was reused too early",
                           w->err);
}

/* A function reads what is not there: which of its ops? */
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

static int run_function(const struct stash_walk *w, const struct action *a)
{
    const struct class_list *list = &w->by_function[a->function];

    for (int i = 0; i < list->n; i++) {
        const struct use_class *c = &w->classes[list->classes[i]];

        if ((c->uses[a->function] & USE_READS_FIRST) &&
            held(w, c, a->micro_batch) != a->micro_batch + 2)
            return name_reader(w, a);
        if (c->uses[a->function] & USE_WRITES)
            hold(w, c, a->micro_batch);
    }
    return 0;
}

static int walk_entry(const struct stash_walk *w, enum entry_kind kind)
{
    const struct entry *e = &w->program->entries[kind];

    for (int c = 0; c < w->n_classes; c++)
        memset(w->classes[c].holds, 0,
               sizeof(int) * (size_t)n_slots_of(w->program, &w->classes[c]));
    for (int i = 0; i < e->n_actions; i++) {
        const struct action *a = &e->actions[i];

        for (int k = 0; a->kind == ACTION_LOAD && k < w->loaded.n; k++)
            hold(w, &w->classes[w->loaded.classes[k]], a->micro_batch);
        if (a->kind == ACTION_RUN && run_function(w, a) < 0)
            return err_add(w->err, "%s, micro-batch %d", entry_name(kind), a->micro_batch);
    }
    return 0;
}

int verify_stash(const struct program *program, struct err *err)
{
    struct arena arena = { 0 };
    struct stash_walk w = { .program = program, .err = err };
    int status = 0;

    find_classes(&w, &arena);
    for (int e = 0; e < N_ENTRIES && !status; e++)
        status = walk_entry(&w, (enum entry_kind)e);
    arena_release(&arena);
    return status;
}
