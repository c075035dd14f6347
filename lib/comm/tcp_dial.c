/*
 * tcp_dial.c - connecting to other ranks
 *
 * A rank may have many addresses, of which another reaches some, and some of which may be another
 * machine's there (every machine with containers has the same private networks). So all are tried,
 * each a little after the one before, the fastest first; who does not know the key is not the rank.
 * One that fails is tried again some times, whatever the others do.
 *
 * One that is connected and silent may well be the rank, which computes and does not look: it is
 * waited for without end, but not it alone.
 */
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/tcp_impl.h"

static const double next_address_seconds = 0.25;
static const double silent_seconds =
    5; /* until others are tried, or answered, beside one that is connected */
static const double again_seconds = 0.05; /* doubled with each failure */

enum {
    FAILURES_MAX = 6,
    SYN_COUNT = 4, /* some 30 s until an address that says nothing is given up */
};

/* One address that is tried. */
struct attempt {
    struct tcp_watch watch;
    struct tcp_dial *dial;
    enum { STAGE_CONNECTS, STAGE_HELLO, STAGE_CHOSEN } stage; /* chosen: it has our answer */
    int n_failures;
    double again_at; /* it has failed, and is tried again then */
    double chosen_at;
    size_t n_bytes, n_proof_bytes;
    unsigned char bytes[TCP_HELLO_BYTES];
    unsigned char nonce[TCP_NONCE_BYTES];
    unsigned char proof[TCP_PROOF_BYTES];
};

struct tcp_dial {
    struct tcp_dial *next;
    struct tcp_peer *peer;
    struct tcp_address addresses[TCP_ADDRESSES_MAX + 1];
    struct attempt attempts[TCP_ADDRESSES_MAX + 1];
    int n_addresses, n_begun;
    bool is_over;
    double begun_at;   /* the newest address */
    int wrong_address; /* of those that failed the first, which is the fastest; and why */
    char wrong[160];
};

/* Ranks that failed at once don't all come again at once: each waits half to one and a half
 * times as long, by its number. */
static double wait_seconds(const struct tcp_comm *comm, int n_failures)
{
    double part = (double)((uint32_t)comm->base.world_rank * 2654435769u) / 4294967296.0;

    return again_seconds * (double)(1 << n_failures) * (0.5 + part);
}

/* This address is not it, at least now. */
static void drop(const struct tcp_comm *comm, struct attempt *attempt, const char *why)
{
    struct tcp_dial *dial = attempt->dial;
    int i = (int)(attempt - dial->attempts);
    char text[80];

    if (!*dial->wrong || i <= dial->wrong_address) {
        dial->wrong_address = i;
        snprintf(dial->wrong, sizeof dial->wrong, "%s: %s",
                 tcp_address_text(&dial->addresses[i], text, sizeof text), why);
    }
    if (attempt->watch.fd >= 0)
        close(attempt->watch.fd);
    attempt->watch.fd = -1;
    attempt->n_failures++;
    attempt->again_at = clock_seconds() + wait_seconds(comm, attempt->n_failures);
}

/* The other end has closed the connection, or errno says what ended it. */
static const char *end_words(const struct attempt *attempt)
{
    if (errno)
        return strerror(errno);
    return attempt->stage == STAGE_CHOSEN && !attempt->n_proof_bytes
               ? "it does not recognise this rank as one of its job"
               : "it closed the connection";
}

static void try_address(struct tcp_comm *comm, struct tcp_dial *dial, int i)
{
    const struct tcp_address *address = &dial->addresses[i];
    struct attempt *attempt = &dial->attempts[i];
    int family = address->socket.ss_family, syn_count = SYN_COUNT;

    *attempt = (struct attempt){ .watch = { TCP_ATTEMPT, -1 },
                                 .dial = dial,
                                 .n_failures = attempt->n_failures };
    attempt->watch.fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (attempt->watch.fd < 0) {
        drop(comm, attempt, strerror(errno));
        return;
    }
    if (family != AF_UNIX)
        setsockopt(attempt->watch.fd, IPPROTO_TCP, TCP_SYNCNT, &syn_count, sizeof syn_count);
    tcp_prepare(attempt->watch.fd, family);
    if (connect(attempt->watch.fd, (const struct sockaddr *)&address->socket, address->length) &&
        errno != EINPROGRESS) {
        drop(comm, attempt, strerror(errno));
        return;
    }
    tcp_watch_begin(comm, &attempt->watch, EPOLLOUT);
}

