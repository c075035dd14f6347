/*
 * large_test.c - large models there and back: what of a tensor is in memory, and room on disk
 *
 * They are of zeros that take no room.
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
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/safetensors.h"
#include "convert/convert.h"
#include "support/temporary.h"

static char folder[256];

static int make_folder(void **state)
{
    (void)state;
    return temporary_folder(folder, sizeof folder);
}

static int remove_folder(void **state)
{
    struct err err;

    (void)state;
    return file_remove_tree(folder, &err);
}

static const char *path_of(struct arena *arena, const char *name)
{
    return arena_printf(arena, "%s/%s", folder, name);
}

/* A model of one layer, its head tied. Without experts it is a LLaMA, with some a Qwen3-MoE. */
struct large {
    int64_t vocab, hidden, ffn, n_experts;
};

#define HEADER_MAX_TENSORS 512

struct tensor_list {
    struct arena *arena;
    struct safetensors_tensor tensors[HEADER_MAX_TENSORS];
    int n;
};

/* cols 0: a vector. */
static void add(struct tensor_list *list, const char *name, int64_t rows, int64_t cols)
{
    CHECK(list->n < HEADER_MAX_TENSORS);
    list->tensors[list->n++] = (struct safetensors_tensor){ .name = name,
                                                            .n_dims = cols ? 2 : 1,
                                                            .shape = { rows, cols ? cols : 1 } };
}

static void add_of_layer(struct tensor_list *list, const char *name, int64_t rows, int64_t cols)
{
    add(list, arena_printf(list->arena, "model.layers.0.%s.weight", name), rows, cols);
}

static void add_ffn(struct tensor_list *list, const char *stem, int64_t hidden, int64_t ffn)
{
    add_of_layer(list, arena_printf(list->arena, "%s.gate_proj", stem), ffn, hidden);
    add_of_layer(list, arena_printf(list->arena, "%s.up_proj", stem), ffn, hidden);
    add_of_layer(list, arena_printf(list->arena, "%s.down_proj", stem), hidden, ffn);
}

static void list_tensors(struct tensor_list *list, const struct large *m)
{
    static const char *const attention[] = { "q_proj", "k_proj", "v_proj", "o_proj" };
    int64_t h = m->hidden;

    add(list, "model.embed_tokens.weight", m->vocab, h);
    for (int i = 0; i < 4; i++)
        add_of_layer(list, arena_printf(list->arena, "self_attn.%s", attention[i]), h, h);
    add(list, "model.norm.weight", h, 0);
    add_of_layer(list, "input_layernorm", h, 0);
    add_of_layer(list, "post_attention_layernorm", h, 0);
    if (!m->n_experts) {
        add_ffn(list, "mlp", h, m->ffn);
        return;
    }
    add_of_layer(list, "self_attn.q_norm", 64, 0);
    add_of_layer(list, "self_attn.k_norm", 64, 0);
    add_of_layer(list, "mlp.gate", m->n_experts, h);
    for (int64_t expert = 0; expert < m->n_experts; expert++)
        add_ffn(list, arena_printf(list->arena, "mlp.experts.%lld", (long long)expert), h, m->ffn);
}

/* Returns how many bytes all of them have. */
static uint64_t print_header(const struct tensor_list *list, struct str *text)
{
    uint64_t at = 0;

    str_add(text, "{");
    for (int i = 0; i < list->n; i++) {
        const struct safetensors_tensor *t = &list->tensors[i];
        uint64_t n_bytes = (uint64_t)(t->shape[0] * t->shape[1]) * sizeof(float);

        str_printf(text, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld", i ? "," : "", t->name,
                   (long long)t->shape[0]);
        if (t->n_dims == 2)
            str_printf(text, ",%lld", (long long)t->shape[1]);
        str_printf(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                   (unsigned long long)(at + n_bytes));
        at += n_bytes;
    }
    str_add(text, "}");
    return at;
}

/* The folder's path; NULL where the file system has no such large files. */
static const char *make_large(struct arena *arena, const char *name, const struct large *m)
{
    const char *path = path_of(arena, name);
    const char *file = arena_printf(arena, "%s/model.safetensors", path);
    struct tensor_list *list = arena_new(arena, struct tensor_list);
    struct str text = { 0 };
    struct err err;

    list->arena = arena;
    list_tensors(list, m);
    uint64_t n_bytes = print_header(list, &text), header = text.length;
    assert_int_equal(file_make_folders(path, &err), 0);
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(&header, 8, 1, out), 1);
    assert_int_equal(fwrite(text.data, 1, text.length, out), text.length);
    fclose(out);
    int fits = truncate(file, (off_t)(8 + header + n_bytes)) == 0;
    str_clear(&text);
    str_printf(&text,
               "{\"model_type\": \"%s\", \"vocab_size\": %lld, \"hidden_size\": %lld, "
               "\"num_hidden_layers\": 1, \"num_attention_heads\": %lld, \"intermediate_size\": "
               "%lld, \"head_dim\": 64, \"tie_word_embeddings\": true, \"torch_dtype\": "
               "\"float32\"",
               m->n_experts ? "qwen3_moe" : "llama", (long long)m->vocab, (long long)m->hidden,
               (long long)(m->hidden / 64), (long long)m->ffn);
    if (m->n_experts)
        str_printf(&text, ", \"num_experts\": %lld, \"moe_intermediate_size\": %lld",
                   (long long)m->n_experts, (long long)m->ffn);
    str_add(&text, "}");
    assert_int_equal(
        file_write(arena_printf(arena, "%s/config.json", path), text.data, text.length, &err), 0);
    str_release(&text);
    return fits ? path : NULL;
}

