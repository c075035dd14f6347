/*
 * verify_rounds_test.c - rounds that are not walked: as many as there are, and never one that
 * matters
 *
 * Programs of many micro-batches are spoilt in one place or two, and the answer must be that of a
 * walk through all of them, down to the text. That the walk refuses what it has to is in
 * verify_test.c, verify_sums_test.c and verify_stage_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "program/order.h"
#include "program/verify_impl.h"
#include "support/tiny_model.h"

struct way {
    enum pipeline_kind kind;
    int pp, n_chunks, dp, zero, early;
    enum zero3_gather hold;
    int n_ahead;
};

static void compile(struct program *program, const struct way *way, int rank, int n_micro_batches)
{
    static struct model_spec spec;
    struct compile_train options;
    struct err err;

    spec = tiny_spec("llama");
    spec.n_layers = 8;
    options = tiny_compile(&spec, way->dp);
    options.mesh.size[AXIS_PP] = way->pp;
    options.n_micro_batches = n_micro_batches;
    options.pipeline.kind = way->kind;
    options.pipeline.n_chunks = way->n_chunks;
    options.pipeline.rank = rank;
    options.gradients.zero = way->zero;
    options.gradients.early = way->early;
    options.gradients.zero3 = way->hold;
    options.gradients.n_ahead = way->n_ahead;
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s, pp %d: %s", pipeline_name(way->kind), way->pp, err.text);
}

static const struct way ways[] = {
    { PIPELINE_1F1B, 1, 1, 1, 0, 0, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_1F1B, 1, 1, 2, 3, 1, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_1F1B, 1, 1, 2, 3, 1, ZERO3_GATHER_RUN, 0 },
    { PIPELINE_1F1B, 2, 1, 2, 2, 1, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_1F1B, 4, 1, 1, 1, 0, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_INTERLEAVED, 2, 2, 1, 0, 0, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_INTERLEAVED, 4, 2, 2, 1, 1, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_ZB_H1, 4, 1, 1, 0, 0, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_ZB_V, 2, 2, 1, 0, 0, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_GPIPE, 2, 1, 1, 0, 0, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_GPIPE, 4, 1, 2, 2, 1, ZERO3_GATHER_PASS, 0 },
    { PIPELINE_INTERLEAVED, 2, 4, 2, 3, 1, ZERO3_GATHER_RUN, 0 },
    { PIPELINE_1F1B, 2, 1, 2, 3, 1, ZERO3_GATHER_PASS, 1 },
    { PIPELINE_INTERLEAVED, 2, 2, 2, 3, 1, ZERO3_GATHER_PASS, 2 },
};

enum { N_WAYS = sizeof ways / sizeof *ways };

static struct verify_way n_walked(const struct way *way, int rank, int n_micro_batches)
{
    struct verify_way how = { 0 };
    struct program p;
    struct err err;

    compile(&p, way, rank, n_micro_batches);
    if (verify_in_way(&p, &how, &err) < 0)
        fail_msg("%s", err.text);
    program_release(&p);
    return how;
}

/* Twice as many micro-batches are no more work, but for slots that a table says. */
static void no_more_for_more(void **state)
{
    (void)state;
    for (int i = 0; i < N_WAYS; i++)
        for (int rank = 0; rank < ways[i].pp; rank++) {
            struct verify_way few = n_walked(&ways[i], rank, 48);
            struct verify_way many = n_walked(&ways[i], rank, 96);

            if (many.n_walked != few.n_walked)
                fail_msg("%s of %d, rank %d: %d actions of 48, %d of 96 micro-batches",
                         pipeline_name(ways[i].kind), ways[i].pp, rank, few.n_walked,
                         many.n_walked);
            if (ways[i].n_chunks == 1 && many.n_walked_slots != few.n_walked_slots)
                fail_msg("%s of %d, rank %d: slots in %d actions of 48, %d of 96 micro-batches",
                         pipeline_name(ways[i].kind), ways[i].pp, rank, few.n_walked_slots,
                         many.n_walked_slots);
        }
}

/* ---- spoilt ---- */

static int draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((uint32_t)(*seed >> 33) % (uint32_t)n);
}

/* What a test may change, and how it was. */
struct kept {
    struct action *actions;
    struct op *ops[64];
    int n_actions, n_ops[64], n_slots[64];
};

static void *copy_of(struct arena *arena, const void *items, size_t n_bytes)
{
    return memcpy(arena_alloc(arena, n_bytes), items, n_bytes);
}

