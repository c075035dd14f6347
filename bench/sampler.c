/*
 * sampler.c - how long a run over a large token file takes to its first micro-batch
 *
 * build/bench/sampler make PREFIX TOKENS DOCUMENT_TOKENS: PREFIX.bin of zeros (u16, a sparse file)
 * and PREFIX.idx in full, of documents of DOCUMENT_TOKENS.
 *
 * build/bench/sampler open STEP GLOBAL_BATCH SEQ_LEN PREFIX[=WEIGHT]...: opens the loader of a run
 * that begins at STEP, and takes its first micro-batch. Prints seconds, and the process's largest
 * resident memory.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/str.h"
#include "data/stream/loader.h"

#define DATASETS_MAX 64

static FILE *create(const char *prefix, const char *suffix)
{
    struct str path = { 0 };

    str_printf(&path, "%s%s", prefix, suffix);
    FILE *file = fopen(str_text(&path), "wbe");
    if (!file) {
        perror(str_text(&path));
        exit(1);
    }
    str_release(&path);
    return file;
}

static void put(FILE *file, const void *value, size_t n_bytes)
{
    if (fwrite(value, n_bytes, 1, file) != 1) {
        perror("sampler");
        exit(1);
    }
}

static void put_i64(FILE *file, int64_t value)
{
    put(file, &value, sizeof value);
}

static int make(const char *prefix, int64_t n_tokens, int64_t document)
{
    int64_t n = ceil_div(n_tokens, document);
    FILE *bin = create(prefix, ".bin"), *idx = create(prefix, ".idx");

    if (ftruncate(fileno(bin), (off_t)(2 * n_tokens)) != 0) {
        perror("ftruncate");
        return 1;
    }
    put(idx, "MMIDIDX\0", 9);
    put_i64(idx, 1);
    fputc(8, idx);
    put_i64(idx, n);
    put_i64(idx, n + 1);
    for (int64_t i = 0; i < n; i++) {
        int32_t length = (int32_t)min_i64(document, n_tokens - i * document);

        put(idx, &length, sizeof length);
    }
    for (int64_t i = 0; i < n; i++)
        put_i64(idx, 2 * i * document);
    for (int64_t i = 0; i <= n; i++)
        put_i64(idx, i);
    return fclose(bin) != 0 || fclose(idx) != 0;
}

static int64_t number(const char *text)
{
    int64_t value = 0;

    if (str_to_i64(text, &value) < 0) {
        fprintf(stderr, "sampler: %s is not a whole number\n", text);
        exit(2);
    }
    return value;
}

static int open_at(char **argv, int n_prefixes)
{
    struct loader_dataset datasets[DATASETS_MAX];
    struct loader_options options = { .datasets = datasets,
                                      .n_datasets = n_prefixes,
                                      .vocab_size = 50000,
                                      .seq_len = (int)number(argv[2]),
                                      .global_batch = (int)number(argv[1]),
                                      .micro_batch = 1,
                                      .dp_size = 1,
                                      .split = 0.001,
                                      .seed = 1,
                                      .first_step = number(argv[0]),
                                      .n_steps = number(argv[0]) + 1 };
    struct loader *loader;
    struct micro_batch batch;
    struct rusage usage;
    struct err err = { 0 };

    for (int i = 0; i < n_prefixes; i++) {
        char *weight = strchr(argv[3 + i], '=');

        datasets[i] = (struct loader_dataset){ argv[3 + i], 1 };
        if (weight && str_to_f64(weight + 1, &datasets[i].weight) < 0)
            return 2;
        if (weight)
            *weight = '\0';
    }
    double start = clock_seconds();
    if (loader_open(&loader, &options, &err) < 0 || loader_next(loader, &batch, &err) < 0) {
        fprintf(stderr, "sampler: %s\n", err.text);
        return 1;
    }
    double seconds = clock_seconds() - start;
    getrusage(RUSAGE_SELF, &usage);
    printf("%.3f s to the first micro-batch of step %lld; %lld sequences in an epoch; %ld MiB "
           "resident\n",
           seconds, (long long)options.first_step, (long long)loader_n_samples(loader),
           usage.ru_maxrss / 1024);
    loader_close(loader);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "make"))
        return make(argv[2], number(argv[3]), number(argv[4]));
    if (argc >= 6 && argc <= 5 + DATASETS_MAX && !strcmp(argv[1], "open"))
        return open_at(argv + 2, argc - 5);
    fprintf(stderr, "usage: sampler make PREFIX TOKENS DOCUMENT_TOKENS\n"
                    "       sampler open STEP GLOBAL_BATCH SEQ_LEN PREFIX[=WEIGHT]...\n");
    return 2;
}
