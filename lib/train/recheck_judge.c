/*
 * recheck_judge.c - majorities of hashes
 */
#include "train/recheck_judge.h"

static uint64_t hash_of(const struct recheck_vote *vote, int op, int is_computed)
{
    return is_computed ? vote->pairs[op].out : vote->pairs[op].in;
}

static int n_equal(const struct recheck_vote *votes, int n, int to, int op, int is_computed)
{
    int equal = 0;

    for (int i = 0; i < n; i++)
        equal += hash_of(&votes[i], op, is_computed) == hash_of(&votes[to], op, is_computed);
    return equal;
}

/* The vote that the others are held against: one of more than half, or the first. */
static void judge(struct recheck_difference *d, const struct recheck_vote *votes, int n)
{
    int right = 0;

    for (int i = 0; i < n && !d->is_decided; i++)
        if (2 * n_equal(votes, n, i, d->op, d->is_computed) > n) {
            right = i;
            d->is_decided = 1;
        }
    for (int i = n - 1; i >= 0; i--)
        if (hash_of(&votes[i], d->op, d->is_computed) !=
            hash_of(&votes[right], d->op, d->is_computed)) {
            d->wrong = votes[i].rank;
            d->n_wrong++;
        }
}

int recheck_difference(struct recheck_difference *d, const struct recheck_vote *votes, int n,
                       int n_ops)
{
    for (int op = 0; op < n_ops; op++)
        for (int is_computed = 0; is_computed < 2; is_computed++)
            if (n_equal(votes, n, 0, op, is_computed) < n) {
                *d = (struct recheck_difference){ .op = op, .is_computed = is_computed };
                judge(d, votes, n);
                return 1;
            }
    return 0;
}

int recheck_is_nearer(const struct recheck_difference *a, const struct recheck_difference *b)
{
    int of_a = 2 * a->is_computed + a->is_decided, of_b = 2 * b->is_computed + b->is_decided;

    return of_a != of_b ? of_a > of_b : a->op < b->op;
}
