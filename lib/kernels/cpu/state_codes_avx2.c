/*
 * state_codes_avx2.c - fp16, and what rounds states of bf16, with AVX2 and F16C
 *
 * Compilers make shifts and sums of a product of 64 bits by a constant, where the product of its
 * lower halves is one instruction: seven times as long.
 */
#include <immintrin.h>

#include "kernels/cpu/state_codes_impl.h"

#define LANES 8
#define F16C __attribute__((target("avx2,fma,f16c")))

F16C void state_from_fp16_f16c(const uint16_t *words, int n, float scale, float *to)
{
    int i = 0;

    for (; i + LANES <= n; i += LANES) {
        __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(words + i)));

        _mm256_storeu_ps(to + i, _mm256_mul_ps(x, _mm256_set1_ps(scale)));
    }
    for (; i < n; i++)
        to[i] = vec_from_fp16(words[i]) * scale;
}

/* The second operand of a minimum is what NaN becomes. */
F16C void state_to_fp16_f16c(const float *x, int n, float inverse, uint16_t *words)
{
    const __m256 full = _mm256_set1_ps(OPS_FP16_FULL), least = _mm256_set1_ps(-OPS_FP16_FULL);
    int i = 0;

    for (; i + LANES <= n; i += LANES) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse));

        scaled = _mm256_max_ps(least, _mm256_min_ps(full, scaled));
        _mm_storeu_si128((__m128i *)(void *)(words + i),
                         _mm256_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < n; i++) {
        float scaled = x[i] * inverse;

        scaled = scaled > OPS_FP16_FULL ? OPS_FP16_FULL : scaled;
        words[i] = vec_to_fp16(scaled < -OPS_FP16_FULL ? -OPS_FP16_FULL : scaled);
    }
}

/* ---- rounding ---- */

#define LANES64 4
typedef __m256i lanes64;

CPU_INLINE lanes64 all_lanes(uint64_t x)
{
    return _mm256_set1_epi64x((int64_t)x);
}

CPU_INLINE lanes64 lanes_from(uint64_t x)
{
    return _mm256_add_epi64(all_lanes(x), _mm256_set_epi64x(3, 2, 1, 0));
}

CPU_INLINE lanes64 times_lanes(lanes64 a, lanes64 b)
{
    return _mm256_mul_epu32(a, b);
}

CPU_INLINE lanes64 upper_lanes(lanes64 a)
{
    return _mm256_srli_epi64(a, 32);
}

CPU_INLINE lanes64 exclusive_or(lanes64 a, lanes64 b)
{
    return _mm256_xor_si256(a, b);
}

CPU_INLINE lanes64 mixed(lanes64 a, lanes64 b, lanes64 c)
{
    return exclusive_or(exclusive_or(upper_lanes(a), b), c);
}

/* Bytes 0 and 1, 2 and 3 of 8. */
CPU_INLINE void store_halves(uint32_t *to, lanes64 word)
{
    const __m256i bytes =
        _mm256_set_epi32((int)0x80800b0au, (int)0x80800908u, (int)0x80800302u, (int)0x80800100u,
                         (int)0x80800b0au, (int)0x80800908u, (int)0x80800302u, (int)0x80800100u);

    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_shuffle_epi8(word, bytes));
}

#include "kernels/cpu/state_noise_impl.h"

void state_noise_avx2(struct noise *noise, uint64_t key, uint64_t high, uint64_t low)
{
    make_lanes_of_noise(noise, key, high, low);
}
