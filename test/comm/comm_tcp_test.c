/*
 * comm_tcp_test.c - ranks over sockets, as threads of one process: every call, and what goes wrong
 *
 * Ranks share a table in the place of PMIx, where a test can also see their addresses and keys.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "comm/tcp_impl.h"
#include "support/comm_exercise.h"

enum { RANKS_MAX = 16, VALUE_MAX = 512 };

/* ---- the table ---- */

static struct {
    unsigned char cards[RANKS_MAX][VALUE_MAX], key[VALUE_MAX];
    size_t card_bytes[RANKS_MAX], key_bytes;
    pthread_barrier_t fence;
} table;

static __thread int this_rank;
static __thread int has_other_key; /* this rank is of another job */
static __thread int is_contained;  /* it takes no other rank for one of its machine */
static in_port_t stranger_port;    /* 0; else it is on loopback and stands first in rank 0's card */

static void add_stranger(unsigned char *card, size_t *n_bytes)
{
    static const unsigned char loopback[16] = { 127, 0, 0, 1 };

    CHECK(*n_bytes + 19 <= VALUE_MAX);
    memmove(card + 33 + 19, card + 33, *n_bytes - 33);
    card[32]++;
    card[33] = 4;
    memcpy(card + 34, &stranger_port, 2);
    memcpy(card + 36, loopback, 16);
    *n_bytes += 19;
}

static int put(const char *name, const void *value, size_t n_bytes, struct err *err)
{
    int is_card = !strcmp(name, TCP_CARD_NAME);

    (void)err;
    CHECK(n_bytes <= VALUE_MAX);
    CHECK(is_card || !this_rank);
    memcpy(is_card ? table.cards[this_rank] : table.key, value, n_bytes);
    *(is_card ? &table.card_bytes[this_rank] : &table.key_bytes) = n_bytes;
    if (is_card && !this_rank && stranger_port)
        add_stranger(table.cards[0], &table.card_bytes[0]);
    if (is_card && is_contained)
        table.cards[this_rank][0] ^= 1; /* of the machine */
    return 0;
}

static int fence(double timeout_seconds, struct err *err)
{
    (void)timeout_seconds;
    (void)err;
    pthread_barrier_wait(&table.fence);
    return 0;
}

static int get(const char *name, int rank, void *value, size_t *n_bytes, double timeout_seconds,
               struct err *err)
{
    int is_card = !strcmp(name, TCP_CARD_NAME);
    size_t n = is_card ? table.card_bytes[rank] : table.key_bytes;

    (void)timeout_seconds;
    (void)err;
    CHECK(n <= *n_bytes);
    memcpy(value, is_card ? table.cards[rank] : table.key, n);
    *n_bytes = n;
    if (!is_card && has_other_key)
        *(unsigned char *)value ^= 1;
    return 0;
}

/* ---- ranks ---- */

typedef void (*rank_fn)(struct comm *comm, void *context);

struct rank_thread {
    pthread_t thread;
    int rank, n_ranks;
    struct tcp_settings settings;
    int has_other_key, is_contained;
    rank_fn fn;
    void *context;
};

static void *rank_main(void *argument)
{
    struct rank_thread *mine = argument;
    struct comm_wireup wireup = { mine->rank, mine->n_ranks, mine->n_ranks, put, fence, get };
    struct comm *comm;
    struct err err;

    this_rank = mine->rank;
    has_other_key = mine->has_other_key;
    is_contained = mine->is_contained;
    CHECK(!comm_tcp_create_as(&comm, &wireup, &mine->settings, &err));
    CHECK(comm_world_rank(comm) == mine->rank);
    mine->fn(comm, mine->context);
    comm_destroy(comm);
    return NULL;
}

/* like: settings, and whether rank 1 has another key. */
static void run_ranks_as(int n_ranks, const struct rank_thread *like, rank_fn fn, void *context)
{
    struct rank_thread threads[RANKS_MAX];

    memset(&table, 0, sizeof table);
    pthread_barrier_init(&table.fence, NULL, (unsigned)n_ranks);
    for (int i = 0; i < n_ranks; i++) {
        threads[i] = *like;
        threads[i].rank = i;
        threads[i].n_ranks = n_ranks;
        threads[i].has_other_key = i == 1 && like->has_other_key;
        threads[i].fn = fn;
        threads[i].context = context;
        assert_int_equal(pthread_create(&threads[i].thread, NULL, rank_main, &threads[i]), 0);
    }
    for (int i = 0; i < n_ranks; i++)
        pthread_join(threads[i].thread, NULL);
    pthread_barrier_destroy(&table.fence);
}

