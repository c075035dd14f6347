/*
 * cost.c - the cost of a placed program: memory by segment, FLOPs by entry
 */
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
    int n = 0;

    for (int s = 0; s < N_SEGMENTS && n < capacity; s++)
        if (program->segment_bytes[s])
            rows[n++] = (struct memory_row){ segment_name((enum segment)s), what[s],
                                             program->segment_bytes[s] };
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
