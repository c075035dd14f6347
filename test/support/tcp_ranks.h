/*
 * tcp_ranks.h - ranks over sockets, as threads of one process, for tests
 *
 * Ranks share a table in the place of PMIx, where a test can also see their addresses and keys.
 */
#ifndef SUPPORT_TCP_RANKS_H
#define SUPPORT_TCP_RANKS_H

#include <netinet/in.h>
#include <pthread.h>

#include "comm/comm_impl.h"

enum { TCP_RANKS_MAX = 16, TCP_VALUE_MAX = 512 };

struct tcp_table {
    unsigned char cards[TCP_RANKS_MAX][TCP_VALUE_MAX], key[TCP_VALUE_MAX];
    size_t card_bytes[TCP_RANKS_MAX], key_bytes;
    pthread_barrier_t fence;
};
extern struct tcp_table tcp_table;

/* 0; else it is on loopback and stands first in rank 0's card. */
extern in_port_t tcp_stranger_port;

/* Empty the table, for n_ranks that join it. */
void tcp_table_begin(int n_ranks);
void tcp_table_end(void);

/* The calling thread is this rank, whose wireup lives as long as the thread, until it joins
 * again. */
const struct comm_wireup *tcp_table_join(int rank, int n_ranks);

struct tcp_ranks {
    struct tcp_settings settings;
    int has_other_key; /* rank 1 is of another job */
    int is_contained;  /* no rank takes another one for one of its machine */
};

typedef void (*tcp_rank_fn)(struct comm *comm, void *context);

/* Each rank calls fn with its comm; returns when all have. */
void tcp_ranks_run(int n_ranks, const struct tcp_ranks *like, tcp_rank_fn fn, void *context);

/* The same in frames of 1000 bytes, over Unix sockets, and over networks. */
void tcp_ranks_run_local(int n_ranks, tcp_rank_fn fn, void *context);
void tcp_ranks_run_on_network(int n_ranks, tcp_rank_fn fn, void *context);

#endif
