/*
 * hosts_impl.h - how the head and a daemon authenticate each other
 *
 * The head writes a *handshake* to the daemon's stdin, through ssh: the addresses to connect to,
 * and a cookie of 256 random bits for this host alone. On the connection (all sizes are fixed):
 *
 *     head    magic[8]  nonce_head[32]
 *     daemon  index[4]  nonce_daemon[32]  HMAC(cookie, "daemon", index, both nonces)
 *     head    HMAC(cookie, "head", index, both nonces)
 *
 *     1. The daemon connects to each address in turn until one peer sends the magic and a nonce.
 *     2. It proves first: an unauthenticated head has sent a nonce only, and a port scanner gets no
 *        more.
 *     3. The head compares the proof with the cookie of host `index`, which must still be expected,
 *        and only then sends its own proof. The role in the HMAC keeps one proof from being used as
 *        the other.
 *     4. The daemon tries the next address if the head's proof is wrong: on networks of containers
 *        the same address may belong to another machine.
 *
 * Messages after that are as authentic as the network is: they are neither encrypted nor signed.
 */
#ifndef LAUNCH_REMOTE_HOSTS_IMPL_H
#define LAUNCH_REMOTE_HOSTS_IMPL_H

#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
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
    REMOTE_HANDSHAKE_MAX = 8192,
};

#define REMOTE_MAGIC "lmtrain1"

struct remote_address {
    char ip[INET6_ADDRSTRLEN];
    int port;
};

struct remote_handshake {
    char build[96];      /* of the head; "" where it does not care */
    int index;           /* of the host in its list */
    double seconds;      /* to connect in */
    double link_seconds; /* link_lost_seconds of the head */
    int n_addresses;
    struct remote_address addresses[HOSTS_ADDRESSES_MAX];
    unsigned char cookie[HOSTS_COOKIE_BYTES];
};

/*
 * Printed by a daemon of another build, followed by that build; the head makes an error message of
 * it.
 */
#define REMOTE_OTHER_BUILD "lmtrain-build "

/* The text for stdin; holds the cookie: wipe it. Returns its length. */
size_t remote_handshake_write(const struct remote_handshake *handshake,
                              char text[REMOTE_HANDSHAKE_MAX]);

/* text is modified and wiped. ERR_FAILED if it is not a handshake; ERR_CONFIG for another build or
 * protocol. */
int remote_handshake_read(struct remote_handshake *handshake, char *text, const char *build,
                          struct err *err);

/* Whether text ends with the last line of a handshake. */
int remote_handshake_is_whole(const char *text, size_t n_bytes);

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
 * The head's side of the connections: listening sockets, and peers that have not proved themselves
 * yet. Their number and their time are limited; when there are too many, the oldest is closed.
 */
struct remote_accept;

/* Listen on this machine's addresses, or $LMTRAIN_INTERFACE (a name or an address). */
struct remote_accept *remote_accept_open(struct err *err);
void remote_accept_close(struct remote_accept *acceptor);

/* Copy the addresses that it listens on; returns their number. */
int remote_accept_addresses(const struct remote_accept *acceptor, struct remote_address *addresses);

struct expected_hosts {
    int n_hosts;
    const unsigned char *cookies; /* [n_hosts] of HOSTS_COOKIE_BYTES */
    const bool *expected;         /* [n_hosts]: host i has not connected yet */
};

/*
 * Wait up to `milliseconds` for connections and answers, and process them. Returns the index of a
 * host that proved itself, with its descriptor in *fd, or -1. After an index call it again without
 * waiting.
 */
int remote_accept_wait(struct remote_accept *acceptor, const struct expected_hosts *hosts,
                       int milliseconds, int *fd);

#endif
