/*
 * shard_test.c - buckets: what lies in them, when each is reduced, what the update reads
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/num.h"
#include "support/tiny_model.h"

static const char *const models[] = { "llama", "gpt2" };

static int is_bucket(const struct program *p, int id)
{
    return p->values[id].role == ROLE_GRADIENT && !p->values[id].base &&
           str_starts_with(p->values[id].name, "bucket.") &&
           !str_ends_with(p->values[id].name, ":shard");
}

static int writes_into(const struct program *p, const struct op *op, int base)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && program_base(p, op->out[k]) == base)
            return 1;
    return 0;
}

/* Accumulators lie apart, each at a norm block's edge; shards' edges are blocks' edges too. */
static void check_layout(const struct program *p, int dp_size)
{
    for (int id = 1; id < p->n_values; id++)
        if (is_bucket(p, id))
            assert_int_equal(p->values[id].cols % ((int64_t)dp_size * OPS_NORM_BLOCK), 0);
    for (int i = 0; i < p->n_parameters; i++)
        for (int use = 0; use < p->parameters[i].n_gradients; use++) {
            const struct value *v = &p->values[p->parameters[i].gradients[use]];

            assert_true(is_bucket(p, v->base));
            assert_int_equal(v->offset % OPS_NORM_BLOCK, 0);
            assert_int_equal(v->spread[AXIS_DP], SPREAD_SAME);
            for (int j = 0; j < i; j++) {
                const struct value *other = &p->values[p->parameters[j].gradients[0]];

                if (other->base == v->base)
                    assert_true(other->offset + other->rows * other->cols <= v->offset ||
                                v->offset + v->rows * v->cols <= other->offset);
            }
        }
}

/* Index in f of the one op of this kind whose operand 0 is of the bucket (or whose result is). */
static int find_collective(const struct program *p, const struct function *f, enum op_kind kind,
                           int bucket)
{
    int found = -1;

    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];
        int id = op->kind == OP_ALL_GATHER ? op->out[0] : op->in[0];

        if (op->kind != kind || program_base(p, id) != bucket)
            continue;
        assert_int_equal(found, -1);
        found = i;
    }
    return found;
}

/* Where this bucket is reduced: early, in the forward if that completes it (the head). */
static const struct function *reducing(const struct tiny *tiny, int bucket)
{
    const struct program *p = &tiny->program;
    const struct function *forward = &p->functions[tiny->forward];

    return find_collective(p, forward, OP_REDUCE_SCATTER, bucket) >= 0 ? forward
                                                                       : &p->functions[tiny->last];
}

/* The reduce comes right after the op that completes its bucket; between them only other reduces.
 */
static void check_reduces(const struct tiny *tiny, int early)
{
    const struct program *p = &tiny->program;
    const struct function *update = &p->functions[tiny->update];
    int n_buckets = 0;

    for (int id = 1; id < p->n_values; id++) {
        if (!is_bucket(p, id))
            continue;
        const struct function *last = reducing(tiny, id);
        int reduce = find_collective(p, last, OP_REDUCE_SCATTER, id), at = reduce - 1;
        n_buckets++;
        assert_true(early || last == &p->functions[tiny->last]);
        assert_true(reduce >= 0);
        while (at >= 0 && last->ops[at].stream != STREAM_COMPUTE)
            at--;
        /* Else the forward completes it: nothing of the backward comes before. */
        if (at >= 0)
            assert_true(writes_into(p, &last->ops[at], id));
        for (int i = reduce + 1; i < last->n_ops; i++)
            assert_true(last->ops[i].stream != STREAM_COMPUTE ||
                        !writes_into(p, &last->ops[i], id));
        if (early) {
            assert_true(find_collective(p, update, OP_ALL_GATHER, id) >= 0);
            assert_int_equal(last->ops[reduce].first, FIRST_MICRO_BATCH);
        } else {
            assert_int_equal(find_collective(p, last, OP_ALL_GATHER, id), reduce + 1);
            assert_int_equal(last->ops[reduce].first, FIRST_ALWAYS);
        }
    }
    assert_true(n_buckets > 3);
}

