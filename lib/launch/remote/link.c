/*
 * link.c - frames in, frames out
 */
#include "launch/remote/link_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

enum { READ_BYTES = 64 << 10, N_READS_MAX = 16, KEEP_BYTES = 1 << 20 };

double link_lost_seconds(void)
{
    const char *text = getenv("LMTRAIN_LINK_SECONDS");
    double seconds;

    if (!text || str_to_f64(text, &seconds) || seconds < 1 || seconds > 3600)
        return 10;
    return seconds;
}

/* Fails on what is no TCP, where it isn't needed. */
static void set_up_tcp(int fd, double lost_seconds)
{
    int on = 1, idle = 1, interval = 1, count = (int)lost_seconds;
    unsigned milliseconds = (unsigned)(lost_seconds * 1e3);

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
}

void link_open(struct link *link, int fd, double lost_seconds)
{
    double now = clock_seconds();

    *link = (struct link){ .fd = fd, .heard_at = now, .sent_at = now };
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    set_up_tcp(fd, lost_seconds);
}

void link_close(struct link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    str_release(&link->in);
    str_release(&link->out);
    *link = (struct link){ .fd = -1 };
}

/* Drop what is done with from the front, and a large buffer that has served. */
static void forget(struct str *buffer, size_t *done)
{
    size_t left = buffer->length - *done;

    if (!*done)
        return;
    if (!left && buffer->capacity > KEEP_BYTES) {
        str_release(buffer);
    } else {
        memmove(buffer->data, buffer->data + *done, left);
        buffer->length = left;
    }
    *done = 0;
}

void link_flush(struct link *link)
{
    while (link->fd >= 0 && link->out_sent < link->out.length) {
        ssize_t n = send(link->fd, link->out.data + link->out_sent,
                         link->out.length - link->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        /* Broken: reading will tell. */
        link->out_sent = n < 0 ? link->out.length : link->out_sent + (size_t)n;
    }
    if (link->out_sent == link->out.length || link->out_sent > KEEP_BYTES)
        forget(&link->out, &link->out_sent);
}

void link_send(struct link *link, const struct message *message)
{
    size_t start = link->out.length;

    if (link->fd < 0)
        return;
    message_add_number(&link->out, 0);
    message_encode(message, &link->out);
    size_t length = link->out.length - start - 4;
    CHECK(length <= LINK_FRAME_MAX);
    for (int i = 0; i < 4; i++)
        link->out.data[start + (size_t)i] = (char)(unsigned char)(length >> (8 * i));
    link->sent_at = clock_seconds();
    link_flush(link);
}

struct pollfd link_poll(const struct link *link)
{
    bool pending = link->out_sent < link->out.length;

    return (struct pollfd){ .fd = link->fd, .events = (short)(POLLIN | (pending ? POLLOUT : 0)) };
}

int link_receive(struct link *link, struct err *err)
{
    char bytes[READ_BYTES];

    if (link->fd < 0)
        return err_set(err, ERR_PEER, "the link is closed");
    forget(&link->in, &link->in_taken);
    for (int i = 0; i < N_READS_MAX; i++) {
        ssize_t n = recv(link->fd, bytes, sizeof bytes, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        /* A process that ends with something unread resets its connection. */
        if (!n || (n < 0 && errno == ECONNRESET))
            return err_set(err, ERR_PEER, "its link closed");
        if (n < 0)
            return err_set_errno(err, ERR_PEER, "its link broke");
        str_add_bytes(&link->in, bytes, (size_t)n);
        link->heard_at = clock_seconds();
    }
    return 0;
}

int link_next(struct link *link, struct message *message, struct err *err)
{
    struct message_reader reader = { .at = (const unsigned char *)link->in.data };
    size_t left = link->in.length - link->in_taken;

    if (left < 4)
        return 0;
    reader.at += link->in_taken;
    reader.end = reader.at + left;
    size_t length = message_read_number(&reader);
    if (length > LINK_FRAME_MAX)
        return err_set(err, ERR_PEER, "a frame of %zu bytes, at most %d are allowed", length,
                       LINK_FRAME_MAX);
    if (left - 4 < length)
        return 0;
    if (message_decode(reader.at, length, message, err))
        return -1;
    link->in_taken += 4 + length;
    return 1;
}
