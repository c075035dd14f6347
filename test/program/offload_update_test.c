/*
 * offload_update_test.c - the optimizer as host ops: their text, and what verify refuses of them
 */
#include "verify_judge.h"

#include "support/golden_text.h"
#include "support/tiny_model.h"

#define GOLDEN "test/program/golden/"

/* States are away, and updated where they are; with the kinds of cells besides. */
static void compile(struct program *program, const char *model, int dp_size, int zero,
                    bool with_gradients)
{
    struct model_spec spec = tiny_spec(model);
    struct compile_train options = tiny_compile(&spec, dp_size);
    struct rank_offload away = { .updates_on_host = true };
    struct err err;

    away.cells[AWAY_STATES].bytes = SIZE_MAX;
    away.cells[AWAY_GRADIENTS].bytes = with_gradients ? SIZE_MAX : 0;
    options.offload = &away;
    options.gradients.zero = zero;
    options.gradients.bucket_bytes = (size_t)24 << 10;
    if (compile_train(program, &options, &err) < 0)
        fail_msg("%s", err.text);
}

static int update_of(const struct program *p)
{
    for (int f = 0; f < p->n_functions; f++)
        if (!strcmp(p->functions[f].name, "update"))
            return f;
    fail_msg("there is no update");
    return -1;
}

/* The first op of the kind from an op of the function on. */
static int op_of_kind(const struct function *f, enum op_kind kind, int from)
{
    for (int i = from; i < f->n_ops; i++)
        if (f->ops[i].kind == kind)
            return i;
    fail_msg("there is no %s", op_name(kind));
    return -1;
}

static void check_text(const char *path, const char *model, int dp_size, int zero)
{
    struct str text = { 0 };
    struct program p;

    compile(&p, model, dp_size, zero, false);
    print_function(&p, update_of(&p), PRINT_SEGMENTS, &text);
    golden_text_check(path, str_text(&text));
    str_release(&text);
    program_release(&p);
}

/* bf16 with masters, whole; and shards of fp32 weights that are their own masters. */
static void test_text(void **state)
{
    (void)state;
    check_text(GOLDEN "llama.host-update.txt", "llama", 1, 0);
    check_text(GOLDEN "gpt2.host-update.txt", "gpt2", 2, 1);
}

/* So many bytes as its operands: two ops' gradients, three ops' weights. */
static void test_host_memory_is_of_a_few_ops(void **state)
{
    struct program p;

    (void)state;
    compile(&p, "llama", 1, 0, false);
    const struct function *f = &p.functions[update_of(&p)];
    size_t largest = 0;
    for (int i = 0; i < f->n_ops; i++)
        if (program_is_host_op(&p, &f->ops[i]) &&
            program_value_bytes(&p, f->ops[i].in[OPTIMIZER_GRADIENT]) > largest)
            largest = program_value_bytes(&p, f->ops[i].in[OPTIMIZER_GRADIENT]);
    assert_true(largest > 0);
    assert_true(p.segment_bytes[SEGMENT_HOST_SCRATCH] <= 2 * largest + 3 * largest / 2);
    assert_true(p.segment_bytes[SEGMENT_STATES] < largest); /* vectors' */
    program_release(&p);
}

/* A large embedding is updated in as many ops as it has pieces, of 128 rows of 32: a norm block. */
static void test_large_cells_are_cut(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    spec.vocab_size = 1024;
    struct compile_train options = tiny_compile(&spec, 1);
    struct rank_offload away = { .updates_on_host = true, .piece_bytes = 4 * OPS_NORM_BLOCK };
    struct program p;
    struct err err;
    int n_pieces = 0;

    (void)state;
    away.cells[AWAY_STATES].bytes = SIZE_MAX;
    options.offload = &away;
    if (compile_train(&p, &options, &err) < 0)
        fail_msg("%s", err.text);
    const struct function *f = &p.functions[update_of(&p)];
    for (int i = 0; i < f->n_ops; i++) {
        const struct value *g = &p.values[f->ops[i].in[OPTIMIZER_GRADIENT]];

        n_pieces += program_is_host_op(&p, &f->ops[i]) && g->rows == 128;
    }
    assert_int_equal(n_pieces, 2 * 1024 / 128); /* and as many of the head */
    /* Two gradients of fp32, three weights of bf16. */
    assert_true(p.segment_bytes[SEGMENT_HOST_SCRATCH] <= OPS_NORM_BLOCK * (2 * 4 + 3 * 2));
    program_release(&p);
}

