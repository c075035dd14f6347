/*
 * router_bias_test.c - the bias that balances experts: its update, against a loop over counts
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
#include <string.h>

#include "support/trained.h"

#define EXPERTS 6
#define MODEL \
    "model={vocab_size: 64, hidden_size: 48, n_layers: 3, n_heads: 4, n_kv_heads: 2, head_dim: " \
    "12, " \
    "ffn_size: 72, n_experts: 6, n_active_experts: 2, expert_ffn_size: 24, first_dense_layers: " \
    "1, " \
    "router_score: sigmoid, router_bias: true, router_bias_rate: "
#define LAYERS 2 /* with experts: the model's second and third */

static struct trained rig;

static int teardown(void **state)
{
    (void)state;
    trained_close(&rig);
    return 0;
}

static void read_bias(int layer, float bias[EXPERTS])
{
    const struct program *program = trainer_program(rig.trainer);
    char name[32];

    snprintf(name, sizeof name, "layers.%d.router.bias", 1 + layer);
    for (int i = 0; i < program->n_parameters; i++)
        if (!strcmp(program->parameters[i].name, name)) {
            assert_int_equal(program->values[program->parameters[i].weight].dtype, DTYPE_F32);
            memcpy(bias, run_data(trainer_run(rig.trainer), program->parameters[i].weight, 0),
                   EXPERTS * sizeof *bias);
            return;
        }
    fail_msg("no %s", name);
}

static struct trainer_result step(void)
{
    struct trainer_result result = { 0 };
    struct err err;

    if (trainer_step(rig.trainer, &result, &err) < 0)
        fail_msg("%s", err.text);
    return result;
}

/* What a step has made of the bias, by what it has counted. */
static void must_follow(int layer, const float before[EXPERTS], float rate)
{
    const struct program *program = trainer_program(rig.trainer);
    const double *counts =
        (const double *)run_data(trainer_run(rig.trainer), program->ports.router_stats_total, 0) +
        layer * (1 + EXPERTS) + 1;
    float bias[EXPERTS];
    double mean = 0;

    read_bias(layer, bias);
    for (int e = 0; e < EXPERTS; e++)
        mean += counts[e];
    assert_true(mean == (double)rig.job.train.global_batch * rig.job.data.seq_len * 2);
    mean /= EXPERTS;
    for (int e = 0; e < EXPERTS; e++) {
        float by = counts[e] < mean ? rate : counts[e] > mean ? -rate : 0;

        assert_true(bias[e] == before[e] + by);
    }
}

/* Over several micro-batches, with dtypes that it must not be cast to, and made again or not. */
static void it_follows_the_counts(void **state)
{
    static const char *const dtypes[] = { "train.dtype=bf16", "train.dtype=fp32",
                                          "train.dtype=bf16" };
    static const char *const modes[] = { "recompute=none", "recompute=selective",
                                         "recompute=full" };

    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *const sets[] = { MODEL "0.013}", dtypes[i], modes[i], NULL };
        float before[LAYERS][EXPERTS], after[EXPERTS];

        (i ? trained_again : trained_open)(&rig, "llama", sets);
        for (int layer = 0; layer < LAYERS; layer++) {
            read_bias(layer, before[layer]);
            for (int e = 0; e < EXPERTS; e++)
                assert_true(before[layer][e] == 0);
        }
        for (int s = 0; s < 5; s++) {
            step();
            for (int layer = 0; layer < LAYERS; layer++) {
                must_follow(layer, before[layer], 0.013F);
                read_bias(layer, after);
                assert_true(memcmp(before[layer], after, sizeof after) != 0);
                memcpy(before[layer], after, sizeof after);
            }
        }
    }
}

static bool refuse(void *context, double loss, double norm)
{
    (void)context;
    (void)loss;
    (void)norm;
    return true;
}

/* Neither a step that is refused moves it, nor one whose gradients overflow, nor a rate of 0. */
static void it_stays(void **state)
{
    float before[EXPERTS], after[EXPERTS];

    (void)state;
    trained_again(
        &rig, "llama",
        (const char *const[]){ MODEL "0.013}", "train.dtype=bf16", "train.on_spike=skip", NULL });
    step();
    read_bias(0, before);
    trainer_set_refuse(rig.trainer, refuse, NULL);
    assert_true(step().refused);
    read_bias(0, after);
    assert_memory_equal(before, after, sizeof before);
    trainer_set_refuse(rig.trainer, NULL, NULL);
    assert_false(step().refused);
    must_follow(0, before, 0.013F);
    trained_again(&rig, "llama",
                  (const char *const[]){ MODEL "0.013}", "train.dtype=fp16",
                                         "train.loss_scale.initial=1073741824",
                                         "train.loss_scale.max=1073741824", NULL });
    read_bias(0, before);
    assert_true(step().skipped);
    read_bias(0, after);
    assert_memory_equal(before, after, sizeof before);
    trained_again(&rig, "llama", (const char *const[]){ MODEL "0.0}", "train.dtype=bf16", NULL });
    step();
    must_follow(0, before, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_follows_the_counts),
        cmocka_unit_test(it_stays),
    };

    return cmocka_run_group_tests(tests, NULL, teardown);
}
