/*
 * pmix_listener.c - finding PMIx's listening socket and putting ours in its place
 */
#include "launch/node/pmix_listener_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/fd_impl.h"

static const double exchange_seconds = 10;

enum { LOOK_MS = 20 };

/* ---- this process's sockets ---- */

static int socket_option(int fd, int option)
{
    socklen_t size = sizeof(int);
    int value = -1;

    return getsockopt(fd, SOL_SOCKET, option, &value, &size) ? -1 : value;
}

static int is_tcp(int fd)
{
    int domain = socket_option(fd, SO_DOMAIN);

    return (domain == AF_INET || domain == AF_INET6) &&
           socket_option(fd, SO_PROTOCOL) == IPPROTO_TCP;
}

static int listens(int fd)
{
    return is_tcp(fd) && socket_option(fd, SO_ACCEPTCONN) == 1;
}

/* In network order; -1: none. */
static int port_of(int fd)
{
    struct sockaddr_storage address = { 0 };
    socklen_t size = sizeof address;

    if (getsockname(fd, (struct sockaddr *)&address, &size))
        return -1;
    if (address.ss_family == AF_INET6)
        return ((const struct sockaddr_in6 *)&address)->sin6_port;
    return ((const struct sockaddr_in *)&address)->sin_port;
}

/* Call each for every open descriptor. */
static void visit_files(void (*each)(void *context, int fd), void *context)
{
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        char *end;
        long fd = strtol(entry->d_name, &end, 10);

        if (end != entry->d_name && !*end && fd != dirfd(folder))
            each(context, (int)fd);
    }
    if (folder)
        closedir(folder);
}

static void add_listener(void *context, int fd)
{
    struct tcp_listeners *listeners = context;

    if (listens(fd) && listeners->n < LISTENERS_MAX)
        listeners->fds[listeners->n++] = fd;
}

void tcp_listeners_find(struct tcp_listeners *listeners)
{
    listeners->n = 0;
    visit_files(add_listener, listeners);
}

/* What listens now and did not before; -1 unless that is one socket. */
static int find_new(const struct tcp_listeners *before)
{
    struct tcp_listeners now;
    int found = -1, n_found = 0;

    tcp_listeners_find(&now);
    for (int i = 0; i < now.n; i++) {
        bool is_old = false;

        for (int k = 0; k < before->n; k++)
            is_old |= before->fds[k] == now.fds[i];
        if (is_old)
            continue;
        found = now.fds[i];
        n_found++;
    }
    return n_found == 1 ? found : -1;
}

static void shut_if_accepted(void *context, int fd)
{
    const int *port = context;

    if (is_tcp(fd) && !listens(fd) && port_of(fd) == *port)
        shutdown(fd, SHUT_RDWR);
}

/* ---- the exchange ---- */

/* A listening Unix socket in folder; its address has few characters however long folder is. */
static int listen_in(const char *folder, struct sockaddr_un *address)
{
    int folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/pmix", folder_fd);
    if (folder_fd < 0 || fd < 0 || bind(fd, (const struct sockaddr *)address, sizeof *address) ||
        listen(fd, SOMAXCONN)) {
        int failure = errno;

        fd_close(&folder_fd);
        fd_close(&fd);
        errno = failure;
    }
    return fd; /* folder_fd stays open: it is part of the address */
}

static int connect_unix(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address))
        fd_close(&fd);
    if (fd >= 0)
        shutdown(fd, SHUT_WR); /* PMIx finds no message and closes */
    return fd;
}

/* A connection to the TCP port, successful or not: it wakes PMIx's select(). */
static int connect_tcp(int listener)
{
    struct sockaddr_storage address = { 0 };
    socklen_t size = sizeof address;

    if (getsockname(listener, (struct sockaddr *)&address, &size))
        return -1;
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        connect(fd, (const struct sockaddr *)&address, size);
    return fd;
}

/* Whether PMIx took the Unix connection and closed it. */
static int was_served(int fd, int port)
{
    double deadline = clock_seconds() + exchange_seconds;

    while (clock_seconds() < deadline) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        char byte;

        if (poll(&ready, 1, LOOK_MS) > 0)
            return read(fd, &byte, 1) <= 0;
        visit_files(shut_if_accepted, &port);
    }
    return 0;
}

/* Close connections from before the gate: no rank is started yet. */
static void refuse_all(int listener)
{
    int fd;

    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        close(fd);
}

static int exchange(int pmix_fd, int unix_fd, const struct sockaddr_un *address, int tcp)
{
    int probe = connect_unix(address), wake = -1, served = 0;

    if (probe >= 0 && dup3(unix_fd, pmix_fd, O_CLOEXEC) >= 0) {
        wake = connect_tcp(tcp);
        served = was_served(probe, port_of(tcp));
        visit_files(shut_if_accepted, &(int){ port_of(tcp) });
        refuse_all(tcp);
    }
    fd_close(&probe);
    fd_close(&wake);
    return served ? 0 : -1;
}

int pmix_listener_replace(const struct tcp_listeners *before, const char *folder, int *tcp,
                          char *path, size_t size, struct err *err)
{
    struct sockaddr_un address;
    int pmix_fd = find_new(before), status = -1;

    if (pmix_fd < 0)
        return err_set(
            err, ERR_FAILED,
            "the PMIx server listens on no TCP port, or on several (hint: lmtrain needs PMIx 4.2)");
    int unix_fd = listen_in(folder, &address);
    if (unix_fd < 0)
        return err_set_errno(err, ERR_FAILED, "cannot make a socket in %s", folder);
    int copy = fcntl(pmix_fd, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0)
        status = exchange(pmix_fd, unix_fd, &address, copy);
    close(unix_fd);
    if (status) {
        fd_close(&copy);
        return err_set(err, ERR_FAILED,
                       "the PMIx server does not accept connections on the given socket (hint: "
                       "lmtrain needs PMIx 4.2)");
    }
    snprintf(path, size, "%s", address.sun_path);
    *tcp = copy;
    return 0;
}
