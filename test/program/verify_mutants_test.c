/*
 * verify_mutants_test.c - one action or op of a rank at random is missing, doubled or misplaced:
 * what alters the work of a stream is refused
 */
#include "rank_programs.h"

/* What each stream does over each axis, in order, in all entries: a number for each. Groups of two
 * axes may be on one stream (that of context parallelism), and meet in the order of each alone. */
struct signature {
    uint64_t streams[N_STREAMS][N_AXES];
};

static void mix(uint64_t *hash, int number)
{
    *hash = (*hash ^ (uint64_t)(unsigned)number) * 1099511628211u;
}

static struct signature signature_of(const struct program *p)
{
    struct signature s = { { { 0 } } };

    for (int e = 0; e < N_ENTRIES; e++)
        for (int i = 0; i < p->entries[e].n_actions; i++) {
            const struct action *a = &p->entries[e].actions[i];
            const struct function *f = &p->functions[a->function];

            for (int k = 0; a->kind == ACTION_RUN && k < f->n_ops; k++) {
                const struct op *op = &f->ops[k];
                uint64_t *hash = &s.streams[op->stream][op->attributes.axis];

                if (!op_is_collective(op->kind))
                    continue;
                mix(hash, e);
                mix(hash, a->function);
                mix(hash, a->micro_batch);
                mix(hash, (int)op->kind);
                mix(hash, op->in[0]);
                mix(hash, op->out[0]);
            }
        }
    return s;
}

/* The n-th collective of all functions, counted over and over. */
static int pick_op(const struct program *p, int n, struct function **function)
{
    int n_ops = 0;

    for (int round = 0; round < 2; round++) {
        for (int f = 0; f < p->n_functions; f++)
            for (int i = 0; i < p->functions[f].n_ops; i++) {
                *function = &p->functions[f];
                if (!op_is_collective(p->functions[f].ops[i].kind))
                    continue;
                if (round && !n--)
                    return i;
                n_ops++;
            }
        n %= n_ops;
    }
    fail_msg("there are no collectives");
    return -1;
}

static int is_transfer(const struct program *p, const struct action *a)
{
    const struct function *f = &p->functions[a->function];

    return a->kind == ACTION_RUN && f->n_ops == 1 && op_is_collective(f->ops[0].kind);
}

enum mutation {
    OP_REMOVED,
    OP_DOUBLED,
    OP_SWAPPED,
    OP_MOVED,
    ACTION_REMOVED,
    ACTION_DOUBLED,
    ACTION_SWAPPED,
    N_MUTATIONS
};

/* Returns whether it found anything to change. */
static int mutate_op(struct program *p, enum mutation how, uint64_t *seed)
{
    struct function *f, *other;
    int i = pick_op(p, (int)draw(seed, 4096), &f);

    if (how == OP_REMOVED)
        remove_op(f, i);
    else if (how == OP_DOUBLED)
        double_op(f, i);
    else if (how == OP_MOVED)
        swap_ops(f, i, (int)draw(seed, f->n_ops));
    else {
        int k = pick_op(p, (int)draw(seed, 4096), &other);

        if (f == other)
            swap_ops(f, i, k);
        return f == other;
    }
    return 1;
}

static int mutate_action(struct program *p, enum mutation how, uint64_t *seed)
{
    struct entry *step = &p->entries[ENTRY_STEP];
    int i = (int)draw(seed, step->n_actions), k = (int)draw(seed, step->n_actions);

    while (!is_transfer(p, &step->actions[i]))
        i = (i + 1) % step->n_actions;
    while (!is_transfer(p, &step->actions[k]))
        k = (k + 1) % step->n_actions;
    if (how == ACTION_REMOVED)
        remove_action(step, i);
    else if (how == ACTION_DOUBLED)
        double_action(step, i);
    else
        swap_actions(step, i, k);
    return 1;
}

/*
 * Whatever makes any stream do other things, or in another order, is refused. What does not is
 * harmless to other ranks: every collective, send and receive meets what it met, only that streams
 * which don't wait for each other are given their work in another order; so it may be refused only
 * if that makes deadlock. (Whether each op still reads what was written for it is
 * verify's business.)
 */
static void mutants(const struct way *way, uint64_t seed, int n_rounds)
{
    int n_refused[N_MUTATIONS] = { 0 };
    struct fleet f;

    fleet_open(&f, way);
    accepted(&f);
    for (int i = 0; i < n_rounds; i++) {
        enum mutation how = (enum mutation)(i % N_MUTATIONS);
        int rank = (int)draw(&seed, f.n);
        struct program *p = fleet_spoil(&f, rank);
        struct signature before = signature_of(p);
        struct err err;

        if (!(how < ACTION_REMOVED ? mutate_op : mutate_action)(p, how, &seed))
            continue;
        struct signature after = signature_of(p);
        int differs = memcmp(&before, &after, sizeof before) != 0;
        int refused = verify_ranks(f.list, &f.mesh, &err) < 0;
        if (differs && !refused)
            fail_msg("round %d, mutation %d of rank %d is accepted", i, (int)how, rank);
        if (!differs && refused && !strstr(err.text, "deadlock"))
            fail_msg("round %d, mutation %d of rank %d: %s", i, (int)how, rank, err.text);
        n_refused[how] += refused;
    }
    /* None is always harmless. */
    for (int how = 0; how < N_MUTATIONS; how++)
        assert_true(n_refused[how] > 0);
    fleet_close(&f);
}

static void one_mistake_anywhere(void **state)
{
    struct way way = eight;

    (void)state;
    mutants(&way, 1, 350);
    way.kind = PIPELINE_INTERLEAVED;
    way.n_chunks = 2;
    way.early = 1;
    way.zero = 2;
    mutants(&way, 2, 350);
    way.kind = PIPELINE_ZB_V;
    way.zero = 0;
    way.sequence_parallel = 0;
    way.model = "gpt2";
    way.recompute = RECOMPUTE_KIND_SELECTIVE;
    mutants(&way, 3, 350);
    way.kind = PIPELINE_ZB_H1;
    way.n_chunks = 1;
    way.recompute = RECOMPUTE_KIND_FULL;
    way.sequence_parallel = 1;
    mutants(&way, 4, 350);
}

static void one_mistake_among_parts_of_sequences(void **state)
{
    struct way way = eight;

    (void)state;
    way.tp = way.dp = 1;
    way.ulysses = way.keys = 2;
    mutants(&way, 5, 210);
}

static void one_mistake_among_parts_of_matrices(void **state)
{
    struct way way = eight;

    (void)state;
    way.dp = 1;
    way.ulysses = 2;
    way.fastseq = 1;
    mutants(&way, 6, 210);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_mistake_anywhere),
        cmocka_unit_test(one_mistake_among_parts_of_sequences),
        cmocka_unit_test(one_mistake_among_parts_of_matrices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
