/*
 * replica.h - the ranks that hold a model together, and its copies
 *
 * tp * pp ranks, one behind the other, are a replica: it has the whole model once, and its programs
 * are compiled for it alone (compile.h). A job's other ranks are further replicas, which compute
 * other texts; inside a program nothing passes from one to another.
 *
 * What a model says is known where its last stage is. One rank there, the leader, decides (samples
 * tokens, sums scores) and broadcasts the results, never the logits, to its replica: ranks on
 * unlike machines may not get the same bits of the same function. Everything else (what text is fed
 * next, where it stops) all ranks of a replica work out alike.
 *
 * NULL in the place of a replica is one rank alone: the calls do nothing, or copy. They are
 * collective, and return 0, or -1 and ERR_PEER.
 */
#ifndef SERVE_REPLICA_H
#define SERVE_REPLICA_H

#include <stdbool.h>

#include "base/str.h"
#include "comm/comm.h"
#include "comm/worker.h"
#include "layout/mesh.h"
#include "program/program.h"
#include "progress/progress.h"

struct replica {
    struct mesh mesh;        /* tp and pp */
    int number, n;           /* which of how many replicas */
    int first_rank;          /* of the world, the replica's first */
    int rank, size;          /* in the replica */
    struct mesh_place place; /* in the replica */
    int pp_rank;
    struct comm *comm;
    struct worker *worker;
    struct progress_slot *progress;
    struct comm_group *own, *world; /* the comm's */
};

/*
 * Fill in the calling rank's. comm, its worker and progress (may be NULL) outlive it. Collective
 * over comm. ERR_CONFIG where comm's ranks are no multiple of tp * pp.
 */
int replica_open(struct replica *replica, struct comm *comm, struct worker *worker,
                 struct progress_slot *progress, int tp, int pp, struct err *err);

/* Whether this rank decides for its replica; whether it is the first of all, which speaks. */
int replica_tells(const struct replica *replica);
bool replica_is_first(const struct replica *replica);

/* Which replica of how many; 0 of 1 for NULL. */
int replica_number(const struct replica *replica);
int replica_count(const struct replica *replica);

/* The teller's n_bytes, to all of its replica. */
int replica_tell(const struct replica *replica, void *buffer, size_t n_bytes, struct err *err);

/* The first rank's n_bytes, to all of all replicas. */
int replica_tell_all(const struct replica *replica, void *buffer, size_t n_bytes, struct err *err);

/* What each replica's first rank has in `own`, replica by replica, is added to `all`,
 * everywhere. */
int replica_collect(const struct replica *replica, const struct str *own, struct str *all,
                    struct err *err);

/* Whether all ranks of all replicas have the same value; else ERR_CONFIG on all of them, naming
 * what. */
int replica_agree(const struct replica *replica, const char *what, uint64_t value, struct err *err);

/* Publish on the progress page that this rank is at work outside of programs. */
void replica_beat(const struct replica *replica, const char *what);

/*
 * Compile this rank's program: compile is called with the rank's stage; the first rank of all calls
 * it for every stage more, and sees to it that the stages' programs fit each other (verify_ranks).
 * Not collective. Returns what compile does; *program is the caller's to release in any case.
 */
typedef int (*replica_compile_fn)(struct program *program, void *options, const struct mesh *mesh,
                                  int pp_rank, struct err *err);
int replica_compile(const struct replica *replica, struct program *program,
                    replica_compile_fn compile, void *options, struct err *err);

#endif
