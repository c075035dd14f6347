/*
 * shard.c - gradient accumulators become buckets, and buckets are reduced over dp
 *
 * A bucket is one flat cell; the accumulators become views of it, each starting at a block of the
 * gradient norm, and its length is a multiple of dp_size blocks, so that shard edges fall on block
 * edges. While micro-batches add up, a bucket is partial over dp.
 *
 * A parameter's accumulators are completed by one chunk's backward, but for those of an embedding
 * that is tied to a head on another chunk of the same rank: that bucket is the chunk's that comes
 * last. Where sums over ranks come first (early) each function reduces what it completes, for its
 * next micro-batch may begin before the other functions have run on this one.
 *
 * Zero 0 gathers the sums: the same memory then holds them whole, and a second set of views, `same`
 * over dp, is what the update reads. Under zero 1 the shards are all that the update reads. Then a
 * parameter's uses (tied embeddings) lie alike in a flat cell each, so that their shards can be
 * added, and parameters whose weights differ in dtype lie in different buckets. Under zero 2
 * (early) whole sums of one micro-batch have no memory of their own but share a few lanes.
 *
 * Micro-batches of other sizes have functions of their own, which do the same in the same order; so
 * what is decided here is decided on those of the last micro-batch, and only the numbers of ops are
 * looked up in each.
 */
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "program/passes.h"

/* The functions of a chunk, in the order in which a micro-batch runs them. */
enum part { PART_FORWARD, PART_BACKWARD, PART_WEIGHT };

/* When an accumulator is complete: chunks are in the order in which their backwards run. */
struct moment {
    int turn; /* n_chunks - 1 - chunk */
    enum part part;
    int begun, done; /* indices of ops of that function; -1: an earlier function has done it */
    int layer;       /* of the op that does it last */
};

/* What shares a bucket's fate: one accumulator, or all of a parameter. */
struct member {
    int parameter, use, n_uses;
    struct moment uses[TENSOR_MAX_USES];
    struct moment at; /* of the last of them */
    int bucket;
    int64_t offset;
    size_t n_bytes; /* of the bucket up to it */
};

/* One flat cell that is to be reduced. */
struct reduction {
    int bucket, use;
    struct moment at;
    int lane; /* whose memory it is in; 0: its own */
};

struct sharding {
    struct program *program;
    struct chunk_functions *sizes;  /* [n_sizes][n_chunks] */
    struct chunk_functions *chunks; /* of one size */
    int n_chunks, n_sizes;
    const struct shard_options *options;
    int early;       /* sums over ranks come first: in the function that completes them */
    int together;    /* sharded: all uses of a parameter share a fate */
    int64_t n_zeros; /* elements of these: of the largest gap, or ZEROS_MAX */
    int zeros[2];    /* constants for accumulators of fp32 and bf16; 0: not needed */
};

static int function_of(const struct sharding *s, int turn, enum part part)
{
    const struct chunk_functions *chunk = &s->chunks[s->n_chunks - 1 - turn];

    return part == PART_FORWARD    ? chunk->forward
           : part == PART_BACKWARD ? chunk->backward
                                   : chunk->weight;
}

static int writes(const struct program *p, const struct op *op, int value)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && (op->out[k] == value || p->values[op->out[k]].base == value))
            return 1;
    return 0;
}

static int compare_moments(struct moment a, struct moment b)
{
    if (a.turn != b.turn)
        return a.turn < b.turn ? -1 : 1;
    if (a.part != b.part)
        return a.part < b.part ? -1 : 1;
    return a.done < b.done ? -1 : a.done > b.done;
}

