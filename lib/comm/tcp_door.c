/*
 * tcp_door.c - ranks listen, connect, and prove that it is they
 *
 * A rank may have many addresses, of which another reaches some, and some of which may be somebody
 * else's there (every machine with containers has the same private networks). So all are tried, each
 * a little after the one before, the fastest first; who does not know the key is not the rank.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/tcp_impl.h"

static const double fence_seconds = 600;
static const double get_seconds = 60;
static const double visit_seconds = 5;
static const double next_address_seconds = 0.25;
static const double again_seconds = 0.05; /* doubled with each failure */

enum {
    FAILURES_MAX = 6,
    SYN_COUNT = 4,         /* some 30 s until an address that says nothing is given up */
    UNIX_BUFFER = 1 << 20, /* the system may give less */
};

/* One address that is tried. */
struct attempt {
    struct tcp_watch watch;
    struct tcp_dial *dial;
    enum { STAGE_CONNECTS, STAGE_HELLO, STAGE_CHOSEN } stage; /* chosen: it has our answer */
    size_t n_bytes;
    unsigned char bytes[TCP_HELLO_BYTES];
    unsigned char nonce[TCP_NONCE_BYTES];
};

struct tcp_dial {
    struct tcp_dial *next;
    struct tcp_peer *peer;
    struct tcp_address addresses[TCP_ADDRESSES_MAX + 1];
    struct attempt attempts[TCP_ADDRESSES_MAX + 1];
    int n_addresses, n_begun, n_failures;
    int is_over;
    double next_at;
    char wrong[160];
};

/* ---- proofs ---- */

static void prove(const struct tcp_comm *comm, const char *role, const uint32_t ranks[2],
                  const unsigned char *accept_nonce, const unsigned char *connect_nonce,
                  unsigned char proof[TCP_PROOF_BYTES])
{
    unsigned char text[8 + 8 + 2 * TCP_NONCE_BYTES] = { 0 };

    _Static_assert(TCP_PROOF_BYTES == crypto_auth_BYTES, "the proof is one of crypto_auth");
    _Static_assert(TCP_KEY_BYTES == crypto_auth_KEYBYTES, "the key is its key");
    memcpy(text, role, strlen(role));
    memcpy(text + 8, ranks, 8);
    memcpy(text + 16, accept_nonce, TCP_NONCE_BYTES);
    memcpy(text + 16 + TCP_NONCE_BYTES, connect_nonce, TCP_NONCE_BYTES);
    crypto_auth(proof, text, sizeof text, comm->key);
}

static int send_whole(int fd, const void *bytes, size_t n_bytes)
{
    /* A new connection has room for so few bytes. */
    return send(fd, bytes, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n_bytes ? 0 : -1;
}

/* More of a message of known length: 1 when it is whole, 0 to wait, -1 at the connection's end. */
static int receive_some(int fd, unsigned char *bytes, size_t *n_bytes, size_t n_whole)
{
    ssize_t n = recv(fd, bytes + *n_bytes, n_whole - *n_bytes, MSG_DONTWAIT);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0) {
        errno = ECONNRESET;
        return -1;
    }
    *n_bytes += (size_t)n;
    return *n_bytes == n_whole;
}

/* Other users' processes on this machine are told nothing. */
static int is_stranger(int fd)
{
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    struct ucred owner;
    socklen_t size = sizeof owner;

    if (getsockname(fd, (struct sockaddr *)&name, &length))
        return 1;
    if (name.ss_family != AF_UNIX)
        return 0;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &size) || owner.uid != geteuid();
}

static void prepare(int fd, int family)
{
    int yes = 1, buffer = UNIX_BUFFER;

    if (family == AF_UNIX) {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
}

static int family_of(int fd)
{
    struct sockaddr_storage name = { 0 };
    socklen_t length = sizeof name;

    getsockname(fd, (struct sockaddr *)&name, &length);
    return name.ss_family;
}

static void watch(struct tcp_comm *comm, struct tcp_watch *what, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = what };

    CHECK(!epoll_ctl(comm->epoll, EPOLL_CTL_ADD, what->fd, &event));
}

/* ---- who comes ---- */

static void turn_away(struct tcp_comm *comm, struct tcp_visitor *visitor)
{
    close(visitor->watch.fd);
    visitor->watch.fd = -1;
    comm->n_visitors--;
}

static struct tcp_visitor *find_place(struct tcp_comm *comm)
{
    struct tcp_visitor *oldest = &comm->visitors[0];