static void keep(struct kept *k, struct program *p)
{
    struct entry *step = &p->entries[ENTRY_STEP];

    assert_true(p->n_functions < 64);
    assert_true(p->n_stashes < 64);
    k->n_actions = step->n_actions;
    k->actions = copy_of(&p->arena, step->actions, sizeof *step->actions * (size_t)step->n_actions);
    step->actions = arena_array(&p->arena, struct action, step->n_actions + 4);
    for (int f = 0; f < p->n_functions; f++) {
        k->n_ops[f] = p->functions[f].n_ops;
        k->ops[f] =
            copy_of(&p->arena, p->functions[f].ops, sizeof(struct op) * (size_t)k->n_ops[f]);
    }
    for (int i = 0; i < p->n_stashes; i++)
        k->n_slots[i] = p->stashes[i].n_slots;
}

static void restore(const struct kept *k, struct program *p)
{
    struct entry *step = &p->entries[ENTRY_STEP];

    step->n_actions = k->n_actions;
    memcpy(step->actions, k->actions, sizeof *k->actions * (size_t)k->n_actions);
    for (int f = 0; f < p->n_functions; f++) {
        p->functions[f].n_ops = k->n_ops[f];
        if (k->n_ops[f])
            memcpy(p->functions[f].ops, k->ops[f], sizeof(struct op) * (size_t)k->n_ops[f]);
    }
    for (int i = 0; i < p->n_stashes; i++)
        p->stashes[i].n_slots = k->n_slots[i];
}

enum mistake {
    OTHER_MICRO_BATCH,
    OTHER_FUNCTION,
    OTHER_FIRST,
    LEFT_OUT,
    REMOVED,
    DOUBLED,
    SWAPPED,
    ALL_LATER,
    FEWER_SLOTS,
    OP_REMOVED,
    OP_FIRST,
    N_MISTAKES
};

static void spoil_action(struct program *p, enum mistake mistake, uint64_t *seed)
{
    struct entry *step = &p->entries[ENTRY_STEP];
    int i = draw(seed, step->n_actions), k = draw(seed, step->n_actions), n = step->n_actions;
    struct action *a = step->actions, action = a[i];

    if (mistake == OTHER_MICRO_BATCH) {
        a[i].micro_batch = max_int(a[i].micro_batch + draw(seed, 7) - 3, 0);
    } else if (mistake == OTHER_FUNCTION) {
        a[i].function = (int16_t)draw(seed, p->n_functions);
    } else if (mistake == OTHER_FIRST) {
        a[i].first = !a[i].first;
    } else if (mistake == LEFT_OUT) {
        a[i] = (struct action){ .kind = ACTION_GATE, .micro_batch = -1 };
    } else if (mistake == SWAPPED) {
        a[i] = a[k];
        a[k] = action;
    } else if (mistake == ALL_LATER) {
        /* From here on this function is a micro-batch ahead, time and again. */
        for (k = i; k < n; k++)
            if (a[k].kind == action.kind && a[k].function == action.function)
                a[k].micro_batch += a[k].micro_batch >= 0 && a[k].micro_batch < 23;
    } else if (mistake == REMOVED) {
        memmove(&a[i], &a[i + 1], sizeof *a * (size_t)(n - i - 1));
        step->n_actions--;
    } else {
        memmove(&a[i + 1], &a[i], sizeof *a * (size_t)(n - i));
        step->n_actions++;
    }
}

static void spoil(struct program *p, enum mistake mistake, uint64_t *seed)
{
    if (mistake < FEWER_SLOTS) {
        spoil_action(p, mistake, seed);
        return;
    }
    if (mistake == FEWER_SLOTS) {
        struct stash *stash = &p->stashes[draw(seed, p->n_stashes)];

        stash->n_slots = max_int(stash->n_slots - 1, 1);
        return;
    }
    struct function *f = &p->functions[draw(seed, p->n_functions)];
    int i = f->n_ops ? draw(seed, f->n_ops) : 0;
    if (f->n_ops && mistake == OP_FIRST)
        f->ops[i].first = (enum first_mode)draw(seed, 3);
    else if (f->n_ops)
        memmove(f->ops + i, f->ops + i + 1, sizeof *f->ops * (size_t)(--f->n_ops - i));
}

static void same_answers(const struct way *way, uint64_t seed, int n_rounds, int *n_refused,
                         int *n_accepted)
{
    struct program p;
    struct kept kept;

    compile(&p, way, draw(&seed, way->pp), 24);
    keep(&kept, &p);
    for (int i = 0; i < n_rounds; i++) {
        struct verify_way full = { .in_full = 1 }, less = { 0 };
        struct err a = { 0 }, b = { 0 };
        enum mistake mistake = (enum mistake)(i % N_MISTAKES);

        restore(&kept, &p);
        spoil(&p, mistake, &seed);
        if (draw(&seed, 4) == 0)
            spoil(&p, (enum mistake)draw(&seed, N_MISTAKES), &seed);
        int wanted = verify_in_way(&p, &full, &a), is = verify_in_way(&p, &less, &b);
        if (wanted != is || strcmp(a.text, b.text) != 0)
            fail_msg("%s of %d, mistake %d, round %d: '%s' in full, '%s'", pipeline_name(way->kind),
                     way->pp, (int)mistake, i, a.text, b.text);
        assert_true(less.n_walked <= full.n_walked);
        n_refused[mistake] += wanted < 0;
        *n_accepted += wanted == 0 && less.n_walked < full.n_walked;
    }
    program_release(&p);
}

