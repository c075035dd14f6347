/*
 * zero3.c - zero 3: weights are gathered only while ops read them (Rajbhandari et al. 2020, stage
 * 3; PyTorch's FSDP)
 *
 * A rank keeps its shard of each bucket's weights. Ops read views of gathered values, which live
 * like any other value from their gather to their last reader. How long weights are whole is
 * therefore decided by where the gathers are:
 *
 *   op    before each op that reads them; a bucket is then one parameter.
 *   pass  once a function, one bucket ahead: the gather of the next bucket is issued at the first
 *         reader of the one before (with n_ahead, of the n_ahead-th before) and is in flight while
 *         that one is computed with; those of the first may come before the function
 *         (zero3_prefetch.c). A bucket is at most a layer's matrices (shard.c), so at any time
 *         about two are whole, and the vectors of all layers, which are one small bucket. Where a
 *         layer is several buckets and is recomputed, about a layer and one bucket are whole. What
 *         is read again some layers later (an embedding that is also the head) is gathered again,
 *         as it may be the largest of all.
 *   run   before a run of actions of one chunk. The weights of a rank's chunks are double buffered
 *         in two sets of staging cells, one for even and one for odd chunks, and a chunk is
 *         gathered as soon as the previous chunk of its set has had its last action. With one or
 *         two chunks no set would ever change its chunk: for them it is `step`.
 *   step  as under zero 1 and 2 (zero_gather.c): whole in a cell, gathered once a step.
 *
 * Under pass:
 *
 *     F  %26 = linear %24, layers.0.qkv.weight
 *     ->
 *     F  %60 = all_gather weights.1:shard  over dp  stream dp_gather
 *     F  %26 = linear %24, layers.0.qkv.weight         now a view of %60
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "layout/axes.h"
#include "program/zero3_impl.h"

#define N_STAGING 2

/* A bucket stays gathered from one reader to the next if the layer changes at most this often in
 * between. */
#define MAX_LAYER_CHANGES 2

/* The sharded bucket of which the value is a weight, or codes of one; or -1. */
static int bucket_of(const struct zero3 *h, int value)
{
    int parameter = value < h->n_values ? h->parameter_of[value] - 1 : -1;

    if (parameter < 0)
        return -1;
    const struct parameter *q = &h->program->parameters[parameter];
    return value == q->codes ? h->program->buckets[q->bucket].codes : q->bucket;
}

static struct zero3 open_zero3(struct program *p)
{
    struct zero3 h = { p, p->n_values, arena_array(&p->arena, int, p->n_values) };

    for (int i = 0; i < p->n_parameters; i++)
        if (p->parameters[i].bucket >= 0 && program_n_shards(p, p->parameters[i].bucket) > 1)
            h.parameter_of[p->parameters[i].weight] = h.parameter_of[p->parameters[i].codes] =
                1 + i;
    h.parameter_of[0] = 0;
    return h;
}

/* ---- frozen parameters ---- */

/* A frozen parameter, and where its first reader is: buckets have parameters of one chunk and
 * layer. */
struct frozen {
    int parameter, chunk, layer;
};

static bool reads_weight(const struct op *op, int weight)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] == weight)
            return true;
    return false;
}

/* The chunk and layer of the parameter's first reader. */
static struct frozen find_first_reader(const struct program *p, int parameter,
                                       const struct chunk_functions *chunks, int n_chunks)
{
    for (int c = 0; c < n_chunks; c++) {
        const struct function *f = &p->functions[chunks[c].forward];

        for (int i = 0; i < f->n_ops; i++)
            if (reads_weight(&f->ops[i], p->parameters[parameter].weight))
                return (struct frozen){ parameter, c, f->ops[i].layer };
    }
    return (struct frozen){ parameter, 0, -1 };
}

static int go_together(const struct program *p, const struct frozen *a, const struct frozen *b,
                       enum zero3_gather kind)
{
    const struct parameter *x = &p->parameters[a->parameter], *y = &p->parameters[b->parameter];
    const struct value *v = &p->values[x->weight], *w = &p->values[y->weight];

