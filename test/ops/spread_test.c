#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_text.h"

/* s same, r split(rows), c split(cols), p partial; "." in place of an operand: absent. */
struct rule {
    enum op_kind kind;
    const char *in, *out;
};

/* All that is allowed; whatever is not here must be refused. Optional operands are given unless
 * '.'. */
/* clang-format off */
static const struct rule rules[] = {
    { OP_EMBED, "ssss", "s" }, { OP_EMBED, "rsrs", "r" }, { OP_EMBED, "srpc", "p" },
    { OP_EMBED_DW, "sss", "s" }, { OP_EMBED_DW, "rrs", "p" }, { OP_EMBED_DW, "ssc", "r" },
    { OP_RMSNORM, "ss", "ss" }, { OP_RMSNORM, "rs", "rr" },
    { OP_RMSNORM_GRAD, "sssss", "sss" }, { OP_RMSNORM_GRAD, "rrsrr", "rpr" },
    { OP_LAYERNORM, "sss", "sss" }, { OP_LAYERNORM, "rss", "rrr" },
    { OP_LAYERNORM_GRAD, "ssssss", "ssss" }, { OP_LAYERNORM_GRAD, "rrsrrr", "rppr" },
    { OP_ADD_RMSNORM, "sss", "sss" }, { OP_ADD_RMSNORM, "rrs", "rrr" },
    { OP_ADD_LAYERNORM, "ssss", "ssss" }, { OP_ADD_LAYERNORM, "rrss", "rrrr" },
    { OP_LINEAR, "sss", "s" }, { OP_LINEAR, "rss", "r" }, { OP_LINEAR, "src", "c" },
    { OP_LINEAR_DX, "ss", "s" }, { OP_LINEAR_DX, "rs", "r" }, { OP_LINEAR_DX, "cr", "p" },
    { OP_LINEAR_DX, "sc", "c" }, { OP_LINEAR_DX, "ps", "p" },
    { OP_LINEAR_DW, "ss", "ss" }, { OP_LINEAR_DW, "rr", "pp" }, { OP_LINEAR_DW, "cs", "rc" },
    { OP_LINEAR_DW, "sc", "cs" }, { OP_LINEAR_DW, "sp", "ps" }, { OP_LINEAR_DW, "ps", "pp" },
    { OP_ROPE, "sss", "s" }, { OP_ROPE, "rrs", "r" }, { OP_ROPE, "css", "c" },
    { OP_ROPE_GRAD, "sss", "s" }, { OP_ROPE_GRAD, "rrs", "r" }, { OP_ROPE_GRAD, "css", "c" },
    { OP_HEAD_NORM, "sss", "ss" }, { OP_HEAD_NORM, "rss", "rr" }, { OP_HEAD_NORM, "css", "cc" },
    { OP_HEAD_NORM_GRAD, "sssss", "sss" }, { OP_HEAD_NORM_GRAD, "rrssr", "rpp" },
    { OP_HEAD_NORM_GRAD, "ccssc", "cpp" },
    { OP_NORMALIZE_ROWS, "s", "ss" }, { OP_NORMALIZE_ROWS, "r", "rr" },
    { OP_NORMALIZE_ROWS_GRAD, "sss", "s" }, { OP_NORMALIZE_ROWS_GRAD, "rrr", "r" },
    { OP_NORMALIZE_ROWS_GRAD, "pss", "p" },
    { OP_ATTENTION, "sssssss", "ss" }, { OP_ATTENTION, "rrrrsrr", "rr" },
    { OP_ATTENTION, "cccscss", "cc" },
    { OP_ATTENTION_GRAD, "ssssssssss", "sss" }, { OP_ATTENTION_GRAD, "rrrrrrrsrr", "rrr" },
    { OP_ATTENTION_GRAD, "ccccccscss", "ccc" },
    { OP_ATTENTION_CACHED, "sssssssss", "s" }, { OP_ATTENTION_CACHED, "cccscccss", "c" },
    { OP_SWIGLU, "s", "s" }, { OP_SWIGLU, "r", "r" }, { OP_SWIGLU, "c", "c" },
    { OP_SWIGLU_GRAD, "ss", "s" }, { OP_SWIGLU_GRAD, "rr", "r" }, { OP_SWIGLU_GRAD, "cc", "c" },
    { OP_GELU, "s", "s" }, { OP_GELU, "r", "r" }, { OP_GELU, "c", "c" },
    { OP_GELU_GRAD, "ss", "s" }, { OP_GELU_GRAD, "rr", "r" }, { OP_GELU_GRAD, "cc", "c" },
    { OP_ROUTER, "s", "sss" }, { OP_ROUTER, "r", "rrp" },
    { OP_ROUTER_GRAD, "ssssss", "s" }, { OP_ROUTER_GRAD, "rrrrsr", "r" },
    { OP_EXPERT_ORDER, "s", "ss" }, { OP_EXPERT_ORDER, "r", "rr" },
    { OP_DISPATCH, "ss", "s" }, { OP_DISPATCH, "rr", "r" }, { OP_DISPATCH, "sc", "c" },
    { OP_DISPATCH, "sp", "p" },
    { OP_COMBINE, "ss", "s" }, { OP_COMBINE, "rr", "r" }, { OP_COMBINE, "sc", "c" },
    { OP_COMBINE, "sp", "p" },
    { OP_EXPERT_LINEAR, "sss", "s" }, { OP_EXPERT_LINEAR, "rrs", "r" },
    { OP_EXPERT_LINEAR, "ssr", "c" }, { OP_EXPERT_LINEAR, "csc", "p" },
    { OP_EXPERT_LINEAR_DX, "sss", "s" }, { OP_EXPERT_LINEAR_DX, "rrs", "r" },
    { OP_EXPERT_LINEAR_DX, "ssc", "c" }, { OP_EXPERT_LINEAR_DX, "csr", "p" },
    { OP_EXPERT_LINEAR_DW, "sss", "s" }, { OP_EXPERT_LINEAR_DW, "rrr", "p" },
    { OP_EXPERT_LINEAR_DW, "css", "r" }, { OP_EXPERT_LINEAR_DW, "scs", "c" },
    { OP_EXPERT_SWIGLU, "sss", "s" }, { OP_EXPERT_SWIGLU, "rrr", "r" },
    { OP_EXPERT_SWIGLU, "ssc", "c" },
    { OP_EXPERT_SWIGLU_GRAD, "ssss", "ss" }, { OP_EXPERT_SWIGLU_GRAD, "rrrr", "rr" },
    { OP_EXPERT_SWIGLU_GRAD, "sscc", "cp" },
    { OP_SCALE, "s", "s" }, { OP_SCALE, "r", "r" }, { OP_SCALE, "c", "c" }, { OP_SCALE, "p", "p" },
    { OP_LORA, "sssssss", "s" }, { OP_LORA, "rrsrsrs", "r" }, { OP_LORA, "csrsrsr", "c" },
    { OP_LORA, "ppspsps", "p" },
    { OP_DROPOUT, "sss", "s" }, { OP_DROPOUT, "rrs", "r" }, { OP_DROPOUT, "rsc", "r" },
    { OP_DROPOUT_GRAD, "sss", "s" }, { OP_DROPOUT_GRAD, "rrs", "r" },
    { OP_DROPOUT_GRAD, "rsc", "r" },
    { OP_ADD, "ss", "s" }, { OP_ADD, "rr", "r" }, { OP_ADD, "cc", "c" }, { OP_ADD, "pp", "p" },
    { OP_ADD_BIAS, "ss", "s" }, { OP_ADD_BIAS, "rs", "r" }, { OP_ADD_BIAS, "cc", "c" },
    { OP_BIAS_GRAD, "s", "s" }, { OP_BIAS_GRAD, "r", "p" }, { OP_BIAS_GRAD, "c", "c" },
    { OP_CAST, "s", "s" }, { OP_CAST, "r", "r" }, { OP_CAST, "c", "c" },
    { OP_SELECT_ROWS, "ss", "s" }, { OP_SELECT_ROWS, "rr", "r" }, { OP_SELECT_ROWS, "cs", "c" },
    { OP_HEAD_CROSS_ENTROPY, "ssss", "sss" }, { OP_HEAD_CROSS_ENTROPY, "rsrs", "rpp" },
    { OP_HEAD_LOSS, "sss", "s" }, { OP_HEAD_LOSS, "rsr", "p" },
    { OP_LOGIT_STATS, "sss", "s" }, { OP_LOGIT_STATS, "rrs", "r" }, { OP_LOGIT_STATS, "csc", "r" },
    { OP_CROSS_ENTROPY, "sssss", "ss" }, { OP_CROSS_ENTROPY, "rrrss", "rp" },
    { OP_CROSS_ENTROPY, "csssc", "cs" },
    { OP_ACCUMULATE, "s", "s" }, { OP_ACCUMULATE, "r", "r" }, { OP_ACCUMULATE, "c", "c" },
    { OP_ACCUMULATE, "p", "p" },
    { OP_ALL_GATHER, "s", "s" }, { OP_ALL_GATHER, "r", "r" }, { OP_ALL_GATHER, "c", "c" },
    { OP_ALL_GATHER, "p", "p" },
    { OP_REDUCE_SCATTER, "s", "s" }, { OP_REDUCE_SCATTER, "r", "r" },
    { OP_REDUCE_SCATTER, "c", "c" }, { OP_REDUCE_SCATTER, "p", "p" },
    { OP_ALL_REDUCE_SCALAR, "s", "s" }, { OP_ALL_REDUCE_SCALAR, "r", "r" },
    { OP_ALL_REDUCE_SCALAR, "c", "c" }, { OP_ALL_REDUCE_SCALAR, "p", "p" },
    { OP_ALL_REDUCE, "s", "s" }, { OP_ALL_REDUCE, "r", "r" }, { OP_ALL_REDUCE, "c", "c" },
    { OP_ALL_REDUCE, "p", "p" },
    { OP_GATHER_HEADS, "s", "s" }, { OP_GATHER_HEADS, "r", "r" }, { OP_GATHER_HEADS, "c", "c" },
    { OP_GATHER_HEADS, "p", "p" },
    { OP_GATHER_HEADS_GRAD, "s", "s" }, { OP_GATHER_HEADS_GRAD, "r", "r" },
    { OP_GATHER_HEADS_GRAD, "c", "c" }, { OP_GATHER_HEADS_GRAD, "p", "p" },
    { OP_SEND, "s", "" }, { OP_SEND, "r", "" }, { OP_SEND, "c", "" }, { OP_SEND, "p", "" },
    { OP_RECEIVE, "", "s" },
    { OP_TO_HOST, "s", "s" }, { OP_TO_HOST, "r", "r" }, { OP_TO_HOST, "c", "c" },
    { OP_TO_HOST, "p", "p" },
    { OP_TO_DEVICE, "s", "s" }, { OP_TO_DEVICE, "r", "r" }, { OP_TO_DEVICE, "c", "c" },
    { OP_TO_DEVICE, "p", "p" },
    { OP_AWAIT, "s", "" }, { OP_AWAIT, "r", "" }, { OP_AWAIT, "c", "" }, { OP_AWAIT, "p", "" },
    { OP_SUM_RUNS, "sss", "s" },
    { OP_SUM_RUNS, "css", "c" },
    { OP_SUMSQ, "s", "s" }, { OP_SUMSQ, "r", "c" }, { OP_SUMSQ, "c", "c" },
    { OP_GRADIENT_NORM, "sss", "sss" },
    { OP_ADAMW, "ssssssssss", "s" }, { OP_ADAMW, "rsssrrrrrs", "r" },
    { OP_ADAMW, "cssscccccs", "c" }, { OP_ADAMW, "rsssrrrrrc", "r" },
    { OP_ADAMW, "cssscccccc", "c" },
};
/* clang-format on */

