/*
 * sample.c - greedy, or by lot
 *
 * A vocabulary is not sorted: a heap gives up its greatest one by one until the cuts are reached,
 * which takes n + k log n steps. (SmolLM2's 49152 logits: 0.3 ms instead of 6.)
 */
#include "serve/sample.h"

#include <math.h>

#include "base/err.h"
#include "base/num.h"
#include "base/rng.h"

static int32_t most_likely(const float *logits, int n)
{
    int32_t best = 0;

    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

void sample_penalize(float *logits, int n, double penalty, const int32_t *tokens, int64_t n_tokens,
                     int32_t *scratch)
{
    if (penalty == 1)
        return;
    for (int64_t i = 0; i < n_tokens; i++)
        if (tokens[i] < n)
            scratch[tokens[i]] = 1;
    for (int64_t i = 0; i < n_tokens; i++) {
        int32_t id = tokens[i];

        if (id >= n || !scratch[id])
            continue;
        scratch[id] = 0;
        logits[id] = logits[id] < 0 ? logits[id] * (float)penalty : logits[id] / (float)penalty;
    }
}

static int comes_first(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sink(const float *logits, int32_t *heap, int n, int at)
{
    int32_t id = heap[at];

    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && comes_first(logits, heap[child + 1], heap[child]))
            child++;
        if (!comes_first(logits, heap[child], id))
            break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

/* The greatest goes to the heap's end, which is no part of it any more. */
static void pop(const float *logits, int32_t *heap, int n)
{
    int32_t first = heap[0];

    heap[0] = heap[n - 1];
    heap[n - 1] = first;
    sink(logits, heap, n - 1, 0);
}

/* What was popped lies at the end, backwards. */
static void turn(int32_t *order, int n, int n_popped)
{
    for (int i = 0; i < n / 2; i++) {
        int32_t id = order[i];

        order[i] = order[n - 1 - i];
        order[n - 1 - i] = id;
    }
    CHECK(n_popped <= n);
}

int sample_kept(const struct sampling *sampler, const float *logits, int n, int32_t *order,
                double *total, double *highest)
{
    int n_kept = sampler->top_k > 0 && sampler->top_k < n ? sampler->top_k : n, n_popped = 0;
    double scale = 1 / sampler->temperature, kept = 0, wanted;

    *highest = (double)logits[most_likely(logits, n)];
    *total = 0;
    for (int32_t i = 0; i < n; i++) {
        order[i] = i;
        *total += exp(((double)logits[i] - *highest) * scale);
    }
    if (n_kept == n && sampler->top_p >= 1)
        return n;
    for (int at = n / 2 - 1; at >= 0; at--)
        sink(logits, order, n, at);
    if (n_kept < n) {
        for (*total = 0; n_popped < n_kept; n_popped++) {
            pop(logits, order, n - n_popped);
            *total += exp(((double)logits[order[n - 1 - n_popped]] - *highest) * scale);
        }
    }
    wanted = sampler->top_p * *total;
    for (int i = 0; i < n_kept; i++) {
        if (i == n_popped)
            pop(logits, order, n - n_popped++);
        kept += exp(((double)logits[order[n - 1 - i]] - *highest) * scale);
        if (kept >= wanted) {
            n_kept = i + 1;
            break;
        }
    }
    *total = kept;
    turn(order, n, n_popped);
    return n_kept;
}

int32_t sample_token(const struct sampling *sampler, const float *logits, int n, uint64_t sequence,
                     int64_t position, int32_t *order)
{
    double total, highest, seen = 0;

    CHECK(n > 0);
    if (sampler->temperature <= 0)
        return most_likely(logits, n);
    int n_kept = sample_kept(sampler, logits, n, order, &total, &highest);
    struct rng_block block = rng_at(sampler->seed, RNG_SAMPLE, sequence, (uint64_t)position);
    double drawn = ((double)block.word[0] + (double)block.word[1] * 0x1p-32) * 0x1p-32 * total;
    for (int i = 0; i + 1 < n_kept; i++) {
        seen += exp(((double)logits[order[i]] - highest) / sampler->temperature);
        if (drawn < seen)
            return order[i];
    }
    return order[n_kept - 1];
}

double sample_gumbel(const struct sampling *sampler, uint64_t sequence, int64_t position,
                     uint64_t item)
{
    /* Above all positions of sequences, so that no draw of sample_token's has its place. */
    struct rng_block block =
        rng_at(sampler->seed, RNG_SAMPLE, sequence | 1ull << 63, (uint64_t)position << 32 | item);
    double u = ((double)block.word[0] + ((double)block.word[1] + 0.5) * 0x1p-32) * 0x1p-32;

    return -log(-log(u));
}
