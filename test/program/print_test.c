/*
 * print_test.c - what each pass makes of the two tiny models, as text
 *
 * Read a changed golden with care: these files are what a reviewer sees of a pass. The *_test.c of
 * each pass say in code what must hold; here every op and its order is fixed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/golden_text.h"
#include "support/tiny_model.h"

#define GOLDEN "test/program/golden/"

static void check_functions(const struct program *program, const int *functions, int n,
                            const char *path)
{
    struct str text = { 0 };

    for (int i = 0; i < n; i++)
        print_function(program, functions[i], PRINT_SEGMENTS, &text);
    golden_text_check(path, str_text(&text));
    str_release(&text);
}

static void check_differentiate(const char *model, const char *path)
{
    struct tiny tiny;

    tiny_differentiate(&tiny, model, 1);
    check_functions(&tiny.program, (int[]){ tiny.forward, tiny.backward }, 2, path);
    tiny_release(&tiny);
}

static void differentiate_text(void **state)
{
    (void)state;
    check_differentiate("llama", GOLDEN "llama.differentiate.txt");
    check_differentiate("gpt2", GOLDEN "gpt2.differentiate.txt");
    check_differentiate("mixture", GOLDEN "mixture.differentiate.txt");
}

static void check_fuse(const char *model, const char *path)
{
    struct tiny tiny;

    tiny_forward(&tiny, model, 1);
    fuse(&tiny.program, tiny.forward);
    check_functions(&tiny.program, &tiny.forward, 1, path);
    tiny_release(&tiny);
}

static void fuse_text(void **state)
{
    (void)state;
    check_fuse("llama", GOLDEN "llama.fuse.txt");
    check_fuse("gpt2", GOLDEN "gpt2.fuse.txt");
}

static void check_recompute(const char *model, enum recompute_kind kind, const char *path)
{
    struct tiny tiny;

    tiny_recompute(&tiny, model, 1, kind);
    check_functions(&tiny.program, &tiny.backward, 1, path);
    tiny_release(&tiny);
}

static void recompute_text(void **state)
{
    (void)state;
    check_recompute("llama", RECOMPUTE_KIND_NONE, GOLDEN "llama.recompute-none.txt");
    check_recompute("llama", RECOMPUTE_KIND_SELECTIVE, GOLDEN "llama.recompute-selective.txt");
    check_recompute("llama", RECOMPUTE_KIND_FULL, GOLDEN "llama.recompute-full.txt");
    check_recompute("gpt2", RECOMPUTE_KIND_NONE, GOLDEN "gpt2.recompute-none.txt");
    check_recompute("gpt2", RECOMPUTE_KIND_SELECTIVE, GOLDEN "gpt2.recompute-selective.txt");
    check_recompute("gpt2", RECOMPUTE_KIND_FULL, GOLDEN "gpt2.recompute-full.txt");
}

static void check_shard(const char *model, int early, const char *path)
{
    struct tiny tiny;

    tiny_shard(&tiny, model, 2, early);
    check_functions(&tiny.program, (int[]){ tiny.last, tiny.update }, 2, path);
    tiny_release(&tiny);
}

static void shard_text(void **state)
{
    (void)state;
    check_shard("llama", 0, GOLDEN "llama.shard-late.txt");
    check_shard("llama", 1, GOLDEN "llama.shard-early.txt");
    check_shard("gpt2", 0, GOLDEN "gpt2.shard-late.txt");
    check_shard("gpt2", 1, GOLDEN "gpt2.shard-early.txt");
}

static void check_update(const char *model, int dp_size, const char *path)
{
    struct update_options options = {
        .clip = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
    };
    struct tiny tiny;

    tiny_shard(&tiny, model, dp_size, 0);
    build_update(&tiny.program, tiny.update, &options);
    check_functions(&tiny.program, &tiny.update, 1, path);
    tiny_release(&tiny);
}

static void update_text(void **state)
{
    (void)state;
    check_update("llama", 2, GOLDEN "llama.update.txt");
    check_update("gpt2", 1, GOLDEN "gpt2.update.txt");
}

/* Everything at once: cells, functions with places, entries. */
static void whole_program_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);
    struct str text = { 0 };
    struct program program;
    struct err err;

    (void)state;
    options.recompute = RECOMPUTE_KIND_SELECTIVE;
    if (compile_train(&program, &options, &err) < 0)
        fail_msg("%s", err.text);
    print_program(&program, PRINT_SEGMENTS, &text);
    golden_text_check(GOLDEN "llama.program.txt", str_text(&text));
    str_release(&text);
    program_release(&program);
}

