/*
 * tcp_ranks.c - the table and the threads
 */
#include "support/tcp_ranks.h"

#include <string.h>

#include "comm/tcp_impl.h"

struct tcp_table tcp_table;
in_port_t tcp_stranger_port;

static __thread int this_rank, has_other_key, is_contained;
static __thread struct comm_wireup wireup;

/* ---- the table ---- */

static void add_stranger(unsigned char *card, size_t *n_bytes)
{
    static const unsigned char loopback[16] = { 127, 0, 0, 1 };

    CHECK(*n_bytes + 19 <= TCP_VALUE_MAX);
    memmove(card + 33 + 19, card + 33, *n_bytes - 33);
    card[32]++;
    card[33] = 4;
    memcpy(card + 34, &tcp_stranger_port, 2);
    memcpy(card + 36, loopback, 16);
    *n_bytes += 19;
}

static int put(const char *name, const void *value, size_t n_bytes, struct err *err)
{
    int is_card = !strcmp(name, TCP_CARD_NAME);

    (void)err;
    CHECK(n_bytes <= TCP_VALUE_MAX);
    CHECK(is_card || !this_rank);
    memcpy(is_card ? tcp_table.cards[this_rank] : tcp_table.key, value, n_bytes);
    *(is_card ? &tcp_table.card_bytes[this_rank] : &tcp_table.key_bytes) = n_bytes;
    if (is_card && !this_rank && tcp_stranger_port)
        add_stranger(tcp_table.cards[0], &tcp_table.card_bytes[0]);
    if (is_card && is_contained)
        tcp_table.cards[this_rank][0] ^= 1; /* of the machine */
    return 0;
}

static int fence(double timeout_seconds, struct err *err)
{
    (void)timeout_seconds;
    (void)err;
    pthread_barrier_wait(&tcp_table.fence);
    return 0;
}

static int get(const char *name, int rank, void *value, size_t *n_bytes, double timeout_seconds,
               struct err *err)
{
    int is_card = !strcmp(name, TCP_CARD_NAME);
    size_t n = is_card ? tcp_table.card_bytes[rank] : tcp_table.key_bytes;

    (void)timeout_seconds;
    (void)err;
    CHECK(n <= *n_bytes);
    memcpy(value, is_card ? tcp_table.cards[rank] : tcp_table.key, n);
    *n_bytes = n;
    if (!is_card && has_other_key)
        *(unsigned char *)value ^= 1;
    return 0;
}

void tcp_table_begin(int n_ranks)
{
    memset(&tcp_table, 0, sizeof tcp_table);
    pthread_barrier_init(&tcp_table.fence, NULL, (unsigned)n_ranks);
}

void tcp_table_end(void)
{
    pthread_barrier_destroy(&tcp_table.fence);
}

const struct comm_wireup *tcp_table_join(int rank, int n_ranks)
{
    this_rank = rank;
    has_other_key = is_contained = 0;
    wireup = (struct comm_wireup){ rank, n_ranks, n_ranks, put, fence, get };
    return &wireup;
}

/* ---- ranks ---- */

struct rank_thread {
    pthread_t thread;
    int rank, n_ranks;
    const struct tcp_ranks *like;
    tcp_rank_fn fn;
    void *context;
};

static void *rank_main(void *argument)
{
    struct rank_thread *mine = argument;
    const struct comm_wireup *own = tcp_table_join(mine->rank, mine->n_ranks);
    struct comm *comm;
    struct err err;

    has_other_key = mine->rank == 1 && mine->like->has_other_key;
    is_contained = mine->like->is_contained;
    CHECK(!comm_tcp_create_as(&comm, own, &mine->like->settings, &err));
    CHECK(comm_world_rank(comm) == mine->rank);
    mine->fn(comm, mine->context);
    comm_destroy(comm);
    return NULL;
}

void tcp_ranks_run(int n_ranks, const struct tcp_ranks *like, tcp_rank_fn fn, void *context)
{
    struct rank_thread threads[TCP_RANKS_MAX];

    CHECK(n_ranks <= TCP_RANKS_MAX);
    tcp_table_begin(n_ranks);
    for (int i = 0; i < n_ranks; i++) {
        threads[i] = (struct rank_thread){ 0, i, n_ranks, like, fn, context };
        CHECK(!pthread_create(&threads[i].thread, NULL, rank_main, &threads[i]));
    }
    for (int i = 0; i < n_ranks; i++)
        pthread_join(threads[i].thread, NULL);
    tcp_table_end();
}

void tcp_ranks_run_local(int n_ranks, tcp_rank_fn fn, void *context)
{
    tcp_ranks_run(n_ranks, &(struct tcp_ranks){ .settings = { 1000, 0 } }, fn, context);
}

void tcp_ranks_run_on_network(int n_ranks, tcp_rank_fn fn, void *context)
{
    tcp_ranks_run(n_ranks, &(struct tcp_ranks){ .settings = { 1000, 1 } }, fn, context);
}
