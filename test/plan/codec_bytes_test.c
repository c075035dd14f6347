/*
 * codec_bytes_test.c - bytes of compressed gradients, of programs, against what codecs are
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ops/codec.h"
#include "plan/codec_bytes.h"
#include "support/tiny_model.h"

enum { N_RANKS = 4 };

static struct codec_bytes bytes_of(struct program *p, struct codec_choice codec, int zero)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = tiny_compile(&spec, N_RANKS);
    struct err err;

    options.n_micro_batches = 3;
    options.gradients.zero = zero;
    options.gradients.codec = codec;
    if (compile_train(p, &options, &err) < 0)
        fail_msg("%s", err.text);
    return codec_bytes_of(p);
}

/* Elements of all buckets. */
static int64_t elements(const struct program *p)
{
    int64_t n = 0;

    for (int i = 0; i < p->n_buckets; i++)
        n += p->buckets[i].n_uses * p->buckets[i].n_elements;
    return n;
}

static void codes(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        struct program p;
        struct codec_bytes bytes = bytes_of(&p, (struct codec_choice){ .codec = CODEC_INT8 }, zero);
        int64_t n = elements(&p), sent = 0;

        for (int i = 0; i < p.n_buckets; i++)
            sent += p.buckets[i].n_uses * (N_RANKS - 1) *
                    ops_code_bytes(p.buckets[i].n_elements / N_RANKS);
        /* Under zero 0 the sums come back as they are. */
        int64_t shards = (N_RANKS - 1) * (n / N_RANKS) * (int64_t)sizeof(float);
        assert_int_equal(bytes.sent, sent + (zero ? 0 : shards));
        assert_int_equal(bytes.whole, (zero ? 1 : 2) * shards);
        assert_int_equal(bytes.errors, n * (int64_t)sizeof(float));
        assert_int_equal(bytes.sums, bytes.errors);
        program_release(&p);
    }
}

/* Each element has its number with it, and goes to all others. */
static void pairs(void **state)
{
    struct program p;
    struct codec_bytes bytes =
        bytes_of(&p, (struct codec_choice){ .codec = CODEC_TOP_K, .ratio = 1 }, 1);
    int64_t n = 0;

    (void)state;
    for (int i = 0; i < p.n_parameters; i++)
        n += p.parameters[i].n_gradients * p.parameters[i].rows * p.parameters[i].cols;
    assert_int_equal(bytes.sent, (N_RANKS - 1) * n * 8);
    program_release(&p);
}

/* Two sums of factors, of which each is a sum of parts that are gathered then. */
static void factors(void **state)
{
    struct program p;
    struct codec_choice codec = { .codec = CODEC_POWERSGD, .rank = 2, .start = 5 };
    struct codec_bytes bytes = bytes_of(&p, codec, 1), none;
    int64_t n_kept = 0;

    (void)state;
    for (int i = 0; i < p.n_buckets; i++)
        for (int use = 0; use < p.buckets[i].n_uses; use++)
            n_kept += (int64_t)program_value_bytes(&p, p.buckets[i].factors[use].kept);
    assert_int_equal(bytes.errors, elements(&p) * (int64_t)sizeof(float) + n_kept);
    assert_true(bytes.sent > 0);
    assert_true(bytes.sent < bytes.whole);
    program_release(&p);
    none = bytes_of(&p, (struct codec_choice){ .codec = CODEC_NONE }, 1);
    assert_true(none.sent == 0 && none.whole == 0 && none.errors == 0 && none.sums == 0);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(codes), cmocka_unit_test(pairs),
                                        cmocka_unit_test(factors) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
