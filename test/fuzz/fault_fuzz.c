/*
 * fault_fuzz.c - rules of LMTRAIN_FAULT
 *
 * They are read and never carried out: what is not a rule is refused by name.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static const char name[] = "LMTRAIN_FAULT";
    char *line = malloc(sizeof name + n_bytes + 1);
    struct err err = { 0 };

    CHECK(line);
    memcpy(line, name, sizeof name);
    line[sizeof name - 1] = '=';
    memcpy(line + sizeof name, data, n_bytes);
    line[sizeof name + n_bytes] = '\0';
    /* Not setenv: the C library keeps each value that it was ever given. */
    CHECK(putenv(line) == 0);
    if (fault_init(0, 0, &err) < 0) {
        CHECK(err.code == ERR_CONFIG);
        CHECK(strstr(err.text, name));
    } else {
        /* Of no place that exists, so nothing may fire. */
        CHECK(fault_at("nowhere", 1) == FAULT_NONE);
    }
    unsetenv(name);
    free(line);
    return 0;
}
