/*
 * compile_test.c - every model compiles and verifies, in every way it can be run, and fast
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <time.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/tiny_model.h"

static void must_compile(struct program *program, const struct compile_train *options)
{
    struct err err;

    if (compile_train(program, options, &err) < 0)
        fail_msg("%s", err.text);
}

/* compile_train ends with verify, so compiling is the check. */
static void every_combination(void **state)
{
    static const char *const models[] = { "llama", "gpt2" };
    int n = 0;

    (void)state;
    for (int m = 0; m < 2; m++)
        for (int kind = RECOMPUTE_KIND_NONE; kind <= RECOMPUTE_KIND_FULL; kind++)
            for (int variant = 0; variant < 4; variant++)
                for (int dp_size = 1; dp_size <= 5; dp_size++) {
                    struct model_spec spec = tiny_spec(models[m]);
                    struct compile_train options = tiny_compile(&spec, dp_size);
                    struct program program;

                    options.recompute = (enum recompute_kind)kind;
                    options.no_fuse = variant & 1;
                    options.gradients.early = variant >> 1;
                    options.n_micro_batches = 1 + n % 7;
                    must_compile(&program, &options);
                    program_release(&program);
                    n++;
                }
}

/*
 * Two ranks on each set of the axes that there are, at each zero stage. verify refuses a
 * sum that is left out, or taken twice.
 */
static void every_mesh(void **state)
{
    enum { N_SETS = 1 << N_AXES };
    struct program program;

    (void)state;
    for (int n = 0; n < N_SETS * 4 * 2; n++) {
        struct model_spec spec = tiny_spec(n & 1 ? "llama" : "gpt2");
        struct compile_train options = tiny_compile(&spec, 1);

        for (int axis = 0; axis < N_AXES; axis++)
            options.mesh.size[axis] = 1 + (n >> axis & 1);
        if (options.mesh.size[AXIS_DP] == 1 && options.mesh.size[AXIS_REPLICA] > 1)
            continue;
        options.gradients.zero = n / N_SETS & 3;
        options.gradients.early = n / N_SETS / 4;
        options.sequence_parallel = n % 3 > 0;
        options.pipeline.rank = options.mesh.size[AXIS_PP] - 1;
        must_compile(&program, &options);
        program_release(&program);
    }
}

/* A mixture on each set of axes with ep: experts' buckets are sharded over dp, which may have one
 * rank, those of all else over ep and dp. Over tp each is divided, or they are. */
static void every_mesh_of_experts(void **state)
{
    enum { N_SETS = 1 << N_AXES };
    struct program program;

    (void)state;
    for (int n = 0; n < N_SETS * 4 * 2; n++) {
        struct model_spec spec = tiny_spec("mixture");
        struct compile_train options = tiny_compile(&spec, 1);

        for (int axis = 0; axis < N_AXES; axis++)
            options.mesh.size[axis] = 1 + (n >> axis & 1);
        options.whole_experts = n / 3 & 1;
        if ((options.mesh.size[AXIS_EP] == 1 && !options.whole_experts) ||
            options.mesh.size[AXIS_REPLICA] > 1)
            continue;
        options.gradients.zero = n / N_SETS & 3;
        options.gradients.early = n / N_SETS / 4;
        options.gradients.zero3 = (enum zero3_gather)(n % 4);
        options.gradients.n_ahead = n / 4 % 3;
        options.sequence_parallel = n % 3 > 0;
        options.update.states = n % 5 ? DTYPE_F32 : DTYPE_BF16;
        options.pipeline.rank = options.mesh.size[AXIS_PP] - 1;
        must_compile(&program, &options);
        program_release(&program);
    }
}

/* Of four data-parallel ranks each has a quarter of the states, up to what fills buckets: of
 * experts half of half of them. */
