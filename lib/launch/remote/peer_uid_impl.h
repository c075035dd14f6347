/*
 * peer_uid_impl.h - which user is at the other end of a TCP connection of this machine
 *
 * TCP carries no credentials, but the kernel knows the owner of the peer's socket as long as that
 * socket is on this machine: NETLINK_SOCK_DIAG answers for one connection, /proc/self/net/tcp lists
 * all. A socket whose process has already closed it has no owner any more (the kernel then reports
 * uid 0), so only an established connection with an inode counts.
 */
#ifndef LAUNCH_REMOTE_PEER_UID_IMPL_H
#define LAUNCH_REMOTE_PEER_UID_IMPL_H

#include <sys/types.h>

enum peer_owner {
    PEER_OWNED,   /* *uid is set */
    PEER_UNOWNED, /* no such open socket on this machine: a remote peer, or closed meanwhile */
    PEER_UNKNOWN, /* this system does not say */
};

/* A socket for the queries below; -1 where the system has none, and /proc is read instead. */
int peer_uid_open(void);

/* The owner of the socket that is connected to fd (TCP over IPv4 or IPv6), as this process sees
 * user numbers. */
enum peer_owner peer_uid(int query_fd, int fd, uid_t *uid);

/* The same, from the table in a file like /proc/self/net/tcp. */
enum peer_owner peer_uid_from_table(const char *path, int fd, uid_t *uid);

#endif
