/*
 * recheck_judge.h - of several computations of the same ops, which one is wrong, and where first
 *
 * Pure. A voter is a rank that has run the ops, with two hashes an op: of what it received and of
 * what it wrote (struct op_hash of run.h).
 */
#ifndef TRAIN_RECHECK_JUDGE_H
#define TRAIN_RECHECK_JUDGE_H

#include <stdint.h>

struct recheck_pair {
    uint64_t in, out;
};

struct recheck_vote {
    int rank; /* one rank may have several votes */
    const struct recheck_pair *pairs;
};

struct recheck_difference {
    int op;          /* the first one in which votes differ */
    int is_computed; /* all received the same for it, and wrote different bits */
    int is_decided;  /* more than half of the votes are equal */
    int wrong;   /* the rank of the first vote that differs from those; undecided: from vote 0 */
    int n_wrong; /* votes that do so */
};

/* Whether there is a difference among the n votes on n_ops ops. */
int recheck_difference(struct recheck_difference *difference, const struct recheck_vote *votes,
                       int n, int n_ops);

/*
 * Whether `a` says more about the origin of an error than `b`: what was computed otherwise comes
 * before what was received otherwise, which is a consequence or an error of the transfer, and what
 * is decided before what is not; else the earlier op (of ranks of one stage).
 */
int recheck_is_nearer(const struct recheck_difference *a, const struct recheck_difference *b);

#endif
