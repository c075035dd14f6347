/*
 * pmix_listener_impl.h - the PMIx server's TCP port for ourselves
 *
 * PMIx 4 listens on TCP alone and has no option for a socket of ours. So its socket is exchanged:
 *
 *     1. After PMIx_server_init the listening TCP socket is the one that did not listen before. It
 *        is duplicated: the copy is for the gate.
 *     2. A probe connects to a listening Unix socket, and dup3 puts that socket under the number of
 *        PMIx's descriptor.
 *     3. PMIx's listener thread may still be in select() on the TCP socket. A connection to the TCP
 *        port wakes it; from its next turn on it accepts on the Unix socket.
 *     4. It accepts the probe, reads its end and closes it: this shows that the exchange worked.
 *     5. Connections that PMIx accepted over TCP until then are shut down, as a silent one would
 *        block it, and those still queued are closed: no rank is started yet.
 */
#ifndef LAUNCH_NODE_PMIX_LISTENER_IMPL_H
#define LAUNCH_NODE_PMIX_LISTENER_IMPL_H

#include <stddef.h>

#include "base/err.h"

enum { LISTENERS_MAX = 64 };

/* Descriptors of this process that listen on TCP. */
struct tcp_listeners {
    int n;
    int fds[LISTENERS_MAX];
};

/* To be called before PMIx_server_init. */
void tcp_listeners_find(struct tcp_listeners *listeners);

/*
 * To be called after it. The Unix socket is made in `folder`, which must be private to this user.
 * Sets *tcp, non-blocking and the caller's, and *path, by which this process reaches the Unix
 * socket as long as it lives. Returns 0, or -1 and ERR_FAILED.
 */
int pmix_listener_replace(const struct tcp_listeners *before, const char *folder, int *tcp,
                          char *path, size_t size, struct err *err);

#endif
