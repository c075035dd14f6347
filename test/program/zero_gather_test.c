/*
 * zero_gather_test.c - weights in flat cells, gathered in the order of their use
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/tiny_model.h"

/* A weight is a view of its bucket's, and of each of those a rank owns the dp_size-th part. */
static void check_weights(const struct program *p, int dp_size)
{
    for (int i = 0; i < p->n_parameters; i++) {
        const struct parameter *q = &p->parameters[i];
        const struct value *v = &p->values[q->weight];

        assert_int_equal(v->base, p->buckets[q->bucket].weights);
        assert_int_equal(v->offset, q->bucket_offset);
        assert_int_equal(v->role, ROLE_WEIGHT);
        assert_string_equal(v->name, q->name);
    }
    for (int b = 0; b < p->n_buckets; b++) {
        const struct value *own = &p->values[p->buckets[b].weight_shard];

        assert_int_equal(own->base, p->buckets[b].weights);
        assert_int_equal(own->shard_axis, 1 + AXIS_DP);
        assert_int_equal(own->cols * dp_size, p->buckets[b].n_elements);
        assert_int_equal(own->spread[AXIS_DP], SPREAD_COLS);
        assert_int_equal(p->values[own->base].spread[AXIS_DP], SPREAD_SAME);
    }
}

/* The forward's op that reads of this flat cell first. */
static int first_use(const struct program *p, const struct function *forward, int cell)
{
    for (int i = 0; i < forward->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            if (program_base(p, forward->ops[i].in[k]) == cell)
                return i;
    fail_msg("the forward never reads %s", p->values[cell].name);
    return -1;
}

static void check_order(const struct tiny *tiny)
{
    const struct program *p = &tiny->program;
    const struct function *gather = &p->functions[tiny->gather];
    int before = -1;

    assert_int_equal(gather->n_ops, p->n_buckets);
    for (int i = 0; i < gather->n_ops; i++) {
        const struct op *op = &gather->ops[i];
        int use = first_use(p, &p->functions[tiny->forward], op->out[0]);

        assert_int_equal(op->kind, OP_ALL_GATHER);
        assert_int_equal(op->stream, STREAM_DP_GATHER);
        assert_int_equal(p->values[op->in[0]].base, op->out[0]);
        assert_true(use >= before);
        before = use;
    }
}

static void every_size(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int dp_size = 2; dp_size <= 5; dp_size++) {
            struct tiny tiny;

            tiny_zero(&tiny, m ? "gpt2" : "llama", dp_size, 0);
            check_weights(&tiny.program, dp_size);
            check_order(&tiny);
            assert_true(tiny.program.n_buckets > 3);
            tiny_release(&tiny);
        }
}

/* The ranks' parts of each parameter are all of it, each element once, at its place in the bucket.
 */
static void parts_are_the_whole(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int dp_size = 2; dp_size <= 9; dp_size++) {
            struct tiny tiny;

            tiny_zero(&tiny, m ? "gpt2" : "llama", dp_size, 0);
            const struct program *p = &tiny.program;
            for (int i = 0; i < p->n_parameters; i++) {
                const struct parameter *q = &p->parameters[i];
                int64_t shard = p->buckets[q->bucket].n_elements / dp_size, n = 0;

                for (int rank = 0; rank < dp_size; rank++) {
                    struct mesh_place place = mesh_place(&p->mesh, rank);
                    struct parameter_part part = program_parameter_part(p, i, &place);

                    if (part.begin == part.end)
                        continue;
                    assert_int_equal(part.begin, n);
                    assert_int_equal(rank * shard + part.offset, q->bucket_offset + part.begin);
                    assert_true(part.offset + part.end - part.begin <= shard);
                    n = part.end;
                }
                assert_int_equal(n, q->rows * q->cols);
            }
            tiny_release(&tiny);
        }
}

/* One rank has nobody to share with: the program is that of zero 0. */
static void one_rank_shards_nothing(void **state)
{
    struct model_spec spec = tiny_spec("gpt2");
    struct compile_train options = tiny_compile(&spec, 1);
    struct str text[2] = { { 0 }, { 0 } };

    (void)state;
    for (int zero = 0; zero < 2; zero++) {
        struct program p;
        struct err err;

        options.gradients.zero = zero;
        if (compile_train(&p, &options, &err) < 0)
            fail_msg("%s", err.text);
        print_program(&p, PRINT_ADDRESSES, &text[zero]);
        program_release(&p);
    }
    assert_string_equal(str_text(&text[0]), str_text(&text[1]));
    str_release(&text[0]);
    str_release(&text[1]);
}

/* Masters and moments take the dp_size-th part, but for what rounds shards up to whole blocks. */
static void states_are_a_share(void **state)
{
    struct model_spec spec = real_spec("llama-22m");

    (void)state;
    for (int dp_size = 2; dp_size <= 8; dp_size *= 2) {
        size_t n_bytes[2];

        for (int zero = 0; zero < 2; zero++) {
            struct compile_train options = tiny_compile(&spec, dp_size);
            struct program p;
            struct err err;

            options.dtype = DTYPE_BF16;
            options.gradients.zero = zero;
            options.gradients.bucket_bytes = (size_t)8 << 20;
            if (compile_train(&p, &options, &err) < 0)
                fail_msg("%s", err.text);
            n_bytes[zero] = p.segment_bytes[SEGMENT_STATES];
            program_release(&p);
        }
        double share = (double)n_bytes[1] * dp_size / (double)n_bytes[0];
        if (!(share >= 1 && share < 1.02))
            fail_msg("dp %d: %zu bytes of states, %zu at zero 0", dp_size, n_bytes[1], n_bytes[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size),
        cmocka_unit_test(parts_are_the_whole),
        cmocka_unit_test(one_rank_shards_nothing),
        cmocka_unit_test(states_are_a_share),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
