/*
 * remote_accept.c - the head's listening sockets, and the authentication of those that connect
 *
 * One socket per address, so that nothing listens on an address that no host was given.
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

enum { PEERS_MAX = 128 };
static const double proof_seconds = 5;

struct unproved_peer {
    int fd;
    double since;
    int n_bytes; /* come so far */
    unsigned char answer[HOSTS_ANSWER_BYTES];
    struct remote_challenge challenge;
};

struct remote_accept {
    int n_sockets, n_peers;
    int sockets[HOSTS_ADDRESSES_MAX];
    struct remote_address addresses[HOSTS_ADDRESSES_MAX];
    struct unproved_peer peers[PEERS_MAX]; /* in the order in which they came */
};

/* ---- listening ---- */

static int address_text(const struct sockaddr *address, char ip[INET6_ADDRSTRLEN])
{
    const void *bytes = address->sa_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
                            : (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr;

    return inet_ntop(address->sa_family, bytes, ip, INET6_ADDRSTRLEN) ? 0 : -1;
}

static void listen_on(struct remote_accept *acceptor, const struct sockaddr *address)
{
    struct remote_address *place = &acceptor->addresses[acceptor->n_sockets];
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
    if (bind(fd, (struct sockaddr *)&bound, length) || listen(fd, PEERS_MAX) ||
        getsockname(fd, (struct sockaddr *)&bound, &bound_length) ||
        address_text(address, place->ip)) {
        close(fd);
        return;
    }
    place->port = ntohs(address->sa_family == AF_INET ? ((struct sockaddr_in *)&bound)->sin_port
                                                      : ((struct sockaddr_in6 *)&bound)->sin6_port);
    acceptor->sockets[acceptor->n_sockets++] = fd;
}

enum interfaces { OUTSIDE, LOOPBACK };

/*
 * Whether to listen on this address: that of $LMTRAIN_INTERFACE, else of the given kind of
 * interface.
 */
static int is_wanted(const struct ifaddrs *entry, const char *only, enum interfaces which)
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
    return !(entry->ifa_flags & IFF_LOOPBACK) == (which == OUTSIDE);
}

static void listen_on_all(struct remote_accept *acceptor, const struct ifaddrs *list,
                          const char *only, enum interfaces which)
{
    for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next)
        if (acceptor->n_sockets < HOSTS_ADDRESSES_MAX && is_wanted(entry, only, which))
            listen_on(acceptor, entry->ifa_addr);
}

struct remote_accept *remote_accept_open(struct err *err)
{
    const char *only = getenv("LMTRAIN_INTERFACE");
    struct remote_accept *acceptor = calloc(1, sizeof *acceptor);
    struct ifaddrs *list;

    CHECK(acceptor);
    if (only && !*only)
        only = NULL;
    if (getifaddrs(&list)) {
        err_set_errno(err, ERR_FAILED, "cannot read this machine's addresses");
        free(acceptor);
        return NULL;
    }
    listen_on_all(acceptor, list, only, OUTSIDE);
    if (!acceptor->n_sockets && !only)
        listen_on_all(acceptor, list, NULL, LOOPBACK);
    freeifaddrs(list);
    if (acceptor->n_sockets)
        return acceptor;
    if (only)
        err_set(err, ERR_CONFIG,
                "LMTRAIN_INTERFACE is '%s': this machine has no such interface or address that is "
                "up (hint: ip -brief address)",
                only);
    else
        err_set(err, ERR_FAILED, "this machine has no address to listen on");
    free(acceptor);
    return NULL;
}

int remote_accept_addresses(const struct remote_accept *acceptor, struct remote_address *addresses)
{
    memcpy(addresses, acceptor->addresses, (size_t)acceptor->n_sockets * sizeof *addresses);
    return acceptor->n_sockets;
}

/* ---- peers that have not proved themselves ---- */

/* Remove peer i from the list; its descriptor belongs to the caller now, or is closed. */
static void forget_peer(struct remote_accept *acceptor, int i)
{
    memmove(acceptor->peers + i, acceptor->peers + i + 1,
            (size_t)(--acceptor->n_peers - i) * sizeof *acceptor->peers);
}

static void drop_peer(struct remote_accept *acceptor, int i)
{
    close(acceptor->peers[i].fd);
    forget_peer(acceptor, i);
}

