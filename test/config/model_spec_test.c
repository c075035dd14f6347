/*
 * model_spec_test.c - the published models have the published numbers of parameters
 */
#include "config_fixture.h"

#include <math.h>

#include "config/embedded.h"

static const struct {
    const char *name;
    int64_t n_parameters;
} models[] = {
    { "gpt2", 124439808 },
    { "gpt2-medium", 354823168 },
    { "gpt2-large", 774030080 },
    { "gpt2-xl", 1557611200 },
    { "gpt3-175b", 174615846912 },
    { "llama-7b", 6738415616 },
    { "llama-13b", 13015864320 },
    { "llama-30b", 32528943616 },
    { "llama-65b", 65285660672 },
    { "llama2-7b", 6738415616 },
    { "llama2-13b", 13015864320 },
    { "llama2-70b", 68976648192 },
    { "llama3-8b", 8030261248 },
    { "llama3-70b", 70553706496 },
    { "llama-100m", 100092672 },
    { "llama-22m", 21730176 },
    { "llama-4m", 4000000 },
    { "llama-tiny", 108864 },
    { "gpt2-tiny", 124672 },
    { "mixtral-8x7b", 46702792704 },
    { "qwen3-30b-a3b", 30532122624 },
    { "mixtral-tiny", 193344 },
    { "aquila-7b", 7295537152 },
    { "aquila2-34b", 33693554688 },
    { "baichuan-7b", 7000559616 },
    { "baichuan-13b", 13264901120 },
    { "baichuan2-7b", 7505973248 },
    { "baichuan2-13b", 13896668160 },
    { "bloom-7b1", 7069016064 },
    { "bloom-176b", 176247271424 },
    { "internlm-7b", 7321948160 },
    { "internlm-65b", 66454298624 },
    { "llama2-34b", 33743970304 },
    { "mistral-7b", 7241732096 },
    { "qwen-7b", 7721324544 },
    { "qwen-14b", 14167290880 },
    { "qwen-72b", 72287920128 },
    { "qwen2-7b", 7615616512 },
    { "qwen2-72b", 72706203648 },
    { "qwen3-8b", 8190735360 },
    { "qwen1.5-moe-a2.7b", 14315784192 },
    { "deepseek-moe-16b", 16375728128 },
    { "dots.llm1", 142774381696 },
};

#define N_MODELS (int)(sizeof models / sizeof *models)

static void test_counts(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        struct model_spec spec;

        read_named_model(&spec, models[i].name);
        assert_string_equal(spec.name, models[i].name);
        if (model_spec_n_parameters(&spec) != models[i].n_parameters)
            fail_msg("%s has %lld parameters", models[i].name,
                     (long long)model_spec_n_parameters(&spec));
    }
}

/* Every model file is in the table above, and embedded as it is on disk. */
static void test_all_are_listed(void **state)
{
    int n = 0;

    (void)state;
    for (int i = 0; i < n_embedded_files; i++)
        n += str_starts_with(embedded_files[i].path, "configs/models/");
    assert_int_equal(n, N_MODELS);
    assert_null(embedded_find("configs/models/gpt9.yaml"));
    for (int i = 0; i < n_embedded_files; i++) {
        static char text[1 << 20];
        FILE *file = fopen(embedded_files[i].path, "r");

        assert_non_null(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        assert_string_equal(text, embedded_files[i].text);
        assert_ptr_equal(embedded_find(embedded_files[i].path), &embedded_files[i]);
    }
}

static void test_matmul_parameters(void **state)
{
    struct model_spec spec;

    (void)state;
    read_named_model(&spec, "llama-tiny");
    /* q, k, v, o; gate, up, down; the head; by hand. */
    assert_int_equal(model_spec_n_matmul_parameters(&spec),
                     2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 176) + 256 * 64);
    read_named_model(&spec, "gpt2");
    /* All but embeddings, norms and biases, and the tied head. */
    assert_int_equal(model_spec_n_matmul_parameters(&spec), 12 * 12 * 768 * 768 + 50257 * 768);
    assert_true(model_spec_flops_per_token(&spec, 1024) ==
                6.0 * (12.0 * 12 * 768 * 768 + 50257.0 * 768) + 6.0 * 12 * 768 * 1024);
}

