#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_facts.h"
#include "support/op_text.h"

static const char letters[] = "srcp";

/* The outputs of inputs that lie so, by the kind's facts: behind the ">" of "ss > s; rr > r"; or
 * NULL. */
static const char *outputs_for(enum op_kind kind, const enum spread *in, int n_inputs)
{
    for (const char *rule = op_facts(kind)->spreads; rule; rule = strchr(rule, ';')) {
        int fits = 1;

        rule += strspn(rule, "; ");
        for (int i = 0; fits && i < n_inputs; i++)
            fits = rule[i] == letters[in[i]];
        if (fits)
            return rule + n_inputs + strspn(rule + n_inputs, " >");
    }
    return NULL;
}

/* Returns whether there is a rule. */
static int check_one(const struct op_shape *op, const enum spread *in)
{
    const struct op_info *info = op_info(op->kind);
    const char *wanted = outputs_for(op->kind, in, info->n_inputs);
    enum spread out[OPS_MAX_OUTPUTS] = { N_SPREADS, N_SPREADS, N_SPREADS, N_SPREADS };
    struct err err = { 0 };
    int result = op_spread(op, 0, in, out, &err);

    if (!wanted) {
        if (!result)
            fail_msg("%s took inputs that no rule allows", info->name);
        assert_memory_equal(err.text, info->name, strlen(info->name));
        assert_int_equal(out[0], N_SPREADS);
        return 0;
    }
    if (result)
        fail_msg("%s", err.text);
    for (int i = 0; i < info->n_outputs; i++)
        assert_int_equal(letters[out[i]], wanted[i]);
    return 1;
}

