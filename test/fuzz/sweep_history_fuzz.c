/*
 * sweep_history_fuzz.c - any bytes as sweep.jsonl: refused, or read and replayed
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sweep/history.h"

#define TRIALS_MAX 64 /* that are replayed: decisions take the square of them */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void write_input(const char *path, const uint8_t *data, size_t n_bytes)
{
    FILE *file = fopen(path, "we");

    CHECK(file && fwrite(data, 1, n_bytes, file) == n_bytes);
    CHECK(fclose(file) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char path[64];
    struct arena arena = { 0 };
    struct history h;
    struct judge judge;
    struct err err = { 0 };
    int n_written;

    snprintf(path, sizeof path, "/tmp/lmtrain-sweep-fuzz.%ld", (long)getpid());
    write_input(path, data, n_bytes);
    if (history_read(&h, path, &arena, &err) < 0) {
        CHECK(err.code == ERR_DATA);
    } else {
        CHECK(h.n_bytes <= n_bytes && h.n_settings <= h.header.n_trials);
        if (h.header.n_trials && h.header.n_trials <= TRIALS_MAX) {
            if (history_replay(&h, &judge, &n_written, &arena, &err) < 0)
                CHECK(err.code == ERR_DATA);
            else
                CHECK(n_written <= judge.n_decisions);
        }
    }
    unlink(path);
    arena_release(&arena);
    return 0;
}
