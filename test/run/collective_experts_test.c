/*
 * collective_experts_test.c - rows to the ranks that have their experts and back, over threads as
 * ranks
 *
 * Both kinds are held, row by row, against their definition in ops.h, under routings that leave
 * ranks, experts and pieces empty or full; and there and back, by experts that do nothing, each
 * token has its row as many times as it chose experts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/collective_play.h"

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

enum { COLS = 3, CHOICES_MAX = 1024, ROWS_MAX = 1024 };

enum routing { ANY, TO_ONE_EXPERT, TO_ONE_RANK, TO_OTHER_RANKS, DROPPED, N_ROUTINGS };

struct form {
    int size, own, n_tokens, n_chosen; /* own: experts of a rank */
    enum routing routing;
    enum dtype dtype;
    int first, experts; /* of a rank's, what it is about; experts 0: all */
    int32_t choices[CHOICES_MAX];
};

/* Whether an expert is one of these of its rank. */
static int is_meant(const struct form *f, int expert)
{
    int own = expert % f->own;

    return !f->experts || (own >= f->first && own < f->first + f->experts);
}

static int n_experts_of(const struct form *f)
{
    return f->size * f->own;
}

/* Distinct experts: neighbours of the first, but among those of one rank; or some are none. */
static int32_t choose(const struct form *f, int rank, int token, int i)
{
    int m = n_experts_of(f), last = f->size - 1;
    int draw = (int)(rng_at(7, RNG_TEST, (uint64_t)rank, (uint64_t)token).word[0] % (unsigned)m);

    switch (f->routing) {
    case TO_ONE_EXPERT:
        return (m - 1 + i) % m;
    case TO_ONE_RANK:
        return f->n_chosen <= f->own ? last * f->own + (draw + i) % f->own : (draw + i) % m;
    case TO_OTHER_RANKS:
        return ((rank + 1) % f->size * f->own + i) % m;
    case DROPPED:
        return (token + i + rank) % 3 ? (draw + i) % m : -1;
    default:
        return (draw + i) % m;
    }
}

static int32_t choice_of(const struct form *f, int rank, int token, int i)
{
    return f->choices[(rank * f->n_tokens + token) * f->n_chosen + i];
}

static void fill_choices(struct form *f)
{
    assert_true(f->size * f->n_tokens * f->n_chosen <= CHOICES_MAX);
    for (int r = 0; r < f->size; r++)
        for (int t = 0; t < f->n_tokens; t++)
            for (int i = 0; i < f->n_chosen; i++)
                f->choices[(r * f->n_tokens + t) * f->n_chosen + i] = choose(f, r, t, i);
}

/* Of tokens of ranks [first, first + n), and experts [begin, end): the row of each choice, by
 * expert, rank, token, choice; -1: none. Returns how many there are. */
static int order(const struct form *f, int first, int n, int begin, int end, int32_t *place)
{
    int row = 0;

    for (int i = 0; i < n * f->n_tokens * f->n_chosen; i++)
        place[i] = -1;
    for (int e = begin; e < end; e++)
        for (int r = 0; r < n; r++)
            for (int t = 0; t < f->n_tokens; t++)
                for (int i = 0; i < f->n_chosen; i++)
                    if (choice_of(f, first + r, t, i) == e)
                        place[(r * f->n_tokens + t) * f->n_chosen + i] = row++;
    return row;
}

static int64_t bound_of(const struct form *f)
{
    int64_t n = f->n_chosen < f->own ? f->n_chosen : f->own;

    return f->size * f->n_tokens * n;
}

static struct collective_play make(enum op_kind kind, const struct form *f)
{
    int is_sent = kind == OP_SEND_ROWS;
    int64_t all = (int64_t)f->size * f->n_tokens, own = (int64_t)f->n_tokens * f->n_chosen;
    struct collective_play p =
        play_make(kind, f->size, play_dense(is_sent ? f->n_tokens : bound_of(f), COLS, f->dtype),
                  play_dense(is_sent ? all : own, COLS, f->dtype));

    p.shape.in[SEND_ROWS_CHOICES] = play_dense(all, f->n_chosen, DTYPE_I32);
    p.shape.attributes.n_experts = n_experts_of(f);
    p.shape.attributes.first = f->first;
    p.shape.attributes.experts = f->experts;
    p.choices = f->choices;
    return p;
}

static size_t row_bytes(const struct form *f)
{
    return COLS * dtype_bytes(f->dtype);
}

static const unsigned char *row_of(const struct form *f, const unsigned char *rows, int64_t row)
{
    return rows + (size_t)row * row_bytes(f);
}

/* Of a token's choices of a rank the first expert; -1: there is none. */
static int first_chosen(const struct form *f, int rank, int token, int by)
{
    int first = -1;

    for (int i = 0; i < f->n_chosen; i++) {
        int e = choice_of(f, rank, token, i);

        if (e >= 0 && e / f->own == by && (first < 0 || e < first))
            first = e;
    }
    return first;
}

static int is_chosen(const struct form *f, int rank, int token, int by)
{
    int first = first_chosen(f, rank, token, by);

    return first >= 0 && is_meant(f, first);
}

