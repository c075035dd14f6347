/*
 * pmix_listener_impl.h - the PMIx server's TCP port for ourselves
 *
 * PMIx 4 listens on TCP alone and has no option for a socket of ours. So after PMIx_server_init its
 * listening socket is duplicated, and a listening Unix socket is put under its descriptor number:
 * from then on PMIx accepts what connects there. Its listener thread may be in select() on the old
 * socket, so both are connected to once, and the Unix connection is followed until PMIx has closed
 * it, which also shows that the exchange worked. Connections that PMIx accepted over TCP in between
 * are shut down, so that a silent one does not block it.
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
