/*
 * slice_test.c - the order of slices hides what can be hidden, and verify refuses one that is read
 * before it has arrived
 */
#include "verify_judge.h"

#include <stdbool.h>

#include "program/slice_impl.h"
#include "support/tiny_model.h"

#define LAYER_OPS 10
#define TASKS_MAX (4 * LAYER_OPS * 8)

/* A layer's ops between two of attention's, of 1 + 1 + 4 + 2 + 2 in all, and four collectives. */
struct chain_op {
    int64_t ns;
    bool moves;
};

static void fill_layer(struct chain_op ops[LAYER_OPS], int64_t moved_ns)
{
    static const struct chain_op layer[LAYER_OPS] = {
        { 1000, false }, { 0, true }, { 50, false }, { 0, true }, { 4000, false },
        { 2000, false }, { 0, true }, { 50, false }, { 0, true }, { 2000, false },
    };

    for (int i = 0; i < LAYER_OPS; i++) {
        ops[i] = layer[i];
        if (ops[i].moves)
            ops[i].ns = moved_ns;
    }
}

struct chain {
    struct slice_task tasks[TASKS_MAX];
    int after[TASKS_MAX], n;
    int64_t compute_ns, moved_ns;
};

/* n_layers such layers, each op in n slices of which each comes after that of the op before. */
static void make_chain(struct chain *c, int n_layers, int n, int64_t moved_ns)
{
    struct chain_op ops[LAYER_OPS];

    memset(c, 0, sizeof *c);
    fill_layer(ops, moved_ns);
    for (int op = 0; op < n_layers * LAYER_OPS; op++)
        for (int slice = 0; slice < n; slice++) {
            const struct chain_op *o = &ops[op % LAYER_OPS];

            c->after[c->n] = c->n - n;
            c->tasks[c->n] = (struct slice_task){
                .op = op,
                .slice = slice,
                .stream = o->moves ? STREAM_TP : STREAM_COMPUTE,
                .is_cheap = o->ns<100, .ns = o->ns / n, .after = &c->after[c->n], .n_after = op> 0
            };
            *(o->moves ? &c->moved_ns : &c->compute_ns) += o->ns / n;
            c->n++;
        }
}

static void must_be_order(const struct slice_task *tasks, int n, const int *order)
{
    int place[TASKS_MAX];

    for (int i = 0; i < n; i++)
        place[i] = -1;
    for (int i = 0; i < n; i++) {
        assert_true(order[i] >= 0 && order[i] < n && place[order[i]] < 0);
        place[order[i]] = i;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < tasks[i].n_after; k++)
            assert_true(place[tasks[i].after[k]] < place[i]);
}

/* Whole collectives hide nothing; eight slices hide at least this share of what there is to hide,
 * and all where little travels. */
static void slices_hide(void **state)
{
    static const struct {
        int64_t moved_ns; /* of each of the four collectives */
        int percent;
    } rows[] = { { 700, 100 }, { 1300, 95 }, { 2275, 75 }, { 3500, 75 } };
    struct chain whole, cut;
    int order[TASKS_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make_chain(&whole, 4, 1, rows[i].moved_ns);
        int64_t ns = slice_order(whole.tasks, whole.n, order);
        must_be_order(whole.tasks, whole.n, order);
        assert_int_equal(ns, whole.compute_ns + whole.moved_ns);
        make_chain(&cut, 4, 8, rows[i].moved_ns);
        int64_t hidden = cut.compute_ns + cut.moved_ns - slice_order(cut.tasks, cut.n, order);
        must_be_order(cut.tasks, cut.n, order);
        int64_t least = cut.compute_ns < cut.moved_ns ? cut.compute_ns : cut.moved_ns;
        if (100 * hidden < rows[i].percent * least)
            fail_msg("collectives of %lld: %lld of %lld are hidden", (long long)rows[i].moved_ns,
                     (long long)hidden, (long long)least);
    }
}

/* What is computed while something travels takes longer: a product of 100 ns beside a transfer of
 * 90 that slows it by half has done 60 when that ends, and ends at 130; beside two, on two streams,
 * that slow it by half each, 90 / 2 = 45, and ends at 145. Where eight slices hide all of what
 * travels, but ops take twice as long meanwhile, half of it is won. */
