/*
 * node_impl.h - the ranks of one node, as their daemon has them
 *
 * Local indices count the node's ranks from 0; world ranks are index + first_rank.
 */
#ifndef LAUNCH_NODE_NODE_IMPL_H
#define LAUNCH_NODE_NODE_IMPL_H

#include <poll.h>
#include <stdbool.h>

#include "launch/job_spec_message_impl.h"
#include "launch/node/pmix_server_impl.h"
#include "launch/node/rank_process_impl.h"
#include "progress/progress_page.h"

struct node_rank {
    struct rank_process process;
    int fds[2];         /* where its stdout and stderr are read; -1: over, or the screen */
    uint64_t told_beat; /* what the head knows of it */
    bool told_stopped;
    uint64_t gpu_beat;      /* at the last look at its GPU */
    uint64_t told_gpu_beat; /* at which its GPU was sent because it made no progress */
};

struct local_node {
    const struct job_spec *spec; /* borrowed */
    int n_ranks, first_rank, n_running;
    char folder[512]; /* in /dev/shm; "": none yet */
    struct launch_server *server;
    union progress_place *page;
    struct node_rank *ranks;
    char **environment; /* of all ranks, but for what PMIx adds */
};

/*
 * Mark the attempt as over in the ranks' slots, before the signal that ends them
 * (progress_is_over).
 */
void node_mark_over(const struct local_node *node);

/*
 * Make the folder, the progress page and the PMIx server. node is to be released also after a
 * failure.
 */
int node_open(struct local_node *node, const struct job_spec *spec, struct err *err);

/* Start one rank. */
int node_start_rank(struct local_node *node, int index, struct err *err);

/* Kill what runs and wait for it; remove the folder. The PMIx server goes with the process. */
void node_release(struct local_node *node);

/* To every running rank, or to the process groups of these ranks. */
void node_signal(const struct local_node *node, int signal, enum signal_target target);

/*
 * Read some of what a rank has printed into buffer, without waiting. Returns the number of bytes,
 * and whether they are of its stderr; 0 if there is nothing now.
 */
size_t node_read(struct local_node *node, int index, char *buffer, size_t size, bool *is_stderr);

/* The pipes to poll: fills at most 2 * n_ranks and returns how many. */
int node_poll(const struct local_node *node, struct pollfd *polls);

#endif
