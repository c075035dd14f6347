#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "ops/family_impl.h"
#include "support/op_facts.h"
#include "support/op_text.h"

static void accepted(const struct op_shape *op)
{
    struct err err = { 0 };

    if (op_check(op, &err))
        fail_msg("refused: %s", err.text);
}

static void refused(const struct op_shape *op, const char *what)
{
    struct err err = { 0 };
    const char *name = op_info(op->kind)->name;

    if (!op_check(op, &err))
        fail_msg("%s was accepted with %s", name, what);
    assert_int_equal(err.code, ERR_FAILED);
    assert_memory_equal(err.text, name, strlen(name));
}

static int dtype_moves(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16 || dtype == DTYPE_F64;
}

/* Every operand in turn with more rows, more columns, and each other dtype. */
static void spoil(const struct op_text *good, int i, const char *name)
{
    for (int what = 0; what < 2; what++) {
        struct op_shape op = good->op;
        struct tensor *t = op_text_operand(&op, i);

        t->rows += what == 0;
        t->cols += what == 1;
        t->stride = t->cols;
        if (what ? good->free_cols[i] : good->free_rows[i])
            accepted(&op);
        else
            refused(&op, name);
    }
    for (int dtype = 0; dtype < N_DTYPES; dtype++) {
        struct op_shape op = good->op;
        struct tensor *t = op_text_operand(&op, i);
        struct err err = { 0 };

        if (t->dtype == (enum dtype)dtype)
            continue;
        t->dtype = (enum dtype)dtype;
        if (op.kind == OP_AWAIT ||
            ((op.kind == OP_SEND || op.kind == OP_RECEIVE) && dtype_moves((enum dtype)dtype))) {
            accepted(&op); /* there is nothing else to agree with */
            continue;
        }
        /* Where an op has one operand of its act, or takes two, other floats are fine. */
        if (dtype != DTYPE_F32 && dtype != DTYPE_BF16 && dtype != DTYPE_F16)
            refused(&op, name);
        else if (op_check(&op, &err))
            assert_non_null(strstr(err.text, "wanted"));
    }
}

static void absence(const struct op_text *good, int i, const struct op_operand *operand)
{
    struct op_shape op = good->op;
    int is_sample = !strcmp(operand->name, "sample");
    int is_needed = is_sample || (op.kind == OP_CROSS_ENTROPY && !strcmp(operand->name, "offset"));

    *op_text_operand(&op, i) = (struct tensor){ 0 };
    int pairs = op.kind == OP_LORA ? LORA_H0 : op.kind == OP_EXPERT_LORA ? EXPERT_LORA_H0 : 0;
    if (pairs && i >= pairs && i < OPS_MAX_INPUTS) {
        refused(&op, operand->name); /* an adapter's pair is there or it is not */
        *op_text_operand(&op, i - (i - pairs) % 2) = (struct tensor){ 0 };
        *op_text_operand(&op, i - (i - pairs) % 2 + 1) = (struct tensor){ 0 };
    }
    /* Segments come together, and say how many rows the cache has. */
    if (op.kind == OP_ATTENTION_CACHED && str_starts_with(operand->name, "segment")) {
        refused(&op, operand->name);
        op.in[ATTENTION_CACHED_SEGMENT] = op.in[ATTENTION_CACHED_SEGMENTS] = (struct tensor){ 0 };
        op.in[ATTENTION_CACHED_KEYS].rows = op.in[ATTENTION_CACHED_VALUES].rows =
            op.in[0].rows / op.attributes.seq_len * op.attributes.cache_len;
    }
    if (op_info(op.kind)->codes_output &&
        (!strcmp(operand->name, "most") || !strcmp(operand->name, "copy"))) {
        refused(&op, operand->name); /* codes have one beside them, or are of dx */
        for (int k = op_info(op.kind)->codes_output - 1; k < op_info(op.kind)->n_outputs; k++)
            op.out[k] = (struct tensor){ 0 };
    }
    if (operand->flags & OPERAND_OPTIONAL && !is_needed)
        accepted(&op);
    else
        refused(&op, operand->name);
    op.attributes.p = 0;
    if (operand->flags & OPERAND_OPTIONAL && is_sample)
        accepted(&op);
}

