/*
 * keep_sets.c - recompute, on a copy of one layer's functions, for every set of kinds
 *
 * The copy is made behind the pass before recompute, while a program of few layers is compiled, and
 * is taken back to that state before each set. Only the layer in question has the set: that no
 * layer's recomputation reaches beyond its input, which is kept, makes layers independent.
 */
#include "plan/keep_sets.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "plan/collective_cost.h"
#include "plan/islands.h"
#include "plan/layer_cost.h"
#include "plan/price.h"
#include "plan/programs.h"

struct finding_sets {
    const struct keep_sets_request *request;
    const struct job *job; /* of few layers */
    int layer;             /* of the copy, whose sets are tried */
    struct prices prices;
    struct keep_front *front;
    struct keep_point *points; /* all that were tried */
    int n_points, capacity;
    struct arena *arena; /* of the front */
    bool is_done;
};

/* A copy of a program, and what it was. */
struct layer_copy {
    struct program program;
    const struct value *values;
    struct value *room; /* of the copy's */
    int n_values;
    struct function forward, backward;
    int at_forward, at_backward;
    bool *read, *counted; /* by value of the forward */
};

/* ---- the copy ---- */

static int find_function(const struct program *p, const char *prefix)
{
    for (int f = 0; f < p->n_functions; f++)
        if (!strncmp(p->functions[f].name, prefix, strlen(prefix)))
            return f;
    return -1;
}

static void *duplicate(struct arena *arena, const void *items, size_t item_bytes, int n, int room)
{
    void *copy = arena_alloc_array(arena, item_bytes, (size_t)room);

    memcpy(copy, items, item_bytes * (size_t)n);
    return copy;
}

/* Values that recompute adds have room: copies are no more than there are, with their views. */
static void open_copy(struct layer_copy *c, const struct program *p, struct arena *arena)
{
    *c = (struct layer_copy){ .program = *p, .n_values = p->n_values };
    c->values = p->values;
    c->room = arena_array(arena, struct value, 3 * p->n_values);
    c->program.functions =
        duplicate(arena, p->functions, sizeof *p->functions, p->n_functions, p->n_functions);
    c->at_forward = find_function(p, "forward");
    c->at_backward = find_function(p, "backward");
    c->forward = p->functions[c->at_forward];
    c->backward = p->functions[c->at_backward];
    c->read = arena_array(arena, bool, p->n_values);
    c->counted = arena_array(arena, bool, p->n_values);
}

/* recompute changes ops of the backward where they are. */
static void reset_copy(struct layer_copy *c)
{
    struct function *b = &c->program.functions[c->at_backward];

    arena_release(&c->program.arena);
    c->program.arena = (struct arena){ 0 };
    c->program.values = c->room;
    c->program.values_capacity = 3 * c->n_values;
    memcpy(c->room, c->values, sizeof *c->values * (size_t)c->n_values);
    c->program.n_values = c->n_values;
    *b = c->backward;
    b->ops = duplicate(&c->program.arena, c->backward.ops, sizeof *b->ops, b->n_ops, b->n_ops);
    b->capacity = b->n_ops;
}

/* ---- what a set takes ---- */

static int64_t price_ns(const struct finding_sets *f, const struct program *p, const struct op *op)
{
    struct op_shape shape = program_op_shape(p, op);

    if (op->kind == OP_SEND || op->kind == OP_RECEIVE)
        return 0;
    if (!op_is_collective(op->kind))
        return price_op(&f->prices, &shape).ns;
    struct group_shape group = price_group(&f->prices, &p->mesh, 0, op->attributes.axis);
    return price_collective(&f->prices, &group, &shape).ns;
}

static int64_t value_bytes(const struct program *p, int v)
{
    return (int64_t)align_up(program_value_bytes(p, v), PLACE_ALIGNMENT);
}

static void add_part(struct keep_point *point, enum op_kind kind, int64_t n_bytes)
{
    int i = 0;

    if (kind == N_OP_KINDS)
        return;
    while (i < point->n_parts && point->parts[i].kind != kind)
        i++;
    CHECK(i < KEEP_PARTS_MAX);
    if (i == point->n_parts)
        point->parts[point->n_parts++] = (struct keep_part){ .kind = kind };
    point->parts[i].n_bytes += n_bytes;
}