    if (a->chunk != b->chunk || kind == ZERO3_GATHER_OP || x->n_dims != y->n_dims ||
        v->dtype != w->dtype || x->in_fp8 != y->in_fp8)
        return 0;
    for (int axis = 0; axis < N_AXES; axis++)
        if (spread_flat(v->spread[axis]) != spread_flat(w->spread[axis]))
            return 0;
    return x->n_dims == 1 || (a->layer == b->layer && a->layer >= 0);
}

void zero3_shard_frozen(struct program *p, const struct chunk_functions *chunks, int n_chunks,
                        const struct shard_options *options)
{
    struct frozen *list = arena_array(&p->arena, struct frozen, p->n_parameters);
    struct bucket *buckets = arena_array(&p->arena, struct bucket, p->n_buckets + p->n_parameters);
    int n = 0;

    memcpy(buckets, p->buckets, sizeof *buckets * (size_t)p->n_buckets);
    p->buckets = buckets;
    for (int i = 0; i < p->n_parameters; i++) {
        struct parameter *q = &p->parameters[i];
        int k = n - 1;

        if (q->n_gradients || q->stays_whole)
            continue;
        list[n] = find_first_reader(p, i, chunks, n_chunks);
        while (k >= 0 && !go_together(p, &list[n], &list[k], options->zero3))
            k--;
        q->bucket = k < 0 ? p->n_buckets++ : p->parameters[list[k].parameter].bucket;
        struct bucket *b = &p->buckets[q->bucket];
        b->axis = program_shard_axis(p, i);
        q->bucket_offset = b->n_elements;
        b->n_elements += round_up(q->rows * q->cols, OPS_NORM_BLOCK);
        n++;
    }
    for (int i = 0; i < p->n_buckets; i++)
        p->buckets[i].n_elements =
            round_up(p->buckets[i].n_elements, (int64_t)program_n_shards(p, i) * OPS_NORM_BLOCK);
}

static void make_shard(struct program *p, int number, int weight)
{
    struct bucket *b = &p->buckets[number];
    int n_shards = program_n_shards(p, number);
    char *name = arena_printf(&p->arena, n_shards > 1 ? "weights.%d:shard" : "weights.%d", number);

    b->weight_shard =
        program_cell(p, ROLE_WEIGHT, name, 1, b->n_elements / n_shards, p->values[weight].dtype);
    if (n_shards > 1) {
        program_spread_over(p, b->weight_shard, b->axis, SPREAD_COLS);
        p->values[b->weight_shard].bucket = 1 + number;
    } else {
        b->weights = b->weight_shard;
    }
    program_lie_like(p, b->weight_shard, b->n_uses ? b->shards[0] : weight, b->axis);
}

void zero3_shard_weights(struct program *p)
{
    for (int i = 0; i < p->n_parameters; i++) {
        struct parameter *q = &p->parameters[i];
        struct bucket *b = &p->buckets[max_int(q->bucket, 0)];

        if (q->bucket < 0)
            continue;
        if (!b->weight_shard)
            make_shard(p, q->bucket, q->weight);
        struct value *weight = &p->values[q->weight];
        CHECK(weight->dtype == p->values[b->weight_shard].dtype);
        if (b->weights) {
            weight->base = b->weights;
            weight->offset = q->bucket_offset;
            continue;
        }
        /* From now on this value is replaced by gathered ones, and has no memory. */
        weight->role = ROLE_NONE;
        weight->scope = SCOPE_PASS;
    }
}

/* The view of a parameter in its gathered bucket, in the place of the value. */
static int weight_in(const struct zero3 *h, int gathered, int value)
{
    struct program *p = h->program;
    const struct parameter *q = &p->parameters[h->parameter_of[value] - 1];
    int view = program_view(p, gathered, q->bucket_offset, q->rows, q->cols, q->cols);

    p->values[view].name = value == q->codes ? p->values[value].name : q->name;
    p->values[view].bucket = 1 + bucket_of(h, value);
    memcpy(p->values[view].spread, p->values[q->weight].spread, sizeof p->values[view].spread);
    return view;
}

/* That of its shards, which are all named so. */
char *zero3_bucket_name(struct program *p, int bucket)
{
    const char *of_shard = p->values[p->buckets[bucket].weight_shard].name;

    return arena_printf(&p->arena, "%.*s", (int)strcspn(of_shard, ":"), of_shard);
}

int zero3_n_leading(const struct entry *e)
{
    int n = 0;

    while (n < e->n_actions && e->actions[n].kind == ACTION_RUN && e->actions[n].micro_batch < 0)
        n++;
    return n;
}

