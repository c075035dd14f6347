/*
 * sampler.c - strata, epochs and windows
 *
 * All is arithmetic on the sample's number; nothing is stored by sample, so that a run over
 * trillions of tokens opens as fast as a small one.
 */
#include "data/stream/sampler.h"

#include <stdlib.h>

#include "base/num.h"
#include "base/rng.h"
#include "base/str.h"
#include "data/stream/permute.h"

#define SPLIT_MAX 0.5 /* every stratum keeps at least one window to train on */

/* First window of stratum i: n_windows in n_held_out nearly equal parts. */
static int64_t stratum_start(const struct sampler_dataset *d, int64_t i)
{
    return (int64_t)((__int128)i * d->n_windows / d->n_held_out);
}

/* The window that stratum i holds out. */
static int64_t held_out_window(const struct sampler_dataset *d, int64_t i)
{
    int64_t start = stratum_start(d, i), length = stratum_start(d, i + 1) - start;
    struct rng_block hash = rng_at(d->key, RNG_SHUFFLE, UINT64_MAX, (uint64_t)i);
    uint64_t word = (uint64_t)hash.word[0] << 32 | hash.word[1];

    return start + (int64_t)(word % (uint64_t)length);
}

/* The i-th of the windows that are not held out, in order. Before stratum s there are start(s) - s.
 */
static int64_t training_window(const struct sampler_dataset *d, int64_t i)
{
    int64_t low = 0, high = d->n_held_out;

    if (d->n_held_out == 0)
        return i;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (stratum_start(d, middle) - middle <= i)
            low = middle;
        else
            high = middle;
    }
    int64_t window = i + low; /* as if this stratum held out none */
    return window < held_out_window(d, low) ? window : window + 1;
}

/* Tokens of the short window behind the whole ones; only an evaluation of everything uses it. */
static int64_t tail_targets(const struct sampler_dataset *d, int seq_len)
{
    return max_i64(d->tokens->n_tokens - 1, 0) - d->n_windows * seq_len;
}

static int init_dataset(struct sampler *sampler, struct sampler_dataset *d,
                        const struct indexed *tokens, struct err *err)
{
    *d = (struct sampler_dataset){
        .tokens = tokens,
        .key = indexed_fingerprint(tokens),
        .n_windows = max_i64(tokens->n_tokens - 1, 0) / sampler->seq_len,
    };
    int64_t n_tokens;

    if (sampler->split > 0)
        d->n_held_out = max_i64((int64_t)((double)d->n_windows * sampler->split), 1);
    if (sampler->held_out && sampler->split == 0) {
        int64_t tail = tail_targets(d, sampler->seq_len);

        d->n_samples = d->n_windows + (tail > 0);
        n_tokens = d->n_windows * sampler->seq_len + tail;
    } else {
        d->n_samples = sampler->held_out ? d->n_held_out : d->n_windows - d->n_held_out;
        n_tokens = d->n_samples * sampler->seq_len;
    }
    if (d->n_samples < 1 || d->n_held_out > d->n_windows / 2)
        return err_set(
            err, ERR_DATA,
            "%s has %lld token%s, too few for %s of seq_len %d + 1 (hint: a smaller data.seq_len)",
            tokens->prefix, (long long)tokens->n_tokens, str_s(tokens->n_tokens),
            sampler->split > 0 ? "a training and a held-out window" : "one window",
            sampler->seq_len);
    sampler->n_samples += d->n_samples;
    sampler->n_tokens += n_tokens;
    return 0;
}

int sampler_init(struct sampler *sampler, const struct sampler_options *options, struct err *err)
{
    CHECK(options->seq_len >= 1);
    if (!(options->split >= 0) || options->split > SPLIT_MAX)
        return err_set(err, ERR_CONFIG, "split is %g, not in 0..%g", options->split, SPLIT_MAX);
    *sampler = (struct sampler){
        .n_datasets = options->n_datasets,
        .seq_len = options->seq_len,
        .held_out = options->held_out,
        .split = options->split,
        .seed = options->seed,
    };
    if (blend_init(&sampler->blend, options->weights, options->n_datasets, err) < 0)
        return -1;
    sampler->datasets = calloc((size_t)options->n_datasets, sizeof *sampler->datasets);
    if (!sampler->datasets)
        return err_set(err, ERR_DEVICE, "out of host memory");
    for (int i = 0; i < options->n_datasets; i++)
        if (init_dataset(sampler, &sampler->datasets[i], options->datasets[i], err) < 0) {
            sampler_release(sampler);
            return -1;
        }
    return 0;
}

void sampler_release(struct sampler *sampler)
{
    free(sampler->datasets);
    sampler->datasets = NULL;
}

static struct sample_place find_held_out(const struct sampler *sampler, int64_t k)
{
    for (int i = 0; i < sampler->n_datasets; i++) {
        const struct sampler_dataset *d = &sampler->datasets[i];

        if (k >= d->n_samples) {
            k -= d->n_samples;
            continue;
        }
        int64_t window = sampler->split > 0 ? held_out_window(d, k) : k;
        int64_t targets =
            window < d->n_windows ? sampler->seq_len : tail_targets(d, sampler->seq_len);
        return (struct sample_place){ i, window * sampler->seq_len, (int)targets };
    }
    return (struct sample_place){ 0 };
}

struct sample_place sampler_find(struct sampler *sampler, int64_t k)
{
    int64_t number;

    CHECK(k >= 0);
    if (sampler->held_out)
        return find_held_out(sampler, k);
    blend_seek(&sampler->blend, k);
    int dataset = blend_next(&sampler->blend, &number);
    const struct sampler_dataset *d = &sampler->datasets[dataset];
    struct permutation p = {
        .seed = sampler->seed, .epoch = number / d->n_samples, .dataset = dataset, .n = d->n_samples
    };
    int64_t window = training_window(d, permute(&p, number % d->n_samples));

    return (struct sample_place){ dataset, window * sampler->seq_len, sampler->seq_len };
}

int64_t sampler_count_targets(const struct sampler *sampler, int64_t k, int64_t n)
{
    int64_t start = 0, targets = 0;

    if (!sampler->held_out)
        return n * sampler->seq_len;
    for (int i = 0; i < sampler->n_datasets; i++) {
        const struct sampler_dataset *d = &sampler->datasets[i];
        int64_t tail = sampler->split > 0 ? 0 : tail_targets(d, sampler->seq_len);
        int64_t n_whole = d->n_samples - (tail > 0), tail_at = start + n_whole;
        int64_t whole = min_i64(k + n, start + n_whole) - max_i64(k, start);

        targets += max_i64(whole, 0) * sampler->seq_len;
        if (tail > 0 && k <= tail_at && tail_at < k + n)
            targets += tail;
        start += d->n_samples;
    }
    return targets;
}
