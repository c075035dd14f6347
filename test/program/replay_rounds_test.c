/*
 * replay_rounds_test.c - rounds of all ranks that are not walked: as many as there are, and
 * never one that matters
 *
 * Ranks of many micro-batches, one of them with a mistake or two, are given the answer that a walk
 * through all of them gives, down to the text. That the walk refuses what it has to is in
 * verify_ranks_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "program/verify_impl.h"
#include "support/tiny_model.h"

enum { STAGES_MAX = 4, RANKS_MAX = 16, N_MICRO_BATCHES = 48 /* of programs that are spoilt */ };

struct way {
    enum pipeline_kind kind;
    int tp, dp, pp, n_chunks, zero, early;
};

struct fleet {
    struct mesh mesh;
    int n;
    struct program stages[STAGES_MAX];
    const struct program *list[RANKS_MAX];
    struct program spoilt; /* of one rank: a copy that may be changed */
    struct arena arena;
};

static void fleet_open(struct fleet *f, const struct way *way, int n_micro_batches)
{
    struct model_spec spec = tiny_spec("llama");
    struct err err;

    memset(f, 0, sizeof *f);
    f->mesh = mesh_data_parallel(way->dp);
    f->mesh.size[AXIS_TP] = way->tp;
    f->mesh.size[AXIS_PP] = way->pp;
    f->n = mesh_world_size(&f->mesh);
    spec.n_layers = 8;
    for (int stage = 0; stage < way->pp; stage++) {
        struct compile_train options = tiny_compile(&spec, way->dp);

        options.mesh = f->mesh;
        options.n_micro_batches = n_micro_batches;
        options.pipeline.kind = way->kind;
        options.pipeline.n_chunks = way->n_chunks;
        options.pipeline.rank = stage;
        options.gradients.zero = way->zero;
        options.gradients.early = way->early;
        if (compile_train(&f->stages[stage], &options, &err) < 0)
            fail_msg("%s, pp %d: %s", pipeline_name(way->kind), way->pp, err.text);
    }
    for (int rank = 0; rank < f->n; rank++)
        f->list[rank] = &f->stages[mesh_coordinate(&f->mesh, rank, AXIS_PP)];
}

static void fleet_close(struct fleet *f)
{
    for (int i = 0; i < f->mesh.size[AXIS_PP]; i++)
        program_release(&f->stages[i]);
    arena_release(&f->arena);
}

/* The rank's program with a step that may be changed. An earlier one is whole again. */
static void fleet_spoil(struct fleet *f, int rank)
{
    struct program *p = &f->spoilt;

    for (int i = 0; i < f->n; i++)
        f->list[i] = &f->stages[mesh_coordinate(&f->mesh, i, AXIS_PP)];
    arena_release(&f->arena);
    *p = *f->list[rank];
    struct entry *step = &p->entries[ENTRY_STEP];
    struct action *actions = arena_array(&f->arena, struct action, step->n_actions + 2);
    memcpy(actions, step->actions, sizeof *actions * (size_t)step->n_actions);
    step->actions = actions;
    p->functions = arena_array(&f->arena, struct function, p->n_functions);
    for (int i = 0; i < p->n_functions; i++) {
        struct function *function = &p->functions[i];

        *function = f->stages[mesh_coordinate(&f->mesh, rank, AXIS_PP)].functions[i];
        struct op *ops = arena_array(&f->arena, struct op, function->n_ops + 1);
        function->ops = memcpy(ops, function->ops, sizeof *ops * (size_t)function->n_ops);
    }
    p->stashes = arena_array(&f->arena, struct stash, p->n_stashes + 1);
    memcpy(p->stashes, f->list[rank]->stashes, sizeof *p->stashes * (size_t)p->n_stashes);
    f->list[rank] = p;
}

static const struct way ways[] = {
    { PIPELINE_1F1B, 1, 1, 1, 1, 0, 0 },        { PIPELINE_1F1B, 2, 2, 1, 1, 2, 1 },
    { PIPELINE_1F1B, 1, 1, 4, 1, 0, 0 },        { PIPELINE_1F1B, 2, 2, 2, 1, 1, 0 },
    { PIPELINE_INTERLEAVED, 1, 2, 2, 2, 2, 1 }, { PIPELINE_INTERLEAVED, 2, 1, 4, 2, 0, 0 },
    { PIPELINE_ZB_H1, 1, 2, 4, 1, 0, 0 },       { PIPELINE_ZB_V, 2, 1, 2, 2, 0, 0 },
    { PIPELINE_GPIPE, 1, 1, 2, 1, 0, 0 },       { PIPELINE_INTERLEAVED, 1, 1, 2, 4, 0, 0 },
};

