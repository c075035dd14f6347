/*
 * numerics_test.c - what decides a run's bits is in its description, once; the rest is not
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/fields_impl.h"
#include "support/golden_text.h"
#include "train/numerics.h"

static const char text[] =
    "model: {vocab_size: 64, hidden_size: 48, n_layers: 2, n_heads: 4, n_kv_heads: 2, "
    "ffn_size: 72}\n"
    "data: {train: tokens, seq_len: 16}\n"
    "train: {steps: 20, global_batch: 8, micro_batch: 2}\n"
    "output: run\n";

/* The description of the job with one override (NULL: none); heap. */
static char *describe(const char *override, int world_size)
{
    struct arena arena = { 0 };
    struct str out = { 0 };
    struct job job;
    struct err err;

    if (job_read_text(&job, text, sizeof text - 1, "job", &override, override ? 1 : 0, &arena,
                      &err) < 0 ||
        job_resolve(&job, world_size, &arena, &err) < 0)
        fail_msg("%s", err.text);
    numerics_describe(&job, 42, "cpu", "", &out);
    assert_true(numerics_hash(&out) == numerics_hash(&out));
    char *copy = strdup(str_text(&out));
    str_release(&out);
    arena_release(&arena);
    return copy;
}

static int differ_by(const char *before, const char *override)
{
    char *plain = describe(before, 1), *changed = describe(override, 1);
    int differ = strcmp(plain, changed) != 0;

    free(plain);
    free(changed);
    return differ;
}

/* A resumed run compares line by line: a key that came twice would be compared with the other's. */
static void lines_have_keys_of_their_own(void **state)
{
    char *description = describe(NULL, 1), *rest = description, *line;
    const char *keys[100];
    size_t n = 0;

    (void)state;
    while ((line = strsep(&rest, "\n")) && *line) {
        char *space = strchr(line, ' ');

        assert_non_null(space);
        assert_true(space[1] != '\0');
        *space = '\0';
        for (size_t i = 0; i < n; i++)
            if (!strcmp(keys[i], line))
                fail_msg("%s comes twice", line);
        assert_true(n < sizeof keys / sizeof *keys);
        keys[n++] = line;
    }
    assert_true(n > 35);
    free(description);
}

static int differs(const char *override)
{
    return differ_by(NULL, override);
}

#define MIXTURE "model={from: mixtral-tiny, router_balance: 0.1, "

#define OF_TRAIN(settings) "train={steps: 20, global_batch: 8, micro_batch: 2, " settings "}"

