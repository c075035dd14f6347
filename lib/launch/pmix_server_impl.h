/*
 * pmix_server_impl.h - our PMIx server: one job of ranks on this node
 *
 * The library's thread calls us when ranks come, go and abort; that is queued here, and a
 * descriptor becomes readable. There can be one server in a process.
 */
#ifndef LAUNCH_PMIX_SERVER_IMPL_H
#define LAUNCH_PMIX_SERVER_IMPL_H

#include "base/err.h"

struct launch_server;

/* A rank's PMIx_Abort. */
struct launch_abort_call {
    int rank;
    int status;
    char text[1024];
};

/*
 * Start serving n_ranks; the library's files go to folder. The caller has blocked the signals that
 * it wants no library thread to get.
 */
int launch_server_start(struct launch_server **server, const char *folder, int n_ranks,
                        struct err *err);

/* Add the variables by which rank finds us to *environment, a heap array of heap strings. */
int launch_server_environment(struct launch_server *server, int rank, char ***environment,
                              struct err *err);

/* Readable when an abort call waits. */
int launch_server_fd(const struct launch_server *server);

/* Take the next abort call: 1, or 0 if there is none. */
int launch_server_next_abort(struct launch_server *server, struct launch_abort_call *call);

/* Whether the rank came, and whether it left in good order (PMIx_Finalize). */
int launch_server_connected(const struct launch_server *server, int rank);
int launch_server_finalized(const struct launch_server *server, int rank);

/* A rank has died: fences fail from now on. */
void launch_server_rank_died(struct launch_server *server);

#endif