#define N_RULES (int)(sizeof rules / sizeof *rules)

static const char letters[] = "srcp";

static const struct rule *rule_for(enum op_kind kind, const enum spread *in, int n_inputs)
{
    for (int r = 0; r < N_RULES; r++) {
        int fits = rules[r].kind == kind;

        for (int i = 0; fits && i < n_inputs; i++)
            fits = rules[r].in[i] == letters[in[i]];
        if (fits)
            return &rules[r];
    }
    return NULL;
}

/* Returns whether there is a rule. */
static int check_one(const struct op_shape *op, const enum spread *in)
{
    const struct op_info *info = op_info(op->kind);
    const struct rule *rule = rule_for(op->kind, in, info->n_inputs);
    enum spread out[OPS_MAX_OUTPUTS] = { N_SPREADS, N_SPREADS, N_SPREADS, N_SPREADS };
    struct err err = { 0 };
    int result = op_spread(op, 0, in, out, &err);

    if (!rule) {
        if (!result)
            fail_msg("%s took inputs that no rule allows", info->name);
        assert_memory_equal(err.text, info->name, strlen(info->name));
        assert_int_equal(out[0], N_SPREADS);
        return 0;
    }
    if (result)
        fail_msg("%s", err.text);
    for (int i = 0; i < info->n_outputs; i++)
        assert_int_equal(letters[out[i]], rule->out[i]);
    return 1;
}

