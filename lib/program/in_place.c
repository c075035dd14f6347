/*
 * in_place.c - ops that write their output over an input, so that both share memory
 *
 * The operands of such an op stay two values: verify and check see what is read of which, and one
 * of them only says in whose memory it lies (value.over). That one, the lodger, is the output
 * unless the output is a view, else it is the input; the other, its host, may be a view. So q's and
 * k's columns of a product of q, k and v are rotated where they are, and v is read from the same
 * memory.
 *
 *     F  %28 = rope %26[:,0:48], positions, rope_table  in place      %28 over %26[:,0:48]
 *
 * It assumes that no later pass adds or moves ops. A walk over each function follows what the
 * memory holds: the host whenever an op touches the host or a part of it, the lodger whenever one
 * touches the lodger, and only the op itself may change the one into the other. If that fails in
 * one function the pair is given up. Functions may be copies of each other (shard.c): then each has
 * the op.
 */
#include <stdbool.h>
#include <string.h>

#include "program/passes.h"

enum holds { HOLDS_NEITHER, HOLDS_HOST, HOLDS_LODGER };

struct pair {
    int host, lodger;
    int next; /* pair whose host has the same base, -1 none */
    int lodger_is_output;
    int function;     /* 1 + the function being walked, if it touches either */
    enum holds holds; /* the contents of the memory, in that function */
    int fails;
};

struct overlay {
    struct program *program;
    struct pair *pairs;
    int n_pairs;
    int *of_lodger; /* by value: 1 + its pair, 0 none */
    int *of_base;   /* by value: 1 + the first pair whose host is in its memory */
};

static bool works_in_place(const struct op *op)
{
    return op->in[OPS_FIRST] && op->out[OPS_FIRST] &&
           op_info(op->kind)->outputs[OPS_FIRST].flags & OPERAND_IN_PLACE;
}

/* Whether all views of a value are columns of it, so that its stride may grow. */
static bool has_columns_alone(const struct program *p, int id)
{
    const struct value *v = &p->values[id];

    for (int other = id + 1; other < p->n_values; other++)
        if (p->values[other].base == id &&
            (p->values[other].rows != v->rows || p->values[other].stride != v->stride))
            return false;
    return true;
}

/* Whether both are plain values that stay, with the same extents, dtype and spreads. */
static int fit(const struct program *p, int host, int lodger)
{
    const struct value *a = &p->values[host], *b = &p->values[lodger];

    return a->role == ROLE_NONE && b->role == ROLE_NONE && !b->base && !b->home &&
           !p->values[program_whole(p, host)].home && a->rows == b->rows && a->cols == b->cols &&
           a->dtype == b->dtype && !memcmp(a->spread, b->spread, sizeof a->spread);
}

static void add_pair(struct overlay *o, const struct op *op)
{
    const struct program *p = o->program;
    int lodger_is_output = !p->values[op->out[OPS_FIRST]].base;
    int host = lodger_is_output ? op->in[OPS_FIRST] : op->out[OPS_FIRST];
    int lodger = lodger_is_output ? op->out[OPS_FIRST] : op->in[OPS_FIRST];
    int base = program_whole(p, host);

    if (o->of_lodger[lodger] || !fit(p, host, lodger))
        return;
    o->pairs[o->n_pairs] = (struct pair){ .host = host,
                                          .lodger = lodger,
                                          .lodger_is_output = lodger_is_output,
                                          .next = o->of_base[base] - 1 };
    o->of_lodger[lodger] = o->of_base[base] = ++o->n_pairs;
}

/* Whether the op writes all of the value, possibly through views. */
static bool writes(const struct program *p, const struct op *op, int id)
{
    const struct value *v = &p->values[id];
    int64_t n = 0;

    for (int k = 0; k < OPS_MAX_OUTPUTS; k++) {
        const struct value *out = &p->values[op->out[k]];

        if (!op->out[k] || !program_overlap(p, op->out[k], id))
            continue;
        if (out->rows != v->rows || out->stride != v->stride)
            return false;
        int64_t begin = out->offset > v->offset ? out->offset : v->offset;
        int64_t out_end = out->offset + out->cols, end = v->offset + v->cols;
        n += v->rows * ((out_end < end ? out_end : end) - begin);
    }
    return n == v->rows * v->cols;
}

/* Another op than the pair's own touches its host or its lodger. */
static void touch(const struct overlay *o, struct pair *pair, int function, const struct op *op,
                  enum holds wanted)
{
    int id = wanted == HOLDS_HOST ? pair->host : pair->lodger;