/* What the layer's forward writes and the backward reads. */
static void count_slot(const struct finding_sets *f, struct layer_copy *c, struct keep_point *point)
{
    const struct program *p = &c->program;
    const struct function *b = &p->functions[c->at_backward];

    memset(c->read, 0, sizeof *c->read * (size_t)c->n_values);
    memset(c->counted, 0, sizeof *c->counted * (size_t)c->n_values);
    for (int i = 0; i < b->n_ops; i++)
        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            int v = program_base(p, b->ops[i].in[k]);

            if (v < c->n_values)
                c->read[v] = true;
        }
    for (int i = 0; i < c->forward.n_ops; i++) {
        const struct op *op = &c->forward.ops[i];

        for (int k = 0; k < OPS_MAX_OUTPUTS && op->layer == f->layer; k++) {
            int v = program_base(p, op->out[k]);

            if (!v || !c->read[v] || c->counted[v] || p->values[v].role != ROLE_NONE)
                continue;
            c->counted[v] = true;
            point->slot_bytes += value_bytes(p, v);
            add_part(point, recompute_kind_of(op, k), value_bytes(p, v));
        }
    }
}

/* The first write and the last use of what the backward writes, by value. */
struct scratch_span {
    int first, last;
};

static bool is_scratch(const struct layer_copy *c, int v)
{
    return v && c->program.values[v].role == ROLE_NONE && !(v < c->n_values && c->counted[v]);
}

static struct scratch_span *find_spans(const struct layer_copy *c, struct arena *arena)
{
    const struct program *p = &c->program;
    const struct function *b = &p->functions[c->at_backward];
    struct scratch_span *spans = arena_array(arena, struct scratch_span, p->n_values);

    for (int v = 0; v < p->n_values; v++)
        spans[v] = (struct scratch_span){ -1, -1 };
    for (int i = 0; i < b->n_ops; i++) {
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
            int v = program_base(p, b->ops[i].out[k]);

            if (is_scratch(c, v)) {
                spans[v].first = spans[v].first < 0 ? i : spans[v].first;
                spans[v].last = i;
            }
        }
        for (int k = 0; k < OPS_MAX_INPUTS; k++) {
            int v = program_base(p, b->ops[i].in[k]);

            if (v && spans[v].first >= 0)
                spans[v].last = i;
        }
    }
    return spans;
}

static int64_t peak_scratch(const struct finding_sets *f, const struct layer_copy *c)
{
    const struct program *p = &c->program;
    const struct function *b = &p->functions[c->at_backward];
    struct arena arena = { 0 };
    const struct scratch_span *spans = find_spans(c, &arena);
    int64_t *change = arena_array(&arena, int64_t, b->n_ops + 1), live = 0, peak = 0;

    for (int v = 1; v < p->n_values; v++)
        if (spans[v].first >= 0) {
            change[spans[v].first] += value_bytes(p, v);
            change[spans[v].last + 1] -= value_bytes(p, v);
        }
    for (int i = 0; i < b->n_ops; i++) {
        live += change[i];
        if (b->ops[i].layer == f->layer)
            peak = max_i64(peak, live);
    }
    arena_release(&arena);
    return peak;
}

static bool makes_what_is_read(const struct program *p, const struct op *op, const bool *read)
{
    bool makes = false;

    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        makes |= op->out[k] && read[program_base(p, op->out[k])];
    return makes;
}

/* What the layer's backward makes for ops that split_backward (program/split.c) moves. */
static int64_t sum_handed(const struct finding_sets *f, const struct layer_copy *c)
{
    const struct program *p = &c->program;
    const struct function *b = &p->functions[c->at_backward];
    struct arena arena = { 0 };
    bool *stays = arena_array(&arena, bool, p->n_values),
         *moves = arena_array(&arena, bool, p->n_values);
    int64_t n_bytes = 0;

    for (int i = b->n_ops - 1; i >= 0; i--) {
        const struct op *op = &b->ops[i];
        bool is_moved =
            op->phase == PHASE_W || (op->phase == PHASE_R && !makes_what_is_read(p, op, stays));

        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            (is_moved ? moves : stays)[program_base(p, op->in[k])] = true;
        for (int k = 0; k < OPS_MAX_OUTPUTS && !is_moved && op->layer == f->layer; k++) {
            int v = program_base(p, op->out[k]);

            if (is_scratch(c, v) && moves[v])
                n_bytes += value_bytes(p, v);
            moves[v] = false;
        }
    }
    arena_release(&arena);
    return n_bytes;
}

static int64_t sum_ns(const struct finding_sets *f, const struct program *p, int function,
                      bool is_recomputed)
{
    const struct function *of = &p->functions[function];
    int64_t ns = 0;

    for (int i = 0; i < of->n_ops; i++)
        if (of->ops[i].layer == f->layer && (of->ops[i].phase == PHASE_R) == is_recomputed)
            ns += price_ns(f, p, &of->ops[i]);
    return ns;
}