static bool has_connected(struct tcp_comm *comm, struct attempt *attempt)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = &attempt->watch };
    int error = 0;
    socklen_t size = sizeof error;

    if (getsockopt(attempt->watch.fd, SOL_SOCKET, SO_ERROR, &error, &size) || error) {
        errno = error ? error : errno;
        return false;
    }
    errno = EACCES;
    return !tcp_is_stranger(attempt->watch.fd) &&
           !epoll_ctl(comm->epoll, EPOLL_CTL_MOD, attempt->watch.fd, &event);
}

/*
 * Whether one has our answer, and time left for its proof: then no other is answered, as the
 * fastest is to be the connection. Where it says nothing others may, and the first with a proof is
 * it: a peer takes one connection from us and sends no second proof.
 */
static bool is_answered(const struct tcp_dial *dial)
{
    double now = clock_seconds();

    for (int i = 0; i < dial->n_begun; i++) {
        const struct attempt *attempt = &dial->attempts[i];

        if (attempt->watch.fd >= 0 && attempt->stage == STAGE_CHOSEN &&
            now < attempt->chosen_at + silent_seconds)
            return true;
    }
    return false;
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
    tcp_prove(comm, "connect", ranks, attempt->bytes + TCP_MAGIC_BYTES, attempt->nonce,
              bytes + 8 + TCP_NONCE_BYTES);
    return tcp_send_whole(attempt->watch.fd, bytes, sizeof bytes);
}

/* The first that has said hello is answered. */
static void answer_next(struct tcp_comm *comm, struct tcp_dial *dial)
{
    for (int i = 0; i < dial->n_begun && !is_answered(dial); i++) {
        struct attempt *attempt = &dial->attempts[i];

        if (attempt->watch.fd < 0 || attempt->stage == STAGE_CHOSEN ||
            attempt->n_bytes < sizeof attempt->bytes)
            continue;
        if (answer(comm, attempt)) {
            drop(comm, attempt, strerror(errno));
            continue;
        }
        attempt->stage = STAGE_CHOSEN;
        attempt->chosen_at = clock_seconds();
    }
}

static bool is_proof(const struct tcp_comm *comm, const struct attempt *attempt)
{
    const uint32_t ranks[2] = { (uint32_t)comm->base.world_rank,
                                (uint32_t)attempt->dial->peer->rank };
    unsigned char proof[TCP_PROOF_BYTES];

    tcp_prove(comm, "accept", ranks, attempt->bytes + TCP_MAGIC_BYTES, attempt->nonce, proof);
    return !sodium_memcmp(proof, attempt->proof, sizeof proof);
}

/* More of the proof, of which nothing is behind before this rank has taken it. */
static void conclude(struct tcp_comm *comm, struct attempt *attempt)
{
    struct tcp_dial *dial = attempt->dial;
    int fd = attempt->watch.fd;
    int status =
        tcp_receive_some(fd, attempt->proof, &attempt->n_proof_bytes, sizeof attempt->proof);

    if (!status)
        return;
    if (status < 0 || !is_proof(comm, attempt)) {
        drop(comm, attempt, status < 0 ? end_words(attempt) : "it does not know the job's key");
        return;
    }
    epoll_ctl(comm->epoll, EPOLL_CTL_DEL, fd, NULL);
    attempt->watch.fd = -1;
    dial->is_over = true;
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
            drop(comm, attempt, strerror(errno));
            return;
        }
        attempt->stage = STAGE_HELLO;
    }
    if (attempt->n_bytes < sizeof attempt->bytes)
        status = tcp_receive_some(attempt->watch.fd, attempt->bytes, &attempt->n_bytes,
                                  sizeof attempt->bytes);
    if (status < 0)
        drop(comm, attempt, end_words(attempt));
    else if (status > 0)
        answer_next(comm, attempt->dial);
}

