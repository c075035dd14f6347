/*
 * fp8_weights.c - weights of products of fp8 are rounded once a step, where each rank has its shard
 *
 * Without this pass each product rounds its weight: forward, dx, recomputed, in every micro-batch.
 * Here a function of its own does so ahead of the first micro-batch, and products read codes and
 * the largest element of each block, from which scales follow. Where weights are sharded a rank
 * rounds its shard, and codes are gathered, in half the bytes. A block may lie in several shards:
 * ranks find the largest element of what they have of each block first, and gather those, a number
 * for each 128 x 128, of all buckets together. A maximum has no order, so codes are those of whole
 * weights, bit for bit, wherever shards end. With one scale of a matrix it is of all ranks' parts,
 * but of experts' matrices, where a rank's part has its own.
 *
 *     F  %90 = fp8_weight_amax weights.1:shard, ...                    function "round weights"
 *     F  %91 = all_gather %90  over dp
 *     F  weights.1.codes:shard, weights.most = fp8_weight_codes weights.1:shard, %91, ...
 *     F  weights.1.codes = all_gather weights.1.codes:shard  over dp   (zero 1, 2)
 *     ...
 *     F  %26 = linear_fp8 %24, layers.1.qkv.weight.codes, -, -, layers.1.qkv.weight.most
 *
 * Codes are in buckets of their own, beside those of the weights, which zero 3 gathers as it does
 * all others (zero3.c). Under zero 1 and 2 the step gathers codes and ENTRY_GATHER the weights
 * themselves, which evaluation reads.
 */
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "program/passes.h"

/* Weights that lie one behind the other: those of a sharded bucket, or one. */
struct rounded_weights {
    int bucket;    /* -1: one weight, which each rank has whole */
    int parameter; /* -1: it is a bucket */
    int x;         /* what the rank has */
    int matrices, begin, group;
    int64_t n_blocks, first_block; /* in the group's */
};

/* Those whose largest elements are found by the same ranks. */
struct rounding_group {
    enum mesh_axis shard_axis;
    bool is_sharded;
    bool is_of_experts;
    unsigned apart;  /* axes, as bits, along which ranks have other elements */
    unsigned joined; /* of these, along which they are of the same blocks, beside shard_axis */
    int64_t n_blocks;
    int own, all, most;
};

struct rounding_pass {
    struct program *program;
    enum fp8_recipe recipe;
    int function;
    int *n_matrices; /* by parameter: of its weight, which products of fp8 read; 0: none does */
    struct rounded_weights *list;
    int n;
    struct rounding_group *groups;
    int n_groups;
    int *codes, *most; /* by value: of weights */
};

/* ---- who reads what ---- */

/* Which operand of the op is a weight that is rounded, and which is the largest elements'; -1. */
struct weight_operand {
    int weight, most;
};

static struct weight_operand weight_of(const struct op *op)
{
    switch (op->kind) {
    case OP_LINEAR_FP8:
    case OP_LINEAR_DX_FP8:
        return (struct weight_operand){ LINEAR_W, ops_fp8_most(op->kind, LINEAR_W) };
    case OP_EXPERT_LINEAR_FP8:
    case OP_EXPERT_LINEAR_DX_FP8:
        return (struct weight_operand){ EXPERT_LINEAR_W, EXPERT_LINEAR_FP8_W_MOST };
    default:
        return (struct weight_operand){ -1, -1 };
    }
}

static int n_matrices_of(const struct program *p, const struct op *op)
{
    bool is_of_experts = weight_of(op).weight == EXPERT_LINEAR_W;

    return is_of_experts ? (int)p->values[op->in[EXPERT_LINEAR_ENDS]].cols : 1;
}

static void find_readers(struct rounding_pass *w)
{
    const struct program *p = w->program;
    int *n_matrices = arena_array(&w->program->arena, int, p->n_values);

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];

            if (weight_of(op).weight < 0)
                continue;
            n_matrices[op->in[weight_of(op).weight]] = n_matrices_of(p, op);
            w->recipe = op->attributes.fp8;
        }
    for (int i = 0; i < p->n_parameters; i++)
        w->n_matrices[i] = n_matrices[p->parameters[i].weight];
}

static bool is_sharded(const struct program *p, const struct parameter *q)
{
    return q->bucket >= 0 && program_n_shards(p, q->bucket) > 1;
}

