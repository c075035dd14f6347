/*
 * pmix_gate_impl.h - authentication of connections to the PMIx server
 *
 *     rank --TCP on loopback--> gate --Unix socket--> PMIx's listener
 *
 * PMIx 4 serves TCP alone, believes the uid that a client claims, and reads a client's first
 * message on the thread that serves all others, for as long as that takes. So its listener is given
 * a Unix socket which only this gate connects to (pmix_listener_impl.h), and the gate has the TCP
 * port. A connection is passed on once
 *   - the kernel says that the peer's socket belongs to this user (peer_uid_impl.h), and
 *   - its first message came within a few seconds, is well-formed, and names our namespace and a
 *     rank of this node, as a simple client.
 * Others are closed, counted, and reported at the first, 10th, 100th, ... of a kind. A peer of this
 * user whose first message is wrong is closed only after a second, which slows down guessing. At
 * most GATE_WAITING_MAX connections wait for their first message: one more, and the longest waiting
 * is closed.
 *
 * The life of a connection:
 *
 *     1. Accepted; the kernel is asked for the owner of the peer's socket. Another user's is
 *        closed.
 *     2. Waiting: its bytes are collected until the first message is complete, has timed out, or
 *        the connection is the oldest of more than GATE_WAITING_MAX.
 *     3. pmix_gate_judge accepts the message: a connection to the Unix socket is made, and the
 *        collected bytes are written there. Else it is refused: not read any more, closed a second
 *        later.
 *     4. Passed on: bytes are copied both ways through two buffers of GATE_MESSAGE_MAX; the end of
 *        one direction is forwarded as shutdown(SHUT_WR). Once PMIx has closed its side, both are
 *        closed.
 *
 * The gate is a thread of its own. It trusts PMIx, and never blocks on either side.
 */
#ifndef LAUNCH_NODE_PMIX_GATE_IMPL_H
#define LAUNCH_NODE_PMIX_GATE_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

enum { GATE_WAITING_MAX = 32, GATE_MESSAGE_MAX = 16 << 10 };

struct pmix_gate;

/* Why connections were closed, and how many were passed on. */
enum gate_count {
    GATE_ADMITTED,
    GATE_OTHER_USER, /* the peer's socket is not this user's */
    GATE_WRONG,      /* the first message is malformed, or names another job or rank */
    GATE_LATE,       /* no whole first message before the deadline */
    GATE_CROWDED,    /* too many were waiting */
    GATE_COUNTS
};

struct pmix_gate_options {
    int listener;        /* TCP, listening; belongs to the gate from now on, also on failure */
    const char *backend; /* path of the Unix socket on which PMIx listens */
    const char *nspace;
    int first_rank, n_ranks;
    uid_t uid;
    double first_message_seconds;
    /* Called on the gate's thread with a line for the user; text is the callee's to copy. */
    void (*report)(void *context, const char *text);
    void *context;
};

/* Texts of options are copied. Returns 0, or -1 and ERR_FAILED. */
int pmix_gate_start(struct pmix_gate **gate, const struct pmix_gate_options *options,
                    struct err *err);

/* End the thread, close all connections. NULL is allowed. */
void pmix_gate_stop(struct pmix_gate *gate);

uint64_t pmix_gate_count(const struct pmix_gate *gate, enum gate_count count);

/*
 * Whether bytes begin with a whole first message that may be passed on: 1; 0: more has to come; -1:
 * never. Pure. The format is that of PMIx 2.1 to 4 (ptl_base_handshake.h): a header of two words,
 * the number of bytes that follow and padding in the machine's order, then text, numbers of 4 bytes
 * in network order, and single bytes: security module, credential's size, credential, kind of
 * client, namespace, rank, version, ...
 */
int pmix_gate_judge(const void *bytes, size_t n_bytes, const char *nspace, int first_rank,
                    int n_ranks);

#endif