/* Of experts, those that a token goes to; layers without are as wide as ffn_size says. */
static void test_experts(void **state)
{
    struct model_spec spec;

    (void)state;
    read_named_model(&spec, "mixtral-8x7b");
    assert_int_equal(
        model_spec_n_matmul_parameters(&spec),
        32 * ((int64_t)4096 * (2 * 4096 + 2 * 1024) + 8 * 4096 + 2 * 3 * (int64_t)4096 * 14336) +
            (int64_t)32000 * 4096);
    /* 6 of each active parameter that is multiplied, and attention's of 32 layers. */
    assert_true(model_spec_flops_per_token(&spec, 4096) ==
                6.0 * (double)model_spec_n_matmul_parameters(&spec) + 6.0 * 32 * 4096 * 4096);
    read_named_model(&spec, "qwen3-30b-a3b");
    int64_t of_layer = 2048 * (2 * 4096 + 2 * 512) + 128 * 2048 + 8 * 3 * 2048 * 768;
    assert_int_equal(model_spec_n_matmul_parameters(&spec), 48 * of_layer + 151936 * 2048);
    assert_true(model_spec_flops_per_token(&spec, 1024) ==
                6.0 * (double)(48 * of_layer + 151936 * 2048) + 6.0 * 48 * 4096 * 1024);
    read_named_model(&spec, "mixtral-tiny");
    int64_t all = model_spec_n_matmul_parameters(&spec);
    spec.expert_every = 2;
    spec.expert_ffn_size = 10;
    spec.ffn_size = 100;
    assert_int_equal(all - model_spec_n_matmul_parameters(&spec),
                     2 * 2 * 3 * 64 * 88 + 4 * 64 - 2 * 3 * 64 * 10 - 3 * 64 * 100);
    assert_false(model_spec_has_experts(&spec, 0));
    assert_true(model_spec_has_experts(&spec, 1));
    assert_int_equal(model_spec_n_expert_layers(&spec, 1), 0);
    assert_int_equal(model_spec_n_expert_layers(&spec, 2), 1);
}

/* Narayanan et al. 2021, eq. 3: 96 B s l h^2 (1 + s/6h + V/16lh). */
static double eq3(double batch, double s, double l, double h, double v)
{
    return 96 * batch * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
}

static void test_megatron_flops(void **state)
{
    struct model_spec spec;

    (void)state;
    read_named_model(&spec, "gpt3-175b");
    double step = model_spec_megatron_flops_per_token(&spec, 2048, 1) * 1536 * 2048;
    assert_true(fabs(step / eq3(1536, 2048, 96, 12288, 51200) - 1) < 1e-12);
    assert_true(fabs(step / 4.51e18 - 1) < 0.001);
    read_named_model(&spec, "gpt2");
    double token = model_spec_megatron_flops_per_token(&spec, 512, 1);
    assert_true(fabs(token / eq3(1, 1, 12, 768, 0) - 1) > 0.01);
    assert_true(fabs(token * 512 / eq3(1, 512, 12, 768, 50257) - 1) < 1e-12);
    /* Without recompute one forward of the layers less: 72 instead of 96, the head as before. */
    double without = model_spec_megatron_flops_per_token(&spec, 512, 0);
    assert_true(fabs((token - without) / (24 * 12 * 768.0 * 768 + 4 * 12 * 768.0 * 512) - 1) <
                1e-12);
}

/* Of what a family adds to a plain one, by hand. */
static void test_additions(void **state)
{
    struct model_spec spec, plain;
    double longest = 0;

    (void)state;
    read_named_model(&plain, "llama-tiny");
    spec = plain;
    spec.qk_norm = 1;
    assert_int_equal(model_spec_n_parameters(&spec) - model_spec_n_parameters(&plain), 2 * 2 * 16);
    spec = plain;
    spec.embedding_norm = 1;
    assert_int_equal(model_spec_n_parameters(&spec) - model_spec_n_parameters(&plain), 64);
    spec.norm = NORM_LAYER;
    spec.bias = plain.bias = 1;
    plain.norm = NORM_LAYER;
    assert_int_equal(model_spec_n_parameters(&spec) - model_spec_n_parameters(&plain), 128);
    /* A window as long as the text hides nothing; of 100 tokens and a window of 10, 9.5 keys each
     * but for the first, of one of two layers. */
    spec = plain;
    spec.window = 100;
    assert_true(model_spec_flops_per_token(&spec, 100) == model_spec_flops_per_token(&plain, 100));
    longest = model_spec_flops_per_token(&plain, 100);
    spec.window = 10;
    spec.window_first_layer = 1;
    assert_true(fabs(longest - model_spec_flops_per_token(&spec, 100) - 12 * 64 * (50 - 9.5)) <
                1e-6);
    assert_int_equal(model_spec_window(&spec, 0), 0);
    assert_int_equal(model_spec_window(&spec, 1), 10);
    spec.window_period = 3;
    assert_int_equal(model_spec_window(&spec, 0), 0);
    assert_int_equal(model_spec_window(&spec, 2), 10);
    assert_int_equal(model_spec_window(&spec, 3), 0);
    assert_int_equal(model_spec_window(&spec, 4), 10);
    assert_int_equal(model_spec_window(&spec, 6), 0);
    spec.window_period = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_all_are_listed),
        cmocka_unit_test(test_matmul_parameters),
        cmocka_unit_test(test_megatron_flops),
        cmocka_unit_test(test_additions),
        cmocka_unit_test(test_experts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
