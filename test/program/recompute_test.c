/*
 * recompute_test.c - what is kept, what is made again, and that this saves memory
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/tiny_model.h"

/* Index of the function's op that writes value, or views of it; or -1. */
static int writer(const struct program *p, const struct function *f, int value)
{
    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (f->ops[i].out[k] && program_whole(p, f->ops[i].out[k]) == value)
                return i;
    return -1;
}

static int is_weight(const struct program *p, int value, const char *suffix)
{
    const char *name = p->values[value].name;
    size_t n = strlen(suffix);

    return name && strlen(name) > n && !strcmp(name + strlen(name) - n, suffix);
}

/* Values of the forward that the backward reads: the stash. */
static int count_kept(const struct tiny *tiny, enum op_kind kind)
{
    const struct program *p = &tiny->program;
    const struct function *f = &p->functions[tiny->forward], *b = &p->functions[tiny->backward];
    int n = 0;

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
            int read = 0, v = f->ops[i].out[k];

            for (int j = 0; v && j < b->n_ops; j++)
                for (int in = 0; in < OPS_MAX_INPUTS; in++)
                    read |= program_whole(p, b->ops[j].in[in]) == v;
            n += read && p->values[v].role == ROLE_NONE &&
                 (kind == N_OP_KINDS || f->ops[i].kind == kind);
        }
    return n;
}

/* Every value is written once, before it is read, and none of the R ops remakes another's output.
 */
static void check_order(const struct tiny *tiny)
{
    const struct function *f = &tiny->program.functions[tiny->forward];
    const struct function *b = &tiny->program.functions[tiny->backward];

    for (int i = 0; i < b->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            int v = program_whole(&tiny->program, b->ops[i].in[k]);

            if (!v || tiny->program.values[v].role != ROLE_NONE)
                continue;
            assert_true(writer(&tiny->program, f, v) >= 0 ||
                        (writer(&tiny->program, b, v) >= 0 && writer(&tiny->program, b, v) < i));
        }
}

static int same_op(const struct op *a, const struct op *b)
{
    return a->kind == b->kind && !memcmp(a->in, b->in, sizeof a->in);
}

static void check_no_op_twice(const struct tiny *tiny)
{
    const struct function *b = &tiny->program.functions[tiny->backward];

    for (int i = 0; i < b->n_ops; i++)
        for (int j = 0; j < i; j++)
            assert_false(same_op(&b->ops[i], &b->ops[j]));
}

static void none_changes_nothing(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_recompute(&tiny, "gpt2", 1, RECOMPUTE_KIND_NONE);
    const struct function *b = &tiny.program.functions[tiny.backward];
    for (int i = 0; i < b->n_ops; i++)
        assert_int_not_equal(b->ops[i].phase, PHASE_R);
    tiny_release(&tiny);
}

/* Norm outputs, activations and dropouts are remade; sums, statistics and products are not. */
static void check_selective(const char *model)
{
    struct tiny tiny;

    tiny_recompute(&tiny, model, 1, RECOMPUTE_KIND_SELECTIVE);
    const struct function *b = &tiny.program.functions[tiny.backward];
    for (int i = 0; i < b->n_ops; i++) {
        enum op_kind kind = b->ops[i].kind;

        if (b->ops[i].phase != PHASE_R)
            continue;
        assert_true(kind == OP_RMSNORM || kind == OP_LAYERNORM || kind == OP_SWIGLU ||
                    kind == OP_GELU);
    }
    check_order(&tiny);
    check_no_op_twice(&tiny);
    assert_int_equal(count_kept(&tiny, OP_SWIGLU) + count_kept(&tiny, OP_GELU), 0);
    /* Of each norm: its statistics and the residual sum it made, not its output. */
    assert_int_equal(count_kept(&tiny, OP_ADD_RMSNORM), strcmp(model, "llama") ? 0 : 4 * 2);
    assert_int_equal(count_kept(&tiny, OP_ADD_LAYERNORM), strcmp(model, "llama") ? 4 * 3 : 0);
    tiny_release(&tiny);
}

static void selective_keeps_sums_and_statistics(void **state)
{
    (void)state;
    check_selective("llama");
    check_selective("gpt2");
}

/* A layer's input is kept, all else remade, but for the last linear of a block, which nobody reads.
 */