    if (pair->function != 1 + function) {
        pair->function = 1 + function;
        pair->holds = HOLDS_NEITHER;
    }
    if (pair->holds != HOLDS_NEITHER) {
        pair->fails |= pair->holds != wanted;
        return;
    }
    /* The value that is overwritten must have been written in this function. */
    pair->fails |= pair->lodger_is_output == (wanted == HOLDS_HOST) && !writes(o->program, op, id);
    pair->holds = wanted;
}

/* The pair's own op reads one of the two values and writes the other. */
static void turn(struct pair *pair, int function)
{
    enum holds before = pair->lodger_is_output ? HOLDS_HOST : HOLDS_LODGER;

    pair->fails |= pair->function != 1 + function || pair->holds != before;
    pair->function = 1 + function;
    pair->holds = pair->lodger_is_output ? HOLDS_LODGER : HOLDS_HOST;
}

static bool is_own(const struct pair *pair, const struct op *op)
{
    int in = pair->lodger_is_output ? pair->host : pair->lodger;
    int out = pair->lodger_is_output ? pair->lodger : pair->host;

    return works_in_place(op) && op->in[OPS_FIRST] == in && op->out[OPS_FIRST] == out;
}

static void look_at_operand(const struct overlay *o, int function, const struct op *op, int id)
{
    int whole = program_whole(o->program, id);
    struct pair *as_lodger = o->of_lodger[whole] ? &o->pairs[o->of_lodger[whole] - 1] : NULL;

    if (as_lodger && !is_own(as_lodger, op))
        touch(o, as_lodger, function, op, HOLDS_LODGER);
    for (int i = o->of_base[whole] - 1; i >= 0; i = o->pairs[i].next)
        if (!is_own(&o->pairs[i], op) && program_overlap(o->program, id, o->pairs[i].host))
            touch(o, &o->pairs[i], function, op, HOLDS_HOST);
}

static void look_at(const struct overlay *o, int function)
{
    const struct function *f = &o->program->functions[function];

    for (int i = 0; i < f->n_ops; i++) {
        const struct op *op = &f->ops[i];
        int lodger = o->of_lodger[op->out[OPS_FIRST]] ? op->out[OPS_FIRST] : op->in[OPS_FIRST];

        for (int k = 0; k < OPS_MAX_INPUTS; k++)
            look_at_operand(o, function, op, op->in[k]);
        for (int k = 0; k < OPS_MAX_OUTPUTS; k++)
            look_at_operand(o, function, op, op->out[k]);
        if (o->of_lodger[lodger] && is_own(&o->pairs[o->of_lodger[lodger] - 1], op))
            turn(&o->pairs[o->of_lodger[lodger] - 1], function);
    }
    for (int i = 0; i < o->n_pairs; i++) {
        struct pair *pair = &o->pairs[i];
        enum holds at_end = pair->lodger_is_output ? HOLDS_LODGER : HOLDS_HOST;

        pair->fails |= pair->function == 1 + function && pair->holds != at_end;
    }
}

/* Give the lodger and its views the host's offset and stride. Returns 0 if that is not possible. */
static int lodge(struct program *p, const struct pair *pair)
{
    const struct value host = p->values[pair->host];
    struct value *lodger = &p->values[pair->lodger];
    int is_moved = lodger->offset != host.offset || lodger->stride != host.stride;

    if (is_moved && !has_columns_alone(p, pair->lodger))
        return 0;
    lodger->over = pair->host;
    for (int id = pair->lodger; is_moved && id < p->n_values; id++)
        if (id == pair->lodger || p->values[id].base == pair->lodger) {
            p->values[id].offset += host.offset;
            p->values[id].stride = host.stride;
        }
    return 1;
}

int work_in_place(struct program *program)
{
    int n_values = program->n_values, n_ops = 0, n_in_place = 0;
    struct arena arena = { 0 };
    struct overlay o = { .program = program,
                         .of_lodger = arena_array(&arena, int, n_values),
                         .of_base = arena_array(&arena, int, n_values) };

    for (int f = 0; f < program->n_functions; f++)
        n_ops += program->functions[f].n_ops;
    o.pairs = arena_array(&arena, struct pair, n_ops);
    for (int f = 0; f < program->n_functions; f++)
        for (int i = 0; i < program->functions[f].n_ops; i++)
            if (works_in_place(&program->functions[f].ops[i]))
                add_pair(&o, &program->functions[f].ops[i]);
    for (int f = 0; f < program->n_functions; f++)
        look_at(&o, f);
    for (int i = 0; i < o.n_pairs; i++)
        if (!o.pairs[i].fails)
            n_in_place += lodge(program, &o.pairs[i]);
    arena_release(&arena);
    return n_in_place;
}