static int64_t peak_bytes(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WATCHES_MEMORY 0
#elif defined(__has_feature)
#define WATCHES_MEMORY (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define WATCHES_MEMORY 1
#endif

/* By layouts of one and two ranks, in fp32 and as bf16; what more is in memory then than before.
 * verify: each tensor is compared; the model is too large for logits. */
static int64_t there_and_back(struct arena *arena, const char *large, int64_t piece_bytes,
                              bool verify)
{
    struct convert_options options = { .dtype = -1,
                                       .pp = 1,
                                       .max_shard_bytes = (int64_t)1 << 40,
                                       .piece_bytes = piece_bytes,
                                       .verify = verify,
                                       .available_bytes = 1 };
    int64_t before = peak_bytes();
    struct convert_result result;
    struct err err;

    for (int tp = 1; tp <= 2; tp++) {
        options.from = large;
        options.to = path_of(arena, "large-there");
        options.tp = tp;
        if (convert_model(&options, &result, &err) < 0)
            fail_msg("%s", err.text);
        options.from = options.to;
        options.to = path_of(arena, "large-back");
        options.dtype = tp == 1 ? DTYPE_BF16 : -1;
        if (convert_model(&options, &result, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(file_remove_tree(options.from, &err), 0);
        assert_int_equal(file_remove_tree(options.to, &err), 0);
        options.dtype = -1;
    }
    assert_int_equal(file_remove_tree(large, &err), 0);
    return peak_bytes() - before;
}

/* A layer's experts are one tensor, here of 48 and 24 MiB, of which pieces are in memory. */
static void experts_are_never_together_in_memory(void **state)
{
    struct arena arena = { 0 };
    const struct large m = { .vocab = 64, .hidden = 128, .ffn = 512, .n_experts = 96 };
    const char *large = make_large(&arena, "experts", &m);

    (void)state;
    assert_non_null(large);
    int64_t more = there_and_back(&arena, large, (int64_t)1 << 20, true);
    if (WATCHES_MEMORY && more > (int64_t)16 << 20)
        fail_msg("%lld MiB for experts of 48", (long long)more >> 20);
    arena_release(&arena);
}

/* The largest tensor is 96 MiB: there and back must do with less. */
static void a_large_tensor_is_never_in_memory(void **state)
{
    struct arena arena = { 0 };
    const struct large m = { .vocab = 24576, .hidden = 1024, .ffn = 64 };
    const char *large = make_large(&arena, "large", &m);

    (void)state;
    assert_non_null(large);
    int64_t more = there_and_back(&arena, large, 0, false);
    if (WATCHES_MEMORY && more > (int64_t)72 << 20)
        fail_msg("%lld MiB for a tensor of 96", (long long)more >> 20);
    arena_release(&arena);
}

/* Nothing is written where there is no room for all of it. */
static void room_is_looked_for_before(void **state)
{
    struct arena arena = { 0 };
    const char *vast = make_large(&arena, "vast",
                                  &(struct large){ .vocab = 16777216, .hidden = 65536, .ffn = 64 });
    struct convert_options options = { .from = vast,
                                       .to = path_of(&arena, "no-room"),
                                       .tp = 1,
                                       .pp = 1,
                                       .dtype = -1,
                                       .max_shard_bytes = 1 << 30 };
    struct convert_result result;
    struct statvfs disk;
    struct err err = { 0 };

    (void)state;
    if (!vast || statvfs(folder, &disk) < 0 || disk.f_bavail * disk.f_frsize > (uint64_t)4 << 40) {
        arena_release(&arena);
        skip(); /* a file system without large files, or a very large one */
    }
    assert_int_equal(convert_model(&options, &result, &err), -1);
    assert_int_equal(err.code, ERR_FAILED);
    if (!strstr(err.text, "no-room needs 4.1 TiB, but its disk has only "))
        fail_msg("%s", err.text);
    assert_false(file_exists(options.to));
    assert_false(file_exists(path_of(&arena, "no-room.partial")));
    assert_int_equal(file_remove_tree(vast, &err), 0);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_never_together_in_memory),
        cmocka_unit_test(a_large_tensor_is_never_in_memory),
        cmocka_unit_test(room_is_looked_for_before),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
