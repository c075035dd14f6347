/*
 * verify_context_test.c - programs whose ranks have parts of sequences pass, and none does in which
 * attention lacks other ranks' keys or heads, or a gradient other ranks' rows
 *
 * Which rows a rank has is data, and no business of a program: law/context_test.c finds what is
 * wrong with that.
 */
#include "rank_programs.h"

#include "verify_judge.h"

static void refused_by_ranks(const struct fleet *f, const char *words)
{
    struct err err = { 0 };

    assert_int_equal(verify_ranks(f->list, &f->mesh, &err), -1);
    if (!strstr(err.text, words))
        fail_msg("'%s' is not in: %s", words, err.text);
}

/* World rank = ulysses + 2 cp + 4 dp. */
static const struct way both = { .kind = PIPELINE_1F1B,
                                 .tp = 1,
                                 .dp = 2,
                                 .pp = 1,
                                 .n_chunks = 1,
                                 .n_micro_batches = 2,
                                 .model = "llama",
                                 .ulysses = 2,
                                 .keys = 2 };

static void all_meshes_pass(void **state)
{
    static const int cuts[][2] = { { 2, 1 }, { 4, 1 }, { 1, 2 }, { 1, 4 }, { 2, 2 } };
    uint64_t seed = 1;

    (void)state;
    for (int i = 0; i < 40; i++) {
        struct way way = draw_way(&seed);
        struct fleet f;

        way.ulysses = cuts[i % 5][0];
        way.keys = cuts[i % 5][1];
        way.tp = way.ulysses == 4 ? 1 : min_int(2, way.tp); /* of 4 heads */
        way.pp = min_int(2, way.pp);
        way.fastseq = way.keys == 1 && i % 2;
        way.zero = (int)draw(&seed, 4);
        way.model = i % 3 ? way.model : "mixture";
        fleet_open(&f, &way);
        accepted(&f);
        fleet_close(&f);
    }
}

/* ---- in the forward ---- */

/* The first op of the kind. */
static struct op *first_op(const struct program *p, enum op_kind kind)
{
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            if (p->functions[f].ops[i].kind == kind)
                return &p->functions[f].ops[i];
    fail_msg("no %s", op_info(kind)->name);
    return NULL;
}

static void remove_first(struct program *p, enum op_kind kind)
{
    const struct op *op = first_op(p, kind);
    struct function *f = p->functions;

    while (op < f->ops || op >= f->ops + f->n_ops)
        f++;
    remove_op(f, (int)(op - f->ops));
}

/* Left out, or attention reads the rank's own keys: then only their spread tells. */
static void keys_are_not_gathered(void **state)
{
    struct fleet f;

    (void)state;
    fleet_open(&f, &both);
    struct program *p = fleet_spoil(&f, 0);
    check_accepted(p);
    remove_first(p, OP_GATHER_SEQUENCE);
    REFUSED(p, "forward 0", "is read ");

    p = fleet_spoil(&f, 0);
    struct op *attention = first_op(p, OP_ATTENTION);
    for (struct op *op = first_op(p, OP_GATHER_SEQUENCE); op < attention; op++)
        for (int k = ATTENTION_K; k <= ATTENTION_V; k++)
            if (op->kind == OP_GATHER_SEQUENCE && attention->in[k] == op->out[0])
                attention->in[k] = op->in[0];
    REFUSED(p, "over cp: program: forward 0: attention", "is a part of each sequence");
    fleet_close(&f);
}

/* Left out, or those who read what they wrote read what was given to them. */
static void heads_are_not_exchanged(void **state)
{
    static const enum op_kind kinds[] = { OP_ROWS_TO_HEADS, OP_HEADS_TO_ROWS };
    struct fleet f;

    (void)state;
    fleet_open(&f, &both);
    for (int i = 0; i < 2; i++) {
        struct program *p = fleet_spoil(&f, 0);

        remove_first(p, kinds[i]);
        REFUSED(p, "forward 0", "is read ");
    }
    struct program *p = fleet_spoil(&f, 0);
    struct op *exchange = first_op(p, OP_HEADS_TO_ROWS), *linear = exchange + 1;
    while (linear->in[LINEAR_X] != exchange->out[0])
        linear++;
    linear->in[LINEAR_X] = exchange->in[0];
    REFUSED(p, "forward 0: linear", "wanted");
    fleet_close(&f);
}