/* Its added_ns has what is recomputed whatever is kept. */
static struct keep_point *try_set(struct finding_sets *f, struct layer_copy *c, struct keep_set set)
{
    const unsigned char set_of_layer[] = { 0 };
    const struct recompute_levels levels = {
        .sets = &set, .set_of_layer = set_of_layer, .first_layer = f->layer, .n_layers = 1
    };
    struct keep_point point = { .set = set };

    reset_copy(c);
    recompute(&c->program, c->at_forward, c->at_backward, &levels);
    work_in_place(&c->program);
    count_slot(f, c, &point);
    point.scratch_bytes = peak_scratch(f, c);
    point.handed_bytes = sum_handed(f, c);
    point.added_ns = sum_ns(f, &c->program, c->at_backward, true);
    f->points = arena_grow(f->arena, f->points, sizeof *f->points, &f->capacity, f->n_points + 1);
    f->points[f->n_points++] = point;
    return &f->points[f->n_points - 1];
}

/* ---- which sets ---- */

static int list_kinds(const struct bitset *set, int *kinds)
{
    int n = 0;

    for (int kind = 0; kind < N_OP_KINDS; kind++)
        if (bitset_has(set, kind))
            kinds[n++] = kind;
    return n;
}

static void try_all(struct finding_sets *f, struct layer_copy *c, const int *kinds, int n)
{
    for (unsigned code = 1; code < 1U << n; code++) {
        struct keep_set set = { .full = false };

        for (int i = 0; i < n; i++)
            if (code >> i & 1)
                bitset_add(&set.dropped, kinds[i]);
        try_set(f, c, set);
    }
}

/* Bytes saved for a nanosecond, of b against a. */
static double rate_of(const struct keep_point *a, const struct keep_point *b)
{
    return (double)(a->slot_bytes - b->slot_bytes) / (double)max_i64(1, b->added_ns - a->added_ns);
}

/* Along the hull. */
static void try_path(struct finding_sets *f, struct layer_copy *c, const int *kinds, int n)
{
    struct keep_point at = f->points[0];

    for (int step = 0; step < n; step++) {
        struct keep_point best = { .slot_bytes = -1 };

        for (int i = 0; i < n; i++) {
            struct keep_set set = at.set;

            if (bitset_has(&at.set.dropped, kinds[i]))
                continue;
            bitset_add(&set.dropped, kinds[i]);
            const struct keep_point *tried = try_set(f, c, set);
            if (best.slot_bytes < 0 || rate_of(&at, tried) > rate_of(&at, &best))
                best = *tried;
        }
        at = best;
    }
}

static int n_dropped(const struct keep_point *point)
{
    int kinds[N_OP_KINDS];

    return point->set.full ? N_OP_KINDS : list_kinds(&point->set.dropped, kinds);
}

/* Of equal points the one that drops fewer kinds comes first. */
static int by_time(const void *a, const void *b)
{
    const struct keep_point *x = a, *y = b;

    if (x->added_ns != y->added_ns)
        return x->added_ns < y->added_ns ? -1 : 1;
    if (x->slot_bytes != y->slot_bytes)
        return x->slot_bytes < y->slot_bytes ? -1 : 1;
    if (x->scratch_bytes != y->scratch_bytes)
        return x->scratch_bytes < y->scratch_bytes ? -1 : 1;
    return n_dropped(x) - n_dropped(y);
}

static void keep_front(struct finding_sets *f)
{
    int n = 0;

    qsort(f->points, (size_t)f->n_points, sizeof *f->points, by_time);
    for (int i = 0; i < f->n_points; i++) {
        bool is_worse = false;

        for (int j = 0; j < n && !is_worse; j++)
            is_worse = f->points[j].slot_bytes <= f->points[i].slot_bytes &&
                       f->points[j].scratch_bytes <= f->points[i].scratch_bytes;
        if (!is_worse)
            f->points[n++] = f->points[i];
    }
    f->front->points = f->points;
    f->front->n_points = n;
}

/* What `recompute: none`, selective, full or a list says of every layer. */
static struct keep_set set_of_job(const struct job *job)
{
    switch (job->recompute) {
    case RECOMPUTE_SELECTIVE:
        return recompute_keep_set(RECOMPUTE_KIND_SELECTIVE, NULL);
    case RECOMPUTE_FULL:
        return recompute_keep_set(RECOMPUTE_KIND_FULL, NULL);
    case RECOMPUTE_LIST:
        return recompute_keep_set(RECOMPUTE_KIND_LIST, &job->recompute_ops);
    default:
        return recompute_keep_set(RECOMPUTE_KIND_NONE, NULL);
    }
}