    for (int i = 0; i < TCP_VISITORS_MAX; i++) {
        struct tcp_visitor *visitor = &comm->visitors[i];

        if (visitor->watch.fd < 0)
            return visitor;
        if (visitor->since < oldest->since)
            oldest = visitor;
    }
    turn_away(comm, oldest);
    return oldest;
}

static void welcome(struct tcp_comm *comm, int fd)
{
    unsigned char hello[TCP_HELLO_BYTES];

    if (is_stranger(fd)) {
        close(fd);
        return;
    }
    struct tcp_visitor *visitor = find_place(comm);
    *visitor = (struct tcp_visitor){ .watch = { TCP_VISITOR, fd }, .since = clock_seconds() };
    comm->n_visitors++;
    prepare(fd, family_of(fd));
    randombytes_buf(visitor->nonce, sizeof visitor->nonce);
    memcpy(hello, TCP_MAGIC, TCP_MAGIC_BYTES);
    memcpy(hello + TCP_MAGIC_BYTES, visitor->nonce, TCP_NONCE_BYTES);
    watch(comm, &visitor->watch, EPOLLIN);
    if (send_whole(fd, hello, sizeof hello))
        turn_away(comm, visitor);
}

/* The peer that a whole answer proves, if it is due; it is told so. */
static struct tcp_peer *recognize(struct tcp_comm *comm, const struct tcp_visitor *visitor)
{
    const unsigned char *nonce = visitor->answer + 8;
    unsigned char proof[TCP_PROOF_BYTES];
    uint32_t ranks[2];

    memcpy(ranks, visitor->answer, sizeof ranks);
    prove(comm, "connect", ranks, visitor->nonce, nonce, proof);
    if (sodium_memcmp(proof, nonce + TCP_NONCE_BYTES, sizeof proof) ||
        ranks[0] >= (uint32_t)comm->base.world_size ||
        ranks[1] != (uint32_t)comm->base.world_rank || ranks[0] <= ranks[1])
        return NULL;
    struct tcp_peer *peer = tcp_peer_of(comm, (int)ranks[0]);
    if (peer->state != TCP_UNKNOWN)
        return NULL;
    prove(comm, "accept", ranks, visitor->nonce, nonce, proof);
    return send_whole(visitor->watch.fd, proof, sizeof proof) ? NULL : peer;
}

static void hear(struct tcp_comm *comm, struct tcp_visitor *visitor)
{
    int status =
        receive_some(visitor->watch.fd, visitor->answer, &visitor->n_bytes, sizeof visitor->answer);
    struct tcp_peer *peer = status > 0 ? recognize(comm, visitor) : NULL;

    if (!status)
        return;
    if (!peer) {
        turn_away(comm, visitor);
        return;
    }
    int fd = visitor->watch.fd;
    visitor->watch.fd = -1;
    comm->n_visitors--;
    epoll_ctl(comm->epoll, EPOLL_CTL_DEL, fd, NULL);
    tcp_link_up(comm, peer, fd);
}

static void accept_all(struct tcp_comm *comm, const struct tcp_watch *listener)
{
    /* Not more at once than there is room for, or a flood of them would keep us here. */
    for (int n = 0; n < TCP_VISITORS_MAX; n++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            return;
        welcome(comm, fd);
    }
}

/* ---- listening ---- */

static int listen_on(struct tcp_comm *comm, struct tcp_address *address)
{
    int fd = socket(address->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct tcp_watch *listener = &comm->listeners[comm->n_listeners];

    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&address->socket, address->length) || listen(fd, SOMAXCONN) ||
        getsockname(fd, (struct sockaddr *)&address->socket, &address->length)) {
        close(fd);
        return -1;
    }
    *listener = (struct tcp_watch){ TCP_LISTENER, fd };
    comm->n_listeners++;
    watch(comm, listener, EPOLLIN);
    return 0;
}

static int listen_on_networks(struct tcp_comm *comm, struct err *err)
{
    const char *only = getenv("LMTRAIN_COMM_INTERFACE");
    struct tcp_address addresses[TCP_ADDRESSES_MAX];

    if (only && !*only)
        only = NULL;
    int n = tcp_addresses_list(only, 0, addresses);
    if (!n && !only)
        n = tcp_addresses_list(NULL, 1, addresses);
    for (int i = 0; i < n; i++)
        if (!listen_on(comm, &addresses[i])) /* one that cannot be had is one fewer */
            comm->card.addresses[comm->card.n_addresses++] = addresses[i];
    if (comm->card.n_addresses)
        return 0;
    if (!only)
        return err_set(err, ERR_FAILED, "this machine has no address to listen on");
    return err_set(
        err, ERR_CONFIG,
        "LMTRAIN_COMM_INTERFACE is '%s': this machine has no such interface that is up, and "
        "no address in such a network (hint: ip -brief address)",
        only);
}

