/*
 * message_impl.h - what the head and its daemons say to each other
 *
 * Every message has the same few fields, of which each kind uses some. Decoding is a pure function
 * over bytes that trusts none of them; whether a rank or a node exists is for the receiver to
 * check. Numbers have their least significant byte first.
 */
#ifndef LAUNCH_MESSAGE_IMPL_H
#define LAUNCH_MESSAGE_IMPL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* To be raised with any change of what is sent. */
enum { MESSAGE_PROTOCOL = 3 };

/* Frames and what is in them. The largest are the gathered blobs of a fence. */
enum { LINK_FRAME_MAX = 64 << 20, MESSAGE_TEXT_MAX = 1 << 20 };

enum message_kind {
    /* Both ways. */
    MESSAGE_BEAT = 1, /* still here */
    MESSAGE_FENCE,    /* id; text: the ranks that take part ("*": all, else "0,3"); data.
                         number: to the head, seconds until it fails, 0 never;
                         from it, enum launch_outcome, the data of all nodes */
    MESSAGE_ASK,      /* a rank's business card is wanted: rank, node and id of who asks */
    MESSAGE_ANSWER,   /* node and id of who asked, number: enum launch_outcome, data */

    /* From a daemon. */
    MESSAGE_HELLO,    /* number: protocol; id: bytes of a progress slot; text: host name */
    MESSAGE_STARTED,  /* rank; number: its pid */
    MESSAGE_ENDED,    /* rank; number: as of waitpid; id: 1 if it left in order; data: its slot */
    MESSAGE_ABORT,    /* rank; number: status; text; data: its slot */
    MESSAGE_FAILED,   /* the job cannot be started: number: enum err_code; text */
    MESSAGE_OUTPUT,   /* rank; number: 1 stdout, 2 stderr; data */
    MESSAGE_PROGRESS, /* rank; number: 1 if stopped by a signal; data: its slot */
    MESSAGE_REPORT,   /* text: a line for the user */

    /* From the head. */
    MESSAGE_START,   /* data: a job spec */
    MESSAGE_CREDIT,  /* id: so many bytes more of output may be sent */
    MESSAGE_SIGNAL,  /* number: signal; rank -1: to all ranks; id: 1 to their groups */
    MESSAGE_END,     /* end the ranks: SIGTERM, and SIGKILL 0.3 s later; fences fail from now on */
    MESSAGE_KILL,    /* SIGKILL now */
    MESSAGE_GOODBYE, /* remove your folder and exit */
    MESSAGE_KINDS
};

struct message {
    enum message_kind kind;
    int32_t rank, node, number;
    uint32_t id;
    const char *text; /* never NULL once decoded; NULL is "" to encode */
    const void *data;
    size_t n_bytes;
};

/* Append the message's bytes, without a frame's length. */
void message_encode(const struct message *message, struct str *bytes);

/*
 * Read a message that fills exactly n_bytes. text and data point into bytes. Returns 0, or -1 and
 * ERR_PEER if it is none.
 */
int message_decode(const void *bytes, size_t n_bytes, struct message *message, struct err *err);

/*
 * The parts of a list of texts and numbers, for what has more fields than a message (job specs).
 * A reader that has run over its end or met nonsense says 0 and "" from then on, and is `broken`.
 */
struct message_reader {
    const unsigned char *at, *end;
    int broken;
};

void message_add_number(struct str *bytes, uint32_t number);
void message_add_text(struct str *bytes, const char *text);
uint32_t message_read_number(struct message_reader *reader);
const char *message_read_text(struct message_reader *reader);

#endif
