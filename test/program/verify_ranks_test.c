/*
 * verify_ranks_test.c - every mesh of compiled programs passes, and none does once a collective,
 * send or receive of one rank is missing, doubled or misplaced
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/tiny_model.h"

enum { N_LAYERS = 8, STAGES_MAX = 4, RANKS_MAX = 32 };

struct way {
    enum pipeline_kind kind;
    int tp, dp, pp, n_chunks, n_micro_batches;
    int zero, early, sequence_parallel;
    enum recompute_kind recompute;
    const char *model;
};

/* Of all ranks, as each compiles its own: those of one stage the same. */
struct fleet {
    struct mesh mesh;
    int n;
    struct program stages[STAGES_MAX];
    const struct program *list[RANKS_MAX];
    /* One rank has a copy that a test may change; what it points to is in `arena`. */
    struct program spoilt;
    struct arena arena;
};

static void fleet_open(struct fleet *f, const struct way *way)
{
    struct model_spec spec = tiny_spec(way->model);
    struct err err;

    memset(f, 0, sizeof *f);
    f->mesh = mesh_data_parallel(way->dp);
    f->mesh.size[AXIS_TP] = way->tp;
    f->mesh.size[AXIS_PP] = way->pp;
    f->n = mesh_world_size(&f->mesh);
    spec.n_layers = N_LAYERS;
    for (int stage = 0; stage < way->pp; stage++) {
        struct compile_train options = tiny_compile(&spec, way->dp);

        options.mesh = f->mesh;
        options.n_micro_batches = way->n_micro_batches;
        options.sequence_parallel = way->sequence_parallel;
        options.recompute = way->recompute;
        options.pipeline.kind = way->kind;
        options.pipeline.n_chunks = way->n_chunks;
        options.pipeline.rank = stage;
        options.gradients.zero = way->zero;
        options.gradients.early = way->early;
        if (compile_train(&f->stages[stage], &options, &err) < 0)
            fail_msg("%s, tp %d, dp %d, pp %d, zero %d: %s", pipeline_name(way->kind), way->tp,
                     way->dp, way->pp, way->zero, err.text);
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

static void *copy_of(struct arena *arena, const void *items, size_t n_bytes)
{
    return memcpy(arena_alloc(arena, n_bytes), items, n_bytes);
}

/* The rank's program, to be changed in one place. An earlier one is whole again. */
static struct program *fleet_spoil(struct fleet *f, int rank)
{
    struct program *p = &f->spoilt;

    for (int i = 0; i < f->n; i++)
        f->list[i] = &f->stages[mesh_coordinate(&f->mesh, i, AXIS_PP)];
    arena_release(&f->arena);
    *p = *f->list[rank];
    p->values = copy_of(&f->arena, p->values, sizeof *p->values * (size_t)p->n_values);
    p->functions = copy_of(&f->arena, p->functions, sizeof *p->functions * (size_t)p->n_functions);
    /* Room for one op or action more. */
    for (int i = 0; i < p->n_functions; i++) {
        struct function *function = &p->functions[i];
        struct op *ops = arena_array(&f->arena, struct op, function->n_ops + 1);

        function->ops = memcpy(ops, function->ops, sizeof *ops * (size_t)function->n_ops);
    }
    for (int e = 0; e < N_ENTRIES; e++) {
        struct entry *entry = &p->entries[e];
        struct action *actions = arena_array(&f->arena, struct action, entry->n_actions + 1);

        if (entry->n_actions)
            memcpy(actions, entry->actions, sizeof *actions * (size_t)entry->n_actions);
        entry->actions = actions;
    }
    f->list[rank] = p;
    return p;
}

static void accepted(const struct fleet *f)
{
    struct err err;

    if (verify_ranks(f->list, &f->mesh, &err) < 0)
        fail_msg("%s", err.text);
}

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

static int is_chunked(enum pipeline_kind kind)
{
    return kind == PIPELINE_INTERLEAVED || kind == PIPELINE_BREADTH_FIRST || kind == PIPELINE_ZB_V;
}

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

/* Numbers that are the same in each run. */
static uint32_t draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % (uint32_t)n;
}

static struct way draw_way(uint64_t *seed)
{
    struct way way = { .kind = (enum pipeline_kind)draw(seed, PIPELINE_DYNAMIC),
                       .tp = 1 << draw(seed, 3),
                       .dp = 1 << draw(seed, 2),
                       .pp = 1 << draw(seed, 3),
                       .n_micro_batches = 1 + (int)draw(seed, 6),
                       .zero = (int)draw(seed, 3),
                       .early = (int)draw(seed, 2),
                       .sequence_parallel = (int)draw(seed, 2),
                       .recompute = (enum recompute_kind)draw(seed, 3),
                       .model = draw(seed, 2) ? "gpt2" : "llama" };

    way.n_chunks = is_chunked(way.kind) ? 2 : 1;
    return way;
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

static void swap_actions(struct entry *entry, int i, int k)
{
    struct action action = entry->actions[i];

    entry->actions[i] = entry->actions[k];
    entry->actions[k] = action;
}

static void remove_action(struct entry *entry, int i)
{
    memmove(&entry->actions[i], &entry->actions[i + 1],
            sizeof *entry->actions * (size_t)(entry->n_actions - i - 1));
    entry->n_actions--;
}

static void double_action(struct entry *entry, int i)
{
    memmove(&entry->actions[i + 1], &entry->actions[i],
            sizeof *entry->actions * (size_t)(entry->n_actions - i));
    entry->n_actions++;
}

static void swap_ops(struct function *f, int i, int k)
{
    struct op op = f->ops[i];

    f->ops[i] = f->ops[k];
    f->ops[k] = op;
}

static void remove_op(struct function *f, int i)
{
    memmove(f->ops + i, f->ops + i + 1, sizeof *f->ops * (size_t)(f->n_ops - i - 1));
    f->n_ops--;
}

static void double_op(struct function *f, int i)
{
    memmove(f->ops + i + 1, f->ops + i, sizeof *f->ops * (size_t)(f->n_ops - i));
    f->n_ops++;
}

/* Ranks of tp 2, dp 2, pp 2: world rank = tp + 2 dp + 4 pp. */
static const struct way eight = { .kind = PIPELINE_1F1B,
                                  .tp = 2,
                                  .dp = 2,
                                  .pp = 2,
                                  .n_chunks = 1,
                                  .n_micro_batches = 4,
                                  .zero = 1,
                                  .sequence_parallel = 1,
                                  .model = "llama" };

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
static void ring(void **state)
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

/* ---- any one mistake ---- */

/* What each stream does, in order, in all entries: a number for each. */
struct signature {
    uint64_t streams[N_STREAMS];
};

static void mix(uint64_t *hash, int number)
{
    *hash = (*hash ^ (uint64_t)(unsigned)number) * 1099511628211u;
}

static struct signature signature_of(const struct program *p)
{
    struct signature s = { { 0 } };

    for (int e = 0; e < N_ENTRIES; e++)
        for (int i = 0; i < p->entries[e].n_actions; i++) {
            const struct action *a = &p->entries[e].actions[i];
            const struct function *f = &p->functions[a->function];

            for (int k = 0; a->kind == ACTION_RUN && k < f->n_ops; k++) {
                const struct op *op = &f->ops[k];
                uint64_t *hash = &s.streams[op->stream];

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind),           cmocka_unit_test(random_meshes),
        cmocka_unit_test(crossed_sends),        cmocka_unit_test(missing_transfers),
        cmocka_unit_test(missing_collectives),  cmocka_unit_test(other_sizes_and_kinds),
        cmocka_unit_test(swapped_for_its_like), cmocka_unit_test(other_micro_batches_and_functions),
        cmocka_unit_test(two_streams),          cmocka_unit_test(ring),
        cmocka_unit_test(one_mistake_anywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
