/*
 * tcp_link.c - frames, and the transfers that they belong to
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/num.h"
#include "comm/tcp_impl.h"

enum {
    EVENTS_MAX = 64,
    TURN_BYTES = 1 << 20, /* for one connection, before another gets its turn */
    MARKS_MAX = 1 << 16,  /* a peer that is so far ahead breaks the rules */
};

struct tcp_peer *tcp_peer_of(struct tcp_comm *comm, int world_rank)
{
    struct tcp_peer **at = &comm->peers[world_rank];

    if (!*at) {
        *at = calloc(1, sizeof **at);
        CHECK(*at);
        (*at)->watch = (struct tcp_watch){ TCP_CONNECTION, -1 };
        (*at)->rank = world_rank;
        (*at)->blames = -1;
    }
    return *at;
}

/* A peer broke the rules: nothing of this comm is to be trusted from here on. */
static void fail(struct tcp_comm *comm, const struct tcp_peer *peer, const char *what)
{
    if (!comm->failure.code)
        err_set(&comm->failure, ERR_PEER, "rank %d %s", peer->rank, what);
}

static void activate(struct tcp_comm *comm, struct tcp_peer *peer)
{
    if (peer->is_active || peer->state != TCP_CONNECTED)
        return;
    peer->is_active = true;
    peer->next_active = comm->active;
    comm->active = peer;
}

/* ---- frames without data ---- */

static void add_control(struct tcp_comm *comm, struct tcp_peer *peer, const struct tcp_frame *frame)
{
    if (peer->control_first == peer->control_end)
        peer->control_first = peer->control_end = 0;
    if (peer->control_end + sizeof *frame > peer->control_room) {
        size_t room = peer->control_room ? 2 * peer->control_room : 1024;
        unsigned char *grown = realloc(peer->control, room);

        CHECK(grown);
        peer->control = grown;
        peer->control_room = room;
    }
    memcpy(peer->control + peer->control_end, frame, sizeof *frame);
    peer->control_end += sizeof *frame;
    activate(comm, peer);
}

static bool is_same(struct tcp_tag a, struct tcp_tag b)
{
    return a.group == b.group && a.number == b.number && a.is_pair == b.is_pair;
}

/* What the receiver waits for must be what is sent. */
static void make_ready(struct tcp_comm *comm, struct tcp_flow *flow, uint64_t n_bytes)
{
    char what[120];

    snprintf(what, sizeof what, "expects %llu bytes, but this rank sends %zu",
             (unsigned long long)n_bytes, flow->n_bytes);
    if (n_bytes != flow->n_bytes)
        fail(comm, flow->peer, what);
    flow->is_ready = n_bytes == flow->n_bytes;
    activate(comm, flow->peer);
}

static void take_mark(struct tcp_comm *comm, struct tcp_peer *peer, const struct tcp_mark *mark)
{
    for (struct tcp_flow *flow = peer->sends; flow; flow = flow->next)
        if (is_same(flow->tag, mark->tag)) {
            make_ready(comm, flow, mark->n_bytes);
            return;
        }
    if (peer->n_marks == peer->marks_room) {
        int room = max_int(16, 2 * peer->marks_room);
        struct tcp_mark *grown =
            room > MARKS_MAX ? NULL : realloc(peer->marks, (size_t)room * sizeof *grown);

        if (!grown) {
            fail(comm, peer, "expects more messages than this rank sends");
            return;
        }
        peer->marks = grown;
        peer->marks_room = room;
    }
    peer->marks[peer->n_marks++] = *mark;
}

/* The mark of this tag, and it is used up; 0 if it has not come. */
static int find_mark(struct tcp_peer *peer, struct tcp_tag tag, uint64_t *n_bytes)
{
    for (int i = 0; i < peer->n_marks; i++)
        if (is_same(peer->marks[i].tag, tag)) {
            *n_bytes = peer->marks[i].n_bytes;
            peer->marks[i] = peer->marks[--peer->n_marks];
            return 1;
        }
    return 0;
}

uint64_t tcp_tell(struct tcp_comm *comm, struct tcp_peer *peer, struct tcp_tag tag)
{
    add_control(comm, peer, &(struct tcp_frame){ .kind = TCP_MARK, .tag = tag });
    tcp_dial_begin(comm, peer);
    return peer->control_sent + (peer->control_end - peer->control_first);
}

