/*
 * shard.c - gradient accumulators become buckets, and buckets are reduced over dp
 *
 * A bucket is one flat cell; the accumulators become views of it, each starting at a block of the
 * gradient norm, and its length is a multiple of dp_size blocks, so that shard edges fall on block
 * edges. While micro-batches add up, a bucket is partial over dp. After the gather the same memory
 * holds the whole sum: a second set of views, `same` over dp, is what the update reads.
 */
#include <stdlib.h>

#include "base/num.h"
#include "program/passes.h"

struct accumulator {
    int parameter, use;
    int done; /* index of the backward's op that completes it; -1: the forward does */
};

struct bucket {
    int cell, shard, done;
};

static int writes(const struct op *op, int value)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] == value)
            return 1;
    return 0;
}

static int last_writer(const struct function *f, int value)
{
    for (int i = f->n_ops - 1; i >= 0; i--)
        if (writes(&f->ops[i], value))
            return i;
    return -1;
}

static int earlier(const void *a, const void *b)
{
    const struct accumulator *x = a, *y = b;

    if (x->done != y->done)
        return x->done < y->done ? -1 : 1;
    if (x->parameter != y->parameter)
        return x->parameter < y->parameter ? -1 : 1;
    return x->use - y->use;
}

/* All accumulators, in the order in which the backward completes them. */
static struct accumulator *list_accumulators(struct program *p, int backward, int *n)
{
    int capacity = p->n_parameters * TENSOR_MAX_USES;
    struct accumulator *list = arena_array(&p->arena, struct accumulator, capacity);

    *n = 0;
    for (int i = 0; i < p->n_parameters; i++)
        for (int use = 0; use < p->parameters[i].n_gradients; use++)
            list[(*n)++] = (struct accumulator){
                i, use, last_writer(&p->functions[backward], p->parameters[i].gradients[use])
            };
    qsort(list, (size_t)*n, sizeof *list, earlier);
    return list;
}

static int accumulator_cell(const struct program *p, const struct accumulator *a)
{
    return p->parameters[a->parameter].gradients[a->use];
}

/* Make list[0..n-1] views of one new cell. */
static struct bucket make_bucket(struct program *p, const struct accumulator *list, int n,
                                 int number)
{
    int dp_size = p->mesh.size[AXIS_DP];
    int64_t length = 0;

    for (int i = 0; i < n; i++) {
        const struct value *v = &p->values[accumulator_cell(p, &list[i])];
        length += round_up(v->rows * v->cols, OPS_NORM_BLOCK);
    }
    length = round_up(length, (int64_t)dp_size * OPS_NORM_BLOCK);

    char *name = arena_printf(&p->arena, "bucket.%d", number);
    struct bucket bucket = { .cell = program_cell(p, ROLE_GRADIENT, name, 1, length, DTYPE_F32),
                             .done = list[n - 1].done };
    int64_t offset = 0;
    for (int i = 0; i < n; i++) {
        struct value *v = &p->values[accumulator_cell(p, &list[i])];

        v->base = bucket.cell;
        v->offset = offset;
        offset += round_up(v->rows * v->cols, OPS_NORM_BLOCK);
        for (int axis = 0; axis < N_AXES; axis++)
            p->values[bucket.cell].spread[axis] = v->spread[axis];
    }
    return bucket;
}

static struct bucket *make_buckets(struct program *p, const struct accumulator *list, int n,
                                   size_t bucket_bytes, int *n_buckets)
{
    struct bucket *buckets = arena_array(&p->arena, struct bucket, n + 1);
    int begin = 0;
    size_t n_bytes = 0;

    *n_buckets = 0;
    for (int i = 0; i < n; i++) {
        n_bytes += program_value_bytes(p, accumulator_cell(p, &list[i]));
        if (n_bytes < bucket_bytes && i + 1 < n)
            continue;
        buckets[*n_buckets] = make_bucket(p, list + begin, i + 1 - begin, *n_buckets);
        (*n_buckets)++;
        begin = i + 1;
        n_bytes = 0;
    }
    return buckets;
}

/* A view of the whole bucket for when the sum over dp is in it. */
static int summed_view(struct program *p, int id)
{
    struct value v = p->values[id];
    int view = program_view(p, id, 0, v.rows, v.cols, v.stride);

    p->values[view].spread[AXIS_DP] = SPREAD_SAME;
    return view;
}

static struct op reduce_op(const struct bucket *bucket, enum first_mode first)
{
    return (struct op){ .kind = OP_REDUCE_SCATTER,
                        .attributes.axis = AXIS_DP,
                        .in = { bucket->cell },
                        .out = { bucket->shard },
                        .phase = PHASE_W,
                        .stream = STREAM_DP_REDUCE,
                        .first = first,
                        .layer = -1 };
}

static struct op gather_op(struct program *p, const struct bucket *bucket, enum phase phase)
{
    return (struct op){ .kind = OP_ALL_GATHER,
                        .attributes.axis = AXIS_DP,
                        .in = { bucket->shard },
                        .out = { summed_view(p, bucket->cell) },
                        .phase = phase,
                        .stream = STREAM_DP_GATHER,
                        .layer = -1 };
}

/* Ops that add into gradients start over in every micro-batch: the sum over ranks comes first. */
static void accumulate_alone(struct program *p, int function)
{
    struct function *f = &p->functions[function];

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (f->ops[i].out[k] && p->values[f->ops[i].out[k]].role == ROLE_GRADIENT)
                f->ops[i].first = FIRST_ALWAYS;
}

static int copy_function(struct program *p, int function, const char *suffix)
{
    char *name = arena_printf(&p->arena, "%s%s", p->functions[function].name, suffix);
    int copy = program_function(p, name, p->functions[function].chunk);

    for (int i = 0; i < p->functions[function].n_ops; i++) {
        struct op op = p->functions[function].ops[i];
        program_emit(p, copy, &op);
    }
    return copy;
}

void shard_gradients(struct program *p, int forward, int backward, int *last, int update,
                     const struct shard_options *options)
{
    int n, n_buckets, dp_size = p->mesh.size[AXIS_DP];
    struct accumulator *list = list_accumulators(p, backward, &n);
    struct bucket *buckets = make_buckets(p, list, n, options->bucket_bytes, &n_buckets);

    *last = backward;
    if (dp_size == 1)
        return;
    if (options->early) {
        accumulate_alone(p, forward);
        accumulate_alone(p, backward);
    } else {
        *last = copy_function(p, backward, ", last micro-batch");
    }
    /* From the end, so that earlier indices stay right. */
    for (int i = n_buckets - 1; i >= 0; i--) {
        struct bucket *b = &buckets[i];
        char *name = arena_printf(&p->arena, "bucket.%d:shard", i);

        b->shard =
            program_cell(p, ROLE_GRADIENT, name, 1, p->values[b->cell].cols / dp_size, DTYPE_F32);
        struct op reduce = reduce_op(b, options->early ? FIRST_MICRO_BATCH : FIRST_ALWAYS);
        program_insert(p, *last, b->done + 1, &reduce);
        struct op gather = gather_op(p, b, options->early ? PHASE_U : PHASE_W);
        if (options->early)
            program_insert(p, update, 0, &gather);
        else
            program_insert(p, *last, b->done + 2, &gather);
    }
    for (int i = 0; i < n; i++) {
        struct parameter *parameter = &p->parameters[list[i].parameter];
        int view = summed_view(p, parameter->gradients[list[i].use]);

        parameter = &p->parameters[list[i].parameter];
        parameter->gradients[list[i].use] = view;
    }
}
