/*
 * dataset_stats.c - one pass over a token file
 */
#include "data/stream/dataset_stats.h"

#include "base/num.h"

#define PART 4096

static void count_document(struct dataset_stats *census, int64_t document, int64_t length)
{
    int bin = 0;

    while (length >> bin > 0)
        bin++;
    census->n_by_length[bin]++;
    census->shortest = document == 0 ? length : min_i64(census->shortest, length);
    census->longest = max_i64(census->longest, length);
}

int dataset_stats_take(struct dataset_stats *out, const struct indexed *indexed, int vocab_size,
                       int end_of_text, struct err *err)
{
    struct dataset_stats census = { .greatest_token = -1 };
    int32_t tokens[PART];

    for (int64_t at = 0; at < indexed->n_tokens; at += PART) {
        int64_t n = min_i64(PART, indexed->n_tokens - at);

        if (indexed_read(indexed, at, n, vocab_size, tokens, err) < 0)
            return -1;
        for (int64_t i = 0; i < n; i++)
            census.greatest_token = max_int(census.greatest_token, tokens[i]);
    }
    for (int64_t d = 0; d < indexed->n_documents; d++) {
        int64_t start = indexed_document_start(indexed, d);
        int64_t end = indexed_document_start(indexed, d + 1);

        count_document(&census, d, end - start);
        if (end == start || end_of_text < 0)
            continue;
        if (indexed_read(indexed, end - 1, 1, vocab_size, tokens, err) < 0)
            return -1;
        census.n_ended += tokens[0] == end_of_text;
    }
    *out = census;
    return 0;
}
