/*
 * pmix_server_impl.h - our PMIx server: the ranks of one node of a job
 *
 * The library's thread calls us when ranks connect, leave, abort, reach fences and request others'
 * cards (what they have published); what needs the head is queued here as an event, and a
 * descriptor becomes readable. There can be one server in a process, once. What connects to it
 * passes the gate first (pmix_gate_impl.h).
 */
#ifndef LAUNCH_NODE_PMIX_SERVER_IMPL_H
#define LAUNCH_NODE_PMIX_SERVER_IMPL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "launch/job_spec_message_impl.h"
#include "launch/message_impl.h"

struct launch_server;

struct launch_event {
    struct launch_event *next;
    enum {
        EVENT_ABORT,        /* rank, number: its status, text */
        EVENT_FENCE,        /* id, number: seconds or 0, text: the members, data */
        EVENT_CARD_REQUEST, /* id, rank: whose card is requested */
        EVENT_CARD,   /* node, id: as given to launch_server_query_card; number: an outcome; data */
        EVENT_REPORT, /* text: a line for the user */
    } kind;
    int rank, number, node;
    uint32_t id;
    char *text; /* heap */
    size_t n_bytes;
    char *data; /* heap */
};

/*
 * Start serving the ranks of spec->node; the library's files go to folder. The caller has blocked
 * the signals that no thread of the library may receive.
 */
int launch_server_start(struct launch_server **server, const char *folder,
                        const struct job_spec *spec, struct err *err);

/* Add the variables by which rank finds us to *environment, a heap array of heap strings. */
int launch_server_environment(struct launch_server *server, int rank, char ***environment,
                              struct err *err);

/* Readable when an event waits. */
int launch_server_fd(const struct launch_server *server);

/* Take the next event, to be freed by launch_event_destroy; NULL if there is none. */
struct launch_event *launch_server_next(struct launch_server *server);
void launch_event_destroy(struct launch_event *event);

/* Whether a rank of this node left in good order (PMIx_Finalize). */
int launch_server_finalized(const struct launch_server *server, int rank);

/*
 * The head's answer to a fence or a card request of this node; unknown ids are ignored. data is
 * copied.
 */
void launch_server_settle(struct launch_server *server, uint32_t id, enum launch_outcome outcome,
                          const void *data, size_t n_bytes);

/* Another node requests the card of a rank of this node: EVENT_CARD follows. */
void launch_server_query_card(struct launch_server *server, int rank, int node, uint32_t id);

/* A rank of the job has died: fences fail, those under way and all later ones. */
void launch_server_rank_died(struct launch_server *server);

#endif
