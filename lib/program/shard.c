/*
 * shard.c - gradient accumulators become buckets, and buckets are reduced over dp
 *
 * A bucket is one flat cell, and accumulators become views of it. Each view begins at a block of
 * the gradient norm, and the length of the bucket is a multiple of dp_size blocks, so that the
 * edges of shards are edges of blocks. While micro-batches add up, a bucket is partial over dp.
 * Where ep divides experts, what is said of dp holds for their buckets; those of all other
 * parameters are reduced over ep and dp as one axis (layout/axes.h).
 *
 *     | qkv.grad | out.grad | pad |        bucket.1, partial over dp
 *     |  shard of rank 0 | of rank 1 |     after reduce_scatter: bucket.1:shard
 *
 * Where no axis shards, each rank has whole buckets: what is partial over axes of tokens (cp and
 * ulysses alone) is all-reduced in place, late, at the same point.
 *
 * A parameter's accumulators are completed by the backward of one chunk. The exception is an
 * embedding that is tied to a head on another chunk of the same rank: its bucket belongs to the
 * chunk whose backward runs last. With sums over ranks first (early) each function reduces what it
 * completes, because its next micro-batch may begin before the other functions have run on this
 * one.
 *
 * The stages are those of ZeRO (Rajbhandari et al. 2020). Zero 0 gathers the sums: the same memory
 * then holds them in full, and a second set of views, `same` over dp, is what the update reads.
 * Under zero 1 the update reads shards alone. The uses of a parameter (tied embeddings) then have
 * the same layout in a flat cell each, so that their shards can be added, and parameters whose
 * weights differ in dtype are in different buckets. Under zero 2 (early) the unreduced sums of one
 * micro-batch have no memory of their own but share a few staging cells (gradient_staging.c).
 *
 * Micro-batches of other sizes have functions of their own with the same ops in the same order.
 * Decisions are therefore made on the functions of the last micro-batch, and only the numbers of
 * ops are looked up in each.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "program/shard_impl.h"

/* A view of the same memory that is `same` over the axis: for readers of the sum. */
static int summed_view(struct program *p, int id, enum mesh_axis axis)
{
    struct value v = p->values[id];
    int view = program_view(p, id, 0, v.rows, v.cols, v.stride);

    program_spread_over(p, view, axis, SPREAD_SAME);
    return view;
}

static struct op reduce_op(int cell, int shard, enum mesh_axis axis, enum first_mode first)
{
    return (struct op){ .kind = OP_REDUCE_SCATTER,
                        .attributes.axis = axis,
                        .in = { [REDUCE_SCATTER_FULL] = cell },
                        .out = { [REDUCE_SCATTER_SHARD] = shard },
                        .phase = PHASE_W,
                        .stream = stream_of_axis(axis),
                        .first = first,
                        .layer = -1 };
}

static struct op gather_op(struct program *p, int cell, int shard, enum mesh_axis axis,
                           enum phase phase)
{
    return (struct op){ .kind = OP_ALL_GATHER,
                        .attributes.axis = axis,
                        .in = { [ALL_GATHER_SHARD] = shard },
                        .out = { [ALL_GATHER_FULL] = summed_view(p, cell, axis) },
                        .phase = phase,
                        .stream = STREAM_DP_GATHER,
                        .layer = -1 };
}

/* The bucket is the sum already that others get from ranks: its axis has one. */
static bool is_whole(const struct program *p, int bucket)
{
    return program_n_shards(p, bucket) == 1;
}

static bool is_in_whole_bucket(const struct program *p, int accumulator)
{
    int base = program_base(p, accumulator);

    for (int i = 0; i < p->n_buckets; i++)
        for (int use = 0; is_whole(p, i) && use < p->buckets[i].n_uses; use++)
            if (program_base(p, p->buckets[i].gradients[use]) == base)
                return true;
    return false;
}

/* Make ops that accumulate gradients start from zero in every micro-batch, because each micro-batch
 * is summed over ranks. */