static void exchanges_over_another_axis(void **state)
{
    static const struct {
        enum op_kind kind;
        enum mesh_axis axis;
    } ways[] = {
        { OP_GATHER_SEQUENCE, AXIS_ULYSSES },  { OP_GATHER_SEQUENCE, AXIS_DP },
        { OP_SCATTER_SEQUENCE, AXIS_ULYSSES }, { OP_SCATTER_SEQUENCE, AXIS_DP },
        { OP_ROWS_TO_HEADS, AXIS_CP },         { OP_ROWS_TO_HEADS, AXIS_DP },
        { OP_HEADS_TO_ROWS, AXIS_CP },         { OP_HEADS_TO_ROWS, AXIS_DP },
    };
    struct fleet f;

    (void)state;
    fleet_open(&f, &both);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct program *p = fleet_spoil(&f, 0);

        first_op(p, ways[i].kind)->attributes.axis = ways[i].axis;
        REFUSED(p, op_info(ways[i].kind)->name);
    }
    fleet_close(&f);
}

/* ---- sums of gradients ---- */

/* Without its n-th sum over the axis, of gradients, or of what ranks log; 0: there are fewer. */
static int remove_sum(struct program *p, enum mesh_axis axis, int is_total, int n)
{
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];
            int is_sum = op->kind == OP_ALL_REDUCE || op->kind == OP_REDUCE_SCATTER;

            if (!(is_total ? op->kind == OP_ALL_REDUCE_SCALAR : is_sum) ||
                op->attributes.axis != axis || n--)
                continue;
            remove_op(&p->functions[f], i);
            return 1;
        }
    return 0;
}

static void sums_are_left_out(void **state)
{
    static const enum mesh_axis axes[] = { AXIS_CP, AXIS_ULYSSES, AXIS_DP };
    struct way way = both;
    struct fleet f;

    (void)state;
    for (way.zero = 0; way.zero <= 3; way.zero++) {
        way.early = way.zero == 1;
        fleet_open(&f, &way);
        for (int axis = 0; axis < 3; axis++)
            for (int is_total = axis == 2; is_total < 2; is_total++) {
                int n = 0;

                for (struct program *p;
                     p = fleet_spoil(&f, 0), remove_sum(p, axes[axis], is_total, n); n++)
                    REFUSED(p, is_total ? "written" : "while sums over ranks are owed");
                assert_true(n > 1); /* buckets; the loss, and that of an evaluation */
            }
        fleet_close(&f);
    }
}

/* ---- one rank alone ---- */

static void a_rank_does_otherwise(void **state)
{
    static const enum op_kind kinds[] = { OP_GATHER_SEQUENCE, OP_SCATTER_SEQUENCE, OP_ROWS_TO_HEADS,
                                          OP_HEADS_TO_ROWS };
    struct fleet f;

    (void)state;
    fleet_open(&f, &both);
    accepted(&f);
    for (int i = 0; i < 4; i++) {
        remove_first(fleet_spoil(&f, 3), kinds[i]);
        refused_by_ranks(&f, op_info(kinds[i])->name);

        first_op(fleet_spoil(&f, 3), kinds[i])->attributes.axis = AXIS_DP;
        refused_by_ranks(&f, op_info(kinds[i])->name);
    }
    fleet_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_meshes_pass),         cmocka_unit_test(keys_are_not_gathered),
        cmocka_unit_test(heads_are_not_exchanged), cmocka_unit_test(exchanges_over_another_axis),
        cmocka_unit_test(sums_are_left_out),       cmocka_unit_test(a_rank_does_otherwise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