static void check_full(const char *model)
{
    struct tiny tiny;

    tiny_recompute(&tiny, model, 1, RECOMPUTE_KIND_FULL);
    const struct program *p = &tiny.program;
    const struct function *b = &p->functions[tiny.backward];
    int n_linear = 0;
    for (int i = 0; i < b->n_ops; i++) {
        if (b->ops[i].phase != PHASE_R)
            continue;
        n_linear += b->ops[i].kind == OP_LINEAR;
        assert_false(is_weight(p, b->ops[i].in[1], "down.weight"));
    }
    assert_int_equal(n_linear, 2 * 3);
    check_order(&tiny);
    check_no_op_twice(&tiny);
    /* Two layers' inputs, the final norm's, and what the head gave: its input's gradient. */
    assert_int_equal(count_kept(&tiny, N_OP_KINDS), 2 + 1 + 1);
    assert_int_equal(count_kept(&tiny, OP_HEAD_CROSS_ENTROPY), 1);
    tiny_release(&tiny);
}

static void full_keeps_layer_inputs(void **state)
{
    (void)state;
    check_full("llama");
    check_full("gpt2");
}

/* The ops of phase R of a layer, or of all (-1). */
static int count_in_layer(const struct tiny *tiny, int layer)
{
    const struct function *b = &tiny->program.functions[tiny->backward];
    int n = 0;

    for (int i = 0; i < b->n_ops; i++)
        n += b->ops[i].phase == PHASE_R && (layer < 0 || b->ops[i].layer == layer);
    return n;
}

/* The first layer is recomputed as its set says, the second as its own, or as there is none. */
static void layers_may_differ(void **state)
{
    const struct keep_set sets[] = { recompute_keep_set(RECOMPUTE_KIND_SELECTIVE, NULL),
                                     recompute_keep_set(RECOMPUTE_KIND_FULL, NULL) };
    struct recompute_levels levels = { .sets = sets,
                                       .set_of_layer = (const unsigned char[]){ 1, 0 },
                                       .n_layers = 2 };
    struct tiny full, selective, mixed, none;

    (void)state;
    tiny_recompute(&full, "llama", 1, RECOMPUTE_KIND_FULL);
    tiny_recompute(&selective, "llama", 1, RECOMPUTE_KIND_SELECTIVE);
    tiny_recompute_levels(&mixed, "llama", &levels);
    assert_int_equal(count_in_layer(&mixed, 0), count_in_layer(&full, 0));
    assert_int_equal(count_in_layer(&mixed, 1), count_in_layer(&selective, 1));
    assert_true(count_in_layer(&full, 0) > count_in_layer(&selective, 0));
    check_order(&mixed);
    check_no_op_twice(&mixed);
    levels.n_layers = 1;
    tiny_recompute_levels(&none, "llama", &levels);
    assert_int_equal(count_in_layer(&none, 0), count_in_layer(&full, 0));
    assert_int_equal(count_in_layer(&none, 1), 0);
    check_order(&none);
    tiny_release(&full);
    tiny_release(&selective);
    tiny_release(&mixed);
    tiny_release(&none);
}

/* A remade op is its original but for operands: dropout draws the same numbers. */
static void remade_ops_keep_their_attributes(void **state)
{
    struct tiny tiny;
    int n_checked = 0;

    (void)state;
    tiny_recompute(&tiny, "gpt2", 1, RECOMPUTE_KIND_FULL);
    const struct function *f = &tiny.program.functions[tiny.forward];
    const struct function *b = &tiny.program.functions[tiny.backward];
    for (int i = 0; i < b->n_ops; i++) {
        int found = 0;

        if (b->ops[i].phase != PHASE_R || b->ops[i].attributes.p <= 0)
            continue;
        for (int j = 0; j < f->n_ops; j++)
            found |=
                f->ops[j].kind == b->ops[i].kind &&
                !memcmp(&f->ops[j].attributes, &b->ops[i].attributes, sizeof f->ops[j].attributes);
        assert_true(found);
        n_checked++;
    }
    assert_int_equal(n_checked, 2 * 2); /* attention and its output's dropout */
    tiny_release(&tiny);
}

static int count_remade(const struct tiny *tiny, enum op_kind kind)
{
    const struct function *b = &tiny->program.functions[tiny->backward];
    int n = 0;

    for (int i = 0; i < b->n_ops; i++)
        n += b->ops[i].phase == PHASE_R && (kind == N_OP_KINDS || b->ops[i].kind == kind);
    return n;
}

/* A list, and how many ops of one kind, of all that are remade, it makes again. */
static void check_list(const char *model, const char *ops, enum op_kind kind, int n, int n_all)
{
    struct tiny tiny;

    tiny_recompute_list(&tiny, model, ops);
    assert_int_equal(count_remade(&tiny, kind), n);
    assert_int_equal(count_remade(&tiny, N_OP_KINDS), n_all);
    check_order(&tiny);
    check_no_op_twice(&tiny);
    tiny_release(&tiny);
}

