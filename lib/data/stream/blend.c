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
#include <stdbool.h>
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

/* The least deficit with which a dataset may give a sample, in parts of ONE. */
static int64_t least_owed(const struct blend *blend)
{
    return blend->n > 1 ? ONE / (2 * blend->n - 2) : 0;
}

static int choose(const struct blend *blend)
{
    int64_t least = least_owed(blend);
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

/* Whether the deadline of the last sample that dataset a gave is later than that of b's; of equal
 * ones the lower dataset's comes first. */
static bool is_later(const struct blend *blend, int a, int b)
{
    /* (given - least) / weight, multiplied out: the deadline but for what all have in common. */
    __int128 least = least_owed(blend);
    __int128 of_a = ((__int128)blend->given[a] * ONE - least) * blend->weight[b];
    __int128 of_b = ((__int128)blend->given[b] * ONE - least) * blend->weight[a];

    return of_a != of_b ? of_a > of_b : a > b;
}

/* The state at sample k in which of all samples released before k those with the earliest deadlines
 * are given. */
static void start_at(struct blend *blend, int64_t k)
{
    int64_t least = least_owed(blend), n_given = 0;

    for (int i = 0; i < blend->n; i++) {
        __int128 owed = (__int128)blend->weight[i] * k - least;

        blend->given[i] = owed < 0 ? 0 : (int64_t)(owed / ONE) + 1;
        n_given += blend->given[i];
    }
    for (; n_given > k; n_given--) {
        int latest = -1;

        for (int i = 0; i < blend->n; i++)
            if (blend->given[i] > 0 && (latest < 0 || is_later(blend, i, latest)))
                latest = i;
        blend->given[latest]--;
    }
    for (int i = 0; i < blend->n; i++)
        blend->debt[i] =
            (int64_t)((__int128)blend->weight[i] * k - (__int128)blend->given[i] * ONE);
    blend->k = k;
}

void blend_seek(struct blend *blend, int64_t k)
{
    int64_t number, least_weight = ONE;

    CHECK(k >= 0);
    for (int i = 0; i < blend->n; i++)
        if (blend->weight[i] < least_weight)
            least_weight = blend->weight[i];
    int64_t back = ONE / least_weight + 2; /* samples after which the start is forgotten */
    if (k < blend->k || k - blend->k > back)
        start_at(blend, k > back ? k - back : 0);
    while (blend->k < k)
        blend_next(blend, &number);
}
