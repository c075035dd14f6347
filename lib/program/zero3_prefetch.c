/*
 * zero3_prefetch.c - gathers of zero 3 ahead of the function that reads them
 *
 * Within a function each gather travels under the ops of the bucket before it (zero3.c); the first
 * one of a function travels under nothing. So those of its first buckets, its *head*, are taken
 * out of it, and issued ahead of the function before it:
 *
 *     run  ahead 0                                   weights.4, for backward 0
 *     run  forward 0   micro-batch 0                 weights.4 travels meanwhile
 *     run  backward 0  micro-batch 0                 begins at once
 *
 * A gathered value then lives from one function into another and must not share memory with
 * anything in between, so it is in a cell. Two buckets have one cell if no function reads the one
 * and the next function, or itself, the other; the graph of those that may not is coloured from the
 * largest bucket on. A rank of one chunk has a forward and a backward with cells of their own:
 * their heads are gathered once a step. What a cell has may not be read any more once another
 * bucket has been gathered there, which verify checks, and nothing lives from one entry to the
 * next: an update is in between.
 *
 * Bits do not change: the same shards are gathered, and no op reads anything else.
 */
#include <stdbool.h>
#include <string.h>

#include "program/order.h"
#include "program/zero3_impl.h"

/* The buckets of which a function's gathers are issued ahead of it. */
struct head {
    int *buckets, n;
};

/* A function that gathers these buckets. */
struct ahead {
    const int *buckets;
    int n, function;
};

struct prefetch {
    const struct zero3 *h;
    struct program *program;
    struct arena arena; /* scratch */
    int n_ahead;
    int n_functions;    /* before this pass */
    struct head *heads; /* by function */
    char *apart;        /* [n_buckets][n_buckets]: not in one cell */
    int *cell_of;       /* by bucket: its cell, 0 none */
    int *gathered;      /* by bucket: the whole bucket, as a view of its cell */
    enum phase *phase;  /* by bucket: of its first reader */
    int *cell_for;      /* by value: the cell that it is moved to, or the views of which are */
    struct ahead *made;
    int n_made, capacity;
};

/* ---- heads ---- */

static bool is_gather(const struct program *p, const struct op *op)
{
    return op->kind == OP_ALL_GATHER && op->stream == STREAM_DP_GATHER &&
           p->values[op->out[ALL_GATHER_FULL]].bucket;
}

static bool reads(const struct program *p, const struct op *op, int whole)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] && program_whole(p, op->in[k]) == whole)
            return true;
    return false;
}

/* Whether products read what ops[at] gathers: nothing else takes long enough to travel under. */
static bool is_for_products(const struct program *p, const struct function *f, int at)
{
    for (int i = at + 1; i < f->n_ops; i++)
        if ((op_info(f->ops[i].kind)->traits & TRAIT_PRODUCT) &&
            reads(p, &f->ops[i], f->ops[at].out[ALL_GATHER_FULL]))
            return true;
    return false;
}

static bool has_bucket(const struct head *head, int bucket)
{
    for (int i = 0; i < head->n; i++)
        if (head->buckets[i] == bucket)
            return true;
    return false;
}

static int bucket_of_gather(const struct program *p, const struct op *op)
{
    return p->values[op->out[ALL_GATHER_FULL]].bucket - 1;
}

static void find_head(struct prefetch *a, int function)
{
    const struct program *p = a->program;
    const struct function *f = &p->functions[function];
    struct head *head = &a->heads[function];
    int n_products = 0;

    head->buckets = arena_array(&a->arena, int, p->n_buckets);
    for (int i = 0; i < f->n_ops && n_products < a->n_ahead; i++) {
        int bucket = is_gather(p, &f->ops[i]) ? bucket_of_gather(p, &f->ops[i]) : -1;

        if (bucket < 0)
            continue;
        n_products += is_for_products(p, f, i);
        if (has_bucket(head, bucket))
            continue;
        head->buckets[head->n++] = bucket;
        a->phase[bucket] = f->ops[i].phase;
    }
}

/* ---- cells ---- */

/* Whether weights may travel while it runs: not what only sends, receives or gathers. */
static bool computes(const struct program *p, const struct action *action)
{
    const struct function *f = &p->functions[action->function];

    for (int i = 0; action->kind == ACTION_RUN && action->micro_batch >= 0 && i < f->n_ops; i++)
        if (!order_is_async(&f->ops[i]))
            return true;
    return false;
}