#define TABLE(family) family##_ops,
static const struct op_info *const *const families[] = { OP_FAMILIES(TABLE) };
#undef TABLE

/* A second row would never be read. */
static void test_each_kind_has_one_row(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        int n_rows = 0;

        for (size_t i = 0; i < sizeof families / sizeof *families; i++)
            n_rows += families[i][kind] != NULL;
        if (n_rows != 1)
            fail_msg("%s has %d rows", op_info((enum op_kind)kind)->name, n_rows);
    }
}

static void test_each_kind(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_OP_KINDS; kind++) {
        const struct op_info *info = op_info((enum op_kind)kind);
        struct op_text good;

        op_text_parse(&good, op_example((enum op_kind)kind));
        if ((int)good.op.kind != kind)
            fail_msg("the example (support/ops) of %s is one of %s", info->name,
                     op_info(good.op.kind)->name);
        assert_int_equal(good.n_inputs, info->n_inputs);
        assert_int_equal(good.n_outputs, info->n_outputs);
        accepted(&good.op);
        for (int i = 0; i < info->n_inputs; i++) {
            /* Another form's. */
            if (!tensor_given(&good.op.in[i]))
                continue;
            spoil(&good, i, info->inputs[i].name);
            absence(&good, i, &info->inputs[i]);
        }
        for (int i = 0; i < info->n_outputs; i++) {
            spoil(&good, OPS_MAX_INPUTS + i, info->outputs[i].name);
            absence(&good, OPS_MAX_INPUTS + i, &info->outputs[i]);
        }
        if (info->n_inputs < OPS_MAX_INPUTS) {
            good.op.in[info->n_inputs] =
                *op_text_operand(&good.op, info->n_inputs ? 0 : OPS_MAX_INPUTS);
            refused(&good.op, "one input more");
        }
    }
}

static void text_is(const char *op, const char *wanted)
{
    struct op_text text;
    struct err err = { 0 };

    op_text_parse(&text, op);
    assert_int_equal(op_check(&text.op, &err), -1);
    assert_string_equal(err.text, wanted);
}