static void check_model(const char *model, int dp_size, int early)
{
    struct tiny tiny;

    tiny_shard(&tiny, model, dp_size, early);
    assert_int_equal(tiny.last == tiny.backward, early);
    check_layout(&tiny.program, dp_size);
    check_reduces(&tiny, early);
    tiny_release(&tiny);
}

static void every_size(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int dp_size = 2; dp_size <= 7; dp_size++)
            for (int early = 0; early < 2; early++)
                check_model(models[m], dp_size, early);
}

/* Late: micro-batches add up on each rank, so nothing is reduced before the last. */
static void late_leaves_the_backward_alone(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_shard(&tiny, "llama", 2, 0);
    const struct program *p = &tiny.program;
    const struct function *b = &p->functions[tiny.backward];
    int n_accumulating = 0;
    for (int i = 0; i < b->n_ops; i++) {
        assert_int_equal(b->ops[i].stream, STREAM_COMPUTE);
        assert_int_equal(b->ops[i].first, FIRST_MICRO_BATCH);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            n_accumulating += program_accumulates(p, &b->ops[i], k);
    }
    assert_int_equal(n_accumulating, p->n_parameters - 1); /* the head's is the forward's */
    assert_int_equal(p->functions[tiny.update].n_ops, 0);
    tiny_release(&tiny);
}

/* Early: each micro-batch's gradient stands alone until it is reduced, the loss still adds up. */
static void early_starts_over(void **state)
{
    struct tiny tiny;

    (void)state;
    tiny_shard(&tiny, "gpt2", 2, 1);
    const struct program *p = &tiny.program;
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            for (int k = 0; op->stream == STREAM_COMPUTE && k < OPS_MAX_OUTPUTS; k++)
                if (op->out[k] && p->values[op->out[k]].role == ROLE_GRADIENT)
                    assert_int_equal(op->first, FIRST_ALWAYS);
        }
    tiny_release(&tiny);
}

static void one_rank_reduces_nothing(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) {
        struct tiny tiny;

        tiny_shard(&tiny, "gpt2", 1, early);
        assert_int_equal(tiny.last, tiny.backward);
        for (int f = 0; f < tiny.program.n_functions; f++)
            for (int i = 0; i < tiny.program.functions[f].n_ops; i++)
                assert_int_equal(tiny.program.functions[f].ops[i].stream, STREAM_COMPUTE);
        tiny_release(&tiny);
    }
}

/*
 * Zero 1: a parameter's uses begin at one element of their cells, so their shards can be added; the
 * weights of a bucket are of one dtype; each flat cell is reduced once its last writer is done, and
 * no gradient is gathered.
 */
static void check_zero_one(const char *model, int dp_size, int early)
{
    struct tiny tiny;

    tiny_zero(&tiny, model, dp_size, early);
    const struct program *p = &tiny.program;
    for (int i = 0; i < p->n_parameters; i++) {
        const struct parameter *q = &p->parameters[i];
        const struct bucket *b = &p->buckets[q->bucket];

        assert_int_equal(b->n_uses, q->n_gradients);
        assert_int_equal(p->values[q->weight].dtype, p->values[b->weights].dtype);
        for (int use = 0; use < q->n_gradients; use++) {
            const struct value *v = &p->values[q->gradients[use]];

            assert_int_equal(v->base, b->gradients[use]);
            assert_int_equal(v->offset, q->bucket_offset);
            assert_int_equal(v->spread[AXIS_DP], SPREAD_PARTIAL);
        }
        for (int j = 0; j < i; j++)
            if (p->parameters[j].bucket == q->bucket)
                assert_true(p->parameters[j].bucket_offset +
                                    p->parameters[j].rows * p->parameters[j].cols <=
                                q->bucket_offset ||
                            q->bucket_offset + q->rows * q->cols <= p->parameters[j].bucket_offset);
    }
    for (int b = 0; b < p->n_buckets; b++)
        for (int use = 0; use < p->buckets[b].n_uses; use++) {
            int cell = p->buckets[b].gradients[use];
            const struct function *last = reducing(&tiny, cell);
            int at = find_collective(p, last, OP_REDUCE_SCATTER, cell);

            assert_int_equal(p->buckets[b].n_elements % ((int64_t)dp_size * OPS_NORM_BLOCK), 0);
            assert_true(at >= 0);
            for (int i = at + 1; i < last->n_ops; i++)
                assert_true(last->ops[i].stream != STREAM_COMPUTE ||
                            !writes_into(p, &last->ops[i], cell));
            for (int f = 0; f < p->n_functions; f++)
                assert_int_equal(find_collective(p, &p->functions[f], OP_ALL_GATHER, cell), -1);
        }
    tiny_release(&tiny);
}

