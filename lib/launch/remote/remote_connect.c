/*
 * remote_connect.c - a daemon on each host, and an authentic connection from each
 */
#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/fd_impl.h"
#include "launch/remote/hosts_impl.h"
#include "launch/remote/link_impl.h"

/*
 * Maximum number of ssh processes that are connecting: each costs the head some ms of key exchange.
 */
enum { N_CONNECTING_MAX = 64, TICK_MS = 20 };

/* How long hosts_close waits for ssh to end by itself. */
static const double close_seconds = 1;

enum connect_state { CONNECT_WAITING, CONNECT_STARTED, CONNECT_DONE, CONNECT_FAILED };

struct host_connections {
    const struct host_list *list;
    struct host_link *links;
    char (*reasons)[512];
    struct remote_accept *acceptor;
    enum connect_state *states;
    unsigned char *cookies;
    bool *expected;
    double deadline, link_seconds;
    int n_waiting, n_started, n_connected, next;
};

static void set_state(struct host_connections *c, int i, enum connect_state state)
{
    c->n_waiting -= c->states[i] == CONNECT_WAITING;
    c->n_started -= c->states[i] == CONNECT_STARTED;
    c->n_waiting += state == CONNECT_WAITING;
    c->n_started += state == CONNECT_STARTED;
    c->n_connected += state == CONNECT_DONE;
    c->states[i] = state;
    c->expected[i] = state == CONNECT_STARTED;
    if (state != CONNECT_STARTED)
        sodium_memzero(c->cookies + (size_t)i * HOSTS_COOKIE_BYTES, HOSTS_COOKIE_BYTES);
}

/* The pipe is empty and longer than the handshake, so this cannot block. */
static int send_handshake(struct host_connections *c, int i, struct err *err)
{
    struct remote_handshake handshake = { .index = i, .link_seconds = c->link_seconds };
    unsigned char *cookie = c->cookies + (size_t)i * HOSTS_COOKIE_BYTES;
    char text[REMOTE_HANDSHAKE_MAX];

    remote_random(cookie, HOSTS_COOKIE_BYTES);
    snprintf(handshake.build, sizeof handshake.build, "%s", c->list->build ? c->list->build : "");
    memcpy(handshake.cookie, cookie, HOSTS_COOKIE_BYTES);
    double left = c->deadline - clock_seconds();
    handshake.seconds = left < 0.1 ? 0.1 : left;
    handshake.n_addresses = remote_accept_addresses(c->acceptor, handshake.addresses);
    size_t n_bytes = remote_handshake_write(&handshake, text);
    ssize_t n = write(c->links[i].stdin_fd, text, n_bytes);
    /* EPIPE: ssh has ended, and its message is the reason. */
    bool failed = n != (ssize_t)n_bytes && errno != EPIPE;

    sodium_memzero(text, sizeof text);
    sodium_memzero(&handshake, sizeof handshake);
    return failed ? err_set_errno(err, ERR_FAILED, "cannot write to ssh") : 0;
}

static int start_some(struct host_connections *c, struct err *err)
{
    while (c->n_waiting && c->n_started < N_CONNECTING_MAX) {
        int i = c->next++;

        if (c->states[i] != CONNECT_WAITING)
            continue;
        if (remote_ssh_start(&c->links[i], c->deadline - clock_seconds(), err))
            return -1;
        set_state(c, i, CONNECT_STARTED);
        if (send_handshake(c, i, err))
            return -1;
    }
    return 0;
}

static void take_connections(struct host_connections *c)
{
    struct expected_hosts hosts = { c->list->n_hosts, c->cookies, c->expected };
    int fd, milliseconds = TICK_MS, i;

    while ((i = remote_accept_wait(c->acceptor, &hosts, milliseconds, &fd)) >= 0) {
        milliseconds = 0;
        if (remote_block(fd)) {
            close(fd);
            snprintf(c->reasons[i], sizeof *c->reasons,
                     "host %s: the connection was closed immediately: %s", c->links[i].host,
                     strerror(errno));
            set_state(c, i, CONNECT_FAILED);
            continue;
        }
        c->links[i].fd = fd;
        set_state(c, i, CONNECT_DONE);
    }
}

/* Find ssh processes that ended before their daemon connected. They are not reaped here. */
static void notice_ends(struct host_connections *c)
{
    for (int i = 0; i < c->list->n_hosts; i++) {
        siginfo_t info = { 0 };

        if (c->states[i] != CONNECT_STARTED ||
            waitid(P_PID, (id_t)c->links[i].ssh, &info, WEXITED | WNOHANG | WNOWAIT) ||
            !info.si_pid)
            continue;
        remote_ssh_reason(&c->links[i], &info, c->list->build, c->reasons[i]);
        set_state(c, i, CONNECT_FAILED);
    }
}