/* Of two layers, each with two norms, and one at the end; all sums but one are layers' inputs. */
static void lists_remake_what_they_name(void **state)
{
    (void)state;
    check_list("llama", "rmsnorm", OP_RMSNORM, 4, 4); /* the head has read the last one's */
    check_list("llama", "swiglu", OP_SWIGLU, 2, 2);
    check_list("llama", "rmsnorm swiglu", OP_SWIGLU, 2, 6);
    check_list("llama", "attention", OP_ATTENTION, 2, 2);
    check_list("llama", "rope", OP_ROPE, 2, 2); /* what it read is kept instead */
    /* Of a layer's linears the backward reads gate and up alone, and v. */
    check_list("llama", "linear", OP_LINEAR, 4, 4);
    check_list("llama", "embed", OP_EMBED, 0, 0);
    /* Fused, an add is still an add. */
    check_list("llama", "add", OP_ADD, 2, 2);
    check_list("llama", "add rmsnorm", OP_ADD_RMSNORM, 2, 4);
    check_list("gpt2", "layernorm", OP_LAYERNORM, 4, 4);
    check_list("gpt2", "gelu", OP_GELU, 2, 2);
    check_list("gpt2", "rmsnorm swiglu", N_OP_KINDS, 0, 0); /* none of its ops */
}

/*
 * A block's half under tensor and sequence parallelism, of two ranks: norm of own rows, gather,
 * linear by columns, gelu, linear by rows, sum of which each rank takes its rows, and a norm.
 */
struct half {
    struct program program;
    int forward, backward;
    int normed, gathered, wide, active, sum; /* values */
};

static int emit(struct half *h, enum op_kind kind, int a, int b, int rows, int cols)
{
    struct op op = { .kind = kind, .in = { a, b }, .layer = -1 };

    if (kind == OP_ALL_GATHER || kind == OP_REDUCE_SCATTER) {
        op.attributes.axis = AXIS_TP;
        op.stream = STREAM_TP;
    }
    op.out[0] = program_value(&h->program, rows, cols, DTYPE_F32);
    if (kind == OP_RMSNORM)
        op.out[1] = program_value(&h->program, rows, 1, DTYPE_F32);
    program_emit(&h->program, h->forward, &op);
    return op.out[0];
}

static int half_weight(struct half *h, const char *name, int n_dims, int rows, int cols,
                       enum spread along)
{
    const struct parameter_split split = { .along = along,
                                           .n_pieces = 1,
                                           .pieces = { along == SPREAD_ROWS ? rows : cols } };
    int i = program_parameter(&h->program, name, n_dims, rows, cols, DTYPE_F32, INIT_ONES, 0);

    if (along != SPREAD_SAME)
        program_split_parameter(&h->program, i, AXIS_TP, &split);
    return h->program.parameters[i].weight;
}

static void half_open(struct half *h, enum recompute_kind kind, const char *ops)
{
    struct mesh mesh = mesh_data_parallel(1);
    struct bitset kinds = op_kinds(ops);

    mesh.size[AXIS_TP] = 2;

    *h = (struct half){ 0 };
    program_init(&h->program, &mesh);
    int x = program_cell(&h->program, ROLE_INPUT, "x", 4, 16, DTYPE_F32);
    int seed = program_cell(&h->program, ROLE_INPUT, "dy", 4, 16, DTYPE_F32);
    h->program.values[x].spread[AXIS_TP] = SPREAD_ROWS;
    h->program.values[seed].spread[AXIS_TP] = SPREAD_ROWS;
    int norm = half_weight(h, "norm", 1, 1, 16, SPREAD_SAME);
    int up = half_weight(h, "up", 2, 64, 16, SPREAD_ROWS);
    int down = half_weight(h, "down", 2, 16, 64, SPREAD_COLS);
    int last = half_weight(h, "last", 1, 1, 16, SPREAD_SAME);
    h->forward = program_function(&h->program, "forward 0", 0);
    h->backward = program_function(&h->program, "backward 0", 0);
    h->normed = emit(h, OP_RMSNORM, x, norm, 4, 16);
    h->gathered = emit(h, OP_ALL_GATHER, h->normed, 0, 8, 16);
    h->wide = emit(h, OP_LINEAR, h->gathered, up, 8, 32);
    h->active = emit(h, OP_GELU, h->wide, 0, 8, 32);
    h->sum = emit(h, OP_REDUCE_SCATTER, emit(h, OP_LINEAR, h->active, down, 8, 16), 0, 4, 16);
    struct gradient_seed gradient = { emit(h, OP_RMSNORM, h->sum, last, 4, 16), seed };
    differentiate(&h->program, h->forward, h->backward, &gradient, 1, 0);
    const struct recompute_levels levels = { .kind = kind, .ops = kinds };

    recompute(&h->program, h->forward, h->backward, &levels);
}

