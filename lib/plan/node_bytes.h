/*
 * node_bytes.h - what the ranks of a node send to other nodes in a step, by sums and gathers
 *
 * Those that go by node (run/collective.h) send each byte to a node once. Exact for their moves;
 * transfers, and rows of experts and sequences, are not counted. Pure.
 */
#ifndef PLAN_NODE_BYTES_H
#define PLAN_NODE_BYTES_H

#include "program/program.h"

struct node_bytes {
    int64_t at_once; /* a step's bytes, if all ranks of a group sent to each other */
    int64_t sent;    /* as they go */
    int n_by_node;   /* ops of a step that go by node, each as often as it is run */
};

/* node_ranks: neighbouring world ranks of a node, by_node: whether parallel.node_ranks lets any go
 * so, enqueues: on GPUs with a comm of their own. */
struct node_bytes node_bytes_of(const struct program *program, int node_ranks, bool by_node,
                                bool enqueues);

#endif