static void test_messages(void **state)
{
    (void)state;
    text_is("linear 12x8 bf16, 6x9 bf16 : 12x6 bf16", "linear: w is [6 x 9], wanted [* x 8]");
    text_is("linear 12x8 bf16, 6x8 fp32 : 12x6 bf16", "linear: w is fp32, wanted bf16");
    text_is("linear 12x8 bf16, 6x8 bf16 : 12x7 bf16", "linear: y is [12 x 7], wanted [12 x 6]");
    text_is("linear 12x8 bf16 : 12x6 bf16", "linear: w is missing");
    text_is("linear 12x8 fp32, 6x8 fp32 : 12x6 bf16",
            "linear: y is bf16, wanted fp32 or its input's dtype");
    text_is("swiglu 12x7 fp32 : 12x3 fp32", "swiglu: gu has 7 columns, wanted an even number");
    text_is("attention 13x8 fp32, 13x4 fp32, 13x4 fp32, 2x1 i64 : 13x8 fp32, 13x4 fp32",
            "attention: q has 13 rows, wanted a multiple of seq_len 6");
    text_is("attention 12x8 fp32, 12x4 fp32, 12x4 fp32 : 12x8 fp32, 12x4 fp32",
            "attention: sample is missing, wanted where p is 0.1");
    text_is("attention 12x8 fp32, 20x4 fp32, 20x4 fp32, 2x1 i64 : 12x8 fp32, 12x4 fp32",
            "attention: last is missing, wanted where k has 20 rows and q 12");
    text_is("attention 12x8 fp32, 21x4 fp32, 21x4 fp32, 2x1 i64, -, -, 12x1 i32 : "
            "12x8 fp32, 12x4 fp32",
            "attention: k has 21 rows, wanted a multiple of 2 sequences");
    text_is("attention 12x8 fp32, 20x4 fp32, 18x4 fp32, 2x1 i64, -, -, 12x1 i32 : "
            "12x8 fp32, 12x4 fp32",
            "attention: v is [18 x 4], wanted [20 x *]");
    text_is("cast 2x2 fp32 : 2x2 fp32", "cast: y is fp32, wanted another dtype than x");
    text_is("all_gather 1x6 fp32 : 1x20 fp32",
            "all_gather: full has 20 columns, wanted a multiple of 6");
    text_is("reduce_scatter 1x20 fp32 : 1x6 fp32",
            "reduce_scatter: shard has 6 columns, wanted a divisor of 20");
    text_is("all_gather 2x6 fp32 : 2x24 fp32",
            "all_gather: shard has 2 rows, wanted 1 or equal columns");
    text_is("reduce_scatter 4x24 fp32 : 2x6 fp32",
            "reduce_scatter: [4 x 24] and [2 x 6] differ in both");
    text_is("all_gather 6x8 fp32 : 20x8 fp32",
            "all_gather: full has 20 rows, wanted a multiple of 6");
    text_is("gather_heads 12x12 fp32 : 12x12 fp32",
            "gather_heads: qkv is [12 x 12], wanted [* x 10]");
    text_is("rows_to_heads 12x18 fp32 : 24x8 fp32",
            "rows_to_heads: 12 rows of 18 columns, wanted 16");
    text_is("rows_to_heads 12x16 fp32 : 24x6 fp32",
            "rows_to_heads: 24 rows of 6 columns, wanted 8");
    text_is("rows_to_heads 12x16 fp32 : 36x8 fp32",
            "rows_to_heads: 3 ranks for 4 heads and 2 kv heads");
    text_is("rows_to_heads 12x16 fp32 : 20x8 fp32",
            "rows_to_heads: y has 20 rows, wanted a multiple of 12");
    text_is("heads_to_rows 24x8 fp32 : 8x16 fp32",
            "heads_to_rows: a part of 8 rows, wanted a multiple of seq_len 6");
    text_is("heads_to_rows 48x8 fp32 : 12x16 fp32",
            "heads_to_rows: 48 rows of 8 columns, wanted 6");
    text_is("gather_sequence 9x8 fp32 : 18x8 fp32",
            "gather_sequence: part has 9 rows, wanted a multiple of seq_len 6");
    text_is("scatter_sequence 18x8 fp32 : 9x8 fp32",
            "scatter_sequence: a part of 9 rows, wanted a multiple of seq_len 6");
    text_is("gather_sequence 12x8 fp32 : 24x6 fp32",
            "gather_sequence: whole is [24 x 6], wanted [* x 8]");
    text_is("rotate 12x8 i32 : 12x8 fp32", "rotate: y is fp32, wanted i32");
    text_is("dropout 13x8 fp32, 2x1 i64, 1x1 i32 : 13x8 fp32",
            "dropout: x has 13 rows, wanted at most the 12 of sample");
    text_is("dropout 7x8 fp32, 2x1 i64 : 7x8 fp32",
            "dropout: x has 7 rows, wanted a multiple of seq_len 6");
    text_is("dropout 12x8 fp32, 2x1 i64, -, 11x1 i32 : 12x8 fp32",
            "dropout: row is [11 x 1], wanted [12 x 1]");
    text_is("dropout 7x8 fp32, 2x1 i64, 1x1 i32, 6x1 i32 : 7x8 fp32",
            "dropout: x has 7 rows, wanted at most the 6 of row");
    text_is("dropout 13x8 fp32, 2x1 i64, -, 13x1 i32 : 13x8 fp32",
            "dropout: row has 13 rows, wanted at most the 12 of sample");
    text_is("cross_entropy 12x20 fp32, 24x3 fp32, 12x1 i32, 1x1 fp32 : 12x20 fp32, 1x1 fp64",
            "cross_entropy: offset is missing, wanted where stats has 2 parts");
    text_is("logit_stats 12x20 bf16, 12x1 i32 : 12x3 fp32",
            "logit_stats: logits is bf16, wanted fp32");
    text_is("sumsq 200x50 fp32 : 1x2 fp64", "sumsq: sums is [1 x 2], wanted [1 x 3]");
}

