/*
 * rope_tables.c - frequencies, angles, cosines
 *
 * Frequencies are rounded to fp32 where transformers does, angles and their cosines are from those.
 */
#include "weights/rope_tables.h"

#include <math.h>

#include "base/err.h"

static int original_length(const struct model_spec *s)
{
    return s->rope_scaling.original_max_seq_len ? s->rope_scaling.original_max_seq_len
                                                : s->max_seq_len;
}

static float plain(double theta, int i, int head_dim)
{
    return (float)(1.0 / pow(theta, (double)(2 * i) / (double)head_dim));
}

/* The base grows with the text, so that the slowest frequency still spans it. */
static double dynamic_theta(const struct model_spec *s, int64_t n_positions, int head_dim)
{
    double factor = s->rope_scaling.factor, original = original_length(s);
    double length = fmax((double)n_positions, original);

    return s->rope_theta *
           pow(factor * length / original - (factor - 1), (double)head_dim / (head_dim - 2));
}

/* Slow ones are divided by factor, fast ones stay, between them it goes over smoothly. */
static double llama3(const struct model_spec *s, double frequency)
{
    const struct rope_scaling_spec *r = &s->rope_scaling;
    double original = original_length(s), length = 2 * M_PI / frequency;

    if (length > original / r->low_freq_factor)
        return frequency / r->factor;
    if (length < original / r->high_freq_factor)
        return frequency;
    double smooth =
        (original / length - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * frequency / r->factor + smooth * frequency;
}

/* The dimension (not whole) that turns so often over the original length. */
static double yarn_dimension(const struct model_spec *s, double rotations, int head_dim)
{
    return head_dim * log(original_length(s) / (rotations * 2 * M_PI)) / (2 * log(s->rope_theta));
}

static double yarn(const struct model_spec *s, double frequency, int i, int head_dim)
{
    const struct rope_scaling_spec *r = &s->rope_scaling;
    double low = yarn_dimension(s, r->beta_fast, head_dim);
    double high = yarn_dimension(s, r->beta_slow, head_dim);

    low = fmax(r->truncate ? floor(low) : low, 0);
    high = fmin(r->truncate ? ceil(high) : high, head_dim - 1);
    if (low == high)
        high += 0.001;
    double slow = fmin(fmax((i - low) / (high - low), 0), 1);
    return frequency / r->factor * slow + frequency * (1 - slow);
}

void rope_table_frequencies(float *frequencies, int64_t n_positions, int head_dim,
                            const struct model_spec *s)
{
    enum rope_scaling type = s->rope_scaling.type;
    double theta = type == ROPE_DYNAMIC ? dynamic_theta(s, n_positions, head_dim) : s->rope_theta;

    for (int i = 0; i < head_dim / 2; i++) {
        float f = plain(theta, i, head_dim);

        if (type == ROPE_LINEAR)
            f = f / (float)s->rope_scaling.factor;
        else if (type == ROPE_LLAMA3)
            f = (float)llama3(s, f);
        else if (type == ROPE_YARN)
            f = (float)yarn(s, f, i, head_dim);
        frequencies[i] = f;
    }
}

static double attention_factor(const struct rope_scaling_spec *r)
{
    if (r->type != ROPE_YARN)
        return 1;
    if (r->attention_factor > 0)
        return r->attention_factor;
    return r->factor <= 1 ? 1 : 0.1 * log(r->factor) + 1;
}

int64_t rope_table_length(int64_t n_positions, const struct model_spec *s)
{
    int64_t original = original_length(s);

    if (s->rope_scaling.type != ROPE_DYNAMIC)
        return 1;
    return n_positions > original ? n_positions : original;
}

void rope_table_fill_rows(float *rows, int64_t first, int64_t n, int64_t n_positions, int head_dim,
                          const struct model_spec *s)
{
    double scale = attention_factor(&s->rope_scaling);
    /* The last half row holds the frequencies until it is its own turn. */
    float *frequencies = rows + n * head_dim - head_dim / 2;

    CHECK(n > 0);
    rope_table_frequencies(frequencies, n_positions, head_dim, s);
    for (int64_t row = 0; row < n; row++)
        for (int i = 0; i < head_dim / 2; i++) {
            float angle = (float)(first + row) * frequencies[i];

            rows[row * head_dim + i] = (float)(cos((double)angle) * scale);
            rows[row * head_dim + head_dim / 2 + i] = (float)(sin((double)angle) * scale);
        }
}

void rope_table_fill(float *table, int64_t n_positions, int head_dim, const struct model_spec *s)
{
    rope_table_fill_rows(table, 0, n_positions, n_positions, head_dim, s);
}
