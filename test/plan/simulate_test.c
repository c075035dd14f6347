/*
 * simulate_test.c - a step's time against the pipelines' own, against itself, and in closed form
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "plan/simulate.h"
#include "support/tiny_model.h"

enum { RANKS_MAX = 8, FUNCTIONS_MAX = 64, ALL = -1 };

struct way {
    enum pipeline_kind kind;
    int pp, n_chunks, n_micro_batches;
    int dp, zero, early;
};

/* The programs of a pipeline's ranks, and what their ops cost. */
struct fleet {
    struct way way;
    struct mesh mesh;
    struct program stages[RANKS_MAX];
    const struct program *list[RANKS_MAX];
    struct simulated_op *ops[RANKS_MAX][FUNCTIONS_MAX];
    const struct simulated_op *const *by_rank[RANKS_MAX];
    struct arena arena;
};

static void fleet_open(struct fleet *f, const struct way *way)
{
    struct model_spec spec = tiny_spec("llama");
    struct err err;

    memset(f, 0, sizeof *f);
    f->way = *way;
    f->mesh = mesh_pipeline(way->pp);
    spec.n_layers = max_int(2, way->pp * way->n_chunks);
    for (int rank = 0; rank < way->pp; rank++) {
        int dp = max_int(1, way->dp);
        struct compile_train options = tiny_compile(&spec, dp);

        options.mesh = mesh_data_parallel(dp);
        options.mesh.size[AXIS_PP] = way->pp;
        options.n_micro_batches = way->n_micro_batches;
        options.pipeline.kind = way->kind;
        options.pipeline.n_chunks = way->n_chunks;
        options.pipeline.rank = rank;
        options.gradients.zero = way->zero;
        options.gradients.early = way->early;
        struct program *p = &f->stages[rank];
        if (compile_train(p, &options, &err) < 0)
            fail_msg("%s, pp %d: %s", pipeline_name(way->kind), way->pp, err.text);
        assert_true(p->n_functions <= FUNCTIONS_MAX);
        for (int i = 0; i < p->n_functions; i++)
            f->ops[rank][i] =
                arena_array(&f->arena, struct simulated_op, max_int(1, p->functions[i].n_ops));
        f->list[rank] = p;
        f->by_rank[rank] = (const struct simulated_op *const *)f->ops[rank];
    }
}

static void fleet_close(struct fleet *f)
{
    for (int rank = 0; rank < f->way.pp; rank++)
        program_release(&f->stages[rank]);
    arena_release(&f->arena);
}

static struct simulated_step run(struct fleet *f, bool in_full, const struct simulate_watch *watch)
{
    struct simulate_request request = { .programs = f->list,
                                        .mesh = &f->mesh,
                                        .entry = ENTRY_STEP,
                                        .ops = f->by_rank,
                                        .in_full = in_full,
                                        .watch = watch };
    struct simulated_step made;
    struct err err;

    if (simulate(&made, &request, &f->arena, &err) < 0)
        fail_msg("%s, pp %d, v %d, m %d: %s", pipeline_name(f->way.kind), f->way.pp,
                 f->way.n_chunks, f->way.n_micro_batches, err.text);
    for (int rank = 0; rank < made.n_ranks; rank++) {
        int64_t sum = 0;

        for (int i = 0; i < N_TIME_CLASSES; i++)
            sum += made.ranks[rank].of[i];
        assert_int_equal(sum, made.ns);
    }
    return made;
}

/* Numbers that are the same in each run. */
static int draw(uint64_t *seed, int n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((*seed >> 33) % (uint64_t)n);
}

/* ---- what the pipelines' own simulation says ---- */

/* Its last op: after all that the function waits for and before what it sends, which functions of
 * their own do. NULL: there is no such function. */
static struct simulated_op *last_of(struct fleet *f, int rank, const char *kind, int chunk)
{
    const struct program *p = f->list[rank];
    char name[32];

    snprintf(name, sizeof name, "%s %d", kind, chunk);
    for (int i = 0; i < p->n_functions; i++)
        if (!strcmp(p->functions[i].name, name))
            return &f->ops[rank][i][p->functions[i].n_ops - 1];
    return NULL;
}

