/*
 * context_test.c - every row of a sequence is on one rank, and every visible key is seen once
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/num.h"
#include "layout/context.h"
#include "ops/ops.h"

#define ROWS_MAX 512

/* Calls `each` with all cuts of 1 to 4, 6 and 8 ranks. */
static void for_all_cuts(void (*each)(struct context_cut cut, int64_t seq_len))
{
    static const int sizes[] = { 1, 2, 3, 4, 6, 8 };

    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        for (int u = 1; u <= sizes[k]; u++) {
            struct context_cut cut = { u, sizes[k] / u };

            if (sizes[k] % u != 0)
                continue;
            for (int64_t n = 1; n <= 5; n += n < 3 ? 1 : 2)
                each(cut, n * context_unit(cut));
        }
}

static void check_rows(struct context_cut cut, int64_t seq_len)
{
    int n_of[ROWS_MAX] = { 0 };
    int64_t n_local = seq_len / context_size(cut), n_pair = seq_len / cut.keys;

    for (int cp = 0; cp < cut.keys; cp++) {
        int32_t pair[ROWS_MAX], local[ROWS_MAX];

        context_pair_rows(cut, seq_len, cp, pair);
        for (int64_t i = 1; i < n_pair; i++)
            assert_true(pair[i - 1] < pair[i]);
        for (int u = 0; u < cut.ulysses; u++) {
            context_rows(cut, seq_len, u, cp, local);
            assert_memory_equal(local, pair + u * n_local, (size_t)n_local * sizeof *local);
            for (int64_t i = 0; i < n_local; i++)
                n_of[local[i]]++;
        }
        /* The inverse: a row of the sequence lies behind as many of the pair. */
        for (int64_t i = 0; i < n_pair; i++) {
            assert_int_equal(context_row_of_pair(cut, seq_len, cp, i), pair[i]);
            assert_int_equal(context_rows_before(cut, seq_len, cp, pair[i]), i);
        }
        for (int64_t row = 0, n = 0; row <= seq_len; row++) {
            assert_int_equal(context_rows_before(cut, seq_len, cp, row), n);
            n += n < n_pair && pair[n] == row;
        }
    }
    for (int64_t row = 0; row < seq_len; row++)
        assert_int_equal(n_of[row], 1);
}

static void every_row_is_on_one_rank(void **state)
{
    (void)state;
    for_all_cuts(check_rows);
}

/* A cp rank's pair is its chunks of 2 q: written down for q = 3. */
static void known_rows(void **state)
{
    static const int32_t pairs[3][4] = { { 0, 1, 10, 11 }, { 2, 3, 8, 9 }, { 4, 5, 6, 7 } };
    struct context_cut zigzag = { 1, 3 }, both = { 2, 3 }, heads = { 3, 1 };
    int32_t rows[12];

    (void)state;
    for (int cp = 0; cp < 3; cp++) {
        context_rows(zigzag, 12, 0, cp, rows);
        assert_memory_equal(rows, pairs[cp], sizeof pairs[cp]);
        for (int u = 0; u < 2; u++) {
            context_rows(both, 12, u, cp, rows);
            assert_memory_equal(rows, pairs[cp] + 2 * u, 2 * sizeof *rows);
        }
        context_rows(heads, 12, cp, 0, rows);
        for (int i = 0; i < 4; i++)
            assert_int_equal(rows[i], 4 * cp + i);
    }
}

