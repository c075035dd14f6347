/*
 * comm_tcp_test.c - ranks over sockets: every call, ranks that go, and where they listen
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "comm/tcp_impl.h"
#include "support/comm_exercise.h"
#include "support/tcp_ranks.h"

/* ---- calls ---- */

static void test_all_calls(void **state)
{
    static const int sizes[] = { 1, 2, 3, 4, 7, 8 };

    (void)state;
    for (int i = 0; i < 6; i++)
        tcp_ranks_run_local(sizes[i], comm_exercise_all, NULL);
    tcp_ranks_run_on_network(5, comm_exercise_all, NULL);
}

static void random_calls(struct comm *comm, void *seed)
{
    comm_exercise_random(comm, *(uint64_t *)seed, 150);
}

static void test_random_calls(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++)
        tcp_ranks_run_local(1 + (int)(seed % 8), random_calls, &seed);
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
    tcp_ranks_run(3, &(struct tcp_ranks){ .settings = { 200000, 0 } }, long_calls, NULL);
    tcp_ranks_run(3, &(struct tcp_ranks){ .settings = { 200000, 1 } }, long_calls, NULL);
}

static void test_send_waits(void **state)
{
    _Atomic int received = 0;

    (void)state;
    tcp_ranks_run_local(2, comm_exercise_send_waits, &received);
}

/* Each rank in a user namespace of its own, where PMIx says that all are of one node. */
static void test_containers(void **state)
{
    (void)state;
    tcp_ranks_run(3, &(struct tcp_ranks){ .settings = { 1000, 0 }, .is_contained = 1 },
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
    tcp_ranks_run_local(2, see_families, &unix_family);
    tcp_ranks_run(2, &(struct tcp_ranks){ .settings = { 1000, 0 }, .is_contained = 1 },
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
    tcp_ranks_run_local(16, count_connections, NULL);
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
    comm_exercise_must_fail(status, &err, "rank 2 has left or failed");
    if (rank == 0)
        CHECK(strstr(err.text, "rank 1 lost the connection to it"));
}

static void test_leaving(void **state)
{
    (void)state;
    tcp_ranks_run_local(3, comm_exercise_one_leaves, NULL);
    tcp_ranks_run_local(3, comm_exercise_early_leaver, NULL);
    tcp_ranks_run_on_network(3, comm_exercise_early_leaver, NULL);
    tcp_ranks_run_local(3, chain, NULL);
    for (int leaver = 0; leaver < 2; leaver++) {
        tcp_ranks_run_local(2, break_off, &leaver);
        tcp_ranks_run_on_network(2, break_off, &leaver);
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
                                "rank 1 expects 41 bytes, but this rank sends 40");
    else
        comm_exercise_must_fail(comm_receive(world, buffer, 41, 0, &err), &err, "rank 0 has left");
}

static void test_unequal(void **state)
{
    (void)state;
    tcp_ranks_run_local(2, unequal, NULL);
}

/* ---- where it listens ---- */

static int open_alone(struct err *err)
{
    struct comm *comm;

    tcp_table_begin(1);
    /* As the first of two ranks on two machines. */
    struct comm_wireup wireup = *tcp_table_join(0, 1);
    wireup.world_size = 2;
    wireup.local_size = 1;
    int status = comm_tcp_create(&comm, &wireup, err);
    if (!status)
        comm_destroy(comm);
    tcp_table_end();
    return status;
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
        assert_true(tcp_table.card_bytes[0] >= 33 + 19);
        assert_memory_equal(tcp_table.cards[0] + 36, "\x7f\0\0\1", 4);
    }
    unsetenv("LMTRAIN_COMM_INTERFACE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_calls),       cmocka_unit_test(test_random_calls),
        cmocka_unit_test(test_long_calls),      cmocka_unit_test(test_send_waits),
        cmocka_unit_test(test_containers),      cmocka_unit_test(test_families),
        cmocka_unit_test(test_few_connections), cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_unequal),         cmocka_unit_test(test_interface),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
