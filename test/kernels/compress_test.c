/*
 * compress_test.c - codecs of gradients over many steps, and what a NaN leaves behind
 *
 * Each op against its reference: test/support/ops/compress.c.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_case.h"

enum { RANKS = 3, PART = 300, N = RANKS * PART, STEPS = 50 };

/* What a rank sends of x, and x is what it loses; and what all ranks have sent, added. */
struct play {
    struct op_case *send, *add;
    bool is_top_k;
};

static struct play play_create(enum codec codec)
{
    struct op_attributes a = { .codec = codec, .ratio = 0.02 };
    struct play p = { .is_top_k = codec == CODEC_TOP_K };
    int64_t n_pairs = ops_top_k(a.ratio, N), row = ops_code_bytes(PART);

    p.send = op_case_create(p.is_top_k ? OP_TOP_K : OP_ENCODE, &a);
    p.add = op_case_create(p.is_top_k ? OP_ADD_PAIRS : OP_DECODE, &a);
    p.send->dense = p.add->dense = true;
    op_case_input(p.send, ENCODE_X, 1, N, DTYPE_F32, 1);
    if (p.is_top_k) {
        op_case_input(p.send, TOP_K_PARTS, 1, 2, DTYPE_I32, 0);
        ((int32_t *)p.send->op.in[TOP_K_PARTS].data)[1] = N;
        op_case_output(p.send, TOP_K_PAIRS, 1, 2 * n_pairs, DTYPE_I32);
        op_case_input(p.add, ADD_PAIRS_PAIRS, RANKS, 2 * n_pairs, DTYPE_I32, 0);
    } else {
        op_case_output(p.send, ENCODE_CODES, RANKS, row, DTYPE_U8);
        op_case_input(p.add, DECODE_CODES, RANKS, row, DTYPE_U8, 0);
    }
    op_case_output(p.send, ENCODE_SUMS, 1, 2, DTYPE_F64);
    op_case_output(p.add, DECODE_Y, 1, p.is_top_k ? N : PART, DTYPE_F32);
    return p;
}

static void play_destroy(struct play *p)
{
    op_case_destroy(p->send);
    op_case_destroy(p->add);
}

/* Add what all ranks' codes stand for to total. */
static void add_all(const struct play *p, const unsigned char *sent, size_t n_bytes, double *total)
{
    const struct tensor *codes = &p->add->op.in[DECODE_CODES], *y = &p->add->op.out[DECODE_Y];
    size_t row = (size_t)codes->cols * dtype_bytes(codes->dtype);

    for (int owner = 0; owner < N / y->cols; owner++) {
        for (size_t r = 0; r < RANKS; r++)
            memcpy((char *)codes->data + r * row, sent + r * n_bytes + (size_t)owner * row, row);
        op_case_run(p->add, 1, RUN_FIRST);
        for (int64_t i = 0; i < y->cols; i++)
            total[owner * y->cols + i] += tensor_get(y, 0, i);
    }
}

/* All that was sent is all that there was but what is lost at the end. */
static void fifty_steps(enum codec codec, double tolerance)
{
    struct play p = play_create(codec);
    const struct tensor *x = &p.send->op.in[ENCODE_X], *codes = &p.send->op.out[ENCODE_CODES];
    size_t n_bytes = (size_t)(codes->rows * codes->cols) * dtype_bytes(codes->dtype);
    static float left[RANKS][N], gradient[N];
    static double there[N], total[N];
    static unsigned char sent[RANKS * 4 * N];
    struct tensor g = { .data = gradient, .rows = 1, .cols = N, .stride = N, .dtype = DTYPE_F32 };
    double most = 0, off = 0;

    assert_true(RANKS * n_bytes <= sizeof sent);
    memset(left, 0, sizeof left);
    memset(there, 0, sizeof there);
    memset(total, 0, sizeof total);
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint64_t r = 0; r < RANKS; r++) {
            op_case_fill(&g, 1000 + step * RANKS + r, 1);
            for (int i = 0; i < N; i++) {
                /* So that sums are exact. */
                gradient[i] = nearbyintf(gradient[i] * 1024) / 1024;
                there[i] += (double)gradient[i];
                left[r][i] += gradient[i];
            }
            memcpy(x->data, left[r], sizeof left[r]);
            op_case_run(p.send, 1, RUN_FIRST);
            memcpy(left[r], x->data, sizeof left[r]);
            memcpy(sent + r * n_bytes, codes->data, n_bytes);
        }
        add_all(&p, sent, n_bytes, total);
    }
    for (int i = 0; i < N; i++) {
        for (int r = 0; r < RANKS; r++)
            there[i] -= (double)left[r][i];
        most = fmax(most, fabs(there[i]));
        off = fmax(off, fabs(there[i] - total[i]));
    }
    assert_true(most > 1);
    if (!(off <= tolerance * most))
        fail_msg("codec %d: off by %g of %g", (int)codec, off, most);
    play_destroy(&p);
}

static void nothing_is_lost(void **state)
{
    (void)state;
    fifty_steps(CODEC_INT8, 1e-6);
    fifty_steps(CODEC_FP8, 1e-6);
    fifty_steps(CODEC_TOP_K, 0);
}

/* Zeros: no op writes what lies between parameters, which must not be NaN in the next step. */
static void not_finite(void **state)
{
    static const float values[] = { NAN, INFINITY, -INFINITY };

    (void)state;
    for (int i = 0; i < 6; i++) {
        struct play p = play_create(i % 2 ? CODEC_FP8 : CODEC_INT8);
        const struct tensor *x = &p.send->op.in[ENCODE_X];
        const float *scales = p.send->op.out[ENCODE_CODES].data;
        /* In the second, short block of the first part. */
        int bad = OPS_CODE_BLOCK + 7;

        tensor_set(x, 0, bad, (double)values[i / 2]);
        op_case_run(p.send, 2, RUN_FIRST);
        assert_true(isfinite(scales[0]));
        assert_true(isnan(scales[1]));
        for (int k = 0; k < N; k++)
            assert_true(k >= OPS_CODE_BLOCK && k < PART ? tensor_get(x, 0, k) == 0
                                                        : isfinite(tensor_get(x, 0, k)));
        play_destroy(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(nothing_is_lost),
                                        cmocka_unit_test(not_finite) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
