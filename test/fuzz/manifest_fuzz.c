/*
 * manifest_fuzz.c - manifests of checkpoints
 *
 * What is taken must print and read back; what is complete must have slices inside their tensors
 * whose sizes add up.
 */
#include <stdint.h>
#include <string.h>

#include "ckpt/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_complete(const struct manifest *manifest)
{
    for (int i = 0; i < manifest->n_tensors; i++) {
        const struct manifest_tensor *tensor = &manifest->tensors[i];
        int64_t n = 0;

        for (int j = 0; j < tensor->n_slices; j++) {
            const struct manifest_slice *slice = &tensor->slices[j];

            CHECK(slice->file < manifest->n_files);
            CHECK(0 <= slice->row_begin && slice->row_end <= tensor->whole.rows);
            CHECK(0 <= slice->col_begin && slice->col_end <= tensor->whole.cols);
            n += (slice->row_end - slice->row_begin) * (slice->col_end - slice->col_begin);
        }
        CHECK(n == tensor->whole.rows * tensor->whole.cols);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct manifest manifest, again;
    struct arena arena = { 0 };
    struct str text = { 0 };
    struct err err = { 0 };

    if (manifest_parse_body(&manifest, "fuzz", (const char *)data, n_bytes, &arena, &err) < 0) {
        CHECK(err.code == ERR_DATA);
        arena_release(&arena);
        return 0;
    }
    for (int i = 0; i < manifest.n_files; i++)
        CHECK(manifest_is_file_name(manifest.files[i].name));
    if (manifest_check_complete(&manifest, "fuzz", &err) == 0)
        check_complete(&manifest);
    manifest_print(&manifest, &text);
    CHECK(manifest_parse(&again, "fuzz", text.data, text.length, &arena, &err) == 0);
    CHECK(again.n_tensors == manifest.n_tensors);
    str_release(&text);
    arena_release(&arena);
    return 0;
}
