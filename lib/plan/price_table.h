/*
 * price_table.h - measured times of ops and collectives
 *
 * A curve is what one op takes by its size: the rows that it has one for each token of, all else
 * equal (for the optimizer: elements). `lmtrain bench cluster` measures curves from steps of
 * training programs and from collectives; prices between two sizes are interpolated in logarithms,
 * and those a little beyond a curve's ends grow in proportion. What is farther off, or of no curve,
 * has no price here: formulas stand in (price.h).
 */
#ifndef PLAN_PRICE_TABLE_H
#define PLAN_PRICE_TABLE_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "ops/ops.h"

struct price_point {
    int64_t size;
    double ns;
    int n_samples; /* whose mean ns is */
};

struct price_curve {
    const char *name;
    uint64_t hash;              /* of the name */
    struct price_point *points; /* by size */
    int n, capacity;
};

struct price_curves {
    struct price_curve *items;
    int n, capacity;
};

struct price_table {
    const char *machine; /* what was measured, for messages; NULL: not known */
    struct price_curves ops, collectives;
    double contention; /* ops take longer by it when all ranks of the node compute; 0: not known */
    struct arena *arena;
};

enum price_source { PRICE_FORMULA, PRICE_INTERPOLATED, PRICE_MEASURED, N_PRICE_SOURCES };

/* One more sample of an op; and of a collective over n_ranks ranks of a node. */
void price_table_add_op(struct price_table *table, const struct op_shape *op, double ns);
void price_table_add_collective(struct price_table *table, enum op_kind kind, int n_ranks,
                                int64_t n_bytes, double ns);

/* ns, or -1 where the table has no price. */
double price_table_op(const struct price_table *table, const struct op_shape *op,
                      enum price_source *source);
double price_table_collective(const struct price_table *table, enum op_kind kind, int n_ranks,
                              int64_t n_bytes, enum price_source *source);

/* As JSON; and read from a file, in the arena: 0, or -1 and ERR_CONFIG. */
void price_table_print(const struct price_table *table, struct str *out);
int price_table_read(struct price_table *table, const char *path, struct arena *arena,
                     struct err *err);

#endif