static int is_read(const struct half *h, int value)
{
    const struct function *b = &h->program.functions[h->backward];
    int n = 0;

    for (int i = 0; i < b->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            n += b->ops[i].in[k] == value;
    return n > 0;
}

/* The R ops in their order, as "gelu linear". */
static void check_half(enum recompute_kind kind, const char *ops, const char *wanted)
{
    char text[256] = "";
    struct half h;

    half_open(&h, kind, ops);
    const struct function *b = &h.program.functions[h.backward];
    for (int i = 0; i < b->n_ops; i++)
        if (b->ops[i].phase == PHASE_R) {
            assert_int_equal(b->ops[i].stream,
                             op_is_collective(b->ops[i].kind) ? STREAM_TP : STREAM_COMPUTE);
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? " " : "",
                     op_info(b->ops[i].kind)->name);
        }
    assert_string_equal(text, wanted);
    assert_false(is_read(&h, h.gathered));
    program_release(&h.program);
}

/* Under any mode, and once for all that read it. */
static void what_is_gathered_over_tp_is_gathered_again(void **state)
{
    struct half h;

    (void)state;
    half_open(&h, RECOMPUTE_KIND_NONE, "");
    assert_true(is_read(&h, h.normed)); /* by the gather */
    assert_true(is_read(&h, h.active));
    assert_true(is_read(&h, h.sum));
    program_release(&h.program);
    check_half(RECOMPUTE_KIND_NONE, "", "all_gather");
    check_half(RECOMPUTE_KIND_LIST, "linear", "all_gather linear");
    check_half(RECOMPUTE_KIND_LIST, "gelu", "gelu all_gather");
    check_half(RECOMPUTE_KIND_LIST, "reduce_scatter", "reduce_scatter all_gather");
    check_half(RECOMPUTE_KIND_SELECTIVE, "", "gelu rmsnorm all_gather");
    check_half(RECOMPUTE_KIND_FULL, "",
               "rmsnorm all_gather linear gelu linear reduce_scatter rmsnorm");
}

static size_t stash_bytes(const struct model_spec *spec, enum recompute_kind kind, double *flops)
{
    struct compile_train options = tiny_compile(spec, 1);
    struct program program;
    struct err err;

    options.dtype = DTYPE_BF16;
    options.seq_len = min_int(1024, spec->max_seq_len);
    options.recompute = kind;
    if (compile_train(&program, &options, &err) < 0)
        fail_msg("%s", err.text);
    size_t n_bytes = program.segment_bytes[SEGMENT_STASH];
    *flops = program_entry_flops(&program, ENTRY_STEP);
    program_release(&program);
    return n_bytes;
}

/* On real shapes each kind needs less memory than the one before, and more arithmetic. */
static void check_memory(const char *name)
{
    struct model_spec spec = real_spec(name);
    double flops[3];
    size_t n_bytes[3];

    for (int kind = RECOMPUTE_KIND_NONE; kind <= RECOMPUTE_KIND_FULL; kind++)
        n_bytes[kind] = stash_bytes(&spec, (enum recompute_kind)kind, &flops[kind]);
    assert_true(n_bytes[RECOMPUTE_KIND_SELECTIVE] < n_bytes[RECOMPUTE_KIND_NONE]);
    assert_true(n_bytes[RECOMPUTE_KIND_FULL] < n_bytes[RECOMPUTE_KIND_SELECTIVE]);
    assert_true(flops[RECOMPUTE_KIND_NONE] < flops[RECOMPUTE_KIND_SELECTIVE]);
    assert_true(flops[RECOMPUTE_KIND_SELECTIVE] < flops[RECOMPUTE_KIND_FULL]);
    /* Full: a third more at most, as the forward is a third of a step. */
    assert_true(flops[RECOMPUTE_KIND_FULL] < 1.34 * flops[RECOMPUTE_KIND_NONE]);
}

static void recomputation_saves_memory(void **state)
{
    (void)state;
    check_memory("llama-22m");
    check_memory("gpt2-tiny");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_changes_nothing),
        cmocka_unit_test(selective_keeps_sums_and_statistics),
        cmocka_unit_test(full_keeps_layer_inputs),
        cmocka_unit_test(layers_may_differ),
        cmocka_unit_test(remade_ops_keep_their_attributes),
        cmocka_unit_test(lists_remake_what_they_name),
        cmocka_unit_test(what_is_gathered_over_tp_is_gathered_again),
        cmocka_unit_test(recomputation_saves_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
