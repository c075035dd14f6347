/*
 * tuned_test.c - the law where only a part of the model is trained, and with adapters
 *
 * Few trainable parameters leave stages without any, functions without ops, buckets without
 * gradients. Whatever the layout, the same bits; and the frozen ones stay what they were, without
 * gradients, masters or moments.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/law_rig.h"

/* What is trained: by pattern, the ends, the middle, one vector, and adapters of all kinds. */
static const struct {
    const char *model, *dtype, *tuning;
} cases[] = {
    { "llama", "bf16", "train.freeze=[embedding.*, \"layers.[0-2].*\"]" },
    { "llama", "fp32", "train.only=[layers.2.ffn_norm.weight]" },
    { "llama-untied", "bf16", "train.only=[embedding.weight]" },
    { "llama-untied", "bf16", "train.only=[head.weight, layers.1.qkv.weight]" },
    { "gpt2", "bf16", "train.only=[\"*.bias\"]" },
    { "llama", "bf16", "lora.rank=3|lora.dropout=0.1" },
    { "llama", "fp32", "lora.rank=4|lora.targets=[q_proj, v_proj]|lora.rslora=true" },
    { "llama-untied", "bf16",
      "lora.rank=2|lora.targets=[up_proj, o_proj]|lora.modules_to_save=[lm_head, norm]" },
    { "gpt2", "bf16", "lora.rank=5|lora.bias=all|lora.dropout=0.2" },
    { "gpt2", "fp32", "lora.rank=1|lora.targets=c_attn|lora.bias=lora_only" },
    { "mixture", "bf16", "lora.rank=2|lora.dropout=0.1" },
    { "mixture", "fp32", "lora.rank=2|lora.targets=[all, experts]" },
    { "mixture", "bf16", "lora.rank=3|lora.targets=[experts.gate, experts.down]" },
};

#define N_CASES (int)(sizeof cases / sizeof *cases)

static struct law_case base_case(int i)
{
    struct law_case c = law_base(cases[i].model, cases[i].dtype);

    c.tuning = cases[i].tuning;
    return c;
}

static void one_rank(void **state)
{
    static const char *const modes[] = { "none", "selective", "full", "[linear, scale, lora]" };
    char what[160];

    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct law_case c = base_case(i);
        struct law_outcome wanted = law_run(&c);

        assert_true(isfinite(wanted.loss[0]));
        assert_true(wanted.loss[LAW_STEPS - 1] != wanted.loss[0]);
        for (int k = 0; k < 2; k++) {
            int m = (i + 2 * k) % 4;

            c.recompute = modes[m];
            c.n_threads = 1 + m;
            c.poison = m % 2;
            c.stop_after = m == 3 ? 2 : 0;
            struct law_outcome got = law_run(&c);
            snprintf(what, sizeof what, "%s %s %s, recompute %s", c.model, c.dtype, c.tuning,
                     c.recompute);
            law_must_equal(what, &wanted, &got);
        }
    }
}

static void stages(void **state)
{
    static const char *const schedules[] = { "1f1b", "zb-h1", "zb-v", "interleaved" };
    static const char *const modes[] = { "none", "selective", "full" };
    char what[160];

    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        int is_deep = strcmp(cases[i].model, "gpt2") != 0;
        struct law_case c = base_case(i);
        struct law_outcome wanted = law_run(&c);

        for (int s = 0; s < 4; s++) {
            int n_stages = s >= 2 ? 4 : 2;

            if ((s + i) % 2 || (s >= 2 && (!is_deep || !strcmp(c.model, "llama-untied"))) ||
                law_left_out())
                continue;
            c.pp = 2;
            c.n_ranks = 2;
            c.schedule = schedules[s];
            c.recompute = modes[(s + i) % 3];
            c.poison = 1;
            struct law_outcome got = law_run(&c);
            snprintf(what, sizeof what, "%s %s %s, %d stages %s", c.model, c.dtype, c.tuning,
                     n_stages, c.schedule);
            law_must_equal(what, &wanted, &got);
        }
    }
}

static void sharded(void **state)
{
    static const char *const holds[] = { "pass", "op", "run", "step" };
    static const char *const sums[] = { "late", "early" };
    char what[160];

    (void)state;
    for (int i = 0; i < N_CASES; i++)
        for (int s = 0; s < 2; s++) {
            struct law_case c = base_case(i);

            if ((i + s) % 2)
                continue;
            c.gradient_sum = sums[s];
            c.n_ranks = 2;
            struct law_outcome wanted = law_run(&c);
            c.poison = 1;
            for (c.zero = 1; c.zero <= 3; c.zero++) {
                if (law_left_out())
                    continue;
                c.pp = 1 + (c.zero + s + i) % 2;
                c.n_ranks = 2 * c.pp;
                c.hold = holds[(i + s) % 4];
                c.stop_after = i % 3 == 0 ? 3 : 0;
                struct law_outcome got = law_run(&c);
                snprintf(what, sizeof what, "%s %s %s, zero %d, %s sums, pp %d, hold %s", c.model,
                         c.dtype, c.tuning, c.zero, c.gradient_sum, c.pp, c.hold);
                law_must_equal(what, &wanted, &got);
            }
        }
}

/* Tensor-parallel ranks agree with one to rounding, and the law holds among their layouts. */
static void tensor_parallel(void **state)
{
    char what[160];

    (void)state;
    for (int i = 0; i < N_CASES; i++)
        for (int plain = 0; plain < 2; plain++) {
            struct law_case c = base_case(i);
            double most = strcmp(c.dtype, "bf16") ? 2e-5 : 2e-2;

            if ((i + plain) % 2 || law_left_out())
                continue;
            struct law_outcome alone = law_run(&c);
            c.tp = 2;
            c.n_ranks = 2;
            c.no_sequence_parallel = plain;
            struct law_outcome wanted = law_run(&c);
            for (int k = 0; k < LAW_STEPS; k++) {
                if (fabs(wanted.loss[k] - alone.loss[k]) > most * alone.loss[k])
                    fail_msg("%s %s %s, tp 2: step %d: loss %g, wanted %g", c.model, c.dtype,
                             c.tuning, k + 1, wanted.loss[k], alone.loss[k]);
                if (fabs(wanted.norm[k] - alone.norm[k]) > 5 * most * alone.norm[k])
                    fail_msg("%s %s %s, tp 2: step %d: norm %g, wanted %g", c.model, c.dtype,
                             c.tuning, k + 1, wanted.norm[k], alone.norm[k]);
            }
            c.pp = 2;
            c.n_ranks = 4;
            c.schedule = i % 2 ? "zb-h1" : "1f1b";
            c.recompute = i % 3 ? "full" : "selective";
            c.poison = 1;
            struct law_outcome got = law_run(&c);
            snprintf(what, sizeof what, "%s %s %s, tp 2 of two stages", c.model, c.dtype, c.tuning);
            law_must_equal(what, &wanted, &got);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(stages),
        cmocka_unit_test(sharded),
        cmocka_unit_test(tensor_parallel),
    };

    return cmocka_run_group_tests(tests, law_setup, law_teardown);
}