#define ADAMW "adamw 2x8 fp32, 1x4 fp32, 1x1 fp32, 1x1 i32, "

static void test_messages_of_halves(void **state)
{
    (void)state;
    text_is(ADAMW "2x8 bf16, 2x8 fp32, 2x8 fp32, -, -, -, 2x8 bf16",
            "adamw: low is bf16, wanted i16");
    text_is(ADAMW "2x8 bf16, 2x8 bf16, 2x8 bf16, -, -, -, 2x8 i16",
            "adamw: master, m and v are bf16, bf16 and bf16 beside low, wanted bf16, and states of "
            "another dtype");
    text_is(ADAMW "2x8 bf16, 2x8 fp32, 2x8 fp32, -, -, -, 2x8 i16 : 2x8 bf16",
            "adamw: weight and low are given, wanted one of them");
}

static void test_messages_of_windows(void **state)
{
    (void)state;
    text_is("gather_window 9x8 fp32 : 512x8 fp32",
            "gather_window: part has 9 rows, wanted a multiple of seq_len 6");
    text_is("gather_window 12x8 fp32 : 500x8 fp32", "gather_window: seen has 500 rows, wanted 512");
    text_is("scatter_window 512x8 fp32 : 6x8 fp32",
            "scatter_window: seen has 512 rows, wanted 256");
    text_is("scatter_window 512x6 fp32 : 12x8 fp32",
            "scatter_window: part is [12 x 8], wanted [* x 6]");
}

/* Forms that examples have no room for. */
static void test_other_forms(void **state)
{
    static const char *const forms[] = {
        "dropout 7x8 fp32, 2x1 i64, 1x1 i32 : 7x8 fp32",
        "dropout 7x8 fp32, 2x1 i64, -, 7x1 i32 : 7x8 fp32",
        "dropout_grad 3x8 fp32, 2x1 i64, 1x1 i32, 7x1 i32 : 3x8 fp32",
        "cross_entropy 12x20 fp32, 12x3 fp32, 12x1 i32, 1x1 fp32 : 12x20 fp32, 1x1 fp64",
        "cross_entropy 12x20 fp32, 36x3 fp32, 12x1 i32, 1x1 fp32, 1x1 i32 : -, 1x1 fp64",
        "all_gather 3x8 bf16 : 12x8 bf16",
        "reduce_scatter 12x8 fp32 : 3x8 fp32",
        "rows_to_heads 12x16 bf16 : 12x16 bf16",
        "rows_to_heads 12x16 bf16 : 24x8 bf16",
        "heads_to_rows 24x8 fp32 : 12x16 fp32",
        "gather_sequence 6x8 fp64 : 18x8 fp64",
        "rotate 7x3 i32 : 7x3 i32",
        "gather_window 6x8 fp64 : 256x8 fp64",
        "layernorm 12x8 fp32, 1x8 fp32, 1x8 fp32 : 12x8 fp32, 12x1 fp32, 12x1 fp32",
        "rmsnorm_grad 12x8 fp32, 12x8 fp32, 1x8 fp32, 12x1 fp32, - : 12x8 fp32, 1x8 fp32",
        "head_norm_grad 12x12 bf16, 12x12 bf16, 1x2 fp32, 1x2 fp32, 12x6 fp32 : 12x12 bf16, -, -",
        "attention 12x8 bf16, 12x4 bf16, 12x4 bf16, 2x1 i64, -, 12x1 i32 : 12x8 bf16, 12x4 fp32",
        "attention 12x8 bf16, 12x4 bf16, 12x10 bf16, 2x1 i64 : 12x20 bf16, 12x4 fp32",
        ("attention 12x8 bf16, 20x4 bf16, 20x4 bf16, 2x1 i64, -, -, 12x1 i32 "
         ": 12x8 bf16, 12x4 fp32"),
        ("attention_grad 12x8 bf16, 12x8 bf16, 20x4 bf16, 20x4 bf16, 12x8 bf16, 12x4 fp32, "
         "2x1 i64, -, 12x1 i32, 12x1 i32 : 12x8 bf16, 20x4 bf16, 20x4 bf16"),
        ("attention_grad 12x20 bf16, 12x8 bf16, 12x4 bf16, 12x10 bf16, 12x20 bf16, 12x4 fp32, "
         "2x1 i64 : 12x8 bf16, 12x4 bf16, 12x10 bf16"),
        ("attention_cached 12x8 bf16, 12x4 bf16, 12x6 bf16, 12x1 i32, 18x4 bf16, 18x6 bf16 "
         ": 12x12 bf16"),
        ("attention_cached 12x8 bf16, 12x4 bf16, 12x4 bf16, 12x1 i32, 18x4 bf16, 18x4 bf16 "
         ": 12x8 bf16"),
        ("adamw 20x8 bf16, 1x4 fp32, 1x1 fp32, 1x1 i32, 20x8 bf16, 20x8 bf16, 20x8 bf16, -, "
         "1x1 fp64"),
        ("adamw 20x8 bf16, 1x4 fp32, 1x1 fp32, 1x1 i32, 20x8 bf16, 20x8 fp32, 20x8 fp32, 1x1 fp64, "
         "-, -, 20x8 i16"),
    };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct op_text text;

        op_text_parse(&text, forms[i]);
        accepted(&text.op);
    }
}