/* All 4^n combinations of each kind's inputs, of which each kind takes some. */
static void test_every_combination(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        struct op_text text;
        int n_taken = 0, n_given = 0, given[OPS_MAX_INPUTS]; /* some may be another form's */

        op_text_parse(&text, op_example((enum op_kind)kind));
        for (int i = 0; i < text.n_inputs; i++)
            if (tensor_given(&text.op.in[i]))
                given[n_given++] = i;
        for (int code = 0; code < 1 << 2 * n_given; code++) {
            enum spread in[OPS_MAX_INPUTS] = { SPREAD_SAME };

            for (int i = 0; i < n_given; i++)
                in[given[i]] = (enum spread)(code >> 2 * i & 3);
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
    expect(op_example(OP_ATTENTION), 0, "cccssss", NULL,
           "attention: head_offset is same, wanted split(cols)");
    expect(op_example(OP_ATTENTION), 0, "sssscss", NULL,
           "attention: head_offset is split(cols), wanted same");
    expect(op_example(OP_ATTENTION), 0, "rrrrssr", NULL,
           "attention: first is same, wanted split(rows)");
    expect(op_example(OP_ATTENTION), 0, "rrrrsrs", NULL,
           "attention: last is same, wanted split(rows)");
    expect(op_example(OP_ATTENTION), 0, "ccsscss", NULL,
           "attention: v is same, wanted split(cols)");
    expect(op_example(OP_NORMALIZE_ROWS_GRAD), 0, "css", NULL,
           "normalize_rows_grad: dy is split(cols), wanted same, split(rows) or partial");
    expect("attention_grad 12x8 fp32, 12x8 fp32, 12x4 fp32, 12x4 fp32, 12x8 fp32, 12x4 fp32, "
           "2x1 i64 : 12x8 fp32, 12x4 fp32, 12x4 fp32",
           0, "ccccccs", NULL, "attention_grad: heads are split(cols), wanted head_offset");
    expect(op_example(OP_ADD_BIAS), 0, "ps", NULL,
           "add_bias: x is partial, wanted same, split(rows) or split(cols)");
    expect(op_example(OP_ADD_BIAS), 0, "cs", NULL, "add_bias: b is same, wanted split(cols)");
    expect("embed 12x1 i32, 50x8 fp32 : 12x8 fp32", 0, "sr", NULL,
           "embed: table is split(rows), wanted offset");
    expect(op_example(OP_EMBED), 0, "srsc", NULL, "embed: base is same, wanted partial");
    expect("embed 12x1 i32, 50x8 fp32, -, 1x1 i32 : 12x8 fp32", 0, "srsc", "p", NULL);
    expect(op_example(OP_EMBED_DW), 0, "psc", NULL, "embed_dw: dx is partial, wanted same");
    expect("dropout 12x8 fp32, 2x1 i64 : 12x8 fp32", 0, "rs", NULL,
           "dropout: sample is same, wanted split(rows)");
    expect(op_example(OP_DROPOUT), 0, "pscs", NULL, "dropout: x is partial, wanted split(rows)");
    expect(op_example(OP_DROPOUT), 0, "rscr", NULL, "dropout: row is split(rows), wanted same");
    expect("dropout 12x8 fp32, 2x1 i64, -, 12x1 i32 : 12x8 fp32", 0, "rsss", NULL,
           "dropout: row is same, wanted split(rows)");
    expect("dropout_grad 12x8 fp32, 2x1 i64, -, 12x1 i32 : 12x8 fp32", 0, "psss", "p", NULL);
    expect(op_example(OP_LOGIT_STATS), 0, "pss", NULL,
           "logit_stats: logits is partial, wanted same or split(rows)");
    expect("logit_stats 12x20 fp32, 12x1 i32 : 12x3 fp32", 0, "cs", NULL,
           "logit_stats: logits is split(cols), wanted same or split(rows), or target the same and "
           "offset");
    expect(loss, 0, "csss", NULL,
           "cross_entropy: logits is split(cols), wanted same or split(rows), or offset");
    expect(op_example(OP_CROSS_ENTROPY), 0, "crssc", NULL,
           "cross_entropy: stats is split(rows), wanted same");
}

/* Ranks with a part of the queries, and keys of the whole sequence. */
static void test_queries_of_a_sequence(void **state)
{
    static const char forward[] = "attention 6x8 fp32, 12x4 fp32, 12x4 fp32, -, -, -, 6x1 i32 : "
                                  "6x8 fp32, 6x4 fp32";
    static const char backward[] =
        "attention_grad 6x8 fp32, 6x8 fp32, 12x4 fp32, 12x4 fp32, 6x8 fp32, 6x4 fp32, -, -, -, "
        "6x1 i32 : 6x8 fp32, 12x4 fp32, 12x4 fp32";

    (void)state;
    expect(forward, 0, "rssssrr", "rr", NULL);
    expect(forward, 0, "rssssrs", NULL, "attention: last is same, wanted split(rows)");
    expect(forward, 0, "rspsssr", NULL, "attention: v is partial, wanted same");
    expect("attention 12x8 fp32, 12x4 fp32, 12x4 fp32 : 12x8 fp32, 12x4 fp32", 0, "rss", NULL,
           "attention: queries are split(rows) and keys the same, wanted last");
    expect(backward, 0, "rrssrrsssr", "rpp", NULL);
    expect(backward, 0, "srssrrsssr", NULL, "attention_grad: dout is same, wanted split(rows)");
    expect(backward, 0, "rrssrrssss", NULL, "attention_grad: last is same, wanted split(rows)");
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
    expect(op_example(OP_ALL_REDUCE), 1, "p", "s", NULL);
    expect(op_example(OP_ALL_REDUCE), 1, "s", NULL, "all_reduce: x is same, wanted partial");
    expect(op_example(OP_ALL_REDUCE), 1, "r", NULL, "all_reduce: x is split(rows), wanted partial");
    expect(op_example(OP_GATHER_HEADS), 1, "c", "c", NULL);
    expect(op_example(OP_GATHER_HEADS), 1, "p", NULL,
           "gather_heads: qkv is partial, wanted split(cols)");
    expect(op_example(OP_GATHER_HEADS_GRAD), 1, "c", "c", NULL);
    expect(op_example(OP_GATHER_HEADS_GRAD), 1, "s", NULL,
           "gather_heads_grad: dout is same, wanted split(cols)");
    expect(op_example(OP_ROWS_TO_HEADS), 1, "r", "c", NULL);
    expect(op_example(OP_ROWS_TO_HEADS), 1, "c", NULL,
           "rows_to_heads: x is split(cols), wanted split(rows)");
    expect(op_example(OP_HEADS_TO_ROWS), 1, "c", "r", NULL);
    expect(op_example(OP_HEADS_TO_ROWS), 1, "s", NULL,
           "heads_to_rows: y is same, wanted split(cols)");
    expect(op_example(OP_GATHER_SEQUENCE), 1, "r", "s", NULL);
    expect(op_example(OP_GATHER_SEQUENCE), 1, "p", NULL,
           "gather_sequence: part is partial, wanted split(rows)");
    expect(op_example(OP_SCATTER_SEQUENCE), 1, "p", "r", NULL);
    expect(op_example(OP_SCATTER_SEQUENCE), 1, "s", NULL,
           "scatter_sequence: whole is same, wanted partial");
    expect(op_example(OP_ROTATE), 1, "r", "r", NULL);
    expect(op_example(OP_ROTATE), 1, "p", NULL, "rotate: x is partial, wanted split(rows)");
    expect(op_example(OP_ROTATE), 1, "s", NULL, "rotate: x is same, wanted split(rows)");
    expect(op_example(OP_GATHER_WINDOW), 1, "r", "s", NULL);
    expect(op_example(OP_GATHER_WINDOW), 1, "s", NULL,
           "gather_window: part is same, wanted split(rows)");
    expect(op_example(OP_SEND_ROWS), 1, "rsr", "r", NULL);
    expect(op_example(OP_SEND_ROWS), 1, "rss", NULL,
           "send_rows: place is same, wanted split(rows)");
    expect(op_example(OP_SEND_ROWS), 1, "sss", NULL, "send_rows: x is same, wanted split(rows)");
    expect(op_example(OP_SEND_ROWS), 1, "rrr", NULL,
           "send_rows: choices is split(rows), wanted same");
    expect(op_example(OP_RETURN_ROWS), 1, "rsr", "r", NULL);
    expect(op_example(OP_RETURN_ROWS), 1, "pss", NULL,
           "return_rows: y is partial, wanted split(rows)");
    expect(op_example(OP_SCATTER_WINDOW), 1, "p", "r", NULL);
    expect(op_example(OP_SCATTER_WINDOW), 1, "r", NULL,
           "scatter_window: seen is split(rows), wanted partial");
}

static void test_messages(void **state)
{
    (void)state;
    expect(op_example(OP_RMSNORM), 0, "ps", NULL,
           "rmsnorm: x is partial, wanted same or split(rows)");
    expect(op_example(OP_RMSNORM), 0, "rr", NULL, "rmsnorm: w is split(rows), wanted same");
    expect(op_example(OP_CAST), 0, "p", NULL,
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
        cmocka_unit_test(test_queries_of_a_sequence),
        cmocka_unit_test(test_collectives_on_their_axis),
        cmocka_unit_test(test_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