static void zero_one(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int dp_size = 2; dp_size <= 7; dp_size++)
            for (int early = 0; early < 2; early++)
                check_zero_one(models[m], dp_size, early);
}

/* ---- ranks of parts of sequences alone: no axis shards ---- */

/* All-reduces of the bucket in f, each behind all that writes it. */
static int count_sums(const struct program *p, const struct function *f, int bucket)
{
    int n = 0;

    for (int i = 0; i < f->n_ops; i++)
        if (f->ops[i].kind == OP_ALL_REDUCE && program_base(p, f->ops[i].in[0]) == bucket)
            n++;
        else
            assert_true(!n || !writes_into(p, &f->ops[i], bucket));
    return n;
}

/* Summed over both axes while the last micro-batch's backward goes on, and nowhere else. */
static void check_whole_sums(const char *model, int zero, int early)
{
    struct model_spec spec = tiny_spec(model);
    struct compile_train options = tiny_compile(&spec, 1);
    struct program p;
    struct err err;
    int n_buckets = 0;

    options.mesh.size[AXIS_ULYSSES] = options.mesh.size[AXIS_CP] = 2;
    options.gradients.zero = zero;
    options.gradients.early = early;
    assert_int_equal(compile_train(&p, &options, &err), 0);
    for (int id = 1; id < p.n_values; id++) {
        if (!is_bucket(&p, id))
            continue;
        n_buckets++;
        for (int i = 0; i < p.n_functions; i++) {
            const struct function *f = &p.functions[i];
            bool is_last = str_ends_with(f->name, ", last micro-batch");

            assert_int_equal(count_sums(&p, f, id), is_last ? 2 : 0);
        }
    }
    assert_true(n_buckets > 3);
    program_release(&p);
}

static void parts_of_sequences_alone(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int zero = 0; zero < 4; zero++)
            for (int early = 0; early < 2; early++)
                check_whole_sums(models[m], zero, early);
}

/* Smaller buckets are more; one of any size holds at least one accumulator, and none more than it
 * must. */
static void bucket_sizes(void **state)
{
    (void)state;
    for (size_t bucket_bytes = 1; bucket_bytes < (size_t)1 << 20; bucket_bytes *= 4) {
        struct shard_options options = { .bucket_bytes = bucket_bytes };
        struct tiny tiny;
        size_t in_bucket[64] = { 0 }, n_buckets = 0, largest = 0;

        tiny_recompute(&tiny, "llama", 2, RECOMPUTE_KIND_NONE);
        struct program *p = &tiny.program;
        shard_gradients(p, &tiny.chunk, 1, tiny.update, &options);
        for (int i = 0; i < p->n_parameters; i++) {
            int id = p->parameters[i].gradients[0];
            int64_t bucket = -1;

            assert_int_equal(str_to_i64(p->values[p->values[id].base].name + 7, &bucket), 0);
            assert_true(bucket < 64);
            in_bucket[bucket] += program_value_bytes(p, id);
            largest = program_value_bytes(p, id) > largest ? program_value_bytes(p, id) : largest;
        }
        for (int b = 0; b < 64; b++)
            n_buckets += in_bucket[b] > 0;
        for (int b = 0; b < 64; b++)
            assert_true(in_bucket[b] < bucket_bytes + largest);
        if (bucket_bytes == 1)
            assert_int_equal(n_buckets, p->n_parameters);
        tiny_release(&tiny);
    }
}

