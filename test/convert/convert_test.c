/*
 * convert_test.c - the folders in golden/, of every family: transformers' logits; there and
 * back
 *
 * scripts/golden/convert.py and moe.py made them.
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
    "llama",       "qwen2",     "mistral", "internlm2", "baichuan", "gpt2",  "qwen3",    "bloom",
    "baichuan13b", "baichuan2", "mixtral", "qwen3moe",  "qwen2moe", "dots1", "deepseek",
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

static enum dtype stored_dtype(const char *checkpoint, const char *name)
{
    struct store *store;
    struct err err;

    if (store_open(&store, checkpoint, &err) < 0)
        fail_msg("%s", err.text);
    const struct store_slice *slice = store_find(store, name);
    assert_non_null(slice);
    enum dtype dtype = slice->dtype;
    store_close(store);
    return dtype;
}

/* In whatever type the model is asked for. That the folder has it in fp32 does not make the rest
 * be of fp32. */
static void a_balance_bias_stays_of_fp32(void **state)
{
    static const char bias[] = "layers.1.router.bias", matrix[] = "layers.1.router.weight";
    struct arena arena = { 0 };
    const char *there = path_of(&arena, "there"), *back = path_of(&arena, "back");
    const char *again = path_of(&arena, "again");
    struct convert_options options = { .from = GOLDEN "dots1",
                                       .to = there,
                                       .tp = 2,
                                       .pp = 1,
                                       .dtype = DTYPE_BF16,
                                       .max_shard_bytes = 1 << 30,
                                       .verify = 1,
                                       .kernels = kernels };
    struct err err;

    (void)state;
    convert_or_fail(&options);
    assert_int_equal(stored_dtype(there, bias), DTYPE_F32);
    assert_int_equal(stored_dtype(there, matrix), DTYPE_BF16);
    options.from = there;
    options.to = back;
    options.dtype = DTYPE_F16;
    convert_or_fail(&options);
    options.from = back;
    options.to = again;
    options.dtype = -1;
    convert_or_fail(&options);
    assert_int_equal(stored_dtype(again, bias), DTYPE_F32);
    assert_int_equal(stored_dtype(again, matrix), DTYPE_F16);
    struct served served;
    if (served_open(&served, back, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(served.job.train.dtype, DTYPE_F16);
    served_close(&served);
    const char *const folders[] = { there, back, again };
    for (int i = 0; i < 3; i++)
        assert_int_equal(file_remove_tree(folders[i], &err), 0);
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
        cmocka_unit_test(a_balance_bias_stays_of_fp32),
        cmocka_unit_test(names_without_prefix),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
