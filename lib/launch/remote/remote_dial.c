/*
 * remote_dial.c - the daemon's way to the head
 *
 * The head may have many addresses, of which this host reaches only some, and some may belong to
 * another machine here (every machine with containers has the same private networks). So all are
 * tried, 0.25 s apart, the one that ssh came from first; hosts_impl.h has the handshake by which
 * both sides prove themselves.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "base/thread.h"
#include "launch/remote/hosts_impl.h"

static const double handshake_seconds = 30;
static const double next_address_seconds = 0.25;
static const double proof_seconds = 3;
static const double again_seconds = 0.3;

struct calling {
    const struct remote_handshake *handshake;
    int stdin_fd;
    int fds[HOSTS_ADDRESSES_MAX]; /* -1: not started, or over */
    int n_begun;
    double next;     /* when the next address is due */
    char wrong[256]; /* what the last failure was */
};

static int milliseconds_until(double deadline)
{
    double left = deadline - clock_seconds();

    return left <= 0 ? 0 : (int)(left * 1000) + 1;
}

/* ---- the handshake ---- */

static int read_text(int fd, char text[REMOTE_HANDSHAKE_MAX], struct err *err)
{
    double deadline = clock_seconds() + handshake_seconds;
    size_t n_bytes = 0;

    while (!remote_handshake_is_whole(text, n_bytes)) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        int n_ready = poll(&ready, 1, milliseconds_until(deadline));

        if (n_ready < 0 && errno == EINTR)
            continue;
        if (n_ready <= 0)
            return err_set(err, ERR_FAILED, "received no handshake on stdin within %.0f s",
                           handshake_seconds);
        ssize_t n = read(fd, text + n_bytes, REMOTE_HANDSHAKE_MAX - 1 - n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_set(err, ERR_FAILED, "stdin ended before a complete handshake was received");
        n_bytes += (size_t)n;
        text[n_bytes] = '\0';
        if (n_bytes == REMOTE_HANDSHAKE_MAX - 1)
            return err_set(err, ERR_FAILED, "data on stdin is not a handshake");
    }
    return 0;
}

/* Move the address that ssh came from to the front. */
static void prefer_ssh_client(struct remote_handshake *handshake)
{
    const char *text = getenv("SSH_CONNECTION");
    size_t length = text ? strcspn(text, " ") : 0;

    for (int i = 1; i < handshake->n_addresses && length; i++) {
        struct remote_address address = handshake->addresses[i];

        if (strlen(address.ip) != length || strncmp(address.ip, text, length))
            continue;
        memmove(handshake->addresses + 1, handshake->addresses, (size_t)i * sizeof address);
        handshake->addresses[0] = address;
        return;
    }
}

/* ---- one address ---- */

