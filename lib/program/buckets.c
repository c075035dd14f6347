/*
 * buckets.c - when gradient accumulators are complete, and which of them share a flat cell
 *
 * Accumulators are sorted by the point at which the backward completes them (struct
 * completion_point) and put into buckets in that order, until a bucket has about bucket_bytes: so a
 * bucket can be reduced while the backward of earlier layers computes.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "base/num.h"
#include "layout/axes.h"
#include "program/shard_impl.h"

int completion_function(const struct sharding *s, int turn, enum chunk_part part)
{
    const struct chunk_functions *chunk = &s->chunks[s->n_chunks - 1 - turn];

    return part == PART_FORWARD    ? chunk->forward
           : part == PART_BACKWARD ? chunk->backward
                                   : chunk->weight;
}

static bool writes(const struct program *p, const struct op *op, int value)
{
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && (op->out[k] == value || p->values[op->out[k]].base == value))
            return true;
    return false;
}

static int completion_compare(struct completion_point a, struct completion_point b)
{
    if (a.turn != b.turn)
        return a.turn < b.turn ? -1 : 1;
    if (a.part != b.part)
        return a.part < b.part ? -1 : 1;
    return a.done < b.done ? -1 : a.done > b.done;
}

struct completion_point completion_of(const struct sharding *s, int value)
{
    for (int turn = s->n_chunks - 1; turn >= 0; turn--)
        for (int part = PART_WEIGHT; part >= PART_FORWARD; part--) {
            int function = completion_function(s, turn, (enum chunk_part)part);
            const struct function *f = &s->program->functions[function];
            struct completion_point at = { turn, (enum chunk_part)part, f->n_ops, -1, -1 };

            for (int i = 0; i < f->n_ops; i++)
                if (writes(s->program, &f->ops[i], value)) {
                    at.begun = min_int(at.begun, i);
                    at.done = i;
                    at.layer = f->ops[i].layer;
                }
            if (at.done < 0)
                continue;
            /* Late reductions begin in the last micro-batch's weight function in any case. */
            if (!s->early && part != PART_WEIGHT &&
                function != completion_function(s, turn, PART_WEIGHT))
                at = (struct completion_point){ turn, PART_WEIGHT, -1, -1, at.layer };
            return at;
        }
    CHECK(!"an accumulator has a writer");
}

static int earlier(const void *a, const void *b)
{
    const struct bucket_member *x = a, *y = b;
    int order = completion_compare(x->at, y->at);

    if (order)
        return order;
    if (x->parameter != y->parameter)
        return x->parameter < y->parameter ? -1 : 1;
    return x->use - y->use;
}

static struct bucket_member member_of(const struct sharding *s, int parameter, int use, int n_uses)
{
    const struct parameter *q = &s->program->parameters[parameter];
    struct bucket_member m = { .parameter = parameter, .use = use, .n_uses = n_uses };

    for (int k = 0; k < n_uses; k++) {
        m.uses[k] = completion_of(s, q->gradients[use + k]);
        if (!k || completion_compare(m.at, m.uses[k]) < 0)
            m.at = m.uses[k];
    }
    return m;
}

struct bucket_member *buckets_list_members(const struct sharding *s, int *n)
{
    struct program *p = s->program;
    int capacity = p->n_parameters * TENSOR_MAX_USES;
    struct bucket_member *list = arena_array(&p->arena, struct bucket_member, capacity);

    *n = 0;
    for (int i = 0; i < p->n_parameters; i++) {
        int n_uses = p->parameters[i].n_gradients, at_once = s->together ? n_uses : 1;

        for (int use = 0; use < n_uses; use += at_once)
            list[(*n)++] = member_of(s, i, use, at_once);
    }
    qsort(list, (size_t)*n, sizeof *list, earlier);
    return list;
}

int buckets_accumulator(const struct program *p, const struct bucket_member *m, int use)
{
    return p->parameters[m->parameter].gradients[m->use + use];
}

/* With early sums, an accumulator that one function completes may start again before the next
 * function runs. */
static int same_parts(const struct bucket_member *a, const struct bucket_member *b)
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

/* Whether both have the same spreads as flat cells, on every axis. */
static int lie_alike(const struct program *p, int a, int b)
{
    for (int axis = 0; axis < N_AXES; axis++)
        if (flat_spread(p, a, axis) != flat_spread(p, b, axis))
            return 0;
    return 1;
}

/*
 * Zero 3: weights that are gathered together should be read together, and be few. Vectors of all
 * layers together are small.
 */
static int read_apart(const struct sharding *s, const struct bucket_member *a,
                      const struct bucket_member *b)
{
    const struct parameter *x = &s->program->parameters[a->parameter];
    const struct parameter *y = &s->program->parameters[b->parameter];

    if (s->options->zero < 3 || !s->together)
        return 0;
    if (s->options->zero3 == ZERO3_GATHER_OP || x->n_dims != y->n_dims)
        return 1;
    return x->n_dims > 1 && (a->at.layer != b->at.layer || a->at.layer < 0);
}

/* An optimizer of whole matrices works on buckets of such. */
static bool have_other_optimizers(const struct sharding *s, const struct bucket_member *a,
                                  const struct bucket_member *b)
{
    const struct parameter *list = s->program->parameters;

    return s->options->matrices_apart && s->together &&
           !list[a->parameter].matrices.n_pieces != !list[b->parameter].matrices.n_pieces;
}

/* Of some, codes are gathered (fp8_weights.c). */
static bool are_read_as_others(const struct sharding *s, const struct bucket_member *a,
                               const struct bucket_member *b)
{
    const struct parameter *list = s->program->parameters;

    return s->together && list[a->parameter].in_fp8 != list[b->parameter].in_fp8;
}