static void what_decides_bits_is_in_it(void **state)
{
    static const char *const overrides[] = {
        "model.vocab_size=65",
        "model.n_layers=3",
        "model.n_kv_heads=1",
        "model.ffn_size=73",
        "model.norm_eps=1e-6",
        "model.norm=layernorm",
        "model.position=alibi",
        "model.embedding_norm=true",
        "model.qk_norm=true",
        "model.window=5",
        "model.normalized_head=true",
        "model.rope_theta=5000.0",
        "model.activation=gelu",
        "model.bias=true",
        "model.tied_embeddings=true",
        "model.dropout=0.1",
        "model.attention_dropout=0.1",
        "model.init_std=0.01",
        "model.n_experts=4",
        "data.seq_len=15",
        "train.seed=2",
        "train.global_batch=4",
        "train.micro_batch=4",
        "train.dtype=fp32",
        "train.residual=bf16",
        OF_TRAIN("fp8: blockwise, fp8_edge_layers: 0"),
        OF_TRAIN("fp8: tensor, fp8_edge_layers: 0"),
        "train.steps=21",
        "train.z_loss=1e-4",
        "train.ema=0.99",
        "optimizer.lr=1e-3",
        "optimizer.min_lr=1e-5",
        "optimizer.schedule=linear",
        "optimizer.warmup_steps=3",
        "optimizer.cycles=2",
        "optimizer.groups=[{match: '*norm*', weight_decay: 0.1}]",
        "optimizer.beta1=0.8",
        "optimizer.beta2=0.8",
        "optimizer.eps=1e-7",
        "optimizer.weight_decay=0.2",
        "optimizer.clip=2.0",
        "optimizer.states=bf16",
        "optimizer.states=int8",
        "optimizer.name=lion",
        "optimizer.name=cadam",
        "optimizer.weight_rounding=half_away",
    };

    (void)state;
    for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++)
        if (!differs(overrides[i]))
            fail_msg("%s is not in it", overrides[i]);
    assert_true(differ_by(OF_TRAIN("fp8: tensor, fp8_edge_layers: 0"),
                          OF_TRAIN("fp8: blockwise, fp8_edge_layers: 0")));
    assert_true(differ_by(OF_TRAIN("fp8: tensor, fp8_edge_layers: 0"),
                          OF_TRAIN("fp8: tensor, fp8_edge_layers: 0, fp8_dw: bf16")));
    assert_false(differs("train.fp8_edge_layers=0"));          /* there is no fp8 */
    assert_false(differs("model.embedding_dropout=false"));    /* there is no dropout */
    assert_false(differs("model.router_balance_kind=pooled")); /* there is no balance */
    assert_true(differ_by(MIXTURE "router_balance_kind: per_layer}",
                          MIXTURE "router_balance_kind: pooled}"));
    assert_false(differ_by(MIXTURE "}", MIXTURE "router_balance_kind: per_layer}"));
    /* The least step of a double is still another number. */
    assert_true(differs("optimizer.clip=1.0000000000000002"));
}

static void what_routers_do_is_in_it(void **state)
{
    static const char *const of_routers[] = {
        "router_score: sigmoid",
        "router_scaling: 2.5",
        "router_groups: 2",
        "router_score: sigmoid, router_bias: true",
        "router_balance_kind: per_sequence",
        "router_balance_kind: global_batch",
        "router_z: 0.001",
        "first_dense_layers: 1",
        "n_shared_experts: 1",
        "n_shared_experts: 1, shared_gate: true",
    };

    (void)state;
    for (size_t i = 0; i < sizeof of_routers / sizeof *of_routers; i++) {
        char changed[512];

        snprintf(changed, sizeof changed, MIXTURE "%s}", of_routers[i]);
        if (!differ_by(MIXTURE "}", changed))
            fail_msg("%s is not in it", of_routers[i]);
    }
    /* What they are by default has no line, and what nothing reads, neither. */
    assert_false(differ_by(MIXTURE "}", MIXTURE "router_scaling: 1.0, router_score: softmax, "
                                                "router_groups: 1, router_z: 0.0, "
                                                "router_groups_kept: 1, first_dense_layers: 0, "
                                                "router_bias_rate: 0.5}"));
}

/* What the job above has no use for: experts, rope's scaling, dropout. */
static int is_idle(const char *key)
{
    static const char *const keys[] = {
        "model.router_normalize",      "model.router_bias",       "model.shared_gate",
        "model.rope_scaling.truncate", "model.embedding_dropout",
    };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(keys[i], key))
            return 1;
    return 0;
}

/* Whatever a model may have or not, so that a new field is not left out. */
static void every_flag_of_the_model_is_in_it(void **state)
{
    int n = 0;

    (void)state;
    for (int i = 0; i < n_job_fields; i++) {
        const struct field *field = &job_fields[i];
        char override[96];

        if (field->type != FIELD_BOOL || strncmp(field->key, "model.", 6) != 0 ||
            is_idle(field->key))
            continue;
        snprintf(override, sizeof override, "%s=%s", field->key,
                 strcmp(field->initial, "true") ? "true" : "false");
        if (!differs(override))
            fail_msg("%s is not in it (numerics.c)", override);
        n++;
    }
    assert_true(n >= 5);
}