/* ---- zero 2: what lies between a bucket's members ---- */

/* Elements of a flat cell. */
struct span {
    int64_t begin, end;
};

static struct span span_of(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    return (struct span){ v->offset, v->offset + v->rows * v->cols };
}

/* Whether some of the spans, which follow one another, hold all of this one. */
static int holds(const struct span *spans, int n, struct span span)
{
    for (int i = 0; i < n && span.begin < span.end; i++)
        if (spans[i].begin <= span.begin && span.begin < spans[i].end)
            span.begin = spans[i].end;
    return span.begin >= span.end;
}

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Zeros that the ops right ahead of a reduction write: of zeros, or of what they have written. */
static int list_cleared(const struct program *p, const struct function *f, int reduce,
                        struct span *spans)
{
    int base = program_base(p, f->ops[reduce].in[0]), first = reduce, n = 0;

    while (first > 0 && f->ops[first - 1].kind == OP_ADD &&
           program_base(p, f->ops[first - 1].out[0]) == base)
        first--;
    for (int i = first; i < reduce; i++) {
        const struct op *op = &f->ops[i];

        assert_int_equal(op->in[0], op->in[1]);
        if (p->values[program_base(p, op->in[0])].role != ROLE_CONSTANT)
            assert_true(holds(spans, n, span_of(p, op->in[0])));
        spans[n++] = span_of(p, op->out[0]);
    }
    return n;
}

/* The bucket whose shard this is. */
static const struct bucket *bucket_of_shard(const struct program *p, int shard)
{
    for (int i = 0; i < p->n_buckets; i++)
        if (p->buckets[i].shards[0] == shard)
            return &p->buckets[i];
    fail_msg("no bucket has this shard");
    return NULL;
}

/* Sums and zeros fill the bucket, and do not meet. Returns how many ops write zeros. */
static int check_filled(const struct program *p, const struct function *f, int reduce)
{
    const struct bucket *b = bucket_of_shard(p, f->ops[reduce].out[0]);
    struct span spans[128];
    int n_cleared = list_cleared(p, f, reduce, spans), n = n_cleared;

    for (int i = 0; i < p->n_parameters; i++)
        if (&p->buckets[p->parameters[i].bucket] == b)
            spans[n++] = span_of(p, p->parameters[i].gradients[0]);
    assert_true(n <= 128);
    qsort(spans, (size_t)n, sizeof *spans, by_begin);
    assert_int_equal(spans[0].begin, 0);
    for (int i = 1; i < n; i++)
        assert_int_equal(spans[i].begin, spans[i - 1].end);
    assert_int_equal(spans[n - 1].end, b->n_elements);
    return n_cleared;
}

/* Few ops do it, however many ranks there are. */
static void gaps_are_cleared(void **state)
{
    static const int sizes[] = { 2, 256, 1000, 131072 };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct shard_options options = { .zero = 2, .early = 1, .bucket_bytes = 8 << 10 };
        struct tiny tiny;
        int n = 0, n_reduces = 0;

        tiny_recompute(&tiny, "llama", sizes[i], RECOMPUTE_KIND_NONE);
        struct program *p = &tiny.program;
        shard_gradients(p, &tiny.chunk, 1, tiny.update, &options);
        for (int f = 0; f < p->n_functions; f++)
            for (int k = 0; k < p->functions[f].n_ops; k++)
                if (p->functions[f].ops[k].kind == OP_REDUCE_SCATTER) {
                    n += check_filled(p, &p->functions[f], k);
                    n_reduces++;
                }
        assert_true(n_reduces > 3);
        assert_true(n <= p->n_parameters + 10 * n_reduces);
        tiny_release(&tiny);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size),        cmocka_unit_test(late_leaves_the_backward_alone),
        cmocka_unit_test(early_starts_over), cmocka_unit_test(one_rank_reduces_nothing),
        cmocka_unit_test(bucket_sizes),      cmocka_unit_test(zero_one),
        cmocka_unit_test(gaps_are_cleared),  cmocka_unit_test(parts_of_sequences_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
