/*
 * tokenizer.c - how fast text becomes ids, on one core
 *
 *     build/bench/tokenizer TOKENIZER FILE...
 *
 * Each file is encoded in pieces of 64 kB, cut at lines, first with an empty cache (cold), then
 * twice more (warm is the best of them). Speeds are in MB of text a second of this thread's own CPU
 * time, so that what else runs does not count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "tokenizer/tokenizer.h"

#define PIECE_BYTES 65536

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Up to the last line that ends in the first 64 kB; all of it if there is none. */
static size_t piece_length(const char *text, size_t n_bytes)
{
    if (n_bytes <= PIECE_BYTES)
        return n_bytes;
    const char *end = memrchr(text, '\n', PIECE_BYTES);
    if (!end)
        end = memchr(text, '\n', n_bytes);
    return end ? (size_t)(end - text) + 1 : n_bytes;
}

static int encode(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                  const char *text, size_t n_bytes, int64_t *n_tokens, struct err *err)
{
    struct token_list ids = { 0 };
    int rc = 0;

    *n_tokens = 0;
    for (size_t at = 0, n; at < n_bytes && rc == 0; at += n) {
        n = piece_length(text + at, n_bytes - at);
        ids.n = 0;
        rc = tokenizer_encode_cached(tokenizer, cache, text + at, n, &ids, err);
        *n_tokens += ids.n;
    }
    token_list_release(&ids);
    return rc;
}

static int measure(const struct tokenizer *tokenizer, const char *path, struct err *err)
{
    struct tokenizer_cache *cache = tokenizer_cache_create();
    double cold = 0, warm = 0;
    size_t n_bytes;
    int64_t n_tokens;
    char *text;
    int rc = file_read(path, (size_t)1 << 32, ERR_DATA, &text, &n_bytes, err);

    for (int i = 0; i < 3 && rc == 0; i++) {
        double start = cpu_seconds();

        rc = encode(tokenizer, cache, text, n_bytes, &n_tokens, err);
        double speed = (double)n_bytes / (cpu_seconds() - start) * 1e-6;
        cold = i == 0 ? speed : cold;
        warm = i > 0 && speed > warm ? speed : warm;
    }
    if (rc == 0)
        printf("%-40s %8.1f MB %9lld tokens  cold %6.1f MB/s  warm %6.1f MB/s\n", path,
               (double)n_bytes * 1e-6, (long long)n_tokens, cold, warm);
    free(rc == 0 ? text : NULL);
    tokenizer_cache_destroy(cache);
    return rc;
}

int main(int argc, char **argv)
{
    struct tokenizer *tokenizer;
    struct err err = { 0 };

    if (argc < 3) {
        fputs("usage: tokenizer TOKENIZER FILE...\n", stderr);
        return 2;
    }
    int rc = tokenizer_open(&tokenizer, argv[1], &err);
    for (int i = 2; i < argc && rc == 0; i++)
        rc = measure(tokenizer, argv[i], &err);
    if (rc < 0)
        fprintf(stderr, "tokenizer: %s\n", err.text);
    else
        tokenizer_close(tokenizer);
    return rc < 0;
}