static void keep_apart(struct prefetch *a, const struct head *x, const struct head *y)
{
    size_t n = (size_t)a->program->n_buckets;

    for (int i = 0; i < x->n; i++)
        for (int k = 0; k < y->n; k++)
            a->apart[(size_t)x->buckets[i] * n + (size_t)y->buckets[k]] =
                a->apart[(size_t)y->buckets[k] * n + (size_t)x->buckets[i]] = 1;
}

static void find_apart(struct prefetch *a)
{
    const struct program *p = a->program;

    for (int f = 0; f < a->n_functions; f++)
        keep_apart(a, &a->heads[f], &a->heads[f]);
    for (int e = 0; e < N_ENTRIES; e++) {
        const struct head *before = NULL;

        for (int i = 0; i < p->entries[e].n_actions; i++) {
            const struct action *action = &p->entries[e].actions[i];

            if (!computes(p, action))
                continue;
            if (before && before != &a->heads[action->function])
                keep_apart(a, before, &a->heads[action->function]);
            before = &a->heads[action->function];
        }
    }
}

static enum dtype dtype_of(const struct program *p, int bucket)
{
    return p->values[p->buckets[bucket].weight_shard].dtype;
}

/* Whether the bucket may be in the cell together with those that are. */
static bool may_share(const struct prefetch *a, int bucket, int cell)
{
    const struct program *p = a->program;

    if (p->values[cell].dtype != dtype_of(p, bucket))
        return false;
    for (int other = 0; other < p->n_buckets; other++)
        if (a->cell_of[other] == cell &&
            a->apart[(size_t)bucket * (size_t)p->n_buckets + (size_t)other])
            return false;
    return true;
}

/* The largest bucket of any head that has no cell; -1: all have. */
static int largest_left(const struct prefetch *a)
{
    const struct program *p = a->program;
    int largest = -1;

    for (int f = 0; f < a->n_functions; f++)
        for (int i = 0; i < a->heads[f].n; i++) {
            int bucket = a->heads[f].buckets[i];

            if (!a->cell_of[bucket] &&
                (largest < 0 || p->buckets[bucket].n_elements > p->buckets[largest].n_elements))
                largest = bucket;
        }
    return largest;
}

static void make_cells(struct prefetch *a)
{
    struct program *p = a->program;
    int first = p->n_values, n = 0;

    for (int bucket = largest_left(a); bucket >= 0; bucket = largest_left(a)) {
        int64_t n_elements = p->buckets[bucket].n_elements;
        int cell = first;

        while (cell < first + n && !may_share(a, bucket, cell))
            cell++;
        if (cell == first + n)
            CHECK(program_cell(p, ROLE_WEIGHT, arena_printf(&p->arena, "weights_ahead.%d", n++), 1,
                               n_elements, dtype_of(p, bucket)) == cell);
        a->cell_of[bucket] = cell;
    }
    for (int bucket = 0; bucket < p->n_buckets; bucket++) {
        int64_t n_elements = p->buckets[bucket].n_elements;

        if (!a->cell_of[bucket])
            continue;
        int view = program_view(p, a->cell_of[bucket], 0, 1, n_elements, n_elements);
        p->values[view].name = zero3_bucket_name(p, bucket);
        p->values[view].bucket = 1 + bucket;
        a->gathered[bucket] = view;
    }
}

/* ---- functions and entries ---- */

/* Take the gathers of the function's head out, wherever in it they are. */
static void take_out(struct prefetch *a, int function)
{
    struct program *p = a->program;
    struct function *f = &p->functions[function];
    int n = 0;

    for (int i = 0; i < f->n_ops; i++) {
        int bucket = is_gather(p, &f->ops[i]) ? bucket_of_gather(p, &f->ops[i]) : -1;

        if (bucket >= 0 && has_bucket(&a->heads[function], bucket))
            a->cell_for[f->ops[i].out[ALL_GATHER_FULL]] = a->cell_of[bucket];
        else
            f->ops[n++] = f->ops[i];
    }
    f->n_ops = n;
}

/* Values that were gathered in functions, and views of them, are views of cells from now on. */
static void move_values(struct prefetch *a, int n_values)
{
    struct program *p = a->program;

    for (int id = 1; id < n_values; id++) {
        struct value *v = &p->values[id];
        int cell = a->cell_for[v->base ? v->base : id];

        if (!cell)
            continue;
        v->base = cell;
        v->role = ROLE_WEIGHT;
        v->scope = p->values[cell].scope;
    }
}

