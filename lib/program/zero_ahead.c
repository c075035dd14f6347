/*
 * zero_ahead.c - zero 1 and 2: what a step reads first is gathered in the update before it
 *
 * Gathers at the front of a step travel under its first forward, but for the first of them, which
 * the first op waits for. So those of the buckets that are read first, the *head*, are moved to the
 * end of the step before: their optimizer comes first, and each travels while the optimizer of the
 * other buckets works.
 *
 *     gather    weights.1 = all_gather ...          gather    weights.0 = all_gather ...
 *               weights.0 = all_gather ...          forward   ...
 *     forward   ...                          ->     update    weights.1:shard = adamw ...
 *     update    weights.0:shard = adamw ...                   weights.1 = all_gather ...
 *               weights.1:shard = adamw ...                   weights.0:shard = adamw ...
 *
 * How many: those up to the first that products read, with the vectors that are read before the
 * next; by prices as many as travel while what is behind them is updated. The end of a step waits
 * for all of them, so that more would only lose time under the forward. Before the first step, and
 * wherever shards have been written by anything else, ENTRY_GATHER runs; verify checks that a step
 * leaves what it begins with.
 *
 * Where weights are rounded for products of fp8 ahead of these gathers (fp8_weights.c), the head
 * ends with the first gather of codes: a rank's codes need the largest elements of all ranks' parts
 * of all weights, which the last optimizer has updated. What is read first is none of these while
 * fp8_edge_layers leave out the first layer and the embedding.
 */
#include <stdbool.h>
#include <string.h>

#include "base/num.h"
#include "program/order.h"
#include "program/passes.h"

struct head_pass {
    struct program *program;
    const struct ahead_options *options;
    int gather, update; /* functions */
    int first, n;       /* gathers of the former that may move: one behind the other */
    /* By base. */
    bool *is_gathered, *is_for_products;
    struct arena arena;
};

static bool touches(const struct program *p, const struct op *op, int base)
{
    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k] && program_base(p, op->in[k]) == base)
            return true;
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k] && program_base(p, op->out[k]) == base)
            return true;
    return false;
}

static int gathered_base(const struct program *p, const struct op *gather)
{
    return program_base(p, gather->out[ALL_GATHER_FULL]);
}

static bool is_gather_of_bucket(const struct program *p, const struct op *op)
{
    bool is_one = false;

    for (int i = 0; i < p->n_buckets && op->kind == OP_ALL_GATHER; i++)
        is_one |= p->buckets[i].weights == op->out[ALL_GATHER_FULL];
    return is_one;
}

/* The gathered bases that an op has to do with; their number. */
static int gathered_of(const struct head_pass *a, const struct op *op, int bases[ORDER_N_OPERANDS])
{
    int n = 0;

    for (int k = 0; k < ORDER_N_OPERANDS; k++) {
        int id = k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS], seen = 0;
        int base = id ? program_base(a->program, id) : 0;

        while (seen < n && bases[seen] != base)
            seen++;
        if (base && seen == n && a->is_gathered[base])
            bases[n++] = base;
    }
    return n;
}

/* Nothing but products takes long enough for a gather to travel under. */
static void find_bases(struct head_pass *a)
{
    const struct program *p = a->program;
    const struct function *gather = &p->functions[a->gather];
    int bases[ORDER_N_OPERANDS];

    a->is_gathered = arena_array(&a->arena, bool, p->n_values);
    a->is_for_products = arena_array(&a->arena, bool, p->n_values);
    for (int i = a->first; i < gather->n_ops; i++)
        a->is_gathered[gathered_base(p, &gather->ops[i])] = true;
    for (int f = 0; f < p->n_functions; f++)
        for (int i = 0; i < p->functions[f].n_ops; i++) {
            const struct op *op = &p->functions[f].ops[i];
            bool is_product = op_info(op->kind)->traits & TRAIT_PRODUCT;

            for (int k = is_product ? gathered_of(a, op, bases) : 0; k > 0; k--)
                a->is_for_products[bases[k - 1]] = true;
        }
}

