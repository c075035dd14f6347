/*
 * peer_uid.c - inet_diag's answer for one connection, or its line in /proc/self/net/tcp
 */
#include "launch/remote/peer_uid_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const int answer_seconds = 2;

/* One end of a connection: an IPv4 address is in the first word. All in network order. */
struct end {
    uint32_t address[4];
    uint16_t port;
};

int peer_uid_open(void)
{
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    struct timeval limit = { .tv_sec = answer_seconds };

    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static int read_end(const struct sockaddr_storage *address, struct end *end)
{
    *end = (struct end){ 0 };
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)address;

        end->address[0] = in->sin_addr.s_addr;
        end->port = in->sin_port;
        return AF_INET;
    }
    if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;

        memcpy(end->address, &in6->sin6_addr, sizeof end->address);
        end->port = in6->sin6_port;
        return AF_INET6;
    }
    return -1;
}

/* Both ends of fd's connection; returns the family, -1 if it is not connected. */
static int read_ends(int fd, struct end *own, struct end *peer)
{
    struct sockaddr_storage address = { 0 };
    socklen_t size = sizeof address;

    if (getsockname(fd, (struct sockaddr *)&address, &size) || read_end(&address, own) < 0)
        return -1;
    size = sizeof address;
    if (getpeername(fd, (struct sockaddr *)&address, &size))
        return -1;
    return read_end(&address, peer);
}

/* ---- inet_diag ---- */

struct query {
    struct nlmsghdr header;
    struct inet_diag_req_v2 request;
};

static enum peer_owner take_answer(const struct inet_diag_msg *found, const struct end *own,
                                   uid_t *uid)
{
    /* A process that listens on the peer's port is found where the connection is gone. */
    if (found->idiag_state != TCP_ESTABLISHED || !found->idiag_inode ||
        found->id.idiag_dport != own->port)
        return PEER_UNOWNED;
    *uid = found->idiag_uid;
    return PEER_OWNED;
}

static enum peer_owner ask_kernel(int query_fd, int family, const struct end *own,
                                  const struct end *peer, uid_t *uid)
{
    static uint32_t sequence;
    struct query query = {
        .header = { .nlmsg_len = sizeof query,
                    .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                    .nlmsg_flags = NLM_F_REQUEST,
                    .nlmsg_seq = __atomic_add_fetch(&sequence, 1, __ATOMIC_RELAXED) },
        .request = { .sdiag_family = (uint8_t)family,
                     .sdiag_protocol = IPPROTO_TCP,
                     .idiag_states = ~0u,
                     .id = { .idiag_sport = peer->port,
                             .idiag_dport = own->port,
                             .idiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE } } },
    };
    union {
        struct nlmsghdr header;
        char bytes[4096];
    } answer;

    memcpy(query.request.id.idiag_src, peer->address, sizeof peer->address);
    memcpy(query.request.id.idiag_dst, own->address, sizeof own->address);
    if (send(query_fd, &query, sizeof query, 0) != (ssize_t)sizeof query)
        return PEER_UNKNOWN;
    for (;;) {
        ssize_t n = recv(query_fd, &answer, sizeof answer, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < (ssize_t)sizeof answer.header)
            return PEER_UNKNOWN;
        if (answer.header.nlmsg_seq != query.header.nlmsg_seq)
            continue; /* late, to a question that was given up */
        if (answer.header.nlmsg_type == SOCK_DIAG_BY_FAMILY &&
            n >= (ssize_t)NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
            return take_answer(NLMSG_DATA(&answer.header), own, uid);
        /* An error's first word is a negative errno. */
        int error = 0;
        if (answer.header.nlmsg_type == NLMSG_ERROR &&
            n >= (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)))
            error = ((const struct nlmsgerr *)NLMSG_DATA(&answer.header))->error;
        return error == -ENOENT ? PEER_UNOWNED : PEER_UNKNOWN;
    }
}

/* ---- /proc ---- */

/* "0100007F:1F90": words of the address as the machine holds them, and the port as a number. */
static int same_end(const char *text, int family, const struct end *end)
{
    int n_words = family == AF_INET ? 1 : 4;

    for (int i = 0; i < n_words; i++) {
        char word[9] = "";

        if (strnlen(text, 8) < 8)
            return 0;
        memcpy(word, text, 8);
        if ((uint32_t)strtoul(word, NULL, 16) != end->address[i])
            return 0;
        text += 8;
    }
    return *text == ':' && strtoul(text + 1, NULL, 16) == ntohs(end->port);
}

enum peer_owner peer_uid_from_table(const char *path, int fd, uid_t *uid)
{
    struct end own, peer;
    int family = read_ends(fd, &own, &peer);
    enum peer_owner found = PEER_UNOWNED;
    char line[512];
    FILE *table = family < 0 ? NULL : fopen(path, "re");

    if (family < 0)
        return PEER_UNOWNED;
    if (!table)
        return PEER_UNKNOWN;
    while (found == PEER_UNOWNED && fgets(line, sizeof line, table)) {
        char local[64], remote[64];
        unsigned state, owner;
        unsigned long inode;

        if (sscanf(line, " %*[0-9]: %63s %63s %x %*s %*s %*s %u %*s %lu", local, remote, &state,
                   &owner, &inode) != 5 ||
            state != TCP_ESTABLISHED || !inode || !same_end(local, family, &peer) ||
            !same_end(remote, family, &own))
            continue;
        *uid = owner;
        found = PEER_OWNED;
    }
    fclose(table);
    return found;
}

enum peer_owner peer_uid(int query_fd, int fd, uid_t *uid)
{
    struct end own, peer;
    int family = read_ends(fd, &own, &peer);
    enum peer_owner found = PEER_UNKNOWN;

    if (family < 0)
        return PEER_UNOWNED;
    if (query_fd >= 0)
        found = ask_kernel(query_fd, family, &own, &peer, uid);
    if (found != PEER_UNKNOWN)
        return found;
    return peer_uid_from_table(family == AF_INET ? "/proc/self/net/tcp" : "/proc/self/net/tcp6", fd,
                               uid);
}