/* A step of compile_train as it is printed, for two data-parallel ranks or two stages. */
static void check_compiled(const char *path, const struct compile_train *options)
{
    struct str text = { 0 };
    struct program program;
    struct err err;

    if (compile_train(&program, options, &err) < 0)
        fail_msg("%s", err.text);
    print_program(&program, PRINT_SEGMENTS, &text);
    golden_text_check(path, str_text(&text));
    str_release(&text);
    program_release(&program);
}

static void zero_two_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);

    (void)state;
    options.gradients.zero = 2;
    options.gradients.early = 1;
    check_compiled(GOLDEN "llama.zero-2.txt", &options);
}

/* Sequence parallel with parts of kv heads gathered; sums that all ranks have, biases, dropout. */
static void tensor_parallel_text(void **state)
{
    static const struct {
        const char *model, *path;
        int tp, sequence_parallel;
    } rows[] = {
        { "llama", GOLDEN "llama.tensor-sequence-4.txt", 4, 1 },
        { "gpt2", GOLDEN "gpt2.tensor-2.txt", 2, 0 },
        { "mixture", GOLDEN "mixture.tensor-sequence-2.txt", 2, 1 },
        { "mixture", GOLDEN "mixture.tensor-2.txt", 2, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_spec spec = tiny_spec(rows[i].model);
        struct compile_train options = tiny_compile(&spec, 1);

        options.mesh.size[AXIS_TP] = rows[i].tp;
        options.sequence_parallel = rows[i].sequence_parallel;
        check_compiled(rows[i].path, &options);
    }
}

/* Rows of the second layer, by what the first one's attention gave them. */
static void compress_rows_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    options.mesh.size[AXIS_TP] = 2;
    options.sequence_parallel = true;
    options.row_codec = (struct row_codec_choice){ .ratio = 0.25, .bits = 8 };
    check_compiled(GOLDEN "llama.compress-rows.txt", &options);
}

/* Slices of tokens, of whole sequences, through attention as well, and of what cp exchanges. */
static void slices_text(void **state)
{
    static const struct {
        const char *path;
        enum overlap_kind kind;
        enum mesh_axis axis;
    } rows[] = {
        { GOLDEN "llama.slices-2.txt", OVERLAP_SLICES, AXIS_TP },
        { GOLDEN "llama.halves.txt", OVERLAP_HALVES, AXIS_TP },
        { GOLDEN "llama.slices-cp.txt", OVERLAP_SLICES, AXIS_CP },
        { GOLDEN "llama.slices-ulysses.txt", OVERLAP_SLICES, AXIS_ULYSSES },
        { GOLDEN "llama.slices-fastseq.txt", OVERLAP_SLICES, AXIS_ULYSSES },
    };
    struct model_spec spec = tiny_spec("llama");

    (void)state;
    spec.n_layers = 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct compile_train options = tiny_compile(&spec, 1);

        options.mesh.size[rows[i].axis] = 2;
        options.sequence_parallel = 1;
        options.micro_batch = 128 / options.seq_len;
        options.overlap = (struct slice_options){ .kind = rows[i].kind, .n_slices = 2 };
        options.fastseq = strstr(rows[i].path, "fastseq") != NULL;
        check_compiled(rows[i].path, &options);
    }
}

/* Two groups of each rank's experts: what goes to the second travels under the first. */
static void expert_groups_text(void **state)
{
    struct model_spec spec = tiny_spec("mixture");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    options.mesh.size[AXIS_EP] = 2;
    options.overlap.kind = OVERLAP_SLICES;
    options.overlap.n_slices = 2;
    check_compiled(GOLDEN "mixture.slices-ep.txt", &options);
}

