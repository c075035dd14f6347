/*
 * safetensors_fuzz.c - headers of safetensors files
 *
 * The input is a whole file. Whatever is taken must keep the reader's promises: names unlike,
 * tensors that tile the data.
 */
#include <stdint.h>
#include <string.h>

#include "ckpt/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_index(const struct safetensors_index *index, uint64_t data_bytes)
{
    uint64_t total = 0;

    for (int i = 0; i < index->n_tensors; i++) {
        const struct safetensors_tensor *tensor = &index->tensors[i];
        uint64_t n = safetensors_type_bytes(tensor->type);

        for (int dim = 0; dim < tensor->n_dims; dim++)
            n *= (uint64_t)tensor->shape[dim];
        CHECK(tensor->begin <= tensor->end);
        CHECK(tensor->end <= data_bytes);
        CHECK(tensor->end - tensor->begin == n);
        CHECK(i == 0 || strcmp(tensor[-1].name, tensor->name) < 0);
        CHECK(safetensors_find(index, tensor->name) == tensor);
        total += n;
    }
    CHECK(total == data_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct safetensors_index index;
    struct arena arena = { 0 };
    struct err err = { 0 };
    uint64_t length = 0;

    if (n_bytes < 8)
        return 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | data[i];
    /* A length that lies is refused before the header is looked at; here the header gets its turn.
     */
    if (length > n_bytes - 8)
        length = n_bytes - 8;
    if (safetensors_parse(&index, "fuzz", (const char *)data + 8, (size_t)length,
                          n_bytes - 8 - length, &arena, &err) == 0)
        check_index(&index, n_bytes - 8 - length);
    else
        CHECK(err.code == ERR_DATA);
    arena_release(&arena);
    return 0;
}