static void price_stage(struct fleet *f, int rank, int chunk, const int64_t costs[3])
{
    struct simulated_op *forward = last_of(f, rank, "forward", chunk);
    struct simulated_op *backward = last_of(f, rank, "backward", chunk);
    struct simulated_op *weight = last_of(f, rank, "weight", chunk);

    assert_true(forward && backward);
    forward->ns = costs[0];
    backward->ns = costs[1] + (weight ? 0 : costs[2]);
    if (weight)
        weight->ns = costs[2];
}

/* Costs of all stages, of F, I and W: all alike, or each another. */
static void draw_costs(int64_t costs[3][64], uint64_t *seed, bool is_even)
{
    int64_t alike = 1 + draw(seed, 1000);

    for (int i = 0; i < 3; i++)
        for (int s = 0; s < 64; s++)
            costs[i][s] = is_even ? alike : 1 + draw(seed, 1000);
}

static int64_t pipelines_own(const struct way *way, int64_t costs[3][64], struct arena *arena)
{
    struct pipeline_spec spec = { .kind = way->kind,
                                  .n_ranks = way->pp,
                                  .n_chunks = way->n_chunks,
                                  .n_micro_batches = way->n_micro_batches };
    struct pipeline_costs all = { .f = costs[0], .i = costs[1], .w = costs[2] };
    struct pipeline pipeline;
    struct pipeline_timing timing;
    struct err err;

    assert_int_equal(pipeline_build(&pipeline, &spec, arena, &err), 0);
    assert_int_equal(pipeline_simulate(&timing, &pipeline, &all, arena, &err), 0);
    return timing.makespan;
}

static void price_pipeline(struct fleet *f, int64_t costs[3][64])
{
    struct pipeline_spec spec = { .kind = f->way.kind,
                                  .n_ranks = f->way.pp,
                                  .n_chunks = f->way.n_chunks,
                                  .n_micro_batches = f->way.n_micro_batches };

    for (int rank = 0; rank < spec.n_ranks; rank++)
        for (int chunk = 0; chunk < spec.n_chunks; chunk++) {
            int stage = pipeline_stage_of(&spec, rank, chunk);

            price_stage(f, rank, chunk,
                        (int64_t[]){ costs[0][stage], costs[1][stage], costs[2][stage] });
        }
}

/* Receives of the others have room for what even stages need; others may wait for it, which
 * pipeline_simulate knows nothing of. */
static bool never_lacks_room(enum pipeline_kind kind)
{
    return kind == PIPELINE_GPIPE || kind == PIPELINE_1F1B || kind == PIPELINE_ZB_H1;
}

/* Without times of transfers. */
static void compare(const struct way *way, uint64_t *seed)
{
    struct fleet f;
    int64_t costs[3][64];

    fleet_open(&f, way);
    for (int is_even = 1; is_even >= 0; is_even--) {
        draw_costs(costs, seed, is_even);
        price_pipeline(&f, costs);
        int64_t expected = pipelines_own(way, costs, &f.arena);
        int64_t found = run(&f, false, NULL).ns;

        if (is_even || never_lacks_room(way->kind) ? found != expected : found < expected)
            fail_msg("%s, pp %d, v %d, m %d: %ld instead of %ld", pipeline_name(way->kind), way->pp,
                     way->n_chunks, way->n_micro_batches, (long)found, (long)expected);
    }
    fleet_close(&f);
}

static void test_pipelines(void **state)
{
    static const int micro_batches[] = { 1, 2, 3, 8, 16 }, ranks[] = { 1, 2, 3, 4, 8 };
    uint64_t seed = 1;

    (void)state;
    for (int kind = 0; kind < PIPELINE_DYNAMIC; kind++)
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 5; j++)
                for (int v = 1; v <= 4; v *= 2) {
                    struct way way = { .kind = (enum pipeline_kind)kind,
                                       .pp = ranks[i],
                                       .n_chunks = v,
                                       .n_micro_batches = micro_batches[j] };
                    struct pipeline_spec spec = { .kind = way.kind,
                                                  .n_ranks = way.pp,
                                                  .n_chunks = v,
                                                  .n_micro_batches = way.n_micro_batches };
                    struct err err;

                    if ((way.pp > 1 || v == 1) && !pipeline_check(&spec, &err))
                        compare(&way, &seed);
                }
}

