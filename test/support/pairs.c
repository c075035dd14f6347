/*
 * pairs.c - covering arrays, a row at a time
 *
 * Each row begins with the first pair that no row has yet; every other factor then takes the
 * setting that has most new pairs with those chosen, of several the one that rows have least.
 */
#include "support/pairs.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define UNCHOSEN -1

struct search {
    struct pairs *pairs;
    /* [factor][level][factor][level], both ways round */
    char met[PAIRS_FACTORS_MAX][PAIRS_LEVELS_MAX][PAIRS_FACTORS_MAX][PAIRS_LEVELS_MAX];
    int n_used[PAIRS_FACTORS_MAX][PAIRS_LEVELS_MAX];
};

int pairs_whole(void)
{
    const char *text = getenv("LMTRAIN_TEST_WHOLE");

    return text && !strcmp(text, "1");
}

/* New pairs that `level` of `factor` has with what the row has chosen. */
static int n_new(const struct search *s, const int *row, int factor, int level)
{
    int n = 0;

    for (int other = 0; other < s->pairs->n_factors; other++)
        if (other != factor && row[other] != UNCHOSEN)
            n += !s->met[factor][level][other][row[other]];
    return n;
}

static int best_level(const struct search *s, const int *row, int factor)
{
    int best = 0;

    for (int level = 1; level < s->pairs->levels[factor]; level++) {
        int gain = n_new(s, row, factor, level) - n_new(s, row, factor, best);

        if (gain > 0 || (gain == 0 && s->n_used[factor][level] < s->n_used[factor][best]))
            best = level;
    }
    return best;
}

/* Of these two factors. */
static int begin_with(const struct search *s, int *row, int f, int g)
{
    for (int a = 0; a < s->pairs->levels[f]; a++)
        for (int b = 0; b < s->pairs->levels[g]; b++)
            if (!s->met[f][a][g][b]) {
                row[f] = a;
                row[g] = b;
                return 1;
            }
    return 0;
}

/* Whether there is a pair left to begin the row with. */
static int begin_row(const struct search *s, int *row)
{
    for (int f = 0; f < PAIRS_FACTORS_MAX; f++)
        row[f] = UNCHOSEN;
    for (int f = 0; f < s->pairs->n_factors; f++)
        for (int g = f + 1; g < s->pairs->n_factors; g++)
            if (begin_with(s, row, f, g))
                return 1;
    return 0;
}

static void finish_row(struct search *s, int *row)
{
    int n = s->pairs->n_factors;

    for (int f = 0; f < n; f++)
        if (row[f] == UNCHOSEN)
            row[f] = best_level(s, row, f);
    for (int f = 0; f < n; f++) {
        s->n_used[f][row[f]]++;
        for (int g = 0; g < n; g++)
            s->met[f][row[f]][g][row[g]] = 1;
    }
}

static void build_product(struct pairs *p)
{
    int n = 1;

    for (int f = 0; f < p->n_factors; f++)
        n *= p->levels[f];
    CHECK(n <= PAIRS_ROWS_MAX);
    for (int i = 0; i < n; i++)
        for (int f = 0, rest = i; f < p->n_factors; rest /= p->levels[f++])
            p->level[i][f] = rest % p->levels[f];
    p->n_rows = n;
}

static void build_pairs(struct pairs *p)
{
    struct search s = { .pairs = p };

    while (begin_row(&s, p->level[p->n_rows])) {
        finish_row(&s, p->level[p->n_rows]);
        p->n_rows++;
        CHECK(p->n_rows < PAIRS_ROWS_MAX);
    }
}

void pairs_build(struct pairs *pairs, const int *levels, int n_factors)
{
    CHECK(n_factors >= 2);
    CHECK(n_factors <= PAIRS_FACTORS_MAX);
    memset(pairs, 0, sizeof *pairs);
    pairs->n_factors = n_factors;
    for (int f = 0; f < n_factors; f++) {
        CHECK(levels[f] >= 1);
        CHECK(levels[f] <= PAIRS_LEVELS_MAX);
        pairs->levels[f] = levels[f];
    }
    if (pairs_whole())
        build_product(pairs);
    else
        build_pairs(pairs);
}
