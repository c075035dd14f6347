/*
 * model_test.c - the forward: where dropout is drawn, what the ends are, how rows are bounded
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/tiny_model.h"

#define N_PLACES_MAX 64

static int count_kind(const struct function *f, enum op_kind kind)
{
    int n = 0;

    for (int i = 0; i < f->n_ops; i++)
        n += f->ops[i].kind == kind;
    return n;
}

/* Two draws from one place would be equal; all bear the run's seed. */
static void expect_dropout_places(const char *name, int n_expected)
{
    struct tiny tiny;
    uint64_t places[N_PLACES_MAX];
    int n = 0;

    tiny_forward(&tiny, name, 1);
    const struct function *f = &tiny.program.functions[tiny.forward];
    for (int i = 0; i < f->n_ops; i++) {
        if (f->ops[i].attributes.p <= 0)
            continue;
        assert_true(f->ops[i].attributes.seed == 1);
        for (int k = 0; k < n; k++)
            assert_true(places[k] != f->ops[i].attributes.rng_site);
        assert_true(n < N_PLACES_MAX);
        places[n++] = f->ops[i].attributes.rng_site;
    }
    assert_int_equal(n, n_expected);
    tiny_release(&tiny);
}

static void dropout_places_are_distinct(void **state)
{
    (void)state;
    expect_dropout_places("gpt2", 1 + 2 * 3);
    expect_dropout_places("gpt2-residual-dropout", 2 * 3);
}

/* ... and the gradient draws from where the forward drew. */
static void gradients_draw_the_same(void **state)
{
    struct tiny tiny;
    uint64_t forward = 0, backward = 0;

    (void)state;
    tiny_differentiate(&tiny, "gpt2", 1);
    const struct program *p = &tiny.program;
    for (int i = 0; i < p->functions[tiny.forward].n_ops; i++)
        forward += p->functions[tiny.forward].ops[i].attributes.rng_site;
    for (int i = 0; i < p->functions[tiny.backward].n_ops; i++)
        backward += p->functions[tiny.backward].ops[i].attributes.rng_site;
    assert_true(forward > 0);
    assert_true(forward == backward);
    tiny_release(&tiny);
}

static int find_function(const struct program *p, const char *name)
{
    for (int f = 0; f < p->n_functions; f++)
        if (str_starts_with(p->functions[f].name, name))
            return f;
    fail_msg("there is no function %s", name);
    return -1;
}

/* Evaluation drops nothing and writes no gradient. */
static void evaluation(void **state)
{
    struct model_spec spec = tiny_spec("gpt2");
    struct compile_train options = tiny_compile(&spec, 1);
    struct program p;
    struct err err;

    (void)state;
    if (compile_train(&p, &options, &err) < 0)
        fail_msg("%s", err.text);
    const struct function *f = &p.functions[find_function(&p, "evaluate")];
    assert_int_equal(count_kind(f, OP_HEAD_LOSS), 1);
    assert_int_equal(count_kind(f, OP_DROPOUT), 0);
    for (int i = 0; i < f->n_ops; i++) {
        assert_true(f->ops[i].attributes.p <= 0);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            assert_int_not_equal(p.values[f->ops[i].out[k]].role, ROLE_GRADIENT);
    }
    program_release(&p);
}

/* The forward, evaluation and generation agree on ops, but for attention and the end. */
static void check_one_decoder(const char *model)
{
    struct model_spec spec = tiny_spec(model);
    struct compile_generate generate = { .serving.model = &spec,
                                         .serving.dtype = DTYPE_F32,
                                         .n_sequences = 3,
                                         .prefill_len = 8,
                                         .cache_len = 20 };
    struct compile_evaluate evaluate = {
        .serving.model = &spec, .serving.dtype = DTYPE_F32, .micro_batch = 2, .seq_len = 8
    };
    struct program g, e;
    struct err err;

    if (compile_generate(&g, &generate, &err) < 0 || compile_evaluate(&e, &evaluate, &err) < 0)
        fail_msg("%s", err.text);
    const struct function *prefill = &g.functions[find_function(&g, "prefill")];
    const struct function *decode = &g.functions[find_function(&g, "decode")];
    const struct function *f = &e.functions[find_function(&e, "evaluate")];
    assert_int_equal(prefill->n_ops, f->n_ops + 1); /* select_rows and linear for head_loss */
    assert_int_equal(decode->n_ops, prefill->n_ops);
    for (int i = 0; i < f->n_ops - 1; i++) {
        enum op_kind kind = f->ops[i].kind == OP_ATTENTION ? OP_ATTENTION_CACHED : f->ops[i].kind;

        assert_int_equal(prefill->ops[i].kind, kind);
        assert_int_equal(decode->ops[i].kind, kind);
    }
    /* One cache for both entries, one row a sequence when decoding, logits of all. */
    for (int i = 0; i < prefill->n_ops; i++)
        if (prefill->ops[i].kind == OP_ATTENTION_CACHED) {
            assert_int_equal(prefill->ops[i].in[4], decode->ops[i].in[4]);
            assert_int_equal(prefill->ops[i].in[5], decode->ops[i].in[5]);
            assert_int_equal(g.values[prefill->ops[i].in[4]].rows, 3 * 20);
        }
    assert_int_equal(g.values[decode->ops[0].out[0]].rows, 3);
    assert_int_equal(g.values[prefill->ops[0].out[0]].rows, 3 * 8);
    assert_int_equal(g.values[g.ports.logits].rows, 3);
    assert_int_equal(g.values[g.ports.logits].cols, spec.vocab_size);
    assert_int_equal(e.segment_bytes[SEGMENT_GRADIENTS] + e.segment_bytes[SEGMENT_STATES], 0);
    program_release(&g);
    program_release(&e);
}

static void one_decoder(void **state)
{
    (void)state;
    check_one_decoder("llama");
    check_one_decoder("mixture");
}

/* Logits in memory stay near 8 M, or are those of 256 tokens where the vocabulary is large, and
 * a chunk is never more than all. */
static void head_chunks(void **state)
{
    static const char *const models[] = { "llama-tiny", "gpt2", "llama2-7b", "llama3-70b" };

    (void)state;
    for (int m = 0; m < 4; m++)
        for (int seq_len = 16; seq_len <= 4096; seq_len *= 4) {
            struct model_spec spec = real_spec(models[m]);
            struct compile_evaluate options = { .serving.model = &spec,
                                                .serving.dtype = DTYPE_BF16,
                                                .micro_batch = 1,
                                                .seq_len = seq_len };
            struct program p;
            struct err err;

            if (seq_len > spec.max_seq_len)
                continue;
            if (compile_evaluate(&p, &options, &err) < 0)
                fail_msg("%s", err.text);
            const struct op *head = &p.functions[0].ops[p.functions[0].n_ops - 1];
            assert_int_equal(head->kind, OP_HEAD_LOSS);
            assert_in_range(head->attributes.chunk, 1, seq_len);
            assert_true(head->attributes.chunk <= MODEL_HEAD_TOKENS ||
                        (int64_t)head->attributes.chunk * spec.vocab_size <= MODEL_HEAD_LOGITS);
            assert_true(head->attributes.chunk >= min_int(MODEL_HEAD_TOKENS, seq_len));
            program_release(&p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropout_places_are_distinct),
        cmocka_unit_test(gradients_draw_the_same),
        cmocka_unit_test(evaluation),
        cmocka_unit_test(one_decoder),
        cmocka_unit_test(head_chunks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