/* ---- what it says of itself ---- */

static enum time_class draw_class(uint64_t *seed, const struct op *op)
{
    if (op->stream == STREAM_COMPUTE)
        return (enum time_class)draw(seed, TIME_UPDATE);
    return op->kind == OP_SEND || op->kind == OP_RECEIVE ? TIME_TRANSFERS : TIME_GRADIENTS;
}

/* Every op costs something; some async ones slow down what runs beside them. */
static void draw_prices(struct fleet *f, uint64_t *seed, int most_ns, bool has_slowdowns)
{
    for (int rank = 0; rank < f->way.pp; rank++)
        for (int i = 0; i < f->list[rank]->n_functions; i++)
            for (int k = 0; k < f->list[rank]->functions[i].n_ops; k++) {
                const struct op *op = &f->list[rank]->functions[i].ops[k];

                f->ops[rank][i][k] =
                    (struct simulated_op){ .ns = draw(seed, most_ns),
                                           .issue_ns = draw(seed, 4) ? 0 : draw(seed, 300),
                                           .class = draw_class(seed, op),
                                           .slowdown = has_slowdowns ? draw(seed, 3) / 4.0 : 0 };
            }
}

static struct way draw_way(uint64_t *seed)
{
    struct way way = { .kind = (enum pipeline_kind)draw(seed, PIPELINE_DYNAMIC),
                       .pp = 1 << draw(seed, 4),
                       .n_chunks = 1,
                       .n_micro_batches = 1 + draw(seed, 60),
                       .dp = 1 << draw(seed, 2),
                       .zero = draw(seed, 4),
                       .early = draw(seed, 2) };

    if (way.kind == PIPELINE_INTERLEAVED || way.kind == PIPELINE_BREADTH_FIRST)
        way.n_chunks = 1 + draw(seed, 3);
    if (way.kind == PIPELINE_ZB_V)
        way.n_chunks = 2;
    return way;
}

static void is_same(const struct simulated_step *a, const struct simulated_step *b)
{
    assert_int_equal(a->ns, b->ns);
    assert_int_equal(a->busiest, b->busiest);
    for (int rank = 0; rank < a->n_ranks; rank++) {
        assert_int_equal(a->ranks[rank].end, b->ranks[rank].end);
        assert_memory_equal(a->ranks[rank].of, b->ranks[rank].of, sizeof a->ranks[rank].of);
    }
}

/* Rounds that are skipped count as if they had been walked. */
static void test_skips_nothing_that_matters(void **state)
{
    uint64_t seed = 2;
    int n_skipped = 0;

    (void)state;
    for (int i = 0; i < 150; i++) {
        struct way way = draw_way(&seed);
        struct fleet f;

        fleet_open(&f, &way);
        /* Ops long enough for the host to be as far ahead as it can be. */
        draw_prices(&f, &seed, 500 * 1000, i % 2);
        struct simulated_step folded = run(&f, false, NULL), whole = run(&f, true, NULL);
        is_same(&folded, &whole);
        n_skipped += folded.n_walked < whole.n_walked;
        fleet_close(&f);
    }
    assert_true(n_skipped > 30);
}

static void multiply(struct fleet *f, int by)
{
    for (int rank = 0; rank < f->way.pp; rank++)
        for (int i = 0; i < f->list[rank]->n_functions; i++)
            for (int k = 0; k < f->list[rank]->functions[i].n_ops; k++) {
                f->ops[rank][i][k].ns *= by;
                f->ops[rank][i][k].issue_ns *= by;
            }
}

