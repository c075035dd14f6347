/*
 * tiny_folder.h - a folder of files that a fuzzer's input says, for two tiny models
 *
 * The input is parts, each behind a line "%%". Included by one target each.
 */
#ifndef FUZZ_TINY_FOLDER_H
#define FUZZ_TINY_FOLDER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "config/job.h"

enum { DATA_MAX = 4096 };

static char folder[256];
static struct arena forever;
static struct job jobs[2]; /* LLaMA, GPT-2 */

static inline void clear(void)
{
    struct err ignored;

    file_remove_tree(folder, &ignored);
}

static inline void prepare(void)
{
    static const char *const texts[2] = {
        "model: {vocab_size: 3, hidden_size: 2, n_layers: 1, n_heads: 1, ffn_size: 2, "
        "max_seq_len: 2, tied_embeddings: true}\n",
        "model: {vocab_size: 3, hidden_size: 2, n_layers: 1, n_heads: 1, ffn_size: 4, "
        "max_seq_len: 2, tied_embeddings: true, norm: layernorm, position: learned, activation: "
        "gelu, "
        "bias: true}\n",
    };
    struct err err;

    for (int i = 0; i < 2; i++)
        if (job_read_model(&jobs[i], texts[i], strlen(texts[i]), "fuzz.yaml", NULL, 0, &forever,
                           &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            abort();
        }
    snprintf(folder, sizeof folder, "%s/lmtrain-fuzz-XXXXXX",
             file_is_folder("/dev/shm") ? "/dev/shm" : "/tmp");
    CHECK(mkdtemp(folder));
    atexit(clear);
}

static inline void write_plain(const char *name, const void *data, size_t n_bytes, const void *more,
                               size_t n_more)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file);
    CHECK(fwrite(data, 1, n_bytes, file) == n_bytes);
    CHECK(fwrite(more, 1, n_more, file) == n_more);
    CHECK(fclose(file) == 0);
}

/* The last number of a text, kept small. */
static inline size_t last_number(const char *text, size_t n_bytes)
{
    size_t end = n_bytes, n = 0;

    while (end > 0 && (text[end - 1] < '0' || text[end - 1] > '9'))
        end--;
    size_t begin = end;
    while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9')
        begin--;
    for (size_t i = begin; i < end; i++)
        n = (n * 10 + (size_t)(text[i] - '0')) % (DATA_MAX + 1);
    return n;
}

static inline void write_shard(const char *name, const char *header, size_t n_bytes)
{
    static unsigned char whole[DATA_MAX];
    unsigned char *start = malloc(8 + n_bytes);

    CHECK(start);
    for (int i = 0; i < 8; i++)
        start[i] = (unsigned char)((uint64_t)n_bytes >> (8 * i));
    memcpy(start + 8, header, n_bytes);
    for (size_t i = 0; i < DATA_MAX; i++)
        whole[i] = (unsigned char)(i * 37);
    write_plain(name, start, 8 + n_bytes, whole, last_number(header, n_bytes));
    free(start);
}

/* The next part of the input, or NULL. */
static inline const char *next_part(const char **at, const char *end, size_t *n_bytes)
{
    const char *part = *at;

    if (!part)
        return NULL;
    const char *mark = memmem(part, (size_t)(end - part), "\n%%\n", 4);
    *n_bytes = (size_t)((mark ? mark : end) - part);
    *at = mark ? mark + 4 : NULL;
    return part;
}

#endif
