/*
 * zero3_prefetch_test.c - zero 3: what is gathered ahead of the function that reads it
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "base/str.h"
#include "zero3_programs.h"

static bool is_of_chunk(const struct program *p, const struct action *a)
{
    const char *name = p->functions[a->function].name;

    return a->kind == ACTION_RUN &&
           (str_starts_with(name, "forward ") || str_starts_with(name, "backward "));
}

/* The bucket that the n-th product of the function reads first; -1: it has no such product. */
static int bucket_of_product(const struct program *p, const struct function *f, int n)
{
    int before = -1;

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            int bucket = p->values[f->ops[i].in[k]].bucket - 1;

            if (!(op_info(f->ops[i].kind)->traits & TRAIT_PRODUCT) || bucket < 0 ||
                bucket == before)
                continue;
            before = bucket;
            if (!n--)
                return bucket;
        }
    return -1;
}

static bool is_gathered_in(const struct program *p, const struct function *f, int bucket)
{
    for (int i = 0; i < f->n_ops; i++)
        if (is_gather(p, &f->ops[i]) && p->values[f->ops[i].out[0]].bucket == 1 + bucket)
            return true;
    return false;
}

/* No function waits for what its first products read: that is gathered before the one before it,
 * or has been. */
static void check_heads(const struct program *p, int n_ahead)
{
    const struct entry *step = &p->entries[ENTRY_STEP];
    char *has = arena_array(&((struct program *)p)->arena, char, p->n_buckets);
    char *next = arena_array(&((struct program *)p)->arena, char, p->n_buckets);
    int n_checked = 0;

    for (int i = 0; i < step->n_actions; i++) {
        const struct function *f = &p->functions[step->actions[i].function];

        if (step->actions[i].kind == ACTION_RUN && str_starts_with(f->name, "ahead "))
            for (int k = 0; k < f->n_ops; k++)
                next[p->values[f->ops[k].out[0]].bucket - 1] = 1;
        if (!is_of_chunk(p, &step->actions[i]))
            continue;
        for (int n = 0; n < n_ahead && bucket_of_product(p, f, n) >= 0; n++) {
            int bucket = bucket_of_product(p, f, n);

            assert_false(is_gathered_in(p, f, bucket));
            assert_true(has[bucket] || (!n_checked && next[bucket]));
        }
        n_checked++;
        memcpy(has, next, (size_t)p->n_buckets);
    }
    assert_true(n_checked >= 8);
}

static void ahead_of_every_function(void **state)
{
    static const enum pipeline_kind kinds[] = { PIPELINE_1F1B, PIPELINE_INTERLEAVED,
                                                PIPELINE_BREADTH_FIRST, PIPELINE_ZB_H1 };

    (void)state;
    for (int i = 0; i < 4 * 2 * 2; i++) {
        enum pipeline_kind kind = kinds[i / 4];
        int n_ahead = 1 + i % 2;
        struct model_spec spec;
        struct compile_train options = four_chunks(&spec, kind);
        struct program p;

        if (kind == PIPELINE_1F1B || kind == PIPELINE_ZB_H1)
            options.pipeline.n_chunks = 1;
        options.gradients.zero3 = ZERO3_GATHER_PASS;
        options.gradients.n_ahead = n_ahead;
        options.pipeline.rank = i / 2 % 2;
        options.recompute = i % 3 ? RECOMPUTE_KIND_FULL : RECOMPUTE_KIND_NONE;
        compile(&p, &options);
        check_heads(&p, n_ahead);
        program_release(&p);
    }
}

/* A forward and a backward that alternate find what the first ones had. */
static void one_chunk_gathers_its_heads_once(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train options = zero_3(&spec, 2, ZERO3_GATHER_PASS);
    size_t cells = 0, buckets = 0, weights[2];
    struct program p;
    int n = 0;

    (void)state;
    options.n_micro_batches = 8;
    compile(&p, &options);
    weights[0] = p.segment_bytes[SEGMENT_WEIGHTS];
    program_release(&p);
    options.gradients.n_ahead = 1;
    compile(&p, &options);
    weights[1] = p.segment_bytes[SEGMENT_WEIGHTS];
    for (int i = 0; i < p.entries[ENTRY_STEP].n_actions; i++) {
        const struct action *a = &p.entries[ENTRY_STEP].actions[i];
        const struct function *f = &p.functions[a->function];

        if (a->kind != ACTION_RUN || !str_starts_with(f->name, "ahead "))
            continue;
        n++;
        for (int k = 0; k < f->n_ops; k++)
            buckets += program_value_bytes(&p, f->ops[k].out[0]);
    }
    assert_int_equal(n, 2);
    for (int id = 1; id < p.n_values; id++)
        if (p.values[id].name && str_starts_with(p.values[id].name, "weights_ahead."))
            cells += program_value_bytes(&p, id);
    assert_int_equal(cells, buckets);
    assert_true(weights[1] >= weights[0] + cells);
    program_release(&p);
}

/* In a function each gather is issued where the bucket so many before its own is first read. */
static void as_many_ahead_within(void **state)
{
    (void)state;
    for (int n_ahead = 1; n_ahead <= 3; n_ahead++) {
        struct model_spec spec = tiny_spec("llama");
        spec.n_layers = 8;
        struct compile_train options = zero_3(&spec, 2, ZERO3_GATHER_PASS);
        struct program p;
        int n_most = 0;

        options.gradients.n_ahead = n_ahead;
        compile(&p, &options);
        const struct function *f = &p.functions[0];
        for (int i = 0, n_open = 0; i < f->n_ops; i++) {
            n_open += is_gather(&p, &f->ops[i]);
            n_most = max_int(n_most, n_open);
            for (int k = 0; k < i; k++)
                n_open -= is_gather(&p, &f->ops[k]) && first_reader(&p, f, k) == i;
        }
        /* And the one that is about to be read. */
        assert_int_equal(n_most, n_ahead + 1);
        program_release(&p);
    }
}

/* What a function reads, gathered behind it: nothing was there, or another bucket. */
static void gathered_ahead_too_late(void **state)
{
    struct model_spec spec;
    struct compile_train options = four_chunks(&spec, PIPELINE_INTERLEAVED);
    struct program p;
    struct err err;
    int n_moved = 0;

    (void)state;
    options.gradients.zero3 = ZERO3_GATHER_PASS;
    options.gradients.n_ahead = 1;
    compile(&p, &options);
    struct entry *step = &p.entries[ENTRY_STEP];
    for (int i = 0; i < step->n_actions; i++) {
        struct action ahead = step->actions[i];
        int to = i;

        if (ahead.kind != ACTION_RUN ||
            !str_starts_with(p.functions[ahead.function].name, "ahead "))
            continue;
        for (int n = 0; n < (i ? 2 : 1); n += is_of_chunk(&p, &step->actions[to]))
            to++;
        memmove(step->actions + i, step->actions + i + 1, sizeof ahead * (size_t)(to - i));
        step->actions[to] = ahead;
        must_refuse(&p, "weight", "gathered");
        memmove(step->actions + i + 1, step->actions + i, sizeof ahead * (size_t)(to - i));
        step->actions[i] = ahead;
        n_moved++;
    }
    assert_true(n_moved > 4);
    assert_int_equal(verify(&p, &err), 0);
    program_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ahead_of_every_function),
        cmocka_unit_test(one_chunk_gathers_its_heads_once),
        cmocka_unit_test(gathered_ahead_too_late),
        cmocka_unit_test(as_many_ahead_within),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