static void list_weights(struct rounding_pass *w)
{
    struct program *p = w->program;
    char *is_listed = arena_array(&p->arena, char, p->n_buckets + 1);

    w->list = arena_array(&p->arena, struct rounded_weights, p->n_parameters);
    for (int i = 0; i < p->n_parameters; i++) {
        const struct parameter *q = &p->parameters[i];
        struct rounded_weights r = { .bucket = -1, .parameter = i, .x = q->weight };

        if (is_sharded(p, q)) {
            CHECK(w->n_matrices[i] || !is_listed[q->bucket]);
            if (!w->n_matrices[i] || is_listed[q->bucket])
                continue;
            is_listed[q->bucket] = 1;
            r = (struct rounded_weights){ q->bucket, -1, p->buckets[q->bucket].weight_shard,
                                          0,         0,  0,
                                          0,         0 };
        }
        if (w->n_matrices[i])
            w->list[w->n++] = r;
    }
}

/* ---- tables ---- */

/* Of a parameter, whose elements lie from `first` on, its blocks from first_block on. */
static struct ops_fp8_matrix matrix_of(const struct rounding_pass *w, int parameter, int64_t first,
                                       int64_t first_block)
{
    const struct parameter *q = &w->program->parameters[parameter];
    int n = w->n_matrices[parameter];

    return (struct ops_fp8_matrix){ first, q->rows / n, q->cols, first_block, n };
}

static int64_t blocks_of(const struct rounding_pass *w, int parameter)
{
    struct ops_fp8_matrix m = matrix_of(w, parameter, 0, 0);

    return ops_fp8_matrix_blocks(&m, w->recipe == FP8_TENSOR);
}

static bool is_in(const struct rounded_weights *r, const struct program *p, int parameter)
{
    return r->parameter == parameter ||
           (r->bucket >= 0 && p->parameters[parameter].bucket == r->bucket);
}

static void make_table(struct rounding_pass *w, struct rounded_weights *r)
{
    struct program *p = w->program;
    struct ops_fp8_matrix *list = arena_array(&p->arena, struct ops_fp8_matrix, p->n_parameters);
    int n = 0;

    for (int i = 0; i < p->n_parameters; i++) {
        const struct parameter *q = &p->parameters[i];

        if (!is_in(r, p, i))
            continue;
        CHECK(w->n_matrices[i]);
        list[n++] = matrix_of(w, i, r->bucket >= 0 ? q->bucket_offset : 0, r->n_blocks);
        r->n_blocks += blocks_of(w, i);
    }
    const char *of = r->bucket >= 0 ? arena_printf(&p->arena, "weights.%d", r->bucket)
                                    : p->parameters[r->parameter].name;
    r->matrices = program_cell(p, ROLE_CONSTANT, arena_printf(&p->arena, "%s.matrices", of), n,
                               OPS_FP8_MATRIX_COLS, DTYPE_I64);
    p->values[r->matrices].content = list;
}

/* Where the rank's shard begins. */
static void make_begin(struct rounding_pass *w, struct rounded_weights *r)
{
    struct program *p = w->program;
    const struct bucket *b = &p->buckets[r->bucket];
    int n = program_n_shards(p, r->bucket);
    int64_t *begins = arena_array(&p->arena, int64_t, n);
    char *name = arena_printf(&p->arena, "weights.%d.begin", r->bucket);
    int cell = program_cell(p, ROLE_CONSTANT, name, 1, n, DTYPE_I64);

    for (int i = 0; i < n; i++)
        begins[i] = b->n_elements / n * i;
    p->values[cell].content = begins;
    r->begin = program_local_shard(p, arena_printf(&p->arena, "%s:shard", name), cell, b->axis);
}

/* ---- groups ---- */

/* Of a bucket's parameters all are, or none (buckets.c). */
static bool is_of_experts(const struct rounding_pass *w, const struct rounded_weights *r)
{
    const struct program *p = w->program;

    for (int i = 0; i < p->n_parameters; i++)
        if (is_in(r, p, i) && p->parameters[i].in_fp8 == IN_FP8_BY_RANK)
            return true;
    return false;
}