/* What codecs have lost is away like states: it comes when it is added, and when it is kept. */
static void test_errors_of_codecs_are_away(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);
    struct rank_offload away = { 0 };
    struct program p;
    struct err err;
    int n_errors = 0;

    (void)state;
    away.cells[AWAY_STATES].bytes = SIZE_MAX;
    options.offload = &away;
    options.gradients.codec = (struct codec_choice){ .codec = CODEC_INT8 };
    if (compile_train(&p, &options, &err) < 0)
        fail_msg("%s", err.text);
    check_accepted(&p);
    for (int i = 0; i < p.n_buckets; i++) {
        const struct value *v = &p.values[p.buckets[i].errors[0]];
        int n_brought = 0, n_sent = 0;

        for (int f = 0; f < p.n_functions; f++)
            for (int k = 0; k < p.functions[f].n_ops; k++) {
                const struct op *op = &p.functions[f].ops[k];

                n_brought += op->kind == OP_TO_DEVICE && op->in[OPS_FIRST] == v->home;
                n_sent += op->kind == OP_TO_HOST && op->out[OPS_FIRST] == v->home;
            }
        n_errors += v->home && n_brought == 2 && n_sent == 1;
    }
    assert_true(n_errors > 0);
    program_release(&p);
}

static struct op *first_moved(struct program *p)
{
    struct function *f = &p->functions[update_of(p)];

    for (int i = 0; i < f->n_ops; i++)
        if (program_is_host_op(p, &f->ops[i]))
            return &f->ops[i];
    fail_msg("there is no host op");
    return NULL;
}

static void test_spaces(void **state)
{
    struct program p;

    (void)state;
    compile(&p, "llama", 1, 0, false);
    struct op *op = first_moved(&p), whole = *op;
    check_accepted(&p);
    op->in[OPTIMIZER_SCALARS] = p.ports.scalars;
    REFUSED(&p, "adamw", "scalars lies in memory of the device, wanted of the host");
    *op = whole;
    op->in[OPTIMIZER_GRADIENT] = p.parameters[0].gradients[0];
    REFUSED(&p, "adamw", "lies in memory of the host, wanted of the device");
    *op = whole;
    *op = (struct op){ .kind = OP_SUMSQ,
                       .in = { [SUMSQ_X] = whole.in[OPTIMIZER_GRADIENT] },
                       .out = { [SUMSQ_SUMS] = program_host_value(&p, 1, 1, DTYPE_F64) } };
    int64_t n = tensor_elements(&(struct tensor){ .rows = p.values[op->in[SUMSQ_X]].rows,
                                                  .cols = p.values[op->in[SUMSQ_X]].cols });
    p.values[op->out[SUMSQ_SUMS]].cols = p.values[op->out[SUMSQ_SUMS]].stride =
        (n + OPS_NORM_BLOCK - 1) / OPS_NORM_BLOCK;
    REFUSED(&p, "sumsq", "lies in memory of the host, wanted of the device");
    program_release(&p);
}

/* What is not copied to the host is not there. */
static void test_operands_are_copied_first(void **state)
{
    struct program p;

    (void)state;
    compile(&p, "llama", 1, 0, false);
    struct function *f = &p.functions[update_of(&p)];
    for (int i = op_of_kind(f, OP_TO_HOST, 0); i < f->n_ops && f->ops[i].kind == OP_TO_HOST; i++) {
        struct op whole = f->ops[i];

        f->ops[i] = (struct op){ .kind = OP_AWAIT, .in = { [AWAIT_X] = whole.in[TO_HOST_X] } };
        REFUSED(&p, "program: update: adamw");
        f->ops[i] = whole;
    }
    check_accepted(&p);
    program_release(&p);
}

