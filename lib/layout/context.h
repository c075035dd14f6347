/*
 * context.h - which rows of a sequence each rank has under context parallelism
 *
 * A sequence of T rows is divided over u * q ranks: u exchange heads around attention
 * (AXIS_ULYSSES) and q exchange keys and values (AXIS_CP).
 *
 * If q > 1 the sequence is cut into 2 q chunks, and cp rank o has chunks o and 2 q - 1 - o, in this
 * order: its pair, of T / q rows. Causal work grows with the row, so that all pairs have equal work
 * (zigzag). If q is 1 the pair is the whole sequence. Of a pair, ulysses rank i has rows
 * [i T / (u q), (i + 1) T / (u q)), its local rows; attention is over the pair, of 1 / u of the
 * heads. Local rows and pairs are ascending rows of the sequence.
 */
#ifndef LAYOUT_CONTEXT_H
#define LAYOUT_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

/* Over how many ranks: u and q. Not cut: 1, 1. */
struct context_cut {
    int ulysses, keys;
};

/* u * q. */
int context_size(struct context_cut cut);

/* What T must be a multiple of, so that chunks and parts of pairs are whole; whether it is; and the
 * nearest T below (0: there is none) and above that are, or T itself. */
int64_t context_unit(struct context_cut cut);
bool context_divides(struct context_cut cut, int64_t seq_len);
int64_t context_length_below(struct context_cut cut, int64_t seq_len);
int64_t context_length_above(struct context_cut cut, int64_t seq_len);

/* The cut divides seq_len from here on. The row in the sequence of row `row` of a pair. */
int64_t context_row_of_pair(struct context_cut cut, int64_t seq_len, int cp_rank, int64_t row);

/* How many rows of a pair lie before row `row` of the sequence; row may be seq_len. */
int64_t context_rows_before(struct context_cut cut, int64_t seq_len, int cp_rank, int64_t row);

/* Rows in the sequence of a rank's local rows, [T / (u q)], and of its pair's, [T / q]. */
void context_rows(struct context_cut cut, int64_t seq_len, int ulysses_rank, int cp_rank,
                  int32_t *rows);
void context_pair_rows(struct context_cut cut, int64_t seq_len, int cp_rank, int32_t *rows);

/*
 * Keys that a row of a pair sees through a window of at most a chunk, as rows of its sequence in
 * what gather_window makes of the pairs (ops.h). start: the first row of its document.
 */
struct context_keys {
    int32_t first, last;
};
struct context_keys context_window_keys(struct context_cut cut, int64_t seq_len, int window,
                                        int cp_rank, int64_t row, int64_t start);

/* Whether a window's keys are the rank's and its neighbours' alone. */
bool context_has_window(struct context_cut cut, int64_t seq_len, int window);

/*
 * How uneven attention is: the most (query, visible key) pairs of a rank over their mean. 1 without
 * window and documents; with them work depends on where chunks lie. window 0: none. Documents lie
 * one behind the other, and the rows behind the last are one more.
 */
double context_balance(struct context_cut cut, int64_t seq_len, int64_t window);
double context_balance_of_documents(struct context_cut cut, int64_t seq_len, int64_t window,
                                    const int64_t *lengths, int n_documents);

#endif
