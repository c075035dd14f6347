/*
 * shard.c - gradient accumulators become buckets, and buckets are reduced over dp
 *
 * A bucket is one flat cell; the accumulators become views of it, each starting at a block of the
 * gradient norm, and its length is a multiple of dp_size blocks, so that shard edges fall on block
 * edges. While micro-batches add up, a bucket is partial over dp.
 *
 * A parameter's accumulators are completed by one chunk's backward, but for those of an embedding that
 * is tied to a head on another chunk of the same rank: that bucket is the chunk's that comes last.
 *
 * Zero 0 gathers the sums: the same memory then holds them whole, and a second set of views, `same`
 * over dp, is what the update reads. Under zero 1 the shards are all that the update reads. Then a
 * parameter's uses (tied embeddings) lie alike in a flat cell each, so that their shards can be
 * added, and parameters whose weights differ in dtype lie in different buckets.
 */
#include <stdlib.h>

#include "base/num.h"
#include "program/passes.h"

/* When an accumulator is complete: chunks are in the order in which their backwards run. */
struct moment {
    int turn; /* n_chunks - 1 - chunk */
    int done; /* index of the op of the chunk's `weight`; -1: an earlier function has done it */
};

/* What shares a bucket's fate: one accumulator, or all of a parameter. */
struct member {
    int parameter, use, n_uses;
    struct moment at; /* of the last */
    int bucket;
    size_t n_bytes; /* of the bucket up to it */
};

/* One flat cell that is to be reduced. */
struct reduction {
    int bucket, use;
    struct moment at;
};

struct sharding {
    struct program *program;
    struct chunk_functions *chunks;
    int n_chunks;
    int together; /* sharded: all uses of a parameter share a fate */
};

/* Index of the last op that writes the value or a view of it; -1 if none does. */
static int last_writer(const struct program *p, const struct function *f, int value)
{
    for (int i = f->n_ops - 1; i >= 0; i--)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
            int out = f->ops[i].out[k];

            if (out && (out == value || p->values[out].base == value))
                return i;
        }
    return -1;
}

static int compare_moments(struct moment a, struct moment b)
{
    if (a.turn != b.turn)
        return a.turn < b.turn ? -1 : 1;
    return a.done < b.done ? -1 : a.done > b.done;
}

/* The last chunk to write it, and where. */
static struct moment completion(const struct sharding *s, int value)
{
    for (int c = 0; c < s->n_chunks; c++) {
        const struct function *functions = s->program->functions;
        const struct chunk_functions *chunk = &s->chunks[c];
        int done = last_writer(s->program, &functions[chunk->weight], value);

        if (done >= 0 || last_writer(s->program, &functions[chunk->backward], value) >= 0 ||
            last_writer(s->program, &functions[chunk->forward], value) >= 0)
            return (struct moment){ s->n_chunks - 1 - c, done };
    }
    CHECK(!"an accumulator that somebody writes");
}

static int earlier(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int order = compare_moments(x->at, y->at);

    if (order)
        return order;
    if (x->parameter != y->parameter)
        return x->parameter < y->parameter ? -1 : 1;
    return x->use - y->use;
}

static struct member member_of(const struct sharding *s, int parameter, int use, int n_uses)
{
    const struct parameter *q = &s->program->parameters[parameter];
    struct member m = {
        .parameter = parameter, .use = use, .n_uses = n_uses, .at = completion(s, q->gradients[use])
    };

    for (int k = use + 1; k < use + n_uses; k++) {
        struct moment at = completion(s, q->gradients[k]);

        if (compare_moments(m.at, at) < 0)
            m.at = at;
    }
    return m;
}

/* All accumulators, in the order in which the backwards complete them. */
static struct member *list_members(const struct sharding *s, int *n)
{
    struct program *p = s->program;
    int capacity = p->n_parameters * TENSOR_MAX_USES;
    struct member *list = arena_array(&p->arena, struct member, capacity);

    *n = 0;
    for (int i = 0; i < p->n_parameters; i++) {
        int n_uses = p->parameters[i].n_gradients, at_once = s->together ? n_uses : 1;

        for (int use = 0; use < n_uses; use += at_once)
            list[(*n)++] = member_of(s, i, use, at_once);
    }
    qsort(list, (size_t)*n, sizeof *list, earlier);
    return list;
}

