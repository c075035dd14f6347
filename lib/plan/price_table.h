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

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "ops/ops.h"

struct price_point {
    int64_t size;
    double ns;
    double cpu_ns; /* of an op on a CPU: that its threads had a core; 0: not known */
    int n_samples; /* whose mean these are */
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
    const char *machine; /* what was measured: device, kernels, libraries; NULL: not known */
    const char *build;   /* of lmtrain, that measured; NULL: not known */
    struct price_curves ops, collectives, transfers;
    double contention; /* ops take longer by it when all ranks of the node compute; 0: not known */
    double cpu_contention; /* the same of cpu_ns */
    double late_ns;   /* a collective takes longer by it whose ranks come one after the other */
    double beside_ns; /* a collective takes longer by it whose ranks compute meanwhile */
    struct arena *arena;
};

enum price_source { PRICE_FORMULA, PRICE_INTERPOLATED, PRICE_MEASURED, N_PRICE_SOURCES };

/* The ranks of a collective: as many on each node. */
struct price_span {
    int per_node, n_nodes;
};

/* One more sample of an op; of a collective; of a message between two ranks, of a node or of two.
 * */
void price_table_add_op(struct price_table *table, const struct op_shape *op, double ns,
                        double cpu_ns);
void price_table_add_collective(struct price_table *table, enum op_kind kind,
                                struct price_span span, int64_t n_bytes, double ns);
void price_table_add_transfer(struct price_table *table, bool is_across, int64_t n_bytes,
                              double ns);

/* ns, or -1 where the table has no price. Less than the least that was exchanged takes as long. */
double price_table_op(const struct price_table *table, const struct op_shape *op,
                      enum price_source *source);
double price_table_op_cpu(const struct price_table *table, const struct op_shape *op);
double price_table_collective(const struct price_table *table, enum op_kind kind,
                              struct price_span span, int64_t n_bytes, enum price_source *source);
double price_table_transfer(const struct price_table *table, bool is_across, int64_t n_bytes,
                            enum price_source *source);

/* As JSON; and read from a file, in the arena: 0, or -1 and ERR_CONFIG. */
void price_table_print(const struct price_table *table, struct str *out);
int price_table_read(struct price_table *table, const char *path, struct arena *arena,
                     struct err *err);

#endif
