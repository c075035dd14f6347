/*
 * rng_test.c - normals by the many are those one by one, to the bit
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

enum { N = 1 << 18 };

static float one(const struct rng_series *s, int64_t i)
{
    struct rng_block block = rng_at(s->seed, s->purpose, s->place_high, (uint64_t)i / 2);
    int pair = (int)(i % 2) * 2;

    return rng_normal(block.word[pair], block.word[pair + 1]);
}

static void check(const struct rng_series *s, int64_t first, int64_t n)
{
    static float out[N + 1];

    out[n] = 7;
    rng_normals(out, n, s, first);
    assert_true(out[n] == 7);
    for (int64_t i = 0; i < n; i++) {
        float wanted = one(s, first + i);

        if (memcmp(&wanted, &out[i], sizeof wanted) != 0)
            fail_msg("element %lld: %a, not %a", (long long)(first + i), (double)out[i],
                     (double)wanted);
    }
}

static void as_one_by_one(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct rng_series s = { seed * 0x123456789abcdefu, RNG_INIT, rng_hash_name("a.weight") };

        check(&s, 0, N);
        s.place_high++;
        check(&s, (int64_t)1 << 33, N);
    }
}

/* From any element to any: blocks are of two, and made many at a time. */
static void any_range(void **state)
{
    struct rng_series s = { 3, RNG_TEST, 5 };

    (void)state;
    for (int64_t first = 0; first < 5; first++)
        for (int64_t n = 0; n < 300; n += n < 8 || n > 120 ? 1 : 13)
            check(&s, first, n);
    /* The counter's low word overflows. */
    check(&s, ((int64_t)1 << 33) - 77, 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_one_by_one),
        cmocka_unit_test(any_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
