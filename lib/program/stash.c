/*
 * stash.c - slots, from the order of the actions
 */
#include "program/stash_impl.h"

#include <string.h>

#include "base/num.h"

/* The functions that touch a value, whether LOAD does, and where it lies. */
struct touchers {
    uint64_t *functions; /* bits */
    int loaded;
    enum space space;
};

struct dividing {
    struct program *program;
    const char *marked;
    int n_words;
    struct touchers *of_value, *of_stash;
    int *first, *last; /* by micro-batch: the action that touches it first, last + 1; 0 none */
    int *until;        /* by slot: the last of the micro-batch in it */
    int *at, n_at;     /* the actions that touch any, in order */
    int n_micro_batches;
};

static void touch(struct dividing *d, int id, int function)
{
    int base = program_base(d->program, id);

    if (base && d->marked[base])
        d->of_value[base].functions[function / 64] |= (uint64_t)1 << function % 64;
}

static void find_touchers(struct dividing *d)
{
    const struct program *p = d->program;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            for (int k = 0; k < OPS_MAX_INPUTS; k++)
                touch(d, p->functions[f].ops[i].in[k], f);
            for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
                touch(d, p->functions[f].ops[i].out[k], f);
        }
}

static int alike(const struct dividing *d, const struct touchers *a, const struct touchers *b)
{
    return a->loaded == b->loaded && a->space == b->space &&
           !memcmp(a->functions, b->functions, sizeof(uint64_t) * (size_t)d->n_words);
}

static void divide(struct dividing *d)
{
    struct program *p = d->program;

    p->n_stashes = 0;
    for (int id = 1; id < p->n_values; id++) {
        int stash = 0;

        if (!d->marked[id])
            continue;
        while (stash < p->n_stashes && !alike(d, &d->of_stash[stash], &d->of_value[id]))
            stash++;
        if (stash == p->n_stashes)
            d->of_stash[p->n_stashes++] = d->of_value[id];
        p->values[id].stash = stash;
    }
}

static int touches(const struct touchers *t, const struct action *a)
{
    if (a->kind == ACTION_LOAD)
        return t->loaded;
    return a->kind == ACTION_RUN && (t->functions[a->function / 64] >> a->function % 64 & 1);
}

/* When each micro-batch is touched first and last. */
static void find_lives(struct dividing *d, const struct touchers *t, const struct entry *e)
{
    size_t n_bytes = sizeof(int) * (size_t)d->n_micro_batches;

    d->n_at = 0;
    memset(d->first, 0, n_bytes);
    memset(d->last, 0, n_bytes);
    for (int i = 0; i < e->n_actions; i++) {
        int m = e->actions[i].micro_batch;

        if (m < 0 || !touches(t, &e->actions[i]))
            continue;
        if (!d->first[m])
            d->first[m] = i + 1;
        d->last[m] = i + 1;
        d->at[d->n_at++] = i;
    }
}

/* The most that live at one time: no fewer slots will do. */
static int count_living(const struct dividing *d, const struct entry *e)
{
    int living = 0, most = 1;

    for (int k = 0; k < d->n_at; k++) {
        int i = d->at[k], m = e->actions[i].micro_batch;

        living += d->first[m] == i + 1;
        most = max_int(most, living);
        living -= d->last[m] == i + 1;
    }
    return most;
}

/* Does a micro-batch find its slot taken by one that still lives? */
static int do_meet(struct dividing *d, const struct entry *e, int n_slots)
{
    memset(d->until, 0, sizeof(int) * (size_t)n_slots);
    for (int k = 0; k < d->n_at; k++) {
        int i = d->at[k], m = e->actions[i].micro_batch;

        if (d->first[m] != i + 1)
            continue;
        if (d->until[m % n_slots] > i + 1)
            return 1;
        d->until[m % n_slots] = d->last[m];
    }
    return 0;
}

/* The fewest, and at least so many, with which no two meet in one entry. */
static int count_slots(struct dividing *d, const struct touchers *t, const struct entry *e,
                       int at_least)
{
    if (!e->n_actions)
        return at_least;
    find_lives(d, t, e);
    int n = max_int(at_least, count_living(d, e));
    while (do_meet(d, e, n))
        n++;
    return n;
}

/* What suits one entry may not suit another that was asked before: until all others agree. */
static int count_slots_of_all(struct dividing *d, const struct touchers *t)
{
    int n = 1, n_agree = 0;

    for (int e = 0; n_agree < N_ENTRIES; e = (e + 1) % N_ENTRIES) {
        int before = n;

        n = count_slots(d, t, &d->program->entries[e], n);
        n_agree = n == before ? n_agree + 1 : 1;
    }
    return n;
}

static int n_micro_batches(const struct program *p)
{
    int n = 0;

    for (int e = 0; e < N_ENTRIES; e++)
        for (int i = 0; i < p->entries[e].n_actions; i++)
            n = max_int(n, p->entries[e].actions[i].micro_batch + 1);
    return n;
}

static int most_actions(const struct program *p)
{
    int n = 0;

    for (int e = 0; e < N_ENTRIES; e++)
        n = max_int(n, p->entries[e].n_actions);
    return n;
}

void divide_stash(struct program *program, const char *marked)
{
    struct arena arena = { 0 };
    size_t n_values = (size_t)program->n_values;
    struct dividing d = { .program = program,
                          .marked = marked,
                          .n_words = program->n_functions / 64 + 1,
                          .n_micro_batches = n_micro_batches(program) };

    d.of_value = arena_array(&arena, struct touchers, n_values);
    d.of_stash = arena_array(&arena, struct touchers, n_values);
    d.first = arena_array(&arena, int, d.n_micro_batches);
    d.last = arena_array(&arena, int, d.n_micro_batches);
    d.at = arena_array(&arena, int, most_actions(program));
    d.until = arena_array(&arena, int, max_int(d.n_micro_batches, 1));
    for (int id = 1; id < program->n_values; id++)
        if (marked[id]) {
            d.of_value[id].functions = arena_array(&arena, uint64_t, d.n_words);
            d.of_value[id].loaded = program->values[id].role == ROLE_INPUT;
            d.of_value[id].space = program->values[id].space;
        }
    find_touchers(&d);
    divide(&d);
    program->stashes = arena_array(&program->arena, struct stash, program->n_stashes + 1);
    for (int i = 0; i < program->n_stashes; i++) {
        int is_host = d.of_stash[i].space == SPACE_HOST;

        program->stashes[i].segment = is_host ? SEGMENT_HOST_STASH : SEGMENT_STASH;
        program->stashes[i].n_slots = count_slots_of_all(&d, &d.of_stash[i]);
    }
    arena_release(&arena);
}
