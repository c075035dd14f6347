/*
 * sample.c - greedy, or by lot
 */
#include "serve/sample.h"

#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/rng.h"

static int32_t most_likely(const float *logits, int n)
{
    int32_t best = 0;

    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static int more_likely(const void *a, const void *b, void *context)
{
    const float *logits = context;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    if (logits[x] != logits[y])
        return logits[x] > logits[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

int32_t sample_token(const struct sampler *sampler, const float *logits, int n, uint64_t sequence,
                     int64_t position, int32_t *order)
{
    double total = 0, kept = 0, seen = 0;
    int n_kept;

    CHECK(n > 0);
    if (sampler->temperature <= 0)
        return most_likely(logits, n);
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, more_likely, (void *)(uintptr_t)logits);
    n_kept = sampler->top_k > 0 && sampler->top_k < n ? sampler->top_k : n;

    double highest = (double)logits[order[0]], scale = 1 / sampler->temperature;
    for (int i = 0; i < n_kept; i++)
        total += exp(((double)logits[order[i]] - highest) * scale);
    int last = 0;
    for (; last < n_kept; last++) {
        kept += exp(((double)logits[order[last]] - highest) * scale);
        if (kept >= sampler->top_p * total)
            break;
    }
    struct rng_block block = rng_at(sampler->seed, RNG_SAMPLE, sequence, (uint64_t)position);
    double drawn = (double)rng_uniform(block.word[0]) * kept;
    for (int i = 0; i < last; i++) {
        seen += exp(((double)logits[order[i]] - highest) * scale);
        if (drawn < seen)
            return order[i];
    }
    return order[last < n_kept ? last : n_kept - 1];
}