/* All 4^n combinations of each kind's inputs, of which each kind takes some. */
static void test_every_combination(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        struct op_text text;
        int n_taken = 0;

        op_text_parse(&text, op_texts[kind]);
        for (int code = 0; code < 1 << 2 * text.n_inputs; code++) {
            enum spread in[OPS_MAX_INPUTS] = { SPREAD_SAME };

            for (int i = 0; i < text.n_inputs; i++)
                in[i] = (enum spread)(code >> 2 * i & 3);
            n_taken += check_one(&text.op, in);
        }
        assert_true(n_taken > 0);
    }
}

static void expect(const char *op, int on_axis, const char *in_letters, const char *out_letters,
                   const char *message)
{
    struct op_text text;
    enum spread in[OPS_MAX_INPUTS], out[OPS_MAX_OUTPUTS];
    struct err err = { 0 };
    int n = (int)strlen(in_letters);

    op_text_parse(&text, op);
    for (int i = 0; i < n; i++)
        in[i] = (enum spread)(strchr(letters, in_letters[i]) - letters);
    if (message) {
        assert_int_equal(op_spread(&text.op, on_axis, in, out, &err), -1);
        assert_string_equal(err.text, message);
        return;
    }
    if (op_spread(&text.op, on_axis, in, out, &err))
        fail_msg("%s", err.text);
    for (int i = 0; out_letters[i]; i++)
        assert_int_equal(letters[out[i]], out_letters[i]);
}