static void as_in_full(void **state)
{
    int n_refused[N_MISTAKES] = { 0 }, n_accepted = 0;

    (void)state;
    for (int i = 0; i < N_WAYS; i++)
        same_answers(&ways[i], (uint64_t)i + 1, 20 * N_MISTAKES, n_refused, &n_accepted);
    for (int i = 0; i < N_MISTAKES; i++)
        assert_true(n_refused[i] > 0);
    /* Harmless ones among them, of which something was left out nevertheless. */
    assert_true(n_accepted > 50);
}

/* ---- rounds that are alike but for what they find ---- */

enum { N_ROUNDS = 10 };

struct hand {
    struct program program;
    struct action actions[4 * N_ROUNDS];
    int n_actions;
};

static void hand_open(struct hand *h)
{
    struct mesh mesh = mesh_data_parallel(2);

    memset(h, 0, sizeof *h);
    program_init(&h->program, &mesh);
}

static int cell(struct hand *h, enum cell_role role, const char *name, int cols, enum spread spread)
{
    int id = program_cell(&h->program, role, name, 1, cols, DTYPE_F32);

    h->program.values[id].spread[AXIS_DP] = spread;
    return id;
}

/* A function of one op. */
static int function_of(struct hand *h, enum op_kind kind, enum first_mode first, int in, int out)
{
    int f = program_function(&h->program, op_info(kind)->name, 0);

    program_emit(&h->program, f,
                 &(struct op){ .kind = kind,
                               .attributes.axis = AXIS_DP,
                               .in = { in },
                               .out = { out },
                               .first = first,
                               .layer = -1 });
    return f;
}

static void load(struct hand *h, int micro_batch)
{
    h->actions[h->n_actions++] = (struct action){ .kind = ACTION_LOAD, .micro_batch = micro_batch };
}

static void run(struct hand *h, int function, int micro_batch, int first)
{
    h->actions[h->n_actions++] = (struct action){ .kind = ACTION_RUN,
                                                  .function = (int16_t)function,
                                                  .first = (uint8_t)first,
                                                  .micro_batch = micro_batch };
}

/* text: of the error, or NULL if there is to be none. */
static void hand_is(struct hand *h, const char *text)
{
    struct verify_way full = { .in_full = 1 }, less = { 0 };
    struct err a = { 0 }, b = { 0 };

    h->program.entries[ENTRY_STEP] = (struct entry){ h->actions, h->n_actions };
    assert_int_equal(verify_in_way(&h->program, &full, &a), text ? -1 : 0);
    assert_int_equal(verify_in_way(&h->program, &less, &b), text ? -1 : 0);
    if (text && (!strstr(a.text, text) || strcmp(a.text, b.text) != 0))
        fail_msg("'%s' in full, '%s'", a.text, b.text);
    if (!text)
        assert_true(less.n_walked < full.n_walked);
}

/* What comes after the rounds finds them done: not those before the last one again. */
static void out_of_order_after_rounds(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++)
        for (int again = 2; again < N_ROUNDS; again++) {
            struct hand h;

            hand_open(&h);
            int from = cell(&h, ROLE_MASTER, "from", 16, SPREAD_PARTIAL);
            int grad = cell(&h, ROLE_GRADIENT, "grad", 16, SPREAD_PARTIAL);
            int add = function_of(&h, OP_ACCUMULATE, FIRST_MICRO_BATCH, from, grad);
            /* The first round adds what was added already, which the others don't. */
            if (ahead)
                run(&h, add, 0, 1);
            for (int m = 0; m < N_ROUNDS; m++) {
                load(&h, m);
                run(&h, add, m, m == 0 && !ahead);
            }
            run(&h, add, again, 0);
            hand_is(&h, again == N_ROUNDS - 1 ? NULL : "takes micro-batches out of order");
            program_release(&h.program);
        }
}