/* Over the model's axes blocks are of a rank's part of a matrix, and one scale of the whole. */
static struct rounding_group group_of(const struct rounding_pass *w,
                                      const struct rounded_weights *r)
{
    const struct program *p = w->program;
    struct rounding_group g = { .is_sharded = r->bucket >= 0,
                                .is_of_experts = is_of_experts(w, r) };

    if (g.is_sharded)
        g.shard_axis = p->buckets[r->bucket].axis;
    for (int axis = 0; axis < N_AXES; axis++) {
        if (p->mesh.size[axis] == 1 || p->values[r->x].spread[axis] == SPREAD_SAME)
            continue;
        g.apart |= 1U << axis;
        if (w->recipe == FP8_TENSOR && !g.is_of_experts &&
            !(g.is_sharded && axis_covers(g.shard_axis, (enum mesh_axis)axis)))
            g.joined |= 1U << axis;
    }
    return g;
}

static bool are_alike(const struct rounding_group *a, const struct rounding_group *b)
{
    return a->is_sharded == b->is_sharded && a->is_of_experts == b->is_of_experts &&
           a->shard_axis == b->shard_axis && a->apart == b->apart && a->joined == b->joined;
}

static void join_group(struct rounding_pass *w, struct rounded_weights *r)
{
    struct rounding_group g = group_of(w, r);
    int i = 0;

    while (i < w->n_groups && !are_alike(&g, &w->groups[i]))
        i++;
    if (i == w->n_groups)
        w->groups[w->n_groups++] = g;
    r->group = i;
    r->first_block = w->groups[i].n_blocks;
    w->groups[i].n_blocks += r->n_blocks;
}

static void spread_rows(struct program *p, int value, unsigned axes)
{
    for (int axis = 0; axis < N_AXES; axis++)
        if (axes >> axis & 1)
            p->values[value].spread[axis] = SPREAD_ROWS;
}

static unsigned bits_of_shards(const struct rounding_group *g)
{
    unsigned bits = 0;

    for (int axis = 0; axis < N_AXES; axis++)
        if (g->is_sharded && axis_covers(g->shard_axis, (enum mesh_axis)axis))
            bits |= 1U << axis;
    return bits;
}

static void make_group(struct rounding_pass *w, struct rounding_group *g)
{
    struct program *p = w->program;
    char *name = arena_printf(&p->arena, "weights.most.%d", (int)(g - w->groups));

    g->own = program_value(p, 1, g->n_blocks, DTYPE_F32);
    spread_rows(p, g->own, g->apart);
    g->most = program_cell(p, ROLE_CODES, name, 1, g->n_blocks, DTYPE_F32);
    spread_rows(p, g->most, g->apart & ~g->joined & ~bits_of_shards(g));
}

/* ---- ops ---- */

static void emit(const struct rounding_pass *w, struct op op)
{
    op.phase = PHASE_F;
    op.layer = -1;
    op.attributes.fp8 = w->recipe;
    program_emit(w->program, w->function, &op);
}

static void measure(const struct rounding_pass *w, const struct rounded_weights *r)
{
    struct program *p = w->program;
    int own = w->groups[r->group].own;

    emit(w, (struct op){ .kind = OP_FP8_WEIGHT_AMAX,
                         .in = { [FP8_WEIGHT_AMAX_X] = r->x,
                                 [FP8_WEIGHT_AMAX_MATRICES] = r->matrices,
                                 [FP8_WEIGHT_AMAX_BEGIN] = r->begin },
                         .out = { [FP8_WEIGHT_AMAX_MOST] = program_view(
                                      p, own, r->first_block, 1, r->n_blocks, r->n_blocks) } });
}

static int gather(const struct rounding_pass *w, int part, enum mesh_axis axis, enum stream stream)
{
    struct program *p = w->program;
    struct value v = p->values[part];
    int all = program_value(p, v.rows * mesh_size(&p->mesh, axis), v.cols, v.dtype);

    program_emit(p, w->function,
                 &(struct op){ .kind = OP_ALL_GATHER,
                               .attributes.axis = axis,
                               .in = { [ALL_GATHER_SHARD] = part },
                               .out = { [ALL_GATHER_FULL] = all },
                               .phase = PHASE_F,
                               .stream = stream,
                               .layer = -1 });
    return all;
}

static void gather_group(const struct rounding_pass *w, struct rounding_group *g)
{
    g->all = g->own;
    if (g->is_sharded)
        g->all = gather(w, g->all, g->shard_axis, STREAM_DP_GATHER);
    for (int axis = 0; axis < N_AXES; axis++)
        if (g->joined >> axis & 1)
            g->all = gather(w, g->all, (enum mesh_axis)axis, stream_of_axis((enum mesh_axis)axis));
}

