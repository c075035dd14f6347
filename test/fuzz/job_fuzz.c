/*
 * job_fuzz.c - any bytes as a job file: read, derived, printed and read again
 *
 * What is accepted must read back from its own print, and print the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct arena arena = { 0 };
    struct str first = { 0 }, second = { 0 };
    struct job job, again;
    struct err err;

    if (!job_read_text(&job, (const char *)data, n_bytes, "fuzz.yaml", NULL, 0, &arena, &err)) {
        job_print(&job, &first);
        CHECK(!job_read_text(&again, str_text(&first), first.length, "fuzz.yaml", NULL, 0, &arena,
                             &err));
        job_print(&again, &second);
        CHECK(!strcmp(str_text(&first), str_text(&second)));
        str_clear(&first);
        job_print_json(&job, &first);
        CHECK(!job_read_text(&again, str_text(&first), first.length, "fuzz.yaml", NULL, 0, &arena,
                             &err));
        CHECK(!job_derive(&again, 1, &arena, &err) || err.code == ERR_CONFIG);
    } else {
        CHECK(err.code == ERR_CONFIG);
        CHECK(err.text[0]);
    }
    /* The same bytes as an override. */
    char *text = arena_strndup(&arena, (const char *)data, n_bytes);
    const char *overrides[] = { text };
    static const char base[] = "{model: llama-tiny, data: {train: x}, train: {steps: 1}}";
    if (job_read_text(&job, base, sizeof base - 1, "fuzz.yaml", overrides, 1, &arena, &err))
        CHECK(err.code == ERR_CONFIG);
    str_release(&first);
    str_release(&second);
    arena_release(&arena);
    return 0;
}