/* The first round may add to the sum, and begins to reduce it: the second may not. */
static void sum_begun_in_the_first_round(void **state)
{
    struct hand h;

    (void)state;
    hand_open(&h);
    int from = cell(&h, ROLE_MASTER, "from", 16, SPREAD_PARTIAL);
    int grad = cell(&h, ROLE_GRADIENT, "grad", 16, SPREAD_PARTIAL);
    int sum = cell(&h, ROLE_GRADIENT, "sum", 16, SPREAD_SAME);
    int add = function_of(&h, OP_ACCUMULATE, FIRST_MICRO_BATCH, from, grad);
    int reduce = function_of(&h, OP_ALL_REDUCE, FIRST_MICRO_BATCH, grad, sum);
    load(&h, 0);
    run(&h, add, 0, 1);
    for (int m = 1; m < N_ROUNDS; m++) {
        load(&h, m);
        run(&h, add, m, 0);
        run(&h, reduce, m, 0);
    }
    hand_is(&h, "step, micro-batch 2: program: accumulate: accumulate");
    program_release(&h.program);
}

/* What the first round finds whole it leaves updated in parts. */
static void weights_split_in_the_first_round(void **state)
{
    struct hand h;

    (void)state;
    hand_open(&h);
    int weights = cell(&h, ROLE_WEIGHT, "weights", 16, SPREAD_SAME);
    int own = program_local_shard(&h.program, "weights:shard", weights, AXIS_DP);
    int moment = cell(&h, ROLE_MOMENT1, "moment", 8, SPREAD_COLS);
    int read = cell(&h, ROLE_MASTER, "read", 16, SPREAD_SAME);
    int gather = function_of(&h, OP_ALL_GATHER, FIRST_ALWAYS, own, weights);
    int reads = function_of(&h, OP_ACCUMULATE, FIRST_NEVER, weights, read);
    int writes = function_of(&h, OP_ACCUMULATE, FIRST_NEVER, moment, own);
    run(&h, gather, -1, 0);
    for (int m = 0; m < N_ROUNDS; m++) {
        load(&h, m);
        run(&h, reads, m, 0);
        run(&h, writes, m, 0);
    }
    hand_is(&h, "is read as whole before its shards were gathered");
    program_release(&h.program);
}

/* The first round finds one bucket's weights, and leaves another's in their place. */
static void other_bucket_in_the_first_round(void **state)
{
    struct hand h;
    int shards[2], gathered[2], gathers[2];

    (void)state;
    hand_open(&h);
    int staging = cell(&h, ROLE_WEIGHT, "staging", 16, SPREAD_SAME);
    int read = cell(&h, ROLE_MASTER, "read", 16, SPREAD_SAME);
    for (int i = 0; i < 2; i++) {
        shards[i] = cell(&h, ROLE_WEIGHT, i ? "one" : "zero", 8, SPREAD_COLS);
        gathered[i] = program_view(&h.program, staging, 0, 1, 16, 16);
        h.program.values[shards[i]].bucket = h.program.values[gathered[i]].bucket = 1 + i;
        gathers[i] = function_of(&h, OP_ALL_GATHER, FIRST_ALWAYS, shards[i], gathered[i]);
    }
    int reads = function_of(&h, OP_ACCUMULATE, FIRST_NEVER, gathered[0], read);
    run(&h, gathers[0], -1, 0);
    for (int m = 0; m < N_ROUNDS; m++) {
        load(&h, m);
        run(&h, reads, m, 0);
        run(&h, gathers[1], m, 0);
    }
    hand_is(&h, "is read where another bucket was gathered since");
    program_release(&h.program);
}

/* ---- how often the same comes ---- */

static void rounds_are_counted(void **state)
{
    struct action actions[12];
    struct entry e = { actions, 12 };

    (void)state;
    for (int i = 0; i < 12; i++)
        actions[i] = (struct action){ .kind = ACTION_RUN,
                                      .function = (int16_t)(i % 3),
                                      .micro_batch = 2 * (i / 3) };
    assert_int_equal(order_count_rounds(&e, 3, 3, 2, 100), 3);
    assert_int_equal(order_count_rounds(&e, 3, 3, 2, 2), 2);
    assert_int_equal(order_count_rounds(&e, 6, 6, 4, 100), 1);
    assert_int_equal(order_count_rounds(&e, 4, 3, 2, 100), 2);
    assert_int_equal(order_count_rounds(&e, 3, 3, 1, 100), 0);
    assert_int_equal(order_count_rounds(&e, 2, 3, 2, 100), 0);
    assert_int_equal(order_count_rounds(&e, 3, 0, 2, 100), 0);
    actions[10].first = 1;
    assert_int_equal(order_count_rounds(&e, 3, 3, 2, 100), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_for_more),
        cmocka_unit_test(as_in_full),
        cmocka_unit_test(out_of_order_after_rounds),
        cmocka_unit_test(sum_begun_in_the_first_round),
        cmocka_unit_test(weights_split_in_the_first_round),
        cmocka_unit_test(other_bucket_in_the_first_round),
        cmocka_unit_test(rounds_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
