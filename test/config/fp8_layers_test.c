/*
 * fp8_layers_test.c - which jobs may have products of e4m3, and what is said of those that have
 * none
 */
#include "config/fp8_layers.h"

#include "config_fixture.h"

struct row {
    const char *model, *train, *parallel;
    const char *text; /* of the refusal, or of a note */
    int n_ranks;
};

static int resolve(struct job *job, const struct row *row, struct arena *arena, struct err *err)
{
    const char *text = arena_printf(arena,
                                    "model: {vocab_size: 64, n_heads: 4, n_kv_heads: 2, %s}\n"
                                    "data: {train: a, seq_len: 16}\nparallel: {%s}\n"
                                    "train: {steps: 100, global_batch: 8%s}\n",
                                    row->model, row->parallel, row->train);

    return read_job(job, text, arena, err) || job_resolve(job, row->n_ranks, arena, err) ? -1 : 0;
}

#define FOUR "hidden_size: 64, ffn_size: 128, n_layers: 4"
#define MIXTURE ", n_experts: 4, n_active_experts: 2, expert_ffn_size: 32"

static const struct row mistakes[] = {
    { FOUR, ", fp8: fp4", "", "train.fp8 is fp4, not one of none, blockwise, tensor", 1 },
    { FOUR, ", fp8: blockwise, dtype: fp32", "",
      "j.yaml:4:43: train.fp8 is blockwise and train.dtype fp32: what is rounded to 8 bits are "
      "values of bf16 (hint: train.dtype: bf16, or fp8: none)",
      1 },
    { FOUR, ", fp8: tensor, dtype: fp16", "", "train.fp8 is tensor and train.dtype fp16", 1 },
    { FOUR, ", fp8: tensor, fp8_edge_layers: 2", "",
      "j.yaml:4:43: train.fp8 is tensor, but of 4 layers fp8_edge_layers leaves 2 at either end in "
      "bf16: there is none between (hint: fp8_edge_layers: 1, or fp8: none)",
      1 },
    { "hidden_size: 64, ffn_size: 128, n_layers: 1", ", fp8: blockwise", "",
      "of 1 layer fp8_edge_layers leaves 1", 1 },
    { FOUR MIXTURE, ", fp8_experts: fp8", "",
      "train.fp8_experts is fp8, but train.fp8 none rounds no product (hint: train.fp8: blockwise "
      "or tensor, or fp8_experts: bf16)",
      1 },
    { FOUR, ", fp8: blockwise, fp8_experts: fp8", "",
      "train.fp8_experts is fp8, but the model has no experts (hint: leave it out)", 1 },
    { FOUR, ", fp8: blockwise, fp8_gradients: e5m2", "",
      "train.fp8_gradients is e5m2 and train.fp8 blockwise: scales of blocks make its range "
      "needless (hint: train.fp8: tensor, or fp8_gradients: e4m3)",
      1 },
    { FOUR, ", fp8_gradients: e5m2", "",
      "train.fp8_gradients is e5m2, but train.fp8 none rounds no gradient (hint: train.fp8: "
      "tensor, "
      "or leave it out)",
      1 },
};

static void refusals(void **state)
{
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct err err = { 0 };
        struct job job;

        if (!resolve(&job, &mistakes[i], &arena, &err) || !strstr(err.text, mistakes[i].text))
            fail_msg("%s: \"%s\", not \"%s\"", mistakes[i].train, err.text, mistakes[i].text);
    }
    arena_release(&arena);
}

static const struct row noted[] = {
    { FOUR, ", fp8: blockwise", "", "train.fp8 = blockwise: products of layers 1 to 2 of 4", 1 },
    { FOUR, ", fp8: tensor, fp8_edge_layers: 0", "",
      "train.fp8 = tensor: products of layers 0 to 3 of 4", 1 },
    { FOUR MIXTURE, ", fp8: blockwise", "",
      "products of layers 1 to 2 of 4; those of experts stay bf16", 1 },
    { FOUR ", n_experts: 4, n_active_experts: 2, expert_ffn_size: 40",
      ", fp8: blockwise, fp8_experts: fp8", "",
      "train.fp8: experts.down stays bf16 (64 x 40 on a rank are no multiples of 16)", 1 },
    { FOUR MIXTURE, ", fp8: tensor, fp8_experts: fp8, micro_batch: 2", "tp: 4",
      "train.fp8: experts.down stays bf16 (64 x 8 on a rank are no multiples of 16)", 4 },
    { "hidden_size: 64, ffn_size: 200, n_layers: 4", ", fp8: blockwise", "",
      "train.fp8: down stays bf16 (64 x 200 on a rank are no multiples of 16)", 1 },
    { "hidden_size: 64, ffn_size: 144, n_layers: 4", ", fp8: blockwise, micro_batch: 2", "tp: 2",
      "train.fp8: down stays bf16 (64 x 72 on a rank are no multiples of 16)", 2 },
};

static void notes(void **state)
{
    struct arena arena = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof noted / sizeof *noted; i++) {
        struct err err = { 0 };
        struct job job;

        if (resolve(&job, &noted[i], &arena, &err))
            fail_msg("%s: %s", noted[i].train, err.text);
        if (!has_note(&job, noted[i].text))
            fail_msg("%s: no note \"%s\"", noted[i].train, noted[i].text);
    }
    arena_release(&arena);
}

static void layers(void **state)
{
    struct model_spec spec = { .n_layers = 6 };

    (void)state;
    for (int edge = 0; edge < 4; edge++)
        for (int layer = -1; layer <= 6; layer++) {
            struct fp8_choice choice = { .recipe = FP8_BLOCKWISE, .edge_layers = edge };
            struct fp8_choice none = { .edge_layers = edge };
            bool is_between = layer >= edge && layer <= 5 - edge;

            assert_int_equal(fp8_has_layer(&choice, &spec, layer), is_between);
            assert_false(fp8_has_layer(&none, &spec, layer));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(notes),
        cmocka_unit_test(layers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