static int begin(const struct remote_address *address)
{
    struct sockaddr_in four = { .sin_family = AF_INET,
                                .sin_port = htons((in_port_t)address->port) };
    struct sockaddr_in6 six = { .sin6_family = AF_INET6,
                                .sin6_port = htons((in_port_t)address->port) };
    bool is_four = inet_pton(AF_INET, address->ip, &four.sin_addr) == 1;

    if (!is_four && inet_pton(AF_INET6, address->ip, &six.sin6_addr) != 1)
        return -1;
    int fd = socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    const struct sockaddr *to =
        is_four ? (const struct sockaddr *)&four : (const struct sockaddr *)&six;
    if (connect(fd, to, is_four ? sizeof four : sizeof six) && errno != EINPROGRESS) {
        int saved = errno;

        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

static int receive(int fd, unsigned char *bytes, size_t n_bytes, double deadline)
{
    while (n_bytes) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };

        if (poll(&ready, 1, milliseconds_until(deadline)) == 0) {
            errno = ETIMEDOUT;
            return -1;
        }
        ssize_t n = recv(fd, bytes, n_bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0) {
            errno = n ? errno : ECONNRESET;
            return -1;
        }
        bytes += n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

/* Steps 2 and 3 of hosts_impl.h. Returns 0, or -1 with errno; EPROTO: the peer is not the head. */
static int authenticate(int fd, const struct remote_handshake *handshake)
{
    struct remote_challenge challenge = { .index = (uint32_t)handshake->index };
    unsigned char hello[HOSTS_HELLO_BYTES], answer[HOSTS_ANSWER_BYTES], proof[HOSTS_PROOF_BYTES];
    double deadline = clock_seconds() + proof_seconds;

    if (receive(fd, hello, sizeof hello, deadline))
        return -1;
    errno = EPROTO;
    if (memcmp(hello, REMOTE_MAGIC, HOSTS_MAGIC_BYTES))
        return -1;
    memcpy(challenge.nonce_head, hello + HOSTS_MAGIC_BYTES, HOSTS_NONCE_BYTES);
    remote_random(challenge.nonce_daemon, HOSTS_NONCE_BYTES);
    for (int i = 0; i < 4; i++)
        answer[i] = (unsigned char)(challenge.index >> 8 * i);
    memcpy(answer + 4, challenge.nonce_daemon, HOSTS_NONCE_BYTES);
    remote_prove(answer + 4 + HOSTS_NONCE_BYTES, handshake->cookie, HOSTS_DAEMON, &challenge);
    if (send(fd, answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer ||
        receive(fd, proof, sizeof proof, deadline))
        return -1;
    errno = EPROTO;
    return remote_check_proof(proof, handshake->cookie, HOSTS_HEAD, &challenge) ? 0 : -1;
}

/* ---- all of them ---- */

static void note_failure(struct calling *c, int i, int error)
{
    const struct remote_address *address = &c->handshake->addresses[i];

    snprintf(c->wrong, sizeof c->wrong, "%s port %d: %s", address->ip, address->port,
             error == EPROTO ? "the peer is not the head of this job" : strerror(error));
    if (c->fds[i] >= 0)
        close(c->fds[i]);
    c->fds[i] = -1;
}

static int n_open(const struct calling *c)
{
    int n = 0;

    for (int i = 0; i < c->n_begun; i++)
        n += c->fds[i] >= 0;
    return n;
}

/*
 * Begin the next address when it is due, or when none is under way; after the last, the first
 * again.
 */
static void begin_next(struct calling *c)
{
    double now = clock_seconds();
    bool none = !n_open(c);

    if (c->n_begun == c->handshake->n_addresses) {
        if (none && now >= c->next)
            c->n_begun = 0;
        return;
    }
    if (now < c->next && !(none && c->n_begun))
        return;
    int i = c->n_begun++;
    c->fds[i] = begin(&c->handshake->addresses[i]);
    if (c->fds[i] < 0)
        note_failure(c, i, errno);
    c->next =
        now + (c->n_begun == c->handshake->n_addresses ? again_seconds : next_address_seconds);
}

/* Returns a descriptor that proved itself, or -1. */
static int hear(struct calling *c, const struct pollfd *polls)
{
    for (int i = 0; i < c->n_begun; i++) {
        int error = 0;
        socklen_t length = sizeof error;

        if (c->fds[i] < 0 || !polls[i].revents)
            continue;
        if (getsockopt(c->fds[i], SOL_SOCKET, SO_ERROR, &error, &length))
            error = errno;
        if (!error && authenticate(c->fds[i], c->handshake))
            error = errno;
        if (!error)
            return c->fds[i];
        note_failure(c, i, error);
    }
    return -1;
}

static int call_once(struct calling *c, struct err *err)
{
    struct pollfd polls[HOSTS_ADDRESSES_MAX + 1];
    char byte;

    begin_next(c);
    for (int i = 0; i < c->n_begun; i++)
        polls[i] = (struct pollfd){ .fd = c->fds[i], .events = POLLOUT };
    polls[c->n_begun] = (struct pollfd){ .fd = c->stdin_fd, .events = POLLIN };
    if (poll(polls, (nfds_t)c->n_begun + 1, 50) <= 0)
        return -1;
    if (polls[c->n_begun].revents && read(c->stdin_fd, &byte, 1) <= 0) {
        err_set(err, ERR_PEER, "the head closed the connection while this host tried to reach it");
        return -2;
    }
    return hear(c, polls);
}

static int call_head(const struct remote_handshake *handshake, int stdin_fd, struct err *err)
{
    struct calling c = { .handshake = handshake, .stdin_fd = stdin_fd };
    double deadline = clock_seconds() + handshake->seconds;
    int fd = -1;

    while (fd == -1 && clock_seconds() < deadline)
        fd = call_once(&c, err);
    for (int i = 0; i < c.n_begun; i++)
        if (c.fds[i] >= 0 && c.fds[i] != fd)
            close(c.fds[i]);
    if (fd == -1)
        err_set(err, ERR_PEER,
                "cannot reach the head at any of its %d addresses, the last one being %s (hint: a "
                "firewall? LMTRAIN_INTERFACE on the head names the network to use)",
                handshake->n_addresses, *c.wrong ? c.wrong : "silent");
    return fd < 0 ? -1 : fd;
}

/* ---- the lifeline ---- */

struct lifeline {
    int stdin_fd, fd;
};

/* When stdin ends, shut the connection down, so that the daemon sees its end. */
static void *hold_lifeline(void *argument)
{
    struct lifeline lifeline = *(struct lifeline *)argument;
    char bytes[64];
    ssize_t n;

    free(argument);
    do
        n = read(lifeline.stdin_fd, bytes, sizeof bytes);
    while (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)));
    shutdown(lifeline.fd, SHUT_RDWR);
    close(lifeline.fd);
    return NULL;
}

static int start_lifeline(int stdin_fd, int fd, struct err *err)
{
    struct lifeline *lifeline = malloc(sizeof *lifeline);

    CHECK(lifeline);
    /* A descriptor of its own: the original number may be reused by then. */
    *lifeline = (struct lifeline){ stdin_fd, fcntl(fd, F_DUPFD_CLOEXEC, 3) };
    errno = lifeline->fd < 0 ? errno : thread_start(NULL, NULL, hold_lifeline, lifeline);
    if (!errno)
        return 0;
    err_set_errno(err, ERR_FAILED, "cannot watch stdin");
    if (lifeline->fd >= 0)
        close(lifeline->fd);
    free(lifeline);
    return -1;
}

int hosts_answer(int stdin_fd, const char *build, double *link_seconds, struct err *err)
{
    char text[REMOTE_HANDSHAKE_MAX] = "";
    struct remote_handshake handshake;
    int fd = -1;

    if (sodium_init() < 0)
        return err_set(err, ERR_FAILED, "libsodium cannot be initialised on this machine");
    int status = read_text(stdin_fd, text, err);
    if (!status)
        status = remote_handshake_read(&handshake, text, build, err);
    else
        handshake.n_addresses = 0;
    if (status && err->code == ERR_CONFIG)
        fprintf(stderr, REMOTE_OTHER_BUILD "%s\n", build);
    if (!status) {
        prefer_ssh_client(&handshake);
        fd = call_head(&handshake, stdin_fd, err);
    }
    *link_seconds = status ? 0 : handshake.link_seconds;
    sodium_memzero(text, sizeof text);
    sodium_memzero(&handshake, sizeof handshake);
    if (fd < 0)
        return -1;
    if (remote_block(fd)) {
        err_set_errno(err, ERR_FAILED, "the connection to the head was closed immediately");
    } else if (!start_lifeline(stdin_fd, fd, err)) {
        return fd;
    }
    close(fd);
    return -1;
}