static void run_ranks(int n_ranks, rank_fn fn, void *context)
{
    run_ranks_as(n_ranks, &(struct rank_thread){ .settings = { 1000, 0 } }, fn, context);
}

static void run_ranks_on_network(int n_ranks, rank_fn fn, void *context)
{
    run_ranks_as(n_ranks, &(struct rank_thread){ .settings = { 1000, 1 } }, fn, context);
}

/* ---- calls ---- */

static void test_all_calls(void **state)
{
    static const int sizes[] = { 1, 2, 3, 4, 7, 8 };

    (void)state;
    for (int i = 0; i < 6; i++)
        run_ranks(sizes[i], comm_exercise_all, NULL);
    run_ranks_on_network(5, comm_exercise_all, NULL);
}

static void random_calls(struct comm *comm, void *seed)
{
    comm_exercise_random(comm, *(uint64_t *)seed, 150);
}

static void test_random_calls(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++)
        run_ranks(1 + (int)(seed % 8), random_calls, &seed);
}

/* More than any socket holds, in frames of many sizes, with short calls in between. */
static void long_calls(struct comm *comm, void *context)
{
    (void)context;
    comm_exercise_overlap(comm, 3000000);
}

static void test_long_calls(void **state)
{
    (void)state;
    run_ranks_as(3, &(struct rank_thread){ .settings = { 200000, 0 } }, long_calls, NULL);
    run_ranks_as(3, &(struct rank_thread){ .settings = { 200000, 1 } }, long_calls, NULL);
}

static void test_send_waits(void **state)
{
    _Atomic int received = 0;

    (void)state;
    run_ranks(2, comm_exercise_send_waits, &received);
}

/* Each rank in a user namespace of its own, where PMIx says that all are of one node. */
static void test_containers(void **state)
{
    (void)state;
    run_ranks_as(3, &(struct rank_thread){ .settings = { 1000, 0 }, .is_contained = 1 },
                 comm_exercise_all, NULL);
}

/* A machine that is gone is found within a minute. */
static void check_keepalive(int fd)
{
    int is_on = 0, idle = 0, interval = 0, count = 0;
    socklen_t size = sizeof is_on;

    CHECK(!getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &is_on, &size));
    CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size));
    CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, &size));
    CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, &size));
    CHECK(is_on);
    CHECK(idle + interval * count <= 60);
}

/* Ranks of one machine use Unix sockets, though others are there. */
static void see_families(struct comm *comm, void *context)
{
    struct comm_group *world = comm_exercise_world(comm, 0);
    const struct tcp_peer *peer = ((struct tcp_comm *)comm)->peers[!comm_world_rank(comm)];
    struct sockaddr_storage name = { 0 };
    socklen_t length = sizeof name;
    struct err err;

    CHECK(!getsockname(peer->watch.fd, (struct sockaddr *)&name, &length));
    CHECK(name.ss_family == *(sa_family_t *)context);
    if (name.ss_family == AF_INET)
        check_keepalive(peer->watch.fd);
    CHECK(!comm_barrier(world, &err));
}

static void test_families(void **state)
{
    sa_family_t unix_family = AF_UNIX, tcp_family = AF_INET;

    (void)state;
    run_ranks(2, see_families, &unix_family);
    run_ranks_as(2, &(struct rank_thread){ .settings = { 1000, 0 }, .is_contained = 1 },
                 see_families, &tcp_family);
}

/* A world in which no rank needs all others makes few connections. */
static void count_connections(struct comm *comm, void *context)
{
    struct comm_group *world = comm_exercise_world(comm, 0);
    struct tcp_comm *tcp = (struct tcp_comm *)comm;
    int64_t value = 1;
    int n = 0;
    struct err err;

    (void)context;
    CHECK(!comm_agree(world, COMM_MAX, &value, &err));
    CHECK(!comm_broadcast(world, &value, sizeof value, 0, &err));
    CHECK(!comm_barrier(world, &err));
    for (int i = 0; i < comm_world_size(comm); i++)
        n += tcp->peers[i] && tcp->peers[i]->state >= TCP_CONNECTED; /* or it was, and is gone */
    CHECK(n >= 4);
    CHECK(n <= 2 * 4); /* each way, 4 = log2(16) */
}