static void give_up(struct tcp_comm *comm, struct tcp_dial *dial)
{
    char why[200];

    snprintf(why, sizeof why, "cannot connect to it at %s", dial->wrong);
    dial->is_over = true;
    tcp_link_lost(comm, dial->peer, why);
}

static bool is_next_due(const struct tcp_dial *dial, double now)
{
    double wait = 0; /* none where all that were begun have failed */

    for (int i = 0; i < dial->n_begun; i++) {
        const struct attempt *attempt = &dial->attempts[i];

        if (attempt->watch.fd >= 0)
            wait = fmax(wait,
                        attempt->stage == STAGE_CONNECTS ? next_address_seconds : silent_seconds);
    }
    return dial->n_begun < dial->n_addresses && now >= dial->begun_at + wait;
}

static void tick(struct tcp_comm *comm, struct tcp_dial *dial, double now)
{
    int n_hopes = 0;

    if (dial->is_over)
        return;
    if (is_next_due(dial, now)) {
        try_address(comm, dial, dial->n_begun++);
        dial->begun_at = now;
    }
    for (int i = 0; i < dial->n_begun; i++) {
        struct attempt *attempt = &dial->attempts[i];
        bool may_again = attempt->n_failures < FAILURES_MAX;

        if (attempt->watch.fd < 0 && may_again && now >= attempt->again_at)
            try_address(comm, dial, i);
        n_hopes += attempt->watch.fd >= 0 || may_again;
    }
    if (n_hopes || dial->n_begun < dial->n_addresses)
        answer_next(comm, dial);
    else
        give_up(comm, dial);
}

static int get_card(struct tcp_comm *comm, int rank, struct tcp_card *card, struct err *err)
{
    unsigned char bytes[TCP_CARD_BYTES_MAX];
    size_t n_bytes = sizeof bytes;

    if (comm->wireup->get(TCP_CARD_NAME, rank, bytes, &n_bytes, TCP_GET_SECONDS, err))
        return -1;
    return tcp_card_read(bytes, n_bytes, card)
               ? err_set(err, ERR_PEER, "rank %d's addresses are damaged", rank)
               : 0;
}

/* Where it may be reached. Loopback, which ranks of one machine tell, is for those without a
 * Unix socket alone. */
static void list_addresses(const struct tcp_comm *comm, const struct tcp_card *card,
                           struct tcp_dial *dial)
{
    bool is_near = !memcmp(card->machine, comm->card.machine, sizeof card->machine);
    bool is_loopback = comm->wireup->local_size == comm->base.world_size;

    if (is_near)
        tcp_card_unix(card->name, &dial->addresses[dial->n_addresses++]);
    for (int i = 0; i < card->n_addresses && !(is_near && is_loopback); i++)
        dial->addresses[dial->n_addresses++] = card->addresses[i];
}

void tcp_dial_begin(struct tcp_comm *comm, struct tcp_peer *peer)
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
    list_addresses(comm, &card, dial);
    if (!dial->n_addresses) {
        free(dial);
        tcp_link_lost(comm, peer, "it has no network and is not on this machine");
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

void tcp_dial_event(struct tcp_comm *comm, struct tcp_watch *what)
{
    advance(comm, (struct attempt *)what);
}

void tcp_dials_tick(struct tcp_comm *comm)
{
    double now = comm->dials ? clock_seconds() : 0;

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

void tcp_dials_close(struct tcp_comm *comm)
{
    for (struct tcp_dial *next, *dial = comm->dials; dial; dial = next) {
        next = dial->next;
        free_dial(dial);
    }
}
