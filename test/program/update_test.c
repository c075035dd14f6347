/*
 * update_test.c - the update's ops and states
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/tiny_model.h"

static const struct update_options options = {
    .clip = 0.5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
};

static void open_update(struct tiny *tiny, const char *model, int dp_size)
{
    tiny_shard(tiny, model, dp_size, 0);
    build_update(&tiny->program, tiny->update, &options);
}

/* The block sums of all parameters fill one vector without a gap, in the order of names. */
static void norm_is_in_name_order(void **state)
{
    struct tiny tiny;
    const char *name = "";
    int64_t offset = 0;

    (void)state;
    open_update(&tiny, "gpt2", 2);
    const struct program *p = &tiny.program;
    const struct function *u = &p->functions[tiny.update];
    for (int i = 0; i < u->n_ops; i++) {
        const struct value *sums = &p->values[u->ops[i].out[0]];

        if (u->ops[i].kind != OP_SUMSQ)
            continue;
        assert_true(strcmp(name, p->values[u->ops[i].in[0]].name) < 0);
        name = p->values[u->ops[i].in[0]].name;
        assert_int_equal(sums->offset, offset);
        offset += sums->cols;
    }
    assert_true(offset >= p->n_parameters);
    tiny_release(&tiny);
}

/* Tied uses are summed once, before the norm; moments and master have the parameter's shape. */
static void states_and_ties(void **state)
{
    struct tiny tiny;

    (void)state;
    open_update(&tiny, "gpt2", 1);
    const struct program *p = &tiny.program;
    const struct function *u = &p->functions[tiny.update];
    assert_int_equal(u->ops[0].kind, OP_ACCUMULATE);
    assert_int_equal(u->ops[0].first, FIRST_NEVER);
    assert_string_equal(p->values[u->ops[0].in[0]].name, "embedding.weight.grad.1");
    for (int i = 1; i < u->n_ops; i++)
        assert_int_not_equal(u->ops[i].kind, OP_ACCUMULATE);
    for (int i = 0; i < p->n_parameters; i++) {
        const struct parameter *q = &p->parameters[i];
        const int states[] = { q->master, q->moment1, q->moment2 };

        assert_int_equal(q->master, q->weight); /* fp32 */
        for (int k = 0; k < 3; k++) {
            assert_int_equal(p->values[states[k]].rows, q->rows);
            assert_int_equal(p->values[states[k]].cols, q->cols);
            assert_int_equal(p->values[states[k]].dtype, DTYPE_F32);
        }
    }
    tiny_release(&tiny);
}

/* bf16 weights have fp32 masters, which adamw updates and rounds; 1-D ones are fp32 and decay not.
 */
static void masters_and_decay(void **state)
{
    struct tiny tiny;
    int n = 0;

    (void)state;
    open_update(&tiny, "llama", 2);
    const struct program *p = &tiny.program;
    const struct function *u = &p->functions[tiny.update];
    for (int i = 0; i < u->n_ops; i++) {
        const struct op *op = &u->ops[i];

        if (op->kind != OP_ADAMW)
            continue;
        const struct parameter *q = NULL;
        for (int k = 0; k < p->n_parameters; k++)
            if (p->parameters[k].master == op->in[4])
                q = &p->parameters[k];
        assert_non_null(q);
        assert_int_equal(op->out[0], q->n_dims > 1 ? q->weight : 0);
        assert_int_equal(q->n_dims > 1, q->master != q->weight);
        assert_true(op->attributes.weight_decay == (q->n_dims > 1 ? options.weight_decay : 0));
        assert_int_equal(op->in[0], q->gradients[0]);
        n++;
    }
    assert_int_equal(n, p->n_parameters);
    tiny_release(&tiny);
}

static const struct value *constant(const struct program *p, const char *name)
{
    for (int id = 1; id < p->n_values; id++)
        if (program_has_content(p, id) && !strcmp(p->values[id].name, name))
            return &p->values[id];
    return NULL;
}

/* Where a block's sum stands once the ranks' are one after the other, each bucket by bucket. */
static int64_t place_of_sum(const struct program *p, const struct parameter *q, int64_t block)
{
    int dp_size = p->mesh.size[AXIS_DP];
    int64_t n_own = 0, before = 0;

    for (int b = 0; b < p->n_buckets; b++) {
        int64_t n = p->buckets[b].n_elements / OPS_NORM_BLOCK / dp_size;

        n_own += n;
        before += b < q->bucket ? n : 0;
    }
    int64_t n = p->buckets[q->bucket].n_elements / OPS_NORM_BLOCK / dp_size;
    block += q->bucket_offset / OPS_NORM_BLOCK;
    return block / n * n_own + before + block % n;
}

