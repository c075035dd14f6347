/*
 * verify_impl.h - the two halves of verify: what lies where, and what runs when
 */
#ifndef PROGRAM_VERIFY_IMPL_H
#define PROGRAM_VERIFY_IMPL_H

#include "program/program.h"

/*
 * verify_memory.c: values lie inside their segments and views inside their bases; nothing that
 * lives at the same time overlaps. Only for placed programs. Returns 0, or -1 and ERR_FAILED.
 */
int verify_memory(const struct program *program, struct err *err);

/*
 * verify and verify_ranks (passes.h) that walk every micro-batch, also those of which it is known
 * what comes of them: the same answers, down to the text, for tests to hold them against.
 */
int verify_in_full(const struct program *program, struct err *err);
int verify_ranks_in_full(const struct program *const *programs, const struct mesh *mesh,
                         struct err *err);

/*
 * How many times, at most `most`, the n actions before action i are done again from there on, each
 * time `shift` micro-batches later than the time before.
 */
int verify_count_rounds(const struct entry *entry, int i, int n, int shift, int most);

/* "layers.0.qkv.weight" or "%12"; returns the name or buffer. */
const char *verify_value_text(const struct program *program, int id, char *buffer, size_t size);

#endif
