/*
 * driver.c - runs a fuzz target without libFuzzer, so that `make test` needs no clang
 *
 *     X_fuzz [--runs N] [--seconds N] [--seed N] [FILE|FOLDER...]
 *
 * Feeds the target every file named and every file of every folder named (by default the target's
 * own corpus, test/fuzz/corpus/X), then N inputs made from those by changing, inserting, cutting
 * and doubling bytes, and a few of pure noise; no new one is started after so many seconds (4). The
 * same seed makes the same inputs. A target fails by crashing; the input that did it is then in
 * build/fuzz-last/X.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { INPUT_BYTES_MAX = 1 << 16, N_SEEDS_MAX = 4096 };

struct input {
    uint8_t *data;
    size_t n_bytes;
};

struct driver {
    const char *name;
    char last_path[512];
    struct input seeds[N_SEEDS_MAX];
    int n_seeds;
    uint64_t random;
};

/* xorshift64*: good enough to pick bytes, and the same everywhere. */
static uint64_t random_next(struct driver *driver)
{
    driver->random ^= driver->random >> 12;
    driver->random ^= driver->random << 25;
    driver->random ^= driver->random >> 27;
    return driver->random * 0x2545F4914F6CDD1Dull;
}

static size_t random_below(struct driver *driver, size_t n)
{
    return n == 0 ? 0 : (size_t)(random_next(driver) % n);
}

static void add_seed(struct driver *driver, const char *path)
{
    struct err err = { 0 };
    struct input *input = &driver->seeds[driver->n_seeds];
    char *data = NULL;
    if (driver->n_seeds == N_SEEDS_MAX)
        return;
    if (file_read(path, 1u << 26, ERR_DATA, &data, &input->n_bytes, &err) != 0) {
        fprintf(stderr, "%s: %s\n", driver->name, err.text);
        exit(2);
    }
    input->data = (uint8_t *)data;
    driver->n_seeds++;
}

static void add_seeds(struct driver *driver, const char *path)
{
    if (!file_is_folder(path)) {
        add_seed(driver, path);
        return;
    }
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        struct str file = { 0 };
        str_printf(&file, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && !file_is_folder(str_text(&file)))
            add_seed(driver, str_text(&file));
        str_release(&file);
        free(entries[i]);
    }
    free(entries);
}

/* The input is on disk before the target sees it: a crash must leave it behind. */
static void run(struct driver *driver, const uint8_t *data, size_t n_bytes)
{
    FILE *file = fopen(driver->last_path, "wb");
    if (file != NULL) {
        fwrite(data, 1, n_bytes, file);
        fclose(file);
    }
    /* A copy of exactly this size, so that a sanitizer sees the first byte read behind the end. */
    uint8_t *copy = malloc(n_bytes == 0 ? 1 : n_bytes);
    CHECK(copy != NULL);
    if (n_bytes > 0)
        memcpy(copy, data, n_bytes);
    LLVMFuzzerTestOneInput(copy, n_bytes);
    free(copy);
}

/* Change buffer in one way; returns its new length. */
static size_t mutate(struct driver *driver, uint8_t *buffer, size_t n)
{
    static const uint8_t edges[] = {
        0, 1, 0x7f, 0x80, 0xff, '"', '{', '[', ':', ',', '\n', ' ', '-'
    };
    size_t at = random_below(driver, n), length;
    switch (random_below(driver, 6)) {
    case 0: /* one bit */
        if (n > 0)
            buffer[at] ^= (uint8_t)(1u << random_below(driver, 8));
        return n;
    case 1: /* one byte at an edge of its range or of a syntax */
        if (n > 0)
            buffer[at] = edges[random_below(driver, sizeof edges)];
        return n;
    case 2: /* cut the end */
        return at;
    case 3: /* take a piece out */
        length = random_below(driver, n - at);
        memmove(buffer + at, buffer + at + length, n - at - length);
        return n - length;
    case 4: /* a piece twice */
        length = random_below(driver, n - at);
        if (n + length > INPUT_BYTES_MAX)
            return n;
        memmove(buffer + at + length, buffer + at, n - at);
        return n + length;
    default: /* a number of up to 8 bytes */
        length = random_below(driver, 9);
        for (size_t i = 0; i < length && at + i < n; i++)
            buffer[at + i] = (uint8_t)random_next(driver);
        return n;
    }
}

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Returns how many were run. */
static int64_t run_mutants(struct driver *driver, int64_t n_runs, int64_t n_seconds)
{
    uint8_t *buffer = malloc(INPUT_BYTES_MAX);
    CHECK(buffer != NULL);
    double end = now_seconds() + (double)n_seconds;
    int64_t i;
    for (i = 0; i < n_runs && now_seconds() < end; i++) {
        size_t n = 0;
        if (driver->n_seeds == 0 || random_below(driver, 16) == 0) {
            n = random_below(driver, 512);
            for (size_t k = 0; k < n; k++)
                buffer[k] = (uint8_t)random_next(driver);
        } else {
            const struct input *seed =
                &driver->seeds[random_below(driver, (size_t)driver->n_seeds)];
            n = seed->n_bytes < INPUT_BYTES_MAX ? seed->n_bytes : INPUT_BYTES_MAX;
            if (n > 0)
                memcpy(buffer, seed->data, n);
            for (size_t k = 1 + random_below(driver, 4); k > 0; k--)
                n = mutate(driver, buffer, n);
        }
        run(driver, buffer, n);
    }
    free(buffer);
    return i;
}

static int64_t number(const char *text)
{
    int64_t n;
    if (text == NULL || str_to_i64(text, &n) != 0 || n < 0) {
        fprintf(stderr, "usage: X_fuzz [--runs N] [--seconds N] [--seed N] [FILE|FOLDER...]\n");
        exit(2);
    }
    return n;
}

int main(int argc, char **argv)
{
    static struct driver driver = { .random = 1 };
    struct err err = { 0 };
    struct str corpus = { 0 };
    int64_t n_runs = 20000, n_seconds = 4;
    int n_named = 0;

    const char *slash = strrchr(argv[0], '/');
    driver.name = slash == NULL ? argv[0] : slash + 1;
    CHECK(str_ends_with(driver.name, "_fuzz"));
    if (file_make_folders("build/fuzz-last", &err) != 0) {
        fprintf(stderr, "%s: %s\n", driver.name, err.text);
        return 2;
    }
    snprintf(driver.last_path, sizeof driver.last_path, "build/fuzz-last/%s", driver.name);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--runs") == 0) {
            n_runs = number(argv[++i]);
        } else if (strcmp(argv[i], "--seconds") == 0) {
            n_seconds = number(argv[++i]);
        } else if (strcmp(argv[i], "--seed") == 0) {
            driver.random = (uint64_t)number(argv[++i]) * 2 + 1;
        } else {
            add_seeds(&driver, argv[i]);
            n_named++;
        }
    }
    str_printf(&corpus, "test/fuzz/corpus/%.*s", (int)(strlen(driver.name) - strlen("_fuzz")),
               driver.name);
    if (n_named == 0 && file_is_folder(str_text(&corpus)))
        add_seeds(&driver, str_text(&corpus));

    for (int i = 0; i < driver.n_seeds; i++)
        run(&driver, driver.seeds[i].data, driver.seeds[i].n_bytes);
    n_runs = run_mutants(&driver, n_runs, n_seconds);

    printf("ok %s: %d files, %lld made from them\n", driver.name, driver.n_seeds,
           (long long)n_runs);
    for (int i = 0; i < driver.n_seeds; i++)
        free(driver.seeds[i].data);
    str_release(&corpus);
    return 0;
}