static void test_row_parallel_linear(void **state)
{
    (void)state;
    expect("linear 12x8 fp32, 6x8 fp32, - : 12x6 fp32", 0, "ccp", "p", NULL);
    expect("linear 12x8 fp32, 6x8 fp32, 1x6 fp32 : 12x6 fp32", 0, "ccs", NULL,
           "linear: y is partial, so every rank would add b (hint: add it after the sum)");
}

/* A head's slope goes by its number among all ranks' heads. */
static void test_slopes(void **state)
{
    static const char *const texts[] = {
        "attention 12x8 fp32, 12x4 fp32, 12x4 fp32 : 12x8 fp32, 12x4 fp32",
        "attention_cached 12x8 fp32, 12x4 fp32, 12x4 fp32, 12x1 i32, 18x4 fp32, 18x4 fp32 "
        ": 12x8 fp32"
    };

    (void)state;
    for (int i = 0; i < 2; i++) {
        enum spread in[OPS_MAX_INPUTS] = { SPREAD_COLS, SPREAD_COLS, SPREAD_COLS,
                                           SPREAD_SAME, SPREAD_COLS, SPREAD_COLS };
        enum spread out[OPS_MAX_OUTPUTS];
        struct op_text text;
        struct err err = { 0 };

        op_text_parse(&text, texts[i]);
        assert_int_equal(op_spread(&text.op, 0, in, out, &err), 0);
        assert_int_equal(out[0], SPREAD_COLS);
        text.op.attributes.alibi = 8;
        assert_int_equal(op_spread(&text.op, 0, in, out, &err), -1);
        assert_non_null(strstr(err.text, ": heads are split(cols), wanted head_offset"));
    }
}

