/*
 * stash.c - slots of the stash, from the order of the actions
 *
 * Values that the same functions touch live equally long, so they form one stash, and a slot holds
 * all of them for one micro-batch. The number of slots is the smallest n with which micro-batches m
 * and m + n never live at the same time in any entry: under 1F1B that is the number of
 * micro-batches in flight on this stage, pp_size - pp_rank.
 */
#include "program/stash_impl.h"

#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/order.h"

/* ---- the functions that touch a value ---- */

static void touch(struct dividing *d, int id, int function)
{
    int base = program_base(d->program, id);

    if (base && d->marked[base])
        d->of_value[base].functions[function / 64] |= (uint64_t)1 << function % 64;
}

static void find_touchers(struct dividing *d)
{
    const struct program *p = d->program;

    for (int id = 1; id < p->n_values; id++)
        if (d->marked[id]) {
            d->of_value[id].functions = arena_array(d->arena, uint64_t, d->n_words);
            d->of_value[id].loaded = p->values[id].role == ROLE_INPUT;
            d->of_value[id].space = p->values[id].space;
        }
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            for (int k = 0; k < OPS_MAX_INPUTS; k++)
                touch(d, p->functions[f].ops[i].in[k], f);
            for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
                touch(d, p->functions[f].ops[i].out[k], f);
        }
}

static bool alike(const struct dividing *d, const struct touchers *a, const struct touchers *b)
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

static void list_touched(struct dividing *d)
{
    const struct program *p = d->program;

    d->by_function = arena_array(d->arena, struct touched, p->n_functions);
    d->loaded.stashes = arena_array(d->arena, int, p->n_stashes);
    for (int f = 0; f < p->n_functions; f++) {
        struct touched *t = &d->by_function[f];

        t->stashes = arena_array(d->arena, int, p->n_stashes);
        for (int s = 0; s < p->n_stashes; s++)
            if (d->of_stash[s].functions[f / 64] >> f % 64 & 1)
                t->stashes[t->n++] = s;
    }
    for (int s = 0; s < p->n_stashes; s++)
        if (d->of_stash[s].loaded)
            d->loaded.stashes[d->loaded.n++] = s;
}

/* ---- lifetimes ---- */

/* Extend lifetimes by an action of the part, in each of its repetitions. */
static void note_touches(struct dividing *d, const struct entry *e, struct stash_lives *lives,
                         int i, const struct order_rounds *part)
{
    const struct action *a = &e->actions[i];
    const struct touched *t = a->kind == ACTION_RUN ? &d->by_function[a->function] : &d->loaded;

    for (int k = 0; a->micro_batch >= 0 && k < t->n; k++) {
        struct stash_life *life = life_of(lives, t->stashes[k], a->micro_batch);
        int now = i + 1;

        for (int n = 0; n < part->n_times; n++, now += part->n, life += part->shift) {
            life->first = life->first ? min_int(life->first, now) : now;
            life->last = max_int(life->last, now);
        }
    }
}

static void find_lives(struct dividing *d, enum entry_kind kind)
{
    const struct entry *e = &d->program->entries[kind];
    struct stash_lives *lives = &d->lives[kind];
    int n_parts;
    const struct order_rounds *parts = order_list_rounds(e, &n_parts, d->arena);

    lives->n_micro_batches = order_count_micro_batches(e, parts, n_parts);
    lives->of = arena_array(d->arena, struct stash_life,
                            (size_t)d->program->n_stashes * (size_t)lives->n_micro_batches);
    for (const struct order_rounds *part = parts; part < parts + n_parts; part++)
        for (int i = part->begin; i < part->begin + part->n; i++)
            note_touches(d, e, lives, i, part);
}

/* ---- slots ---- */

/* Whether two micro-batches that live at one time have one slot. They begin in increasing order. */
static bool do_meet(const struct stash_lives *lives, int stash, int n_slots)
{
    const struct stash_life *of = lives->of ? life_of(lives, stash, 0) : NULL;

    for (int slot = 0; slot < min_int(n_slots, lives->n_micro_batches); slot++) {
        int until = 0;

        for (int m = slot; m < lives->n_micro_batches; m += n_slots) {
            if (of[m].first && of[m].first < until)
                return true;
            until = max_int(until, of[m].last);
        }
    }
    return false;
}

/* The smallest number with which no two micro-batches collide in any entry. */
static int count_slots(const struct dividing *d, int stash)
{
    int n = 1, n_agree = 0;

    for (int e = 0; n_agree < N_ENTRIES; e = (e + 1) % N_ENTRIES) {
        int before = n;

        while (do_meet(&d->lives[e], stash, n))
            n++;
        n_agree = n == before ? n_agree + 1 : 1;
    }
    return n;
}

