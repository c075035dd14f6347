/*
 * hosts_impl.h - what the head and the daemon say to each other until they trust each other
 *
 * The head writes an *invitation* to the daemon's stdin, through ssh: where to connect to, and a
 * cookie of 256 random bits for this host alone. On the connection then (all sizes fixed):
 *
 *     head    magic[8]  nonce_head[32]
 *     daemon  index[4]  nonce_daemon[32]  HMAC(cookie, "daemon", index, both nonces)
 *     head    HMAC(cookie, "head", index, both nonces)
 *
 * A stranger learns a nonce and nothing else. What is said later is authentic only as far as the
 * network is: nothing is encrypted.
 */
#ifndef LAUNCH_REMOTE_HOSTS_IMPL_H
#define LAUNCH_REMOTE_HOSTS_IMPL_H

#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>

#include "launch/remote/hosts.h"

enum {
    HOSTS_COOKIE_BYTES = 32,
    HOSTS_NONCE_BYTES = 32,
    HOSTS_PROOF_BYTES = 32,
    HOSTS_MAGIC_BYTES = 8,
    HOSTS_HELLO_BYTES = HOSTS_MAGIC_BYTES + HOSTS_NONCE_BYTES,
    HOSTS_ANSWER_BYTES = 4 + HOSTS_NONCE_BYTES + HOSTS_PROOF_BYTES,
    HOSTS_ADDRESSES_MAX = 32,
    HOSTS_INVITATION_MAX = 8192,
};

#define REMOTE_MAGIC "lmtrain1"

struct remote_address {
    char ip[INET6_ADDRSTRLEN];
    int port;
};

struct remote_invitation {
    char build[96];      /* of the head; "" where it does not care */
    int index;           /* of the host in its list */
    double seconds;      /* to connect in */
    double link_seconds; /* link_lost_seconds of the head */
    int n_addresses;
    struct remote_address addresses[HOSTS_ADDRESSES_MAX];
    unsigned char cookie[HOSTS_COOKIE_BYTES];
};

/* What the daemon prints when it is another build; the head puts it into words. */
#define REMOTE_OTHER_BUILD "lmtrain-build "

/* The text for stdin; holds the cookie: wipe it. Returns its length. */
size_t remote_invitation_write(const struct remote_invitation *invitation,
                               char text[HOSTS_INVITATION_MAX]);

/* text is cut up and wiped. ERR_FAILED where it is none; ERR_CONFIG for another build or protocol.
 */
int remote_invitation_read(struct remote_invitation *invitation, char *text, const char *build,
                           struct err *err);

/* Whether a whole invitation has come. */
int remote_invitation_is_whole(const char *text, size_t n_bytes);

enum remote_role { HOSTS_HEAD, HOSTS_DAEMON };

struct remote_challenge {
    uint32_t index;
    unsigned char nonce_head[HOSTS_NONCE_BYTES], nonce_daemon[HOSTS_NONCE_BYTES];
};

void remote_prove(unsigned char proof[HOSTS_PROOF_BYTES], const unsigned char *cookie,
                  enum remote_role role, const struct remote_challenge *challenge);

/* 1 if it is the proof, in a time that tells nothing. */
int remote_check_proof(const unsigned char *proof, const unsigned char *cookie,
                       enum remote_role role, const struct remote_challenge *challenge);

/* n_bytes of the kernel's random numbers; ends the process where there are none. */
void remote_random(void *bytes, size_t n_bytes);

/* Returns 0, or -1 with errno. */
int remote_block(int fd);

/* ---- remote_ssh.c ---- */

/*
 * Start `lmtrain daemon` on link->host. Fills ssh, stdin_fd and words_fd; the process is the
 * caller's to reap.
 */
int remote_ssh_start(struct host_link *link, double timeout_seconds, struct err *err);

/* Why it ended, from its wait status and its last words: "host b: ...". build is ours. */
void remote_ssh_reason(const struct host_link *link, const siginfo_t *ended, const char *build,
                       char reason[512]);

/* ---- remote_accept.c ---- */

/*
 * The head's side of the connections: listening sockets, and visitors who have not yet proved
 * anything. They are few, they have little time, and the oldest goes when there are too many.
 */
struct remote_accept;

/* Listen on this machine's addresses, or $LMTRAIN_INTERFACE (a name or an address). */
struct remote_accept *remote_accept_open(struct err *err);
void remote_accept_close(struct remote_accept *lobby);

/* Where it listens; returns how many addresses. */
int remote_accept_addresses(const struct remote_accept *lobby, struct remote_address *addresses);

/*
 * cookies[n_hosts] of HOSTS_COOKIE_BYTES; expected[i] says whether host i may still come. Wait up
 * to milliseconds for something to happen and see to it. Returns the index of a host that proved
 * itself, with its descriptor in *fd, or -1. Call it again at once as long as somebody came.
 */
struct remote_peers {
    int n_hosts;
    const unsigned char *cookies;
    const unsigned char *expected;
};

int remote_accept_wait(struct remote_accept *lobby, const struct remote_peers *guests,
                       int milliseconds, int *fd);

#endif