static int accumulator_cell(const struct program *p, const struct member *m, int use)
{
    return p->parameters[m->parameter].gradients[m->use + use];
}

static int may_share(const struct program *p, const struct member *a, const struct member *b,
                     int together)
{
    enum dtype x = p->values[p->parameters[a->parameter].weight].dtype;
    enum dtype y = p->values[p->parameters[b->parameter].weight].dtype;

    if (a->at.turn != b->at.turn)
        return 0;
    /* What two stages exchange must lie alike on both. */
    if (p->parameters[a->parameter].tied_peer || p->parameters[b->parameter].tied_peer)
        return 0;
    return !together || (x == y && a->n_uses == b->n_uses);
}

/* Each joins the bucket of the newest that it may share with, until that is full. */
static int assign(const struct program *p, struct member *list, int n, int together,
                  size_t bucket_bytes)
{
    int n_buckets = 0;

    for (int i = 0; i < n; i++) {
        struct member *m = &list[i];
        int j = i - 1;

        m->n_bytes = program_value_bytes(p, accumulator_cell(p, m, 0));
        while (j >= 0 && !may_share(p, m, &list[j], together))
            j--;
        if (j < 0 || list[j].n_bytes >= bucket_bytes) {
            m->bucket = n_buckets++;
            continue;
        }
        m->bucket = list[j].bucket;
        m->n_bytes += list[j].n_bytes;
    }
    return n_buckets;
}

/* A flat cell for one use of the bucket's members, whose accumulators become views of it. */
static int make_cell(struct program *p, const struct member *list, int n, int number, int use)
{
    char *name = use ? arena_printf(&p->arena, "bucket.%d.%d", number, use)
                     : arena_printf(&p->arena, "bucket.%d", number);
    int cell = program_cell(p, ROLE_GRADIENT, name, 1, p->buckets[number].n_elements, DTYPE_F32);
    int64_t offset = 0;

    for (int i = 0; i < n; i++) {
        if (list[i].bucket != number)
            continue;
        struct value *v = &p->values[accumulator_cell(p, &list[i], use)];

        v->base = cell;
        v->offset = offset;
        offset += round_up(v->rows * v->cols, OPS_NORM_BLOCK);
        for (int axis = 0; axis < N_AXES; axis++)
            p->values[cell].spread[axis] = v->spread[axis];
    }
    return cell;
}

static void make_bucket(struct program *p, const struct member *list, int n, int number,
                        int together)
{
    struct bucket *b = &p->buckets[number];
    int64_t length = 0;

    for (int i = 0; i < n; i++) {
        struct parameter *q = &p->parameters[list[i].parameter];

        if (list[i].bucket != number)
            continue;
        b->n_uses = list[i].n_uses;
        if (together) {
            q->bucket = number;
            q->bucket_offset = length;
        }
        length += round_up(q->rows * q->cols, OPS_NORM_BLOCK);
    }
    b->n_elements = round_up(length, (int64_t)p->mesh.size[AXIS_DP] * OPS_NORM_BLOCK);
    for (int use = 0; use < b->n_uses; use++)
        b->gradients[use] = make_cell(p, list, n, number, use);
}

static int completed_earlier(const void *a, const void *b)
{
    const struct reduction *x = a, *y = b;
    int order = compare_moments(x->at, y->at);

    if (order)
        return order;
    return x->bucket != y->bucket ? x->bucket - y->bucket : x->use - y->use;
}

/* All flat cells, in the order in which they are complete. */
static struct reduction *list_reductions(const struct sharding *s, int *n)
{
    struct program *p = s->program;
    struct reduction *list =
        arena_array(&p->arena, struct reduction, p->n_buckets * TENSOR_MAX_USES);

    *n = 0;
    for (int i = 0; i < p->n_buckets; i++)
        for (int use = 0; use < p->buckets[i].n_uses; use++)
            list[(*n)++] =
                (struct reduction){ i, use, completion(s, p->buckets[i].gradients[use]) };
    qsort(list, (size_t)*n, sizeof *list, completed_earlier);
    return list;
}

