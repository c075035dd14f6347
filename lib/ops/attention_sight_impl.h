/*
 * attention_sight_impl.h - what rules of attentions share: the queries and keys of sequences
 *
 * For the rows of attention.c and attention_part.c, which name their operands by the numbers of
 * inputs.
 */
#ifndef OPS_ATTENTION_SIGHT_IMPL_H
#define OPS_ATTENTION_SIGHT_IMPL_H

#include <stdbool.h>

#include "ops/family_impl.h"

/*
 * Pairs (query, key) that causal attention looks at, over all sequences and heads. Ranges of keys
 * are known at run time only: this counts no documents, and queries that are a part of their
 * sequence, or keys that are, as if they were spread evenly over it.
 */
double attention_pairs(const struct op_shape *op, const struct tensor *queries,
                       const struct tensor *keys);

/*
 * Keys of as many sequences as there are of queries; without last, one for each query. Returns 0,
 * or -1 and ERR_FAILED.
 */
int check_keys(const struct op_shape *op, int q, int k, int last, struct err *err);

/* Whether each rank has a part of the queries and all keys. */
bool spread_has_all_keys(const struct spread_query *q, int queries, int keys);

/*
 * Queries, and what goes with them (a set of inputs), are split by rows; all else, keys of the
 * whole sequence among it, is the same. Which key is a query's own is then data (last). Outputs lie
 * as the queries. Returns 0, or -1 and ERR_FAILED.
 */
int spread_queries(const struct spread_query *q, unsigned with_queries, int last);

/*
 * The form, but that where heads are split and drop probabilities, or have slopes (is_numbered),
 * each rank must know which heads are its own (input head_offset). Returns 0, or -1 and ERR_FAILED.
 */
int spread_heads(const struct spread_query *q, const struct spread_form *form, int head_offset,
                 int is_numbered);

#endif
