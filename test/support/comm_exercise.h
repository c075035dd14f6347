/*
 * comm_exercise.h - what every implementation of comm must do, as one rank's part
 *
 * All ranks of the world call these with equal arguments. A wrong byte is a CHECK, as ranks may be
 * threads or processes, where cmocka's asserts don't reach.
 */
#ifndef SUPPORT_COMM_EXERCISE_H
#define SUPPORT_COMM_EXERCISE_H

#include "comm/comm.h"

/* Each call once over the world, at sizes around limit_bytes (pieces, eager limits). */
void comm_exercise_calls(struct comm *comm, size_t limit_bytes);

/* n_steps random calls of random sizes over random groups in random rank orders. */
void comm_exercise_random(struct comm *comm, uint64_t seed, int n_steps);

/*
 * Several calls under way: every rank sends to its neighbours and receives from them all at once,
 * and begins gathers over two groups, the odd ranks in the other order.
 */
void comm_exercise_overlap(struct comm *comm, size_t n_bytes);

/* reduce_scatter in all dtypes against the tree written down recursively. */
void comm_exercise_reduce(struct comm *comm);

/* The group of all ranks. */
struct comm_group *comm_exercise_world(struct comm *comm, int channel);

/* A call is to have failed so: ERR_PEER, with these words. */
void comm_exercise_must_fail(int status, const struct err *err, const char *words);

/* ---- whole parts of a rank that is a thread ---- */

/* All calls, several under way, and sums; context is not used. */
void comm_exercise_all(struct comm *comm, void *context);

/* Of two: a send does not return before its receive was called. received: an _Atomic int, 0. */
void comm_exercise_send_waits(struct comm *comm, void *received);

/* Of three: rank 2 leaves; a collective with it and a send to it fail, rank 0 and 1 alone go on. */
void comm_exercise_one_leaves(struct comm *comm, void *context);

/* Of three that share a group, one that is done leaves; the others may still talk in it. */
void comm_exercise_early_leaver(struct comm *comm, void *context);

#endif
