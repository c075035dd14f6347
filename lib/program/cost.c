/*
 * cost.c - the cost of a placed program: memory by segment, FLOPs by entry
 */
#include "base/num.h"
#include "program/order.h"
#include "program/passes.h"

int program_memory_table(const struct program *program, struct memory_row *rows, int capacity)
{
    static const char *const what[N_SEGMENTS] = {
        "parameters as the forward reads them",
        "accumulators and their shards",
        "fp32 masters and optimizer moments",
        "tokens and targets, and what the forward keeps for the backward",
        "values within one pass",
        "buffers of collectives",
        "scratch of kernels and libraries",
        "keys and values of generation",
        "learning rate, counters and constants that ops read",
        "cells in the host's memory",
        "what is kept there for the backward",
        "what is there within one pass",
        "cells in the file",
        "what is kept there for the backward",
        "what is there within one pass",
    };
    static const char with_errors[] =
        "fp32 masters, optimizer moments, and what codecs have lost of gradients";
    int n = 0;

    for (int s = 0; s < N_SEGMENTS && n < capacity; s++)
        if (program->segment_bytes[s])
            rows[n++] =
                (struct memory_row){ segment_name((enum segment)s),
                                     s == SEGMENT_STATES && program->codec.codec ? with_errors
                                                                                 : what[s],
                                     segment_space((enum segment)s), program->segment_bytes[s] };
    return n;
}

size_t program_space_bytes(const struct program *program, enum space space)
{
    size_t total = 0;

    for (int s = 0; s < N_SEGMENTS; s++)
        if (segment_space((enum segment)s) == space)
            total += program->segment_bytes[s];
    return total;
}

size_t program_memory_bytes(const struct program *program)
{
    return program_space_bytes(program, SPACE_DEVICE) + program_space_bytes(program, SPACE_HOST);
}

static double function_flops(const struct program *program, const struct function *f)
{
    double total = 0;

    for (int i = 0; i < f->n_ops; i++) {
        struct op_shape shape = program_op_shape(program, &f->ops[i]);

        total += op_flops(&shape);
    }
    return total;
}

/* A sum over all functions that the entry runs; one that runs for every micro-batch is looked at
 * once and multiplied. */
static double sum_entry(const struct program *program, enum entry_kind entry,
                        double (*of)(const struct program *program, const struct function *f))
{
    const struct entry *e = &program->entries[entry];
    struct arena arena = { 0 };
    int *n_runs = arena_array(&arena, int, program->n_functions);
    double total = 0;
    int n_parts;
    const struct order_rounds *parts = order_list_rounds(e, &n_parts, &arena);

    for (const struct order_rounds *part = parts; part < parts + n_parts; part++)
        for (int i = part->begin; i < part->begin + part->n; i++)
            if (e->actions[i].kind == ACTION_RUN)
                n_runs[e->actions[i].function] += part->n_times;
    for (int f = 0; f < program->n_functions; f++)
        if (n_runs[f])
            total += n_runs[f] * of(program, &program->functions[f]);
    arena_release(&arena);
    return total;
}

double program_entry_flops(const struct program *program, enum entry_kind entry)
{
    return sum_entry(program, entry, function_flops);
}

static double written_bytes(const struct program *program, const struct function *f)
{
    double total = 0;

    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < OPS_MAX_OUTPUTS && !order_is_async(&f->ops[i]); k++)
            if (f->ops[i].out[k])
                total += (double)program_value_bytes(program, f->ops[i].out[k]);
    return total;
}

size_t program_entry_written_bytes(const struct program *program, enum entry_kind entry)
{
    return (size_t)sum_entry(program, entry, written_bytes);
}

/* ---- the fullest op ---- */

static void add_stay(const struct program *p, int64_t *change, int value, int first, int last)
{
    int64_t n_bytes = (int64_t)program_value_bytes(p, value);

    change[first] += n_bytes;
    change[last + 1] -= n_bytes;
}

/* Bytes that begin less those that end, by op. */
static void count_function(const struct program *p, int function, int *first, int *last,
                           int *completed_at, int64_t *change)
{
    const struct function *f = &p->functions[function];

    order_completion(p, function, completed_at);
    for (int v = 0; v < p->n_values; v++)
        first[v] = -1;
    for (int i = 0; i < f->n_ops; i++)
        for (int k = 0; k < ORDER_N_OPERANDS; k++) {
            int id = k < OPS_MAX_INPUTS ? f->ops[i].in[k] : f->ops[i].out[k - OPS_MAX_INPUTS];
            int v = program_base(p, id);
            int end = order_is_async(&f->ops[i]) ? completed_at[i] - 1 : i;

            if (!v || p->values[v].segment != SEGMENT_SCRATCH)
                continue;
            if (f->ops[i].kind == OP_TO_DEVICE && first[v] >= 0 && last[v] < i) {
                add_stay(p, change, v, first[v], last[v]);
                first[v] = -1;
            }
            last[v] = first[v] < 0 ? end : max_int(last[v], end);
            first[v] = first[v] < 0 ? i : first[v];
        }
    for (int v = 1; v < p->n_values; v++)
        if (first[v] >= 0)
            add_stay(p, change, v, first[v], min_int(last[v], f->n_ops - 1));
}

void program_fullest_op(const struct program *program, struct fullest_op *fullest)
{
    const struct program *p = program;
    struct arena arena = { 0 };
    int *first = arena_array(&arena, int, p->n_values),
        *last = arena_array(&arena, int, p->n_values);

    *fullest = (struct fullest_op){ .layer = -1 };
    for (int function = 0; function < p->n_functions; function++) {
        const struct function *f = &p->functions[function];
        int64_t *change = arena_array(&arena, int64_t, f->n_ops + 1), live = 0;

        count_function(p, function, first, last, arena_array(&arena, int, f->n_ops), change);
        for (int i = 0; i < f->n_ops; i++) {
            live += change[i];
            if ((size_t)live > fullest->bytes)
                *fullest =
                    (struct fullest_op){ f->name, f->ops[i].kind, f->ops[i].layer, (size_t)live };
        }
    }
    arena_release(&arena);
}
