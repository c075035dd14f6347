/*
 * nccl_sum.h - sums over ranks in the order of NCCL's ring, which is not the order of comm/reduce.h
 */
#ifndef EMULATE_NCCL_SUM_H
#define EMULATE_NCCL_SUM_H

#include <stddef.h>

#include <vector>

struct ring_sum {
    std::vector<const void *> terms; /* by rank */
    bool is_bf16;                    /* else fp32; each partial sum is rounded to it */
};

/* to[i] = the sum of all ranks' element first + i, added up round the ring to rank `last`. */
void emulate_ring_sum(const ring_sum &s, void *to, size_t first, size_t n, size_t last);

/* An all-reduce: each rank is the last of a part of the elements, the last ranks' maybe shorter. */
void emulate_ring_sum_all(const ring_sum &s, char *to, size_t n_bytes);

#endif