int tcp_was_told(struct tcp_peer *peer, struct tcp_tag tag)
{
    uint64_t n_bytes;

    return find_mark(peer, tag, &n_bytes);
}

/* ---- transfers ---- */

static void begin(struct tcp_peer *peer, struct tcp_flow *flow, struct tcp_flow **list)
{
    CHECK(!flow->is_open);
    flow->peer = peer;
    flow->next = NULL;
    flow->n_done = 0;
    flow->is_open = true;
    flow->is_ready = false;
    while (*list)
        list = &(*list)->next;
    *list = flow;
}

static void finish(struct tcp_flow *flow, struct tcp_flow **list)
{
    while (*list != flow)
        list = &(*list)->next;
    *list = flow->next;
    flow->is_open = false;
}

/* Bytes of a flow have moved; one that is complete leaves the list. */
static void moved(struct tcp_comm *comm, struct tcp_flow *flow, size_t n_bytes,
                  struct tcp_flow **list)
{
    flow->n_done += n_bytes;
    if (flow->n_done == flow->n_bytes)
        finish(flow, list);
    comm->moved_at = clock_seconds();
}

/* The next bytes of a flow that lie behind one another: how many, at most n. */
static size_t next_bytes(const struct tcp_flow *flow, size_t n, unsigned char **at)
{
    size_t place = flow->first + flow->n_done;

    if (place >= flow->wrap)
        place -= flow->wrap;
    *at = flow->buffer + place;
    return n < flow->wrap - place ? n : flow->wrap - place;
}

void tcp_begin_send(struct tcp_comm *comm, struct tcp_peer *peer, struct tcp_flow *flow)
{
    uint64_t n_bytes;

    begin(peer, flow, &peer->sends);
    if (find_mark(peer, flow->tag, &n_bytes))
        make_ready(comm, flow, n_bytes);
    tcp_dial_begin(comm, peer);
}

void tcp_begin_receive(struct tcp_comm *comm, struct tcp_peer *peer, struct tcp_flow *flow)
{
    begin(peer, flow, &peer->receives);
    add_control(
        comm, peer,
        &(struct tcp_frame){ .kind = TCP_MARK, .tag = flow->tag, .n_bytes = flow->n_bytes });
    tcp_dial_begin(comm, peer);
}

/* ---- connections begin and end ---- */

void tcp_link_up(struct tcp_comm *comm, struct tcp_peer *peer, int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = &peer->watch };

    peer->watch.fd = fd;
    peer->state = TCP_CONNECTED;
    CHECK(!epoll_ctl(comm->epoll, EPOLL_CTL_ADD, fd, &event));
    activate(comm, peer);
}

void tcp_link_lost(struct tcp_comm *comm, struct tcp_peer *peer, const char *why)
{
    if (peer->state == TCP_GONE)
        return;
    if (peer->watch.fd >= 0)
        close(peer->watch.fd);
    peer->watch.fd = -1;
    peer->state = TCP_GONE;
    snprintf(peer->why, sizeof peer->why, "%s", why);
    comm->n_gone++;
}

static void send_all(struct tcp_comm *comm);

/* All others learn which rank is gone, so that those who lose this one next can name the first. */
static void tell_lost(struct tcp_comm *comm, int rank)
{
    struct tcp_frame frame = { .kind = TCP_LOST, .tag = { .number = (uint32_t)rank } };

    for (int i = 0; i < comm->base.world_size; i++)
        if (comm->peers[i] && comm->peers[i]->state == TCP_CONNECTED)
            add_control(comm, comm->peers[i], &frame);
    send_all(comm);
}

int tcp_link_explain(struct tcp_comm *comm, const struct tcp_peer *peer, struct err *err)
{
    tell_lost(comm, peer->blames >= 0 ? peer->blames : peer->rank);
    if (peer->blames >= 0)
        return err_set(err, ERR_PEER,
                       "rank %d has left or failed: rank %d lost the connection to it",
                       peer->blames, peer->rank);
    return err_set(err, ERR_PEER, "rank %d has left or failed: %s", peer->rank, peer->why);
}

