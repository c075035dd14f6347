/*
 * message_impl.h - messages between the head and its daemons
 *
 * MESSAGES lists every message once: its kind, the name of its struct, and its fields with their
 * types. The enum, the structs (struct message_ended { int rank; ... }), message_encode and
 * message_decode follow from it, and so do the tests. To add a message: a row in MESSAGES, a higher
 * MESSAGE_PROTOCOL, and the cases of head_messages.c or daemon.c.
 *
 * On the wire a message is its kind (4 bytes) and its fields in the order of the list; numbers have
 * their least significant byte first. Decoding is a pure function over bytes that trusts none of
 * them; whether a rank or a node exists is for the receiver to check.
 */
#ifndef LAUNCH_MESSAGE_IMPL_H
#define LAUNCH_MESSAGE_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* To be increased with any change of MESSAGES, of a field's type, or of struct job_spec. */
enum { MESSAGE_PROTOCOL = 4 };

/* Maximum size of a frame and of a text. The largest frames are the gathered data of a fence. */
enum { LINK_FRAME_MAX = 64 << 20, MESSAGE_TEXT_MAX = 1 << 20 };

/* How a fence or a request for a card ended. */
enum launch_outcome { OUTCOME_DONE, OUTCOME_DEAD, OUTCOME_TIMEOUT, OUTCOME_NOT_FOUND };

/* Who gets a signal: the ranks alone, or also what they have started. */
enum signal_target { TO_RANKS, TO_GROUPS };

struct message_bytes {
    const void *data; /* not aligned */
    size_t n_bytes;
};

/*
 * Types of fields: as C types, and what decoding checks.
 *   number    int, 4 bytes
 *   count     uint32_t, 4 bytes
 *   flag      bool, 4 bytes: 0 or 1
 *   outcome   enum launch_outcome, 4 bytes: one of its values
 *   text      const char *, length, bytes, a 0, which is the only one; at most MESSAGE_TEXT_MAX. In
 *             a message to be sent NULL is "". Once decoded it points into the bytes
 *   bytes     struct message_bytes, length, bytes. Once decoded data points into the bytes
 *   slot      const void *, the sizeof(struct progress_slot) bytes of a rank's slot, not aligned
 */
#define MESSAGE_TYPE_number int
#define MESSAGE_TYPE_count uint32_t
#define MESSAGE_TYPE_flag bool
#define MESSAGE_TYPE_outcome enum launch_outcome
#define MESSAGE_TYPE_text const char *
#define MESSAGE_TYPE_bytes struct message_bytes
#define MESSAGE_TYPE_slot const void *

/*
 * Ranks are world ranks. An id names a call of PMIx that waits on the daemon that sent it; members
 * is "*" for all ranks of the job, else a list like "0,3". A card is what a rank has published for
 * others (PMIx's direct modex); the head forwards requests for it and keeps nothing of them.
 */