static void attribute(enum op_kind kind, void (*spoil_it)(struct op_attributes *),
                      const char *wanted)
{
    struct op_text text;
    struct err err = { 0 };

    op_text_parse(&text, op_example(kind));
    spoil_it(&text.op.attributes);
    assert_int_equal(op_check(&text.op, &err), -1);
    assert_string_equal(err.text, wanted);
}

static void no_heads(struct op_attributes *a)
{
    a->n_heads = 0;
}

static void odd_kv_heads(struct op_attributes *a)
{
    a->n_kv_heads = 3;
}

static void odd_head_dim(struct op_attributes *a)
{
    a->head_dim = 3;
}

static void wide_head(struct op_attributes *a)
{
    a->head_dim = 257;
}

static void no_seq_len(struct op_attributes *a)
{
    a->seq_len = 0;
}

static void no_cache(struct op_attributes *a)
{
    a->cache_len = 0;
}

static void no_chunk(struct op_attributes *a)
{
    a->chunk = 0;
}

static void no_vocabulary(struct op_attributes *a)
{
    a->vocab_size = 0;
}

static void two_kv_heads(struct op_attributes *a)
{
    a->n_kv_heads = 2;
}

static void group_of_three(struct op_attributes *a)
{
    a->group = 3;
}

static void few_heads(struct op_attributes *a)
{
    a->n_kv_heads = -1;
}

static void odd_part(struct op_attributes *a)
{
    a->seq_len = 3;
    a->zigzag = 1;
}

static void negative_window(struct op_attributes *a)
{
    a->window = -1;
}

static void slopes_of_two(struct op_attributes *a)
{
    a->alibi = 2;
}

static void p_one(struct op_attributes *a)
{
    a->p = 1;
}

static void p_half(struct op_attributes *a)
{
    a->p = 0.5;
}

static void negative_eps(struct op_attributes *a)
{
    a->eps = -1;
}

static void window_of_four(struct op_attributes *a)
{
    a->window = 4;
}

static void beta_one(struct op_attributes *a)
{
    a->beta2 = 1;
}

static void no_direction(struct op_attributes *a)
{
    a->peer = 0;
}

static void two_further(struct op_attributes *a)
{
    a->peer = 2;
}

static void no_axis(struct op_attributes *a)
{
    a->axis = N_GROUP_AXES;
}

