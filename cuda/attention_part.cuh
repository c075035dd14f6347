/*
 * attention_part.cuh - sums of a warp's rows that one part of the keys leaves for the next: fp32, in
 * memory
 *
 * A row that sees no key of a part keeps its sums bit for bit: they are copied, as adding zeros may
 * turn the sign of a zero.
 */
#ifndef CUDA_ATTENTION_PART_CUH
#define CUDA_ATTENTION_PART_CUH

#include "cuda/attention.cuh"

/* Rows of one head: row r begins at `at` + r * stride. */
struct part_rows {
    float *at; /* NULL: there are none */
    int64_t stride;
    int n_rows, n_cols;
};

/* Rows from `row` on, of which there are n_rows, columns col .. col + n_cols - 1. */
static __device__ __forceinline__ part_rows part_rows_of(rows_of<float> rows, int64_t row,
                                                         int64_t col, int n_rows, int n_cols)
{
    return part_rows{ rows.at ? rows.row(row) + col : NULL, rows.stride, n_rows, n_cols };
}

/* Zeros where there are no sums. */
template <int COLS, int M>
static __device__ __forceinline__ void part_load(float (&sums)[M][COLS / 8][4],
                                                 const part_rows &from)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = 16 * m + g + 8 * i;
            int n_cols = from.at && row < from.n_rows ? from.n_cols : 0;

#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int col = 8 * n + 2 * t + j;

                    sums[m][n][2 * i + j] = col < n_cols ? from.at[row * from.stride + col] : 0.0f;
                }
        }
}

/* before: what part_load was given. */
template <int COLS, int M, typename S>
static __device__ __forceinline__ void part_store(const float (&sums)[M][COLS / 8][4],
                                                  const part_rows &to, const part_rows &before,
                                                  const S &sight)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = 16 * m + g + 8 * i;
            int is_kept = before.at && sight.first[m][i] == NOTHING_SEEN;

            if (row >= to.n_rows)
                continue;
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int col = 8 * n + 2 * t + j;

                    if (col < to.n_cols)
                        to.at[row * to.stride + col] =
                            is_kept ? before.at[row * before.stride + col] : sums[m][n][2 * i + j];
                }
        }
}

#endif
