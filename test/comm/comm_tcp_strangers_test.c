/*
 * comm_tcp_strangers_test.c - ranks over sockets, and connections that are not of their job
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "comm/tcp_impl.h"
#include "support/comm_exercise.h"
#include "support/tcp_ranks.h"

/* Rank 1 has another key. Rank 0 has no connection, and does not take one. */
static void refuse(struct comm *comm, void *context)
{
    _Atomic int *is_refused = context;
    struct comm_group *world = NULL;
    struct err err;

    if (comm_world_rank(comm) == 1) {
        comm_exercise_must_fail(comm_group_create(&world, comm, (int[]){ 0, 1 }, 2, 0, &err), &err,
                                "does not recognise this rank as one of its job");
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
        struct tcp_ranks like = { .settings = { 1000, no_unix }, .has_other_key = 1 };
        _Atomic int is_refused = 0;

        tcp_ranks_run(2, &like, refuse, &is_refused);
    }
}

/* A connection to rank 0's door, on loopback or its Unix socket. */
static int knock(int no_unix)
{
    const unsigned char *card = tcp_table.cards[0];
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

/* Until the rank has ended the connection: how many bytes came before. */
static ssize_t wait_for_end(struct tcp_comm *comm, int fd)
{
    double until = clock_seconds() + 60;
    unsigned char got[TCP_HELLO_BYTES + 1];
    ssize_t n, all = 0;

    for (;;) {
        while ((n = recv(fd, got, sizeof got, MSG_DONTWAIT)) > 0)
            all += n;
        if (!n || errno == ECONNRESET)
            return all;
        CHECK(clock_seconds() < until);
        usleep(20000);
        tcp_progress(comm);
    }
}

enum { N_STRANGERS = TCP_INCOMING_MAX + 20 };

/*
 * Before the ranks meet, more strangers stand at rank 0's door than it has places for: silent ones,
 * ones with half an answer, and ones with a wrong one. They learn no more than a hello, and are
 * sent away; the ranks meet.
 */
static void among_strangers(struct comm *comm, void *context)
{
    int no_unix = *(int *)context, fds[N_STRANGERS];
    unsigned char answer[TCP_ANSWER_BYTES] = { 1 };
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
    for (int i = 0; i < N_STRANGERS; i++) {
        CHECK(wait_for_end((struct tcp_comm *)comm, fds[i]) <= TCP_HELLO_BYTES);
        close(fds[i]);
    }
}

static void test_strangers(void **state)
{
    (void)state;
    for (int no_unix = 0; no_unix < 2; no_unix++)
        tcp_ranks_run(3, &(struct tcp_ranks){ .settings = { 1000, no_unix } }, among_strangers,
                      &no_unix);
}

/* Somebody else is at rank 0's fastest address, talks as a rank would, and then says nothing, or
 * half of a proof. */
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
    tcp_stranger_port = in.sin_port;
    assert_int_equal(pthread_create(&stranger.thread, NULL, stranger_main, &stranger), 0);
    tcp_ranks_run_on_network(2, comm_exercise_all, NULL);
    tcp_stranger_port = 0;
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

/* While all places are taken by connections that just came, one more waits; then it has the
 * place of the oldest. */
static void keep_places(struct comm *comm, void *context)
{
    struct tcp_comm *tcp = (struct tcp_comm *)comm;
    unsigned char got[TCP_HELLO_BYTES];
    int fds[TCP_INCOMING_MAX + 1], n_helloed = 0;
    double begin = clock_seconds();

    (void)context;
    for (int i = 0; i <= TCP_INCOMING_MAX; i++) {
        fds[i] = knock(0);
        tcp_progress(tcp);
    }
    for (int i = 0; i <= TCP_INCOMING_MAX; i++)
        n_helloed += recv(fds[i], got, sizeof got, MSG_DONTWAIT) == sizeof got;
    if (clock_seconds() - begin < 0.9) { /* this test was not held up */
        CHECK(n_helloed == TCP_INCOMING_MAX);
        CHECK(recv(fds[0], got, 1, MSG_DONTWAIT) == -1);
        CHECK(errno == EAGAIN);
    }
    wait_for_end(tcp, fds[0]);
    if (clock_seconds() - begin < 4.5) /* before any has had its 5 seconds */
        CHECK(tcp->n_incoming == TCP_INCOMING_MAX);
    for (int i = 0; i <= TCP_INCOMING_MAX; i++)
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
    tcp_ranks_run_local(1, run_short, NULL);
}

static void test_places(void **state)
{
    (void)state;
    tcp_ranks_run_local(1, keep_places, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_key),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_stranger_at_address),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