static void what_changes_no_bit_is_not(void **state)
{
    static const char *const overrides[] = {
        "output=elsewhere",       "recompute=full",           "threads=3",
        "debug.poison=true",      "train.log_every=1",        "checkpoint.every_steps=2",
        "eval.sets={a: b}",       "data.tokenizer=somewhere", "train.max_skipped=1",
        "train.hang_seconds=3.0", "model.max_seq_len=4096",   "parallel.gradient_sum=early",
        "parallel.bucket_mb=3",   "parallel.reductions=fast", "checkpoint.keep=1",
    };

    (void)state;
    for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++)
        if (differs(overrides[i]))
            fail_msg("%s is in it", overrides[i]);
}

/* The list, but not that sizes that are all the same came in a list. */
static void sizes_count(void **state)
{
    struct arena arena = { 0 };
    struct str texts[3] = { { 0 }, { 0 }, { 0 } };
    static const char *const lists[] = { "[2, 1, 1]", "[1, 2, 1]", "[1, 1, 1, 1]" };
    struct err err;

    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *overrides[] = { "parallel.schedule=dynamic", "train.global_batch=4",
                                    "train.micro_batch=auto",
                                    arena_printf(&arena, "parallel.micro_batches=%s", lists[i]) };
        struct job job;

        if (job_read_text(&job, text, sizeof text - 1, "job", overrides, 4, &arena, &err) < 0 ||
            job_resolve(&job, 1, &arena, &err) < 0)
            fail_msg("%s", err.text);
        numerics_describe(&job, 42, "cpu", "", &texts[i]);
    }
    assert_non_null(strstr(str_text(&texts[0]), "\nparallel.micro_batches 2 1 1\n"));
    assert_non_null(strstr(str_text(&texts[1]), "\nparallel.micro_batches 1 2 1\n"));
    assert_null(strstr(str_text(&texts[2]), "micro_batches"));
    for (int i = 0; i < 3; i++)
        str_release(&texts[i]);
    arena_release(&arena);
}

/* Over two ranks with several micro-batches the order of sums counts, and so does their number. */
static void ranks_count(void **state)
{
    char *one = describe(NULL, 1), *two = describe(NULL, 2);
    char *early = describe("parallel.gradient_sum=early", 2);
    char *fast = describe("parallel.reductions=fast", 2);

    (void)state;
    assert_string_not_equal(one, two);
    assert_string_not_equal(two, early);
    assert_non_null(strstr(two, "\nparallel.reductions fixed\n"));
    assert_non_null(strstr(fast, "\nparallel.reductions fast\n"));
    free(fast);
    free(one);
    free(two);
    free(early);
}

/* Sums over ranks of any axis are NCCL's. */
static void fast_sums_count_over_each_axis(void **state)
{
    const char *fast = "parallel.reductions=fast";
    struct arena arena = { 0 };
    struct job job;
    struct err err;

    (void)state;
    if (job_read_text(&job, text, sizeof text - 1, "job", &fast, 1, &arena, &err) < 0 ||
        job_resolve(&job, 1, &arena, &err) < 0)
        fail_msg("%s", err.text);
    int *const sizes[] = { &job.parallel.dp, &job.parallel.tp, &job.parallel.cp };
    for (int i = 0; i < 3; i++) {
        struct str out = { 0 };

        *sizes[i] = 2;
        numerics_describe(&job, 42, "cuda", "", &out);
        assert_non_null(strstr(str_text(&out), "\nparallel.reductions fast\n"));
        *sizes[i] = 1;
        str_release(&out);
    }
    arena_release(&arena);
}

static void data_and_kernels_count(void **state)
{
    struct str a = { 0 }, b = { 0 }, c = { 0 };
    struct arena arena = { 0 };
    struct job job;
    struct err err;

    (void)state;
    if (job_read_text(&job, text, sizeof text - 1, "job", NULL, 0, &arena, &err) < 0 ||
        job_resolve(&job, 1, &arena, &err) < 0)
        fail_msg("%s", err.text);
    numerics_describe(&job, 42, "cpu", "", &a);
    numerics_describe(&job, 43, "cpu", "", &b);
    numerics_describe(&job, 42, "another cpu", "", &c);
    assert_true(numerics_hash(&a) != numerics_hash(&b));
    assert_true(numerics_hash(&a) != numerics_hash(&c));
    assert_null(strstr(str_text(&a), "kernels.choices"));
    str_release(&a);
    str_release(&b);
    str_release(&c);
    arena_release(&arena);
}