static void give_up(struct host_connections *c, double timeout_seconds)
{
    char words[256];

    for (int i = 0; i < c->list->n_hosts; i++) {
        const char *host = c->links[i].host;

        if (c->states[i] == CONNECT_STARTED && hosts_link_words(&c->links[i], words))
            snprintf(c->reasons[i], sizeof *c->reasons,
                     "host %s: no daemon in %.0f s; ssh said: %s", host, timeout_seconds, words);
        else if (c->states[i] == CONNECT_STARTED)
            snprintf(c->reasons[i], sizeof *c->reasons, "host %s: no answer in %.0f s", host,
                     timeout_seconds);
        else if (c->states[i] == CONNECT_WAITING)
            snprintf(c->reasons[i], sizeof *c->reasons,
                     "host %s: not tried: the other hosts used all of the %.0f s", host,
                     timeout_seconds);
        else
            continue;
        set_state(c, i, CONNECT_FAILED);
    }
}

/* Whether a signal asks this process to end; the caller has these signals blocked. */
static int is_interrupted(struct err *err)
{
    static const int signals[] = { SIGTERM, SIGINT, SIGHUP };
    sigset_t pending;

    sigemptyset(&pending);
    sigpending(&pending);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigismember(&pending, signals[i])) {
            err_set(err, ERR_REQUEUE, "stopped by signal %d (%s) while connecting to the hosts",
                    signals[i], strsignal(signals[i]));
            return 1;
        }
    return 0;
}

static int connect_all(struct host_connections *c, double timeout_seconds, struct err *err)
{
    while (c->n_waiting || c->n_started) {
        if (is_interrupted(err) || start_some(c, err))
            return -1;
        take_connections(c);
        notice_ends(c);
        if (clock_seconds() >= c->deadline)
            give_up(c, timeout_seconds);
    }
    return c->n_connected;
}

int hosts_connect(const struct host_list *list, const int *n_ranks_of, double timeout_seconds,
                  struct host_link *links, char (*reasons)[512], struct err *err)
{
    size_t n = (size_t)list->n_hosts;
    struct host_connections c = { .list = list, .links = links, .reasons = reasons };

    for (size_t i = 0; i < n; i++) {
        links[i] = (struct host_link){ list->hosts[i].name, -1, -1, -1, -1 };
        reasons[i][0] = '\0';
    }
    if (sodium_init() < 0)
        return err_set(err, ERR_FAILED, "libsodium cannot be initialised on this machine");
    c.acceptor = remote_accept_open(err);
    if (!c.acceptor)
        return -1;
    c.deadline = clock_seconds() + timeout_seconds;
    c.link_seconds = link_lost_seconds();
    c.states = calloc(n, sizeof *c.states);
    c.expected = calloc(n, sizeof *c.expected);
    c.cookies = calloc(n, HOSTS_COOKIE_BYTES);
    CHECK(c.states);
    CHECK(c.expected);
    CHECK(c.cookies);
    /* Hosts without a rank are neither awaited nor reported. */
    for (size_t i = 0; i < n; i++) {
        c.states[i] = n_ranks_of[i] ? CONNECT_WAITING : CONNECT_FAILED;
        c.n_waiting += n_ranks_of[i] != 0;
    }

    int status = connect_all(&c, timeout_seconds, err);
    remote_accept_close(c.acceptor);
    sodium_memzero(c.cookies, n * HOSTS_COOKIE_BYTES);
    free(c.cookies);
    free(c.expected);
    free(c.states);
    return status;
}

/* ---- the end ---- */

/* Reap those that have ended; returns how many have not. */
static int reap(struct host_link *links, int n_links)
{
    int n = 0;

    for (int i = 0; i < n_links; i++) {
        if (links[i].ssh <= 0)
            continue;
        pid_t pid = waitpid(links[i].ssh, NULL, WNOHANG);
        if (pid == 0)
            n++;
        else
            links[i].ssh = -1;
    }
    return n;
}

void hosts_close(struct host_link *links, int n_links)
{
    double deadline = clock_seconds() + close_seconds;

    for (int i = 0; i < n_links; i++) {
        fd_close(&links[i].fd);
        fd_close(&links[i].stdin_fd);
        fd_close(&links[i].words_fd);
    }
    while (reap(links, n_links) && clock_seconds() < deadline)
        usleep(2000);
    for (int i = 0; i < n_links; i++)
        if (links[i].ssh > 0)
            kill(links[i].ssh, SIGKILL);
    for (int i = 0; i < n_links; i++)
        if (links[i].ssh > 0) {
            waitpid(links[i].ssh, NULL, 0);
            links[i].ssh = -1;
        }
}
