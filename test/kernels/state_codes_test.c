/*
 * state_codes_test.c - codes of 8-bit states: every instruction set has the nearest value's code,
 * just below, at and just above each edge, and gives back what the code stands for; fp16, the
 * numbers that round bf16, and weights that are written past the caches
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/cpu/state_codes_impl.h"

enum { PLACES = 7 }; /* floats tried around an edge */

static struct code_map maps[2]; /* of v, of m */

enum { ISA_VBMI = CPU_ISA_AVX512 + 1 };

static int n_isas(void)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return CPU_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return CPU_ISA_AVX512;
    return __builtin_cpu_supports("avx512vbmi") ? ISA_VBMI + 1 : ISA_VBMI;
}

static const struct state_codec *codec_of(int isa)
{
    struct cpu_kernels cpu = { .isa = (enum cpu_isa)isa };

    return isa == ISA_VBMI ? &state_codec_vbmi : state_codec_of(&cpu);
}

/* By looking at all values. */
static int nearest_code(const struct code_map *map, float x, float divisor)
{
    bool is_signed = map == &maps[1];
    float part = (is_signed ? fabsf(x) : x) / divisor;
    int k = 0;

    while (k + 1 < map->n && !(part <= STATE_CODES_EDGE(map->values[k], map->values[k + 1])))
        k++;
    if (!is_signed)
        return k == 0 && x > 0 ? 1 : k;
    if (x >= 0)
        return k;
    k = k == map->n - 1 ? k - 1 : k;
    return k ? 256 - k : 0;
}

static void check(const struct code_map *map, const float *x, int n, float divisor)
{
    uint8_t codes[OPS_STATE_BLOCK + 1];
    float back[OPS_STATE_BLOCK + 1];

    for (int isa = 0; isa < n_isas(); isa++) {
        const struct state_codec *codec = codec_of(isa);

        codes[n] = 77;
        back[n] = 77;
        codec->encode(map, x, n, divisor, codes);
        codec->decode(map, codes, n, divisor, back);
        assert_true(codes[n] == 77 && back[n] == 77);
        for (int i = 0; i < n; i++) {
            if (codes[i] != nearest_code(map, x[i], divisor))
                fail_msg("isa %d: %a / %a has code %d, wanted %d", isa, (double)x[i],
                         (double)divisor, codes[i], nearest_code(map, x[i], divisor));
            float value = map->values[codes[i]] * divisor; /* NaN: 0 of an infinite block */
            assert_true(back[i] == value || (isnan(back[i]) && isnan(value)));
        }
    }
}

static float step(float x, int n)
{
    for (; n > 0; n--)
        x = nextafterf(x, INFINITY);
    for (; n < 0; n++)
        x = nextafterf(x, -INFINITY);
    return x;
}

/* With other divisors: of any mantissa, and of exponents of which some leave no room for what is
 * left of a quotient. */
static void check_times(const struct code_map *map, const float *x, int n)
{
    static const float divisors[] = {
        0.37f,    0x1.fffffep-1f, 0x1.000002p0f, 0x1.fffffcp3f, 0x1.555556p-20f, 0x1.8p-69f,
        0x1p-71f, 0x1p99f,        0x1.4p-100f,   0x1.2p-120f,   0x1.6p104f,      0x1.999998p-9f,
    };
    float times[2 * PLACES];

    for (size_t d = 0; d < sizeof divisors / sizeof *divisors; d++) {
        for (int i = 0; i < n; i++)
            times[i] = x[i] * divisors[d];
        check(map, times, n, divisors[d]);
    }
}

/* Around edges of values, and around the powers of 2, where a number's exponent changes. */
static void around_edges(void **state)
{
    (void)state;
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int k = 0; k < 256 + 32; k++) {
            const struct code_map *map = &maps[is_signed];
            float at = k >= 256 ? ldexpf(1, 256 - k) : isfinite(map->edges[k]) ? map->edges[k] : 1;
            float x[2 * PLACES];

            for (int i = 0; i < PLACES; i++) {
                x[2 * i] = step(at, i - PLACES / 2);
                x[2 * i + 1] = is_signed ? -x[2 * i] : x[2 * i];
            }
            check(map, x, 2 * PLACES, 1);
            check_times(map, x, 2 * PLACES);
        }
}

/* Of any exponent, in blocks whose last vector is not whole. */
static void anywhere(void **state)
{
    float x[OPS_STATE_BLOCK];

    (void)state;
    for (uint64_t round = 0; round < 400; round++) {
        int n = round % 2 ? OPS_STATE_BLOCK : 1 + (int)(round % OPS_STATE_BLOCK);
        bool is_signed = round & 2;
        float top = 0;

        for (int i = 0; i < n; i++) {
            struct rng_block r = rng_philox(5, round, (uint64_t)i);

            x[i] = ldexpf(1 + rng_uniform(r.word[0]), (int)(r.word[1] % 26) - 30);
            x[i] = is_signed && r.word[2] % 2 ? -x[i] : x[i];
            top = fmaxf(top, fabsf(x[i]));
        }
        check(&maps[is_signed], x, n, top);
    }
}

