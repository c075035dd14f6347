/*
 * link_impl.h - frames over a stream between the head and a daemon
 *
 * A frame is its length (4 bytes, least significant first) and a message (message_impl.h). Nothing
 * here waits: what cannot be sent yet is kept, what has come in part stays until the rest comes.
 * Memory grows with what has really come, never by what a peer announces, and a frame longer than
 * LINK_FRAME_MAX is refused.
 */
#ifndef LAUNCH_REMOTE_LINK_IMPL_H
#define LAUNCH_REMOTE_LINK_IMPL_H

#include <poll.h>

#include "base/str.h"
#include "launch/message_impl.h"

struct link {
    int fd;          /* -1: closed */
    struct str in;   /* what came and is not taken */
    size_t in_taken; /* of it: frames handed out */
    struct str out;  /* what is to be sent */
    size_t out_sent;
    double heard_at; /* when something last came (clock_seconds) */
    double sent_at;
};

/*
 * Take over fd: it becomes non-blocking and close-on-exec. On TCP also: no delay, and a peer whose
 * machine or cable is gone is found after lost_seconds.
 */
void link_open(struct link *link, int fd, double lost_seconds);
void link_close(struct link *link);

/* After how many seconds a silent peer is lost: $LMTRAIN_LINK_SECONDS (1 to 3600), or 10. */
double link_lost_seconds(void);

/* Queue a message and send what can be sent. A link that broke is noticed by link_receive. */
void link_send(struct link *link, const struct message *message);
void link_flush(struct link *link);

/* What to poll for. */
struct pollfd link_poll(const struct link *link);

/*
 * Read what has come (bounded), then hand it out message by message with link_next. Returns 0, or
 * -1 if the peer closed or the link broke, with the reason; what had come before is still there.
 */
int link_receive(struct link *link, struct err *err);

/*
 * The next whole message: 1; 0 if there is none; -1 if the peer sends what is no message. Its text
 * and data stay until the next call for this link.
 */
int link_next(struct link *link, struct message *message, struct err *err);

#endif
