/*
 * tcp_impl.h - what the files of comm_tcp share: connections, and transfers over them
 *
 * Any two ranks have at most one connection, made when the first transfer between them is begun, by
 * the rank of the higher number; all groups share it. On it go frames: a header (struct tcp_frame),
 * and behind that of data its bytes.
 *
 * A transfer is one-sided news first: who receives sends a mark ("n bytes of call number N of this
 * group, now"), and only then does who sends send data. So data always has a place to go to, a send
 * waits for its receive, and nothing on a connection waits behind what was not requested. Long
 * transfers go in frames of piece_bytes, between which others get their turn.
 *
 *   1. rank 0  posts a send of call 8 to rank 1, and keeps it: no mark has come
 *   2. rank 1  begins its receive of call 8, and sends the mark (8, n bytes)
 *   3. rank 0  reads the mark in a test of any request, and sends data frames
 *   4. rank 1  reads frames straight into the receive's buffer; rank 0 is done when the last is sent
 * Where 2 comes before 1 the mark is kept until the send is posted.
 *
 * Nothing here waits: tcp_progress does what can be done at once, and is called by every test of a
 * request.
 *
 * A new connection (all sizes fixed) proves to both ends that the other one has the job's key:
 *
 *     who accepts  magic[8]  nonce[32]
 *     who connects rank[4]  to[4]  nonce[32]  HMAC(key, "connect", rank, to, both nonces)
 *     who accepts  HMAC(key, "accept", rank, to, both nonces)
 *
 * A stranger learns a nonce and nothing else. Between processes of one machine it is a Unix socket,
 * whose other end must be of the same user, too; or TCP over loopback, where each process has a
 * user namespace of its own. What is sent later is authentic only as far as the network is: nothing
 * is encrypted.
 */
#ifndef COMM_TCP_IMPL_H
#define COMM_TCP_IMPL_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "comm/comm_impl.h"

enum {
    TCP_KEY_BYTES = 32,
    TCP_NONCE_BYTES = 32,
    TCP_PROOF_BYTES = 32,
    TCP_MAGIC_BYTES = 8,
    TCP_HELLO_BYTES = TCP_MAGIC_BYTES + TCP_NONCE_BYTES,
    TCP_ANSWER_BYTES = 8 + TCP_NONCE_BYTES + TCP_PROOF_BYTES,
    TCP_ADDRESSES_MAX = 16,
    TCP_CARD_BYTES_MAX = 33 + TCP_ADDRESSES_MAX * 19,
    TCP_INCOMING_MAX = 128,
};

#define TCP_MAGIC "lmtcomm1"

/* For so long a value of another rank may take. */
#define TCP_GET_SECONDS 60.0

/* Names of what ranks tell each other before they are connected. */
#define TCP_KEY_NAME "lmtrain.comm.key"
#define TCP_CARD_NAME "lmtrain.comm.card"

/* ---- transfers ---- */

/* Which transfer between two ranks: of what group, the how manieth, a call of two or of all. */
struct tcp_tag {
    uint64_t group;
    uint32_t number;
    uint32_t is_pair;
};

/* The receiver's news: it waits for so many bytes. Of no bytes: it has come (barriers). */
struct tcp_mark {
    struct tcp_tag tag;
    uint64_t n_bytes;
};

enum tcp_frame_kind {
    TCP_MARK, /* n_bytes: of the whole transfer */
    TCP_DATA, /* n_bytes follow */
    TCP_LOST, /* tag.number: the rank that the sender of this has lost */
};

struct tcp_frame {
    uint32_t kind, unused;
    struct tcp_tag tag;
    uint64_t n_bytes;
};

/*
 * One transfer, at either end. Its bytes lie at buffer + first and on, from buffer + wrap again at
 * buffer. Idle until begun; the caller fills what is above the line.
 */
