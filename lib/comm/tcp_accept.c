/*
 * tcp_accept.c - a rank listens, tells the others where, and takes in those that prove that they
 * are ranks of the job
 */
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/tcp_impl.h"

static const double fence_seconds = 600;
static const double visit_seconds = 5;
static const double place_seconds = 1; /* of them with others waiting */

/* ---- who comes ---- */

static void refuse_incoming(struct tcp_comm *comm, struct tcp_incoming *incoming)
{
    close(incoming->watch.fd);
    incoming->watch.fd = -1;
    comm->n_incoming--;
}

/* The peer that a whole answer proves, if it is due; a proof is sent back. */
static struct tcp_peer *recognize(struct tcp_comm *comm, const struct tcp_incoming *incoming)
{
    const unsigned char *nonce = incoming->answer + 8;
    unsigned char proof[TCP_PROOF_BYTES];
    uint32_t ranks[2];

    memcpy(ranks, incoming->answer, sizeof ranks);
    tcp_prove(comm, "connect", ranks, incoming->nonce, nonce, proof);
    if (sodium_memcmp(proof, nonce + TCP_NONCE_BYTES, sizeof proof) ||
        ranks[0] >= (uint32_t)comm->base.world_size ||
        ranks[1] != (uint32_t)comm->base.world_rank || ranks[0] <= ranks[1])
        return NULL;
    struct tcp_peer *peer = tcp_peer_of(comm, (int)ranks[0]);
    if (peer->state != TCP_UNKNOWN)
        return NULL;
    tcp_prove(comm, "accept", ranks, incoming->nonce, nonce, proof);
    return tcp_send_whole(incoming->watch.fd, proof, sizeof proof) ? NULL : peer;
}

static void hear(struct tcp_comm *comm, struct tcp_incoming *incoming)
{
    int status = tcp_receive_some(incoming->watch.fd, incoming->answer, &incoming->n_bytes,
                                  sizeof incoming->answer);
    struct tcp_peer *peer = status > 0 ? recognize(comm, incoming) : NULL;

    if (!status)
        return;
    if (!peer) {
        refuse_incoming(comm, incoming);
        return;
    }
    int fd = incoming->watch.fd;
    incoming->watch.fd = -1;
    comm->n_incoming--;
    epoll_ctl(comm->epoll, EPOLL_CTL_DEL, fd, NULL);
    tcp_link_up(comm, peer, fd);
}

/* Its time is over; what it has said by now counts. */
static void dismiss(struct tcp_comm *comm, struct tcp_incoming *incoming)
{
    hear(comm, incoming);
    if (incoming->watch.fd >= 0)
        refuse_incoming(comm, incoming);
}

/* A free place, or that of the oldest incoming. */
static struct tcp_incoming *find_place(struct tcp_comm *comm)
{
    struct tcp_incoming *oldest = &comm->incoming[0];

    for (int i = 0; i < TCP_INCOMING_MAX; i++) {
        struct tcp_incoming *incoming = &comm->incoming[i];

        if (incoming->watch.fd < 0)
            return incoming;
        if (incoming->since < oldest->since)
            oldest = incoming;
    }
    return oldest;
}

static int family_of(int fd)
{
    struct sockaddr_storage name = { 0 };
    socklen_t length = sizeof name;

    getsockname(fd, (struct sockaddr *)&name, &length);
    return name.ss_family;
}

static void welcome(struct tcp_comm *comm, struct tcp_incoming *place, int fd)
{
    unsigned char hello[TCP_HELLO_BYTES];

    if (tcp_is_stranger(fd)) {
        close(fd);
        return;
    }
    if (place->watch.fd >= 0)
        dismiss(comm, place);
    *place = (struct tcp_incoming){ .watch = { TCP_VISITOR, fd }, .since = clock_seconds() };
    comm->n_incoming++;
    tcp_prepare(fd, family_of(fd));
    randombytes_buf(place->nonce, sizeof place->nonce);
    memcpy(hello, TCP_MAGIC, TCP_MAGIC_BYTES);
    memcpy(hello + TCP_MAGIC_BYTES, place->nonce, TCP_NONCE_BYTES);
    tcp_watch_begin(comm, &place->watch, EPOLLIN);
    if (tcp_send_whole(fd, hello, sizeof hello))
        refuse_incoming(comm, place);
}