enum { N_WAYS = sizeof ways / sizeof *ways };

static int n_walked(const struct way *way, int n_micro_batches)
{
    struct verify_way how = { 0 };
    struct fleet f;
    struct err err;

    fleet_open(&f, way, n_micro_batches);
    if (verify_ranks_in_way(f.list, &f.mesh, &how, &err) < 0)
        fail_msg("%s", err.text);
    fleet_close(&f);
    return how.n_walked;
}

/*
 * Six times as many micro-batches are hardly more work. When the same is found to come again
 * depends on their number, a little.
 */
static void hardly_more_for_more(void **state)
{
    (void)state;
    for (int i = 0; i < N_WAYS; i++) {
        int few = n_walked(&ways[i], 64), many = n_walked(&ways[i], 384);

        if (many > few + few / 4)
            fail_msg("%s of %d: %d actions of 64, %d of 384 micro-batches",
                     pipeline_name(ways[i].kind), ways[i].pp, few, many);
    }
}

/* ---- spoilt ---- */

static int draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((uint32_t)(*seed >> 33) % (uint32_t)n);
}

enum mistake {
    REMOVED,
    DOUBLED,
    SWAPPED,
    OTHER_MICRO_BATCH,
    LATER,
    OTHER_FUNCTION,
    OP_REMOVED,
    OP_SWAPPED,
    OTHER_SLOT,
    N_MISTAKES
};

static int is_transfer(const struct program *p, const struct action *a)
{
    const struct function *f = &p->functions[a->function];

    return a->kind == ACTION_RUN && f->n_ops == 1 && op_is_collective(f->ops[0].kind);
}

/* Of a transfer, where there are any: the rest is verify's business. */
static int draw_action(const struct program *p, uint64_t *seed)
{
    const struct entry *step = &p->entries[ENTRY_STEP];
    int first = draw(seed, step->n_actions);

    for (int i = first; i < step->n_actions; i++)
        if (is_transfer(p, &step->actions[i]))
            return i;
    return first;
}

static void spoil_op(struct program *p, enum mistake mistake, uint64_t *seed)
{
    struct function *f = &p->functions[draw(seed, p->n_functions)];
    int n = f->n_ops, i = n ? draw(seed, n) : 0, k = n ? draw(seed, n) : 0;

    for (int tries = 0; n && tries < n && !op_is_collective(f->ops[i].kind); tries++)
        i = (i + 1) % n;
    if (!n)
        return;
    struct op op = f->ops[i];
    if (mistake == OP_REMOVED) {
        memmove(f->ops + i, f->ops + i + 1, sizeof op * (size_t)(--f->n_ops - i));
    } else {
        f->ops[i] = f->ops[k];
        f->ops[k] = op;
    }
}

/* Which waits for another's user, if chunks share slots: late, in vain, or not at all. */
static void spoil_slot(struct program *p, struct arena *arena, uint64_t *seed)
{
    for (int i = 0; i < p->n_stashes; i++) {
        int *slots = p->stashes[i].slots ? arena_array(arena, int, N_MICRO_BATCHES) : NULL;

        if (!slots)
            continue;
        memcpy(slots, p->stashes[i].slots, sizeof *slots * N_MICRO_BATCHES);
        slots[draw(seed, N_MICRO_BATCHES)] = draw(seed, p->stashes[i].n_slots);
        p->stashes[i].slots = slots;
    }
}

static void spoil(struct fleet *f, enum mistake mistake, uint64_t *seed)
{
    struct program *p = &f->spoilt;
    struct entry *step = &p->entries[ENTRY_STEP];
    int i = draw_action(p, seed), k = draw_action(p, seed), n = step->n_actions;
    struct action *a = step->actions, action = a[i];

    if (mistake == OTHER_SLOT) {
        spoil_slot(p, &f->arena, seed);
    } else if (mistake >= OP_REMOVED) {
        spoil_op(p, mistake, seed);
    } else if (mistake == REMOVED) {
        memmove(&a[i], &a[i + 1], sizeof *a * (size_t)(n - i - 1));
        step->n_actions--;
    } else if (mistake == DOUBLED) {
        memmove(&a[i + 1], &a[i], sizeof *a * (size_t)(n - i));
        step->n_actions++;
    } else if (mistake == SWAPPED) {
        a[i] = a[k];
        a[k] = action;
    } else if (mistake == OTHER_MICRO_BATCH) {
        a[i].micro_batch = max_int(a[i].micro_batch + draw(seed, 7) - 3, 0);
    } else if (mistake == LATER) {
        for (k = i; k + 1 < n && k < i + 1 + draw(seed, 12); k++) {
            a[k] = a[k + 1];
            a[k + 1] = action;
        }
    } else {
        a[i].function = (int16_t)draw(seed, p->n_functions);
    }
}

