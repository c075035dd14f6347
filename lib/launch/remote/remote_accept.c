/*
 * remote_accept.c - the head's listening sockets, and the visitors who must prove who they are
 *
 * One socket an address, so that nothing listens where nobody was invited to.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/remote/hosts_impl.h"

enum { VISITORS_MAX = 128 };
static const double visit_seconds = 5;

struct visitor {
    int fd;
    double since;
    int n_bytes; /* come so far */
    unsigned char answer[HOSTS_ANSWER_BYTES];
    struct remote_challenge challenge;
};

struct remote_accept {
    int n_sockets, n_visitors;
    int sockets[HOSTS_ADDRESSES_MAX];
    struct remote_address addresses[HOSTS_ADDRESSES_MAX];
    struct visitor visitors[VISITORS_MAX]; /* in the order in which they came */
};

/* ---- listening ---- */

static int address_text(const struct sockaddr *address, char ip[INET6_ADDRSTRLEN])
{
    const void *bytes = address->sa_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
                            : (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr;

    return inet_ntop(address->sa_family, bytes, ip, INET6_ADDRSTRLEN) ? 0 : -1;
}

static void listen_on(struct remote_accept *lobby, const struct sockaddr *address)
{
    struct remote_address *place = &lobby->addresses[lobby->n_sockets];
    struct sockaddr_storage bound;
    socklen_t length = address->sa_family == AF_INET ? (socklen_t)sizeof(struct sockaddr_in)
                                                     : (socklen_t)sizeof(struct sockaddr_in6);
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return;
    memset(&bound, 0, sizeof bound);
    memcpy(&bound, address, length);
    socklen_t bound_length = sizeof bound;
    /* An address that cannot be had (a tentative one, say) is one fewer to offer. */
    if (bind(fd, (struct sockaddr *)&bound, length) || listen(fd, VISITORS_MAX) ||
        getsockname(fd, (struct sockaddr *)&bound, &bound_length) ||
        address_text(address, place->ip)) {
        close(fd);
        return;
    }
    place->port = ntohs(address->sa_family == AF_INET ? ((struct sockaddr_in *)&bound)->sin_port
                                                      : ((struct sockaddr_in6 *)&bound)->sin6_port);
    lobby->sockets[lobby->n_sockets++] = fd;
}

/* Whether this interface's address is among those that were asked for. */
static int is_wanted(const struct ifaddrs *entry, const char *only, int loopback)
{
    char ip[INET6_ADDRSTRLEN];

    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP) ||
        (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6))
        return 0;
    /* Link-local ones mean nothing on another host. */
    if (entry->ifa_addr->sa_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)entry->ifa_addr)->sin6_addr))
        return 0;
    if (only)
        return !strcmp(entry->ifa_name, only) ||
               (!address_text(entry->ifa_addr, ip) && !strcmp(ip, only));
    return !(entry->ifa_flags & IFF_LOOPBACK) == !loopback;
}

static void listen_on_all(struct remote_accept *lobby, const struct ifaddrs *list, const char *only,
                          int loopback)
{
    for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next)
        if (lobby->n_sockets < HOSTS_ADDRESSES_MAX && is_wanted(entry, only, loopback))
            listen_on(lobby, entry->ifa_addr);
}

struct remote_accept *remote_accept_open(struct err *err)
{
    const char *only = getenv("LMTRAIN_INTERFACE");
    struct remote_accept *lobby = calloc(1, sizeof *lobby);
    struct ifaddrs *list;

    CHECK(lobby);
    if (only && !*only)
        only = NULL;
    if (getifaddrs(&list)) {
        err_set_errno(err, ERR_FAILED, "cannot read this machine's addresses");
        free(lobby);
        return NULL;
    }
    listen_on_all(lobby, list, only, 0);
    if (!lobby->n_sockets && !only)
        listen_on_all(lobby, list, NULL, 1);
    freeifaddrs(list);
    if (lobby->n_sockets)
        return lobby;
    if (only)
        err_set(err, ERR_CONFIG,
                "LMTRAIN_INTERFACE is '%s': this machine has no such interface or address that is "
                "up (hint: ip -brief address)",
                only);
    else
        err_set(err, ERR_FAILED, "this machine has no address to listen on");
    free(lobby);
    return NULL;
}

int remote_accept_addresses(const struct remote_accept *lobby, struct remote_address *addresses)
{
    memcpy(addresses, lobby->addresses, (size_t)lobby->n_sockets * sizeof *addresses);
    return lobby->n_sockets;
}

/* ---- visitors ---- */

/* Forget visitor i; its descriptor is somebody else's now, or closed. */
static void forget(struct remote_accept *lobby, int i)
{
    memmove(lobby->visitors + i, lobby->visitors + i + 1,
            (size_t)(--lobby->n_visitors - i) * sizeof *lobby->visitors);
}