static int listen_on_unix(struct tcp_comm *comm, struct err *err)
{
    struct tcp_address address;

    randombytes_buf(comm->card.name, sizeof comm->card.name);
    tcp_card_unix(comm->card.name, &address);
    return listen_on(comm, &address)
               ? err_set_errno(err, ERR_FAILED, "cannot listen on a Unix socket")
               : 0;
}

/* ---- dialing ---- */

/* This address is not it; errno says why. */
static void drop(struct attempt *attempt)
{
    struct tcp_dial *dial = attempt->dial;
    const struct tcp_address *address = &dial->addresses[attempt - dial->attempts];
    int is_refusal = attempt->stage == STAGE_CHOSEN, reason = errno;
    char text[80];

    snprintf(dial->wrong, sizeof dial->wrong, "%s: %s",
             tcp_address_text(address, text, sizeof text),
             is_refusal ? "it does not take this rank for one of its job" : strerror(reason));
    if (attempt->watch.fd >= 0)
        close(attempt->watch.fd);
    attempt->watch.fd = -1;
}

static void try_address(struct tcp_comm *comm, struct tcp_dial *dial, int i)
{
    const struct tcp_address *address = &dial->addresses[i];
    struct attempt *attempt = &dial->attempts[i];
    int family = address->socket.ss_family, syn_count = SYN_COUNT;

    *attempt = (struct attempt){ .watch = { TCP_ATTEMPT, -1 }, .dial = dial };
    attempt->watch.fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (attempt->watch.fd < 0) {
        drop(attempt);
        return;
    }
    if (family != AF_UNIX)
        setsockopt(attempt->watch.fd, IPPROTO_TCP, TCP_SYNCNT, &syn_count, sizeof syn_count);
    prepare(attempt->watch.fd, family);
    if (connect(attempt->watch.fd, (const struct sockaddr *)&address->socket, address->length) &&
        errno != EINPROGRESS) {
        drop(attempt);
        return;
    }
    watch(comm, &attempt->watch, EPOLLOUT);
}

static int has_connected(struct tcp_comm *comm, struct attempt *attempt)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = &attempt->watch };
    int error = 0;
    socklen_t size = sizeof error;

    if (getsockopt(attempt->watch.fd, SOL_SOCKET, SO_ERROR, &error, &size) || error) {
        errno = error ? error : errno;
        return 0;
    }
    errno = EACCES;
    return !is_stranger(attempt->watch.fd) &&
           !epoll_ctl(comm->epoll, EPOLL_CTL_MOD, attempt->watch.fd, &event);
}

/* Only one at a time has our answer: a peer takes one connection from us. */
static int is_answered(const struct tcp_dial *dial)
{
    for (int i = 0; i < dial->n_begun; i++)
        if (dial->attempts[i].watch.fd >= 0 && dial->attempts[i].stage == STAGE_CHOSEN)
            return 1;
    return 0;
}

static int answer(struct tcp_comm *comm, struct attempt *attempt)
{
    const uint32_t ranks[2] = { (uint32_t)comm->base.world_rank,
                                (uint32_t)attempt->dial->peer->rank };
    unsigned char bytes[TCP_ANSWER_BYTES];

    errno = EPROTO;
    if (memcmp(attempt->bytes, TCP_MAGIC, TCP_MAGIC_BYTES))
        return -1;
    randombytes_buf(attempt->nonce, sizeof attempt->nonce);
    memcpy(bytes, ranks, 8);
    memcpy(bytes + 8, attempt->nonce, TCP_NONCE_BYTES);
    prove(comm, "connect", ranks, attempt->bytes + TCP_MAGIC_BYTES, attempt->nonce,
          bytes + 8 + TCP_NONCE_BYTES);
    return send_whole(attempt->watch.fd, bytes, sizeof bytes);
}

/* The first that has said hello is answered. */
static void answer_next(struct tcp_comm *comm, struct tcp_dial *dial)
{
    for (int i = 0; i < dial->n_begun && !is_answered(dial); i++) {
        struct attempt *attempt = &dial->attempts[i];

        if (attempt->watch.fd < 0 || attempt->n_bytes < sizeof attempt->bytes)
            continue;
        if (answer(comm, attempt))
            drop(attempt);
        else
            attempt->stage = STAGE_CHOSEN;
    }
}

