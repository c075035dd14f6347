/*
 * hf_config_fuzz.c - any bytes as the config.json of a Hugging Face folder
 */
#include <stdint.h>

#include "config/read_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct arena arena = { 0 };
    struct job job = { .source = "fuzz.yaml",
                       .notes = arena_array(&arena, const char *, JOB_MAX_NOTES) };
    struct job_reader reader = {
        .job = &job,
        .arena = &arena,
        .mistakes = { .arena = &arena, .source = "fuzz.yaml" },
        .given = arena_array(&arena, const struct yaml_node *, n_job_fields),
    };

    field_set_defaults(&job, &arena);
    int status = hf_config_take(&reader, "config.json", (const char *)data, n_bytes);
    CHECK((status == 0) == (reader.mistakes.n == 0));
    if (status == 0) {
        job.train.steps = job.train.global_batch = 1;
        reader_derive(&reader);
        if (reader.mistakes.n == 0)
            reader_check(&reader);
        if (reader.mistakes.n == 0)
            CHECK(model_spec_n_parameters(&job.model) > 0);
    }
    arena_release(&arena);
    return 0;
}
