/*
 * hf_folder_fuzz.c - any index and any headers as the weights of a Hugging Face folder
 *
 * The input is parts, each behind a line "%%". The first says of which family the tiny model is:
 * 'g' for GPT-2, else LLaMA. The second is the index; if it is empty there is none. Each other one
 * is the header of a file, a.safetensors, b.safetensors, ... (model.safetensors where there is no
 * index), whose data are as long as the header's last number says. What is opened must be read to
 * its end.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/hf_folder.h"
#include "tiny_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { N_FILES_MAX = 4 };

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