/* Without a descriptor for it, a rank would wait at the door for ever. */
static void tell_shortage(struct tcp_comm *comm)
{
    if (errno == EMFILE || errno == ENFILE)
        err_set(&comm->failure, ERR_FAILED,
                "cannot accept the connection of another rank: %s (hint: ulimit -n)",
                strerror(errno));
}

/*
 * Where all places are taken, who comes waits in the system's queue until a incoming has left or
 * had its time: many ranks that come at once would else put each other out before any could answer.
 */
static void accept_all(struct tcp_comm *comm, const struct tcp_watch *listener)
{
    /* Not more at once than there is room for, or a flood of them would keep us here. */
    for (int n = 0; n < TCP_INCOMING_MAX; n++) {
        struct tcp_incoming *place = find_place(comm);

        if (place->watch.fd >= 0 && clock_seconds() < place->since + place_seconds)
            return;
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            tell_shortage(comm);
            return;
        }
        welcome(comm, place, fd);
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
    tcp_watch_begin(comm, listener, EPOLLIN);
    return 0;
}

/* One that cannot be had is one fewer. */
static void listen_on_all(struct tcp_comm *comm, struct tcp_address *addresses, int n)
{
    for (int i = 0; i < n; i++)
        if (!listen_on(comm, &addresses[i]))
            comm->card.addresses[comm->card.n_addresses++] = addresses[i];
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
    listen_on_all(comm, addresses, n);
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

/*
 * For ranks of one machine that cannot use each other's Unix sockets, as each has a user namespace
 * of its own (a rootless container a rank). It is a second way, and may fail.
 */
static void listen_on_loopback(struct tcp_comm *comm)
{
    struct tcp_address addresses[TCP_ADDRESSES_MAX];

    listen_on_all(comm, addresses, tcp_addresses_list(NULL, 1, addresses));
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

/* ---- all of it ---- */

void tcp_accept_event(struct tcp_comm *comm, struct tcp_watch *what)
{
    if (what->kind == TCP_LISTENER)
        accept_all(comm, what);
    else
        hear(comm, (struct tcp_incoming *)what);
}

void tcp_accept_tick(struct tcp_comm *comm)
{
    double now = comm->n_incoming ? clock_seconds() : 0;

    for (int i = 0; comm->n_incoming && i < TCP_INCOMING_MAX; i++)
        if (comm->incoming[i].watch.fd >= 0 && now > comm->incoming[i].since + visit_seconds)
            dismiss(comm, &comm->incoming[i]);
}

/*
 * Each connection takes a descriptor, and while it is made one for each address that is tried
 * (others have about as many as this rank); the usual 1024 are few for calls of all with all.
 */
static void make_room(const struct tcp_comm *comm)
{
    rlim_t n_connections = (rlim_t)comm->base.world_size * (rlim_t)(1 + comm->card.n_addresses);
    rlim_t wanted = n_connections + TCP_INCOMING_MAX + 512;
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
    if (wireup->get(TCP_KEY_NAME, 0, comm->key, &key_bytes, TCP_GET_SECONDS, err))
        return -1;
    return key_bytes == sizeof comm->key ? 0 : err_set(err, ERR_PEER, "rank 0's key is damaged");
}

int tcp_accept_open(struct tcp_comm *comm, const struct tcp_settings *settings, struct err *err)
{
    bool is_apart = settings->no_unix || comm->wireup->local_size < comm->base.world_size;

    if (sodium_init() < 0)
        return err_set(err, ERR_FAILED, "libsodium cannot be initialised on this machine");
    comm->incoming = calloc(TCP_INCOMING_MAX, sizeof *comm->incoming);
    CHECK(comm->incoming);
    for (int i = 0; i < TCP_INCOMING_MAX; i++)
        comm->incoming[i].watch.fd = -1;
    if (settings->no_unix)
        randombytes_buf(comm->card.machine, sizeof comm->card.machine);
    else
        tcp_card_machine(comm->card.machine);
    if (listen_on_unix(comm, err) || (is_apart && listen_on_networks(comm, err)))
        return -1;
    if (!is_apart)
        listen_on_loopback(comm);
    make_room(comm);
    return introduce(comm, err);
}

void tcp_accept_close(struct tcp_comm *comm)
{
    for (int i = 0; i < comm->n_listeners; i++)
        close(comm->listeners[i].fd);
    for (int i = 0; comm->incoming && i < TCP_INCOMING_MAX; i++)
        if (comm->incoming[i].watch.fd >= 0)
            close(comm->incoming[i].watch.fd);
    free(comm->incoming);
    sodium_memzero(comm->key, sizeof comm->key);
}