struct op zero3_gather_op(const struct zero3 *h, int bucket, int gathered, enum phase phase)
{
    return (struct op){ .kind = OP_ALL_GATHER,
                        .attributes.axis = h->program->buckets[bucket].axis,
                        .in = { [ALL_GATHER_SHARD] = h->program->buckets[bucket].weight_shard },
                        .out = { [ALL_GATHER_FULL] = gathered },
                        .phase = phase,
                        .stream = STREAM_DP_GATHER,
                        .layer = -1 };
}

/* ---- op and pass: within a function ---- */

/* Readers of a bucket that share one gather. */
struct gather_span {
    int bucket, first, last; /* ops */
    int gathered;
};

struct spans {
    const struct zero3 *h;
    struct gather_span *list;
    int n;
    int *newest;           /* by bucket: 1 + its newest span */
    int *changes;          /* by op: changes of layer up to there */
    int *view, *view_span; /* by parameter: its newest view, and 1 + of which span */
};

static int gathered_value(const struct zero3 *h, int bucket)
{
    struct program *p = h->program;
    const struct bucket *b = &p->buckets[bucket];
    int id = program_value(p, 1, b->n_elements, p->values[b->weight_shard].dtype);

    p->values[id].name = zero3_bucket_name(p, bucket);
    p->values[id].bucket = 1 + bucket;
    return id;
}

/* The span that a reader belongs to: the bucket's newest, or a new one. */
static int span_of(struct spans *s, int bucket, int op, enum zero3_gather kind)
{
    int newest = s->newest[bucket] - 1;

    if (newest >= 0) {
        int last = s->list[newest].last;
        int near = kind == ZERO3_GATHER_OP ? last == op
                                           : s->changes[op] - s->changes[last] <= MAX_LAYER_CHANGES;

        s->list[newest].last = near ? op : last;
        if (near)
            return newest;
    }
    s->list[s->n] = (struct gather_span){ bucket, op, op, gathered_value(s->h, bucket) };
    s->newest[bucket] = 1 + s->n;
    return s->n++;
}

static void read_gathered(struct spans *s, int function, int op, int input, enum zero3_gather kind)
{
    int *in = &s->h->program->functions[function].ops[op].in[input];
    int bucket = bucket_of(s->h, *in), parameter;

    if (bucket < 0)
        return;
    parameter = s->h->parameter_of[*in] - 1;
    int span = span_of(s, bucket, op, kind);
    if (s->view_span[parameter] != 1 + span) {
        s->view[parameter] = weight_in(s->h, s->list[span].gathered, *in);
        s->view_span[parameter] = 1 + span;
    }
    *in = s->view[parameter];
}

static int count_reads(const struct zero3 *h, const struct function *f)
{
    int n = 0;

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            n += bucket_of(h, f->ops[i].in[k]) >= 0;
    return n;
}

