/*
 * verify_impl.h - the parts of verify: memory, contents of slots, order
 */
#ifndef PROGRAM_VERIFY_IMPL_H
#define PROGRAM_VERIFY_IMPL_H

#include "program/program.h"

/*
 * verify_memory.c: values lie inside their segments and views inside their bases; nothing that
 * lives at the same time overlaps. Only for placed programs. Returns 0, or -1 and ERR_FAILED.
 */
int verify_memory(const struct program *program, struct err *err);

/* Set ERR_FAILED naming function, op and value. Returns -1. */
int verify_complain(const struct program *program, const struct function *function,
                    const struct op *op, int value, const char *what, struct err *err);

/* Whether the op reads the present contents of its output, which must then be complete. */
int verify_reads_output(const struct program *program, const struct op *op, int output);

/*
 * How entries are walked. verify and verify_ranks (passes.h) skip micro-batches whose result is
 * known; with in_full nothing is skipped, and the result is the same, including the error text
 * (tests compare them).
 */
struct verify_way {
    int in_full;
    int n_walked;       /* counted: actions, of all entries and ranks */
    int n_walked_slots; /* the same of verify_stash */
};

/*
 * verify_stash.c: what a function reads from a stash belongs to its micro-batch, in every entry.
 * Returns 0, or -1 and ERR_FAILED.
 */
int verify_stash(const struct program *program, struct verify_way *way, struct err *err);

int verify_in_way(const struct program *program, struct verify_way *way, struct err *err);
int verify_ranks_in_way(const struct program *const *programs, const struct mesh *mesh,
                        struct verify_way *way, struct err *err);

/* Values that are over others are written by an op that may work in place, and each is read only
 * while the memory holds it. */
int verify_in_place(const struct program *program, struct err *err);

/* "layers.0.qkv.weight" or "%12"; returns the name or buffer. */
const char *verify_value_text(const struct program *program, int id, char *buffer, size_t size);

#endif