static void check_sent(const struct collective_play *p, const struct form *f)
{
    unsigned char untouched[COLS * 4];

    memset(untouched, 0xff, sizeof untouched);
    for (int c = 0; c < f->size; c++)
        for (int r = 0; r < f->size; r++)
            for (int t = 0; t < f->n_tokens; t++)
                assert_memory_equal(row_of(f, p->out[c], r * f->n_tokens + t),
                                    is_chosen(f, r, t, c) ? row_of(f, p->before[r], t) : untouched,
                                    row_bytes(f));
}

static void check_returned(const struct collective_play *p, const struct form *f)
{
    int32_t own[CHOICES_MAX], all[CHOICES_MAX];
    unsigned char untouched[COLS * 4];

    memset(untouched, 0xff, sizeof untouched);
    for (int c = 0; c < f->size; c++) {
        order(f, 0, f->size, c * f->own, (c + 1) * f->own, all);
        for (int r = 0; r < f->size; r++) {
            int n = f->n_tokens * f->n_chosen;

            order(f, r, 1, 0, n_experts_of(f), own);
            for (int i = 0; i < n; i++)
                if (all[r * n + i] >= 0)
                    assert_memory_equal(row_of(f, p->out[r], own[i]),
                                        is_meant(f, f->choices[r * n + i])
                                            ? row_of(f, p->before[c], all[r * n + i])
                                            : untouched,
                                        row_bytes(f));
        }
    }
}

static void alone(const struct form *f)
{
    struct collective_play sent = make(OP_SEND_ROWS, f), returned = make(OP_RETURN_ROWS, f);

    play_run(&sent);
    check_sent(&sent, f);
    play_run(&returned);
    check_returned(&returned, f);
    play_release(&sent);
    play_release(&returned);
}

/* Each rank's experts give the rows that they get; what is no row is no number. */
static void dispatch(const struct form *f, const struct collective_play *sent, int rank,
                     unsigned char *rows)
{
    int32_t all[CHOICES_MAX];
    int n = f->size * f->n_tokens * f->n_chosen;

    memset(rows, 0xff, (size_t)bound_of(f) * row_bytes(f));
    assert_true(order(f, 0, f->size, rank * f->own, (rank + 1) * f->own, all) <= bound_of(f));
    for (int i = 0; i < n; i++)
        if (all[i] >= 0)
            memcpy(rows + (size_t)all[i] * row_bytes(f),
                   row_of(f, sent->out[rank], i / f->n_chosen), row_bytes(f));
}

static void there_and_back(const struct form *f)
{
    static unsigned char rows[PLAY_RANKS_MAX][ROWS_MAX * COLS * 4];
    struct collective_play sent = make(OP_SEND_ROWS, f), returned = make(OP_RETURN_ROWS, f);
    int32_t own[CHOICES_MAX];

    assert_true(bound_of(f) <= ROWS_MAX);
    play_run(&sent);
    for (int r = 0; r < f->size; r++) {
        dispatch(f, &sent, r, rows[r]);
        returned.given[r] = rows[r];
    }
    play_run(&returned);
    for (int r = 0; r < f->size; r++) {
        order(f, r, 1, 0, n_experts_of(f), own);
        for (int i = 0; i < f->n_tokens * f->n_chosen; i++)
            if (own[i] >= 0)
                assert_memory_equal(row_of(f, returned.out[r], own[i]),
                                    row_of(f, sent.before[r], i / f->n_chosen), row_bytes(f));
    }
    play_release(&sent);
    play_release(&returned);
}

static void each_form(void (*check)(const struct form *))
{
    static const struct {
        int own, n_tokens, n_chosen;
    } cases[] = { { 1, 1, 1 }, { 1, 5, 2 }, { 2, 1, 2 }, { 2, 7, 1 },
                  { 2, 6, 3 }, { 3, 9, 2 }, { 4, 4, 0 }, { 1, 3, 0 } }; /* 0: all */

    for (int i = 0; i < COUNT(cases); i++)
        for (int size = 1; size <= 4; size++)
            for (enum routing routing = ANY; routing < N_ROUTINGS; routing++) {
                int m = size * cases[i].own;
                struct form f = { .size = size,
                                  .own = cases[i].own,
                                  .n_tokens = cases[i].n_tokens,
                                  .n_chosen = cases[i].n_chosen ? cases[i].n_chosen : m,
                                  .routing = routing,
                                  .dtype = (i + size) % 2 ? DTYPE_BF16 : DTYPE_F32 };

                if (f.n_chosen > m)
                    continue;
                fill_choices(&f);
                check(&f);
            }
}

static void each_alone(void **state)
{
    (void)state;
    each_form(alone);
}

/* Of a rank's experts: each by itself, all but the last, all but the first. */
static void by_groups(const struct form *all)
{
    for (int first = 0; first < all->own; first++)
        for (int experts = 1; first + experts <= all->own; experts += all->own > 2 ? 1 : all->own) {
            struct form f = *all;

            f.first = first;
            f.experts = experts;
            alone(&f);
        }
}

static void each_by_groups(void **state)
{
    (void)state;
    each_form(by_groups);
}

static void by_experts_that_do_nothing(void **state)
{
    (void)state;
    each_form(there_and_back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_alone),
        cmocka_unit_test(each_by_groups),
        cmocka_unit_test(by_experts_that_do_nothing),
    };

    return cmocka_run_group_tests(tests, play_fill_numbers, NULL);
}
