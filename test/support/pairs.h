/*
 * pairs.h - few rows of settings in which any two settings meet
 *
 * A product of settings grows with each of them, and nearly all faults are of one setting or of two
 * together (Kuhn, Wallace, Gallo 2004: 70 to 97 % of those of four systems). Hence a covering array
 * of strength two, found greedily and the same each time: about as many rows as the two longest
 * factors have settings together. `make soak` sets LMTRAIN_TEST_WHOLE=1 and gets the whole product.
 */
#ifndef SUPPORT_PAIRS_H
#define SUPPORT_PAIRS_H

#define PAIRS_FACTORS_MAX 6
#define PAIRS_LEVELS_MAX 16
#define PAIRS_ROWS_MAX 1024

struct pairs {
    int n_rows, n_factors;
    int levels[PAIRS_FACTORS_MAX];
    int level[PAIRS_ROWS_MAX][PAIRS_FACTORS_MAX]; /* in 0 .. levels[factor] - 1 */
};

/* Whether whole products are wanted. */
int pairs_whole(void);

/* Rows for factors of levels[i] settings each: of pairs, or the whole product where it is
 * wanted. */
void pairs_build(struct pairs *pairs, const int *levels, int n_factors);

#endif
