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

/* "layers.0.qkv.weight" or "%12"; returns the name or buffer. */
const char *verify_value_text(const struct program *program, int id, char *buffer, size_t size);

#endif