static void same_answers(const struct way *way, uint64_t seed, int n_rounds, int *n_refused,
                         int *n_accepted)
{
    struct fleet f;

    fleet_open(&f, way, N_MICRO_BATCHES);
    for (int i = 0; i < n_rounds; i++) {
        struct verify_way full = { .in_full = 1 }, less = { 0 };
        struct err a = { 0 }, b = { 0 };
        enum mistake mistake = (enum mistake)(i % N_MISTAKES);

        fleet_spoil(&f, draw(&seed, f.n));
        spoil(&f, mistake, &seed);
        if (draw(&seed, 4) == 0)
            spoil(&f, (enum mistake)draw(&seed, N_MISTAKES), &seed);
        int wanted = verify_ranks_in_way(f.list, &f.mesh, &full, &a);
        int is = verify_ranks_in_way(f.list, &f.mesh, &less, &b);
        if (wanted != is || strcmp(a.text, b.text) != 0)
            fail_msg("%s of %d, mistake %d, round %d: '%s' in full, '%s'", pipeline_name(way->kind),
                     way->pp, (int)mistake, i, a.text, b.text);
        assert_true(less.n_walked <= full.n_walked);
        n_refused[mistake] += wanted < 0;
        *n_accepted += wanted == 0 && less.n_walked < full.n_walked;
    }
    fleet_close(&f);
}

static void as_in_full(void **state)
{
    int n_refused[N_MISTAKES] = { 0 }, n_accepted = 0;

    (void)state;
    for (int i = 0; i < N_WAYS; i++)
        same_answers(&ways[i], (uint64_t)i + 1, 10 * N_MISTAKES, n_refused, &n_accepted);
    for (int i = 0; i < OTHER_SLOT; i++)
        assert_true(n_refused[i] > 0);
    assert_true(n_accepted > 50);
}

/* ---- rounds that end in waiting ---- */

enum { N_SLOTS = 40 };

static int function_of(struct program *p, struct op op)
{
    int f = program_function(p, op_info(op.kind)->name, 0);

    op.layer = -1;
    program_emit(p, f, &op);
    return f;
}

static void add(struct program *p, int kind, int function, int micro_batch)
{
    struct entry *step = &p->entries[ENTRY_STEP];

    step->actions[step->n_actions++] = (struct action){ .kind = (uint8_t)kind,
                                                        .function = (int16_t)function,
                                                        .micro_batch = micro_batch };
}

/*
 * Both ranks add something up, round by round, and the first uses the slots of x in turn. What lies
 * in its first slot is under way until the other rank sends it, after all rounds: so when the turn
 * comes to that slot again, they wait for each other. Nothing happens before that in any round.
 */
struct hand {
    int add_up, use, transfer;
};

static struct hand open_hand(struct program *p, int rank, int n_slots)
{
    struct mesh mesh = mesh_data_parallel(1);

    mesh.size[AXIS_PP] = 2;
    program_init(p, &mesh);
    int x = program_value(p, 1, 16, DTYPE_F32), y = program_value(p, 1, 16, DTYPE_F32);
    int own = program_value(p, 1, 1, DTYPE_F64), sum = program_value(p, 1, 1, DTYPE_F64);
    p->values[x].scope = SCOPE_STASH;
    p->values[own].spread[AXIS_PP] = SPREAD_PARTIAL;
    p->stashes = arena_array(&p->arena, struct stash, 1);
    p->n_stashes = 1;
    p->stashes[0].n_slots = n_slots;
    int add_up = function_of(p, (struct op){ .kind = OP_ALL_REDUCE_SCALAR,
                                             .attributes.axis = AXIS_PP,
                                             .in = { own },
                                             .out = { sum },
                                             .stream = STREAM_PP });
    int use = function_of(p, (struct op){ .kind = OP_ADD, .in = { x, x }, .out = { y } });
    struct op transfer = { .kind = rank ? OP_SEND : OP_RECEIVE,
                           .attributes = { .axis = AXIS_PP, .peer = rank ? -1 : 1 },
                           .stream = rank ? STREAM_B_TO_PREVIOUS : STREAM_B_FROM_NEXT };
    *(rank ? &transfer.in[0] : &transfer.out[0]) = x;
    return (struct hand){ add_up, use, function_of(p, transfer) };
}