/* ---- codes ---- */

static void round_into(const struct rounding_pass *w, const struct rounded_weights *r, int codes)
{
    struct program *p = w->program;
    const struct rounding_group *g = &w->groups[r->group];
    const struct value all = p->values[g->all];

    emit(w, (struct op){ .kind = OP_FP8_WEIGHT_CODES,
                         .attributes.n_experts = g->is_of_experts,
                         .in = { [FP8_WEIGHT_CODES_X] = r->x,
                                 [FP8_WEIGHT_CODES_MOST] = program_view(
                                     p, g->all, r->first_block, all.rows, r->n_blocks, all.stride),
                                 [FP8_WEIGHT_CODES_MATRICES] = r->matrices,
                                 [FP8_WEIGHT_CODES_BEGIN] = r->begin },
                         .out = { [FP8_WEIGHT_CODES_CODES] = codes,
                                  [FP8_WEIGHT_CODES_JOINED] = program_view(
                                      p, g->most, r->first_block, 1, r->n_blocks, r->n_blocks) } });
}

/* The bucket of a bucket's codes: all of them where weights are gathered once a step, and the
 * rank's shard of these; or that alone. */
static int add_bucket(struct rounding_pass *w, int of)
{
    struct program *p = w->program;
    struct bucket *list = arena_array(&p->arena, struct bucket, p->n_buckets + 1);
    int number = p->n_buckets, n = program_n_shards(p, of);
    struct bucket b = { .axis = p->buckets[of].axis, .n_elements = p->buckets[of].n_elements };
    int weights = p->buckets[of].weights, shard = p->buckets[of].weight_shard;
    char *name = arena_printf(&p->arena, "weights.%d.codes", of);
    char *own = arena_printf(&p->arena, "%s:shard", name);

    if (weights) {
        b.weights = program_cell(p, ROLE_CODES, name, 1, b.n_elements, DTYPE_U8);
        program_lie_like(p, b.weights, weights, b.axis);
        b.weight_shard = program_local_shard(p, own, b.weights, b.axis);
    } else {
        b.weight_shard = program_cell(p, ROLE_CODES, own, 1, b.n_elements / n, DTYPE_U8);
        program_spread_over(p, b.weight_shard, b.axis, SPREAD_COLS);
        program_lie_like(p, b.weight_shard, shard, b.axis);
        p->values[b.weight_shard].bucket = 1 + number;
    }
    memcpy(list, p->buckets, sizeof *list * (size_t)p->n_buckets);
    list[number] = b;
    list[of].codes = number;
    p->buckets = list;
    p->n_buckets++;
    return number;
}

/* What products read in the place of a weight. Under zero 3 it has no memory, and is replaced by
 * what is gathered. */
static void make_codes(struct rounding_pass *w, struct parameter *q, int codes)
{
    struct program *p = w->program;

    if (is_sharded(p, q))
        q->codes = codes ? program_view(p, codes, q->bucket_offset, q->rows, q->cols, q->cols)
                         : program_value(p, q->rows, q->cols, DTYPE_U8);
    else
        q->codes = codes;
    p->values[q->codes].name = arena_printf(&p->arena, "%s.codes", q->name);
    memcpy(p->values[q->codes].spread, p->values[q->weight].spread,
           sizeof p->values[q->codes].spread);
}

/* Each rank's own, whole. */
static int codes_cell(struct rounding_pass *w, const struct parameter *q)
{
    struct program *p = w->program;

    return program_cell(p, ROLE_CODES, arena_printf(&p->arena, "%s.codes", q->name), q->rows,
                        q->cols, DTYPE_U8);
}

static void name_parts(struct rounding_pass *w, const struct rounded_weights *r, int whole)
{
    struct program *p = w->program;
    int64_t block = r->first_block;

    for (int i = 0; i < p->n_parameters; i++) {
        struct parameter *q = &p->parameters[i];
        if (!is_in(r, p, i))
            continue;
        int64_t n = blocks_of(w, i);
        make_codes(w, q, whole);
        w->codes[q->weight] = q->codes;
        w->most[q->weight] = program_view(p, w->groups[r->group].most, block, 1, n, n);
        memcpy(p->values[w->most[q->weight]].spread, p->values[w->groups[r->group].most].spread,
               sizeof p->values[0].spread);
        p->values[w->most[q->weight]].name = arena_printf(&p->arena, "%s.most", q->name);
        block += n;
    }
}