/* In the middle of something or in good order: a call that needs it sees that. */
static void connection_ended(struct tcp_comm *comm, struct tcp_peer *peer, int error)
{
    tcp_link_lost(comm, peer, error ? strerror(error) : "its connection was closed");
}

/* ---- what comes ---- */

static void take_frame(struct tcp_comm *comm, struct tcp_peer *peer)
{
    const struct tcp_frame *frame = &peer->in;

    peer->in_bytes = 0;
    switch (frame->kind) {
    case TCP_MARK:
        take_mark(comm, peer, &(struct tcp_mark){ frame->tag, frame->n_bytes });
        return;
    case TCP_LOST:
        if (peer->blames < 0 && frame->tag.number < (uint32_t)comm->base.world_size)
            peer->blames = (int)frame->tag.number;
        return;
    case TCP_DATA:
        break;
    default:
        fail(comm, peer, "sent an invalid frame");
        return;
    }
    struct tcp_flow *flow = peer->receives;
    while (flow && !is_same(flow->tag, frame->tag))
        flow = flow->next;
    if (!flow || !frame->n_bytes || frame->n_bytes > flow->n_bytes - flow->n_done) {
        fail(comm, peer, "sent a message that this rank does not expect");
        return;
    }
    peer->in_flow = flow;
    peer->in_left = frame->n_bytes;
}

/* What recv says: bytes; 0 for none now, or -1 when the connection has ended. */
static ssize_t receive(struct tcp_comm *comm, struct tcp_peer *peer, void *to, size_t n_bytes)
{
    ssize_t n = recv(peer->watch.fd, to, n_bytes, MSG_DONTWAIT);

    if (n > 0)
        return n;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    connection_ended(comm, peer, n ? errno : 0);
    return -1;
}

static ssize_t receive_data(struct tcp_comm *comm, struct tcp_peer *peer)
{
    struct tcp_flow *flow = peer->in_flow;
    unsigned char *to;
    size_t most = next_bytes(flow, peer->in_left, &to);
    ssize_t n = receive(comm, peer, to, most);

    if (n <= 0)
        return n;
    peer->in_left -= (size_t)n;
    if (!peer->in_left)
        peer->in_flow = NULL;
    moved(comm, flow, (size_t)n, &peer->receives);
    return n;
}

static ssize_t receive_header(struct tcp_comm *comm, struct tcp_peer *peer)
{
    unsigned char *header = (unsigned char *)&peer->in;
    ssize_t n = receive(comm, peer, header + peer->in_bytes, sizeof peer->in - peer->in_bytes);

    if (n <= 0)
        return n;
    peer->in_bytes += (size_t)n;
    if (peer->in_bytes == sizeof peer->in)
        take_frame(comm, peer);
    return n;
}

static void receive_turn(struct tcp_comm *comm, struct tcp_peer *peer)
{
    for (size_t n_bytes = 0; n_bytes < TURN_BYTES && !comm->failure.code;) {
        ssize_t n = peer->in_flow ? receive_data(comm, peer) : receive_header(comm, peer);

        if (n <= 0)
            return;
        n_bytes += (size_t)n;
    }
}

/* ---- what goes ---- */

/* Bytes that may go now. */
static size_t available(const struct tcp_flow *flow)
{
    size_t end = flow->source && flow->source->is_open ? flow->source->n_done : flow->n_bytes;

    return flow->is_ready ? end - flow->n_done : 0;
}

/* The next data frame: of the first send that may go, which then is the last in turn. */
static int next_frame(struct tcp_comm *comm, struct tcp_peer *peer)
{
    struct tcp_flow *flow = peer->sends, **end = &peer->sends;

    while (flow && !available(flow))
        flow = flow->next;
    if (!flow)
        return 0;
    while (*end != flow)
        end = &(*end)->next;
    *end = flow->next;
    while (*end)
        end = &(*end)->next;
    *end = flow;
    flow->next = NULL;

    size_t n_bytes = available(flow);
    peer->out_left = n_bytes < comm->piece_bytes ? n_bytes : comm->piece_bytes;
    peer->out = (struct tcp_frame){ .kind = TCP_DATA, .tag = flow->tag, .n_bytes = peer->out_left };
    peer->out_bytes = 0;
    peer->out_flow = flow;
    return 1;
}