static void test_few_connections(void **state)
{
    (void)state;
    run_ranks(16, count_connections, NULL);
}

/* ---- ranks that go ---- */

/* In the middle of a long transfer the receiver goes, or the sender. */
static void break_off(struct comm *comm, void *context)
{
    struct comm_group *world = comm_exercise_world(comm, 0);
    enum { N = 40000000 };
    unsigned char *buffer = calloc(1, N);
    int rank = comm_world_rank(comm), leaver = *(int *)context;
    struct comm_call call = { rank ? COMM_RECEIVE : COMM_SEND, buffer, buffer, N, !rank };
    struct comm_request request;
    struct err err;
    int status;

    CHECK(buffer);
    CHECK(!comm_start(&request, world, &call, &err));
    if (rank == leaver) {
        while ((status = comm_test(&request, &err)) == COMM_WAITING)
            ;
        CHECK(status == COMM_MOVING);
    } else {
        while ((status = comm_test(&request, &err)) > COMM_DONE)
            ;
        comm_exercise_must_fail(status, &err, leaver ? "rank 1 has left" : "rank 0 has left");
    }
    free(buffer);
}

/* Rank 0 waits for 1, which waits for 2, which goes: all say that it was rank 2. */
static void chain(struct comm *comm, void *context)
{
    struct comm_group *world = comm_exercise_world(comm, 0);
    int rank = comm_world_rank(comm), word = 0;
    struct err err;

    (void)context;
    if (rank == 2)
        return;
    int status = comm_receive(world, &word, sizeof word, rank + 1, &err);
    comm_exercise_must_fail(status, &err, "rank 2 has left or died");
    if (rank == 0)
        CHECK(strstr(err.text, "rank 1 lost it"));
}

static void test_leaving(void **state)
{
    (void)state;
    run_ranks(3, comm_exercise_one_leaves, NULL);
    run_ranks(3, comm_exercise_early_leaver, NULL);
    run_ranks_on_network(3, comm_exercise_early_leaver, NULL);
    run_ranks(3, chain, NULL);
    for (int leaver = 0; leaver < 2; leaver++) {
        run_ranks(2, break_off, &leaver);
        run_ranks_on_network(2, break_off, &leaver);
    }
}

/* Unequal calls are bugs of the callers; both ranks are told and none hangs. */
static void unequal(struct comm *comm, void *context)
{
    struct comm_group *world = comm_exercise_world(comm, 0);
    unsigned char buffer[64] = { 0 };
    struct err err;

    (void)context;
    if (comm_world_rank(comm) == 0)
        comm_exercise_must_fail(comm_send(world, buffer, 40, 1, &err), &err,
                                "rank 1 waits for 41 bytes where this rank sends it 40");
    else
        comm_exercise_must_fail(comm_receive(world, buffer, 41, 0, &err), &err, "rank 0 has left");
}

static void test_unequal(void **state)
{
    (void)state;
    run_ranks(2, unequal, NULL);
}

/* ---- strangers ---- */

/* Rank 1 has another key. Rank 0 has no connection, and does not take one. */
static void refuse(struct comm *comm, void *context)
{
    _Atomic int *is_refused = context;
    struct comm_group *world = NULL;
    struct err err;

    if (comm_world_rank(comm) == 1) {
        comm_exercise_must_fail(comm_group_create(&world, comm, (int[]){ 0, 1 }, 2, 0, &err), &err,
                                "does not take this rank for one of its job");
        CHECK(strstr(err.text, "rank 0"));
        atomic_store(is_refused, 1);
        return;
    }
    while (!atomic_load(is_refused)) {
        tcp_progress((struct tcp_comm *)comm);
        CHECK(tcp_peer_of((struct tcp_comm *)comm, 1)->state == TCP_UNKNOWN);
        usleep(1000);
    }
}

static void test_wrong_key(void **state)
{
    (void)state;
    for (int no_unix = 0; no_unix < 2; no_unix++) {
        struct rank_thread like = { .settings = { 1000, no_unix }, .has_other_key = 1 };
        _Atomic int is_refused = 0;

        run_ranks_as(2, &like, refuse, &is_refused);
    }
}