static void transfers_slow(void **state)
{
    struct slice_task tasks[] = {
        { .slice = -1, .stream = STREAM_TP, .ns = 90, .slowdown = 0.5 },
        { .slice = -1, .stream = STREAM_CP, .ns = 90, .slowdown = 0.5 },
        { .slice = -1, .stream = STREAM_COMPUTE, .ns = 100 },
    };
    struct chain cut;
    int order[TASKS_MAX];

    (void)state;
    assert_int_equal(slice_order(tasks, 3, order), 145);
    tasks[1].slowdown = 0;
    assert_int_equal(slice_order(tasks, 3, order), 130);
    tasks[1].slowdown = 0.5;
    tasks[1].ns = 30; /* 30 / 2 = 15, 60 / 1.5 = 40, and 45 alone */
    assert_int_equal(slice_order(tasks, 3, order), 135);

    make_chain(&cut, 4, 8, 700);
    int64_t alone = slice_order(cut.tasks, cut.n, order);
    for (int i = 0; i < cut.n; i++)
        cut.tasks[i].slowdown = cut.tasks[i].stream == STREAM_COMPUTE ? 0 : 1;
    int64_t beside = slice_order(cut.tasks, cut.n, order);
    must_be_order(cut.tasks, cut.n, order);
    assert_in_range(100 * (beside - alone) / cut.moved_ns, 45, 55);
}

/* ---- against all orders ---- */

enum { N_SMALL = 7 };

static void try_all(const struct slice_task *tasks, const int64_t *end, int64_t now, int64_t moved,
                    unsigned done, int64_t *least)
{
    int64_t last = 0;

    for (int i = 0; i < N_SMALL; i++) {
        int64_t ready = 0, ends[N_SMALL];
        bool can = !(done >> i & 1);

        last = end[i] > last ? end[i] : last;
        for (int k = 0; k < tasks[i].n_after; k++) {
            can &= done >> tasks[i].after[k] & 1;
            ready = end[tasks[i].after[k]] > ready ? end[tasks[i].after[k]] : ready;
        }
        if (!can)
            continue;
        bool moves = tasks[i].stream != STREAM_COMPUTE;
        int64_t begin = ready > now ? ready : now;
        memcpy(ends, end, sizeof ends);
        if (moves && moved > begin)
            begin = moved;
        ends[i] = begin + tasks[i].ns;
        try_all(tasks, ends, moves ? now : ends[i], moves ? ends[i] : moved, done | 1u << i, least);
    }
    if (done == (1u << N_SMALL) - 1 && (*least < 0 || last < *least))
        *least = last;
}

/* Numbers without a pattern: Knuth's linear congruence, its high bits. */
static unsigned next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33);
}

/* No order is shorter than the shortest, and this one never takes half as long again. */
static void near_the_shortest(void **state)
{
    uint64_t numbers = 7;
    int order[N_SMALL];

    (void)state;
    for (int round = 0; round < 60; round++) {
        struct slice_task tasks[N_SMALL] = { 0 };
        int after[N_SMALL][N_SMALL];
        int64_t end[N_SMALL] = { 0 }, least = -1;

        for (int i = 0; i < N_SMALL; i++) {
            tasks[i] =
                (struct slice_task){ .op = i,
                                     .slice = -1,
                                     .stream = next(&numbers) % 2 ? STREAM_TP : STREAM_COMPUTE,
                                     .ns = 1 + next(&numbers) % 100,
                                     .after = after[i] };
            for (int k = 0; k < i; k++)
                if (next(&numbers) % 3 == 0)
                    after[i][tasks[i].n_after++] = k;
        }
        int64_t ns = slice_order(tasks, N_SMALL, order);
        must_be_order(tasks, N_SMALL, order);
        try_all(tasks, end, 0, 0, 0, &least);
        assert_true(ns >= least && 2 * ns <= 3 * least);
    }
}

/* ---- what verify refuses ---- */

static int64_t fewest_rows; /* of a product that was priced */

/* Products of a nanosecond an element and more, and a link as fast. */
static int64_t op_ns(void *context, const struct op_shape *shape)
{
    (void)context;
    if (shape->kind == OP_LINEAR && shape->in[LINEAR_X].rows < fewest_rows)
        fewest_rows = shape->in[LINEAR_X].rows;
    return (int64_t)op_flops(shape);
}

static int64_t collective_ns(void *context, const struct op_shape *shape)
{
    const int64_t *each = context;
    const struct op_attributes *a = &shape->attributes;
    int64_t n = tensor_elements(&shape->out[OPS_FIRST]);

    if (!a->n_experts)
        return *each + 16 * n;
    /* Of two ranks' experts, or of a group of them. */
    return *each + 64 * n * (a->experts ? 2 * a->experts : a->n_experts) / a->n_experts;
}

static int64_t latency;

static bool has_fastseq;