/* n_ahead: under PASS, how many buckets before its first reader's each one is issued. */
static void gather_in_function(const struct zero3 *h, int function, enum zero3_gather kind,
                               int n_ahead)
{
    struct program *p = h->program;
    struct arena arena = { 0 };
    int n_ops = p->functions[function].n_ops, n = count_reads(h, &p->functions[function]);
    struct spans s = { .h = h };

    if (!n)
        return;
    s.list = arena_array(&arena, struct gather_span, n);
    s.newest = arena_array(&arena, int, p->n_buckets);
    s.changes = arena_array(&arena, int, n_ops);
    s.view = arena_array(&arena, int, p->n_parameters);
    s.view_span = arena_array(&arena, int, p->n_parameters);
    for (int i = 1; i < n_ops; i++) {
        const struct op *ops = p->functions[function].ops;

        s.changes[i] = s.changes[i - 1] + (ops[i].layer != ops[i - 1].layer);
    }
    for (int i = 0; i < n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            read_gathered(&s, function, i, k, kind);
    /* From the end, so that earlier indices stay right. */
    for (int i = s.n - 1; i >= 0; i--) {
        int ahead = i >= n_ahead ? s.list[i - n_ahead].first : 0;
        int at = kind == ZERO3_GATHER_OP ? s.list[i].first : ahead;
        enum phase phase = p->functions[function].ops[s.list[i].first].phase;
        struct op op = zero3_gather_op(h, s.list[i].bucket, s.list[i].gathered, phase);

        program_insert(p, function, at, &op);
    }
    arena_release(&arena);
}

/* ---- run: staging cells ---- */

/* A bucket that a chunk reads. */
struct need {
    int chunk, bucket;
    int64_t n_bytes;
    int slot;     /* of its staging: the chunk's largest bucket has slot 0 */
    int gathered; /* the view of that slot */
};

struct staging_walk {
    const struct zero3 *h;
    struct need *needs;
    int n_needs, n_chunks;
    int *gather; /* by chunk: the function, -1 none */
};

static struct need *find_need(const struct staging_walk *l, int chunk, int bucket)
{
    for (int i = 0; i < l->n_needs; i++)
        if (l->needs[i].chunk == chunk && l->needs[i].bucket == bucket)
            return &l->needs[i];
    return NULL;
}

/* What each chunk's functions read, in the order of first reading. */
static void list_needs(struct staging_walk *l)
{
    const struct program *p = l->h->program;

    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++)
            for (int k = 0; k < OPS_MAX_INPUTS; k++) {
                int bucket = bucket_of(l->h, p->functions[f].ops[i].in[k]);
                int chunk = p->functions[f].chunk;

                if (bucket < 0 || find_need(l, chunk, bucket))
                    continue;
                size_t element = dtype_bytes(p->values[p->buckets[bucket].weight_shard].dtype);
                l->needs[l->n_needs++] =
                    (struct need){ chunk, bucket, p->buckets[bucket].n_elements * (int64_t)element,
                                   0, 0 };
            }
}

/* Number slots by decreasing size, so that buckets of similar size share one; each dtype has slots
 * of its own. */
static void choose_slots(struct staging_walk *l)
{
    const struct program *p = l->h->program;

    for (int i = 0; i < l->n_needs; i++)
        for (int k = 0; k < l->n_needs; k++) {
            const struct need *a = &l->needs[i], *b = &l->needs[k];

            if (a->chunk != b->chunk || a == b)
                continue;
            if (p->values[p->buckets[a->bucket].weight_shard].dtype !=
                p->values[p->buckets[b->bucket].weight_shard].dtype)
                continue;
            l->needs[i].slot += b->n_bytes > a->n_bytes || (b->n_bytes == a->n_bytes && k < i);
        }
}

/* The cell of a slot, as large as the largest bucket that is ever in it. */
static int slot_cell(struct staging_walk *l, const struct need *of)
{
    struct program *p = l->h->program;
    enum dtype dtype = p->values[p->buckets[of->bucket].weight_shard].dtype;
    int64_t n = 0;

    for (int i = 0; i < l->n_needs; i++) {
        const struct need *other = &l->needs[i];
        const struct bucket *b = &p->buckets[other->bucket];

        if (other->slot != of->slot || (other->chunk - of->chunk) % N_STAGING ||
            p->values[b->weight_shard].dtype != dtype)
            continue;
        if (other->gathered)
            return program_base(p, other->gathered);
        n = max_i64(n, b->n_elements);
    }
    char *name = arena_printf(&p->arena, "weights_staging.%d.%d.%s", of->chunk % N_STAGING,
                              of->slot, dtype_name(dtype));
    return program_cell(p, ROLE_WEIGHT, name, 1, n, dtype);
}

static void gather_chunks(struct staging_walk *l)
{
    struct program *p = l->h->program;

    for (int i = 0; i < l->n_needs; i++) {
        struct need *need = &l->needs[i];
        int64_t n = p->buckets[need->bucket].n_elements;
        int cell = slot_cell(l, need);

        need->gathered = program_view(p, cell, 0, 1, n, n);
        p->values[need->gathered].name = zero3_bucket_name(p, need->bucket);
        p->values[need->gathered].bucket = 1 + need->bucket;
        if (l->gather[need->chunk] < 0)
            l->gather[need->chunk] =
                program_function(p, arena_printf(&p->arena, "gather %d", need->chunk), need->chunk);
        struct op op = zero3_gather_op(l->h, need->bucket, need->gathered, PHASE_F);
        program_emit(p, l->gather[need->chunk], &op);
    }
}