/* Algorithms differ in bits: what kernels chose among them counts. */
static void choices_count(void **state)
{
    static const char *const choices[] = { "product a 1\n", "product a 2\n", "product a 1\n" };
    struct str texts[3] = { { 0 }, { 0 }, { 0 } };
    struct arena arena = { 0 };
    struct job job;
    struct err err;

    (void)state;
    if (job_read_text(&job, text, sizeof text - 1, "job", NULL, 0, &arena, &err) < 0 ||
        job_resolve(&job, 1, &arena, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < 3; i++)
        numerics_describe(&job, 42, "cuda", choices[i], &texts[i]);
    assert_non_null(strstr(str_text(&texts[0]), "\nkernels.choices "));
    assert_true(numerics_hash(&texts[0]) != numerics_hash(&texts[1]));
    assert_true(numerics_hash(&texts[0]) == numerics_hash(&texts[2]));
    for (int i = 0; i < 3; i++)
        str_release(&texts[i]);
    arena_release(&arena);
}

/* ---- byte for byte as ever: the text is in checkpoints, and its hash in metrics ---- */

static void describe_golden(const char *overrides, int world_size, struct str *out)
{
    const char *items[16];
    struct arena arena = { 0 };
    struct job job;
    struct err err;
    char *copy = arena_strdup(&arena, overrides), *item;
    int n = 0;

    while ((item = strsep(&copy, ";")))
        if (*item)
            items[n++] = item;
    if (job_read_text(&job, text, sizeof text - 1, "job", items, n, &arena, &err) < 0 ||
        job_resolve(&job, world_size, &arena, &err) < 0)
        fail_msg("%s: %s", overrides, err.text);
    str_printf(out, "== %d %s\n", world_size, overrides);
    numerics_describe(&job, 42, "cpu", "", out);
    arena_release(&arena);
}

static void it_stays_as_it_was(void **state)
{
    static const struct {
        int world_size;
        const char *overrides;
    } cases[] = {
        { 1, "" },
        { 1, "model=gpt2-tiny;data.seq_len=16;optimizer.schedule=constant" },
        { 1, "model.position=alibi;model.embedding_norm=true;model.dropout=0.1;"
             "model.embedding_dropout=false" },
        { 1, "model.qk_norm=true;model.window=8;model.window_first_layer=1;"
             "model.window_period=3;model.normalized_head=true;model.tied_embeddings=true" },
        { 1, "model.window=8;model.window_first_layer=1;model.attention_bias=qkv" },
        { 1, "model.attention_bias=all;model.bias=true" },
        { 1, "model.rope_scaling={type: linear, factor: 2.0}" },
        { 1, "model.rope_scaling={type: dynamic, factor: 2.0}" },
        { 1, "model.rope_scaling={type: llama3, factor: 8.0, original_max_seq_len: 8192}" },
        { 1, "model.rope_scaling={type: yarn, factor: 4.0, attention_factor: 1.1, "
             "truncate: false}" },
        { 1, "model={from: mixtral-tiny, router_balance: 0.01, router_balance_kind: pooled}" },
        { 1, "model={from: mixtral-tiny, router_balance: 0.01, router_normalize: false}" },
        { 1, "train.dtype=fp16;train.loss_scale.initial=1024;train.gradient_dtype=bf16" },
        { 1, "train.residual=bf16;optimizer.states=bf16;optimizer.schedule=wsd" },
        { 1, "train.fp8=blockwise;train.fp8_edge_layers=0;train.fp8_dw=bf16" },
        { 1, "train.fp8=tensor;train.fp8_edge_layers=0;train.fp8_gradients=e5m2" },
        { 1,
          "model=mixtral-tiny;train.fp8=blockwise;train.fp8_edge_layers=0;train.fp8_experts=fp8" },
        { 1, "optimizer.schedule=wsd;optimizer.decay_shape=1-sqrt" },
        { 1, "optimizer.schedule=linear;optimizer.cycles=2" },
        { 1, "optimizer.groups=[{match: \"*norm*\", lr_scale: 2.0}, {match: \"*\", weight_decay: "
             "0.0}]" },
        { 1, "optimizer.schedule=inverse_sqrt;optimizer.timescale=7" },
        { 1, "train.init=elsewhere;train.only=[layers.1.*, final_norm.weight];"
             "train.freeze=embedding.*" },
        { 1, "kind=lora;data.tokenizer=t;train.init=elsewhere;lora={rank: 4, dropout: 0.1, bias: "
             "lora_only, targets: [q_proj, v_proj], modules_to_save: [lm_head]}" },
        { 1, "kind=lora;data.tokenizer=t;train.init=elsewhere;lora={rank: 4, alpha: 3.0, "
             "rslora: true}" },
        { 1, "parallel.schedule=dynamic;train.global_batch=4;train.micro_batch=auto;"
             "parallel.micro_batches=[1, 2, 1]" },
        { 2, "parallel.tp=2;parallel.reductions=fast" },
        { 2, "parallel.tp=2;parallel.sequence_parallel=false" },
        { 2, "parallel.zero=2;optimizer.lr=0.1234567890123" },
        { 4, "parallel.gradient_sum=late;parallel.zero=3;train.seed=9223372036854775807" },
        { 4, "train.micro_batch=2;train.global_batch=8;parallel.gradient_sum=early" },
    };
    struct str out = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        describe_golden(cases[i].overrides, cases[i].world_size, &out);
    golden_text_check("test/train/golden/numerics.txt", str_text(&out));
    str_release(&out);
}

/* ---- what a resume does about another value ---- */

/* Compare a description with one of its lines replaced, added (from "") or removed (to ""). */
static int compare(const char *from, const char *to, int accept,
                   struct numerics_differences *differences, struct err *err)
{
    char *ours = describe("parallel.dp=1", 1), *at = strstr(ours, from);
    struct str theirs = { 0 };

    assert_non_null(at);
    str_printf(&theirs, "%.*s%s%s", (int)(at - ours), ours, to, at + strlen(from));
    int status = numerics_compare(ours, str_text(&theirs), accept, differences, err);
    str_release(&theirs);
    free(ours);
    return status;
}

static void refuses(const char *from, const char *to, int accept, const char *words)
{
    struct numerics_differences differences = { 0 };
    struct err err = { 0 };

    if (compare(from, to, accept, &differences, &err) != -1)
        fail_msg("%s is accepted", words);
    assert_int_equal(err.code, ERR_CONFIG);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, err.text);
    assert_int_equal(differences.logged.length + differences.accepted.length, 0);
}

