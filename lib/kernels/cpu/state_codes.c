/*
 * state_codes.c - the maps of 8-bit states, and coding as plain loops
 */
#include "kernels/cpu/state_codes_impl.h"

#include <math.h>

#include "base/num.h"
#include "kernels/cpu/rows_impl.h"

static const float signed_values[] = {
#include "ops/state_codes_signed.inc"
};
static const float unsigned_values[] = {
#include "ops/state_codes_unsigned.inc"
};

/* ---- maps ---- */

static void build_keys(struct code_map *map)
{
    int below = 0;

    for (int key = 0; key < CODE_KEYS; key++) {
        float least = vec_from_bits((uint32_t)(key + CODE_KEYS_FROM) << CODE_KEY_SHIFT);

        while (map->edges[below] < least)
            below++;
        map->below[key] = below;
    }
}

/* How much below the middle of what rounding may do to a place among the values. */
#define PLACE_SLACK 0.005

static void build_decades(struct code_map *map)
{
    int n_values = map->n == STATE_CODES_SIGNED ? 1 : 2, first = 1, decade = 0;

    /* Of 0 alone. */
    map->slopes[0] = map->offsets[0] = map->last[0] = 0;
    for (int d = 1; d < CODE_DECADES; d++, first += n_values, n_values *= 2) {
        double top = pow(10, d - 7), slope = n_values / (0.9 * top);

        map->slopes[d] = (float)slope;
        map->offsets[d] = (float)(first - 0.1 * top * slope - PLACE_SLACK);
        map->last[d] = (float)(first + n_values - 1);
    }
    for (int d = 0; d < CODE_DECADES; d++) {
        map->slopes[CODE_DECADES + d] = map->slopes[d];
        map->offsets[CODE_DECADES + d] = map->offsets[d];
        map->last[CODE_DECADES + d] = map->last[d];
    }
    for (int e = 0; e < CODE_EXPONENTS; e++) {
        float least = vec_from_bits((uint32_t)(CODE_EXPONENTS_FROM + e) << 23);

        while (decade + 1 < CODE_DECADES && map->edges[(int)map->last[decade]] < least)
            decade++;
        map->decades[(CODE_EXPONENTS_FROM + e) % CODE_EXPONENTS] = decade;
        map->decade_edges[(CODE_EXPONENTS_FROM + e) % CODE_EXPONENTS] =
            decade + 1 < CODE_DECADES ? map->edges[(int)map->last[decade]] : INFINITY;
    }
}

static void build_bytes(const float *table, uint8_t bytes[CODE_PLANES][STATE_CODES_UNSIGNED])
{
    for (int i = 0; i < STATE_CODES_UNSIGNED; i++)
        for (int p = 0; p < CODE_PLANES; p++)
            bytes[p][i] = (uint8_t)(vec_to_bits(table[i]) >> 8 * p);
}

void code_map_build(struct code_map *map, bool is_signed, bool has_keys)
{
    const float *values = is_signed ? signed_values : unsigned_values;
    int n = is_signed ? STATE_CODES_SIGNED : STATE_CODES_UNSIGNED;

    map->n = n;
    for (int k = 0; k < STATE_CODES_UNSIGNED; k++)
        map->values[k] = k < n ? values[k] : -values[STATE_CODES_UNSIGNED - k];
    for (int k = 0; k < STATE_CODES_UNSIGNED; k++)
        map->edges[k] = k + 1 < n ? STATE_CODES_EDGE(values[k], values[k + 1]) : INFINITY;
    if (has_keys)
        build_keys(map);
    build_bytes(map->values, map->value_bytes);
    build_bytes(map->edges, map->edge_bytes);
    build_decades(map);
}

/* ---- codes ---- */

/* The number of the value that is nearest to a magnitude; NaN is as 1. */
CPU_INLINE int32_t nearest_value(const struct code_map *map, float x)
{
    float within = x <= 1.0f ? x : 1.0f;

    within = within > 0 ? within : 0; /* -0 has a key beyond the table */
    int32_t key = (int32_t)(vec_to_bits(within) >> CODE_KEY_SHIFT) - CODE_KEYS_FROM;
    int32_t k = map->below[key > 0 ? key : 0];

    return k + (within > map->edges[k]);
}

CPU_INLINE void decode_body(const struct code_map *map, const uint8_t *codes, int n, float scale,
                            float *to)
{
    INDEPENDENT_TURNS
    for (int i = 0; i < n; i++)
        to[i] = map->values[codes[i]] * scale;
}

CPU_INLINE void encode_body(const struct code_map *map, const float *x, int n, float divisor,
                            uint8_t *codes)
{
    int32_t numbers[OPS_STATE_BLOCK];

    if (map->n == STATE_CODES_SIGNED)
        for (int i = 0; i < n; i++) {
            int32_t k = nearest_value(map, fabsf(x[i]) / divisor);

            numbers[i] = x[i] >= 0 ? k : k < STATE_CODES_SIGNED - 1 ? -k : 2 - STATE_CODES_SIGNED;
        }
    else
        for (int i = 0; i < n; i++) {
            int32_t k = nearest_value(map, x[i] / divisor);

            numbers[i] = k + ((k == 0) & (x[i] > 0));
        }
    for (int i = 0; i < n; i++)
        codes[i] = (uint8_t)numbers[i];
}

/* ---- fp16 ---- */

static void from_fp16(const uint16_t *words, int n, float scale, float *to)
{
    INDEPENDENT_TURNS
    for (int i = 0; i < n; i++)
        to[i] = vec_from_fp16(words[i]) * scale;
}

static void to_fp16(const float *x, int n, float inverse, uint16_t *words)
{
    INDEPENDENT_TURNS
    for (int i = 0; i < n; i++) {
        float scaled = x[i] * inverse;

        scaled = scaled > OPS_FP16_FULL ? OPS_FP16_FULL : scaled;
        words[i] = vec_to_fp16(scaled < -OPS_FP16_FULL ? -OPS_FP16_FULL : scaled);
    }
}

#define OF_ISA(target, isa) \
    target static void decode_##isa(const struct code_map *map, const uint8_t *codes, int n, \
                                    float scale, float *to) \
    { \
        decode_body(map, codes, n, scale, to); \
    } \
    target static void encode_##isa(const struct code_map *map, const float *x, int n, \
                                    float divisor, uint8_t *codes) \
    { \
        encode_body(map, x, n, divisor, codes); \
    }

OF_ISA(, plain)
OF_ISA(CPU_TARGET_AVX2, avx2)

static void make_noise(struct noise *noise, uint64_t key, uint64_t high, uint64_t low)
{
    make_noise_body(noise, key, high, low);
}

static const struct state_codec codec_plain = { decode_plain, from_fp16, encode_plain, to_fp16,
                                                make_noise,   NULL,      true };
static const struct state_codec codec_avx2 = {
    decode_avx2, state_from_fp16_f16c, encode_avx2, state_to_fp16_f16c, state_noise_avx2, NULL, true
};

/* VBMI is newer than AVX-512: where bf16 products are left out, it is, too. */
const struct state_codec *state_codec_of(const struct cpu_kernels *cpu)
{
    static const struct state_codec *const codecs[] = { &codec_plain, &codec_avx2,
                                                        &state_codec_avx512 };

    if (cpu->has_avx512_bf16 && __builtin_cpu_supports("avx512vbmi"))
        return &state_codec_vbmi;
    return codecs[cpu->isa];
}