static void read_staging(struct staging_walk *l, int function)
{
    struct program *p = l->h->program;
    const struct function *f = &p->functions[function];
    int *view = arena_array(&p->arena, int, p->n_parameters);

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            int bucket = bucket_of(l->h, f->ops[i].in[k]);

            if (bucket < 0)
                continue;
            int parameter = l->h->parameter_of[f->ops[i].in[k]] - 1;
            const struct need *need = find_need(l, f->chunk, bucket);
            if (!view[parameter])
                view[parameter] = weight_in(l->h, need->gathered, f->ops[i].in[k]);
            f->ops[i].in[k] = view[parameter];
        }
}

/* The staging that the action's function reads, or -1. */
static int staging_of(const struct program *p, const struct action *a)
{
    const struct function *f = &p->functions[a->function];

    if (a->kind != ACTION_RUN)
        return -1;
    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            const struct value *v = &p->values[f->ops[i].in[k]];

            if (v->bucket && v->base)
                return f->chunk % N_STAGING;
        }
    return -1;
}

/* Where a chunk reads a staging that another chunk used before, add a gather after that chunk's
 * last action. */
static void gather_ahead(const struct staging_walk *l, struct entry *e)
{
    struct program *p = l->h->program;
    struct action *actions = arena_array(&p->arena, struct action, 2 * e->n_actions);
    struct arena arena = { 0 };
    int *wanted[N_STAGING], free_from[N_STAGING], holds[N_STAGING] = { 0 }, n = 0;

    for (int staging = 0; staging < N_STAGING; staging++)
        free_from[staging] = zero3_n_leading(e);
    /* By staging and action: 1 + the chunk to be gathered before it. */
    for (int staging = 0; staging < N_STAGING; staging++)
        wanted[staging] = arena_array(&arena, int, e->n_actions);
    for (int i = 0; i < e->n_actions; i++) {
        int staging = staging_of(p, &e->actions[i]);

        if (staging < 0)
            continue;
        int chunk = p->functions[e->actions[i].function].chunk;
        if (holds[staging] != 1 + chunk)
            wanted[staging][free_from[staging]] = holds[staging] = 1 + chunk;
        free_from[staging] = i + 1;
    }
    for (int i = 0; i < e->n_actions; i++) {
        for (int staging = 0; staging < N_STAGING; staging++)
            if (wanted[staging][i])
                actions[n++] =
                    (struct action){ .kind = ACTION_RUN,
                                     .function = (int16_t)l->gather[wanted[staging][i] - 1],
                                     .micro_batch = -1 };
        actions[n++] = e->actions[i];
    }
    e->actions = actions;
    e->n_actions = n;
    arena_release(&arena);
}

static void gather_in_staging(const struct zero3 *h)
{
    struct program *p = h->program;
    int n_functions = p->n_functions, n_reads = 0;
    struct staging_walk l = { .h = h };

    for (int f = 0; f < n_functions; f++) {
        n_reads += count_reads(h, &p->functions[f]);
        l.n_chunks = max_int(l.n_chunks, p->functions[f].chunk + 1);
    }
    l.needs = arena_array(&p->arena, struct need, n_reads);
    l.gather = arena_array(&p->arena, int, l.n_chunks);
    for (int c = 0; c < l.n_chunks; c++)
        l.gather[c] = -1;
    list_needs(&l);
    choose_slots(&l);
    gather_chunks(&l);
    for (int f = 0; f < n_functions; f++)
        read_staging(&l, f);
    for (int e = 0; e < N_ENTRIES; e++)
        gather_ahead(&l, &p->entries[e]);
}

int zero3_gathers_once(enum zero3_gather kind, int n_chunks)
{
    return kind == ZERO3_GATHER_STEP || (kind == ZERO3_GATHER_RUN && n_chunks <= N_STAGING);
}

void zero3_gather_weights(struct program *program, enum zero3_gather kind, int n_ahead)
{
    struct zero3 h = open_zero3(program);

    CHECK(kind != ZERO3_GATHER_STEP);
    if (kind == ZERO3_GATHER_RUN) {
        gather_in_staging(&h);
        return;
    }
    for (int f = 0; f < program->n_functions; f++)
        gather_in_function(&h, f, kind, max_int(1, n_ahead));
    if (kind == ZERO3_GATHER_PASS && n_ahead)
        zero3_prefetch(&h, n_ahead);
}
