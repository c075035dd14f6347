/*
 * convert_test.c - the folders in golden/, of every family: transformers' logits; there and back
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
    "llama", "qwen2", "mistral", "internlm2",   "baichuan",
    "gpt2",  "qwen3", "bloom",   "baichuan13b", "baichuan2",
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

static void compare_logits(struct served *served, const char *golden)
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
    if (!(off <= TOLERANCE * largest))
        fail_msg("%s: logits are off by %g of %g", served->folder, off, largest);
    decoder_destroy(decoder);
    safetensors_close(file);
    arena_release(&arena);
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
        fail_msg("%s is another one in %s than in %s", name, b, a);
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
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