/* The last function to write it, and where. */
static struct moment completion(const struct sharding *s, int value)
{
    for (int turn = s->n_chunks - 1; turn >= 0; turn--)
        for (int part = PART_WEIGHT; part >= PART_FORWARD; part--) {
            int function = function_of(s, turn, (enum part)part);
            const struct function *f = &s->program->functions[function];
            struct moment at = { turn, (enum part)part, f->n_ops, -1, -1 };

            for (int i = 0; i < f->n_ops; i++)
                if (writes(s->program, &f->ops[i], value)) {
                    at.begun = min_int(at.begun, i);
                    at.done = i;
                    at.layer = f->ops[i].layer;
                }
            if (at.done < 0)
                continue;
            /* Late sums are begun in the last micro-batch's weight, whoever was last to add. */
            if (!s->early && part != PART_WEIGHT && function != function_of(s, turn, PART_WEIGHT))
                at = (struct moment){ turn, PART_WEIGHT, -1, -1, at.layer };
            return at;
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
    struct member m = { .parameter = parameter, .use = use, .n_uses = n_uses };

    for (int k = 0; k < n_uses; k++) {
        m.uses[k] = completion(s, q->gradients[use + k]);
        if (!k || compare_moments(m.at, m.uses[k]) < 0)
            m.at = m.uses[k];
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

/* Early, what one function completes may be begun anew before the next function runs. */
static int same_parts(const struct member *a, const struct member *b)
{
    for (int k = 0; k < a->n_uses && k < b->n_uses; k++)
        if (a->uses[k].part != b->uses[k].part)
            return 0;
    return 1;
}

static enum spread flat_spread(const struct program *p, int accumulator, int axis)
{
    return spread_flat(p->values[accumulator].spread[axis]);
}

/* Have both the same axes over which they are whole, a part, or a summand? */
static int lie_alike(const struct program *p, int a, int b)
{
    for (int axis = 0; axis < N_AXES; axis++)
        if (flat_spread(p, a, axis) != flat_spread(p, b, axis))
            return 0;
    return 1;
}

/*
 * Zero 3: weights that are gathered together should be read together, and not be many. Vectors are
 * few and small whatever the layer.
 */
static int read_apart(const struct sharding *s, const struct member *a, const struct member *b)
{
    const struct parameter *x = &s->program->parameters[a->parameter];
    const struct parameter *y = &s->program->parameters[b->parameter];

    if (s->options->zero < 3 || !s->together)
        return 0;
    if (s->options->hold == HOLD_KIND_OP || x->n_dims != y->n_dims)
        return 1;
    return x->n_dims > 1 && (a->at.layer != b->at.layer || a->at.layer < 0);
}

static enum dtype accumulator_dtype(const struct program *p, const struct member *m)
{
    return p->values[accumulator_cell(p, m, 0)].dtype;
}

/* Of a bucket's accumulators. */
static enum dtype bucket_dtype(const struct program *p, const struct member *list, int bucket)
{
    while (list->bucket != bucket)
        list++;
    return accumulator_dtype(p, list);
}

static int may_share(const struct sharding *s, const struct member *a, const struct member *b)
{
    const struct program *p = s->program;
    enum dtype x = p->values[p->parameters[a->parameter].weight].dtype;
    enum dtype y = p->values[p->parameters[b->parameter].weight].dtype;

    if (accumulator_dtype(p, a) != accumulator_dtype(p, b))
        return 0;
    if (a->at.turn != b->at.turn || (s->early && !same_parts(a, b)))
        return 0;
    if (!lie_alike(p, accumulator_cell(p, a, 0), accumulator_cell(p, b, 0)))
        return 0;
    if (read_apart(s, a, b))
        return 0;
    /* What two stages exchange must lie alike on both. */
    if (p->parameters[a->parameter].tied_peer || p->parameters[b->parameter].tied_peer)
        return 0;
    return !s->together || (x == y && a->n_uses == b->n_uses);
}

/* Each joins the bucket of the newest that it may share with, until that is full. */
static int assign(const struct sharding *s, struct member *list, int n, size_t bucket_bytes)
{
    const struct program *p = s->program;
    int n_buckets = 0;

    for (int i = 0; i < n; i++) {
        struct member *m = &list[i];
        int j = i - 1;

        m->n_bytes = program_value_bytes(p, accumulator_cell(p, m, 0));
        while (j >= 0 && !may_share(s, m, &list[j]))
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

static int64_t n_shards(const struct program *p)
{
    return p->mesh.size[axes_shard()];
}

/* Where each member lies in its bucket, and how long that is. */
static void measure_buckets(const struct sharding *s, struct member *list, int n)
{
    struct program *p = s->program;

    for (int i = 0; i < n; i++) {
        struct parameter *q = &p->parameters[list[i].parameter];
        struct bucket *b = &p->buckets[list[i].bucket];

        b->n_uses = list[i].n_uses;
        list[i].offset = b->n_elements;
        if (s->together) {
            q->bucket = list[i].bucket;
            q->bucket_offset = list[i].offset;
        }
        b->n_elements += round_up(q->rows * q->cols, OPS_NORM_BLOCK);
    }
    for (int i = 0; i < p->n_buckets; i++)
        p->buckets[i].n_elements = round_up(p->buckets[i].n_elements, n_shards(p) * OPS_NORM_BLOCK);
}

/* The flat cell of one use of a bucket's members, whose accumulators become views of it. */
static void make_cell(struct program *p, const struct member *list, int n,
                      const struct reduction *r)
{
    struct bucket *b = &p->buckets[r->bucket];
    char *name = r->use ? arena_printf(&p->arena, "bucket.%d.%d", r->bucket, r->use)
                        : arena_printf(&p->arena, "bucket.%d", r->bucket);
    int cell = r->lane ? program_view(p, r->lane, 0, 1, b->n_elements, b->n_elements)
                       : program_cell(p, ROLE_GRADIENT, name, 1, b->n_elements,
                                      bucket_dtype(p, list, r->bucket));

    p->values[cell].name = name;
    for (int i = 0; i < n; i++) {
        if (list[i].bucket != r->bucket)
            continue;
        struct value *v = &p->values[accumulator_cell(p, &list[i], r->use)];

        v->base = program_base(p, cell);
        v->offset = list[i].offset;
        for (int axis = 0; axis < N_AXES; axis++) {
            enum spread spread = flat_spread(p, accumulator_cell(p, &list[i], r->use), axis);

            p->values[cell].spread[axis] = spread;
            p->values[v->base].spread[axis] = spread;
        }
    }
    b->gradients[r->use] = cell;
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
static struct reduction *list_reductions(const struct sharding *s, const struct member *list,
                                         int n_members, int *n)
{
    struct program *p = s->program;
    struct reduction *reductions =
        arena_array(&p->arena, struct reduction, p->n_buckets * TENSOR_MAX_USES);

    *n = 0;
    for (int i = 0; i < p->n_buckets; i++)
        for (int use = 0; use < p->buckets[i].n_uses; use++) {
            struct reduction *r = &reductions[(*n)++];

            *r = (struct reduction){ .bucket = i, .use = use, .at = { .turn = -1 } };
            for (int k = 0; k < n_members; k++) {
                struct moment at = list[k].uses[use];
                int begun = r->at.turn < 0 ? at.begun : min_int(r->at.begun, at.begun);

                if (list[k].bucket != i)
                    continue;
                if (r->at.turn < 0 || compare_moments(r->at, at) < 0)
                    r->at = at;
                r->at.begun = begun;
            }
        }
    qsort(reductions, (size_t)*n, sizeof *reductions, completed_earlier);
    return reductions;
}

/* ---- zero 2: memory for as many whole sums as are under way ---- */

/* Memory that one flat cell after another has. */
struct lane {
    int64_t n_elements;
    enum dtype dtype;
    struct moment busy; /* until its newest is complete */
    int newest;         /* the number of that reduction */
};

static int is_free(const struct lane *lane, const struct reduction *r, enum dtype dtype, int number)
{
    if (lane->dtype != dtype)
        return 0;
    /* What was complete just now still travels while the next is computed. */
    if (lane->newest == number - 1)
        return 0;
    return lane->busy.turn != r->at.turn || lane->busy.part != r->at.part ||
           lane->busy.done < r->at.begun;
}

/*
 * Each reduction, in order, takes the free lane that it suits best: the smallest that is large
 * enough, else the largest, which grows. Functions end with all that they have begun complete, so
 * that lanes are shared by all of them. Lanes become cells; what was travelling when its memory is
 * written again is waited for, as it is one cell.
 */
static void make_lanes(struct program *p, const struct member *members, struct reduction *list,
                       int n)
{
    struct lane *lanes = arena_array(&p->arena, struct lane, n);
    int *lane_of = arena_array(&p->arena, int, n), *cells = arena_array(&p->arena, int, n);
    int n_lanes = 0;

    for (int i = 0; i < n; i++) {
        int64_t wanted = p->buckets[list[i].bucket].n_elements;
        enum dtype dtype = bucket_dtype(p, members, list[i].bucket);
        int best = -1;

        for (int l = 0; l < n_lanes; l++) {
            if (!is_free(&lanes[l], &list[i], dtype, i))
                continue;
            int64_t have = lanes[l].n_elements, best_have = best < 0 ? 0 : lanes[best].n_elements;
            if (best < 0 ||
                (best_have < wanted ? have > best_have : have >= wanted && have < best_have))
                best = l;
        }
        if (best < 0)
            best = n_lanes++;
        lanes[best] =
            (struct lane){ max_i64(lanes[best].n_elements, wanted), dtype, list[i].at, i };
        lane_of[i] = best;
    }
    for (int l = 0; l < n_lanes; l++)
        cells[l] = program_cell(p, ROLE_GRADIENT, arena_printf(&p->arena, "gradient_lane.%d", l), 1,
                                lanes[l].n_elements, lanes[l].dtype);
    for (int i = 0; i < n; i++)
        list[i].lane = cells[lane_of[i]];
}

/* A view of the same for when the sum over the axis is in it. */
static int summed_view(struct program *p, int id, enum mesh_axis axis)
{
    struct value v = p->values[id];
    int view = program_view(p, id, 0, v.rows, v.cols, v.stride);

    p->values[view].spread[axis] = SPREAD_SAME;
    return view;
}

static struct op reduce_op(int cell, int shard, enum first_mode first)
{
    return (struct op){ .kind = OP_REDUCE_SCATTER,
                        .attributes.axis = axes_shard(),
                        .in = { [REDUCE_SCATTER_FULL] = cell },
                        .out = { [REDUCE_SCATTER_SHARD] = shard },
                        .phase = PHASE_W,
                        .stream = stream_of_axis(axes_shard()),
                        .first = first,
                        .layer = -1 };
}

static struct op gather_op(struct program *p, int cell, int shard, enum phase phase)
{
    return (struct op){ .kind = OP_ALL_GATHER,
                        .attributes.axis = axes_shard(),
                        .in = { [ALL_GATHER_SHARD] = shard },
                        .out = { [ALL_GATHER_FULL] = summed_view(p, cell, axes_shard()) },
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
            if (f->ops[i].out[k] && p->values[f->ops[i].out[k]].role == ROLE_GRADIENT &&
                f->ops[i].first == FIRST_MICRO_BATCH)
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

/*
 * A bucket of thousands of ranks ends with a gap of up to a norm block each: as many zeros would be
 * gigabytes. The constant has at most 4 MB of them.
 */
#define ZEROS_MAX ((int64_t)1 << 20)

/* The gap behind the last member of a bucket is its largest, but for less than a block. */
static int64_t largest_gap(const struct program *p, const struct member *list, int n)
{
    int64_t gap = OPS_NORM_BLOCK;

    for (int i = 0; i < n; i++) {
        const struct parameter *q = &p->parameters[list[i].parameter];
        int is_last = 1;

        for (int k = i + 1; k < n && is_last; k++)
            is_last = list[k].bucket != list[i].bucket;
        if (is_last)
            gap = max_i64(gap, p->buckets[list[i].bucket].n_elements - list[i].offset -
                                   q->rows * q->cols);
    }
    return gap;
}

/*
 * Zeros between members of a bucket, which others have written over in its lane: the norm sees
 * them. Behind the constant's what is clear already is copied, twice as much by each op, so that
 * the ops are few however long the gap is.
 */
static void clear(const struct sharding *s, int cell, int64_t begin, int64_t end, int function,
                  int index)
{
    struct program *p = s->program;
    int constant = s->zeros[p->values[cell].dtype != DTYPE_F32];

    for (int64_t n, n_clear = 0; begin + n_clear < end; n_clear += n) {
        n = min_i64(max_i64(s->n_zeros, n_clear), end - begin - n_clear);
        int gap = program_view(p, cell, begin + n_clear, 1, n, n);
        int zeros =
            n_clear ? program_view(p, cell, begin, 1, n, n) : program_view(p, constant, 0, 1, n, n);

        memcpy(p->values[zeros].spread, p->values[gap].spread, sizeof p->values[gap].spread);
        program_insert(p, function, index++,
                       &(struct op){ .kind = OP_ADD,
                                     .in = { [ADD_A] = zeros, [ADD_B] = zeros },
                                     .out = { [ADD_Y] = gap },
                                     .phase = PHASE_W,
                                     .layer = -1 });
    }
}

static void clear_gaps(const struct sharding *s, const struct member *list, int n,
                       const struct reduction *r, int function)
{
    struct program *p = s->program;
    struct bucket *b = &p->buckets[r->bucket];
    int64_t end = b->n_elements;

    for (int i = n - 1; i >= 0; i--) {
        const struct parameter *q = &p->parameters[list[i].parameter];

        if (list[i].bucket != r->bucket)
            continue;
        clear(s, b->gradients[r->use], list[i].offset + q->rows * q->cols, end, function,
              r->at.done + 1);
        end = list[i].offset;
    }
}

/* The sum over one axis, of a value of which every rank has a summand; y may be x's memory. */
static struct op all_reduce_op(int x, int y, enum mesh_axis axis, enum phase phase)
{
    return (struct op){ .kind = OP_ALL_REDUCE,
                        .attributes.axis = axis,
                        .in = { [ALL_REDUCE_X] = x },
                        .out = { [ALL_REDUCE_Y] = y },
                        .phase = phase,
                        .stream = stream_of_axis(axis),
                        .layer = -1 };
}

/* The axes over which a shard, once its group has summed it, is still a summand. */
static struct axis_list axes_owed(const struct program *p, int cell)
{
    struct axis_list all = axes_of_replicas(&p->mesh, PARAMETER_DENSE), owed = { 0 };

    for (int i = 0; i < all.n; i++)
        if (p->values[cell].spread[all.axes[i]] == SPREAD_PARTIAL)
            owed.axes[owed.n++] = all.axes[i];
    return owed;
}

/*
 * What the ranks of the sharding axis have summed is summed over the other axes of tokens, whose
 * ranks have the same shards. Of hybrid sharding (replica) each group is an aligned power of two of
 * ranks, so these are the sums of all ranks to the bit. What is added up over micro-batches (early)
 * is added once it is the sum of all ranks: ahead of the next reduction of the function, by when it
 * has come, or at its end.
 */
static void reduce_over_replicas(const struct sharding *s, int function, int index, int cell,
                                 int shard, const struct axis_list *axes)
{
    struct program *p = s->program;
    int sum = s->early ? program_value(p, 1, p->values[shard].cols, p->values[shard].dtype) : shard;
    struct op op = reduce_op(cell, sum, FIRST_ALWAYS);

    program_insert(p, function, index, &op);
    for (int i = 0; i < axes->n; i++) {
        int summed = summed_view(p, sum, axes->axes[i]);

        op = all_reduce_op(sum, summed, axes->axes[i], PHASE_W);
        program_insert(p, function, ++index, &op);
        sum = summed;
    }
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

/* The op in the functions of s->chunks behind which the flat cell is reduced; -1: their first. */
static int find_done(const struct sharding *s, const struct member *list, int n,
                     const struct reduction *r)
{
    int done = -1;

    for (int i = 0; i < n; i++) {
        if (list[i].bucket != r->bucket)
            continue;
        struct moment at = completion(s, accumulator_cell(s->program, &list[i], r->use));
        if (at.turn == r->at.turn && at.part == r->at.part)
            done = max_int(done, at.done);
    }
    return done;
}

/* In the function that completes the flat cell, or `last`. */
static void reduce_in(const struct sharding *s, const struct member *list, int n,
                      const struct reduction *r, int cell, int shard)
{
    struct program *p = s->program;
    int function = s->early ? function_of(s, r->at.turn, r->at.part)
                            : s->chunks[s->n_chunks - 1 - r->at.turn].last;
    struct op op = reduce_op(cell, shard, s->early ? FIRST_MICRO_BATCH : FIRST_ALWAYS);

    struct axis_list others = axes_owed(p, cell);

    if (others.n)
        reduce_over_replicas(s, function, r->at.done + 1, cell, shard, &others);
    else
        program_insert(p, function, r->at.done + 1, &op);
    if (r->lane)
        clear_gaps(s, list, n, r, function);
}

/* Reduce one flat cell into its shard, and gather the sums where the update wants them whole. */
static void reduce(const struct sharding *s, const struct member *list, int n,
                   const struct reduction *r, int update, int zero)
{
    struct program *p = s->program;
    struct bucket *b = &p->buckets[r->bucket];
    int cell = b->gradients[r->use];
    char *name = arena_printf(&p->arena, "%s:shard", p->values[cell].name);
    struct axis_list others = axes_owed(p, cell);
    int shard =
        program_cell(p, ROLE_GRADIENT, name, 1, b->n_elements / n_shards(p), p->values[cell].dtype);

    b->shards[r->use] = shard;
    reduce_in(s, list, n, r, cell, shard);
    for (int size = 0; s->early && size < s->n_sizes; size++) {
        struct sharding other = *s;
        struct reduction there = *r;

        other.chunks = s->sizes + size * s->n_chunks;
        if (other.chunks == s->chunks)
            continue;
        there.at.done = find_done(&other, list, n, r);
        reduce_in(&other, list, n, &there, cell, shard);
    }
    for (int i = 0; i < others.n && !s->early; i++)
        b->shards[r->use] = summed_view(p, b->shards[r->use], others.axes[i]);
    if (zero)
        return;
    struct op op = gather_op(p, cell, b->shards[r->use], s->early ? PHASE_U : PHASE_W);
    b->gradients[r->use] = op.out[ALL_GATHER_FULL];
    if (s->early)
        program_insert(p, update, 0, &op);
    else
        program_insert(p, s->chunks[s->n_chunks - 1 - r->at.turn].last, r->at.done + 2 + others.n,
                       &op);
}

/* From now on the names of accumulators that are partial stand for the sums over the axis. */
static void read_sums(struct program *p, const struct member *list, int n, enum mesh_axis axis)
{
    for (int i = 0; i < n; i++) {
        int cell = accumulator_cell(p, &list[i], 0);

        if (p->values[cell].spread[axis] == SPREAD_PARTIAL)
            p->parameters[list[i].parameter].gradients[list[i].use] = summed_view(p, cell, axis);
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
 * What is still a summand at the step's end is summed last of all, where it lies: of the axes of the
 * model what every rank has whole, but has learned of its own rows alone (norms, under sequence
 * parallel); of those of tokens all, where none of them shards.
 */
static void sum_what_is_owed(const struct sharding *s, const struct member *list, int n, int update)
{
    struct program *p = s->program;

    for (int axis = 0; axis < N_AXES; axis++) {
        if (p->mesh.size[axis] == 1 || axis == (int)axes_shard())
            continue;
        for (int i = 0; i < p->n_buckets; i++)
            for (int use = 0; use < p->buckets[i].n_uses; use++) {
                struct bucket *b = &p->buckets[i];
                int *cell = s->together ? &b->shards[use] : &b->gradients[use];

                if (p->values[*cell].spread[axis] == SPREAD_PARTIAL)
                    sum_over_axis(s, cell, (enum mesh_axis)axis, update);
            }
        if (!s->together)
            read_sums(p, list, n, (enum mesh_axis)axis);
    }
}

/* In which functions sums over ranks are begun, and how accumulators start. */
static void choose_last(struct sharding *s, int early)
{
    for (int c = 0; c < s->n_chunks && !early; c++)
        s->chunks[c].last = copy_function(s->program, s->chunks[c].weight, ", last micro-batch");
    for (int c = 0; c < s->n_chunks * s->n_sizes && early; c++) {
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
    int n, n_reductions, is_alone = n_shards(p) == 1;
    struct sharding s = { .program = p,
                          .sizes = chunks,
                          .chunks = chunks + options->last_size * n_chunks,
                          .n_chunks = n_chunks,
                          .n_sizes = max_int(options->n_sizes, 1),
                          .options = options,
                          .early = options->early && !is_alone,
                          .together = options->zero > 0 && !is_alone };
    struct member *list = list_members(&s, &n);

    p->n_buckets = assign(&s, list, n, options->bucket_bytes);
    p->buckets = arena_array(&p->arena, struct bucket, p->n_buckets + 1);
    measure_buckets(&s, list, n);
    struct reduction *reductions = list_reductions(&s, list, n, &n_reductions);
    if (options->zero >= 2 && s.early) {
        s.n_zeros = min_i64(largest_gap(p, list, n), ZEROS_MAX);
        s.zeros[0] = program_cell(p, ROLE_CONSTANT, "zeros", 1, s.n_zeros, DTYPE_F32);
        if (p->gradient_dtype != DTYPE_F32)
            s.zeros[1] =
                program_cell(p, ROLE_CONSTANT, "zeros.bf16", 1, s.n_zeros, p->gradient_dtype);
        make_lanes(p, list, reductions, n_reductions);
    }
    for (int i = 0; i < n_reductions; i++)
        make_cell(p, list, n, &reductions[i]);
    for (int c = 0; c < n_chunks * s.n_sizes; c++)
        chunks[c].last = chunks[c].weight;
    if (is_alone) {
        sum_what_is_owed(&s, list, n, update);
        return;
    }
    choose_last(&s, options->early);
    /* From the end, so that earlier indices stay right. */
    for (int i = n_reductions - 1; i >= 0; i--)
        reduce(&s, list, n, &reductions[i], update, options->zero);
    if (!options->zero)
        read_sums(p, list, n, axes_shard());
    sum_what_is_owed(&s, list, n, update);
}