static enum dtype accumulator_dtype(const struct program *p, const struct bucket_member *m)
{
    return p->values[buckets_accumulator(p, m, 0)].dtype;
}

enum dtype buckets_dtype(const struct program *p, const struct bucket_member *list, int bucket)
{
    while (list->bucket != bucket)
        list++;
    return accumulator_dtype(p, list);
}

static bool may_share(const struct sharding *s, const struct bucket_member *a,
                      const struct bucket_member *b)
{
    const struct program *p = s->program;
    enum dtype x = p->values[p->parameters[a->parameter].weight].dtype;
    enum dtype y = p->values[p->parameters[b->parameter].weight].dtype;

    if (accumulator_dtype(p, a) != accumulator_dtype(p, b))
        return false;
    if (a->at.turn != b->at.turn || (s->early && !same_parts(a, b)))
        return false;
    if (program_shard_axis(p, a->parameter) != program_shard_axis(p, b->parameter) ||
        !lie_alike(p, buckets_accumulator(p, a, 0), buckets_accumulator(p, b, 0)))
        return false;
    if (read_apart(s, a, b) || have_other_optimizers(s, a, b) || are_read_as_others(s, a, b))
        return false;
    /* Gradients that two stages exchange must have the same layout on both. */
    if (p->parameters[a->parameter].tied_peer || p->parameters[b->parameter].tied_peer)
        return false;
    return !s->together || (x == y && a->n_uses == b->n_uses &&
                            p->parameters[a->parameter].group == p->parameters[b->parameter].group);
}

/* Each member joins the newest bucket that it may share, until that is full. */
int buckets_assign(const struct sharding *s, struct bucket_member *list, int n, size_t bucket_bytes)
{
    const struct program *p = s->program;
    int n_buckets = 0;

    for (int i = 0; i < n; i++) {
        struct bucket_member *m = &list[i];
        int j = i - 1;

        m->n_bytes = program_value_bytes(p, buckets_accumulator(p, m, 0));
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

/* The offset of each member in its bucket, and the bucket's length. */
void buckets_measure(const struct sharding *s, struct bucket_member *list, int n)
{
    struct program *p = s->program;

    for (int i = 0; i < n; i++) {
        struct parameter *q = &p->parameters[list[i].parameter];
        struct bucket *b = &p->buckets[list[i].bucket];

        b->n_uses = list[i].n_uses;
        b->axis = program_shard_axis(p, list[i].parameter);
        list[i].offset = b->n_elements;
        if (s->together) {
            q->bucket = list[i].bucket;
            q->bucket_offset = list[i].offset;
        }
        b->n_elements += round_up(q->rows * q->cols, OPS_NORM_BLOCK);
    }
    for (int i = 0; i < p->n_buckets; i++)
        p->buckets[i].n_elements =
            round_up(p->buckets[i].n_elements, (int64_t)program_n_shards(p, i) * OPS_NORM_BLOCK);
}

void buckets_make_cell(struct program *p, const struct bucket_member *list, int n,
                       const struct bucket_reduction *r)
{
    struct bucket *b = &p->buckets[r->bucket];
    char *name = r->use ? arena_printf(&p->arena, "bucket.%d.%d", r->bucket, r->use)
                        : arena_printf(&p->arena, "bucket.%d", r->bucket);
    int cell = r->staging ? program_view(p, r->staging, 0, 1, b->n_elements, b->n_elements)
                          : program_cell(p, ROLE_GRADIENT, name, 1, b->n_elements,
                                         buckets_dtype(p, list, r->bucket));

    p->values[cell].name = name;
    for (int i = 0; i < n; i++) {
        if (list[i].bucket != r->bucket)
            continue;
        struct value *v = &p->values[buckets_accumulator(p, &list[i], r->use)];

        v->base = program_base(p, cell);
        v->offset = list[i].offset;
        for (int axis = 0; axis < N_AXES; axis++) {
            enum spread spread = flat_spread(p, buckets_accumulator(p, &list[i], r->use), axis);

            p->values[cell].spread[axis] = spread;
            p->values[v->base].spread[axis] = spread;
        }
    }
    b->gradients[r->use] = cell;
}

static int completed_earlier(const void *a, const void *b)
{
    const struct bucket_reduction *x = a, *y = b;
    int order = completion_compare(x->at, y->at);

    if (order)
        return order;
    return x->bucket != y->bucket ? x->bucket - y->bucket : x->use - y->use;
}

struct bucket_reduction *buckets_list_reductions(const struct sharding *s,
                                                 const struct bucket_member *list, int n_members,
                                                 int *n)
{
    struct program *p = s->program;
    struct bucket_reduction *reductions =
        arena_array(&p->arena, struct bucket_reduction, p->n_buckets * TENSOR_MAX_USES);

    *n = 0;
    for (int i = 0; i < p->n_buckets; i++)
        for (int use = 0; use < p->buckets[i].n_uses; use++) {
            struct bucket_reduction *r = &reductions[(*n)++];

            *r = (struct bucket_reduction){ .bucket = i, .use = use, .at = { .turn = -1 } };
            for (int k = 0; k < n_members; k++) {
                struct completion_point at = list[k].uses[use];
                int begun = r->at.turn < 0 ? at.begun : min_int(r->at.begun, at.begun);

                if (list[k].bucket != i)
                    continue;
                if (r->at.turn < 0 || completion_compare(r->at, at) < 0)
                    r->at = at;
                r->at.begun = begun;
            }
        }
    qsort(reductions, (size_t)*n, sizeof *reductions, completed_earlier);
    return reductions;
}