static void round_weights(struct rounding_pass *w, const struct rounded_weights *r)
{
    struct program *p = w->program;
    int codes, whole;

    if (r->bucket >= 0) {
        int number = add_bucket(w, r->bucket);

        codes = p->buckets[number].weight_shard;
        whole = p->buckets[number].weights;
    } else {
        codes = whole = codes_cell(w, &p->parameters[r->parameter]);
    }
    name_parts(w, r, whole);
    round_into(w, r, codes);
}

/* ---- readers ---- */

static bool read_codes(struct rounding_pass *w, struct function *f)
{
    bool has = false;

    for (int i = 0; i < f->n_ops; i++) {
        struct op *op = &f->ops[i];

        struct weight_operand o = weight_of(op);

        if (o.weight < 0)
            continue;
        op->in[o.most] = w->most[op->in[o.weight]];
        op->in[o.weight] = w->codes[op->in[o.weight]];
        has = true;
    }
    return has;
}

/* What the step gathers: codes of buckets that have some. */
static void gather_codes(struct rounding_pass *w, int gather)
{
    struct program *p = w->program;

    for (int i = 0; i < p->functions[gather].n_ops; i++) {
        struct op op = p->functions[gather].ops[i];
        int codes = 0;

        for (int b = 0; b < p->n_buckets; b++)
            if (p->buckets[b].codes && p->buckets[b].weights == op.out[ALL_GATHER_FULL])
                codes = p->buckets[b].codes;
        if (codes) {
            op.in[ALL_GATHER_SHARD] = p->buckets[codes].weight_shard;
            op.out[ALL_GATHER_FULL] = p->buckets[codes].weights;
        }
        program_emit(p, w->function, &op);
    }
}

/* In the place of `gather`, or ahead of all that is for a micro-batch. */
static void run_in(struct rounding_pass *w, struct entry *e, int gather)
{
    struct action round = { .kind = ACTION_RUN,
                            .function = (int16_t)w->function,
                            .micro_batch = -1 };
    struct action *list = arena_array(&w->program->arena, struct action, e->n_actions + 1);
    int n = 0;

    if (gather < 0)
        list[n++] = round;
    for (int i = 0; i < e->n_actions; i++)
        list[n++] = e->actions[i].kind == ACTION_RUN && e->actions[i].function == gather
                        ? round
                        : e->actions[i];
    e->actions = list;
    e->n_actions = n;
}

static void run_in_entries(struct rounding_pass *w, const char *has_codes, int gather)
{
    struct program *p = w->program;

    for (int e = 0; e < N_ENTRIES; e++) {
        bool reads = false;

        for (int i = 0; i < p->entries[e].n_actions; i++)
            reads |= p->entries[e].actions[i].kind == ACTION_RUN &&
                     has_codes[p->entries[e].actions[i].function];
        if (reads)
            run_in(w, &p->entries[e], gather);
    }
}

int fp8_weights(struct program *program, int gather)
{
    struct rounding_pass w = { .program = program };
    int n_functions = program->n_functions;
    char *has_codes = arena_array(&program->arena, char, n_functions + 1);

    w.n_matrices = arena_array(&program->arena, int, program->n_parameters + 1);
    w.codes = arena_array(&program->arena, int, program->n_values);
    w.most = arena_array(&program->arena, int, program->n_values);
    find_readers(&w);
    list_weights(&w);
    if (!w.n)
        return -1;
    w.groups = arena_array(&program->arena, struct rounding_group, w.n);
    w.function = program_function(program, "round weights", 0);
    for (int i = 0; i < w.n; i++) {
        make_table(&w, &w.list[i]);
        if (w.list[i].bucket >= 0)
            make_begin(&w, &w.list[i]);
        join_group(&w, &w.list[i]);
    }
    for (int i = 0; i < w.n_groups; i++)
        make_group(&w, &w.groups[i]);
    for (int i = 0; i < w.n; i++)
        measure(&w, &w.list[i]);
    for (int i = 0; i < w.n_groups; i++)
        gather_group(&w, &w.groups[i]);
    for (int i = 0; i < w.n; i++)
        round_weights(&w, &w.list[i]);
    if (gather >= 0)
        gather_codes(&w, gather);
    for (int f = 0; f < n_functions; f++)
        has_codes[f] = read_codes(&w, &program->functions[f]);
    run_in_entries(&w, has_codes, gather);
    return w.function;
}