static void test_attributes(void **state)
{
    (void)state;
    attribute(OP_ROPE, no_heads, "rope: n_heads is 0, wanted at least 1");
    attribute(OP_ATTENTION, odd_kv_heads,
              "attention: n_kv_heads is 3, wanted a divisor of n_heads 4");
    attribute(OP_ROPE, odd_head_dim, "rope: head_dim is 3, wanted 1..256 and even");
    attribute(OP_ATTENTION, wide_head, "attention: head_dim is 257, wanted 1..256");
    attribute(OP_DROPOUT, no_seq_len, "dropout: seq_len is 0, wanted at least 1");
    attribute(OP_ATTENTION_CACHED, no_cache, "attention_cached: cache_len is 0, wanted at least 1");
    attribute(OP_HEAD_LOSS, no_chunk, "head_loss: chunk is 0, wanted at least 1");
    attribute(OP_LOGIT_STATS, no_vocabulary, "logit_stats: vocab_size is 0, wanted at least 1");
    attribute(OP_CROSS_ENTROPY, no_vocabulary, "cross_entropy: vocab_size is 0, wanted at least 1");
    attribute(OP_GATHER_HEADS, two_kv_heads, "gather_heads: n_kv_heads is 2, wanted 1");
    attribute(OP_GATHER_HEADS_GRAD, group_of_three,
              "gather_heads_grad: group is 3, wanted a divisor of head_dim 2");
    attribute(OP_ROWS_TO_HEADS, no_heads, "rows_to_heads: n_heads is 0, wanted at least 1");
    attribute(OP_ROWS_TO_HEADS, wide_head, "rows_to_heads: head_dim is 257, wanted 1..256");
    attribute(OP_ROWS_TO_HEADS, few_heads,
              "rows_to_heads: n_kv_heads is -1, wanted 0 or a divisor of n_heads 4");
    attribute(OP_HEADS_TO_ROWS, odd_kv_heads,
              "heads_to_rows: n_kv_heads is 3, wanted 0 or a divisor of n_heads 4");
    attribute(OP_HEADS_TO_ROWS, no_seq_len, "heads_to_rows: seq_len is 0, wanted at least 1");
    attribute(OP_GATHER_SEQUENCE, odd_part,
              "gather_sequence: seq_len is 3, wanted an even number for zigzag");
    attribute(OP_ROTATE, no_direction, "rotate: peer is 0, wanted 1 or -1");
    attribute(OP_ROTATE, two_further, "rotate: peer is 2, wanted 1 or -1");
    attribute(OP_GATHER_WINDOW, odd_part,
              "gather_window: seq_len is 3, wanted an even number for two chunks");
    attribute(OP_GATHER_WINDOW, negative_window,
              "gather_window: window is -1, wanted 1..3, the rows of a chunk");
    attribute(OP_SCATTER_WINDOW, window_of_four,
              "scatter_window: window is 4, wanted 1..3, the rows of a chunk");
    attribute(OP_ATTENTION, negative_window, "attention: window is -1, wanted at least 0");
    attribute(OP_ATTENTION_GRAD, slopes_of_two,
              "attention_grad: alibi is 2, wanted 0 or at least n_heads 4");
    attribute(OP_ATTENTION_PART, p_half,
              "attention_part: p is 0.5, wanted 0: a part has no dropout");
    attribute(OP_ATTENTION_PART_GRAD, slopes_of_two,
              "attention_part_grad: alibi is 2, wanted 0: a part has no slopes");
    attribute(OP_ATTENTION_PART, negative_window,
              "attention_part: window is -1, wanted 0: of a part it is in first");
    attribute(OP_NORMALIZE_ROWS, negative_eps, "normalize_rows: eps is -1, wanted at least 0");
    attribute(OP_HEAD_NORM, negative_eps, "head_norm: eps is -1, wanted at least 0");
    attribute(OP_DROPOUT, p_one, "dropout: p is 1, wanted 0 <= p < 1");
    attribute(OP_RMSNORM, negative_eps, "rmsnorm: eps is -1, wanted at least 0");
    attribute(OP_ADAMW, beta_one, "adamw: betas are 0.9 and 1, wanted 0 <= beta < 1");
    attribute(OP_ALL_GATHER, no_axis, "all_gather: axis is 9, wanted 0..8");
}