/* The first op of the update that has to do with gathered weights: everything that optimizers read
 * is there. */
static int first_optimizer(const struct head_pass *a)
{
    const struct function *update = &a->program->functions[a->update];
    int bases[ORDER_N_OPERANDS], i = 0;

    while (i < update->n_ops && !gathered_of(a, &update->ops[i], bases))
        i++;
    return i;
}

struct access {
    int base;
    bool is_written;
};

static int accesses_of(const struct program *p, const struct op *op,
                       struct access accesses[ORDER_N_OPERANDS])
{
    const struct op_info *info = op_info(op->kind);
    int n = 0;

    for (int k = 0; k < OPS_MAX_INPUTS; k++)
        if (op->in[k])
            accesses[n++] = (struct access){ program_base(p, op->in[k]),
                                             (info->inputs[k].flags & OPERAND_UPDATED) != 0 };
    for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
        if (op->out[k])
            accesses[n++] = (struct access){ program_base(p, op->out[k]), true };
    return n;
}

/* Whether op writes what is among these n, or has what is written there. */
static bool depends(const struct program *p, const struct op *op, const struct access *others,
                    int n)
{
    struct access mine[ORDER_N_OPERANDS];
    int n_mine = accesses_of(p, op, mine);

    for (int i = 0; i < n_mine; i++)
        for (int k = 0; k < n; k++)
            if (mine[i].base == others[k].base && (mine[i].is_written || others[k].is_written))
                return true;
    return false;
}

/* Move ops[from] before ops[to], if it depends on none of those between. */
static bool move_op(const struct program *p, struct function *f, int from, int to)
{
    struct op op = f->ops[from];
    struct access accesses[ORDER_N_OPERANDS];
    int n = accesses_of(p, &op, accesses);

    for (int i = to; i < from; i++)
        if (order_is_async(&op) || depends(p, &f->ops[i], accesses, n))
            return false;
    memmove(&f->ops[to + 1], &f->ops[to], sizeof op * (size_t)(from - to));
    f->ops[to] = op;
    return true;
}

/* Move the ops that touch the gathered cell to ops[at] where they may, and the gather behind the
 * last of them. Returns where the next bucket's go. */
static int gather_in_update(const struct head_pass *a, const struct op *gather, int at)
{
    struct program *p = a->program;
    struct function *f = &p->functions[a->update];
    int base = gathered_base(p, gather), last = at - 1;
    struct op op = *gather;

    for (int i = at; i < f->n_ops; i++)
        if (touches(p, &f->ops[i], base))
            last = move_op(p, f, i, at) ? at++ : i;
    op.phase = PHASE_U;
    program_insert(p, a->update, last + 1, &op);
    return last < at ? at + 1 : at;
}

static int64_t op_ns(const struct head_pass *a, const struct op *op)
{
    struct op_shape shape = program_op_shape(a->program, op);
    const struct slice_times *times = &a->options->times;

    return op_is_collective(op->kind) ? times->collective_ns(times->context, &shape)
                                      : times->op_ns(times->context, &shape);
}

/* As many gathers as travel while the optimizers of the buckets behind them work. */
static int count_hidden(struct head_pass *a, int first)
{
    const struct program *p = a->program;
    const struct function *update = &p->functions[a->update], *gather = &p->functions[a->gather];
    int64_t *optimizer_ns = arena_array(&a->arena, int64_t, p->n_values); /* by base */
    int64_t left = 0, travel = 0;
    int bases[ORDER_N_OPERANDS], n = 0;

    for (int i = first; i < update->n_ops; i++) {
        int64_t ns = order_is_async(&update->ops[i]) ? 0 : op_ns(a, &update->ops[i]);

        left += ns;
        for (int k = gathered_of(a, &update->ops[i], bases); k > 0; k--)
            optimizer_ns[bases[k - 1]] += ns;
    }
    for (; n < a->n; n++) {
        left -= optimizer_ns[gathered_base(p, &gather->ops[a->first + n])];
        travel += op_ns(a, &gather->ops[a->first + n]);
        if (travel > left)
            break;
    }
    return n;
}

