/*
 * convert_dtype_test.c - the folders in golden/, of every family: transformers' logits; there and
 * back
 *
 * scripts/golden/convert.py made them.
 */
/* cmocka.h needs the first four. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/hf_names.h"
#include "config/hf_config.h"
#include "convert/convert.h"
#include "device/pool.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "serve/decode.h"
#include "support/temporary.h"

#define GOLDEN "test/convert/golden/"
#define TOLERANCE 1e-5
#define N_PROMPT 16

static const char *const models[] = {
    "llama", "qwen2", "mistral",     "internlm2", "baichuan", "gpt2",
    "qwen3", "bloom", "baichuan13b", "baichuan2", "mixtral",  "qwen3moe",
};

#define N_MODELS ((int)(sizeof models / sizeof *models))

static struct pool *pool;
static struct kernels *kernels;
static char folder[256];

static int open_all(void **state)
{
    struct err err;

    (void)state;
    return temporary_folder(folder, sizeof folder) < 0 || pool_create(&pool, 1, NULL, &err) < 0 ||
           kernels_cpu_create(&kernels, pool, NULL, &err) < 0;
}

static int close_all(void **state)
{
    struct err err;

    (void)state;
    kernels_destroy(kernels);
    pool_destroy(pool);
    return file_remove_tree(folder, &err);
}

static const char *path_of(struct arena *arena, const char *name)
{
    return arena_printf(arena, "%s/%s", folder, name);
}

static void compare_logits_within(struct served *served, const char *golden, double tolerance)
{
    struct arena arena = { 0 };
    int vocab_size = served->job.model.vocab_size, n = N_PROMPT;
    int32_t prompt[N_PROMPT];
    const int32_t *tokens[] = { prompt };
    struct safetensors *file;
    struct decoder *decoder;
    struct err err;
    double off = 0, largest = 0;
    float wanted[64];

    assert_true(vocab_size <= 64);
    for (int i = 0; i < n; i++)
        prompt[i] = (i * 7919 + 3) % vocab_size;
    if (safetensors_open(&file, arena_printf(&arena, "%s/logits.safetensors", golden), &err) < 0 ||
        safetensors_read(file, &file->index.tensors[0], 0, wanted,
                         sizeof *wanted * (size_t)vocab_size, &err) < 0 ||
        decoder_create(&decoder, served, kernels, 1, n, &err) < 0 ||
        decoder_feed(decoder, tokens, &n, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < vocab_size; i++) {
        off = fmax(off, fabs((double)decoder_logits(decoder, 0)[i] - (double)wanted[i]));
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    if (!(off <= tolerance * largest))
        fail_msg("%s: logits are off by %g of %g", served->folder, off, largest);
    decoder_destroy(decoder);
    safetensors_close(file);
    arena_release(&arena);
}

/* Theirs are computed in fp32: so are ours; and in fp16, where the model came in it. */
static void compare_logits(struct served *served, const char *golden)
{
    if (served->job.train.dtype == DTYPE_F16) {
        compare_logits_within(served, golden, 0x1p-9);
        served->job.train.dtype = DTYPE_F32;
    }
    compare_logits_within(served, golden, TOLERANCE);
}

static void logits_are_those_of_transformers(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        char golden[128];
        struct served served;
        struct err err;

        snprintf(golden, sizeof golden, GOLDEN "%s", models[i]);
        if (served_open(&served, golden, &err) < 0)
            fail_msg("%s", err.text);
        compare_logits(&served, golden);
        served_close(&served);
    }
}

static void same_file(struct arena *arena, const char *a, const char *b, const char *name)
{
    char *x = NULL, *y = NULL;
    size_t n = 0, m = 0;
    struct err err;

    if (file_read(arena_printf(arena, "%s/%s", a, name), 1 << 20, ERR_DATA, &x, &n, &err) < 0 ||
        file_read(arena_printf(arena, "%s/%s", b, name), 1 << 20, ERR_DATA, &y, &m, &err) < 0)
        fail_msg("%s", err.text);
    if (n != m || memcmp(x, y, n) != 0)
        fail_msg("%s differs between %s and %s", name, b, a);
    free(x);
    free(y);
}