static void try_sets(struct finding_sets *f, struct layer_copy *c, const int *kinds)
{
    if (f->request->is_fixed) {
        struct keep_set set = set_of_job(f->request->job);

        f->n_points = 0;
        try_set(f, c, set);
        return;
    }
    (f->front->is_partial ? try_path : try_all)(f, c, kinds, f->front->n_kinds);
    try_set(f, c, (struct keep_set){ .full = true });
}

static void find_front(struct finding_sets *f, const struct program *program)
{
    struct arena arena = { 0 };
    struct layer_copy c;
    int kinds[N_OP_KINDS];

    open_copy(&c, program, &arena);
    c.program.arena = (struct arena){ 0 };
    struct bitset droppable = recompute_droppable(program, c.at_forward, f->layer);
    f->front->n_kinds = list_kinds(&droppable, kinds);
    f->front->is_partial = f->front->n_kinds > KEEP_KINDS_MAX;
    int64_t always_ns = try_set(f, &c, (struct keep_set){ .full = false })->added_ns;
    f->front->forward_ns = sum_ns(f, &c.program, c.at_forward, false);
    f->front->backward_ns = sum_ns(f, &c.program, c.at_backward, false) + always_ns;
    try_sets(f, &c, kinds);
    for (int i = 0; i < f->n_points; i++)
        f->points[i].added_ns -= always_ns;
    f->front->n_sets = f->n_points;
    keep_front(f);
    arena_release(&c.program.arena);
    arena_release(&arena);
}

/* ---- programs ---- */

static void after_pass(void *context, const char *pass, const struct program *program)
{
    struct finding_sets *f = context;

    if (f->is_done || strcmp(pass, "fuse"))
        return;
    find_front(f, program);
    f->is_done = true;
}

/* One stage, whose last layer is in question. */
static struct job job_of(const struct job *job, int n_layers)
{
    struct job small = *job;

    small.model.n_layers = n_layers;
    small.world_size = max_int(1, job->world_size / max_int(1, job->parallel.pp));
    small.parallel.pp = small.parallel.chunks = 1;
    small.parallel.schedule = PIPELINE_1F1B;
    small.parallel.stages = (struct job_counts){ NULL, 0 };
    small.parallel.micro_batches = (struct job_counts){ NULL, 0 };
    small.parallel.replica_micro_batches = (struct job_counts){ NULL, 0 };
    small.n_micro_batches = 1;
    small.train.global_batch = job->train.micro_batch * max_int(1, job->parallel.dp);
    small.recompute = RECOMPUTE_NONE;
    memset(&small.recompute_layers, 0, sizeof small.recompute_layers);
    small.keep_sets = (struct layer_keep_sets){ NULL, NULL };
    small.offload = NULL;
    return small;
}

static int find_of_layer(struct keep_front *front, const struct keep_sets_request *r, int layer,
                         struct arena *arena, struct err *err)
{
    struct job job = job_of(r->job, layer + 1);
    struct cluster view = islands_view(r->cluster, r->island, job.world_size, arena);
    struct finding_sets f = { .request = r,
                              .job = &job,
                              .layer = layer,
                              .prices = { .cluster = &view, .node_ranks = job_node_ranks(&job) },
                              .front = front,
                              .arena = arena };
    const struct compile_watch watch = { after_pass, &f };
    const struct programs_request request = {
        .job = &job, .kernels = r->kernels, .watch = &watch, .unverified = true
    };
    struct program program = { 0 };

    int status = programs_compile(&program, &request, err);
    CHECK(status || f.is_done);
    program_release(&program);
    return status;
}

int keep_sets_find(struct keep_sets *sets, const struct keep_sets_request *request,
                   struct arena *arena, struct err *err)
{
    int n_layers = request->job->model.n_layers;
    struct keep_front *fronts = arena_array(arena, struct keep_front, n_layers);
    int *front_of_layer = arena_array(arena, int, n_layers),
        *likes = arena_array(arena, int, n_layers);
    int n = 0;

    for (int i = 0; i < n_layers; i++) {
        int like = layer_cost_representative(request->job, i), k = 0;

        while (k < n && likes[k] != like)
            k++;
        if (k == n) {
            if (find_of_layer(&fronts[n], request, like, arena, err))
                return -1;
            likes[n++] = like;
        }
        front_of_layer[i] = k;
    }
    *sets = (struct keep_sets){ fronts, n, front_of_layer };
    return 0;
}