/* A view of the whole bucket for when the sum over dp is in it. */
static int summed_view(struct program *p, int id)
{
    struct value v = p->values[id];
    int view = program_view(p, id, 0, v.rows, v.cols, v.stride);

    p->values[view].spread[AXIS_DP] = SPREAD_SAME;
    return view;
}

static struct op reduce_op(int cell, int shard, enum first_mode first)
{
    return (struct op){ .kind = OP_REDUCE_SCATTER,
                        .attributes.axis = AXIS_DP,
                        .in = { cell },
                        .out = { shard },
                        .phase = PHASE_W,
                        .stream = STREAM_DP_REDUCE,
                        .first = first,
                        .layer = -1 };
}

static struct op gather_op(struct program *p, int cell, int shard, enum phase phase)
{
    return (struct op){ .kind = OP_ALL_GATHER,
                        .attributes.axis = AXIS_DP,
                        .in = { shard },
                        .out = { summed_view(p, cell) },
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

/* Reduce one flat cell into its shard, and gather the sums where the update wants them whole. */
static void reduce(struct program *p, const struct reduction *r, int last, int update,
                   const struct shard_options *options)
{
    struct bucket *b = &p->buckets[r->bucket];
    int cell = b->gradients[r->use];
    char *name = arena_printf(&p->arena, "%s:shard", p->values[cell].name);
    int shard =
        program_cell(p, ROLE_GRADIENT, name, 1, b->n_elements / p->mesh.size[AXIS_DP], DTYPE_F32);
    struct op op = reduce_op(cell, shard, options->early ? FIRST_MICRO_BATCH : FIRST_ALWAYS);

    b->shards[r->use] = shard;
    program_insert(p, last, r->at.done + 1, &op);
    if (options->zero)
        return;
    op = gather_op(p, cell, shard, options->early ? PHASE_U : PHASE_W);
    if (options->early)
        program_insert(p, update, 0, &op);
    else
        program_insert(p, last, r->at.done + 2, &op);
}

/* From now on the accumulators' names stand for the sums over dp. */
static void read_sums(struct program *p, const struct member *list, int n)
{
    for (int i = 0; i < n; i++) {
        int view = summed_view(p, accumulator_cell(p, &list[i], 0));

        p->parameters[list[i].parameter].gradients[list[i].use] = view;
    }
}

/* In which functions sums over ranks are begun, and how accumulators start. */
static void choose_last(struct sharding *s, int early)
{
    for (int c = 0; c < s->n_chunks; c++) {
        struct chunk_functions *chunk = &s->chunks[c];

        if (!early) {
            chunk->last = copy_function(s->program, chunk->weight, ", last micro-batch");
            continue;
        }
        accumulate_alone(s->program, chunk->forward);
        accumulate_alone(s->program, chunk->backward);
        if (chunk->weight != chunk->backward)
            accumulate_alone(s->program, chunk->weight);
    }
}

void shard_gradients(struct program *p, struct chunk_functions *chunks, int n_chunks, int update,
                     const struct shard_options *options)
{
    int n, n_reductions, is_alone = p->mesh.size[AXIS_DP] == 1;
    struct sharding s = { p, chunks, n_chunks, options->zero > 0 && !is_alone };
    struct member *list = list_members(&s, &n);

    p->n_buckets = assign(p, list, n, s.together, options->bucket_bytes);
    p->buckets = arena_array(&p->arena, struct bucket, p->n_buckets + 1);
    for (int i = 0; i < p->n_buckets; i++)
        make_bucket(p, list, n, i, s.together);
    for (int c = 0; c < n_chunks; c++)
        chunks[c].last = chunks[c].weight;
    if (is_alone)
        return;
    struct reduction *reductions = list_reductions(&s, &n_reductions);
    choose_last(&s, options->early);
    /* From the end, so that earlier indices stay right. */
    for (int i = n_reductions - 1; i >= 0; i--)
        reduce(p, &reductions[i], chunks[n_chunks - 1 - reductions[i].at.turn].last, update,
               options);
    if (!options->zero)
        read_sums(p, list, n);
}