/* In another unit of time all is as before (the host is never 10 ms ahead here). */
static void test_scales(void **state)
{
    uint64_t seed = 3;

    (void)state;
    for (int i = 0; i < 40; i++) {
        struct way way = draw_way(&seed);
        struct fleet f;

        way.n_micro_batches = 1 + way.n_micro_batches % 6;
        fleet_open(&f, &way);
        draw_prices(&f, &seed, 1000, false);
        int64_t once = run(&f, false, NULL).ns;
        multiply(&f, 7);
        assert_int_equal(run(&f, false, NULL).ns, 7 * once);
        fleet_close(&f);
    }
}

/* A slower op makes no step faster: max-plus. */
static void test_is_monotone(void **state)
{
    uint64_t seed = 4;

    (void)state;
    for (int i = 0; i < 40; i++) {
        struct way way = draw_way(&seed);
        struct fleet f;

        fleet_open(&f, &way);
        draw_prices(&f, &seed, 1000, false);
        int64_t before = run(&f, false, NULL).ns;
        for (int n = 0; n < 10; n++) {
            int rank = draw(&seed, way.pp);
            int function = draw(&seed, f.list[rank]->n_functions);
            int n_ops = f.list[rank]->functions[function].n_ops;

            if (!n_ops)
                continue;
            f.ops[rank][function][draw(&seed, n_ops)].ns += 1 + draw(&seed, 2000);
            int64_t after = run(&f, false, NULL).ns;
            assert_true(after >= before);
            before = after;
        }
        fleet_close(&f);
    }
}

/* ---- spans ---- */

struct seen {
    int64_t end[RANKS_MAX][N_STREAMS], busy[RANKS_MAX];
    int n;
};

static void see(void *context, const struct simulated_span *span)
{
    struct seen *seen = context;

    assert_true(span->begin >= seen->end[span->rank][span->stream]);
    assert_true(span->end > span->begin);
    seen->end[span->rank][span->stream] = span->end;
    if (span->stream == STREAM_COMPUTE)
        seen->busy[span->rank] += span->end - span->begin;
    seen->n++;
}

/* They come in order, and those of the compute stream fill the step of every rank. */
static void test_spans(void **state)
{
    uint64_t seed = 5;

    (void)state;
    for (int i = 0; i < 40; i++) {
        struct way way = draw_way(&seed);
        struct seen seen = { .n = 0 };
        const struct simulate_watch watch = { &seen, see };
        struct fleet f;

        fleet_open(&f, &way);
        draw_prices(&f, &seed, 1000, i % 2);
        struct simulated_step made = run(&f, false, &watch);
        for (int rank = 0; rank < way.pp; rank++)
            assert_int_equal(seen.busy[rank], made.ns);
        assert_true(seen.n > 0);
        fleet_close(&f);
    }
}

/* ---- closed forms ---- */

/* F0, T, F1, B1, T, B0. */
static void test_transfers(void **state)
{
    const struct way way = { .kind = PIPELINE_GPIPE, .pp = 2, .n_chunks = 1, .n_micro_batches = 1 };
    struct fleet f;

    (void)state;
    fleet_open(&f, &way);
    price_stage(&f, 0, 0, (int64_t[]){ 1000, 200, 30 });
    price_stage(&f, 1, 0, (int64_t[]){ 5000, 600, 70 });
    for (int rank = 0; rank < 2; rank++)
        for (int i = 0; i < f.list[rank]->n_functions; i++) {
            enum op_kind kind = f.list[rank]->functions[i].ops[0].kind;

            if (kind == OP_SEND || kind == OP_RECEIVE)
                f.ops[rank][i][0] = (struct simulated_op){ .ns = 90, .class = TIME_TRANSFERS };
        }
    struct simulated_step made = run(&f, false, NULL);
    assert_int_equal(made.ns, 1000 + 90 + 5670 + 90 + 230);
    assert_int_equal(made.ranks[0].of[TIME_TRANSFERS], 90);
    assert_int_equal(made.ranks[0].of[TIME_STAGES], 90 + 5670);
    assert_int_equal(made.ranks[1].of[TIME_STAGES] + made.ranks[1].of[TIME_TRANSFERS],
                     1000 + 90 + 90 + 230);
    assert_int_equal(made.busiest, 1);
    fleet_close(&f);
}