static void hand_rank(struct program *p, int rank, int n_rounds)
{
    struct hand hand = open_hand(p, rank, N_SLOTS);

    p->entries[ENTRY_STEP].actions = arena_array(&p->arena, struct action, 3 * n_rounds + 2);
    add(p, ACTION_LOAD, 0, 0);
    if (!rank)
        add(p, ACTION_RUN, hand.transfer, 0);
    for (int m = 1; m <= n_rounds; m++) {
        add(p, ACTION_LOAD, 0, m);
        add(p, ACTION_RUN, hand.add_up, m);
        if (!rank)
            add(p, ACTION_RUN, hand.use, m);
    }
    if (rank)
        add(p, ACTION_RUN, hand.transfer, 0);
}

/*
 * In each round the first rank uses a slot, both add something up twice (the second sum is given
 * when the first is done), then the first receives into that slot what the other sends after the
 * sums of the next round. By the table two slots take turns, but micro-batch `odd` has the slot of
 * the one before: there they wait for each other.
 */
static void table_rank(struct program *p, int rank, int n_rounds, int odd)
{
    struct hand hand = open_hand(p, rank, 2);
    int *slots = arena_array(&p->arena, int, n_rounds + 1);

    for (int m = 0; m <= n_rounds; m++)
        slots[m] = (m + (m == odd)) % 2;
    p->stashes[0].slots = slots;
    p->entries[ENTRY_STEP].actions = arena_array(&p->arena, struct action, 5 * n_rounds + 5);
    for (int m = 0; m <= n_rounds; m++) {
        add(p, ACTION_LOAD, 0, m);
        if (!rank)
            add(p, ACTION_RUN, hand.use, m);
        add(p, ACTION_RUN, hand.add_up, m);
        add(p, ACTION_RUN, hand.add_up, m);
        if (!rank || m)
            add(p, ACTION_RUN, hand.transfer, rank ? m - 1 : m);
    }
    if (rank)
        add(p, ACTION_RUN, hand.transfer, n_rounds);
}

static void odd_slot_of_a_table(void **state)
{
    enum { N_ROUNDS = 200 };

    (void)state;
    for (int odd = -1; odd <= N_ROUNDS; odd += 3) {
        struct program programs[2];
        const struct program *const list[2] = { &programs[0], &programs[1] };
        struct verify_way full = { .in_full = 1 }, less = { 0 };
        struct err a = { 0 }, b = { 0 };

        for (int rank = 0; rank < 2; rank++)
            table_rank(&programs[rank], rank, N_ROUNDS, odd);
        int wanted = verify_ranks_in_way(list, &programs[0].mesh, &full, &a);
        assert_int_equal(wanted, odd < 0 ? 0 : -1);
        assert_int_equal(verify_ranks_in_way(list, &programs[0].mesh, &less, &b), wanted);
        assert_string_equal(a.text, b.text);
        assert_true(odd >= 0 || less.n_walked < full.n_walked / 4);
        for (int rank = 0; rank < 2; rank++)
            program_release(&programs[rank]);
    }
}

static void slot_that_is_waited_for(void **state)
{
    (void)state;
    for (int n_rounds = N_SLOTS - 2; n_rounds <= N_SLOTS + 2; n_rounds++) {
        struct program programs[2];
        const struct program *const list[2] = { &programs[0], &programs[1] };
        struct err err = { 0 };

        for (int rank = 0; rank < 2; rank++)
            hand_rank(&programs[rank], rank, n_rounds);
        int status = verify_ranks(list, &programs[0].mesh, &err);
        /* After the last round nobody is kept from sending. */
        assert_int_equal(status, n_rounds <= N_SLOTS ? 0 : -1);
        if (status)
            assert_non_null(strstr(err.text, "deadlock"));
        for (int rank = 0; rank < 2; rank++)
            program_release(&programs[rank]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hardly_more_for_more),
        cmocka_unit_test(as_in_full),
        cmocka_unit_test(slot_that_is_waited_for),
        cmocka_unit_test(odd_slot_of_a_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
