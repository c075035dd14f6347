/*
 * tcp_greet.c - what both ends of a new connection do
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "comm/tcp_impl.h"

enum {
    UNIX_BUFFER = 1 << 20, /* the system may give less */
    /* A machine that is gone is found after a minute of silence; by default after two hours. */
    KEEPALIVE_IDLE_SECONDS = 30,
    KEEPALIVE_INTERVAL_SECONDS = 10,
    KEEPALIVE_COUNT = 3,
};

void tcp_prove(const struct tcp_comm *comm, const char *role, const uint32_t ranks[2],
               const unsigned char *accept_nonce, const unsigned char *connect_nonce,
               unsigned char proof[TCP_PROOF_BYTES])
{
    unsigned char text[8 + 8 + 2 * TCP_NONCE_BYTES] = { 0 };

    _Static_assert(TCP_PROOF_BYTES == crypto_auth_BYTES, "the proof is one of crypto_auth");
    _Static_assert(TCP_KEY_BYTES == crypto_auth_KEYBYTES, "the key is its key");
    memcpy(text, role, strlen(role));
    memcpy(text + 8, ranks, 8);
    memcpy(text + 16, accept_nonce, TCP_NONCE_BYTES);
    memcpy(text + 16 + TCP_NONCE_BYTES, connect_nonce, TCP_NONCE_BYTES);
    crypto_auth(proof, text, sizeof text, comm->key);
}

int tcp_send_whole(int fd, const void *bytes, size_t n_bytes)
{
    /* A new connection has room for so few bytes. */
    return send(fd, bytes, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n_bytes ? 0 : -1;
}

int tcp_receive_some(int fd, unsigned char *bytes, size_t *n_bytes, size_t n_whole)
{
    ssize_t n = recv(fd, bytes + *n_bytes, n_whole - *n_bytes, MSG_DONTWAIT);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0) {
        errno = 0;
        return -1;
    }
    *n_bytes += (size_t)n;
    return *n_bytes == n_whole;
}

int tcp_is_stranger(int fd)
{
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    struct ucred owner;
    socklen_t size = sizeof owner;

    if (getsockname(fd, (struct sockaddr *)&name, &length))
        return 1;
    if (name.ss_family != AF_UNIX)
        return 0;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &size) || owner.uid != geteuid();
}

/*
 * No TCP_USER_TIMEOUT: it ends connections, too, whose other end is there and does not read, as a
 * rank that is stopped or computes for long (the system counts the time that a window is closed).
 */
static void watch_silence(int fd)
{
    int yes = 1, idle = KEEPALIVE_IDLE_SECONDS, interval = KEEPALIVE_INTERVAL_SECONDS;
    int count = KEEPALIVE_COUNT;

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

void tcp_prepare(int fd, int family)
{
    int yes = 1, buffer = UNIX_BUFFER;

    if (family == AF_UNIX) {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    watch_silence(fd);
}

void tcp_watch_begin(struct tcp_comm *comm, struct tcp_watch *what, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = what };

    CHECK(!epoll_ctl(comm->epoll, EPOLL_CTL_ADD, what->fd, &event));
}