static int is_proof(const struct tcp_comm *comm, const struct attempt *attempt,
                    const unsigned char *theirs)
{
    const uint32_t ranks[2] = { (uint32_t)comm->base.world_rank,
                                (uint32_t)attempt->dial->peer->rank };
    unsigned char proof[TCP_PROOF_BYTES];

    prove(comm, "accept", ranks, attempt->bytes + TCP_MAGIC_BYTES, attempt->nonce, proof);
    return !sodium_memcmp(proof, theirs, sizeof proof);
}

/* The proof comes at once or not at all: it is read when it is whole. */
static void conclude(struct tcp_comm *comm, struct attempt *attempt)
{
    unsigned char proof[TCP_PROOF_BYTES];
    struct tcp_dial *dial = attempt->dial;
    int fd = attempt->watch.fd;
    ssize_t n = recv(fd, proof, sizeof proof, MSG_DONTWAIT | MSG_PEEK);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0 && n < (ssize_t)sizeof proof)
        return;
    if (n <= 0 || recv(fd, proof, sizeof proof, MSG_DONTWAIT) != (ssize_t)sizeof proof ||
        !is_proof(comm, attempt, proof)) {
        drop(attempt);
        return;
    }
    epoll_ctl(comm->epoll, EPOLL_CTL_DEL, fd, NULL);
    attempt->watch.fd = -1;
    dial->is_over = 1;
    tcp_link_up(comm, dial->peer, fd);
}

static void advance(struct tcp_comm *comm, struct attempt *attempt)
{
    int status = 1;

    if (attempt->stage == STAGE_CHOSEN) {
        conclude(comm, attempt);
        return;
    }
    if (attempt->stage == STAGE_CONNECTS) {
        if (!has_connected(comm, attempt)) {
            drop(attempt);
            return;
        }
        attempt->stage = STAGE_HELLO;
    }
    if (attempt->n_bytes < sizeof attempt->bytes)
        status = receive_some(attempt->watch.fd, attempt->bytes, &attempt->n_bytes,
                              sizeof attempt->bytes);
    if (status < 0)
        drop(attempt);
    else if (status > 0)
        answer_next(comm, attempt->dial);
}

static void give_up(struct tcp_comm *comm, struct tcp_dial *dial)
{
    char why[200];

    snprintf(why, sizeof why, "cannot connect to it at %s", dial->wrong);
    dial->is_over = 1;
    tcp_link_lost(comm, dial->peer, why);
}

static void tick(struct tcp_comm *comm, struct tcp_dial *dial, double now)
{
    int n_open = 0;

    if (dial->is_over)
        return;
    if (dial->n_begun < dial->n_addresses && now >= dial->next_at) {
        try_address(comm, dial, dial->n_begun++);
        dial->next_at = now + next_address_seconds;
    }
    for (int i = 0; i < dial->n_begun; i++)
        n_open += dial->attempts[i].watch.fd >= 0;
    if (n_open && !is_answered(dial))
        answer_next(comm, dial);
    if (n_open)
        return;
    if (dial->n_begun < dial->n_addresses) {
        dial->next_at = dial->n_begun ? now : dial->next_at; /* no need to wait for nothing */
        return;
    }
    if (++dial->n_failures == FAILURES_MAX) {
        give_up(comm, dial);
        return;
    }
    dial->n_begun = 0;
    dial->next_at = now + again_seconds * (double)(1 << dial->n_failures);
}

static int get_card(struct tcp_comm *comm, int rank, struct tcp_card *card, struct err *err)
{
    unsigned char bytes[TCP_CARD_BYTES_MAX];
    size_t n_bytes = sizeof bytes;

    if (comm->wireup->get(TCP_CARD_NAME, rank, bytes, &n_bytes, get_seconds, err))
        return -1;
    return tcp_card_read(bytes, n_bytes, card)
               ? err_set(err, ERR_PEER, "rank %d's addresses are damaged", rank)
               : 0;
}

void tcp_door_dial(struct tcp_comm *comm, struct tcp_peer *peer)
{
    struct tcp_card card;
    struct err err;

    if (peer->state != TCP_UNKNOWN || peer->rank > comm->base.world_rank)
        return;
    if (get_card(comm, peer->rank, &card, &err)) {
        tcp_link_lost(comm, peer, err.text);
        return;
    }
    struct tcp_dial *dial = calloc(1, sizeof *dial);
    CHECK(dial);
    if (!memcmp(card.machine, comm->card.machine, sizeof card.machine))
        tcp_card_unix(card.name, &dial->addresses[dial->n_addresses++]);
    for (int i = 0; i < card.n_addresses; i++)
        dial->addresses[dial->n_addresses++] = card.addresses[i];
    if (!dial->n_addresses) {
        free(dial);
        tcp_link_lost(comm, peer, "it sees no network and is not on this machine");
        return;
    }
    dial->peer = peer;
    dial->next = comm->dials;
    comm->dials = dial;
    peer->state = TCP_CONNECTING;
}