/* On shards: the same sums in the same order, each block once, with its parameter's decay. */
static void check_block_order(const struct program *p)
{
    const struct value *order = constant(p, "block_order");
    const char *name = "";
    int64_t at = 0;

    assert_non_null(order);
    int32_t *table = malloc((size_t)order->cols * sizeof *table);
    program_fill_content(p, (int)(order - p->values), table);
    for (int n = 0; n < p->n_parameters; n++) {
        const struct parameter *next = NULL;

        for (int i = 0; i < p->n_parameters; i++)
            if (strcmp(p->parameters[i].name, name) > 0 &&
                (!next || strcmp(p->parameters[i].name, next->name) < 0))
                next = &p->parameters[i];
        name = next->name;
        int64_t n_blocks = (next->rows * next->cols + OPS_NORM_BLOCK - 1) / OPS_NORM_BLOCK;
        for (int64_t k = 0; k < n_blocks; k++)
            assert_int_equal(table[at++], place_of_sum(p, next, k));
    }
    assert_int_equal(at, order->cols);
    free(table);
}

static void shards(const char *model, int dp_size)
{
    struct tiny tiny;

    tiny_zero(&tiny, model, dp_size, 0);
    build_update(&tiny.program, tiny.update, &options);
    check_block_order(&tiny.program);
    tiny_release(&tiny);
}

/* Parameters of many shards. */
static void many_shards(int dp_size, size_t bucket_bytes)
{
    struct model_spec spec = real_spec("llama-4m");
    struct compile_train train = tiny_compile(&spec, dp_size);
    struct program program;
    struct err err;

    train.gradients.zero = 1;
    train.gradients.bucket_bytes = bucket_bytes;
    if (compile_train(&program, &train, &err) < 0)
        fail_msg("%s", err.text);
    check_block_order(&program);
    program_release(&program);
}

static void norm_order_of_shards(void **state)
{
    (void)state;
    for (int dp_size = 2; dp_size <= 5; dp_size++) {
        shards("llama", dp_size);
        shards("gpt2", dp_size);
    }
    many_shards(3, 1);
    many_shards(7, (size_t)4 << 20);
    many_shards(256, (size_t)32 << 20);
}

static void decay_of_shards(void **state)
{
    struct tiny tiny;
    int n_tables = 0, n_adamw = 0;

    (void)state;
    tiny_zero(&tiny, "gpt2", 2, 0);
    build_update(&tiny.program, tiny.update, &options);
    const struct program *p = &tiny.program;
    const struct function *u = &p->functions[tiny.update];
    for (int i = 0; i < u->n_ops; i++) {
        const struct op *op = &u->ops[i];
        int number = n_adamw;

        if (op->kind != OP_ADAMW)
            continue;
        const struct bucket *b = &p->buckets[n_adamw++];
        int cell = op->in[7] ? p->values[op->in[7]].base : 0;
        double *table = cell ? malloc(program_value_bytes(p, cell)) : NULL;
        if (table)
            program_fill_content(p, cell, table);
        n_tables += table != NULL;
        assert_int_equal(op->in[0], b->shards[0]);
        assert_int_equal(op->in[4], b->weight_shard);
        for (int k = 0; k < p->n_parameters; k++) {
            const struct parameter *q = &p->parameters[k];
            double wanted = q->n_dims > 1 ? options.weight_decay : 0;

            if (q->bucket != number)
                continue;
            int64_t block = q->bucket_offset / OPS_NORM_BLOCK;
            assert_true((table ? table[block] : op->attributes.weight_decay) == wanted);
        }
        free(table);
    }
    assert_int_equal(n_adamw, p->n_buckets);
    assert_true(n_tables > 0);
    tiny_release(&tiny);
}

static const struct op *next_adamw(const struct function *u, int *at)
{
    while (*at < u->n_ops && u->ops[*at].kind != OP_ADAMW)
        ++*at;
    return *at < u->n_ops ? &u->ops[(*at)++] : NULL;
}

/* Moments are bf16, weights of either dtype their own masters, and each op knows its parameter. */
static void states_in_bf16(void **state)
{
    struct update_options in_bf16 = options;
    const struct op *op;
    struct tiny tiny;
    int n = 0, at = 0;

    (void)state;
    in_bf16.states = DTYPE_BF16;
    in_bf16.seed = 77;
    tiny_shard(&tiny, "llama", 2, 0);
    build_update(&tiny.program, tiny.update, &in_bf16);
    const struct program *p = &tiny.program;
    while ((op = next_adamw(&p->functions[tiny.update], &at))) {
        const struct parameter *q = &p->parameters[program_parameter_of(p, op->in[4])];

        assert_int_equal(q->master, q->weight);
        assert_int_equal(p->values[q->weight].dtype, q->n_dims > 1 ? DTYPE_BF16 : DTYPE_F32);
        assert_int_equal(p->values[op->in[5]].dtype, DTYPE_BF16);
        assert_int_equal(p->values[op->in[6]].dtype, DTYPE_BF16);
        assert_int_equal(op->in[8] | op->in[9] | op->out[0], 0);
        assert_true(op->attributes.seed == 77);
        assert_true(op->attributes.rng_site == ops_rng_site(rng_hash_name(q->name)));
        n++;
    }
    assert_int_equal(n, p->n_parameters);
    tiny_release(&tiny);
}