static void test_absent_operands_are_ignored(void **state)
{
    (void)state;
    expect("embed 12x1 i32, 50x8 fp32, - : 12x8 fp32", 0, "rsp", "r", NULL);
    expect("rmsnorm_grad 12x8 fp32, 12x8 fp32, 1x8 fp32, 12x1 fp32, - : 12x8 fp32, 1x8 fp32", 0,
           "rrsrp", "rp", NULL);
}

/* Where a rank has a part it must be told which; a sum that is owed is no part of anything. */
static void test_parts(void **state)
{
    static const char attention[] =
        "attention 12x8 fp32, 12x4 fp32, 12x4 fp32, 2x1 i64 : 12x8 fp32, 12x4 fp32";
    static const char loss[] =
        "cross_entropy 12x20 fp32, 24x3 fp32, 12x1 i32, 1x1 fp32 : 12x20 fp32, 1x1 fp64";

    (void)state;
    expect(attention, 0, "cccs", NULL, "attention: heads are split(cols), wanted head_offset");
    expect("attention 12x8 fp32, 12x4 fp32, 12x4 fp32 : 12x8 fp32, 12x4 fp32", 0, "ccc", "cc",
           NULL);
    expect(op_texts[OP_ATTENTION], 0, "cccssss", NULL,
           "attention: head_offset is same, wanted split(cols)");
    expect(op_texts[OP_ATTENTION], 0, "sssscss", NULL,
           "attention: head_offset is split(cols), wanted same");
    expect(op_texts[OP_ATTENTION], 0, "rrrrssr", NULL,
           "attention: first is same, wanted split(rows)");
    expect(op_texts[OP_ATTENTION], 0, "rrrrsrs", NULL,
           "attention: last is same, wanted split(rows)");
    expect(op_texts[OP_ATTENTION], 0, "ccsscss", NULL, "attention: v is same, wanted split(cols)");
    expect(op_texts[OP_NORMALIZE_ROWS_GRAD], 0, "css", NULL,
           "normalize_rows_grad: dy is split(cols), wanted same, split(rows) or partial");
    expect("attention_grad 12x8 fp32, 12x8 fp32, 12x4 fp32, 12x4 fp32, 12x8 fp32, 12x4 fp32, "
           "2x1 i64 : 12x8 fp32, 12x4 fp32, 12x4 fp32",
           0, "ccccccs", NULL, "attention_grad: heads are split(cols), wanted head_offset");
    expect(op_texts[OP_ADD_BIAS], 0, "ps", NULL,
           "add_bias: x is partial, wanted same, split(rows) or split(cols)");
    expect(op_texts[OP_ADD_BIAS], 0, "cs", NULL, "add_bias: b is same, wanted split(cols)");
    expect("embed 12x1 i32, 50x8 fp32 : 12x8 fp32", 0, "sr", NULL,
           "embed: table is split(rows), wanted offset");
    expect(op_texts[OP_EMBED], 0, "srsc", NULL, "embed: base is same, wanted partial");
    expect("embed 12x1 i32, 50x8 fp32, -, 1x1 i32 : 12x8 fp32", 0, "srsc", "p", NULL);
    expect(op_texts[OP_EMBED_DW], 0, "psc", NULL, "embed_dw: dx is partial, wanted same");
    expect("dropout 12x8 fp32, 2x1 i64 : 12x8 fp32", 0, "rs", NULL,
           "dropout: sample is same, wanted split(rows)");
    expect(op_texts[OP_DROPOUT], 0, "psc", NULL, "dropout: x is partial, wanted split(rows)");
    expect(op_texts[OP_LOGIT_STATS], 0, "pss", NULL,
           "logit_stats: logits is partial, wanted same or split(rows)");
    expect("logit_stats 12x20 fp32, 12x1 i32 : 12x3 fp32", 0, "cs", NULL,
           "logit_stats: logits is split(cols), wanted same or split(rows), or target the same and "
           "offset");
    expect(loss, 0, "csss", NULL,
           "cross_entropy: logits is split(cols), wanted same or split(rows), or offset");
    expect(op_texts[OP_CROSS_ENTROPY], 0, "crssc", NULL,
           "cross_entropy: stats is split(rows), wanted same");
}

