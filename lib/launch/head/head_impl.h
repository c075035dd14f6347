/*
 * head_impl.h - one attempt of a job, in the process that makes its decisions
 *
 * head_nodes.c starts and closes the nodes' daemons, head_messages.c receives their messages,
 * head_daemons.c finds daemons that are stopped or silent, head_gpus.c terminates ranks that have
 * lost their GPU, head_status.c writes what it knows of all ranks for `lmtrain watch`,
 * head_fences.c forwards what ranks of different nodes exchange through PMIx, and head.c has the
 * loop: causes, signals, hangs, termination. supervise.c runs attempts until one succeeds.
 */
#ifndef LAUNCH_HEAD_HEAD_IMPL_H
#define LAUNCH_HEAD_HEAD_IMPL_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/arena.h"
#include "launch/death_impl.h"
#include "launch/head/output_impl.h"
#include "launch/head/screen_impl.h"
#include "launch/host_pool_impl.h"
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

/* What is recorded of an attempt, when it has ended: writing may block as long as a file system. */
struct head_trouble {
    double at;    /* Unix time; 0: there was none */
    int64_t step; /* the highest of all ranks; -1: none has begun */
    char text[1024];
};

struct head_node {
    const char *host; /* as people call it */
    char name[256];   /* its host name, made different from all others' */
    int host_index;   /* in the options' list; -1: this machine */
    int first_rank, n_ranks;
    struct link link;
    pid_t daemon; /* our child; 0 on other hosts, or once it is reaped */
    bool said_hello;
    bool is_lost;       /* its link closed before GOODBYE was sent */
    double blind_since; /* since when its daemon is stopped or silent; 0: it is not */
    bool blindness_told;
    bool is_unfit;             /* a GPU of it is broken: no restart uses it */
    uint32_t uncredited_bytes; /* output received since the last credit (head_send_credit) */
};

struct head_rank {
    int node;
    pid_t pid; /* 0: not started yet */
    bool running;
    int wait_status;  /* once it has ended */
    bool in_order;    /* it left before it ended */
    bool has_aborted; /* it has reported its failure (ABORT) */
    int64_t first_step;
    bool gpu_is_told;          /* that its GPU is broken */
    struct progress_slot slot; /* the newest copy */
};

/* The head's signals and screen; they last over all attempts. */
struct head_console {
    struct screen *screen;
    int fd; /* a signalfd */
    int n_stop;
    double stop_at; /* when the last that counted came */
    int passed;     /* the last one passed on, 0 if none */
    bool asked_to_stop;
};

struct head_fence;
struct head_status;

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
    struct head_status *status; /* NULL: the job has none */
    struct hang_rank *watched;
    struct hang_watch hang;
    struct pollfd *polls;
    double lost_seconds;
    double started_at, last_turn;
    bool is_started;  /* START has been sent */
    bool a_rank_died; /* a rank ended out of order: fences fail */
    int n_running;    /* ranks that are not known to have ended */
    bool hang_reported;
    bool some_requeue; /* a rank ended in order with ERR_REQUEUE */
    uint64_t beats;    /* of all ranks, as head_watch_gpus last saw them */
    double
        still_since; /* since when no rank moves with a GPU broken; 0: not known, or all are well */
    struct head_cause cause;
    struct head_trouble died, hung;
    struct err start_err; /* code ERR_NONE, or why the ranks could not be started */
    enum { RUNNING, ENDING, KILLED } phase;
    double ending_since;
};

/* What came of an attempt. */
struct head_result {
    int status;        /* the job's exit status; -1: could not be started */
    bool may_restart;  /* the cause may not recur */
    double seconds;    /* how long it ran */
    int64_t best_step; /* the highest of all ranks; -1: none has begun */
    bool has_advanced; /* some rank completed a step */
    struct head_trouble died, hung;
};

/*
 * Run one attempt on n_ranks. states has one of each host of the list: HOST_USED ones are dealt the
 * ranks, and get HOST_LOST or HOST_UNFIT if it comes to that. Returns 0 with *result, or -1 with
 * err if it could not be started.
 */
int head_run(const struct supervise_options *options, struct head_console *console, int attempt,
             int n_ranks, char *const *argv, enum host_state *states, struct head_result *result,
             struct err *err);

/* ---- head.c ---- */

/*
 * Record a death as the cause, unless a stronger one is known or the ranks are being terminated
 * already. Of a rank's death kind, rank and what belongs to the kind are the caller's; the rest is
 * filled in here.
 */
void head_set_cause(struct launch_head *head, const struct death *death);

/* What a rank's end means; it has just been noted. */
void head_judge(struct launch_head *head, int rank);

/* A node is lost, with its ranks. why: the reason for which its link closed; NULL: it is silent. */
void head_lose_node(struct launch_head *head, int node, const char *why);

/* ---- head_nodes.c ---- */

/* Deal the ranks out and get a link to each node. */
int head_open_nodes(struct launch_head *head, enum host_state *states, struct err *err);

/* All daemons are connected: send each the job (START). */
void head_send_specs(struct launch_head *head);

void head_send_all(struct launch_head *head, const struct message *message);

/* Goodbye to all; when this returns no daemon, rank or folder of this machine is left. */
void head_close_nodes(struct launch_head *head);

/* ---- head_messages.c ---- */

/* Receive the messages of a node's daemon. */
void head_take_messages(struct launch_head *head, int node);

/* Allow the nodes to send more output, unless the screen is full. */
void head_send_credit(struct launch_head *head);

/* ---- head_daemons.c ---- */

/* Whether the head has no view of a node's ranks: its daemon is stopped by a signal, or silent. */
int head_is_blind(const struct launch_head *head, const struct head_node *node, double now);

/* Report daemons that are stopped or silent, in place of their ranks, which only seem to hang. */
void head_watch_daemons(struct launch_head *head, double now);

/* Send heartbeats to other hosts, and give up those from which none has come for too long. */
void head_watch_links(struct launch_head *head, double now);

/* ---- head_gpus.c ---- */

/*
 * Warn of running ranks whose GPU is broken; if no rank makes progress for a while, the first is
 * the cause.
 */
void head_watch_gpus(struct launch_head *head, double now);

/*
 * If the cause so far is a rank that saw another one die: the first rank whose GPU is broken
 * replaces it.
 */
void head_find_broken_gpu(struct launch_head *head);

/* ---- head_status.c ---- */

/* The ranks' state in the run folder; the daemons have been forked. */
void head_open_status(struct launch_head *head);

/* Put it if that is due; returns when it will be next (1e300: never). */
double head_put_status(struct launch_head *head, double now);

/* For the last time in this attempt. */
void head_close_status(struct launch_head *head);

/* ---- head_fences.c ---- */

/* A node is at a fence. Returns -1 for a message that the state does not allow. */
int head_take_fence(struct launch_head *head, int node, const struct message_fence *message);

/*
 * A node requests a card, or replies to a query of the head. Return -1 for a rank or node that does
 * not exist.
 */
int head_take_card_request(struct launch_head *head, int node,
                           const struct message_card_request *request);
int head_take_card_reply(struct launch_head *head, const struct message_card_reply *reply);

/* End the fences that have timed out; returns when the next one does (1e300: none). */
double head_check_fences(struct launch_head *head, double now);

/* All fences under way fail, as a rank has died. */
void head_fail_fences(struct launch_head *head);

#endif