static void states_of_experts_and_all_else(void **state)
{
    struct model_spec spec = tiny_spec("mixture");
    struct compile_train options = tiny_compile(&spec, 2);
    struct program program;
    int64_t whole[2] = { 0 }, own[2] = { 0 }, filled[2] = { 0 };

    (void)state;
    spec.hidden_size = 256;
    spec.ffn_size = 512;
    spec.expert_ffn_size = 256;
    options.mesh.size[AXIS_EP] = 2;
    options.gradients.zero = 1;
    must_compile(&program, &options);
    for (int i = 0; i < program.n_parameters; i++) {
        const struct parameter *q = &program.parameters[i];

        whole[program_parameter_is_split(&program, i, AXIS_EP)] += q->whole_rows * q->whole_cols;
        filled[program_parameter_is_split(&program, i, AXIS_EP)] += OPS_NORM_BLOCK;
    }
    for (int i = 0; i < program.n_buckets; i++) {
        const struct bucket *b = &program.buckets[i];

        own[b->axis == AXIS_DP] += program.values[b->moment1].cols;
        filled[b->axis == AXIS_DP] += OPS_NORM_BLOCK;
        assert_int_equal(program_n_shards(&program, i), b->axis == AXIS_DP ? 2 : 4);
    }
    for (int is_expert = 0; is_expert < 2; is_expert++) {
        assert_true(whole[is_expert] > 100000);
        assert_in_range(own[is_expert], whole[is_expert] / 4,
                        whole[is_expert] / 4 + filled[is_expert]);
    }
    program_release(&program);
}

/*
 * Micro-batches of several sizes, for each rank of pipelines: over tp the larger have more pieces
 * of the head than the smaller, so that their sums over ranks are begun at other ops.
 */
static void given_sizes(void **state)
{
    static const int sizes[] = { 1, 3, 1, 2, 2, 1 };
    static const char *const models[] = { "llama", "gpt2" };
    struct program program;

    (void)state;
    for (int n = 0; n < 2 * 2 * 2 * 2 * 4; n++) {
        struct model_spec spec = tiny_spec(models[n & 1]);
        int tp = 1 + (n >> 1 & 1), pp = 1 + (n >> 2 & 1);
        struct compile_train options = tiny_compile(&spec, 2);

        spec.max_seq_len = 1024;
        options.seq_len = 512;
        options.micro_batch = 3;
        options.n_micro_batches = 6;
        options.micro_batches = sizes;
        options.mesh.size[AXIS_TP] = tp;
        options.mesh.size[AXIS_PP] = pp;
        options.sequence_parallel = n >> 5 & 1;
        options.pipeline.kind = PIPELINE_DYNAMIC;
        options.pipeline.n_chunks = 1;
        options.gradients.early = n >> 3 & 1;
        options.gradients.zero = n >> 4 & 3;
        options.recompute = (enum recompute_kind)(n % 3);
        for (options.pipeline.rank = 0; options.pipeline.rank < pp; options.pipeline.rank++) {
            must_compile(&program, &options);
            program_release(&program);
        }
    }
}

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The number of micro-batches and layers costs little: measured 0.02 s; a second is a slow
 * machine's. */
static void compiling_is_fast(void **state)
{
    static const struct {
        const char *model;
        int n_micro_batches;
    } cases[] = { { "llama2-70b", 64 }, { "gpt3-175b", 1536 }, { "gpt3-175b", 100000 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_spec spec = real_spec(cases[i].model);
        struct compile_train options = tiny_compile(&spec, 8);
        struct program program;

        options.dtype = DTYPE_BF16;
        options.seq_len = 2048;
        options.n_micro_batches = cases[i].n_micro_batches;
        options.recompute = RECOMPUTE_KIND_FULL;
        options.gradients.bucket_bytes = (size_t)25 << 20;
        double begin = cpu_seconds();
        must_compile(&program, &options);
        double seconds = cpu_seconds() - begin;
        program_release(&program);
        if (!(seconds < 1))
            fail_msg("%s with %d micro-batches took %.3f s", cases[i].model,
                     cases[i].n_micro_batches, seconds);
    }
}

/* Bytes of what a stage sends forward and receives backward. */
static size_t boundary_bytes(const struct program *p)
{
    size_t n_bytes = 0;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            if (op->kind == OP_SEND || op->kind == OP_RECEIVE)
                n_bytes += program_value_bytes(p, op->kind == OP_SEND ? op->in[0] : op->out[0]);
        }
    return n_bytes;
}

