/*
 * hf_read_test.c - weights of eight bits with every kind of scale, and scales that are none
 */
#include "ckpt_fixture.h"

#include "base/num.h"
#include "ckpt/convert_dtype.h"
#include "ckpt/fp8.h"
#include "ckpt/hf_folder.h"
#include "config/job.h"

/* Two blocks of 128 and a rest in one direction, one and a rest in the other. */
enum { HIDDEN = 136, FFN = 260, MOST = FFN * HIDDEN };

static const char model[] = "model: {vocab_size: 2, hidden_size: 136, n_layers: 1, n_heads: 2, "
                            "ffn_size: 260, max_seq_len: 2, tied_embeddings: true}\n";

#define LAYER "model.layers.0."
#define GATE LAYER "mlp.gate_proj.weight"
#define UP LAYER "mlp.up_proj.weight"
#define DOWN LAYER "mlp.down_proj.weight"
#define QUERY LAYER "self_attn.q_proj.weight"

static struct safetensors_tensor all[] = {
    { "model.embed_tokens.weight", SAFETENSORS_F32, 2, { 2, HIDDEN }, 0, 0, 0 },
    { "model.norm.weight", SAFETENSORS_F32, 1, { HIDDEN }, 0, 0, 0 },
    { LAYER "input_layernorm.weight", SAFETENSORS_F32, 1, { HIDDEN }, 0, 0, 0 },
    { LAYER "post_attention_layernorm.weight", SAFETENSORS_F32, 1, { HIDDEN }, 0, 0, 0 },
    { LAYER "self_attn.k_proj.weight", SAFETENSORS_F16, 2, { HIDDEN, HIDDEN }, 0, 0, 0 },
    { LAYER "self_attn.v_proj.weight", SAFETENSORS_F16, 2, { HIDDEN, HIDDEN }, 0, 0, 0 },
    { LAYER "self_attn.o_proj.weight", SAFETENSORS_F8_E4M3, 2, { HIDDEN, HIDDEN }, 0, 0, 0 },
    { QUERY, SAFETENSORS_F8_E5M2, 2, { HIDDEN, HIDDEN }, 0, 0, 0 },
    { GATE, SAFETENSORS_F8_E4M3, 2, { FFN, HIDDEN }, 0, 0, 0 },
    { UP, SAFETENSORS_F8_E4M3, 2, { FFN, HIDDEN }, 0, 0, 0 },
    { DOWN, SAFETENSORS_F8_E4M3, 2, { HIDDEN, FFN }, 0, 0, 0 },
    { QUERY "_scale", SAFETENSORS_F32, 0, { 0 }, 0, 0, 0 },
    { GATE "_scale_inv", SAFETENSORS_F32, 2, { 3, 2 }, 0, 0, 0 },
    { UP "_scale_inv", SAFETENSORS_F8_E8M0, 2, { 3, 2 }, 0, 0, 0 },
    { DOWN "_scale", SAFETENSORS_BF16, 2, { HIDDEN, 1 }, 0, 0, 0 },
    { LAYER "mlp.down_proj.input_scale", SAFETENSORS_F32, 0, { 0 }, 0, 0, 0 },
};

enum { N_ALL = sizeof all / sizeof *all };

/* What stands at element i of a tensor. Eight-bit ones avoid their NaNs. */
static uint8_t byte_at(int64_t i)
{
    return (uint8_t)(i * 29 % 120 + (i % 2 ? 128 : 0));
}

static float scale_at(int64_t i)
{
    return 0.25f + (float)i / 3;
}

static void fill(const struct safetensors_tensor *tensor, unsigned char *data)
{
    int64_t n = (int64_t)((tensor->end - tensor->begin) / safetensors_type_bytes(tensor->type));

    for (int64_t i = 0; i < n; i++) {
        float x = scale_at(i);

        if (fp8_is(tensor->type))
            data[i] = byte_at(i);
        else if (tensor->type == SAFETENSORS_F8_E8M0)
            data[i] = (uint8_t)(120 + i);
        else if (tensor->type == SAFETENSORS_I8 || tensor->type == SAFETENSORS_I32)
            memset(data + (size_t)i * safetensors_type_bytes(tensor->type), 0, 1);
        else
            convert((enum dtype)safetensors_type_dtype(tensor->type),
                    data + (size_t)i * safetensors_type_bytes(tensor->type), DTYPE_F32, &x, 1);
    }
}

static void write_folder(const char *folder, const struct safetensors_tensor *tensors, int n)
{
    static unsigned char data[MOST * 4];
    struct safetensors_tensor placed[N_ALL + 1];
    struct safetensors_writer *writer;
    uint64_t n_bytes, hash;
    struct err err;

    memcpy(placed, tensors, (size_t)n * sizeof *placed);
    safetensors_place(placed, n);
    assert_ok(safetensors_create(&writer,
                                 arena_printf(&fixture_arena, "%s/model.safetensors", folder),
                                 placed, n, NULL, 0, &err),
              &err);
    for (int i = 0; i < n; i++) {
        fill(&placed[i], data);
        assert_ok(safetensors_write(writer, data, (size_t)(placed[i].end - placed[i].begin), &err),
                  &err);
    }
    assert_ok(safetensors_finish(writer, &n_bytes, &hash, &err), &err);
}

static int open_folder(struct hf_folder **opened, const char *folder, struct err *err)
{
    static struct job job;

    assert_ok(job_read_model(&job, model, strlen(model), "test", NULL, 0, &fixture_arena, err),
              err);
    return hf_folder_open(opened, folder, "llama", &job.model, err);
}

