/*
 * stash_test.c - slots against a slow count of what is alive
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "program/passes.h"

enum { N_STAGES = 3, N_MICRO_BATCHES_MAX = 12 };

/* Values that wander through functions a, b, c: x from the input to a, u from a to b, v from a to
 * c, w from b to c. */
struct chain {
    struct program program;
    int x, u, v, w, functions[N_STAGES];
};

static void add(struct chain *c, int function, int a, int b, int y)
{
    program_emit(&c->program, c->functions[function],
                 &(struct op){ .kind = OP_ADD, .in = { a, b }, .out = { y }, .layer = -1 });
}

static void chain_open(struct chain *c)
{
    static const char *const names[N_STAGES] = { "a", "b", "c" };
    struct mesh mesh = mesh_data_parallel(1);
    struct program *p = &c->program;

    memset(c, 0, sizeof *c);
    program_init(p, &mesh);
    c->x = program_cell(p, ROLE_INPUT, "x", 2, 8, DTYPE_F32);
    c->u = program_value(p, 2, 8, DTYPE_F32);
    c->v = program_value(p, 2, 8, DTYPE_F32);
    c->w = program_value(p, 2, 8, DTYPE_F32);
    for (int i = 0; i < N_STAGES; i++)
        c->functions[i] = program_function(p, names[i], 0);
    add(c, 0, c->x, c->x, c->u);
    add(c, 0, c->x, c->u, c->v);
    add(c, 1, c->u, c->u, c->w);
    add(c, 2, c->w, c->v, program_value(p, 2, 8, DTYPE_F32));
}

static uint32_t draw(uint64_t seed, uint64_t *n, uint32_t below)
{
    return rng_at(seed, RNG_TEST, 0, (*n)++).word[0] % below;
}

/* A random order in which every function sees the micro-batches in increasing order. */
static void random_actions(struct chain *c, uint64_t seed, int n_micro_batches)
{
    struct entry *e = &c->program.entries[ENTRY_STEP];
    int next[N_STAGES] = { 0 };
    uint64_t n_drawn = 0;

    e->actions = arena_array(&c->program.arena, struct action, 4 * n_micro_batches);
    e->n_actions = 0;
    while (next[N_STAGES - 1] < n_micro_batches) {
        int f = (int)draw(seed, &n_drawn, N_STAGES), m = next[f];

        if (m >= (f ? next[f - 1] : n_micro_batches))
            continue;
        if (f == 0)
            e->actions[e->n_actions++] = (struct action){ .kind = ACTION_LOAD, .micro_batch = m };
        e->actions[e->n_actions++] = (struct action){ .kind = ACTION_RUN,
                                                      .function = (int16_t)c->functions[f],
                                                      .micro_batch = m };
        next[f]++;
    }
}

static int touches(const struct chain *c, const struct action *a, int id)
{
    const struct function *f = &c->program.functions[a->function];

    if (a->kind == ACTION_LOAD)
        return id == c->x;
    for (int i = 0; i < f->n_ops; i++)
        if (f->ops[i].in[0] == id || f->ops[i].in[1] == id || f->ops[i].out[0] == id)
            return 1;
    return 0;
}

/* The most micro-batches for which id is alive, from its first touch to its last. */
static int count_alive(const struct chain *c, int id)
{
    const struct entry *e = &c->program.entries[ENTRY_STEP];
    int most = 0;

    for (int now = 0; now < e->n_actions; now++) {
        int before[N_MICRO_BATCHES_MAX] = { 0 }, after[N_MICRO_BATCHES_MAX] = { 0 }, n = 0;

        for (int i = 0; i < e->n_actions; i++)
            if (touches(c, &e->actions[i], id)) {
                before[e->actions[i].micro_batch] |= i <= now;
                after[e->actions[i].micro_batch] |= i >= now;
            }
        for (int m = 0; m < N_MICRO_BATCHES_MAX; m++)
            n += before[m] && after[m];
        most = n > most ? n : most;
    }
    return most;
}

