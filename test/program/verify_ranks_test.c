/*
 * verify_ranks_test.c - every mesh of compiled programs passes, and none does once a collective,
 * send or receive of one rank is missing, doubled or misplaced
 */
#include "rank_programs.h"

/* Words: up to four texts that the message must contain. */
static void check_refused(const struct fleet *f, const char *const words[4])
{
    struct err err = { 0 };

    assert_int_equal(verify_ranks(f->list, &f->mesh, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    for (int i = 0; i < 4; i++)
        if (words[i] && !strstr(err.text, words[i]))
            fail_msg("'%s' is not in: %s", words[i], err.text);
}

#define REFUSED(fleet, ...) check_refused(fleet, (const char *const[4]){ __VA_ARGS__ })

/* ---- what is compiled passes ---- */

/* The stages alone, as the trainer has them checked, and all ranks. */
static void every_kind(void **state)
{
    (void)state;
    for (int kind = 0; kind < PIPELINE_DYNAMIC; kind++)
        for (int pp = 2; pp <= STAGES_MAX; pp++) {
            struct way way = { .kind = (enum pipeline_kind)kind,
                               .tp = 1,
                               .dp = 1 + pp % 2,
                               .pp = pp,
                               .n_chunks = is_chunked((enum pipeline_kind)kind) ? 2 : 1,
                               .n_micro_batches = 8,
                               .zero = pp % 2,
                               .model = pp % 2 ? "gpt2" : "llama" };
            struct fleet f;
            struct mesh stages = mesh_data_parallel(1);
            const struct program *list[STAGES_MAX];

            fleet_open(&f, &way);
            accepted(&f);
            stages.size[AXIS_PP] = pp;
            for (int i = 0; i < pp; i++)
                list[i] = &f.stages[i];
            struct err err;
            if (verify_ranks(list, &stages, &err) < 0)
                fail_msg("%s", err.text);
            fleet_close(&f);
        }
}

static void random_meshes(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (int i = 0; i < 60; i++) {
        struct way way = draw_way(&seed);
        struct fleet f;

        fleet_open(&f, &way);
        accepted(&f);
        fleet_close(&f);
    }
}

/* ---- one mistake ---- */

/* The n-th action of the step that runs a function whose name begins so. */
static int find_run(const struct program *p, const char *name, int n)
{
    const struct entry *step = &p->entries[ENTRY_STEP];

    for (int i = 0; i < step->n_actions; i++)
        if (step->actions[i].kind == ACTION_RUN &&
            !strncmp(p->functions[step->actions[i].function].name, name, strlen(name)) && !n--)
            return i;
    fail_msg("no '%s'", name);
    return -1;
}

static struct function *find_function(const struct program *p, const char *name)
{
    for (int i = 0; i < p->n_functions; i++)
        if (!strcmp(p->functions[i].name, name))
            return &p->functions[i];
    fail_msg("no '%s'", name);
    return NULL;
}

/* The n-th op of that kind over the axis. */
static int find_op(const struct function *f, enum op_kind kind, enum mesh_axis axis, int n)
{
    for (int i = 0; i < f->n_ops; i++)
        if (f->ops[i].kind == kind && f->ops[i].attributes.axis == axis && !n--)
            return i;
    fail_msg("%s has no %s over %s", f->name, op_info(kind)->name, axis_name(axis));
    return -1;
}

#define FIVE "tp rank 1, dp rank 0, pp rank 1 (world rank 5)"
#define FOUR "tp rank 0, dp rank 0, pp rank 1 (world rank 4)"
#define ONE "tp rank 1, dp rank 0, pp rank 0 (world rank 1)"
#define SEVEN "tp rank 1, dp rank 1, pp rank 1 (world rank 7)"

static void crossed_sends(void **state)
{
    struct fleet f;
    struct program *p;

    (void)state;
    fleet_open(&f, &eight);
    accepted(&f);
    p = fleet_spoil(&f, 5);
    swap_actions(&p->entries[ENTRY_STEP], find_run(p, "receive forward", 2),
                 find_run(p, "receive forward", 3));
    REFUSED(&f, FIVE " enters receive over pp", "in receive forward 0, micro-batch 3",
            "where " ONE " enters send", "other micro-batches");

    p = fleet_spoil(&f, 5);
    swap_actions(&p->entries[ENTRY_STEP], find_run(p, "send backward", 0),
                 find_run(p, "send backward", 1));
    REFUSED(&f, FIVE " enters send over pp", ONE " enters receive over pp", "in send backward 0",
            "other micro-batches");
    fleet_close(&f);
}

static void missing_transfers(void **state)
{
    struct fleet f;
    struct program *p;

    (void)state;
    fleet_open(&f, &eight);
    p = fleet_spoil(&f, 5);
    remove_action(&p->entries[ENTRY_STEP], find_run(p, "receive forward", 3));
    REFUSED(&f, "deadlock", ONE " waits in send over pp of 1024 bytes (fp32)",
            "send forward 0, micro-batch 3 for " FIVE);

    p = fleet_spoil(&f, 5);
    remove_action(&p->entries[ENTRY_STEP], find_run(p, "send backward", 0));
    REFUSED(&f, FIVE, ONE, "in receive backward 0, micro-batch 0", "other micro-batches");
    fleet_close(&f);
}

static void missing_collectives(void **state)
{
    struct fleet f;
    struct program *p;
    struct function *function;

    (void)state;
    fleet_open(&f, &eight);
    p = fleet_spoil(&f, 5);
    function = find_function(p, "forward 0");
    remove_op(function, find_op(function, OP_ALL_GATHER, AXIS_TP, 0));
    REFUSED(&f, "other kinds of collective at one place", FIVE " enters reduce_scatter over tp",
            FOUR " enters all_gather over tp", "in forward 0, layer 4, micro-batch 0");

    /* Nothing comes after it: the others wait, and so do all who wait for those. */
    p = fleet_spoil(&f, 5);
    function = find_function(p, "evaluate end");
    remove_op(function, find_op(function, OP_ALL_REDUCE_SCALAR, AXIS_DP, 0));
    REFUSED(&f, "evaluate_end: deadlock",
            SEVEN " waits in all_reduce_scalar over dp of 8 bytes (fp64) eval_loss -> eval_total "
                  "in evaluate end, micro-batch 0 for " FIVE);

    p = fleet_spoil(&f, 1);
    remove_action(&p->entries[ENTRY_STEP], find_run(p, "update", 0));
    REFUSED(&f, "deadlock", "in update for " ONE ", which is at its end");

    p = fleet_spoil(&f, 1);
    for (int i = 0; i < p->entries[ENTRY_STEP].n_actions; i++)
        if (p->entries[ENTRY_STEP].actions[i].kind == ACTION_GATE)
            remove_action(&p->entries[ENTRY_STEP], i);
    REFUSED(&f, "deadlock", FOUR " waits at the gate for " ONE);
    fleet_close(&f);
}

static void other_sizes_and_kinds(void **state)
{
    struct fleet f;
    struct program *p;
    struct function *function;

    (void)state;
    fleet_open(&f, &eight);
    p = fleet_spoil(&f, 5);
    int received = find_function(p, "receive forward 0")->ops[0].out[0];
    p->values[received].cols /= 2;
    REFUSED(&f, "other sizes", FIVE " enters receive over pp of 512 bytes",
            ONE " enters send over pp of 1024 bytes");

    p = fleet_spoil(&f, 5);
    p->values[received].dtype = DTYPE_I32;
    REFUSED(&f, "other types", FIVE " enters receive over pp of 1024 bytes (i32)",
            ONE " enters send over pp of 1024 bytes (fp32)");

    p = fleet_spoil(&f, 1);
    function = find_function(p, "backward 0");
    int i = find_op(function, OP_REDUCE_SCATTER, AXIS_TP, 0), whole = function->ops[i].in[0];
    p->values[whole].cols /= 2;
    REFUSED(&f, "other sizes", ONE " enters reduce_scatter over tp of 512 bytes (bf16)",
            "enters reduce_scatter over tp of 1024 bytes (bf16)", "in backward 0, layer 3");

    p = fleet_spoil(&f, 1);
    p->values[whole].dtype = DTYPE_I32;
    REFUSED(&f, "other types", ONE " enters reduce_scatter");

    p = fleet_spoil(&f, 1);
    function = find_function(p, "backward 0");
    function->ops[i].kind = OP_ALL_REDUCE;
    REFUSED(&f, "other kinds of collective at one place", ONE " enters all_reduce over tp",
            "(world rank 0) enters reduce_scatter over tp", "in backward 0, layer 3");
    fleet_close(&f);

    /* Four ranks share two kv heads by twos. */
    struct way way = eight;
    way.tp = 4;
    fleet_open(&f, &way);
    p = fleet_spoil(&f, 1);
    function = find_function(p, "forward 0");
    function->ops[find_op(function, OP_GATHER_HEADS, AXIS_TP, 0)].attributes.group = 4;
    REFUSED(&f, "other kinds of collective at one place", "gather_heads over tp");
    fleet_close(&f);
}

/* Alike in kind and size, so that nobody would hang, but not the same thing. */
static void swapped_for_its_like(void **state)
{
    struct way way = eight;
    struct fleet f;
    struct program *p;
    struct function *function;

    (void)state;
    fleet_open(&f, &eight);
    p = fleet_spoil(&f, 5);
    function = find_function(p, "forward 0");
    swap_ops(function, find_op(function, OP_ALL_GATHER, AXIS_TP, 0),
             find_op(function, OP_ALL_GATHER, AXIS_TP, 1));
    REFUSED(&f, "other operands", FIVE " enters all_gather over tp of 512 bytes (bf16)",
            FOUR " enters all_gather over tp of 512 bytes (bf16)", "in forward 0, layer 4");

    /* Stages have programs of their own: there it is names that tell. */
    p = fleet_spoil(&f, 5);
    function = find_function(p, "update");
    int sum = find_op(function, OP_ALL_REDUCE_SCALAR, AXIS_PP, 0);
    p->values[function->ops[sum].out[0]].name = "other";
    REFUSED(&f, "other operands", FIVE " enters all_reduce_scalar over pp", "-> other in update",
            "-> loss_total_all_stages in update");
    fleet_close(&f);

    way.kind = PIPELINE_INTERLEAVED;
    way.n_chunks = 2;
    fleet_open(&f, &way);
    accepted(&f);
    p = fleet_spoil(&f, 5);
    /* The second micro-batch goes through both chunks in the other order. */
    swap_actions(&p->entries[ENTRY_STEP], find_run(p, "receive forward 0", 1),
                 find_run(p, "receive forward 1", 1));
    REFUSED(&f, FIVE " enters receive over pp", ONE " enters send over pp");
    fleet_close(&f);
}

/* One rank runs the forwards of two micro-batches in the other order, or of another function. */
static void other_micro_batches_and_functions(void **state)
{
    struct way way = eight;
    struct fleet f;
    struct program *p;

    (void)state;
    way.pp = 1;
    way.kind = PIPELINE_GPIPE;
    fleet_open(&f, &way);
    p = fleet_spoil(&f, 1);
    struct action *actions = p->entries[ENTRY_STEP].actions;
    int i = find_run(p, "forward 0", 1), k = find_run(p, "forward 0", 2);
    actions[i].micro_batch = 2;
    actions[k].micro_batch = 1;
    REFUSED(&f, "other micro-batches",
            "tp rank 1, dp rank 0 (world rank 1) enters reduce_scatter over tp",
            "in forward 0, micro-batch 2", "in forward 0, micro-batch 1");

    p = fleet_spoil(&f, 1);
    find_function(p, "forward 0")->name = "evaluate 0";
    REFUSED(&f, "other functions", "in evaluate 0, micro-batch 0", "in forward 0, micro-batch 0");
    fleet_close(&f);
}

/* Over one communicator from two streams, whose order nobody knows. */
static void two_streams(void **state)
{
    struct way way = eight;
    struct fleet f;
    struct program *p;
    struct function *function;

    (void)state;
    way.kind = PIPELINE_INTERLEAVED;
    way.n_chunks = 2;
    fleet_open(&f, &way);
    p = fleet_spoil(&f, 1);
    find_function(p, "send forward 1")->ops[0].stream = STREAM_F_TO_PREVIOUS;
    REFUSED(&f, ONE ", send over pp",
            "in send forward 1, micro-batch 0: a channel has transfers "
            "on two streams");

    p = fleet_spoil(&f, 1);
    function = find_function(p, "update");
    function->ops[find_op(function, OP_ALL_REDUCE_SCALAR, AXIS_PP, 0)].stream = STREAM_F_TO_NEXT;
    REFUSED(&f, ONE ", all_reduce_scalar over pp", "in update: a collective on a stream of sends");
    fleet_close(&f);
}

/* Received only when they are used, breadth-first's transfers wait for each other in a ring. */
static void transfers_in_a_ring(void **state)
{
    static const struct way way = { .kind = PIPELINE_BREADTH_FIRST,
                                    .tp = 1,
                                    .dp = 1,
                                    .pp = 2,
                                    .n_chunks = 2,
                                    .n_micro_batches = 8,
                                    .model = "llama" };
    struct fleet f;

    (void)state;
    fleet_open(&f, &way);
    accepted(&f);
    for (int rank = 0; rank < 2; rank++)
        for (int m = way.n_micro_batches - 1; m >= 0; m--) {
            struct program *p = &f.stages[rank];
            struct entry *step = &p->entries[ENTRY_STEP];
            int i = find_run(p, "receive forward 1", m), to = i;

            while (strcmp(p->functions[step->actions[to].function].name, "forward 1") != 0 ||
                   step->actions[to].kind != ACTION_RUN ||
                   step->actions[to].micro_batch != step->actions[i].micro_batch)
                to++;
            for (; i + 1 < to; i++)
                swap_actions(step, i, i + 1);
        }
    REFUSED(&f, "deadlock", "pp rank 0 (world rank 0) waits in send over pp",
            "for pp rank 1 (world rank 1)", "pp rank 1 (world rank 1) waits in send over pp");
    fleet_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind),           cmocka_unit_test(random_meshes),
        cmocka_unit_test(crossed_sends),        cmocka_unit_test(missing_transfers),
        cmocka_unit_test(missing_collectives),  cmocka_unit_test(other_sizes_and_kinds),
        cmocka_unit_test(swapped_for_its_like), cmocka_unit_test(other_micro_batches_and_functions),
        cmocka_unit_test(two_streams),          cmocka_unit_test(transfers_in_a_ring),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