/* Each kind refuses sums that are owed wherever it does not add or pass them on. */
static void test_partial_is_not_same(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        struct op_text text;
        int takes = !op_has_kernel((enum op_kind)kind) || kind == OP_AWAIT || kind == OP_ADD ||
                    kind == OP_ACCUMULATE || kind == OP_NORMALIZE_ROWS_GRAD ||
                    kind == OP_DISPATCH || kind == OP_COMBINE || kind == OP_SCALE ||
                    kind == OP_LINEAR_DX || kind == OP_LINEAR_DW;

        op_text_parse(&text, op_texts[kind]);
        for (int i = 0; !takes && i < text.n_inputs; i++) {
            enum spread in[OPS_MAX_INPUTS] = { SPREAD_SAME }, out[OPS_MAX_OUTPUTS];
            struct err err;

            in[i] = SPREAD_PARTIAL;
            if (!op_spread(&text.op, 0, in, out, &err))
                fail_msg("%s read %s as the same", op_info(text.op.kind)->name,
                         op_info(text.op.kind)->inputs[i].name);
        }
    }
}

static void test_collectives_on_their_axis(void **state)
{
    static const char gather[] = "all_gather 1x6 fp32 : 1x24 fp32";
    static const char scatter[] = "reduce_scatter 1x24 fp32 : 1x6 fp32";
    static const char reduce[] = "all_reduce_scalar 1x2 fp64 : 1x2 fp64";

    (void)state;
    expect(gather, 1, "c", "s", NULL);
    expect(gather, 1, "s", NULL, "all_gather: shard is same, wanted split(cols)");
    expect(gather, 1, "p", NULL, "all_gather: shard is partial, wanted split(cols)");
    expect(scatter, 1, "p", "c", NULL);
    expect(scatter, 1, "s", NULL, "reduce_scatter: full is same, wanted partial");
    expect(reduce, 1, "p", "s", NULL);
    expect(reduce, 1, "s", NULL, "all_reduce_scalar: x is same, wanted partial");
    expect("all_gather 3x8 fp32 : 12x8 fp32", 1, "r", "s", NULL);
    expect("all_gather 3x8 fp32 : 12x8 fp32", 1, "c", NULL,
           "all_gather: shard is split(cols), wanted split(rows)");
    expect("reduce_scatter 12x8 fp32 : 3x8 fp32", 1, "p", "r", NULL);
    expect(op_texts[OP_ALL_REDUCE], 1, "p", "s", NULL);
    expect(op_texts[OP_ALL_REDUCE], 1, "s", NULL, "all_reduce: x is same, wanted partial");
    expect(op_texts[OP_ALL_REDUCE], 1, "r", NULL, "all_reduce: x is split(rows), wanted partial");
    expect(op_texts[OP_GATHER_HEADS], 1, "c", "c", NULL);
    expect(op_texts[OP_GATHER_HEADS], 1, "p", NULL,
           "gather_heads: qkv is partial, wanted split(cols)");
    expect(op_texts[OP_GATHER_HEADS_GRAD], 1, "c", "c", NULL);
    expect(op_texts[OP_GATHER_HEADS_GRAD], 1, "s", NULL,
           "gather_heads_grad: dout is same, wanted split(cols)");
}

static void test_messages(void **state)
{
    (void)state;
    expect(op_texts[OP_RMSNORM], 0, "ps", NULL,
           "rmsnorm: x is partial, wanted same or split(rows)");
    expect(op_texts[OP_RMSNORM], 0, "rr", NULL, "rmsnorm: w is split(rows), wanted same");
    expect(op_texts[OP_CAST], 0, "p", NULL,
           "cast: x is partial, wanted same, split(rows) or split(cols)");
    assert_string_equal(spread_name(SPREAD_PARTIAL), "partial");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_combination),
        cmocka_unit_test(test_row_parallel_linear),
        cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_absent_operands_are_ignored),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_partial_is_not_same),
        cmocka_unit_test(test_collectives_on_their_axis),
        cmocka_unit_test(test_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
