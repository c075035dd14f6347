/*
 * reduce.h - sums over ranks, as a fixed tree
 *
 * The sum of n terms is split at the largest power of two below n, both sides likewise, and added
 * in that order (design.md §5): aligned power-of-two groups of ranks are subtrees, so a flat and a
 * hierarchical reduction agree to the bit. Data is moved, then added; no library sums for us.
 */
#ifndef COMM_REDUCE_H
#define COMM_REDUCE_H

#include <stdint.h>

#include "base/dtype.h"
#include "comm/comm.h"

/*
 * out[i] = tree sum over k of terms[k * stride + i], for i in 0..n-1; DTYPE_F32, DTYPE_F64 or
 * DTYPE_BF16, DTYPE_F16 (both added in fp32, rounded once). terms is left unspecified; out may be
 * terms.
 */
void reduce_tree(enum dtype dtype, void *out, void *terms, int n_terms, int64_t stride, int64_t n);

/*
 * The same of terms of one dtype into another: of DTYPE_BF16 or DTYPE_F16 into DTYPE_F32, not
 * rounded, and of DTYPE_F32 into any of the three, rounded once. So a sum of aligned groups' sums
 * is the sum of all terms, to the bit. out may be terms where it is no wider.
 */
void reduce_tree_as(enum dtype from, enum dtype to, void *out, void *terms, int n_terms,
                    int64_t stride, int64_t n);

/*
 * shard[i] = tree sum over ranks of their full[me * n + i], i in 0..n-1. full has size * n
 * elements; scratch as many. Collective.
 */
int reduce_scatter(struct comm_group *group, enum dtype dtype, const void *full, void *shard,
                   void *scratch, int64_t n, struct err *err);

#endif