/* clang-format off */
#define MESSAGES(MESSAGE, FIELD) \
    /* From a daemon, once its link is open. slot_bytes: sizeof(struct progress_slot) */ \
    MESSAGE(HELLO, hello, FIELD(count, protocol) FIELD(count, slot_bytes) FIELD(text, host)) \
    /* Both ways: the sender is alive */ \
    MESSAGE(BEAT, beat, ) \
    \
    /* ---- from a daemon ---- */ \
    MESSAGE(STARTED, started, FIELD(number, rank) FIELD(number, pid)) \
    /* wait_status: as of waitpid; in_order: the rank had called launch_leave */ \
    MESSAGE(ENDED, ended, \
            FIELD(number, rank) FIELD(number, wait_status) FIELD(flag, in_order) FIELD(slot, slot)) \
    /* The rank called launch_abort or MPI_Abort */ \
    MESSAGE(ABORT, abort, \
            FIELD(number, rank) FIELD(number, status) FIELD(text, reason) FIELD(slot, slot)) \
    /* The job cannot be started. code: enum err_code */ \
    MESSAGE(FAILED, failed, FIELD(number, code) FIELD(text, reason)) \
    MESSAGE(OUTPUT, output, FIELD(number, rank) FIELD(flag, is_stderr) FIELD(bytes, bytes)) \
    MESSAGE(PROGRESS, progress, FIELD(number, rank) FIELD(flag, is_stopped) FIELD(slot, slot)) \
    /* A warning for the user */ \
    MESSAGE(REPORT, report, FIELD(text, line)) \
    /* All members of this node are at a fence. seconds: until it fails, 0: never */ \
    MESSAGE(FENCE, fence, \
            FIELD(count, id) FIELD(number, seconds) FIELD(text, members) FIELD(bytes, data)) \
    /* A rank of this node wants the card of `rank` */ \
    MESSAGE(CARD_REQUEST, card_request, FIELD(count, id) FIELD(number, rank)) \
    /* The card that CARD_QUERY asked for, with the node and id of that */ \
    MESSAGE(CARD_REPLY, card_reply, \
            FIELD(number, node) FIELD(count, id) FIELD(outcome, outcome) FIELD(bytes, data)) \
    \
    /* ---- from the head ---- */ \
    /* spec: struct job_spec (job_spec_message_impl.h) */ \
    MESSAGE(START, start, FIELD(bytes, spec)) \
    /* Output of n_bytes more may be sent */ \
    MESSAGE(CREDIT, credit, FIELD(count, n_bytes)) \
    /* Send a signal to all ranks of the node, or to their process groups */ \
    MESSAGE(SIGNAL, signal, FIELD(number, signal) FIELD(flag, to_groups)) \
    /* Terminate the ranks: SIGTERM, and SIGKILL 0.3 s later; fences fail from now on */ \
    MESSAGE(END, end, ) \
    /* SIGKILL to the ranks */ \
    MESSAGE(KILL, kill, ) \
    /* Remove the job's folder and exit */ \
    MESSAGE(GOODBYE, goodbye, ) \
    /* The end of FENCE's id. data: that of all nodes, one after another */ \
    MESSAGE(FENCE_END, fence_end, FIELD(count, id) FIELD(outcome, outcome) FIELD(bytes, data)) \
    /* Another node wants the card of a rank of this node. node, id: for CARD_REPLY */ \
    MESSAGE(CARD_QUERY, card_query, FIELD(number, rank) FIELD(number, node) FIELD(count, id)) \
    /* The end of CARD_REQUEST's id */ \
    MESSAGE(CARD, card, FIELD(count, id) FIELD(outcome, outcome) FIELD(bytes, data))
/* clang-format on */

#define MESSAGE_NO_FIELD(type, name)
#define MESSAGE_KIND(KIND, name, fields) MESSAGE_##KIND,
#define MESSAGE_MEMBER(type, name) MESSAGE_TYPE_##type name;
#define MESSAGE_STRUCT(KIND, name, fields) \
    struct message_##name { \
        fields \
    };
#define MESSAGE_VARIANT(KIND, name, fields) struct message_##name name;

enum message_kind { MESSAGE_NONE, MESSAGES(MESSAGE_KIND, MESSAGE_NO_FIELD) MESSAGE_KINDS };

MESSAGES(MESSAGE_STRUCT, MESSAGE_MEMBER)

struct message {
    enum message_kind kind;
    union { /* by kind */
        MESSAGES(MESSAGE_VARIANT, MESSAGE_NO_FIELD)
    };
};

/* Append the message's bytes, without the length of its frame. */
void message_encode(const struct message *message, struct str *bytes);

/*
 * Read a message that fills exactly n_bytes. Texts and data point into bytes. Returns 0, or -1 and
 * ERR_PEER; *message is then left untouched.
 */
int message_decode(const void *bytes, size_t n_bytes, struct message *message, struct err *err);

/*
 * The parts of a list of texts and numbers, for struct job_spec. A reader that has reached its end
 * too early or read an invalid value returns 0 and "" from then on, and is `broken`.
 */
struct message_reader {
    const unsigned char *at, *end;
    bool broken;
};

void message_add_number(struct str *bytes, uint32_t number);
void message_add_text(struct str *bytes, const char *text);
uint32_t message_read_number(struct message_reader *reader);
const char *message_read_text(struct message_reader *reader);

#endif