static void lists(const char *from, const char *to, int accept, const char *logged,
                  const char *accepted)
{
    struct numerics_differences differences = { 0 };
    struct err err;

    if (compare(from, to, accept, &differences, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(str_text(&differences.logged), logged);
    assert_string_equal(str_text(&differences.accepted), accepted);
    numerics_differences_release(&differences);
}

static void another_run_is_refused_always(void **state)
{
    (void)state;
    for (int accept = 0; accept < 2; accept++) {
        refuses("train.seed 1\n", "train.seed 2\n", accept,
                "train.seed is 1, but the run was started with 2 (hint: set it back, or use a "
                "different output folder)");
        refuses("data 0", "data 1", accept, "data.train: the datasets");
        refuses("model.n_layers 2\n", "model.n_layers 3\n", accept, "model.n_layers is 2");
        /* What only the checkpoint has is a difference of the model, too. */
        refuses("model.dropout 0\n", "model.dropout 0\nmodel.window 5\n", accept,
                "model.window is unset, but the run was started with 5");
        refuses("model.dropout 0\n", "", accept, "model.dropout is 0, but the run was started");
    }
}

static void other_arithmetic_has_to_be_accepted(void **state)
{
    static const struct {
        const char *from, *to, *words, *line;
    } cases[] = {
        { "version 2\n", "version 1\n", "version: there 1, here 2 (the arithmetic of lmtrain",
          "version is now 2, was 1\n" },
        { "version 2\n", "version 3\n", "the checkpoint is of a newer one",
          "version is now 2, was 3\n" },
        { "train.dtype bf16\n", "train.dtype fp32\n",
          "train.dtype: there fp32, here bf16 (dtype of weights and activations)",
          "train.dtype is now bf16, was fp32\n" },
        { "train.gradient_dtype fp32\n", "train.gradient_dtype bf16\n",
          "train.gradient_dtype: there bf16, here fp32 (",
          "train.gradient_dtype is now fp32, was bf16\n" },
        { "kernels cpu\n", "kernels cpu avx2\n",
          "kernels: there cpu avx2, here cpu (backend, instruction set or kind of GPU, and "
          "versions of libraries)",
          "kernels is now cpu, was cpu avx2\n" },
        { "kernels cpu\n", "kernels cpu\nkernels.choices 01\n",
          "kernels.choices: there 01, here unset (", "kernels.choices is now unset, was 01\n" },
        { "kernels cpu\n", "kernels cpu\ntrain.rounding up\n",
          "train.rounding: there up, here unset (a setting that this lmtrain does not have)",
          "train.rounding is now unset, was up\n" },
        { "optimizer.name adamw\n", "optimizer.name adamw\noptimizer.states bf16\n",
          "optimizer.states: there bf16, here unset (how the optimizer's moments are kept)",
          "optimizer.states is now unset, was bf16\n" },
        { "optimizer.name adamw\n", "optimizer.name adamw\noptimizer.states int8 blocks 256\n",
          "optimizer.states: there int8 blocks 256, here unset (",
          "optimizer.states is now unset, was int8 blocks 256\n" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refuses(cases[i].from, cases[i].to, 0, cases[i].words);
        lists(cases[i].from, cases[i].to, 1, "", cases[i].line);
    }
    /* Another optimizer has other states. */
    refuses("optimizer.name adamw\n", "optimizer.name lion\n", 1,
            "optimizer.name is adamw, but the run was started with lion (hint: set it back, or "
            "begin with new states: train.init");
    /* All of them are named. */
    refuses("version 2\nmodel", "kernels old\nversion 1\nmodel", 0, "version: there 1");
    refuses("version 2\nmodel", "kernels old\nversion 1\nmodel", 0, "\n    kernels: there old");
}

static void layout_and_recipe_are_logged(void **state)
{
    (void)state;
    lists("optimizer.lr ", "optimizer.lr 1", 0, "optimizer.lr is now 0.0003, was 10.0003\n", "");
    lists("parallel.dp 1\n", "parallel.dp 4\n", 0, "parallel.dp is now 1, was 4\n", "");
    /* Another layout has other products: that they are chosen again is no news. */
    lists("parallel.dp 1\n", "parallel.dp 4\nkernels.choices 01\n", 0,
          "parallel.dp is now 1, was 4\nkernels.choices is now unset, was 01\n", "");
    lists("version", "version", 0, "", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_have_keys_of_their_own),
        cmocka_unit_test(what_decides_bits_is_in_it),
        cmocka_unit_test(what_routers_do_is_in_it),
        cmocka_unit_test(every_flag_of_the_model_is_in_it),
        cmocka_unit_test(what_changes_no_bit_is_not),
        cmocka_unit_test(sizes_count),
        cmocka_unit_test(ranks_count),
        cmocka_unit_test(fast_sums_count_over_each_axis),
        cmocka_unit_test(data_and_kernels_count),
        cmocka_unit_test(choices_count),
        cmocka_unit_test(it_stays_as_it_was),
        cmocka_unit_test(another_run_is_refused_always),
        cmocka_unit_test(other_arithmetic_has_to_be_accepted),
        cmocka_unit_test(layout_and_recipe_are_logged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