/* Assign offsets in a slot, one value after the other. */
static void lay_out(struct dividing *d)
{
    struct program *p = d->program;

    for (int id = 1; id < p->n_values; id++)
        if (d->marked[id]) {
            struct stash *stash = &p->stashes[p->values[id].stash];

            p->values[id].place_bytes = stash->slot_bytes;
            stash->slot_bytes += placed_bytes(p, id);
        }
}

/* Which entries use a stash. */
enum { USED_BY_RERUN = 1, USED_BY_OTHERS = 2 };

/* By function, and behind them of what LOAD writes. */
static unsigned char *users_of_functions(const struct dividing *d)
{
    const struct program *p = d->program;
    unsigned char *users = arena_array(d->arena, unsigned char, p->n_functions + 1);

    for (int e = 0; e < N_ENTRIES; e++)
        for (int i = 0; i < p->entries[e].n_actions; i++) {
            const struct action *a = &p->entries[e].actions[i];
            int at = a->kind == ACTION_RUN ? a->function : p->n_functions;

            users[at] |= e == ENTRY_RERUN ? USED_BY_RERUN : USED_BY_OTHERS;
        }
    return users;
}

static unsigned char *users_of_stashes(const struct dividing *d)
{
    const struct program *p = d->program;
    const unsigned char *of_function = users_of_functions(d);
    unsigned char *users = arena_array(d->arena, unsigned char, p->n_stashes + 1);

    for (int id = 1; id < p->n_values; id++) {
        const struct touchers *t = &d->of_value[id];

        if (!d->marked[id])
            continue;
        for (int f = 0; f < p->n_functions; f++)
            if (t->functions[f / 64] >> f % 64 & 1)
                users[p->values[id].stash] |= of_function[f];
        if (t->loaded)
            users[p->values[id].stash] |= of_function[p->n_functions];
    }
    return users;
}

/* Place those of these users one after the other, each with all of its slots, where the segments
 * end; stashes that share slots begin at one offset. */
static void line_up_users(struct program *p, const unsigned char *list, unsigned char users)
{
    for (int i = 0; i < p->n_stashes; i++) {
        struct stash *stash = &p->stashes[i];
        int first = 0;

        if (list[i] != users)
            continue;
        while (first < i && !(stash->shared && p->stashes[first].shared == stash->shared))
            first++;
        if (first < i) {
            stash->begin_bytes = p->stashes[first].begin_bytes;
            continue;
        }
        stash->begin_bytes = p->segment_bytes[stash->segment];
        p->segment_bytes[stash->segment] += (size_t)stash->n_slots * stash->slot_bytes;
    }
}

static void line_up(const struct dividing *d)
{
    struct program *p = d->program;
    const unsigned char *users = users_of_stashes(d);
    size_t begin[N_SEGMENTS], end[N_SEGMENTS];

    line_up_users(p, users, USED_BY_RERUN | USED_BY_OTHERS);
    line_up_users(p, users, 0);
    memcpy(begin, p->segment_bytes, sizeof begin);
    line_up_users(p, users, USED_BY_OTHERS);
    memcpy(end, p->segment_bytes, sizeof end);
    memcpy(p->segment_bytes, begin, sizeof begin);
    line_up_users(p, users, USED_BY_RERUN);
    for (int i = 0; i < N_SEGMENTS; i++)
        if (end[i] > p->segment_bytes[i])
            p->segment_bytes[i] = end[i];
}

void divide_stash(struct program *program, const char *marked)
{
    static const enum segment segments[N_SPACES] = { SEGMENT_STASH, SEGMENT_HOST_STASH,
                                                     SEGMENT_FILE_STASH };
    struct arena arena = { 0 };
    size_t n_values = (size_t)program->n_values;
    struct dividing d = { .program = program,
                          .marked = marked,
                          .arena = &arena,
                          .n_words = program->n_functions / 64 + 1 };

    d.of_value = arena_array(&arena, struct touchers, n_values);
    d.of_stash = arena_array(&arena, struct touchers, n_values);
    find_touchers(&d);
    divide(&d);
    list_touched(&d);
    program->stashes = arena_array(&program->arena, struct stash, program->n_stashes + 1);
    for (int e = 0; e < N_ENTRIES; e++)
        find_lives(&d, (enum entry_kind)e);
    for (int i = 0; i < program->n_stashes; i++) {
        program->stashes[i].segment = segments[d.of_stash[i].space];
        program->stashes[i].n_slots = count_slots(&d, i);
    }
    lay_out(&d);
    share_stashes(&d);
    line_up(&d);
    arena_release(&arena);
}