static void send_challenge(struct remote_accept *acceptor, int fd)
{
    unsigned char hello[HOSTS_HELLO_BYTES];

    if (acceptor->n_peers == PEERS_MAX)
        drop_peer(acceptor, 0);
    struct unproved_peer *peer = &acceptor->peers[acceptor->n_peers++];
    *peer = (struct unproved_peer){ .fd = fd, .since = clock_seconds() };
    remote_random(peer->challenge.nonce_head, HOSTS_NONCE_BYTES);
    memcpy(hello, REMOTE_MAGIC, HOSTS_MAGIC_BYTES);
    memcpy(hello + HOSTS_MAGIC_BYTES, peer->challenge.nonce_head, HOSTS_NONCE_BYTES);
    /* A new connection has room for so few bytes. */
    if (send(fd, hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
        drop_peer(acceptor, acceptor->n_peers - 1);
}

/* Whether the complete answer proves an expected host; if so, the head's own proof is sent. */
static int is_proved(struct unproved_peer *peer, const struct expected_hosts *hosts)
{
    struct remote_challenge *challenge = &peer->challenge;
    unsigned char proof[HOSTS_PROOF_BYTES];
    const unsigned char *answer = peer->answer;

    challenge->index = 0;
    for (int i = 0; i < 4; i++)
        challenge->index |= (uint32_t)answer[i] << 8 * i;
    memcpy(challenge->nonce_daemon, answer + 4, HOSTS_NONCE_BYTES);
    if (challenge->index >= (uint32_t)hosts->n_hosts || !hosts->expected[challenge->index])
        return 0;
    const unsigned char *cookie = hosts->cookies + challenge->index * (size_t)HOSTS_COOKIE_BYTES;
    if (!remote_check_proof(answer + 4 + HOSTS_NONCE_BYTES, cookie, HOSTS_DAEMON, challenge))
        return 0;
    remote_prove(proof, cookie, HOSTS_HEAD, challenge);
    return send(peer->fd, proof, sizeof proof, MSG_NOSIGNAL) == (ssize_t)sizeof proof;
}

/*
 * Returns 1 once peer i has proved that it is an expected host, 0 to wait for more, -1 to drop it.
 */
static int receive_answer(struct remote_accept *acceptor, int i, const struct expected_hosts *hosts)
{
    struct unproved_peer *peer = &acceptor->peers[i];
    size_t missing = sizeof peer->answer - (size_t)peer->n_bytes;
    ssize_t n = recv(peer->fd, peer->answer + peer->n_bytes, missing, MSG_DONTWAIT);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0)
        return -1;
    peer->n_bytes += (int)n;
    if ((size_t)n < missing)
        return 0;
    return is_proved(peer, hosts) ? 1 : -1;
}

static void accept_all(struct remote_accept *acceptor)
{
    /* At most as many as there is room for: a flood of connections must not keep the loop here. */
    for (int i = 0; i < acceptor->n_sockets; i++)
        for (int n = 0; n < PEERS_MAX; n++) {
            int fd = accept4(acceptor->sockets[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

            if (fd < 0)
                break;
            send_challenge(acceptor, fd);
        }
}

int remote_accept_wait(struct remote_accept *acceptor, const struct expected_hosts *hosts,
                       int milliseconds, int *fd)
{
    struct pollfd polls[HOSTS_ADDRESSES_MAX + PEERS_MAX];
    int n = 0;

    for (int i = 0; i < acceptor->n_sockets; i++)
        polls[n++] = (struct pollfd){ .fd = acceptor->sockets[i], .events = POLLIN };
    for (int i = 0; i < acceptor->n_peers; i++)
        polls[n++] = (struct pollfd){ .fd = acceptor->peers[i].fd, .events = POLLIN };
    poll(polls, (nfds_t)n, milliseconds);

    double now = clock_seconds();
    for (int i = acceptor->n_peers - 1; i >= 0; i--) {
        int status = receive_answer(acceptor, i, hosts);
        int index = (int)acceptor->peers[i].challenge.index;

        if (status > 0) {
            *fd = acceptor->peers[i].fd;
            forget_peer(acceptor, i);
            return index;
        }
        if (status < 0 || now > acceptor->peers[i].since + proof_seconds)
            drop_peer(acceptor, i);
    }
    accept_all(acceptor);
    return -1;
}

void remote_accept_close(struct remote_accept *acceptor)
{
    if (!acceptor)
        return;
    while (acceptor->n_peers)
        drop_peer(acceptor, 0);
    for (int i = 0; i < acceptor->n_sockets; i++)
        close(acceptor->sockets[i]);
    sodium_memzero(acceptor, sizeof *acceptor);
    free(acceptor);
}
