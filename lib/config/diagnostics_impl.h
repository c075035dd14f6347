/*
 * diagnostics_impl.h - all mistakes of a job file, reported at once
 *
 * Mistakes are found in the order of our checks and reported in the order of the file; those of
 * overrides and those without a place come last.
 */
#ifndef CONFIG_DIAGNOSTICS_IMPL_H
#define CONFIG_DIAGNOSTICS_IMPL_H

#include "base/arena.h"
#include "base/err.h"
#include "base/yaml.h"

struct diagnostic {
    int line, column; /* line INT_MAX: without a place */
    int order;        /* as found */
    const char *text;
};

struct diagnostics {
    struct arena *arena;
    const char *source; /* names mistakes without a node */
    struct diagnostic *items;
    int n, capacity;
};

/* Put one down at a node (NULL: the job as a whole). Always returns -1. */
int diagnostics_add(struct diagnostics *mistakes, const struct yaml_node *node, const char *format,
                    ...) __attribute__((format(printf, 3, 4)));

/* The same at the key of a node instead of its value. Always returns -1. */
int diagnostics_add_at_key(struct diagnostics *mistakes, const struct yaml_node *node,
                           const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A message that names its place itself. Always returns -1. */
int diagnostics_add_text(struct diagnostics *mistakes, const char *text);

/* 0 if there are none; else -1 and ERR_CONFIG with as many as fit, one a line. */
int diagnostics_tell(struct diagnostics *mistakes, struct err *err);

#endif