static void turn_away(struct remote_accept *lobby, int i)
{
    close(lobby->visitors[i].fd);
    forget(lobby, i);
}

static void welcome(struct remote_accept *lobby, int fd)
{
    unsigned char hello[HOSTS_HELLO_BYTES];

    if (lobby->n_visitors == VISITORS_MAX)
        turn_away(lobby, 0);
    struct visitor *visitor = &lobby->visitors[lobby->n_visitors++];
    *visitor = (struct visitor){ .fd = fd, .since = clock_seconds() };
    remote_random(visitor->challenge.nonce_head, HOSTS_NONCE_BYTES);
    memcpy(hello, REMOTE_MAGIC, HOSTS_MAGIC_BYTES);
    memcpy(hello + HOSTS_MAGIC_BYTES, visitor->challenge.nonce_head, HOSTS_NONCE_BYTES);
    /* A new connection has room for so few bytes. */
    if (send(fd, hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
        turn_away(lobby, lobby->n_visitors - 1);
}

/* Whether the whole answer proves a host that is expected; says so to it. */
static int is_guest(struct visitor *visitor, const struct remote_peers *guests)
{
    struct remote_challenge *challenge = &visitor->challenge;
    unsigned char proof[HOSTS_PROOF_BYTES];
    const unsigned char *answer = visitor->answer;

    challenge->index = 0;
    for (int i = 0; i < 4; i++)
        challenge->index |= (uint32_t)answer[i] << 8 * i;
    memcpy(challenge->nonce_daemon, answer + 4, HOSTS_NONCE_BYTES);
    if (challenge->index >= (uint32_t)guests->n_hosts || !guests->expected[challenge->index])
        return 0;
    const unsigned char *cookie = guests->cookies + challenge->index * (size_t)HOSTS_COOKIE_BYTES;
    if (!remote_check_proof(answer + 4 + HOSTS_NONCE_BYTES, cookie, HOSTS_DAEMON, challenge))
        return 0;
    remote_prove(proof, cookie, HOSTS_HEAD, challenge);
    return send(visitor->fd, proof, sizeof proof, MSG_NOSIGNAL) == (ssize_t)sizeof proof;
}

/* Returns 1 when visitor i is a guest, 0 to wait for more, -1 to turn it away. */
static int hear(struct remote_accept *lobby, int i, const struct remote_peers *guests)
{
    struct visitor *visitor = &lobby->visitors[i];
    size_t missing = sizeof visitor->answer - (size_t)visitor->n_bytes;
    ssize_t n = recv(visitor->fd, visitor->answer + visitor->n_bytes, missing, MSG_DONTWAIT);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0)
        return -1;
    visitor->n_bytes += (int)n;
    if ((size_t)n < missing)
        return 0;
    return is_guest(visitor, guests) ? 1 : -1;
}

static void accept_all(struct remote_accept *lobby)
{
    /* Not more at once than there is room for, or a flood of them would keep us here. */
    for (int i = 0; i < lobby->n_sockets; i++)
        for (int n = 0; n < VISITORS_MAX; n++) {
            int fd = accept4(lobby->sockets[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

            if (fd < 0)
                break;
            welcome(lobby, fd);
        }
}

int remote_accept_wait(struct remote_accept *lobby, const struct remote_peers *guests,
                       int milliseconds, int *fd)
{
    struct pollfd polls[HOSTS_ADDRESSES_MAX + VISITORS_MAX];
    int n = 0;

    for (int i = 0; i < lobby->n_sockets; i++)
        polls[n++] = (struct pollfd){ .fd = lobby->sockets[i], .events = POLLIN };
    for (int i = 0; i < lobby->n_visitors; i++)
        polls[n++] = (struct pollfd){ .fd = lobby->visitors[i].fd, .events = POLLIN };
    poll(polls, (nfds_t)n, milliseconds);

    double now = clock_seconds();
    for (int i = lobby->n_visitors - 1; i >= 0; i--) {
        int guest = hear(lobby, i, guests);
        int index = (int)lobby->visitors[i].challenge.index;

        if (guest > 0) {
            *fd = lobby->visitors[i].fd;
            forget(lobby, i);
            return index;
        }
        if (guest < 0 || now > lobby->visitors[i].since + visit_seconds)
            turn_away(lobby, i);
    }
    accept_all(lobby);
    return -1;
}

void remote_accept_close(struct remote_accept *lobby)
{
    if (!lobby)
        return;
    while (lobby->n_visitors)
        turn_away(lobby, 0);
    for (int i = 0; i < lobby->n_sockets; i++)
        close(lobby->sockets[i]);
    sodium_memzero(lobby, sizeof *lobby);
    free(lobby);
}