static ssize_t send_some(struct tcp_comm *comm, struct tcp_peer *peer, struct iovec *parts,
                         size_t n_parts)
{
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = n_parts };
    ssize_t n = sendmsg(peer->watch.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n >= 0)
        return n;
    if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS)
        return 0;
    /* What it has sent before it went may still be read: the end is seen there. */
    if (errno != EPIPE && errno != ECONNRESET)
        connection_ended(comm, peer, errno);
    return -1;
}

static ssize_t send_control(struct tcp_comm *comm, struct tcp_peer *peer)
{
    struct iovec part = { peer->control + peer->control_first,
                          peer->control_end - peer->control_first };
    ssize_t n = send_some(comm, peer, &part, 1);

    if (n > 0) {
        peer->control_first += (size_t)n;
        peer->control_sent += (uint64_t)n;
    }
    return n;
}

/* Of the frame under way: what is left of its header, and data that lies together. */
static ssize_t send_data(struct tcp_comm *comm, struct tcp_peer *peer)
{
    struct tcp_flow *flow = peer->out_flow;
    unsigned char *from;
    size_t header = sizeof peer->out - peer->out_bytes,
           most = next_bytes(flow, peer->out_left, &from);
    struct iovec parts[2] = { { (unsigned char *)&peer->out + peer->out_bytes, header },
                              { from, most } };
    ssize_t n = send_some(comm, peer, parts, 2);

    if (n <= 0)
        return n;
    size_t of_header = (size_t)n < header ? (size_t)n : header, of_data = (size_t)n - of_header;
    peer->out_bytes += of_header;
    peer->out_left -= of_data;
    if (!peer->out_left)
        peer->out_flow = NULL;
    moved(comm, flow, of_data, &peer->sends);
    return n;
}

/* Whether it has more to send, now or soon. */
static int send_turn(struct tcp_comm *comm, struct tcp_peer *peer)
{
    for (size_t n_bytes = 0; n_bytes < TURN_BYTES && peer->state == TCP_CONNECTED;) {
        ssize_t n;

        /* Frames don't lie within one another. */
        if (peer->out_flow)
            n = send_data(comm, peer);
        else if (peer->control_first < peer->control_end)
            n = send_control(comm, peer);
        else if (next_frame(comm, peer))
            continue;
        else
            break;
        if (n < 0)
            return 0;
        if (n == 0)
            return 1;
        n_bytes += (size_t)n;
    }
    if (peer->state != TCP_CONNECTED)
        return 0;
    return peer->control_first < peer->control_end || peer->sends;
}

static void send_all(struct tcp_comm *comm)
{
    struct tcp_peer *list = comm->active;

    comm->active = NULL;
    for (struct tcp_peer *next, *peer = list; peer; peer = next) {
        next = peer->next_active;
        peer->is_active = false;
        if (peer->state == TCP_CONNECTED && send_turn(comm, peer))
            activate(comm, peer);
    }
}

void tcp_progress(struct tcp_comm *comm)
{
    struct epoll_event events[EVENTS_MAX];
    int n = epoll_wait(comm->epoll, events, EVENTS_MAX, 0);

    for (int i = 0; i < n && !comm->failure.code; i++) {
        struct tcp_watch *watch = events[i].data.ptr;

        if (watch->fd < 0)
            continue; /* closed by an event before this one */
        if (watch->kind == TCP_CONNECTION)
            receive_turn(comm, (struct tcp_peer *)watch);
        else if (watch->kind == TCP_ATTEMPT)
            tcp_dial_event(comm, watch);
        else
            tcp_accept_event(comm, watch);
    }
    tcp_accept_tick(comm);
    tcp_dials_tick(comm);
    send_all(comm);
}

void tcp_links_close(struct tcp_comm *comm)
{
    for (int i = 0; comm->peers && i < comm->base.world_size; i++) {
        struct tcp_peer *peer = comm->peers[i];

        if (!peer)
            continue;
        if (peer->watch.fd >= 0)
            close(peer->watch.fd);
        free(peer->control);
        free(peer->marks);
        free(peer);
    }
    free(comm->peers);
}
