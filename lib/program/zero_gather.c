/*
 * zero_gather.c - zero 1 and 2: weights as flat cells that are all-gathered before the forward
 *
 * The weights of a bucket have the layout of its gradients, so the shard of gradients that a rank
 * gets is the shard of the weights that it updates. That local shard is a view of the whole cell
 * and needs no memory of its own, and the all_gather is in place. Between an update and the next
 * gather the other shards are stale, which verify tracks. Of a bucket with one shard the two are
 * one, and nothing is gathered.
 *
 *     U  weights.0:shard = adamw bucket.0:shard, ...
 *     F  weights.0 = all_gather weights.0:shard  over dp      next step, stream dp_gather
 */
#include "layout/axes.h"
#include "program/passes.h"

static void make_weights(struct program *p, int number, enum dtype dtype)
{
    struct bucket *b = &p->buckets[number];
    char *name = arena_printf(&p->arena, "weights.%d", number);
    char *own = arena_printf(&p->arena, "weights.%d:shard", number);

    b->weights = program_cell(p, ROLE_WEIGHT, name, 1, b->n_elements, dtype);
    program_lie_like(p, b->weights, b->shards[0], b->axis);
    b->weight_shard = program_n_shards(p, number) > 1
                          ? program_local_shard(p, own, b->weights, b->axis)
                          : b->weights;
}

/* Make the parameter's weight a view of its bucket's cell. */
static void move_in(struct program *p, const struct parameter *q)
{
    if (!p->buckets[q->bucket].weights)
        make_weights(p, q->bucket, p->values[q->weight].dtype);
    struct value *weight = &p->values[q->weight];
    CHECK(!weight->base);
    CHECK(weight->dtype == p->values[p->buckets[q->bucket].weights].dtype);
    weight->base = p->buckets[q->bucket].weights;
    weight->offset = q->bucket_offset;
}

static void emit_gather(struct program *p, int function, const struct bucket *b)
{
    program_emit(p, function,
                 &(struct op){ .kind = OP_ALL_GATHER,
                               .attributes.axis = b->axis,
                               .in = { [ALL_GATHER_SHARD] = b->weight_shard },
                               .out = { [ALL_GATHER_FULL] = b->weights },
                               .phase = PHASE_F,
                               .stream = STREAM_DP_GATHER,
                               .layer = -1 });
}

/* Gather the bucket that this value is a view of, unless it has been. */
static void gather_first(struct program *p, int gather, int value, char *is_flat)
{
    int base = program_base(p, value);

    if (!is_flat[base])
        return;
    is_flat[base] = 0;
    for (int j = 0; j < p->n_buckets; j++)
        if (p->buckets[j].weights == base)
            emit_gather(p, gather, &p->buckets[j]);
}

void gather_parameters(struct program *p, const struct chunk_functions *chunks, int n_chunks,
                       int gather)
{
    for (int i = 0; i < p->n_parameters; i++)
        if (p->parameters[i].bucket >= 0)
            move_in(p, &p->parameters[i]);

    char *is_flat = arena_array(&p->arena, char, p->n_values); /* and not gathered yet */
    for (int i = 0; i < p->n_buckets; i++)
        is_flat[p->buckets[i].weights] = program_n_shards(p, i) > 1;
    is_flat[0] = 0;
    for (int c = 0; c < n_chunks; c++)
        for (int i = 0; i < p->functions[chunks[c].forward].n_ops; i++)
            for (int k = 0; k < OPS_MAX_INPUTS; k++)
                gather_first(p, gather, p->functions[chunks[c].forward].ops[i].in[k], is_flat);
}