/* Groups of two that shard, and sum over each other, ranks first: ahead of the next reduction. */
static void hybrid_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);

    (void)state;
    options.mesh.size[AXIS_REPLICA] = 2;
    options.gradients.zero = 1;
    options.gradients.early = 1;
    check_compiled(GOLDEN "llama.hybrid-early.txt", &options);
}

/*
 * cp and ep divide tokens as dp does, so rows are split over them, and what one has summed the
 * others sum, too: ep and dp, as one axis, make shards of gradients, which cp sums, in the last
 * micro-batch; the loss at the end.
 */
static void token_axes_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);

    (void)state;
    options.mesh.size[AXIS_CP] = 2;
    options.mesh.size[AXIS_EP] = 2;
    options.gradients.zero = 1;
    check_compiled(GOLDEN "llama.cp-ep.txt", &options);
}

/* Experts of two ranks: choices are gathered, rows go to their experts and back, and so do
 * gradients. */
static void experts_text(void **state)
{
    struct model_spec spec = tiny_spec("mixture");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    options.mesh.size[AXIS_EP] = 2;
    check_compiled(GOLDEN "mixture.experts-2.txt", &options);
}

/* Whole experts on tp and ep: rows of the parts that tp ranks have go to them, with no gather over
 * tp before nor a sum behind. */
static void whole_experts_text(void **state)
{
    struct model_spec spec = tiny_spec("mixture");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    options.mesh.size[AXIS_TP] = options.mesh.size[AXIS_EP] = 2;
    options.sequence_parallel = options.whole_experts = 1;
    check_compiled(GOLDEN "mixture.whole-experts-4.txt", &options);
}

/* All else is sharded over the four data-parallel ranks, experts over the two that have the same
 * ones. */
static void sharded_experts_text(void **state)
{
    struct model_spec spec = tiny_spec("mixture");
    struct compile_train options = tiny_compile(&spec, 2);

    (void)state;
    options.mesh.size[AXIS_EP] = 2;
    options.gradients.zero = 3;
    options.gradients.early = 1;
    check_compiled(GOLDEN "mixture.experts-2-zero-3.txt", &options);
}

/* What is kept of their rows is in pages; a rerun of the step recomputes it. */
static void pages_text(void **state)
{
    struct model_spec spec = tiny_spec("mixture");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    options.mesh.size[AXIS_EP] = 2;
    options.stash_factor = 1.25;
    check_compiled(GOLDEN "mixture.pages.txt", &options);
}

/* Heads are exchanged, keys are gathered in slices, keys go round: of two ranks each. */
static void context_texts(void **state)
{
    static const struct {
        const char *path;
        enum mesh_axis axis;
        int key_slices, has_ring;
    } rows[] = {
        { GOLDEN "llama.ulysses.txt", AXIS_ULYSSES, 1, 0 },
        { GOLDEN "llama.key-slices.txt", AXIS_CP, 2, 0 },
        { GOLDEN "llama.ring.txt", AXIS_CP, 1, 1 },
    };
    struct model_spec spec = tiny_spec("llama");

    (void)state;
    spec.n_heads = 4;
    spec.n_kv_heads = 2;
    spec.head_dim = 8;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct compile_train options = tiny_compile(&spec, 1);

        options.mesh.size[rows[i].axis] = 2;
        options.key_slices = rows[i].key_slices;
        options.has_ring = rows[i].has_ring;
        check_compiled(rows[i].path, &options);
    }
}

/*
 * The input of qkv is gathered, and its matrix divided over tp and ulysses: in a bucket of its own,
 * whose gradient is complete on its rank, and with the rank's number among both axes' parts.
 */
static void fastseq_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);

    (void)state;
    spec.n_kv_heads = spec.n_heads;
    options.mesh.size[AXIS_TP] = options.mesh.size[AXIS_ULYSSES] = 2;
    options.sequence_parallel = 1;
    options.fastseq = 1;
    options.gradients.zero = 1;
    options.update.states = DTYPE_BF16;
    check_compiled(GOLDEN "llama.fastseq.txt", &options);
}

