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
    { OP_EMBED, "sss", "s" }, { OP_EMBED, "rsr", "r" },
    { OP_EMBED_DW, "ss", "s" }, { OP_EMBED_DW, "rr", "p" },
    { OP_RMSNORM, "ss", "ss" }, { OP_RMSNORM, "rs", "rr" },
    { OP_RMSNORM_GRAD, "sssss", "ss" }, { OP_RMSNORM_GRAD, "rrsrr", "rp" },
    { OP_LAYERNORM, "sss", "sss" }, { OP_LAYERNORM, "rss", "rrr" },
    { OP_LAYERNORM_GRAD, "ssssss", "sss" }, { OP_LAYERNORM_GRAD, "rrsrrr", "rpp" },
    { OP_ADD_RMSNORM, "sss", "sss" }, { OP_ADD_RMSNORM, "rrs", "rrr" },
    { OP_ADD_LAYERNORM, "ssss", "ssss" }, { OP_ADD_LAYERNORM, "rrss", "rrrr" },
    { OP_LINEAR, "sss", "s" }, { OP_LINEAR, "rss", "r" }, { OP_LINEAR, "src", "c" },
    { OP_LINEAR_DX, "ss", "s" }, { OP_LINEAR_DX, "rs", "r" }, { OP_LINEAR_DX, "cr", "p" },
    { OP_LINEAR_DX, "sc", "c" },
    { OP_LINEAR_DW, "ss", "ss" }, { OP_LINEAR_DW, "rr", "pp" }, { OP_LINEAR_DW, "cs", "rc" },
    { OP_LINEAR_DW, "sc", "cs" },
    { OP_ROPE, "sss", "s" }, { OP_ROPE, "rrs", "r" }, { OP_ROPE, "css", "c" },
    { OP_ROPE_GRAD, "sss", "s" }, { OP_ROPE_GRAD, "rrs", "r" }, { OP_ROPE_GRAD, "css", "c" },
    { OP_ATTENTION, "ss", "ss" }, { OP_ATTENTION, "rr", "rr" }, { OP_ATTENTION, "cs", "cc" },
    { OP_ATTENTION_GRAD, "sssss", "s" }, { OP_ATTENTION_GRAD, "rrrrr", "r" },
    { OP_ATTENTION_GRAD, "ccccs", "c" },
    { OP_ATTENTION_CACHED, "ssss", "s" }, { OP_ATTENTION_CACHED, "rrrr", "r" },
    { OP_ATTENTION_CACHED, "cscc", "c" },
    { OP_SWIGLU, "s", "s" }, { OP_SWIGLU, "r", "r" }, { OP_SWIGLU, "c", "c" },
    { OP_SWIGLU_GRAD, "ss", "s" }, { OP_SWIGLU_GRAD, "rr", "r" }, { OP_SWIGLU_GRAD, "cc", "c" },
    { OP_GELU, "s", "s" }, { OP_GELU, "r", "r" }, { OP_GELU, "c", "c" },
    { OP_GELU_GRAD, "ss", "s" }, { OP_GELU_GRAD, "rr", "r" }, { OP_GELU_GRAD, "cc", "c" },
    { OP_DROPOUT, "ss", "s" }, { OP_DROPOUT, "rr", "r" },
    { OP_DROPOUT_GRAD, "ss", "s" }, { OP_DROPOUT_GRAD, "rr", "r" },
    { OP_ADD, "ss", "s" }, { OP_ADD, "rr", "r" }, { OP_ADD, "cc", "c" }, { OP_ADD, "pp", "p" },
    { OP_CAST, "s", "s" }, { OP_CAST, "r", "r" }, { OP_CAST, "c", "c" },
    { OP_SELECT_ROWS, "ss", "s" }, { OP_SELECT_ROWS, "rr", "r" }, { OP_SELECT_ROWS, "cs", "c" },
    { OP_HEAD_CROSS_ENTROPY, "ssss", "sss" }, { OP_HEAD_CROSS_ENTROPY, "rsrs", "rpp" },
    { OP_HEAD_LOSS, "sss", "s" }, { OP_HEAD_LOSS, "rsr", "p" },
    { OP_ACCUMULATE, "s", "s" }, { OP_ACCUMULATE, "r", "r" }, { OP_ACCUMULATE, "c", "c" },
    { OP_ALL_GATHER, "s", "s" }, { OP_ALL_GATHER, "r", "r" }, { OP_ALL_GATHER, "c", "c" },
    { OP_ALL_GATHER, "p", "p" },
    { OP_REDUCE_SCATTER, "s", "s" }, { OP_REDUCE_SCATTER, "r", "r" },
    { OP_REDUCE_SCATTER, "c", "c" }, { OP_REDUCE_SCATTER, "p", "p" },
    { OP_ALL_REDUCE_SCALAR, "s", "s" }, { OP_ALL_REDUCE_SCALAR, "r", "r" },
    { OP_ALL_REDUCE_SCALAR, "c", "c" }, { OP_ALL_REDUCE_SCALAR, "p", "p" },
    { OP_SEND, "s", "" }, { OP_SEND, "r", "" }, { OP_SEND, "c", "" }, { OP_SEND, "p", "" },
    { OP_RECEIVE, "", "s" }, { OP_PICK, "ss", "s" },
    { OP_SUMSQ, "s", "s" }, { OP_SUMSQ, "r", "c" }, { OP_SUMSQ, "c", "c" },
    { OP_GRADIENT_NORM, "ss", "sss" },
    { OP_ADAMW, "ssssssss", "s" }, { OP_ADAMW, "rsssrrrr", "r" }, { OP_ADAMW, "cssscccc", "c" },
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

static void check_one(const struct op_shape *op, const enum spread *in)
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
        return;
    }
    if (result)
        fail_msg("%s", err.text);
    for (int i = 0; i < info->n_outputs; i++)
        assert_int_equal(letters[out[i]], rule->out[i]);
}

/* All 4^n combinations of each kind's inputs. */
static void test_every_combination(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        struct op_text text;

        op_text_parse(&text, op_texts[kind]);
        for (int code = 0; code < 1 << 2 * text.n_inputs; code++) {
            enum spread in[OPS_MAX_INPUTS] = { SPREAD_SAME };

            for (int i = 0; i < text.n_inputs; i++)
                in[i] = (enum spread)(code >> 2 * i & 3);
            check_one(&text.op, in);
        }
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

static void test_absent_operands_are_ignored(void **state)
{
    (void)state;
    expect("embed 12x1 i32, 50x8 fp32, - : 12x8 fp32", 0, "rsp", "r", NULL);
    expect("rmsnorm_grad 12x8 fp32, 12x8 fp32, 1x8 fp32, 12x1 fp32, - : 12x8 fp32, 1x8 fp32", 0,
           "rrsrp", "rp", NULL);
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
        cmocka_unit_test(test_absent_operands_are_ignored),
        cmocka_unit_test(test_collectives_on_their_axis),
        cmocka_unit_test(test_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
