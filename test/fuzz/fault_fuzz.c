/*
 * fault_fuzz.c - rules of LMTRAIN_FAULT
 *
 * They are read and never carried out: what is not a rule is refused by name.
 */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/fault.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct arena arena = { 0 };
    struct err err = { 0 };

    setenv("LMTRAIN_FAULT", arena_strndup(&arena, (const char *)data, n_bytes), 1);
    if (fault_init(0, 0, &err) < 0) {
        CHECK(err.code == ERR_CONFIG);
        CHECK(strstr(err.text, "LMTRAIN_FAULT"));
    } else {
        /* Of no place that exists, so nothing may fire. */
        CHECK(fault_at("nowhere", 1) == FAULT_NONE);
    }
    arena_release(&arena);
    return 0;
}