/* The gathers up to that of the n-th bucket that products read, and those before the next such. */
static int count_read_first(const struct head_pass *a, int n)
{
    const struct function *gather = &a->program->functions[a->gather];
    int i = 0;

    for (int n_products = 0; i < a->n; i++) {
        n_products += a->is_for_products[gathered_base(a->program, &gather->ops[a->first + i])];
        if (n_products > n)
            break;
    }
    return i;
}

static int count_head(struct head_pass *a, int first)
{
    int n = a->options->n_ahead;

    if (n >= 0)
        return n ? count_read_first(a, n) : 0;
    return max_int(count_read_first(a, 1), a->options->times.op_ns ? count_hidden(a, first) : 0);
}

/* ---- functions and entries ---- */

/* In the place of a step's gathers the others, of which there may be none. */
static void replace_gather(const struct head_pass *a, struct entry *e, int others)
{
    struct action *actions = arena_array(&a->program->arena, struct action, e->n_actions + 1);
    int n = 0;

    for (int i = 0; i < e->n_actions; i++) {
        actions[n] = e->actions[i];
        if (actions[n].kind == ACTION_RUN && actions[n].function == a->gather) {
            if (others < 0)
                continue;
            actions[n].function = (int16_t)others;
        }
        n++;
    }
    e->actions = actions;
    e->n_actions = n;
}

/* The function that does all but the first n gathers; -1: there is nothing else. */
static int gather_others(const struct head_pass *a, int n)
{
    struct program *p = a->program;

    if (n == p->functions[a->gather].n_ops)
        return -1;
    int others =
        program_function(p, a->first ? "round weights, gather others" : "gather others", 0);
    for (int i = 0; i < p->functions[a->gather].n_ops; i++) {
        struct op op = p->functions[a->gather].ops[i];

        if (i < a->first || i >= a->first + n)
            program_emit(p, others, &op);
    }
    return others;
}

/* Move the first n gathers into the update, which has its optimizers from ops[at] on. */
static void move_head(const struct head_pass *a, int n, int at)
{
    struct program *p = a->program;

    for (int i = 0; i < n; i++) {
        struct op op = p->functions[a->gather].ops[a->first + i];

        at = gather_in_update(a, &op, at);
        for (int b = 0; b < p->n_buckets; b++)
            if (p->buckets[b].weights == op.out[ALL_GATHER_FULL])
                p->buckets[b].gathered_ahead = true;
    }
    int others = gather_others(a, n);
    for (int e = 0; e < N_ENTRIES; e++)
        if (entry_begins_whole((enum entry_kind)e))
            replace_gather(a, &p->entries[e], others);
}

/* The gathers that the function ends with, and how many come ahead of the first of codes. */
static void find_gathers(struct head_pass *a)
{
    const struct program *p = a->program;
    const struct function *gather = &p->functions[a->gather];

    a->first = gather->n_ops;
    while (a->first > 0 && is_gather_of_bucket(p, &gather->ops[a->first - 1]))
        a->first--;
    while (a->first + a->n < gather->n_ops &&
           p->values[gather->ops[a->first + a->n].out[ALL_GATHER_FULL]].role == ROLE_WEIGHT)
        a->n++;
}

int zero_gather_ahead(struct program *program, int gather, const struct ahead_options *options)
{
    const struct entry *step = &program->entries[ENTRY_STEP];
    struct head_pass a = { .program = program,
                           .options = options,
                           .gather = gather,
                           .update = step->actions[step->n_actions - 1].function };
    int n = 0;

    find_gathers(&a);
    find_bases(&a);
    int at = first_optimizer(&a);
    if (at < program->functions[a.update].n_ops)
        n = count_head(&a, at);
    if (n)
        move_head(&a, n, at);
    arena_release(&a.arena);
    return n;
}
