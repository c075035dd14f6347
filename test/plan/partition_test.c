/*
 * partition_test.c - both objectives against all partitions there are, on random chains
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/partition.h"

enum { N_LAYERS_MAX = 8, N_DEVICES_MAX = 6 };

struct chain {
    int64_t layers[N_LAYERS_MAX], memory[N_LAYERS_MAX];
    int64_t speed[N_DEVICES_MAX], capacity[N_DEVICES_MAX];
    int64_t boundary, bump; /* bump: of stages with an odd number of layers */
    uint64_t dice;
};

static int roll(struct chain *c, int n)
{
    c->dice = c->dice * 6364136223846793005U + 1442695040888963407U;
    return (int)((c->dice >> 33) % (uint64_t)n);
}

/* Work at the slowest device's speed, a transfer, and what stages behind keep alive. */
static int64_t cost(void *context, const struct partition_stage *s, int n_behind)
{
    const struct chain *c = context;
    int64_t work = 0, memory = 0, slowest = INT64_MAX, least = INT64_MAX;

    for (int i = s->begin; i < s->end; i++) {
        work += c->layers[i];
        memory += c->memory[i];
    }
    for (int i = s->device; i < s->device + s->n; i++) {
        slowest = c->speed[i] < slowest ? c->speed[i] : slowest;
        least = c->capacity[i] < least ? c->capacity[i] : least;
    }
    if (memory * (n_behind + 1) > least * s->n)
        return PARTITION_NEVER;
    return work * 1000 / (slowest * s->n) + (s->begin ? c->boundary : 0) + 7 * (s->n - 1) +
           (s->end - s->begin) % 2 * c->bump;
}

struct brute {
    struct chain *chain;
    const struct partition_problem *problem;
    int64_t best;
};

/* All ways to go on from here, the last stage first: what is behind is known. */
static void try_all(struct brute *b, int end, int devices_end, int n_behind, int64_t sum,
                    int64_t slowest)
{
    const struct partition_problem *p = b->problem;

    if (end == 0 && devices_end == 0) {
        int64_t value = p->n_micro_batches ? sum + (p->n_micro_batches - 1) * slowest : slowest;

        b->best = value < b->best ? value : b->best;
        return;
    }
    for (int begin = 0; begin < end; begin++)
        for (int n = 1; n <= devices_end && n <= p->most_per_stage; n++) {
            struct partition_stage stage = { begin, end, devices_end - n, n };
            int64_t t = cost(b->chain, &stage, n_behind);

            if (t < PARTITION_NEVER)
                try_all(b, begin, devices_end - n, n_behind + 1, sum + t,
                        t > slowest ? t : slowest);
        }
}

static int64_t search_all(struct chain *chain, const struct partition_problem *p)
{
    struct brute b = { chain, p, PARTITION_NEVER };

    for (int devices = p->may_idle ? 1 : p->n_devices; devices <= p->n_devices; devices++)
        try_all(&b, p->n_layers, devices, 0, 0, 0);
    return b.best;
}

static void check_whole(const struct partition *p, struct chain *chain,
                        const struct partition_problem *problem)
{
    int layer = 0, device = 0;
    int64_t sum = 0, slowest = 0;

    for (int i = 0; i < p->n; i++) {
        int64_t t = cost(chain, &p->stages[i], p->n - 1 - i);

        assert_int_equal(p->stages[i].begin, layer);
        assert_int_equal(p->stages[i].device, device);
        layer = p->stages[i].end;
        device += p->stages[i].n;
        sum += t;
        slowest = t > slowest ? t : slowest;
    }
    assert_int_equal(layer, problem->n_layers);
    assert_true(device == problem->n_devices || problem->may_idle);
    assert_true(sum == p->sum && slowest == p->slowest);
    assert_true(
        p->objective ==
        (problem->n_micro_batches ? sum + (problem->n_micro_batches - 1) * slowest : slowest));
}

/* What a problem may have, and how many possible ones had each combination. */
enum { HAS_STEP = 1, HAS_IDLE = 2, HAS_SEVERAL = 4, IS_UNEVEN = 8, IS_MONOTONE = 16, N_WAYS = 32 };

static int way_of(const struct chain *chain, const struct partition_problem *p)
{
    return (p->n_micro_batches ? HAS_STEP : 0) | (p->may_idle ? HAS_IDLE : 0) |
           (p->most_per_stage > 1 ? HAS_SEVERAL : 0) |
           (chain->speed[0] != chain->speed[p->n_devices - 1] ? IS_UNEVEN : 0) |
           (p->is_monotone ? IS_MONOTONE : 0);
}

static void test_random_chains(void **state)
{
    int n_possible[N_WAYS] = { 0 }, n_impossible = 0;

    (void)state;
    for (int seed = 0; seed < 1000; seed++) {
        struct chain chain = { .dice = (uint64_t)seed };
        struct partition_problem problem = { .n_layers = 1 + roll(&chain, N_LAYERS_MAX),
                                             .n_devices = 1 + roll(&chain, N_DEVICES_MAX),
                                             .may_idle = roll(&chain, 2),
                                             .is_monotone = roll(&chain, 2),
                                             .cost = cost,
                                             .context = &chain };
        struct partition found;
        struct arena arena = { 0 };

        problem.most_per_stage = 1 + roll(&chain, problem.n_devices);
        problem.n_micro_batches = roll(&chain, 3) ? 1 + roll(&chain, 20) : 0;
        for (int i = 0; i < N_LAYERS_MAX; i++) {
            chain.layers[i] = 1 + roll(&chain, 100);
            chain.memory[i] = 1 + roll(&chain, 10);
        }
        /* Two islands. */
        int64_t speeds[2] = { 1 + roll(&chain, 10), 1 + roll(&chain, 10) };
        for (int i = 0; i < N_DEVICES_MAX; i++) {
            chain.speed[i] = speeds[i >= problem.n_devices / 2];
            chain.capacity[i] = 20 + roll(&chain, 100);
        }
        chain.boundary = roll(&chain, 30);
        chain.bump = problem.is_monotone ? 0 : 1 + roll(&chain, 1000);
        int64_t best = search_all(&chain, &problem);
        partition_find(&found, &problem, &arena);
        assert_true(found.objective == best);
        if (best < PARTITION_NEVER)
            check_whole(&found, &chain, &problem);
        n_possible[way_of(&chain, &problem)] += best < PARTITION_NEVER;
        n_impossible += best == PARTITION_NEVER;
        arena_release(&arena);
    }
    for (int way = 0; way < N_WAYS; way++)
        assert_true(n_possible[way] > 0);
    assert_true(n_impossible > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_chains),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
