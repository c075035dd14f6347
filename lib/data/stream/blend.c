/*
 * blend.c - Tijdeman's rule in integers
 *
 * Before sample k, dataset i has the deficit share_i * (k + 1) - given_i. Among the datasets with a
 * deficit of at least 1 / (2n - 2), the next is the one whose deficit would first exceed 1 - 1 /
 * (2n - 2) if it got no sample. Simply taking the largest deficit would let a share be off by more
 * than a sample when n > 3.
 */
#include "data/stream/blend.h"

#include <math.h>
#include <string.h>

#define ONE ((int64_t)1 << 31)

/* Parts of ONE by largest remainder, at least 1 each, so that the sum is exact. */
static void round_weights(struct blend *blend, const double *weights, double sum)
{
    double rest[BLEND_DATASETS_MAX];
    int64_t left = ONE;

    for (int i = 0; i < blend->n; i++) {
        double exact = weights[i] / sum * (double)ONE;
        int64_t parts = (int64_t)floor(exact);

        blend->weight[i] = parts < 1 ? 1 : parts;
        rest[i] = exact - (double)parts;
        left -= blend->weight[i];
    }
    while (left != 0) {
        int best = 0;

        for (int i = 1; i < blend->n; i++)
            if (left > 0 ? rest[i] > rest[best] : blend->weight[i] > blend->weight[best])
                best = i;
        blend->weight[best] += left > 0 ? 1 : -1;
        rest[best] -= left > 0 ? 1 : 0;
        left -= left > 0 ? 1 : -1;
    }
}

int blend_init(struct blend *blend, const double *weights, int n, struct err *err)
{
    double sum = 0;

    if (n < 1 || n > BLEND_DATASETS_MAX)
        return err_set(err, ERR_CONFIG, "%d datasets, not in 1..%d", n, BLEND_DATASETS_MAX);
    for (int i = 0; i < n; i++) {
        if (!(weights[i] > 0) || !isfinite(weights[i]))
            return err_set(err, ERR_CONFIG, "dataset %d has weight %g, must be above 0", i,
                           weights[i]);
        sum += weights[i];
    }
    if (!isfinite(sum))
        return err_set(err, ERR_CONFIG, "the weights of the datasets sum to %g", sum);
    memset(blend, 0, sizeof *blend);
    blend->n = n;
    round_weights(blend, weights, sum);
    return 0;
}

static int choose(const struct blend *blend)
{
    int64_t least = blend->n > 1 ? ONE / (2 * blend->n - 2) : 0;
    int best = -1;
    __int128 best_room = 0;

    for (int i = 0; i < blend->n; i++) {
        int64_t owed = blend->debt[i] + blend->weight[i];

        if (owed < least)
            continue;
        /* room_i / weight_i < room_best / weight_best, multiplied out. */
        __int128 room = ONE - least - owed;
        if (best < 0 || room * blend->weight[best] < best_room * blend->weight[i]) {
            best = i;
            best_room = room;
        }
    }
    CHECK(best >= 0);
    return best;
}

int blend_next(struct blend *blend, int64_t *number)
{
    int best = blend->n == 1 ? 0 : choose(blend);

    for (int i = 0; i < blend->n; i++)
        blend->debt[i] += blend->weight[i];
    blend->debt[best] -= ONE;
    blend->k++;
    *number = blend->given[best]++;
    return best;
}

void blend_seek(struct blend *blend, int64_t k)
{
    int64_t number;

    CHECK(k >= 0);
    if (k < blend->k) {
        blend->k = 0;
        memset(blend->debt, 0, sizeof blend->debt);
        memset(blend->given, 0, sizeof blend->given);
    }
    if (blend->n == 1) {
        blend->given[0] += k - blend->k;
        blend->k = k;
    }
    /* After ONE samples everyone has exactly his weight: whole rounds are skipped. */
    int64_t rounds = (k - blend->k) / ONE;
    for (int i = 0; i < blend->n; i++)
        blend->given[i] += rounds * blend->weight[i];
    blend->k += rounds * ONE;
    while (blend->k < k)
        blend_next(blend, &number);
}