static void lengths_that_divide(void **state)
{
    static const struct {
        struct context_cut cut;
        int64_t unit, seq_len, below, above;
    } cases[] = {
        { { 1, 1 }, 1, 7, 7, 7 },    { { 4, 1 }, 4, 10, 8, 12 },   { { 1, 4 }, 8, 10, 8, 16 },
        { { 2, 2 }, 4, 7, 4, 8 },    { { 3, 2 }, 12, 13, 12, 24 }, { { 4, 2 }, 8, 16, 16, 16 },
        { { 3, 3 }, 18, 17, 0, 18 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        assert_int_equal(context_unit(cases[k].cut), cases[k].unit);
        assert_int_equal(context_length_below(cases[k].cut, cases[k].seq_len), cases[k].below);
        assert_int_equal(context_length_above(cases[k].cut, cases[k].seq_len), cases[k].above);
        assert_int_equal(context_divides(cases[k].cut, cases[k].seq_len),
                         cases[k].below == cases[k].seq_len);
    }
    assert_false(context_divides(cases[0].cut, 0));
}

/* ---- windows ---- */

/* The row of the sequence that row `row` of what a rank's windows see is; -1: zeros. */
static int64_t row_seen(struct context_cut cut, int64_t seq_len, int window, int cp_rank,
                        int64_t row)
{
    int64_t chunk = seq_len / (2 * cut.keys), span = ops_window_rows(chunk, window);
    int number = row < span ? cp_rank : 2 * cut.keys - 1 - cp_rank;
    int64_t at = ops_window_begin(chunk, window, number) + row % span;

    return at < number * chunk - window + 1 || at >= (number + 1) * chunk ? -1 : at;
}

static void check_window(struct context_cut cut, int64_t seq_len, int window, int64_t document)
{
    int64_t chunk = seq_len / (2 * cut.keys), span = ops_window_rows(chunk, window);

    assert_true(span % OPS_KEY_TILE == 0);
    assert_true(span < chunk + window + 2 * OPS_KEY_TILE);
    for (int cp = 0; cp < cut.keys; cp++) {
        struct context_keys before = { -1, -1 };

        for (int64_t row = 0; row < seq_len / cut.keys; row++) {
            int64_t query = context_row_of_pair(cut, seq_len, cp, row);
            int64_t start = query / document * document;
            int64_t first = max_i64(start, query - window + 1);
            struct context_keys keys = context_window_keys(cut, seq_len, window, cp, row, start);

            assert_true(keys.first >= 0 && keys.last < 2 * span);
            assert_true(keys.first >= before.first && keys.last > before.last);
            assert_int_equal(keys.last - keys.first, query - first);
            for (int64_t key = keys.first; key <= keys.last; key++) {
                int64_t from = first + key - keys.first;

                assert_int_equal(row_seen(cut, seq_len, window, cp, key), from);
                assert_int_equal(key % OPS_KEY_TILE, from % OPS_KEY_TILE);
            }
            before = keys;
        }
    }
}

static void windows_see_their_keys(void **state)
{
    static const int chunks[] = { 1, 3, 21, 63, 64, 65, 100, 128 };
    static const int windows[] = { 1, 2, 3, 5, 21, 63, 64, 65, 66, 100, 128 };

    (void)state;
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
        for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
            for (int keys = 2; keys <= 4; keys++) {
                struct context_cut cut = { 1, keys };
                int64_t seq_len = (int64_t)2 * keys * chunks[c];

                assert_int_equal(context_has_window(cut, seq_len, windows[w]),
                                 windows[w] <= chunks[c]);
                if (windows[w] > chunks[c])
                    continue;
                check_window(cut, seq_len, windows[w], seq_len);
                check_window(cut, seq_len, windows[w], 37);
            }
    assert_false(context_has_window((struct context_cut){ 1, 2 }, 64, 0));
    assert_false(context_has_window((struct context_cut){ 4, 1 }, 64, 4));
}

/* ---- keys seen ---- */

static int64_t first_key(int64_t row, int64_t start, int64_t window)
{
    return window > 0 ? max_i64(start, row - window + 1) : start;
}

/* The documents of a test: of one row, of some, of more than half the sequence; `kind` of them. */
static int documents_of(int64_t seq_len, int kind, int64_t *lengths)
{
    int n = 0;

    for (int64_t at = 0; kind > 0 && at < seq_len; at += lengths[n++])
        lengths[n] = kind == 1 ? min_i64(1 + at % 7, seq_len - at)
                               : min_i64(n == 0 ? seq_len / 3 : seq_len / 2 + 1, seq_len - at);
    return kind > 1 ? min_int(n, 2) : n; /* what lies behind them is one more */
}

/* The first row of each row's document. */
static void starts_of(int64_t seq_len, const int64_t *lengths, int n, int64_t *starts)
{
    int64_t end = 0;

    for (int i = 0; i <= n; i++) {
        int64_t start = end;

        end = i < n ? start + lengths[i] : seq_len;
        for (int64_t row = start; row < end; row++)
            starts[row] = start;
    }
}

/* What the queries of a pair see, key by key of every pair. */
static int64_t keys_seen_by(struct context_cut cut, int64_t seq_len, int cp_rank,
                            const int64_t *starts, int64_t window)
{
    int64_t n_pair = seq_len / cut.keys, n = 0;
    int32_t rows[ROWS_MAX];

    context_pair_rows(cut, seq_len, cp_rank, rows);
    for (int64_t i = 0; i < n_pair; i++)
        for (int of = 0; of < cut.keys; of++)
            for (int64_t k = 0; k < n_pair; k++) {
                int64_t key = context_row_of_pair(cut, seq_len, of, k);

                n += key <= rows[i] && key >= first_key(rows[i], starts[rows[i]], window);
            }
    return n;
}

static void check_documents(struct context_cut cut, int64_t seq_len, int64_t window,
                            const int64_t *lengths, int n_documents)
{
    int64_t starts[ROWS_MAX], sum = 0, whole = 0, most = 0;

    starts_of(seq_len, lengths, n_documents, starts);
    for (int64_t row = 0; row < seq_len; row++)
        whole += row - first_key(row, starts[row], window) + 1;
    for (int cp = 0; cp < cut.keys; cp++) {
        int64_t work = keys_seen_by(cut, seq_len, cp, starts, window);

        sum += work;
        most = max_i64(most, work);
    }
    assert_int_equal(sum, whole);
    double balance = context_balance_of_documents(cut, seq_len, window, lengths, n_documents);
    assert_true(balance == (double)most * cut.keys / (double)whole);
    if (n_documents == 0)
        assert_true(balance == context_balance(cut, seq_len, window));
    if (n_documents == 0 && window == 0)
        assert_true(balance == 1);
}

static void check_keys(struct context_cut cut, int64_t seq_len)
{
    int64_t lengths[ROWS_MAX];

    for (int kind = 0; kind < 3; kind++)
        for (int64_t window = 0; window < 12; window += 5) {
            int n = documents_of(seq_len, kind, lengths);

            check_documents(cut, seq_len, window, lengths, n);
        }
    check_documents(cut, seq_len, 1, lengths, 0);
}

static void every_visible_key_is_seen_once(void **state)
{
    (void)state;
    for_all_cuts(check_keys);
}

/* At the length of a real run: zigzag is exactly even, and a window of a chunk leaves less to the
 * rank with the sequence's first rows. */
static void long_sequences(void **state)
{
    struct context_cut cut = { 2, 8 };
    int64_t one = (int64_t)1 << 20, documents[] = { one / 16, one - one / 16 };

    (void)state;
    assert_true(context_balance(cut, one, 0) == 1);
    assert_true(context_balance(cut, one, one / 16) > 1);
    assert_true(context_balance(cut, one, one / 16) < 1.04);
    assert_true(context_balance_of_documents(cut, one, 0, documents, 2) > 1);
    assert_true(context_balance((struct context_cut){ 8, 1 }, one, 4096) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_on_one_rank),
        cmocka_unit_test(known_rows),
        cmocka_unit_test(lengths_that_divide),
        cmocka_unit_test(windows_see_their_keys),
        cmocka_unit_test(every_visible_key_is_seen_once),
        cmocka_unit_test(long_sequences),
    };

    return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
