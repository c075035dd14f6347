/*
 * adapter_fuzz.c - any adapter_config.json and any header as an adapter of peft's
 *
 * The input is parts, each behind a line "%%". The first says of which family the tiny model is:
 * 'g' for GPT-2, else LLaMA. The second is the config, the third the header of the tensors' file,
 * whose data are as long as the header's last number says. What is opened must be read to its end.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/adapter.h"
#include "tiny_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

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
    char name[PARAMETER_NAME_MAX];

    for (int i = 0; i < names->n_wholes; i++)
        read_one(opened, names->wholes[i].whole, 0);
    for (int m = 0; m < N_LORA_MODULES; m++) {
        struct lora_place place = tuning_place(tuning, 0, (enum lora_module)m);

        CHECK(place.rank >= 0 && (!place.rank || place.scale > 0));
        if (!place.rank || place.rank > 16)
            continue;
        lora_name(name, 0, (enum lora_module)m, LORA_A);
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