static void compile(struct program *program, enum overlap_kind kind, enum mesh_axis axis)
{
    static struct model_spec spec;
    struct err err;

    spec = tiny_spec(axis == AXIS_EP ? "mixture" : "llama");
    struct compile_train options = tiny_compile(&spec, 1);
    options.mesh.size[axis] = 2;
    options.sequence_parallel = axis == AXIS_TP;
    options.fastseq = has_fastseq;
    options.micro_batch = (axis == AXIS_CP || axis == AXIS_ULYSSES ? 512 : 128) / options.seq_len;
    options.overlap.kind = kind;
    options.overlap.n_slices = kind == OVERLAP_AUTO ? 0 : 2;
    options.overlap.times = (struct slice_times){ op_ns, collective_ns, NULL, &latency };
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s", err.text);
    check_accepted(program);
}

static bool is_slice(const struct program *p, const struct op *op)
{
    return (op_info(op->kind)->traits & TRAIT_COLLECTIVE) && p->values[op->out[OPS_FIRST]].base;
}

/* A slice's gather or sum, one after the other, is left out: all that reads it is refused. */
static void refuse_missing_slices(enum mesh_axis axis, int n_least)
{
    int n = 0;

    for (int nth = 0;; nth++) {
        struct program p;
        struct function *f;
        struct err err = { 0 };
        int at = -1, left = nth;

        compile(&p, OVERLAP_SLICES, axis);
        f = &p.functions[0];
        for (int i = 0; i < f->n_ops && at < 0; i++)
            if (is_slice(&p, &f->ops[i]) && left-- == 0)
                at = i;
        if (at >= 0) {
            memmove(f->ops + at, f->ops + at + 1, sizeof *f->ops * (size_t)(f->n_ops - at - 1));
            f->n_ops--;
            n++;
            if (!verify(&p, &err) ||
                (!strstr(err.text, "is read before") && !strstr(err.text, "slices of")))
                fail_msg("slice %d: %s", nth, err.text[0] ? err.text : "accepted");
        }
        program_release(&p);
        if (at < 0)
            break;
    }
    assert_true(n >= n_least);
}

static void missing_slices_are_refused(void **state)
{
    (void)state;
    refuse_missing_slices(AXIS_TP, 8);
    refuse_missing_slices(AXIS_CP, 4);
    refuse_missing_slices(AXIS_ULYSSES, 4);
    has_fastseq = true;
    refuse_missing_slices(AXIS_ULYSSES, 4);
    has_fastseq = false;
    refuse_missing_slices(AXIS_EP, 4);
}

static int count_cut(const struct program *p)
{
    int n = 0;

    for (const struct slice_site *site = p->slice_sites; site; site = site->next) {
        n += site->n_slices > 1;
        assert_true(site->n_slices > 1 ? site->ns < site->whole_ns : site->ns == site->whole_ns);
        assert_true(site->ns >= site->compute_ns);
    }
    return n;
}

/* By prices: cut where that gains, and not where each collective costs much. */
static void choose_by_prices(enum mesh_axis axis)
{
    struct program p;

    latency = 0;
    compile(&p, OVERLAP_AUTO, axis);
    assert_true(count_cut(&p) >= 1);
    program_release(&p);
    latency = 1 << 30;
    compile(&p, OVERLAP_AUTO, axis);
    assert_int_equal(count_cut(&p), 0);
    program_release(&p);
    latency = 0;
}

static void chosen_by_prices(void **state)
{
    (void)state;
    choose_by_prices(AXIS_TP);
    choose_by_prices(AXIS_CP);
    choose_by_prices(AXIS_ULYSSES);
    has_fastseq = true;
    choose_by_prices(AXIS_ULYSSES);
    has_fastseq = false;
    choose_by_prices(AXIS_EP);
}

/* Of two ranks' rows, 64 each, two slices of 32: a product of 64 rows, and no two of 32. */
static void products_take_all_pieces(void **state)
{
    struct program p;
    int n = 0;

    (void)state;
    fewest_rows = INT64_MAX;
    compile(&p, OVERLAP_SLICES, AXIS_TP);
    for (int f = 0; f < p.n_functions; f++)
        for (int i = 0; i < p.functions[f].n_ops; i++) {
            const struct op *op = &p.functions[f].ops[i];
            struct op_shape shape = program_op_shape(&p, op), in_rows = op_in_rows(&shape);

            if ((op->kind != OP_LINEAR && op->kind != OP_LINEAR_DX) || !op->attributes.run_rows)
                continue;
            assert_int_equal(op->attributes.run_rows, 32);
            assert_int_equal(shape.in[OPS_FIRST].rows, 2);
            assert_int_equal(in_rows.in[OPS_FIRST].rows, 64);
            n++;
        }
    assert_true(n >= 8);
    assert_int_equal(fewest_rows, 64);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_hide),
        cmocka_unit_test(transfers_slow),
        cmocka_unit_test(near_the_shortest),
        cmocka_unit_test(missing_slices_are_refused),
        cmocka_unit_test(products_take_all_pieces),
        cmocka_unit_test(chosen_by_prices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