static void free_dial(struct tcp_dial *dial)
{
    for (int i = 0; i < dial->n_begun; i++)
        if (dial->attempts[i].watch.fd >= 0)
            close(dial->attempts[i].watch.fd);
    free(dial);
}

/* ---- all of it ---- */

void tcp_door_event(struct tcp_comm *comm, struct tcp_watch *what)
{
    if (what->kind == TCP_LISTENER)
        accept_all(comm, what);
    else if (what->kind == TCP_VISITOR)
        hear(comm, (struct tcp_visitor *)what);
    else
        advance(comm, (struct attempt *)what);
}

void tcp_door_tick(struct tcp_comm *comm)
{
    double now = comm->dials || comm->n_visitors ? clock_seconds() : 0;

    for (int i = 0; comm->n_visitors && i < TCP_VISITORS_MAX; i++)
        if (comm->visitors[i].watch.fd >= 0 && now > comm->visitors[i].since + visit_seconds)
            turn_away(comm, &comm->visitors[i]);
    for (struct tcp_dial **at = &comm->dials; *at;) {
        struct tcp_dial *dial = *at;

        tick(comm, dial, now);
        if (!dial->is_over) {
            at = &dial->next;
            continue;
        }
        *at = dial->next;
        free_dial(dial);
    }
}

/* Each connection takes a descriptor; the usual 1024 are few for calls of all with all. */
static void make_room(int n_connections)
{
    rlim_t wanted = (rlim_t)n_connections + TCP_VISITORS_MAX + 512;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Everybody's card goes out, and rank 0's key. */
static int introduce(struct tcp_comm *comm, struct err *err)
{
    const struct comm_wireup *wireup = comm->wireup;
    unsigned char bytes[TCP_CARD_BYTES_MAX];
    size_t n_bytes = tcp_card_write(&comm->card, bytes), key_bytes = sizeof comm->key;

    if (wireup->put(TCP_CARD_NAME, bytes, n_bytes, err))
        return -1;
    if (comm->base.world_rank == 0) {
        randombytes_buf(comm->key, sizeof comm->key);
        if (wireup->put(TCP_KEY_NAME, comm->key, sizeof comm->key, err))
            return -1;
    }
    if (wireup->fence(fence_seconds, err))
        return -1;
    if (comm->base.world_rank == 0)
        return 0;
    if (wireup->get(TCP_KEY_NAME, 0, comm->key, &key_bytes, get_seconds, err))
        return -1;
    return key_bytes == sizeof comm->key ? 0 : err_set(err, ERR_PEER, "rank 0's key is damaged");
}

int tcp_door_open(struct tcp_comm *comm, const struct tcp_settings *settings, struct err *err)
{
    int is_apart = settings->no_unix || comm->wireup->local_size < comm->base.world_size;

    if (sodium_init() < 0)
        return err_set(err, ERR_FAILED, "libsodium does not work on this machine");
    make_room(comm->base.world_size);
    comm->visitors = calloc(TCP_VISITORS_MAX, sizeof *comm->visitors);
    CHECK(comm->visitors);
    for (int i = 0; i < TCP_VISITORS_MAX; i++)
        comm->visitors[i].watch.fd = -1;
    if (settings->no_unix)
        randombytes_buf(comm->card.machine, sizeof comm->card.machine);
    else
        tcp_card_machine(comm->card.machine);
    if (listen_on_unix(comm, err) || (is_apart && listen_on_networks(comm, err)))
        return -1;
    return introduce(comm, err);
}

void tcp_door_close(struct tcp_comm *comm)
{
    for (int i = 0; i < comm->n_listeners; i++)
        close(comm->listeners[i].fd);
    for (int i = 0; comm->visitors && i < TCP_VISITORS_MAX; i++)
        if (comm->visitors[i].watch.fd >= 0)
            close(comm->visitors[i].watch.fd);
    free(comm->visitors);
    for (struct tcp_dial *next, *dial = comm->dials; dial; dial = next) {
        next = dial->next;
        free_dial(dial);
    }
    sodium_memzero(comm->key, sizeof comm->key);
}