static void special_numbers(void **state)
{
    static const float x[] = { 0,     -0.0f,    0x1p-149f, 0x1p-126f, 1,         1.5f,
                               3e38f, INFINITY, NAN,       -NAN,      0.9999999f };
    float negative[sizeof x / sizeof *x];
    int n = (int)(sizeof x / sizeof *x);

    (void)state;
    check(&maps[0], x, n, 1);
    check(&maps[1], x, n, 1);
    for (int i = 0; i < n; i++)
        negative[i] = -x[i];
    check(&maps[1], negative, n, 1);
    check(&maps[1], negative, n, INFINITY);
    check(&maps[0], x, n, 0x1p-149f);
}

/* Words of fp16: all of them, times a scale, and back. */
static void all_words(void **state)
{
    uint16_t words[OPS_STATE_BLOCK], back[OPS_STATE_BLOCK];
    float x[OPS_STATE_BLOCK], plain[OPS_STATE_BLOCK];

    (void)state;
    for (int high = 0; high < 256; high++)
        for (int isa = 0; isa < n_isas(); isa++) {
            const struct state_codec *codec = codec_of(isa);

            for (int i = 0; i < OPS_STATE_BLOCK; i++)
                words[i] = (uint16_t)(high << 8 | i);
            codec->from_fp16(words, OPS_STATE_BLOCK, 0.25f, isa ? x : plain);
            codec->to_fp16(isa ? x : plain, OPS_STATE_BLOCK, 4, back);
            if (isa)
                assert_memory_equal(x, plain, sizeof x);
            for (int i = 0; i < OPS_STATE_BLOCK; i++)
                if (fabsf(fp16_to_float(words[i])) <= OPS_FP16_FULL)
                    assert_int_equal(back[i], words[i]);
        }
}

/* What rounds states of bf16: the halves of rng_philox's words. */
static void noise_is_philox(void **state)
{
    static const uint64_t lows[] = { 0, 0x80, 0xffffff80u, 0x123456789abcdf80u };
    struct noise noise;

    (void)state;
    for (int isa = 0; isa < n_isas(); isa++)
        for (int k = 0; k < 4; k++) {
            uint64_t key = 0xfedcba9876543210u, high = 0x1122334455667788u;

            codec_of(isa)->make_noise(&noise, key, high, lows[k]);
            for (int i = 0; i < OPS_STATE_BLOCK; i++) {
                struct rng_block block = rng_philox(key, lows[k] + (uint64_t)i / 2, high);
                int shift = i % 2 * 16;

                assert_int_equal(noise.master[i], block.word[0] >> shift & 0xffff);
                assert_int_equal(noise.m[i], block.word[1] >> shift & 0xffff);
                assert_int_equal(noise.v[i], block.word[2] >> shift & 0xffff);
            }
        }
}

/* Whole lines, as bf16_from_float rounds: all upper halves, NaN among them. */
static void streamed_words(void **state)
{
    _Alignas(64) uint16_t words[OPS_STATE_BLOCK];
    float x[OPS_STATE_BLOCK];

    (void)state;
    for (int isa = 0; isa < n_isas(); isa++)
        for (uint32_t high = 0; high < 0x10000 && codec_of(isa)->stream_bf16;
             high += OPS_STATE_BLOCK / 4) {
            for (uint32_t i = 0; i < OPS_STATE_BLOCK; i++) {
                static const uint32_t lower[] = { 0, 0x7fff, 0x8000, 0x8001 };
                uint32_t bits = (high + i / 4) << 16 | lower[i % 4];

                memcpy(&x[i], &bits, sizeof bits);
            }
            codec_of(isa)->stream_bf16(x, OPS_STATE_BLOCK, words);
            for (int i = 0; i < OPS_STATE_BLOCK; i++)
                assert_int_equal(words[i], bf16_from_float(x[i]));
        }
}

static int build_maps(void **state)
{
    (void)state;
    code_map_build(&maps[0], false, true);
    code_map_build(&maps[1], true, true);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(around_edges),    cmocka_unit_test(anywhere),
        cmocka_unit_test(special_numbers), cmocka_unit_test(all_words),
        cmocka_unit_test(noise_is_philox), cmocka_unit_test(streamed_words),
    };

    return cmocka_run_group_tests(tests, build_maps, NULL);
}
