/*
 * parquet.c - how fast a column of texts is read
 *
 * build/bench/parquet FILE COLUMN: every text is touched (its bytes are hashed), as whoever uses it
 * would. Prints texts, bytes and MB/s of text by the fastest of five passes, in time of the CPU:
 * others may run beside it.
 */
#include <stdio.h>
#include <time.h>
#include <xxhash.h>

#include "base/file.h"
#include "data/parquet/parquet.h"

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int read_all(const struct file_map *map, const char *path, const char *column, int64_t *n,
                    uint64_t *n_bytes, struct err *err)
{
    struct parquet *parquet;
    const char *text;
    size_t length;
    XXH64_hash_t hash = 0;
    int rc;

    if (parquet_open(&parquet, map->data, map->n_bytes, path, err) < 0)
        return -1;
    rc = parquet_select_text(parquet, column, err);
    *n = 0;
    *n_bytes = 0;
    while (rc == 0 && (rc = parquet_next_text(parquet, &text, &length, err)) > 0) {
        hash ^= XXH3_64bits(text, length);
        ++*n;
        *n_bytes += length;
        rc = 0;
    }
    parquet_close(parquet);
    *n_bytes += hash == 1; /* so that it is computed */
    return rc < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct file_map map;
    struct err err;
    int64_t n = 0;
    uint64_t n_bytes = 0;
    double best = 1e30;

    if (argc != 3) {
        fprintf(stderr, "usage: parquet FILE COLUMN\n");
        return 2;
    }
    if (file_map_open(&map, argv[1], &err) < 0)
        goto fail;
    for (int pass = 0; pass < 5; pass++) {
        double start = cpu_seconds();

        if (read_all(&map, argv[1], argv[2], &n, &n_bytes, &err) < 0)
            goto fail;
        double seconds = cpu_seconds() - start;
        best = seconds < best ? seconds : best;
    }
    printf("%lld texts, %llu bytes, %.0f MB/s\n", (long long)n, (unsigned long long)n_bytes,
           (double)n_bytes / best * 1e-6);
    file_map_close(&map);
    return 0;
fail:
    fprintf(stderr, "parquet: %s\n", err.text);
    return 1;
}