/* An element of gate_up or down by their definition. */
static float wanted(int is_down, int64_t row, int64_t col)
{
    float table[256];
    int64_t theirs = is_down || row < FFN ? row : row - FFN;
    int64_t block = theirs / 128 * 2 + col / 128;
    float scale = is_down     ? bf16_to_float(bf16_from_float(scale_at(row)))
                  : row < FFN ? scale_at(block)
                              : 1.0f / (float)(1 << (7 - block));

    fp8_table(SAFETENSORS_F8_E4M3, table);
    return table[byte_at(theirs * (is_down ? FFN : HIDDEN) + col)] * scale;
}

static void check_slice(struct hf_folder *opened, int is_down, struct store_slice slice)
{
    static unsigned char data[2 * MOST * 4];
    int64_t cols = slice.col_end - slice.col_begin;
    struct err err;

    slice.data = data;
    assert_ok(hf_folder_read(opened, &slice, &err), &err);
    for (int64_t row = slice.row_begin; row < slice.row_end; row++)
        for (int64_t col = slice.col_begin; col < slice.col_end; col++) {
            size_t at = (size_t)((row - slice.row_begin) * cols + col - slice.col_begin);
            float is, want = wanted(is_down, row, col), rounded;
            uint16_t half;

            convert(DTYPE_F32, &is, slice.dtype, data + at * dtype_bytes(slice.dtype), 1);
            half = bf16_from_float(want);
            rounded = slice.dtype == DTYPE_BF16 ? bf16_to_float(half) : want;
            if (is != rounded)
                fail_msg("%s[%d, %d] is %g, not %g", slice.name, (int)row, (int)col, (double)is,
                         (double)rounded);
        }
}

static void every_kind_of_scale(void **state)
{
    struct hf_folder *opened;
    struct err err;
    float query;

    write_folder(*state, all, N_ALL);
    assert_ok(open_folder(&opened, *state, &err), &err);
    assert_true(hf_folder_has_fp8(opened));
    for (int is_down = 0; is_down < 2; is_down++) {
        const char *name = is_down ? "layers.0.down.weight" : "layers.0.gate_up.weight";
        const struct hf_whole *whole = hf_names_find(hf_folder_names(opened), name);
        struct store_slice slice = whole->whole;

        assert_int_equal(hf_folder_dtype(opened, whole), DTYPE_BF16);
        check_slice(opened, is_down, slice);
        slice.dtype = DTYPE_BF16;
        check_slice(opened, is_down, slice);
        slice.row_begin = 100;
        slice.row_end = is_down ? 130 : 500;
        slice.col_begin = 120;
        slice.col_end = 135;
        check_slice(opened, is_down, slice);
    }
    /* One for all, and none: fp8 and fp16 have only fp32 in common with nothing lost. */
    for (int i = 0; i < hf_folder_names(opened)->n_tensors; i++)
        if (!strcmp(hf_folder_names(opened)->tensors[i].name, QUERY)) {
            float table[256], row[HIDDEN];

            fp8_table(SAFETENSORS_F8_E5M2, table);
            assert_ok(hf_folder_read_rows(opened, i, 7, 1, DTYPE_F32, row, &err), &err);
            for (int col = 0; col < HIDDEN; col++) {
                query = table[byte_at(7 * HIDDEN + col)] * scale_at(0);
                assert_memory_equal(&row[col], &query, sizeof query);
            }
        }
    assert_int_equal(
        hf_folder_dtype(opened, hf_names_find(hf_folder_names(opened), "layers.0.qkv.weight")),
        DTYPE_F32);
    hf_folder_close(opened);
}

static void scales_that_are_none(void **state)
{
    struct safetensors_tensor some[N_ALL + 1];
    struct hf_folder *opened;
    struct err err;

    memcpy(some, all, sizeof all);
    some[12].shape[0] = 7;
    write_folder(*state, some, N_ALL);
    assert_fails(open_folder(&opened, *state, &err), &err, ERR_DATA,
                 "gate_proj.weight_scale_inv is [7, 2], which is neither one scale, nor one for");
    memcpy(some, all, sizeof all);
    some[12].type = SAFETENSORS_I32;
    write_folder(*state, some, N_ALL);
    assert_fails(open_folder(&opened, *state, &err), &err, ERR_DATA,
                 "gate_proj.weight_scale_inv is I32; a scale is");
    memcpy(some, all, sizeof all);
    some[N_ALL] = (struct safetensors_tensor){ .name = DOWN "_scale_inv", .type = SAFETENSORS_F32 };
    write_folder(*state, some, N_ALL + 1);
    assert_fails(open_folder(&opened, *state, &err), &err, ERR_DATA, "has two scales: ");
    memcpy(some, all, sizeof all);
    some[N_ALL] = (struct safetensors_tensor){ .name = LAYER "self_attn.k_proj.weight_scale",
                                               .type = SAFETENSORS_F32 };
    write_folder(*state, some, N_ALL + 1);
    assert_fails(open_folder(&opened, *state, &err), &err, ERR_DATA,
                 "k_proj.weight_scale does not belong to a llama model");
    memcpy(some, all, sizeof all);
    some[8].type = SAFETENSORS_I8;
    write_folder(*state, some, N_ALL);
    assert_fails(open_folder(&opened, *state, &err), &err, ERR_DATA,
                 "gate_proj.weight is I8; F32, BF16, F16, F8_E4M3 and F8_E5M2 are supported");
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = { TEST(every_kind_of_scale), TEST(scales_that_are_none) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
