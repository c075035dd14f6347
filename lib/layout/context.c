/*
 * context.c - rows of ranks, and their work in closed form
 */
#include "layout/context.h"

#include "base/err.h"
#include "base/num.h"
#include "ops/ops.h"

int context_size(struct context_cut cut)
{
    return cut.ulysses * cut.keys;
}

int64_t context_unit(struct context_cut cut)
{
    CHECK(cut.ulysses >= 1);
    CHECK(cut.keys >= 1);
    return cut.keys == 1 ? cut.ulysses : cut.keys * least_common_multiple(2, cut.ulysses);
}

bool context_divides(struct context_cut cut, int64_t seq_len)
{
    return seq_len > 0 && seq_len % context_unit(cut) == 0;
}

int64_t context_length_below(struct context_cut cut, int64_t seq_len)
{
    int64_t unit = context_unit(cut);

    return seq_len / unit * unit;
}

int64_t context_length_above(struct context_cut cut, int64_t seq_len)
{
    return round_up(max_i64(seq_len, 1), context_unit(cut));
}

/* ---- rows ---- */

/* Rows of one of the two chunks of a pair; of all of it if there is one. */
static int64_t rows_of_chunk(struct context_cut cut, int64_t seq_len)
{
    return cut.keys == 1 ? seq_len : seq_len / (2 * (int64_t)cut.keys);
}

/* Where the pair's second chunk begins in the sequence. */
static int64_t second_chunk(struct context_cut cut, int64_t seq_len, int cp_rank)
{
    return (2 * (int64_t)cut.keys - 1 - cp_rank) * rows_of_chunk(cut, seq_len);
}

int64_t context_row_of_pair(struct context_cut cut, int64_t seq_len, int cp_rank, int64_t row)
{
    int64_t chunk = rows_of_chunk(cut, seq_len);

    return row < chunk ? cp_rank * chunk + row : second_chunk(cut, seq_len, cp_rank) + row - chunk;
}

int64_t context_rows_before(struct context_cut cut, int64_t seq_len, int cp_rank, int64_t row)
{
    int64_t chunk = rows_of_chunk(cut, seq_len);
    int64_t n = max_i64(min_i64(row - cp_rank * chunk, chunk), 0);

    if (cut.keys > 1)
        n += max_i64(min_i64(row - second_chunk(cut, seq_len, cp_rank), chunk), 0);
    return n;
}

void context_pair_rows(struct context_cut cut, int64_t seq_len, int cp_rank, int32_t *rows)
{
    CHECK(context_divides(cut, seq_len));
    for (int64_t i = 0; i < seq_len / cut.keys; i++)
        rows[i] = (int32_t)context_row_of_pair(cut, seq_len, cp_rank, i);
}

void context_rows(struct context_cut cut, int64_t seq_len, int ulysses_rank, int cp_rank,
                  int32_t *rows)
{
    int64_t n = seq_len / context_size(cut);

    CHECK(context_divides(cut, seq_len));
    for (int64_t i = 0; i < n; i++)
        rows[i] = (int32_t)context_row_of_pair(cut, seq_len, cp_rank, ulysses_rank * n + i);
}

bool context_has_window(struct context_cut cut, int64_t seq_len, int window)
{
    return cut.keys > 1 && window > 0 && window <= rows_of_chunk(cut, seq_len);
}

struct context_keys context_window_keys(struct context_cut cut, int64_t seq_len, int window,
                                        int cp_rank, int64_t row, int64_t start)
{
    int64_t chunk = rows_of_chunk(cut, seq_len), span = 0;
    int64_t query = context_row_of_pair(cut, seq_len, cp_rank, row);
    int64_t first = max_i64(start, query - window + 1);
    int number = cp_rank;

    CHECK(context_has_window(cut, seq_len, window));
    if (row >= chunk) {
        number = 2 * cut.keys - 1 - cp_rank;
        span = ops_window_rows(chunk, window);
    }
    int64_t begin = ops_window_begin(chunk, window, number);
    return (struct context_keys){ (int32_t)(span + first - begin),
                                  (int32_t)(span + query - begin) };
}

/* ---- work ---- */

/* Keys seen by the first n rows of a document. */
static int64_t keys_seen(int64_t n, int64_t window)
{
    int64_t ramp = window > 0 ? min_i64(n, window) : n;

    return ramp * (ramp + 1) / 2 + (n - ramp) * window;
}

/* Keys seen by those rows of a document, [start, end) of the sequence, that lie in [from, to). */
static int64_t keys_seen_within(int64_t start, int64_t end, int64_t from, int64_t to,
                                int64_t window)
{
    from = max_i64(from, start);
    to = min_i64(to, end);
    return from < to ? keys_seen(to - start, window) - keys_seen(from - start, window) : 0;
}

/* Of a pair and a document. */
static int64_t work_of_pair(struct context_cut cut, int64_t seq_len, int cp_rank, int64_t start,
                            int64_t end, int64_t window)
{
    int64_t chunk = rows_of_chunk(cut, seq_len), first = cp_rank * chunk;
    int64_t second = second_chunk(cut, seq_len, cp_rank);
    int64_t n = keys_seen_within(start, end, first, first + chunk, window);

    return cut.keys == 1 ? n : n + keys_seen_within(start, end, second, second + chunk, window);
}

double context_balance_of_documents(struct context_cut cut, int64_t seq_len, int64_t window,
                                    const int64_t *lengths, int n_documents)
{
    int64_t most = 0, sum = 0;

    CHECK(context_divides(cut, seq_len));
    for (int rank = 0; rank < cut.keys; rank++) {
        int64_t start = 0, work = 0;

        for (int i = 0; i < n_documents; i++) {
            work += work_of_pair(cut, seq_len, rank, start, start + lengths[i], window);
            start += lengths[i];
        }
        CHECK(start <= seq_len);
        work += work_of_pair(cut, seq_len, rank, start, seq_len, window);
        most = max_i64(most, work);
        sum += work;
    }
    return (double)most * cut.keys / (double)sum;
}

double context_balance(struct context_cut cut, int64_t seq_len, int64_t window)
{
    return context_balance_of_documents(cut, seq_len, window, NULL, 0);
}
