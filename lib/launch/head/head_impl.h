/*
 * head_impl.h - one attempt of a job, seen by who decides
 *
 * head_nodes.c opens and closes the nodes, head_messages.c takes what their daemons say, head_daemons.c
 * blames those that say nothing, head_gpus.c ends ranks whose GPU is gone, head_fences.c carries what
 * ranks of different nodes tell each other through PMIx, head.c judges, watches and ends. supervise.c
 * makes attempts of it.
 */
#ifndef LAUNCH_HEAD_HEAD_IMPL_H
#define LAUNCH_HEAD_HEAD_IMPL_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/arena.h"
#include "launch/death_impl.h"
#include "launch/head/output_impl.h"
#include "launch/head/screen_impl.h"
#include "launch/node/pmix_server_impl.h"
#include "launch/remote/link_impl.h"
#include "launch/supervise.h"
#include "launch/watch/hang_impl.h"

/* Why the ranks are terminated. A stronger cause replaces it until then. */
struct head_cause {
    struct death_verdict verdict;
    int rank;  /* -1: none in particular */
    double at; /* when it was found (clock_seconds) */
    char text[1600];
};

struct head_node {
    const char *host; /* as people call it */
    char name[256];   /* its host name, made different from all others' */
    int host_index;   /* in the options' list; -1: this machine */
    int first_rank, n_ranks;
    struct link link;
    pid_t daemon; /* our child; 0 on other hosts, or once it is reaped */
    bool said_hello;
    bool is_lost;       /* its link closed before we said goodbye */
    double blind_since; /* since when its daemon is stopped or silent; 0: it is not */
    bool blindness_told;
    bool is_unfit;             /* a GPU of it is broken: no restart uses it */
    uint32_t uncredited_bytes; /* output taken and not yet asked for anew (head_send_credit) */
};

struct head_rank {
    int node;
    pid_t pid; /* 0: not started yet */
    bool running;
    int wait_status;  /* once it has ended */
    bool in_order;    /* it left before it ended */
    bool has_aborted; /* it has said why it ends */
    int64_t first_step;
    bool gpu_is_told;          /* that its GPU is broken */
    struct progress_slot slot; /* the newest copy */
};

/* What ties the head to who started it; it lasts over all attempts. */
struct head_console {
    struct screen *screen;
    int fd; /* a signalfd */
    int n_stop;
    double stop_at; /* when the last that counted came */
    int passed;     /* the last one passed on, 0 if none */
    bool asked_to_stop;
};

struct head_fence;

struct launch_head {
    const struct supervise_options *options;
    struct head_console *console;
    struct arena arena;
    int attempt, n_ranks;
    char *const *argv;
    int n_nodes, n_hellos;
    struct head_node *nodes;
    struct head_rank *ranks;
    struct host_link *host_links; /* one for each host of the list, or NULL */
    struct output *output;
    struct head_fence *fences;
    struct hang_rank *watched;
    struct hang_watch hang;
    struct pollfd *polls;
    double lost_seconds;
    double started_at, last_turn;
    bool is_started;  /* the specs are out */
    bool a_rank_died; /* a rank ended out of order: fences fail */
    int n_running;    /* ranks that are not known to have ended */
    bool hang_reported;
    bool some_requeue; /* a rank ended in order with ERR_REQUEUE */
    uint64_t beats;    /* of all ranks, as head_watch_gpus last saw them */
    double
        still_since; /* since when no rank moves with a GPU broken; 0: not known, or all are well */
    struct head_cause cause;
    struct err start_err; /* code ERR_NONE, or why the ranks could not be started */
    enum { RUNNING, ENDING, KILLED } phase;
    double ending_since;
};

/* What came of an attempt. */
struct head_result {
    int status;        /* the job's exit status; -1: could not be started */
    bool may_restart;  /* the cause may not recur */
    double seconds;    /* how long it ran */
    int64_t best_step; /* the highest that any rank told; -1: none began */
    bool has_advanced; /* some rank was seen to go on by a step */
};

/*
 * Run one attempt on n_ranks. is_gone has a flag for each host of the list: those are left out, and
 * hosts that turn out to be lost get theirs. Returns 0 with *result, or -1 with err if it could not
 * be started.
 */
int head_run(const struct supervise_options *options, struct head_console *console, int attempt,
             int n_ranks, char *const *argv, bool *is_gone, struct head_result *result,
             struct err *err);

/* ---- head.c ---- */

/*
 * Record a death as the cause, unless a stronger one is known or the ranks are being terminated already.
 * Of a rank's death kind, rank and what belongs to the kind are the caller's; the rest is filled in here.
 */
void head_set_cause(struct launch_head *head, const struct death *death);

/* What a rank's end means; it has just been noted. */
void head_judge(struct launch_head *head, int rank);

/* A node is lost, with its ranks. why: the reason for which its link closed; NULL: it is silent. */
void head_lose_node(struct launch_head *head, int node, const char *why);

/* ---- head_nodes.c ---- */

/* Deal the ranks out and get a link to each node. */
int head_open_nodes(struct launch_head *head, bool *is_gone, struct err *err);

/* All have said hello: tell each what to do. */
void head_send_specs(struct launch_head *head);

void head_send_all(struct launch_head *head, const struct message *message);

/* Goodbye to all; when this returns no daemon, rank or folder of this machine is left. */
void head_close_nodes(struct launch_head *head);

/* ---- head_messages.c ---- */

/* Read what a node's daemon has said. */
void head_take_messages(struct launch_head *head, int node);

/* Let the nodes send more output, unless the screen is full. */
void head_send_credit(struct launch_head *head);

/* ---- head_daemons.c ---- */

/* Whether nothing of a node's ranks can be seen: its daemon is stopped, or says nothing. */
int head_is_blind(const struct launch_head *head, const struct head_node *node, double now);

/* Blame daemons instead of the ranks that are seen through them. */
void head_watch_daemons(struct launch_head *head, double now);

/* Beats to other hosts, and the end of those from which none have come for long. */
void head_watch_links(struct launch_head *head, double now);

/* ---- head_gpus.c ---- */

/* Ranks whose GPU broke: told, and if then no rank moves for a while, taken for the cause. */
void head_watch_gpus(struct launch_head *head, double now);

/* Where ranks only heard of a death: the first whose GPU is broken is the cause, running or ended. */
void head_find_broken_gpu(struct launch_head *head);

/* ---- head_fences.c ---- */

/* A node is at a fence. Returns -1 if what it says cannot be. */
int head_take_fence(struct launch_head *head, int node, const struct message_fence *message);

/* A node requests a card, or replies to a query of the head. Return -1 for a rank or node that does not exist. */
int head_take_card_request(struct launch_head *head, int node,
                           const struct message_card_request *request);
int head_take_card_reply(struct launch_head *head, const struct message_card_reply *reply);

/* End the fences whose time is over; returns when the next one's is (1e300: none). */
double head_check_fences(struct launch_head *head, double now);

/* All fences under way fail: somebody died. */
void head_fail_fences(struct launch_head *head);

#endif