/* All kinds of values come and go, the update of the embedding in pieces. */
static void offload_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 1);
    static const unsigned char set_of_layer[8];
    struct keep_set set = { .full = false };
    struct rank_offload offload = { .piece_bytes = 16384 };

    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++)
        bitset_add(&set.away, kind);
    for (int kind = 0; kind < N_AWAY_KINDS; kind++)
        offload.cells[kind].bytes = SIZE_MAX;
    options.sets = &set;
    options.set_of_layer = set_of_layer;
    options.offload = &offload;
    check_compiled(GOLDEN "llama.offload.txt", &options);
}

/* Gathers of weights stand in the functions that read them. */
static void zero_three_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);

    (void)state;
    options.gradients.zero = 3;
    options.gradients.early = 1;
    options.gradients.bucket_bytes = (size_t)1 << 20;
    check_compiled(GOLDEN "llama.zero-3.txt", &options);
}

static void pipeline_text(void **state)
{
    static const struct {
        const char *path;
        enum pipeline_kind kind;
        int rank;
    } rows[] = {
        { GOLDEN "llama.pipeline-1f1b-0.txt", PIPELINE_1F1B, 0 },
        { GOLDEN "llama.pipeline-zb-h1-1.txt", PIPELINE_ZB_H1, 1 },
    };
    struct model_spec spec = tiny_spec("llama");

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct compile_train options = tiny_compile(&spec, 1);

        options.mesh.size[AXIS_PP] = 2;
        options.pipeline.kind = rows[i].kind;
        options.pipeline.rank = rows[i].rank;
        check_compiled(rows[i].path, &options);
    }
}

/* A residual stream of bf16: what is sent, added and kept of layers is, and no gradient is cast. */
static void residual_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    options.mesh.size[AXIS_PP] = 2;
    options.pipeline.kind = PIPELINE_1F1B;
    options.residual = DTYPE_BF16;
    options.recompute = RECOMPUTE_KIND_FULL;
    check_compiled(GOLDEN "llama.residual-bf16-0.txt", &options);
}

/* Of three layers the second's products are of fp8, forward and backward, recomputed or not. */
static void fp8_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    spec.n_layers = 3;
    options.n_micro_batches = 1;
    options.dtype = DTYPE_BF16;
    options.fp8 = (struct fp8_choice){ .recipe = FP8_BLOCKWISE, .edge_layers = 1 };
    options.recompute = RECOMPUTE_KIND_FULL;
    check_compiled(GOLDEN "llama.fp8.txt", &options);
}

/* One scale of each tensor: ranks of tp and cp have parts of some, which they find together. */
static void fp8_tensor_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    spec.n_layers = 3;
    options.n_micro_batches = 1;
    options.mesh.size[AXIS_TP] = options.mesh.size[AXIS_CP] = 2;
    options.dtype = DTYPE_BF16;
    options.fp8 = (struct fp8_choice){ .recipe = FP8_TENSOR, .edge_layers = 1 };
    check_compiled(GOLDEN "llama.fp8-tensor.txt", &options);
}

/* Of weights in shards codes are gathered. */
static void fp8_weights_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    spec.n_layers = 3;
    options.n_micro_batches = 1;
    options.mesh.size[AXIS_DP] = 2;
    options.gradients.zero = 3;
    options.gradients.early = true;
    options.dtype = DTYPE_BF16;
    options.fp8 = (struct fp8_choice){ .recipe = FP8_BLOCKWISE, .edge_layers = 1 };
    check_compiled(GOLDEN "llama.fp8-zero-3.txt", &options);
}

/* The functions of each size, which add to the same accumulators. */
static void dynamic_text(void **state)
{
    static const int sizes[] = { 1, 2, 1 };
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 1);

    (void)state;
    options.mesh.size[AXIS_PP] = 2;
    options.pipeline.kind = PIPELINE_DYNAMIC;
    options.micro_batch = 2;
    options.micro_batches = sizes;
    check_compiled(GOLDEN "llama.pipeline-dynamic-0.txt", &options);
}

