/*
 * adapter_fuzz.c - any adapter_config.json and any header as an adapter of peft's
 *
 * The input is parts, each behind a line "%%". The first says of which family the tiny model is: 'g'
 * for GPT-2, else LLaMA. The second is the config, the third the header of the tensors' file, whose
 * data are as long as the header's last number says. What is opened must be read to its end.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/adapter.h"
#include "config/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { DATA_MAX = 4096 };

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

/* A tensor of ours of that shape, as it becomes with the adapter. */
static void read_one(struct adapter *opened, struct store_slice slice, int is_own)
{
    static float data[4096];
    struct err err = { 0 };

    CHECK((size_t)(slice.rows * slice.cols) * sizeof(float) <= sizeof data);
    memset(data, 0, sizeof data);
    slice.dtype = DTYPE_F32;
    slice.data = data;
    slice.row_end = slice.rows;
    slice.col_end = slice.cols;
    if (adapter_has(opened, slice.name))
        CHECK(adapter_overlay(opened, &slice, &err) == 0);
    if (!is_own && adapter_changes(opened, slice.name))
        CHECK(adapter_add(opened, &slice, &err) == 0);
    /* And a part of it. */
    slice.col_end -= slice.cols > 1;
    slice.row_begin += slice.rows > 1;
    if (adapter_has(opened, slice.name))
        CHECK(adapter_overlay(opened, &slice, &err) == 0);
}

static void read_all(struct adapter *opened, const struct hf_names *names)
{
    const struct tuning *tuning = adapter_tuning(opened);
    char name[96];

    for (int i = 0; i < names->n_wholes; i++)
        read_one(opened, names->wholes[i].whole, 0);
    for (int m = 0; m < N_LORA_MODULES; m++) {
        struct lora_place place = tuning_place(tuning, 0, (enum lora_module)m);

        CHECK(place.rank >= 0 && (!place.rank || place.scale > 0));
        if (!place.rank || place.rank > 16)
            continue;
        snprintf(name, sizeof name, "layers.0.%s.lora_a", lora_module_name((enum lora_module)m));
        int64_t cols = m == LORA_DOWN ? names->wholes[0].whole.cols : 2;
        struct err ignored;
        float data[64];
        struct store_slice slice = { .name = name,
                                     .dtype = DTYPE_F32,
                                     .n_dims = 2,
                                     .rows = place.rank,
                                     .cols = cols,
                                     .row_end = place.rank,
                                     .col_end = cols,
                                     .data = data };

        CHECK((size_t)(place.rank * cols) * sizeof *data <= sizeof data);
        if (adapter_overlay(opened, &slice, &ignored) < 0)
            CHECK(ignored.code == ERR_DATA);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static struct hf_names names[2];
    const char *at = (const char *)data, *end = at + n_bytes, *part;
    int is_gpt2 = n_bytes && *data == 'g';
    struct adapter *opened;
    struct err err = { 0 };
    size_t n = 0;

    if (!*folder) {
        prepare();
        for (int i = 0; i < 2; i++)
            CHECK(hf_names_build(&names[i], i ? "gpt2" : "llama", &jobs[i].model, &forever, &err) ==
                  0);
    }
    write_plain("adapter_config.json", "", 0, "", 0);
    write_plain("adapter_model.safetensors", "", 0, "", 0);
    for (int i = 0; i < 3 && (part = next_part(&at, end, &n)); i++) {
        if (i == 1)
            write_plain("adapter_config.json", part, n, "", 0);
        if (i == 2)
            write_shard("adapter_model.safetensors", part, n);
    }
    if (adapter_open(&opened, folder, is_gpt2 ? "gpt2" : "llama", &jobs[is_gpt2].model, &err) ==
        0) {
        /* Tables that grew are not of the shapes here. */
        if (adapter_vocab_size(opened) == jobs[is_gpt2].model.vocab_size)
            read_all(opened, &names[is_gpt2]);
        adapter_close(opened);
    } else {
        CHECK(err.code == ERR_DATA);
    }
    return 0;
}