/* Heads that are a part of more have other slopes than the first of them. */
static void test_slopes(void **state)
{
    static const struct {
        enum op_kind kind;
        int head_offset;
    } cases[] = { { OP_ATTENTION, ATTENTION_HEAD_OFFSET },
                  { OP_ATTENTION_GRAD, ATTENTION_GRAD_HEAD_OFFSET },
                  { OP_ATTENTION_CACHED, ATTENTION_CACHED_HEAD_OFFSET } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct op_text text;

        op_text_parse(&text, op_example(cases[i].kind));
        text.op.attributes.alibi = 8;
        accepted(&text.op);
        text.op.in[cases[i].head_offset] = (struct tensor){ 0 };
        refused(&text.op, "4 of 8 heads without a head_offset");
        text.op.attributes.alibi = 4;
        accepted(&text.op);
    }
    /* transformers' build_alibi_tensor for 4, 6, 12 heads. */
    assert_true(ops_alibi_slope(0, 4) == 0.25);
    assert_true(ops_alibi_slope(3, 4) == 0x1p-8);
    assert_true(ops_alibi_slope(4, 6) == 0.5);
    assert_true(ops_alibi_slope(5, 6) == 0.125);
    assert_true(ops_alibi_slope(7, 12) == 0x1p-8);
    assert_true(fabs(ops_alibi_slope(8, 12) - 0.70710678) < 1e-8);
    assert_true(fabs(ops_alibi_slope(11, 12) - 0.08838835) < 1e-8);
    assert_true(ops_alibi_slope(0, 1) == 0x1p-8);
}

static void test_stride(void **state)
{
    struct op_text text;

    (void)state;
    op_text_parse(&text, op_example(OP_LINEAR));
    text.op.in[1].stride = 11;
    accepted(&text.op);
    text.op.in[1].stride = 7;
    refused(&text.op, "a stride below its columns");
}

/* Rows of runs: 2 of 6 rows, in place of 12. */
static void test_runs_of_rows(void **state)
{
    struct op_text text;

    (void)state;
    op_text_parse(&text, op_example(OP_LINEAR));
    text.op.attributes.run_rows = 6;
    refused(&text.op, "rows that are no runs");
    text.op.in[LINEAR_X].rows = text.op.out[LINEAR_Y].rows = 2;
    text.op.in[LINEAR_X].cols = 6 * 8;
    text.op.out[LINEAR_Y].cols = 6 * 6;
    text.op.in[LINEAR_X].stride = 6 * 8 + 5;
    text.op.out[LINEAR_Y].stride = 6 * 6;
    accepted(&text.op);
    assert_true(op_flops(&text.op) == 2 * 12 * 8 * 6);
    text.op.in[LINEAR_X].stride = 6 * 8 - 1;
    refused(&text.op, "runs that overlap");
    text.op.in[LINEAR_X].stride = 6 * 8;
    text.op.attributes.run_rows = 5;
    refused(&text.op, "a run of 9.6 numbers a row");
    op_text_parse(&text, op_example(OP_LINEAR_DW));
    text.op.attributes.run_rows = 1;
    refused(&text.op, "runs in a product that sums over rows");
}

static void test_unknown_kind(void **state)
{
    struct op_shape op = { .kind = N_OP_KINDS };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(op_check(&op, &err), -1);
    assert_int_equal(op_find("linear"), OP_LINEAR);
    assert_int_equal(op_find("linea"), N_OP_KINDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_has_one_row),
        cmocka_unit_test(test_each_kind),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_messages_of_windows),
        cmocka_unit_test(test_messages_of_halves),
        cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_stride),
        cmocka_unit_test(test_runs_of_rows),
        cmocka_unit_test(test_unknown_kind),
        cmocka_unit_test(test_other_forms),
        cmocka_unit_test(test_slopes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