/* Zero 1: a reader can follow a step of both, bf16 with masters and fp32 without. */
static void zero_one_text(void **state)
{
    static const char *const paths[2] = { GOLDEN "llama.zero-1.txt", GOLDEN "gpt2.zero-1.txt" };

    (void)state;
    for (int m = 0; m < 2; m++) {
        struct model_spec spec = tiny_spec(m ? "gpt2" : "llama");
        struct compile_train options = tiny_compile(&spec, 2);
        struct str text = { 0 };
        struct program program;
        struct err err;

        options.gradients.zero = 1;
        options.gradients.bucket_bytes = (size_t)24 << 10;
        options.gradients.early = m;
        if (compile_train(&program, &options, &err) < 0)
            fail_msg("%s", err.text);
        print_program(&program, PRINT_SEGMENTS, &text);
        golden_text_check(paths[m], str_text(&text));
        str_release(&text);
        program_release(&program);
    }
}

/* Masters of which the weights are a part. */
static void split_masters_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);

    (void)state;
    options.gradients.zero = 1;
    options.gradients.bucket_bytes = (size_t)24 << 10;
    options.update.half_away = options.update.split = true;
    check_compiled(GOLDEN "llama.split-masters.txt", &options);
}

/* Matrices of whole parameters, dealt out, and of shards whose matrices tp cuts. */
static void muon_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);

    (void)state;
    options.update.optimizer = RULE_MUON;
    options.update.muon = (struct muon_options){ .momentum = 0.95, .nesterov = true, .steps = 5 };
    options.gradients.matrices_apart = true;
    check_compiled(GOLDEN "llama.muon.txt", &options);
    options.mesh.size[AXIS_TP] = 2;
    options.gradients.zero = 1;
    options.gradients.bucket_bytes = (size_t)24 << 10;
    check_compiled(GOLDEN "llama.muon-zero-1-tensor-2.txt", &options);
}

/* Moments of codes, and one of fp16, with scales. */
static void scaled_states_text(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, 2);

    (void)state;
    options.gradients.zero = 1;
    options.gradients.bucket_bytes = (size_t)24 << 10;
    options.update.states = DTYPE_U8;
    check_compiled(GOLDEN "llama.int8-states.txt", &options);
    options.gradients.zero = 0;
    options.update.states = DTYPE_F32;
    options.update.optimizer = RULE_CADAM;
    check_compiled(GOLDEN "llama.cadam.txt", &options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residual_text),      cmocka_unit_test(split_masters_text),
        cmocka_unit_test(differentiate_text), cmocka_unit_test(fuse_text),
        cmocka_unit_test(recompute_text),     cmocka_unit_test(shard_text),
        cmocka_unit_test(update_text),        cmocka_unit_test(whole_program_text),
        cmocka_unit_test(zero_one_text),      cmocka_unit_test(zero_two_text),
        cmocka_unit_test(slices_text),        cmocka_unit_test(hybrid_text),
        cmocka_unit_test(zero_three_text),    cmocka_unit_test(offload_text),
        cmocka_unit_test(pipeline_text),      cmocka_unit_test(tensor_parallel_text),
        cmocka_unit_test(dynamic_text),       cmocka_unit_test(token_axes_text),
        cmocka_unit_test(experts_text),       cmocka_unit_test(sharded_experts_text),
        cmocka_unit_test(pages_text),         cmocka_unit_test(sharded_experts_text),
        cmocka_unit_test(whole_experts_text), cmocka_unit_test(context_texts),
        cmocka_unit_test(fastseq_text),       cmocka_unit_test(muon_text),
        cmocka_unit_test(fp8_text),           cmocka_unit_test(fp8_tensor_text),
        cmocka_unit_test(scaled_states_text), cmocka_unit_test(fp8_weights_text),
        cmocka_unit_test(compress_rows_text), cmocka_unit_test(expert_groups_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
