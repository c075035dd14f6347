/*
 * state_codes_impl.h - optimizer states of 8 and 16 bits with a scale, to floats and back
 *
 * At most OPS_STATE_BLOCK elements at a time, in loops of their own, since they are what bounds an
 * update of such states. There is a form that compilers vectorise for each instruction set, one
 * written for AVX-512 (state_codes_avx512.c), and one with its VBMI, all with equal bits.
 */
#ifndef KERNELS_CPU_STATE_CODES_IMPL_H
#define KERNELS_CPU_STATE_CODES_IMPL_H

#include "kernels/cpu/rounding_impl.h"
#include "ops/state_codes.h"

/* The exponent and 7 bits of the mantissa of a number from 0 to 1: at most one edge between two
 * values has it, and those below CODE_KEYS_FROM are below all edges. */
#define CODE_KEY_SHIFT 16
enum { CODE_KEYS_FROM = 13300, CODE_KEYS = 0x3f80 - CODE_KEYS_FROM + 1 };

/* Exponents of floats from 2^-24, which is below all edges, to 1; decades of values, 0 being one */
enum { CODE_EXPONENTS_FROM = 127 - 24, CODE_EXPONENTS = 32, CODE_DECADES = 8 };
enum { CODE_PLANES = sizeof(float) };

struct code_map {
    _Alignas(64) float values[STATE_CODES_UNSIGNED]; /* by code */
    /* Of a magnitude: above it is the next one. The last: infinite. */
    float edges[STATE_CODES_UNSIGNED];

    /*
     * Values of a decade are evenly spaced, so a magnitude's number among the values is about
     * slope * magnitude + offset of its decade, but at most the decade's last: that or one more.
     * The decade is decades[e], e the lower 5 bits of the exponent (at least CODE_EXPONENTS_FROM),
     * or the next one if it is above decade_edges[e].
     */
    _Alignas(64) int32_t decades[CODE_EXPONENTS];
    float decade_edges[CODE_EXPONENTS];
    float slopes[2 * CODE_DECADES], offsets[2 * CODE_DECADES], last[2 * CODE_DECADES];

    /* values and edges as bytes: of place p in each float those of all, for VBMI */
    _Alignas(64) uint8_t value_bytes[CODE_PLANES][STATE_CODES_UNSIGNED];
    uint8_t edge_bytes[CODE_PLANES][STATE_CODES_UNSIGNED];

    int n;                    /* values that are not negative */
    int32_t below[CODE_KEYS]; /* edges of lower keys */
};

/* Of m, or of v. below, which takes the longest, only where has_keys. */
void code_map_build(struct code_map *map, bool is_signed, bool has_keys);

/* n: elements, at most OPS_STATE_BLOCK. */
struct state_codec {
    /* What codes, or words of fp16, stand for: times the scale. */
    void (*decode)(const struct code_map *map, const uint8_t *codes, int n, float scale, float *to);
    void (*from_fp16)(const uint16_t *words, int n, float scale, float *to);
    /* divisor: what the code of 1 stands for. */
    void (*encode)(const struct code_map *map, const float *x, int n, float divisor,
                   uint8_t *codes);
    /* x * inverse, within OPS_FP16_FULL. */
    void (*to_fp16)(const float *x, int n, float inverse, uint16_t *words);
    /* What states of bf16 are rounded by; low: a multiple of NOISE_PAIRS. */
    void (*make_noise)(struct noise *noise, uint64_t key, uint64_t high, uint64_t low);
    /* To nearest bf16, past the caches: for memory that is not read soon. Whole lines of 64 bytes
     * alone: n is a multiple of 32, words of 64. NULL: there is none. */
    void (*stream_bf16)(const float *x, int n, uint16_t *words);
    bool has_keys; /* encode reads a map's below */
};

/* state_codes_avx2.c; the first two with F16C, which all have that have AVX2. */
void state_from_fp16_f16c(const uint16_t *words, int n, float scale, float *to);
void state_to_fp16_f16c(const float *x, int n, float inverse, uint16_t *words);
void state_noise_avx2(struct noise *noise, uint64_t key, uint64_t high, uint64_t low);

const struct state_codec *state_codec_of(const struct cpu_kernels *cpu);

/* state_codes_avx512.c; the second with what else VBMI has (state_codes_avx512vbmi.c). */
extern const struct state_codec state_codec_avx512, state_codec_vbmi;

#endif
