/*
 * hf_folder_fuzz.c - any index and any headers as the weights of a Hugging Face folder
 *
 * The input is parts, each behind a line "%%". The first says of which family the tiny model is: 'g'
 * for GPT-2, else LLaMA. The second is the index; if it is empty there is none. Each other one is the
 * header of a file, a.safetensors, b.safetensors, ... (model.safetensors where there is no index),
 * whose data are as long as the header's last number says. What is opened must be read to its end.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/hf_folder.h"
#include "config/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { N_FILES_MAX = 4, DATA_MAX = 4096 };

static char folder[256];
static struct arena forever;
static struct job jobs[2]; /* LLaMA, GPT-2 */

static void clear(void)
{
    struct err ignored;

    file_remove_tree(folder, &ignored);
}

static void prepare(void)
{
    static const char *const texts[2] = {
        "model: {vocab_size: 3, hidden_size: 2, n_layers: 1, n_heads: 1, ffn_size: 2, "
        "max_seq_len: 2, tied_embeddings: true}\n",
        "model: {vocab_size: 3, hidden_size: 2, n_layers: 1, n_heads: 1, ffn_size: 4, "
        "max_seq_len: 2, tied_embeddings: true, norm: layernorm, position: learned, activation: "
        "gelu, "
        "bias: true}\n",
    };
    struct err err;

    for (int i = 0; i < 2; i++)
        if (job_read_model(&jobs[i], texts[i], strlen(texts[i]), "fuzz.yaml", NULL, 0, &forever,
                           &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            abort();
        }
    snprintf(folder, sizeof folder, "%s/lmtrain-fuzz-XXXXXX",
             file_is_folder("/dev/shm") ? "/dev/shm" : "/tmp");
    CHECK(mkdtemp(folder));
    atexit(clear);
}

static void write_plain(const char *name, const void *data, size_t n_bytes, const void *more,
                        size_t n_more)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file);
    CHECK(fwrite(data, 1, n_bytes, file) == n_bytes);
    CHECK(fwrite(more, 1, n_more, file) == n_more);
    CHECK(fclose(file) == 0);
}

/* The last number of a text, kept small. */
static size_t last_number(const char *text, size_t n_bytes)
{
    size_t end = n_bytes, n = 0;

    while (end > 0 && (text[end - 1] < '0' || text[end - 1] > '9'))
        end--;
    size_t begin = end;
    while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9')
        begin--;
    for (size_t i = begin; i < end; i++)
        n = (n * 10 + (size_t)(text[i] - '0')) % (DATA_MAX + 1);
    return n;
}

static void write_shard(const char *name, const char *header, size_t n_bytes)
{
    static unsigned char whole[DATA_MAX];
    unsigned char *start = malloc(8 + n_bytes);

    CHECK(start);
    for (int i = 0; i < 8; i++)
        start[i] = (unsigned char)((uint64_t)n_bytes >> (8 * i));
    memcpy(start + 8, header, n_bytes);
    for (size_t i = 0; i < DATA_MAX; i++)
        whole[i] = (unsigned char)(i * 37);
    write_plain(name, start, 8 + n_bytes, whole, last_number(header, n_bytes));
    free(start);
}

/* The next part of the input, or NULL. */
static const char *next_part(const char **at, const char *end, size_t *n_bytes)
{
    const char *part = *at;

    if (!part)
        return NULL;
    const char *mark = memmem(part, (size_t)(end - part), "\n%%\n", 4);
    *n_bytes = (size_t)((mark ? mark : end) - part);
    *at = mark ? mark + 4 : NULL;
    return part;
}

static void read_all(struct hf_folder *opened)
{
    const struct hf_names *names = hf_folder_names(opened);
    static unsigned char data[4096];
    struct err err = { 0 };

    for (int i = 0; i < names->n_wholes; i++) {
        struct store_slice slice = names->wholes[i].whole;

        slice.data = data;
        CHECK((size_t)(slice.rows * slice.cols) * sizeof(float) <= sizeof data);
        CHECK(hf_folder_read(opened, &slice, &err) == 0);
        /* And a part of it, in another type. */
        slice.dtype = DTYPE_BF16;
        slice.col_end -= slice.cols > 1;
        slice.row_begin += slice.rows > 1;
        CHECK(hf_folder_read(opened, &slice, &err) == 0);
    }
    for (int i = 0; i < names->n_tensors; i++) {
        const struct hf_tensor *tensor = &names->tensors[i];

        CHECK(hf_folder_read_rows(opened, i, 0,
                                  tensor->transposed ? tensor->whole->cols : tensor->n_rows,
                                  DTYPE_F16, data, &err) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const char *at = (const char *)data, *end = at + n_bytes, *part;
    char name[32], path[512];
    struct hf_folder *opened;
    struct err err = { 0 };
    size_t n = 0;
    int is_gpt2 = n_bytes && *data == 'g', has_index = 0;

    if (!*folder)
        prepare();
    for (int i = 0; i < N_FILES_MAX + 2 && (part = next_part(&at, end, &n)); i++) {
        snprintf(name, sizeof name, "%c.safetensors", 'a' + i - 2);
        if (i == 1 && n) {
            has_index = 1;
            write_plain("model.safetensors.index.json", part, n, "", 0);
        }
        if (i >= 2)
            write_shard(has_index ? name : "model.safetensors", part, n);
    }
    if (hf_folder_open(&opened, folder, is_gpt2 ? "gpt2" : "llama", &jobs[is_gpt2].model, &err) ==
        0) {
        read_all(opened);
        hf_folder_close(opened);
    } else {
        CHECK(err.code == ERR_DATA);
    }
    for (int i = 0; i < N_FILES_MAX; i++) {
        snprintf(path, sizeof path, "%s/%c.safetensors", folder, 'a' + i);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    unlink(path);
    return 0;
}