/*
 * All but the golden logits, which do not belong to a model, and shards, whose tensors are in
 * another order in ours.
 */
static void same_folder(struct arena *arena, const char *a, const char *b)
{
    DIR *dir = opendir(a);
    struct dirent *entry;

    assert_non_null(dir);
    while ((entry = readdir(dir)))
        if (*entry->d_name != '.' && strcmp(entry->d_name, "logits.safetensors") != 0 &&
            strcmp(entry->d_name, "gradients.safetensors") != 0 &&
            strncmp(entry->d_name, "model-", 6) != 0 && !str_ends_with(entry->d_name, "index.json"))
            same_file(arena, a, b, entry->d_name);
    closedir(dir);
}

static void convert_or_fail(const struct convert_options *options)
{
    struct convert_result result;
    struct err err;

    if (convert_model(options, &result, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(result.n_verified, result.n_tensors);
    assert_int_equal(result.logits, CONVERT_LOGITS_COMPARED);
}

/* Verifying compares both with the checkpoint, tensor by tensor. */
static void there_and_back(void **state)
{
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    for (int i = 0; i < N_MODELS * 4; i++) {
        int tp = 1 << i % 4 / 2, pp = 1 + i % 2;
        const char *golden = arena_printf(&arena, GOLDEN "%s", models[i / 4]);
        const char *there = path_of(&arena, "there"), *back = path_of(&arena, "back");
        struct convert_options options = { .from = golden,
                                           .to = there,
                                           .tp = tp,
                                           .pp = pp,
                                           .dtype = -1,
                                           .max_shard_bytes = 1 << 30,
                                           .piece_bytes = i % 4 < 2 ? 300 : 0,
                                           .verify = 1,
                                           .kernels = kernels };

        convert_or_fail(&options);
        options.from = there;
        options.to = back;
        if (!strcmp(models[i / 4], "qwen2"))
            options.max_shard_bytes = 4000;
        convert_or_fail(&options);
        same_folder(&arena, golden, back);
        assert_int_equal(file_remove_tree(there, &err), 0);
        assert_int_equal(file_remove_tree(back, &err), 0);
    }
    arena_release(&arena);
}

/* ---- names as published models have them ---- */

/* Every text `from` of the header of a file is `to`; n_found says how often it was there. */
static char *renamed_header(const char *path, const char *from, const char *to, char **data,
                            size_t *n_bytes, int *n_found)
{
    uint64_t length;
    struct err err;
    struct str text = { 0 };

    if (file_read(path, 1 << 20, ERR_DATA, data, n_bytes, &err) < 0)
        fail_msg("%s", err.text);
    memcpy(&length, *data, sizeof length);
    *n_found = 0;
    for (const char *at = *data + 8, *end = at + length; at < end;) {
        if ((size_t)(end - at) >= strlen(from) && !strncmp(at, from, strlen(from))) {
            str_add(&text, to);
            at += strlen(from);
            ++*n_found;
        } else {
            str_add_char(&text, *at++);
        }
    }
    while (text.length < length)
        str_add_char(&text, ' ');
    assert_int_equal(text.length, length);
    char *copy = strdup(str_text(&text));
    str_release(&text);
    return copy;
}

/* GPT-2 and BLOOM are published without "transformer.": so they come back, with the same bits. */
static void names_without_prefix(void **state)
{
    static const char *const families[] = { "gpt2", "bloom" };
    struct arena arena = { 0 };
    struct err err;

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *bare = path_of(&arena, "bare"), *there = path_of(&arena, "there");
        const char *back = path_of(&arena, "back"), *again = path_of(&arena, "again");
        const char *file = arena_printf(&arena, "%s/model.safetensors", bare);
        struct convert_options options = { .from = bare,
                                           .to = there,
                                           .tp = 1,
                                           .pp = 2,
                                           .dtype = -1,
                                           .max_shard_bytes = 1 << 30,
                                           .verify = 1,
                                           .kernels = kernels };
        int n_found, n_there;
        char *data, *other;
        size_t n_bytes;

        assert_int_equal(file_make_folder(bare, &err), 0);
        char *config = NULL;
        if (file_read(arena_printf(&arena, GOLDEN "%s/config.json", families[i]), 1 << 20, ERR_DATA,
                      &config, &n_bytes, &err) < 0 ||
            file_write(arena_printf(&arena, "%s/config.json", bare), config, n_bytes, &err) < 0)
            fail_msg("%s", err.text);
        free(config);
        char *header =
            renamed_header(arena_printf(&arena, GOLDEN "%s/model.safetensors", families[i]),
                           "\"transformer.", "\"", &data, &n_bytes, &n_found);
        assert_true(n_found > 20);
        memcpy(data + 8, header, strlen(header));
        assert_int_equal(file_write(file, data, n_bytes, &err), 0);
        free(data);
        free(header);
        convert_or_fail(&options);
        /* Also by way of a checkpoint that was made of the checkpoint. */
        options.from = there;
        options.to = again;
        options.pp = 1;
        options.as = CONVERT_CHECKPOINT;
        convert_or_fail(&options);
        options.from = again;
        options.to = back;
        options.as = CONVERT_FOLDER;
        convert_or_fail(&options);
        header = renamed_header(arena_printf(&arena, "%s/model.safetensors", back),
                                "\"transformer.", "\"", &data, &n_bytes, &n_there);
        free(data);
        free(header);
        assert_int_equal(n_there, 0);
        other = renamed_header(arena_printf(&arena, "%s/model.safetensors", back), "\"h.0.",
                               "\"h.0.", &data, &n_bytes, &n_there);
        assert_true(n_there > 8);
        free(data);
        free(other);
        const char *folders[] = { bare, there, again, back };
        for (int k = 0; k < 4; k++)
            assert_int_equal(file_remove_tree(folders[k], &err), 0);
    }
    arena_release(&arena);
}

/* ---- large models, all of zeros that take no room ---- */

/* A LLaMA of one layer whose largest tensor, embedding and head in one, is [vocab x hidden]. */
static const char *make_large(struct arena *arena, const char *name, int64_t vocab, int64_t hidden,
                              int64_t ffn)
{
    const char *path = path_of(arena, name);
    static const char *const layer[] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                         "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                         "mlp.down_proj" };
    struct safetensors_tensor tensors[11];
    struct str text = { 0 };
    struct err err;
    int n = 0;

    tensors[n++] = (struct safetensors_tensor){ .name = "model.embed_tokens.weight",
                                                .n_dims = 2,
                                                .shape = { vocab, hidden } };
    for (int i = 0; i < 7; i++)
        tensors[n++] = (struct safetensors_tensor){
            .name = arena_printf(arena, "model.layers.0.%s.weight", layer[i]),
            .n_dims = 2,
            .shape = { i == 4 || i == 5 ? ffn : hidden, i == 6 ? ffn : hidden },
        };
    for (int i = 0; i < 3; i++)
        tensors[n++] = (struct safetensors_tensor){
            .name = i == 0   ? "model.norm.weight"
                    : i == 1 ? "model.layers.0.input_layernorm.weight"
                             : "model.layers.0.post_attention_layernorm.weight",
            .n_dims = 1,
            .shape = { hidden },
        };
    uint64_t at = 0;
    str_add(&text, "{");
    for (int i = 0; i < n; i++) {
        int64_t cols = tensors[i].n_dims == 2 ? tensors[i].shape[1] : 1;
        uint64_t n_bytes = (uint64_t)(tensors[i].shape[0] * cols) * sizeof(float);

        str_printf(&text, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld", i ? "," : "",
                   tensors[i].name, (long long)tensors[i].shape[0]);
        if (tensors[i].n_dims == 2)
            str_printf(&text, ",%lld", (long long)cols);
        str_printf(&text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                   (unsigned long long)(at + n_bytes));
        at += n_bytes;
    }
    str_add(&text, "}");
    uint64_t header = text.length;
    const char *file = arena_printf(arena, "%s/model.safetensors", path);
    assert_int_equal(file_make_folders(path, &err), 0);
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(&header, 8, 1, out), 1);
    assert_int_equal(fwrite(text.data, 1, text.length, out), text.length);
    fclose(out);
    int fits = truncate(file, (off_t)(8 + header + at)) == 0;
    str_clear(&text);
    str_printf(
        &text,
        "{\"model_type\": \"llama\", \"vocab_size\": %lld, \"hidden_size\": %lld, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": %lld, \"intermediate_size\": %lld, "
        "\"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}",
        (long long)vocab, (long long)hidden, (long long)(hidden / 64), (long long)ffn);
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

/* The largest tensor is 96 MiB: there and back must do with less. */
static void a_large_tensor_is_never_in_memory(void **state)
{
    struct arena arena = { 0 };
    const int64_t largest = (int64_t)96 << 20;
    const char *large = make_large(&arena, "large", 24576, 1024, 64);
    struct convert_options options = { .dtype = -1, .max_shard_bytes = (int64_t)1 << 40 };
    struct convert_result result;
    struct err err;

    (void)state;
    assert_non_null(large);
    int64_t before = peak_bytes();
    for (int tp = 1; tp <= 2; tp++) {
        options.from = large;
        options.to = path_of(&arena, "large-there");
        options.tp = tp;
        options.pp = 1;
        if (convert_model(&options, &result, &err) < 0)
            fail_msg("%s", err.text);
        options.from = options.to;
        options.to = path_of(&arena, "large-back");
        options.dtype = tp == 1 ? DTYPE_BF16 : -1;
        if (convert_model(&options, &result, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(file_remove_tree(options.from, &err), 0);
        assert_int_equal(file_remove_tree(options.to, &err), 0);
        options.dtype = -1;
    }
    if (WATCHES_MEMORY && peak_bytes() - before > largest * 3 / 4)
        fail_msg("%lld MiB for a tensor of 96", (long long)(peak_bytes() - before) >> 20);
    assert_int_equal(file_remove_tree(large, &err), 0);
    arena_release(&arena);
}

/* Nothing is written where there is no room for all of it. */
static void room_is_looked_for_before(void **state)
{
    struct arena arena = { 0 };
    const char *vast = make_large(&arena, "vast", 16777216, 65536, 64);
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

/* The table of names knows the same tensors as the model that is computed. */
static void tables_are_those_of_the_model(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        struct arena arena = { 0 };
        struct mesh alone = mesh_data_parallel(1);
        struct model_chunk whole;
        const char *family;
        struct program program;
        struct hf_names names;
        struct err err;
        struct job job;

        if (job_read_folder(&job, arena_printf(&arena, GOLDEN "%s", models[i]), NULL, 0, &arena,
                            &err) < 0 ||
            !(family =
                  hf_config_family(arena_printf(&arena, GOLDEN "%s", models[i]), &arena, &err)) ||
            hf_names_build(&names, family, &job.model, &arena, &err) < 0)
            fail_msg("%s", err.text);
        program_init(&program, &alone);
        struct model_builder builder = { .program = &program,
                                         .spec = &job.model,
                                         .n_sequences = 1,
                                         .seq_len = 1,
                                         .max_positions = 1 };
        whole = model_whole(&job.model);
        model_declare(&builder, &whole, 1);
        assert_int_equal(names.n_wholes, program.n_parameters);
        int64_t n = 0;
        for (int k = 0; k < program.n_parameters; k++) {
            const struct parameter *p = &program.parameters[k];
            const struct hf_whole *w = hf_names_find(&names, p->name);
            int64_t n_rows = 0;

            assert_non_null(w);
            assert_int_equal(w->whole.n_dims, p->n_dims);
            assert_int_equal(w->whole.rows, p->n_dims == 1 ? p->cols : p->rows);
            assert_int_equal(w->whole.cols, p->n_dims == 1 ? 1 : p->cols);
            for (int t = 0; t < w->n; t++)
                for (int q = 0; q < names.tensors[w->first + t].n_pieces; q++)
                    n_rows += names.tensors[w->first + t].pieces[q].n;
            assert_int_equal(n_rows, w->whole.rows);
            n += w->whole.rows * w->whole.cols;
        }
        assert_int_equal(n, model_spec_n_parameters(&job.model));
        program_release(&program);
        arena_release(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_those_of_the_model),
        cmocka_unit_test(logits_are_those_of_transformers),
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(names_without_prefix),
        cmocka_unit_test(a_large_tensor_is_never_in_memory),
        cmocka_unit_test(room_is_looked_for_before),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
