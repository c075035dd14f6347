/*
 * mistakes_impl.h - all that is wrong in a job file, told at once
 *
 * Mistakes are found in the order of our checks and told in the order of the file; those of
 * overrides and those without a place come last.
 */
#ifndef CONFIG_MISTAKES_IMPL_H
#define CONFIG_MISTAKES_IMPL_H

#include "base/arena.h"
#include "base/err.h"
#include "base/yaml.h"

struct mistake {
    int line, column; /* line INT_MAX: without a place */
    int order;        /* as found */
    const char *text;
};

struct mistakes {
    struct arena *arena;
    const char *source; /* names mistakes without a node */
    struct mistake *items;
    int n, capacity;
};

/* Put one down at a node (NULL: the job as a whole). Always returns -1. */
int mistakes_add(struct mistakes *mistakes, const struct yaml_node *node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same at the key of a node instead of its value. Always returns -1. */
int mistakes_add_at_key(struct mistakes *mistakes, const struct yaml_node *node, const char *format,
                        ...) __attribute__((format(printf, 3, 4)));

/* A message that names its place itself. Always returns -1. */
int mistakes_add_text(struct mistakes *mistakes, const char *text);

/* 0 if there are none; else -1 and ERR_CONFIG with as many as fit, one a line. */
int mistakes_tell(struct mistakes *mistakes, struct err *err);

#endif
