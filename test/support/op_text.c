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
 * T 12 in sequences of 6, d 8, h 4, g 2, e 2, c 16, f 10, V 20, k 8, n 6, m 5, s 2, cache 9; where kv heads are
 * gathered, g 1 and c 12, of which each of two neighbours has 10.
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
    .scale = 0.7,
    .eps = 1e-5,
    .p = 0.1,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .clip = 1,
};

const char *const op_texts[] = {
    "embed 12x1 i32, *50x8 bf16, 12x8 fp32, 1x1 i32 : 12x8 fp32",
    "embed_dw 12x8 fp32, 12x1 i32, 1x1 i32 : *50x8 fp32",
    "rmsnorm 12x8 fp32, 1x8 fp32 : 12x8 bf16, 12x1 fp32",
    "rmsnorm_grad 12x8 bf16, 12x8 fp32, 1x8 fp32, 12x1 fp32, 12x8 fp32 "
    ": 12x8 fp32, 1x8 fp32, 12x8 bf16",
    "layernorm 12x8 fp32, 1x8 fp32, 1x8 fp32 : 12x8 bf16, 12x1 fp32, 12x1 fp32",
    "layernorm_grad 12x8 bf16, 12x8 fp32, 1x8 fp32, 12x1 fp32, 12x1 fp32, 12x8 fp32 "
    ": 12x8 fp32, 1x8 fp32, 1x8 fp32, 12x8 bf16",
    "add_rmsnorm 12x8 fp32, 12x8 bf16, 1x8 fp32 : 12x8 bf16, 12x1 fp32, 12x8 fp32",
    "add_layernorm 12x8 fp32, 12x8 bf16, 1x8 fp32, 1x8 fp32 "
    ": 12x8 bf16, 12x1 fp32, 12x1 fp32, 12x8 fp32",
    "linear 12x8 bf16, 6x8 bf16, 1x6 fp32 : 12x6 bf16",
    "linear_dx 12x6 bf16, 6x8 bf16 : 12x8 bf16",
    "linear_dw 12x6 bf16, 12x8 bf16 : 6x8 fp32, 1x6 fp32",
    "head_norm 12x12 bf16, 1x2 fp32, 1x2 fp32 : 12x12 bf16, 12x6 fp32",
    "head_norm_grad 12x12 bf16, 12x12 bf16, 1x2 fp32, 1x2 fp32, 12x6 fp32 "
    ": 12x12 bf16, 1x2 fp32, 1x2 fp32",
    "rope 12x12 bf16, 12x1 i32, *30x2 fp32 : 12x12 bf16",
    "rope_grad 12x12 bf16, 12x1 i32, *30x2 fp32 : 12x12 bf16",
    "normalize_rows 20x8 bf16 : 20x8 bf16, 20x1 fp32",
    "normalize_rows_grad 20x8 fp32, 20x8 bf16, 20x1 fp32 : 20x8 fp32",
    "attention 12x8 bf16, 12x4 bf16, 12x4 bf16, 2x1 i64, 1x1 i32, 12x1 i32, "
    "12x1 i32 : 12x8 bf16, 12x4 fp32",
    "attention_grad 12x8 bf16, 12x8 bf16, 12x4 bf16, 12x4 bf16, 12x8 bf16, 12x4 fp32, 2x1 i64, "
    "1x1 i32, 12x1 i32, 12x1 i32 : 12x8 bf16, 12x4 bf16, 12x4 bf16",
    "attention_cached 12x8 bf16, 12x4 bf16, 12x4 bf16, 12x1 i32, 9x4 bf16, 9x4 bf16, 1x1 i32, "
    "12x1 i32, *5x3 i32 : 12x8 bf16",
    "swiglu 12x20 bf16 : 12x10 bf16",
    "swiglu_grad 12x10 bf16, 12x20 bf16 : 12x20 bf16",
    "gelu 12x10 bf16 : 12x10 bf16",
    "gelu_grad 12x10 bf16, 12x10 bf16 : 12x10 bf16",
    "scale 12x8 bf16 : 12x8 bf16",
    "lora 12x6 bf16, 12x5 bf16, 2x5 bf16, 12x1 bf16, 1x1 bf16, 12x4 bf16, 3x4 bf16 "
    ": 12x6 bf16",
    "router 12x5 fp32 : 12x2 fp32, 12x2 i32, 1x6 fp64",
    "router_grad 12x2 fp32, 12x2 fp32, 12x2 i32, 12x5 fp32, 1x1 fp32, 36x2 i32 : 12x5 fp32",
    "expert_order 12x2 i32 : 12x2 i32, 1x*5 i32",
    "dispatch 12x2 i32, 12x8 bf16 : 24x8 bf16",
    "expert_linear 24x8 bf16, 1x5 i32, 30x8 bf16 : 24x6 bf16",
    "expert_linear_dx 24x6 bf16, 1x5 i32, 30x8 bf16 : 24x8 bf16",
    "expert_linear_dw 24x6 bf16, 24x8 bf16, 1x5 i32 : 30x8 fp32",
    "expert_swiglu 12x2 fp32, 12x2 i32, 24x20 bf16 : 24x10 bf16",
    "expert_swiglu_grad 12x2 fp32, 12x2 i32, 24x10 bf16, 24x20 bf16 : 24x20 bf16, 12x2 fp32",
    "combine 12x2 i32, 24x8 bf16 : 12x8 bf16",
    "dropout 12x8 fp32, *2x1 i64, 1x1 i32 : 12x8 fp32",
    "dropout_grad 12x8 bf16, *2x1 i64, 1x1 i32 : 12x8 bf16",
    "add 12x8 fp32, 12x8 bf16 : 12x8 fp32",
    "add_bias 12x6 bf16, 1x6 fp32 : 12x6 bf16",
    "bias_grad *12x6 bf16 : 1x6 fp32",
    "cast 12x8 fp32 : 12x8 bf16",
    "select_rows *12x8 bf16, 3x1 i32 : 3x8 bf16",
    "head_cross_entropy 12x8 bf16, 20x8 bf16, 12x1 i32, 1x1 fp32 : 12x8 bf16, 20x8 fp32, 1x1 fp64",
    "head_loss 12x8 bf16, *20x8 bf16, 12x1 i32 : 1x1 fp64",
    "logit_stats 12x*20 fp32, 12x1 i32, 1x1 i32 : 12x3 fp32",
    "cross_entropy 12x20 fp32, 24x3 fp32, 12x1 i32, 1x1 fp32, 1x1 i32 : 12x20 bf16, 1x1 fp64",
    "accumulate 20x8 fp32 : 20x8 fp32",
    "all_gather 1x6 bf16 : 1x24 bf16",
    "reduce_scatter 1x24 fp32 : 1x6 fp32",
    "all_reduce 12x8 fp32 : 12x8 fp32",
    "all_reduce_scalar 1x2 fp64 : 1x2 fp64",
    "gather_heads 12x10 bf16 : 12x12 bf16",
    "gather_heads_grad 12x12 bf16 : 12x10 bf16",
    "send *20x*8 fp32 :",
    "receive : *20x*8 fp32",
    "to_host 12x8 bf16 : 12x8 bf16",
    "to_device 12x8 bf16 : 12x8 bf16",
    "await *20x*8 fp32 :",
    "sum_runs 1x*7 fp64, 1x5 i32, 1x*6 i32 : 1x5 fp64",
    "sumsq *200x*50 fp32 : 1x3 fp64",
    "gradient_norm 1x*7 fp64, 1x*5 i32, 1x1 fp32 : 1x1 fp64, 1x1 fp32, 1x1 i32",
    "adamw 20x8 fp32, 1x4 fp32, 1x1 fp32, 1x1 i32, 20x8 fp32, 20x8 fp32, 20x8 fp32, 1x1 fp64, "
    "1x1 fp64, 1x1 i32"
    " : 20x8 bf16",
};
_Static_assert(sizeof op_texts / sizeof *op_texts == N_OP_KINDS,
               "each op kind of ops.h has a text, in their order");

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
    if (out->op.kind == OP_GATHER_HEADS || out->op.kind == OP_GATHER_HEADS_GRAD) {
        out->op.attributes.n_kv_heads = 1;
        out->op.attributes.group = 2;
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