/* Whatever bucket a parameter is in, its blocks have the places that it has alone. */
static void places_of_shards(void **state)
{
    struct update_options in_bf16 = options;
    const struct op *op;
    struct tiny tiny;
    int n = 0, at = 0;

    (void)state;
    in_bf16.states = DTYPE_BF16;
    tiny_zero(&tiny, "llama", 2, 0);
    build_update(&tiny.program, tiny.update, &in_bf16);
    const struct program *p = &tiny.program;
    while ((op = next_adamw(&p->functions[tiny.update], &at))) {
        const struct bucket *b = &p->buckets[n];
        int cell = p->values[op->in[8]].base;
        double *table = malloc(program_value_bytes(p, cell));

        program_fill_content(p, cell, table);
        assert_int_equal(op->in[4], b->weight_shard);
        assert_int_equal(b->master, b->weight_shard);
        assert_int_equal(p->values[b->moment1].dtype, DTYPE_BF16);
        for (int k = 0; k < p->n_parameters; k++) {
            const struct parameter *q = &p->parameters[k];

            for (int64_t i = 0; q->bucket == n && i < q->rows * q->cols; i += OPS_NORM_BLOCK)
                assert_true((uint64_t)table[(q->bucket_offset + i) / OPS_NORM_BLOCK] ==
                            ops_rng_site(rng_hash_name(q->name)) + (uint64_t)(i / OPS_NORM_BLOCK));
        }
        free(table);
        n++;
    }
    assert_int_equal(n, p->n_buckets);
    tiny_release(&tiny);
}

static void check_part(const struct program *p, const struct parameter *q, int part)
{
    bool is_vector = q->n_dims == 1, is_qkv = strstr(q->name, ".qkv.") != NULL;
    const struct value *v = &p->values[part];
    int wanted = is_vector ? 0 : is_qkv ? 4 : 2;

    if (!wanted) {
        assert_int_equal(part, 0);
        return;
    }
    assert_int_equal(v->cols, 1);
    assert_int_equal(p->values[v->base].cols, wanted);
    assert_int_equal(v->shard_axis, 1 + (is_qkv ? AXIS_ULYSSES : AXIS_TP));
    assert_int_equal(v->outer_shard_axis, is_qkv ? 1 + AXIS_TP : 0);
}

/*
 * A parameter that is split over two axes has as many parts as these have ranks together, and each
 * a number and a sum of squares. The sums stand rank by rank, tp varying fastest.
 */
static void parts_of_two_axes(void **state)
{
    struct model_spec spec = tiny_spec("llama");
    struct compile_train train = tiny_compile(&spec, 1);
    struct program p;
    const struct op *op;
    struct err err;
    int at = 0, n_sums = 0;

    (void)state;
    spec.n_kv_heads = spec.n_heads;
    train.mesh.size[AXIS_TP] = train.mesh.size[AXIS_ULYSSES] = 2;
    train.fastseq = 1;
    train.update.states = DTYPE_BF16;
    if (compile_train(&p, &train, &err) < 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < p.n_functions; i++, at = 0)
        while ((op = next_adamw(&p.functions[i], &at))) {
            const struct parameter *q = &p.parameters[program_parameter_of(&p, op->in[4])];

            check_part(&p, q, op->in[OPTIMIZER_PART]);
            n_sums += q->n_dims == 1 ? 1 : strstr(q->name, ".qkv.") ? 4 : 2;
        }
    const struct value *order = constant(&p, "norm_order");
    const int32_t *table = order->content;
    assert_int_equal(order->cols, n_sums);
    for (int i = 0; i < n_sums; i++)
        for (int k = 0; k < i; k++)
            assert_int_not_equal(table[i], table[k]);
    program_release(&p);
}

/* What is frozen has no part in it. */
static void frozen_parameters(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_forward(&tiny, "llama", 1);
    struct program *p = &tiny.program;
    p->parameters[0].trainable = 0;
    differentiate(p, tiny.forward, tiny.backward, &tiny.seed, 1, 0);
    shard_gradients(p, &tiny.chunk, 1, tiny.update, &(struct shard_options){ .bucket_bytes = 1 });
    build_update(p, tiny.update, &options);
    assert_int_equal(p->parameters[0].master, 0);
    assert_int_equal(p->parameters[0].moment1, 0);
    int n = 0;
    for (int i = 0; i < p->functions[tiny.update].n_ops; i++)
        n += p->functions[tiny.update].ops[i].kind == OP_ADAMW;
    assert_int_equal(n, p->n_parameters - 1);
    tiny_release(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_is_in_name_order), cmocka_unit_test(states_and_ties),
        cmocka_unit_test(masters_and_decay),     cmocka_unit_test(norm_order_of_shards),
        cmocka_unit_test(decay_of_shards),       cmocka_unit_test(frozen_parameters),
        cmocka_unit_test(states_in_bf16),        cmocka_unit_test(places_of_shards),
        cmocka_unit_test(parts_of_two_axes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