/* What a residual stream of bf16 is for: half is sent, and half is kept of what is recomputed. */
static void a_narrow_stream_is_half(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    size_t sent[2], kept[2];

    (void)state;
    spec.n_layers = 8;
    for (int i = 0; i < 2; i++) {
        struct compile_train options = tiny_compile(&spec, 1);
        struct program program;

        options.residual = i ? DTYPE_BF16 : DTYPE_F32;
        options.recompute = RECOMPUTE_KIND_FULL;
        options.mesh.size[AXIS_PP] = 2;
        must_compile(&program, &options);
        sent[i] = boundary_bytes(&program);
        kept[i] = program.segment_bytes[SEGMENT_STASH];
        program_release(&program);
    }
    assert_true(sent[1] > 0);
    assert_int_equal(2 * sent[1], sent[0]);
    /* Tokens and targets are kept besides. */
    assert_true(20 * kept[1] < 11 * kept[0]);
}

static int n_backward_ops(const struct program *p)
{
    int n = 0;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            n += p->functions[f].ops[i].phase == PHASE_B;
    return n;
}

/* Where parameters are trained, from that stage on there is a backward, and none before. */
static void stages_before_what_is_trained_have_no_backward(void **state)
{
    static const struct {
        const char *trained;
        int first; /* stage */
    } rows[] = { { "embedding.*", 0 },         { "layers.0.*", 0 },
                 { "layers.1.ffn_norm.*", 1 }, { "layers.2.qkv.weight", 2 },
                 { "layers.3.down.*", 3 },     { "final_norm.*", 3 } };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int rank = 0; rank < 4; rank++) {
            struct model_spec spec = tiny_spec("llama");
            struct compile_train options = tiny_compile(&spec, 1);
            struct tuning tuning = { .only = { &rows[i].trained, 1 } };
            struct program program;

            spec.n_layers = 4;
            options.tuning = &tuning;
            options.mesh.size[AXIS_PP] = 4;
            options.pipeline.rank = rank;
            must_compile(&program, &options);
            if ((n_backward_ops(&program) > 0) != (rank >= rows[i].first))
                fail_msg("%s: rank %d has %d ops of a backward", rows[i].trained, rank,
                         n_backward_ops(&program));
            program_release(&program);
        }
}

/* Two compilations of one job give one program, to the last address. */
static void compiling_is_repeatable(void **state)
{
    struct model_spec spec = tiny_spec("gpt2");
    struct compile_train options = tiny_compile(&spec, 2);
    struct str text[2] = { { 0 } };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct program program;

        must_compile(&program, &options);
        print_program(&program, PRINT_ADDRESSES, &text[i]);
        program_release(&program);
    }
    assert_string_equal(str_text(&text[0]), str_text(&text[1]));
    str_release(&text[0]);
    str_release(&text[1]);
}

/* Each op's scratch is asked for, and the largest of each stream is what the segment holds. */
static size_t scratch(void *context, const struct op_shape *shape)
{
    int *n = context;

    (*n)++;
    if (shape->kind == OP_ALL_GATHER)
        return 5000;
    return shape->kind == OP_ATTENTION_GRAD ? 12345 : 77;
}

static void scratch_of_ops(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);
    struct program program;
    int n_asked = 0, n_ops = 0;

    (void)state;
    options.scratch = scratch;
    options.scratch_context = &n_asked;
    must_compile(&program, &options);
    for (int f = 0; f < program.n_functions; f++)
        n_ops += program.functions[f].n_ops;
    assert_int_equal(n_asked, n_ops);
    assert_int_equal(program.segment_bytes[SEGMENT_LIBRARY], 12345);
    /* Gathers on their stream, all else on that of the reduces. */
    assert_int_equal(program.segment_bytes[SEGMENT_COMM], align_up(5000, 64) + align_up(77, 64));

    struct memory_row rows[N_SEGMENTS];
    int n = program_memory_table(&program, rows, N_SEGMENTS);
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += rows[i].n_bytes;
    assert_int_equal(total, program_memory_bytes(&program));
    assert_int_equal(program_memory_table(&program, rows, 2), 2);
    program_release(&program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination),
        cmocka_unit_test(every_mesh),
        cmocka_unit_test(every_mesh_of_experts),
        cmocka_unit_test(states_of_experts_and_all_else),
        cmocka_unit_test(given_sizes),
        cmocka_unit_test(compiling_is_fast),
        cmocka_unit_test(compiling_is_repeatable),
        cmocka_unit_test(stages_before_what_is_trained_have_no_backward),
        cmocka_unit_test(a_narrow_stream_is_half),
        cmocka_unit_test(scratch_of_ops),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
