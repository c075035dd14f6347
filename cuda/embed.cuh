/*
 * embed.cuh - which row of an embedding's table is a token's; and tokens sorted by it
 * (embed_sort.cu)
 */
#ifndef CUDA_EMBED_CUH
#define CUDA_EMBED_CUH

#include "cuda/cuda.cuh"

enum { NO_ROW = -1 };

struct table_rows {
    rows_of<int32_t> index;
    const int32_t *begin; /* NULL: the whole table is here */
    int64_t n_rows;       /* of the table, here */
};

/* NO_ROW: the token has none, or it is another rank's. */
static __device__ __forceinline__ int32_t table_row(const struct table_rows &t, int64_t token)
{
    int64_t row = *t.index.row(token);

    if (row < 0)
        return NO_ROW;
    if (t.begin)
        row -= *t.begin;
    if (row >= 0 && row < t.n_rows)
        return (int32_t)row;
    device_check(t.begin != NULL);
    return NO_ROW;
}

/*
 * Sort n_tokens tokens by their table's row, those of one row in their order, those of none behind.
 * scratch: cuda_sort_scratch bytes, aligned to 64. What it leaves there:
 */
struct sorted_tokens {
    const uint32_t *row;  /* of each place; t.n_rows: none */
    const int32_t *token; /* of each place */
    const uint8_t *named; /* of each row of the table: whether a token names it */
};

struct sorted_tokens cuda_sort_tokens(struct kernels *kernels, const struct kernel_call *call,
                                      struct table_rows t, int64_t n_tokens, void *scratch);

#endif