/* A connection to rank 0's door, on loopback or its Unix socket. */
static int knock(int no_unix)
{
    const unsigned char *card = table.cards[0];
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    struct sockaddr_in in = { .sin_family = AF_INET };
    size_t length = offsetof(struct sockaddr_un, sun_path) + 1 + 8 + 32;
    int fd = socket(no_unix ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(un.sun_path + 1, "lmtrain-", 8);
    for (int i = 0; i < 16; i++)
        snprintf(un.sun_path + 9 + 2 * i, 3, "%02x", card[16 + i]);
    CHECK(!no_unix || card[33] == 4); /* its first address is IPv4 */
    memcpy(&in.sin_port, card + 34, 2);
    memcpy(&in.sin_addr, card + 36, 4);
    CHECK(fd >= 0);
    CHECK(!connect(fd, no_unix ? (struct sockaddr *)&in : (struct sockaddr *)&un,
                   no_unix ? (socklen_t)sizeof in : (socklen_t)length));
    return fd;
}

enum { N_STRANGERS = TCP_VISITORS_MAX + 20 };

/*
 * Before the ranks meet, more strangers stand at rank 0's door than it has places for: silent ones, ones with half an
 * answer, and ones with a wrong one. They learn no more than a hello, and are sent away; the ranks meet.
 */
static void among_strangers(struct comm *comm, void *context)
{
    int no_unix = *(int *)context, fds[N_STRANGERS], n_ended = 0;
    unsigned char answer[TCP_ANSWER_BYTES] = { 1 }, got[TCP_HELLO_BYTES + 1];
    int is_first = comm_world_rank(comm) == 0;

    for (int i = 0; i < N_STRANGERS && is_first; i++) {
        fds[i] = knock(no_unix);
        if (i % 3)
            CHECK(send(fds[i], answer, i % 3 == 1 ? 20 : sizeof answer, MSG_NOSIGNAL) > 0);
        tcp_progress((struct tcp_comm *)comm);
    }
    comm_exercise_calls(comm, 1000);
    if (!is_first)
        return;
    for (double until = clock_seconds() + 7; clock_seconds() < until; usleep(20000))
        tcp_progress((struct tcp_comm *)comm);
    for (int i = 0; i < N_STRANGERS; i++) {
        ssize_t n, all = 0;

        while ((n = recv(fds[i], got, sizeof got, MSG_DONTWAIT)) > 0)
            all += n;
        n_ended += n == 0 || errno == ECONNRESET;
        CHECK(all <= TCP_HELLO_BYTES);
        close(fds[i]);
    }
    CHECK(n_ended == N_STRANGERS);
}

static void test_strangers(void **state)
{
    (void)state;
    for (int no_unix = 0; no_unix < 2; no_unix++)
        run_ranks_as(3, &(struct rank_thread){ .settings = { 1000, no_unix } }, among_strangers,
                     &no_unix);
}

/* Somebody else is at rank 0's fastest address, talks as a rank would, and then says nothing, or half of a proof. */
struct stranger {
    pthread_t thread;
    int listener;
    int is_silent;
};

static void *stranger_main(void *argument)
{
    const struct stranger *stranger = argument;
    unsigned char bytes[TCP_ANSWER_BYTES];
    int fds[16], n = 0;

    while (n < 16 && (fds[n] = accept4(stranger->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        CHECK(send(fds[n], TCP_MAGIC "0123456789abcdefghijklmnopqrstuv", TCP_HELLO_BYTES,
                   MSG_NOSIGNAL) == TCP_HELLO_BYTES);
        if (!stranger->is_silent &&
            recv(fds[n], bytes, sizeof bytes, MSG_WAITALL) == (ssize_t)sizeof bytes)
            send(fds[n], bytes, 10, MSG_NOSIGNAL);
        if (!stranger->is_silent)
            shutdown(fds[n], SHUT_RDWR);
        n++;
    }
    for (int i = 0; i < n; i++)
        close(fds[i]);
    return NULL;
}

static void beside_stranger(int is_silent)
{
    struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct stranger stranger = { .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                                 .is_silent = is_silent };
    socklen_t length = sizeof in;

    assert_int_equal(bind(stranger.listener, (struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(listen(stranger.listener, 16), 0);
    assert_int_equal(getsockname(stranger.listener, (struct sockaddr *)&in, &length), 0);
    stranger_port = in.sin_port;
    assert_int_equal(pthread_create(&stranger.thread, NULL, stranger_main, &stranger), 0);
    run_ranks_on_network(2, comm_exercise_all, NULL);
    stranger_port = 0;
    shutdown(stranger.listener, SHUT_RDWR);
    pthread_join(stranger.thread, NULL);
    close(stranger.listener);
}

static void test_stranger_at_address(void **state)
{
    (void)state;
    for (int is_silent = 0; is_silent < 2; is_silent++)
        beside_stranger(is_silent);
}

/* While all places are taken by visitors who just came, one more waits; then it has the place of the oldest. */
static void keep_places(struct comm *comm, void *context)
{
    struct tcp_comm *tcp = (struct tcp_comm *)comm;
    unsigned char got[TCP_HELLO_BYTES];
    int fds[TCP_VISITORS_MAX + 1], n_helloed = 0;
    double begin = clock_seconds();

    (void)context;
    for (int i = 0; i <= TCP_VISITORS_MAX; i++) {
        fds[i] = knock(0);
        tcp_progress(tcp);
    }
    for (int i = 0; i <= TCP_VISITORS_MAX; i++)
        n_helloed += recv(fds[i], got, sizeof got, MSG_DONTWAIT) == sizeof got;
    if (clock_seconds() - begin < 0.9) { /* this test was not held up */
        CHECK(n_helloed == TCP_VISITORS_MAX);
        CHECK(recv(fds[0], got, 1, MSG_DONTWAIT) == -1);
        CHECK(errno == EAGAIN);
    }
    for (double until = clock_seconds() + 1.2; clock_seconds() < until; usleep(20000))
        tcp_progress(tcp);
    CHECK(recv(fds[0], got, 1, MSG_DONTWAIT) == 0);
    CHECK(tcp->n_visitors == TCP_VISITORS_MAX);
    for (int i = 0; i <= TCP_VISITORS_MAX; i++)
        close(fds[i]);
}

/* A rank that has no descriptor left says so. */
static void run_short(struct comm *comm, void *context)
{
    struct tcp_comm *tcp = (struct tcp_comm *)comm;
    struct rlimit before, none;
    int fds[2] = { knock(0), -1 };

    (void)context;
    tcp_progress(tcp);
    CHECK(!tcp->failure.code);
    fds[1] = knock(0);
    CHECK(!getrlimit(RLIMIT_NOFILE, &before));
    none = before;
    none.rlim_cur = 0;
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    tcp_progress(tcp);
    CHECK(!setrlimit(RLIMIT_NOFILE, &before));
    CHECK(tcp->failure.code == ERR_FAILED);
    CHECK(strstr(tcp->failure.text, "hint: ulimit -n"));
    for (int i = 0; i < 2; i++)
        close(fds[i]);
}

static void test_no_descriptors(void **state)
{
    (void)state;
    run_ranks(1, run_short, NULL);
}

static void test_places(void **state)
{
    (void)state;
    run_ranks(1, keep_places, NULL);
}

/* ---- where it listens ---- */

static int single_fence(double timeout_seconds, struct err *err)
{
    (void)timeout_seconds;
    (void)err;
    return 0;
}

static int open_alone(struct err *err)
{
    /* As the first of two ranks on two machines. */
    struct comm_wireup wireup = { 0, 2, 1, put, single_fence, get };
    struct comm *comm;

    this_rank = 0;
    memset(&table, 0, sizeof table);
    if (comm_tcp_create(&comm, &wireup, err))
        return -1;
    comm_destroy(comm);
    return 0;
}

static void test_interface(void **state)
{
    static const char *const wrong[] = { "none7", "203.0.113.0/24", "127.0.0.1", "0.0.0.0/33" };
    static const char *const right[] = { "lo", "127.0.0.0/8", "127.0.0.1/32" };
    struct err err;

    (void)state;
    for (int i = 0; i < 4; i++) {
        setenv("LMTRAIN_COMM_INTERFACE", wrong[i], 1);
        assert_int_equal(open_alone(&err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_non_null(strstr(err.text, wrong[i]));
    }
    for (int i = 0; i < 3; i++) {
        setenv("LMTRAIN_COMM_INTERFACE", right[i], 1);
        assert_int_equal(open_alone(&err), 0);
        assert_true(table.card_bytes[0] >= 33 + 19);
        assert_memory_equal(table.cards[0] + 36, "\x7f\0\0\1", 4);
    }
    unsetenv("LMTRAIN_COMM_INTERFACE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_calls),
        cmocka_unit_test(test_random_calls),
        cmocka_unit_test(test_long_calls),
        cmocka_unit_test(test_send_waits),
        cmocka_unit_test(test_containers),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_few_connections),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_unequal),
        cmocka_unit_test(test_wrong_key),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_interface),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_stranger_at_address),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