static void slots_of_random_orders(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct chain c;
        struct err err;

        chain_open(&c);
        random_actions(&c, seed, 1 + (int)(seed % N_MICRO_BATCHES_MAX));
        place(&c.program);
        if (verify(&c.program, &err) < 0)
            fail_msg("seed %d: %s", (int)seed, err.text);
        const int ids[] = { c.x, c.u, c.v, c.w };
        for (int i = 0; i < 4; i++) {
            const struct value *v = &c.program.values[ids[i]];

            assert_int_equal(v->scope, SCOPE_STASH);
            assert_int_equal(c.program.stashes[v->stash].n_slots, count_alive(&c, ids[i]));
        }
        /* All have other functions, so each is its own stash. */
        assert_int_equal(c.program.n_stashes, 4);
        program_release(&c.program);
    }
}

/* One slot less, and verify finds it. */
static void too_few_slots_are_found(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct chain c;
        struct err err;

        chain_open(&c);
        random_actions(&c, seed, 6);
        place(&c.program);
        for (int i = 0; i < c.program.n_stashes; i++) {
            if (c.program.stashes[i].n_slots == 1)
                continue;
            c.program.stashes[i].n_slots--;
            assert_int_equal(verify(&c.program, &err), -1);
            assert_non_null(strstr(err.text, "slot was reused too early"));
            c.program.stashes[i].n_slots++;
        }
        program_release(&c.program);
    }
}

/* Do two micro-batches that lie in one slot live at the same time? */
static int do_meet(const struct chain *c, int id, int n_slots)
{
    const struct entry *e = &c->program.entries[ENTRY_STEP];
    int first[N_MICRO_BATCHES_MAX], last[N_MICRO_BATCHES_MAX];

    for (int m = 0; m < N_MICRO_BATCHES_MAX; m++)
        first[m] = last[m] = -1;
    for (int i = 0; i < e->n_actions; i++) {
        int m = e->actions[i].micro_batch;

        if (!touches(c, &e->actions[i], id))
            continue;
        first[m] = first[m] < 0 ? i : first[m];
        last[m] = i;
    }
    for (int a = 0; a < N_MICRO_BATCHES_MAX; a++)
        for (int b = a + n_slots; b < N_MICRO_BATCHES_MAX; b += n_slots)
            if (first[a] >= 0 && first[b] >= 0 && first[b] < last[a] && first[a] < last[b])
                return 1;
    return 0;
}

/*
 * Functions that run some of the micro-batches only (those of one size): as many slots as keep
 * those apart, which may be more than live at one time, and no more.
 */
static void slots_of_some_micro_batches(void **state)
{
    int n_more = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct chain c;
        struct entry *e = &c.program.entries[ENTRY_STEP];
        struct err err;
        int n_left = 0;

        chain_open(&c);
        random_actions(&c, seed, N_MICRO_BATCHES_MAX);
        for (int i = 0; i < e->n_actions; i++)
            if (seed >> e->actions[i].micro_batch % 9 & 1)
                e->actions[n_left++] = e->actions[i];
        e->n_actions = n_left;
        place(&c.program);
        if (verify(&c.program, &err) < 0)
            fail_msg("seed %d: %s", (int)seed, err.text);
        const int ids[] = { c.x, c.u, c.v, c.w };
        for (int i = 0; i < 4; i++) {
            int n = c.program.stashes[c.program.values[ids[i]].stash].n_slots;

            assert_false(do_meet(&c, ids[i], n));
            for (int fewer = 1; fewer < n; fewer++)
                assert_true(do_meet(&c, ids[i], fewer));
            n_more += n > count_alive(&c, ids[i]);
        }
        program_release(&c.program);
    }
    assert_true(n_more > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_of_random_orders),
        cmocka_unit_test(slots_of_some_micro_batches),
        cmocka_unit_test(too_few_slots_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