struct tcp_flow {
    struct tcp_tag tag;
    unsigned char *buffer;
    size_t first, wrap, n_bytes;
    const struct tcp_flow *source; /* of a send: goes only as far as this has come; or NULL */
    /* ---- */
    struct tcp_flow *next; /* of its peer and direction */
    struct tcp_peer *peer;
    size_t n_done;
    bool is_open;  /* begun and not yet done */
    bool is_ready; /* of a send: the receiver waits for it */
};

/* ---- connections ---- */

/* What an event of epoll is for. */
struct tcp_watch {
    enum tcp_watch_kind { TCP_LISTENER, TCP_VISITOR, TCP_ATTEMPT, TCP_CONNECTION } kind;
    int fd; /* -1: none */
};

struct tcp_peer {
    struct tcp_watch watch;
    enum { TCP_UNKNOWN, TCP_CONNECTING, TCP_CONNECTED, TCP_GONE } state;
    int rank;
    int blames;                        /* the rank that it has lost; -1 */
    char why[200];                     /* it is gone */
    struct tcp_flow *receives, *sends; /* open ones; sends in the order of their turns */

    struct tcp_mark *marks; /* that no send was there for yet */
    int n_marks, marks_room;

    struct tcp_frame in; /* the frame that comes, its header's bytes so far, and data missing */
    size_t in_bytes, in_left;
    struct tcp_flow *in_flow;

    unsigned char *control; /* frames without data, to be sent before all else */
    size_t control_first, control_end, control_room;
    uint64_t control_sent; /* bytes of them since the start */

    struct tcp_frame out; /* the data frame under way */
    size_t out_bytes, out_left;
    struct tcp_flow *out_flow; /* NULL: none */

    struct tcp_peer *next_active;
    bool is_active; /* has something to send */
};

/* Where a rank can be reached. */
struct tcp_address {
    struct sockaddr_storage socket;
    socklen_t length;
};

struct tcp_card {
    unsigned char machine[16]; /* equal where ranks can reach each other's Unix sockets */
    unsigned char name[16];    /* of the Unix socket */
    int n_addresses;
    struct tcp_address
        addresses[TCP_ADDRESSES_MAX]; /* of loopback where all ranks share a machine */
};

/* Somebody at our door who has not proved anything yet. */
struct tcp_incoming {
    struct tcp_watch watch;
    double since;
    size_t n_bytes;
    unsigned char answer[TCP_ANSWER_BYTES];
    unsigned char nonce[TCP_NONCE_BYTES];
};

struct tcp_dial;

struct tcp_comm {
    struct comm base;
    const struct comm_wireup *wireup;
    size_t piece_bytes;
    unsigned char key[TCP_KEY_BYTES];
    struct tcp_card card;
    int epoll;
    int n_listeners, n_incoming;
    struct tcp_watch listeners[TCP_ADDRESSES_MAX + 1];
    struct tcp_incoming *incoming; /* TCP_INCOMING_MAX places */
    struct tcp_dial *dials;
    struct tcp_peer **peers; /* by world rank; NULL: never needed */
    struct tcp_peer *active;
    int n_gone;
    double moved_at; /* when bytes of a transfer last moved */
    struct err
        failure; /* of all of it: a peer broke the rules, or no descriptor is left; no code: none */
};

/* ---- tcp_card.c: where ranks are ---- */

/* Equal for two processes that see each other's Unix sockets, and each other's users alike. */
void tcp_card_machine(unsigned char machine[16]);

/* The Unix socket of this name, which is no file. */
void tcp_card_unix(const unsigned char name[16], struct tcp_address *address);

/* As bytes, and how many; back: 0, or -1 where they are no card. */
size_t tcp_card_write(const struct tcp_card *card, unsigned char bytes[TCP_CARD_BYTES_MAX]);
int tcp_card_read(const unsigned char *bytes, size_t n_bytes, struct tcp_card *card);

/*
 * This machine's addresses on interfaces that are up, of the fastest first: loopback or all others;
 * or, where only is given, of the interface of this name, or in this network (an address and its
 * bits). Returns how many; where there are more than there is room for, the slowest are left out.
 */