/* The backward's first sum of gradients, and the op that comes next. */
static void find_sum(const struct fleet *f, int *function, int *sum, int *next)
{
    const struct program *p = f->list[0];

    for (*function = 0; strcmp(p->functions[*function].name, "backward 0") != 0; ++*function)
        assert_true(*function < p->n_functions);
    const struct function *b = &p->functions[*function];
    for (*sum = 0; b->ops[*sum].stream == STREAM_COMPUTE; ++*sum)
        assert_true(*sum + 1 < b->n_ops);
    *next = *sum + 1;
    assert_true(*next < b->n_ops && b->ops[*next].stream == STREAM_COMPUTE);
}

static int64_t step_beside(struct fleet *f, int64_t ns, int64_t *overlap)
{
    int function, sum, next;

    find_sum(f, &function, &sum, &next);
    f->ops[0][function][sum] =
        (struct simulated_op){ .ns = 1000, .class = TIME_GRADIENTS, .slowdown = 0.5 };
    f->ops[0][function][next].ns = ns;
    struct simulated_step made = run(f, false, NULL);
    *overlap = made.ranks[0].of[TIME_OVERLAP];
    return made.ns;
}

/* Beside an async op of 1000 ns compute takes half as long again. */
static void test_slowdown(void **state)
{
    const struct way way = {
        .kind = PIPELINE_1F1B, .pp = 1, .n_chunks = 1, .n_micro_batches = 1, .dp = 2, .early = 1
    };
    struct fleet f;
    int64_t overlap;

    (void)state;
    fleet_open(&f, &way);
    assert_int_equal(step_beside(&f, 300, &overlap), 1000);
    assert_int_equal(overlap, 150);
    assert_int_equal(step_beside(&f, 3000, &overlap), 1000 + 3000 - 666);
    assert_int_equal(overlap, 334);
    fleet_close(&f);
}

static int count_ops(const struct program *p)
{
    int n = 0;

    for (int i = 0; i < p->entries[ENTRY_STEP].n_actions; i++) {
        const struct action *a = &p->entries[ENTRY_STEP].actions[i];

        n += a->kind == ACTION_RUN ? p->functions[a->function].n_ops : 0;
    }
    return n;
}

static void price_all(struct fleet *f, int64_t ns, int64_t issue_ns)
{
    for (int i = 0; i < f->list[0]->n_functions; i++)
        for (int k = 0; k < f->list[0]->functions[i].n_ops; k++)
            f->ops[0][i][k] = (struct simulated_op){ .ns = ns, .issue_ns = issue_ns };
}

/* The slower of host and device decides; the host is at most SIMULATE_AHEAD_NS ahead. */
static void test_issue(void **state)
{
    const struct way way = { .kind = PIPELINE_1F1B, .pp = 1, .n_chunks = 1, .n_micro_batches = 3 };
    struct fleet f;

    (void)state;
    fleet_open(&f, &way);
    int n = count_ops(f.list[0]);
    price_all(&f, 0, 10);
    struct simulated_step made = run(&f, false, NULL);
    assert_int_equal(made.ns, 10 * n);
    assert_int_equal(made.ranks[0].of[TIME_ISSUE], 10 * n);
    price_all(&f, 20, 10);
    /* The first op waits to be issued, and so does the first behind the gate. */
    assert_int_equal(run(&f, false, NULL).ns, 2 * 10 + 20 * n);

    int64_t issue_ns = 2 * SIMULATE_AHEAD_NS / n, first = 10 * SIMULATE_AHEAD_NS;
    price_all(&f, 0, issue_ns);
    f.ops[0][f.list[0]->entries[ENTRY_STEP].actions[1].function][0].ns = first;
    made = run(&f, true, NULL);
    assert_in_range(made.ns, first + SIMULATE_AHEAD_NS, 3 * first + 3 * SIMULATE_AHEAD_NS);
    fleet_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipelines), cmocka_unit_test(test_skips_nothing_that_matters),
        cmocka_unit_test(test_scales),    cmocka_unit_test(test_is_monotone),
        cmocka_unit_test(test_spans),     cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_slowdown),  cmocka_unit_test(test_issue),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