/* Of the update only the first host op, and what it needs. */
static void keep_first_moved(struct program *p)
{
    struct function *f = &p->functions[update_of(p)];
    int n = 0;

    for (int i = op_of_kind(f, OP_TO_HOST, 0);; i++) {
        f->ops[n++] = f->ops[i];
        if (f->ops[i].kind == OP_ADAMW)
            break;
    }
    f->n_ops = n;
}

static bool touches_shard(const struct program *p, const struct op *op)
{
    const char *in = p->values[op->in[0]].name, *out = p->values[op->out[0]].name;

    return (in && strstr(in, ":shard")) || (out && strstr(out, ":shard"));
}

/* The gradient's home has this rank's own sums until they are reduced. */
static void test_what_is_owed_to_a_home(void **state)
{
    struct program p;
    int n_reduced = 0;

    (void)state;
    compile(&p, "llama", 2, 0, true);
    check_accepted(&p);
    int sums = program_whole(&p, p.parameters[0].gradients[0]);
    assert_int_equal(program_whole(&p, first_moved(&p)->in[OPTIMIZER_GRADIENT]),
                     p.values[sums].home);
    keep_first_moved(&p);
    REFUSED(&p, "is never written, though the host reads it");
    for (int f = 0; f < p.n_functions; f++)
        for (int i = 0; i < p.functions[f].n_ops; i++) {
            struct op *op = &p.functions[f].ops[i];

            if (!touches_shard(&p, op))
                continue;
            *op = (struct op){ .kind = OP_AWAIT, .in = { [AWAIT_X] = sums } };
            n_reduced++;
        }
    assert_true(n_reduced > 0);
    REFUSED(&p, "adamw", "while sums over ranks are owed");
    program_release(&p);
}

/* What a stay has written is at home once it is sent there, and what was brought is old once the
 * home is written. */
static void test_order_of_stays_and_host_ops(void **state)
{
    struct program p;

    (void)state;
    compile(&p, "llama", 1, 0, false);
    struct function *f = &p.functions[update_of(&p)];
    struct op adamw = *first_moved(&p), whole = f->ops[0];
    int home = adamw.in[OPTIMIZER_M], moment = 0;
    for (int id = 1; id < p.n_values; id++)
        if (p.values[id].home == home)
            moment = id;
    struct op touch = { .kind = OP_ACCUMULATE,
                        .in = { [ACCUMULATE_X] = moment },
                        .out = { [ACCUMULATE_Y] = moment },
                        .phase = PHASE_U,
                        .first = FIRST_NEVER };
    f->ops[0] = touch;
    REFUSED(&p, "accumulate", "is read while it is away");
    f->ops[0] = (struct op){ .kind = OP_TO_DEVICE,
                             .in = { [TO_DEVICE_X] = home },
                             .out = { [TO_DEVICE_Y] = moment },
                             .phase = PHASE_U,
                             .stream = STREAM_COPY_IN };
    f->ops[1] = touch;
    REFUSED(&p, "adamw", "before what was written is sent there");
    f->ops[1] = (struct op){ .kind = OP_AWAIT, .in = { [AWAIT_X] = moment } };
    f->ops[f->n_ops - 1] = touch;
    REFUSED(&p, "accumulate", "is read while it is away");
    f->ops[0] = whole;
    program_release(&p);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_host_memory_is_of_a_few_ops),
        cmocka_unit_test(test_large_cells_are_cut),
        cmocka_unit_test(test_errors_of_codecs_are_away),
        cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_operands_are_copied_first),
        cmocka_unit_test(test_what_is_owed_to_a_home),
        cmocka_unit_test(test_order_of_stays_and_host_ops),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