int tcp_addresses_list(const char *only, int loopback,
                       struct tcp_address addresses[TCP_ADDRESSES_MAX]);

/* For messages; returns text or a constant. */
const char *tcp_address_text(const struct tcp_address *address, char *text, size_t size);

/* ---- tcp_greet.c: what both ends of a new connection do ---- */

/* The proof of who has this role ("connect", "accept") that it knows the key. */
void tcp_prove(const struct tcp_comm *comm, const char *role, const uint32_t ranks[2],
               const unsigned char *accept_nonce, const unsigned char *connect_nonce,
               unsigned char proof[TCP_PROOF_BYTES]);

/* A message of a new connection, all of it: 0, or -1 with errno. */
int tcp_send_whole(int fd, const void *bytes, size_t n_bytes);

/* More of a message of known length: 1 when it is whole, 0 to wait, -1 at the connection's end,
 * with errno, which is 0 where the other end has closed it. */
int tcp_receive_some(int fd, unsigned char *bytes, size_t *n_bytes, size_t n_whole);

/* Whether the other end is another user's process on this machine; these get no answer. */
int tcp_is_stranger(int fd);

/* What the system is to do for a rank's connection. */
void tcp_prepare(int fd, int family);

/* Events of what->fd are what's from now on. */
void tcp_watch_begin(struct tcp_comm *comm, struct tcp_watch *what, uint32_t events);

/* ---- tcp_accept.c: incoming connections ---- */

/*
 * Listen, tell the others where, and learn the job's key: collective. Returns 0, or -1 and
 * ERR_PEER, ERR_CONFIG or ERR_FAILED.
 */
int tcp_accept_open(struct tcp_comm *comm, const struct tcp_settings *settings, struct err *err);
void tcp_accept_close(struct tcp_comm *comm);

/* See to an event of a listener or incoming; and, between events, to what is due. */
void tcp_accept_event(struct tcp_comm *comm, struct tcp_watch *watch);
void tcp_accept_tick(struct tcp_comm *comm);

/* ---- tcp_dial.c: connecting to others ---- */

/* Begin to connect to it, where this rank is the one that does. */
void tcp_dial_begin(struct tcp_comm *comm, struct tcp_peer *peer);

/* See to an event of an attempt; and, between events, to what is due. */
void tcp_dial_event(struct tcp_comm *comm, struct tcp_watch *watch);
void tcp_dials_tick(struct tcp_comm *comm);
void tcp_dials_close(struct tcp_comm *comm);

/* ---- tcp_link.c: what goes over them ---- */

struct tcp_peer *tcp_peer_of(struct tcp_comm *comm, int world_rank);

/* fd is the peer's connection from now on. */
void tcp_link_up(struct tcp_comm *comm, struct tcp_peer *peer, int fd);

/* It is not to be reached, and why. */
void tcp_link_lost(struct tcp_comm *comm, struct tcp_peer *peer, const char *why);

/* A call needs a peer that is gone: set err to why, and tell the others. Returns -1. */
int tcp_link_explain(struct tcp_comm *comm, const struct tcp_peer *peer, struct err *err);

void tcp_begin_send(struct tcp_comm *comm, struct tcp_peer *peer, struct tcp_flow *flow);
void tcp_begin_receive(struct tcp_comm *comm, struct tcp_peer *peer, struct tcp_flow *flow);

/* Send that this rank has reached a place; a peer's message of that kind is consumed.
 * Returns where the news ends in control_sent. */
uint64_t tcp_tell(struct tcp_comm *comm, struct tcp_peer *peer, struct tcp_tag tag);
int tcp_was_told(struct tcp_peer *peer, struct tcp_tag tag);

/* Do all that can be done without waiting. */
void tcp_progress(struct tcp_comm *comm);

void tcp_links_close(struct tcp_comm *comm);

#endif