/* The function that gathers these, of which there is one. */
static int gather_function(struct prefetch *a, const int *buckets, int n)
{
    struct program *p = a->program;
    struct ahead *new;

    for (int i = 0; i < a->n_made; i++)
        if (a->made[i].n == n && !memcmp(a->made[i].buckets, buckets, sizeof *buckets * (size_t)n))
            return a->made[i].function;
    a->made = arena_grow(&a->arena, a->made, sizeof *a->made, &a->capacity, a->n_made + 1);
    new = &a->made[a->n_made];
    new->buckets = buckets;
    new->n = n;
    new->function = program_function(p, arena_printf(&p->arena, "ahead %d", a->n_made++), 0);
    for (int i = 0; i < n; i++) {
        struct op op =
            zero3_gather_op(a->h, buckets[i], a->gathered[buckets[i]], a->phase[buckets[i]]);

        program_emit(p, new->function, &op);
    }
    return new->function;
}

/* The gathers of what the function's head has and cells do not, or -1. */
static int missing(struct prefetch *a, const struct head *head, int *holds)
{
    int *buckets = arena_array(&a->arena, int, head->n + 1), n = 0;

    for (int i = 0; i < head->n; i++) {
        int *held = &holds[a->cell_of[head->buckets[i]]];

        if (*held == 1 + head->buckets[i])
            continue;
        *held = 1 + head->buckets[i];
        buckets[n++] = head->buckets[i];
    }
    return n ? gather_function(a, buckets, n) : -1;
}

/* wanted: 1 + a function; 0: none. */
static void push_ahead(struct action *actions, int *n, int wanted)
{
    if (wanted)
        actions[(*n)++] = (struct action){ .kind = ACTION_RUN,
                                           .function = (int16_t)(wanted - 1),
                                           .micro_batch = -1 };
}

static void gather_ahead(struct prefetch *a, struct entry *e)
{
    struct program *p = a->program;
    struct action *actions = arena_array(&p->arena, struct action, 2 * e->n_actions + 1);
    int *holds = arena_array(&a->arena, int, p->n_values);
    /* By action, from 1 on: 1 + what runs ahead of it; at 0: at the front,
     * behind what is for no micro-batch. */
    int *wanted = arena_array(&a->arena, int, e->n_actions + 1);
    int before = 0, n = 0, first = zero3_n_leading(e);

    for (int i = 0; i < e->n_actions; i++) {
        if (!computes(p, &e->actions[i]))
            continue;
        int function = missing(a, &a->heads[e->actions[i].function], holds);
        if (function >= 0)
            wanted[before] = 1 + function;
        before = 1 + i;
    }
    for (int i = 0; i < first; i++)
        actions[n++] = e->actions[i];
    push_ahead(actions, &n, wanted[0]);
    for (int i = first; i < e->n_actions; i++) {
        push_ahead(actions, &n, wanted[1 + i]);
        actions[n++] = e->actions[i];
    }
    e->actions = actions;
    e->n_actions = n;
}

void zero3_prefetch(const struct zero3 *h, int n_ahead)
{
    struct program *p = h->program;
    size_t n_buckets = (size_t)p->n_buckets;
    int n_values = p->n_values;
    struct prefetch a = { .h = h, .program = p, .n_ahead = n_ahead, .n_functions = p->n_functions };

    a.heads = arena_array(&a.arena, struct head, p->n_functions);
    a.apart = arena_array(&a.arena, char, n_buckets *n_buckets);
    a.cell_of = arena_array(&a.arena, int, n_buckets);
    a.gathered = arena_array(&a.arena, int, n_buckets);
    a.phase = arena_array(&a.arena, enum phase, n_buckets);
    a.cell_for = arena_array(&a.arena, int, n_values);
    for (int f = 0; f < a.n_functions; f++)
        find_head(&a, f);
    find_apart(&a);
    make_cells(&a);
    for (int f = 0; f < a.n_functions; f++)
        take_out(&a, f);
    move_values(&a, n_values);
    for (int e = 0; e < N_ENTRIES; e++)
        gather_ahead(&a, &p->entries[e]);
    arena_release(&a.arena);
}
