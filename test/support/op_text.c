/*
 * op_text.c - see the header
 */
#include "support/op_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/*
 * T 12 in sequences of 6, d 8, h 4, g 2, e 2, c 16, f 10, V 20, k 8, n 6, m 5, s 2, cache 9; where
 * kv heads are gathered, g 1 and c 12, of which each of two neighbours has 10; rows and heads are
 * exchanged by four ranks, two of which share a kv head; what windows see is of windows of 2;
 * rows are exchanged by two ranks that have 5 of 10 experts each, and the
 * experts that are put in order are some of 30; experts keep 3 choices each.
 */
static const struct op_attributes attributes = {
    .n_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 2,
    .seq_len = 6,
    .cache_len = 9,
    .chunk = 4,
    .vocab_size = 33,
    .parts = { 2, 1, 3 },
    .normalize = 1,
    .rate = 1e-3,
    .scale = 0.7,
    .eps = 1e-5,
    .p = 0.1,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .clip = 1,
    .peer = 1,
    .rank = 2,
    .fills = 1,
};

struct tensor *op_text_operand(struct op_shape *op, int i)
{
    return i < OPS_MAX_INPUTS ? &op->in[i] : &op->out[i - OPS_MAX_INPUTS];
}

static enum dtype dtype_of(const char *name)
{
    for (int d = 0; d < N_DTYPES; d++)
        if (!strcmp(dtype_name((enum dtype)d), name))
            return (enum dtype)d;
    fail_msg("no dtype %s", name);
    return N_DTYPES;
}

static int extent(const char **text, int64_t *value)
{
    int is_free = **text == '*';
    char *end;

    *text += is_free;
    *value = strtoll(*text, &end, 10);
    assert_true(end != *text);
    *text = end;
    return is_free;
}

static void operand(struct op_text *out, int i, const char *text)
{
    struct tensor *t = op_text_operand(&out->op, i);

    if (!strcmp(text, "-"))
        return;
    out->free_rows[i] = extent(&text, &t->rows);
    assert_true(*text == 'x');
    text++;
    out->free_cols[i] = extent(&text, &t->cols);
    assert_true(*text == ' ');
    t->dtype = dtype_of(text + 1);
    t->stride = t->cols;
}

void op_text_parse(struct op_text *out, const char *text)
{
    char copy[256], *rest = copy, *name, *word;
    int i = 0;

    *out = (struct op_text){ .op = { .attributes = attributes } };
    assert_true(snprintf(copy, sizeof copy, "%s", text) < (int)sizeof copy);
    name = strsep(&rest, " ");
    out->op.kind = op_find(name);
    if (out->op.kind == N_OP_KINDS)
        fail_msg("no op %s", name);
    if (!(op_info(out->op.kind)->attributes & ATTRIBUTE_P))
        out->op.attributes.p = 0;
    if (out->op.kind == OP_GATHER_HEADS || out->op.kind == OP_GATHER_HEADS_GRAD) {
        out->op.attributes.n_kv_heads = 1;
        out->op.attributes.group = 2;
    }
    if (out->op.kind == OP_GATHER_WINDOW || out->op.kind == OP_SCATTER_WINDOW)
        out->op.attributes.window = 2;
    if (out->op.kind == OP_SEND_ROWS || out->op.kind == OP_RETURN_ROWS)
        out->op.attributes.n_experts = 10;
    if (out->op.kind == OP_ENCODE || out->op.kind == OP_DECODE)
        out->op.attributes.codec = CODEC_INT8;
    if (out->op.kind == OP_NEWTON_SCHULZ) {
        out->op.attributes.matrix_rows = 2;
        out->op.attributes.matrices = 3;
        out->op.attributes.matrix_parts = 2;
        out->op.attributes.steps = 5;
    }
    if (out->op.kind == OP_LINEAR_FP8 || out->op.kind == OP_LINEAR_DX_FP8 ||
        out->op.kind == OP_LINEAR_DW_FP8 || out->op.kind == OP_FP8_WEIGHT_AMAX ||
        out->op.kind == OP_FP8_WEIGHT_CODES)
        out->op.attributes.fp8 = FP8_TENSOR;
    if (out->op.kind == OP_EXPERT_LINEAR_FP8 || out->op.kind == OP_EXPERT_LINEAR_DX_FP8 ||
        out->op.kind == OP_EXPERT_LINEAR_DW_FP8)
        out->op.attributes.fp8 = FP8_BLOCKWISE;
    if (out->op.kind == OP_TOP_K || out->op.kind == OP_ENCODE_ROWS ||
        out->op.kind == OP_DECODE_ROWS) {
        out->op.attributes.ratio = 0.01;
        out->op.attributes.bits = 8;
    }
    if (out->op.kind == OP_EXPERT_ORDER)
        out->op.attributes.n_experts = 30;
    if (out->op.kind == OP_LIMIT_CHOICES) {
        out->op.attributes.n_experts = 5;
        out->op.attributes.capacity = 3;
    }
    for (char *side = strsep(&rest, ":"); side; side = strsep(&rest, ":"), i = OPS_MAX_INPUTS)
        while ((word = strsep(&side, ","))) {
            while (*word == ' ')
                word++;
            for (size_t n = strlen(word); n > 0 && word[n - 1] == ' '; n--)
                word[n - 1] = 0;
            if (!*word)
                continue;
            operand(out, i++, word);
            if (i <= OPS_MAX_INPUTS)
                out->n_inputs = i;
            else
                out->n_outputs = i - OPS_MAX_INPUTS;
        }
}