static void accumulate_alone(struct program *p, int function)
{
    struct function *f = &p->functions[function];

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            if (f->ops[i].out[k] && p->values[f->ops[i].out[k]].role == ROLE_GRADIENT &&
                f->ops[i].first == FIRST_MICRO_BATCH && !is_in_whole_bucket(p, f->ops[i].out[k]))
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

/* The sum over one axis of a partial value; y may be x's memory. */
static struct op all_reduce_op(int x, int y, enum mesh_axis axis, enum phase phase)
{
    return (struct op){ .kind = OP_ALL_REDUCE,
                        .attributes.axis = axis,
                        .in = { [ALL_REDUCE_X] = x },
                        .out = { [ALL_REDUCE_Y] = y },
                        .phase = phase,
                        .stream = stream_of_sums(axis),
                        .layer = -1 };
}

/* The axes over which a shard is still partial after the reduce_scatter over `axis`. */
static struct axis_list axes_owed(const struct program *p, int cell, enum mesh_axis axis)
{
    struct axis_list all = axes_of(&p->mesh, SPLITS_TOKENS, PARAMETER_DENSE), owed = { 0 };

    for (int i = 0; i < all.n; i++)
        if (p->values[cell].spread[all.axes[i]] == SPREAD_PARTIAL &&
            !axis_covers(axis, all.axes[i]))
            owed.axes[owed.n++] = all.axes[i];
    return owed;
}

int sum_what_is_left(struct program *p, int function, int *index, int value, enum mesh_axis axis)
{
    struct axis_list axes = axes_owed(p, value, axis);

    for (int i = 0; i < axes.n; i++) {
        int summed = summed_view(p, value, axes.axes[i]);
        struct op op = all_reduce_op(value, summed, axes.axes[i], PHASE_W);

        program_insert(p, function, ++*index, &op);
        value = summed;
    }
    return value;
}

/* The view of a cell that sum_what_is_left has summed in some function. */
static int view_of_sum(struct program *p, int cell, enum mesh_axis axis)
{
    struct axis_list axes = axes_owed(p, cell, axis);

    for (int i = 0; i < axes.n; i++)
        cell = summed_view(p, cell, axes.axes[i]);
    return cell;
}

/*
 * All-reduce shards over the other axes of tokens, whose ranks have the same shards. Under hybrid
 * sharding (axis replica) each group is an aligned power of two of ranks, so the bits are those of
 * one sum over all ranks. Sums that are accumulated over micro-batches (early) are accumulated when
 * they are sums over all ranks: before the next reduction of the function, when the all-reduce has
 * probably completed, or at its end.
 */
static void reduce_over_replicas(const struct sharding *s, int function, int index, int cell,
                                 int shard, enum mesh_axis axis)
{
    struct program *p = s->program;
    int sum = s->early ? program_value(p, 1, p->values[shard].cols, p->values[shard].dtype) : shard;
    struct op op = reduce_op(cell, sum, axis, FIRST_ALWAYS);

    program_insert(p, function, index, &op);
    sum = sum_what_is_left(p, function, &index, sum, axis);
    if (!s->early)
        return;
    const struct function *f = &p->functions[function];
    int later = index + 1;
    while (later < f->n_ops && f->ops[later].stream != op.stream)
        later++;
    program_insert(p, function, later,
                   &(struct op){ .kind = OP_ACCUMULATE,
                                 .in = { [ACCUMULATE_X] = sum },
                                 .out = { [ACCUMULATE_Y] = shard },
                                 .phase = PHASE_W,
                                 .layer = -1 });
}

/* The op of s->chunks' functions after which the flat cell is reduced; -1: before the first. */
static int find_done(const struct sharding *s, const struct bucket_member *list, int n,
                     const struct bucket_reduction *r)
{
    int done = -1;

    for (int i = 0; i < n; i++) {
        if (list[i].bucket != r->bucket)
            continue;
        struct completion_point at =
            completion_of(s, buckets_accumulator(s->program, &list[i], r->use));
        if (at.turn == r->at.turn && at.part == r->at.part)
            done = max_int(done, at.done);
    }
    return done;
}

/* Emit the reduction into the function that completes the flat cell, or into `last`. */
static void reduce_in(const struct sharding *s, const struct bucket_member *list, int n,
                      const struct bucket_reduction *r, int cell, int shard)
{
    struct program *p = s->program;
    int function = s->early ? completion_function(s, r->at.turn, r->at.part)
                            : s->chunks[s->n_chunks - 1 - r->at.turn].last;
    enum mesh_axis axis = p->buckets[r->bucket].axis;
    struct axis_list others = axes_owed(p, cell, axis);
    struct op op = reduce_op(cell, shard, axis, s->early ? FIRST_MICRO_BATCH : FIRST_ALWAYS);

    if (others.n)
        reduce_over_replicas(s, function, r->at.done + 1, cell, shard, axis);
    else
        program_insert(p, function, r->at.done + 1, &op);
    if (r->staging)
        staging_clear_gaps(s, list, n, r, function);
}

/* Whether s's chunks are those of the last micro-batch, in one of the variants. */
static bool has_last(const struct sharding *s, int size)
{
    int n_sizes = s->n_sizes / max_int(s->options->n_variants, 1);

    return size % n_sizes == s->options->last_size;
}

/* The functions of the reduction's chunk in one of the sizes, and the op after which the flat cell
 * is reduced there; NULL: they are not of the last micro-batch. */
static const struct chunk_functions *find_last(const struct sharding *s,
                                               const struct bucket_member *list, int n,
                                               const struct bucket_reduction *r, int size,
                                               int *done)
{
    struct sharding other = *s;

    other.chunks = s->sizes + size * s->n_chunks;
    if (!has_last(s, size))
        return NULL;
    *done = find_done(&other, list, n, r);
    return &other.chunks[s->n_chunks - 1 - r->at.turn];
}

/* For the steps before the codec's first: to where its ops leave the sums. */
static void reduce_whole(struct program *p, int function, int done,
                         const struct bucket_reduction *r, int whole)
{
    const struct bucket *b = &p->buckets[r->bucket];
    struct op op = reduce_op(b->left[r->use], b->shards[r->use], b->axis, FIRST_ALWAYS);

    program_insert(p, function, ++done, &op);
    int shard = sum_what_is_left(p, function, &done, b->shards[r->use], b->axis);
    if (!whole)
        return;
    op = gather_op(p, whole, shard, b->axis, PHASE_W);
    program_insert(p, function, done + 1, &op);
}

/* With a codec, of all sizes of the last micro-batch. */
static void reduce_in_codes(const struct sharding *s, const struct bucket_member *list, int n,
                            const struct bucket_reduction *r, int number)
{
    struct program *p = s->program;
    int whole = compress_make_cells(s, r, s->options->zero);

    for (int i = 0; i < n; i++) {
        struct parameter *q = &p->parameters[list[i].parameter];

        if (list[i].bucket == r->bucket)
            q->errors[list[i].use + r->use] = program_view(
                p, p->buckets[r->bucket].errors[r->use], list[i].offset, q->rows, q->cols, q->cols);
    }
    if (p->codec.codec == CODEC_POWERSGD)
        low_rank_make_cells(p, r);
    for (int size = 0; size < s->n_sizes; size++) {
        int done;
        const struct chunk_functions *chunk = find_last(s, list, n, r, size, &done);

        if (!chunk)
            continue;
        compress_emit(p, chunk->last, done, r, number, whole);
        if (s->options->codec.start)
            reduce_whole(p, chunk->uncompressed, done, r, whole);
        if (s->options->codec.start && p->codec.codec == CODEC_POWERSGD)
            low_rank_emit_unchanged(p, chunk->uncompressed, r);
    }
    struct bucket *b = &p->buckets[r->bucket];
    if (whole)
        b->gradients[r->use] = view_of_sum(p, whole, b->axis);
    b->shards[r->use] = view_of_sum(p, b->shards[r->use], b->axis);
}

/* What the update reads of a flat cell that was summed. */
static int *cell_of_update(const struct sharding *s, struct bucket *b, int use)
{
    return s->together ? &b->shards[use] : &b->gradients[use];
}

/* Of a flat cell that is whole on each rank, over axes of tokens alone: as soon as the last
 * micro-batch has completed it. */
static void sum_whole(const struct sharding *s, const struct bucket_member *list, int n,
                      const struct bucket_reduction *r)
{
    struct program *p = s->program;
    struct bucket *b = &p->buckets[r->bucket];
    int *cell = cell_of_update(s, b, r->use);

    for (int size = 0; size < s->n_sizes; size++) {
        int done, at;
        const struct chunk_functions *chunk = find_last(s, list, n, r, size, &done);

        if (!chunk)
            continue;
        at = done;
        sum_what_is_left(p, chunk->last, &at, *cell, b->axis);
        at = done;
        if (s->options->codec.start)
            sum_what_is_left(p, chunk->uncompressed, &at, *cell, b->axis);
    }
    *cell = view_of_sum(p, *cell, b->axis);
}

/* Reduce one flat cell into its shard, if it is not that, and under zero 0 gather the sums. */
static void reduce(const struct sharding *s, const struct bucket_member *list, int n,
                   const struct bucket_reduction *r, int number, int update)
{
    int zero = s->options->zero;
    struct program *p = s->program;
    struct bucket *b = &p->buckets[r->bucket];
    int cell = b->gradients[r->use];
    char *name = arena_printf(&p->arena, "%s:shard", p->values[cell].name);
    struct axis_list others = axes_owed(p, cell, b->axis);

    if (is_whole(p, r->bucket)) {
        b->shards[r->use] = cell;
        if (!s->early)
            sum_whole(s, list, n, r);
        return;
    }
    int shard = program_cell(p, ROLE_GRADIENT, name, 1,
                             b->n_elements / program_n_shards(p, r->bucket), p->values[cell].dtype);

    b->shards[r->use] = shard;
    if (s->options->codec.codec) {
        CHECK(!s->early);
        reduce_in_codes(s, list, n, r, number);
        return;
    }
    reduce_in(s, list, n, r, cell, shard);
    for (int size = 0; size < s->n_sizes; size++) {
        struct sharding other = *s;
        struct bucket_reduction there = *r;

        other.chunks = s->sizes + size * s->n_chunks;
        if (other.chunks == s->chunks || !(s->early || has_last(s, size)))
            continue;
        there.at.done = find_done(&other, list, n, r);
        reduce_in(&other, list, n, &there, cell, shard);
    }
    if (!s->early)
        b->shards[r->use] = view_of_sum(p, b->shards[r->use], b->axis);
    if (zero)
        return;
    struct op op = gather_op(p, cell, b->shards[r->use], b->axis, s->early ? PHASE_U : PHASE_W);
    b->gradients[r->use] = op.out[ALL_GATHER_FULL];
    if (s->early)
        program_insert(p, update, 0, &op);
    for (int size = 0; size < s->n_sizes && !s->early; size++) {
        int done;
        const struct chunk_functions *chunk = find_last(s, list, n, r, size, &done);

        if (chunk)
            program_insert(p, chunk->last, done + 2 + others.n, &op);
    }
}

/* A view that is `same` over the axis, of what the flat cell has in the accumulator's place: its
 * own memory, or, with a codec, that of the sums. */
static int summed_in(struct program *p, int flat, int id, enum mesh_axis axis)
{
    struct value v = p->values[id];

    if (program_base(p, flat) == program_base(p, id))
        return summed_view(p, id, axis);
    int view = program_view(p, flat, v.offset, v.rows, v.cols, v.stride);
    memcpy(p->values[view].spread, v.spread, sizeof v.spread);
    program_spread_over(p, view, axis, SPREAD_SAME);
    return view;
}

/* Let the parameters' accumulators that were partial over the axis be views that hold the sums. */
static void read_sums(struct program *p, const struct bucket_member *list, int n,
                      enum mesh_axis axis)
{
    for (int i = 0; i < n; i++) {
        int cell = buckets_accumulator(p, &list[i], 0);

        if (p->values[cell].spread[axis] == SPREAD_PARTIAL)
            p->parameters[list[i].parameter].gradients[list[i].use] =
                summed_in(p, p->buckets[list[i].bucket].gradients[0], cell, axis);
    }
}

static void sum_over_axis(const struct sharding *s, int *cell, enum mesh_axis axis, int update)
{
    struct program *p = s->program;
    int summed = summed_view(p, *cell, axis);
    struct op op = all_reduce_op(*cell, summed, axis, PHASE_U);

    program_emit(p, update, &op);
    *cell = summed;
}

/*
 * All-reduce in place, at the end of the step, what is still partial: over axes of the model the
 * gradients of parameters that all ranks have, each from its own rows (norms, under sequence
 * parallelism); over axes of tokens what no last micro-batch has summed (early).
 */
static void sum_what_is_owed(const struct sharding *s, const struct bucket_member *list, int n,
                             int update)
{
    struct program *p = s->program;

    for (int axis = 0; axis < N_AXES; axis++) {
        if (p->mesh.size[axis] == 1)
            continue;
        for (int i = 0; i < p->n_buckets; i++)
            for (int use = 0; use < p->buckets[i].n_uses; use++) {
                int *cell = cell_of_update(s, &p->buckets[i], use);

                if (p->values[*cell].spread[axis] == SPREAD_PARTIAL)
                    sum_over_axis(s, cell, (enum mesh_axis)axis, update);
            }
        if (!s->together)
            read_sums(p, list, n, (enum mesh_axis)axis);
    }
}

/* Make the functions of the last micro-batch (late), or let accumulators start from zero in every
 * micro-batch (early). */
static void choose_last(struct sharding *s)
{
    for (int c = 0; c < s->n_chunks * s->n_sizes && !s->early; c++)
        if (has_last(s, c / s->n_chunks))
            s->sizes[c].last = copy_function(s->program, s->sizes[c].weight, ", last micro-batch");
    for (int c = 0; c < s->n_chunks * s->n_sizes && s->options->codec.start; c++)
        if (has_last(s, c / s->n_chunks))
            s->sizes[c].uncompressed =
                copy_function(s->program, s->sizes[c].weight, ", last micro-batch, uncompressed");
    for (int c = 0; c < s->n_chunks * s->n_sizes && s->early; c++) {
        struct chunk_functions *chunk = &s->sizes[c];

        accumulate_alone(s->program, chunk->forward);
        accumulate_alone(s->program, chunk->backward);
        if (chunk->weight != chunk->backward)
            accumulate_alone(s->program, chunk->weight);
    }
}

void shard_gradients(struct program *p, struct chunk_functions *chunks, int n_chunks, int update,
                     const struct shard_options *options)
{
    int n, n_reductions, is_alone = mesh_size(&p->mesh, axes_shard(&p->mesh, PARAMETER_DENSE)) == 1;
    bool is_one = axes_size(&p->mesh, SPLITS_TOKENS, PARAMETER_DENSE) == 1;
    struct shard_options own = *options;
    struct sharding s = { .program = p,
                          .sizes = chunks,
                          .chunks = chunks + options->last_size * n_chunks,
                          .n_chunks = n_chunks,
                          .n_sizes = max_int(options->n_sizes, 1),
                          .options = &own,
                          .early = options->early && !is_alone,
                          .together = options->zero > 0 && !is_alone };
    struct bucket_member *list = buckets_list_members(&s, &n);

    if (is_alone)
        own.codec = (struct codec_choice){ .codec = CODEC_NONE };
    p->n_buckets = buckets_assign(&s, list, n, options->bucket_bytes);
    p->buckets = arena_array(&p->arena, struct bucket, p->n_buckets + 1);
    buckets_measure(&s, list, n);
    struct bucket_reduction *reductions = buckets_list_reductions(&s, list, n, &n_reductions);
    if (options->zero >= 2 && s.early)
        staging_share(&s, list, reductions, n, n_reductions);
    for (int i = 0; i < n_reductions; i++)
        buckets_make_cell(p, list, n, &reductions[i]);
    for (int c = 0; c < n_chunks * s.n_sizes; c++)
        chunks[c].last = chunks[c].weight;
    if (is_one) {
        sum_what_is_owed(&s, list, n, update);
        return;
    }
    choose_last(&s);
    p->codec = own.codec;
    if (p->codec.codec)
        compress_make_sums(p, n_reductions);
    /* From the end, so that earlier indices stay right. */
    for (int i = n_reductions - 1; i >= 0; i--)
        reduce(&s, list, n, &reductions[i], i, update);
    for (int axis = 0; axis < N_AXES && !options->zero; axis++)
        if (axis_covers(axes_shard(&p->mesh, PARAMETER_DENSE), (enum mesh_axis)axis))
            read_sums(p, list, n, (enum mesh_axis)axis);
    sum_what_is_owed(&s, list, n, update);
}
