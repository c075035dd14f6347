/*
 * deprecated_impl.h - keys of jobs that have another name now
 *
 * A deprecated key is read as its successor, with a warning that says since which version it has a
 * successor and in which version it will be removed: at least one minor version later (man 1
 * lmtrain, COMPATIBILITY). Giving both is a mistake. The old key is in the manual and, marked as
 * deprecated, in the JSON Schema, until it is removed.
 */
#ifndef CONFIG_DEPRECATED_IMPL_H
#define CONFIG_DEPRECATED_IMPL_H

#include "base/str.h"

struct deprecated_key {
    const char *old;        /* the whole key; not a field's */
    const char *successor;  /* a field's whole key, of the same meaning, values and unit */
    const char *since;      /* version of lmtrain, such as "0.4" */
    const char *removed_in; /* a later minor version */
};

struct deprecated_keys {
    const struct deprecated_key *items;
    int n;
};

/* Those of this version. */
extern const struct deprecated_keys job_deprecated_keys;

/* The row of a whole key, or NULL. */
const struct deprecated_key *deprecated_find(const struct deprecated_keys *keys, const char *key);

/* Whether some deprecated key begins with "GROUP.". */
int deprecated_is_group(const struct deprecated_keys *keys, const char *group);

/* Append "train.x is deprecated since 0.4, use train.y; it will be removed in 0.6". */
void deprecated_describe(const struct deprecated_key *key, struct str *out);

/* Append the part of man 5 on them; nothing if there are none. */
void deprecated_manual(const struct deprecated_keys *keys, struct str *out);

/* job_schema with another table, for tests. */
void job_schema_with(const struct deprecated_keys *keys, struct str *out);

#endif
