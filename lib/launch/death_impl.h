/*
 * death_impl.h - why ranks ended: what counts as the cause, the job's exit status, and the messages
 *
 * The head (head.c), the watcher of a node under srun and mpirun (watcher_deaths.c) and the parent
 * of srun (slurm.c) describe what they saw as a struct death; what it means, and all texts about
 * it, are here. All functions are pure. test/launch/death_test.c lists every cause with its
 * message.
 */
#ifndef LAUNCH_DEATH_IMPL_H
#define LAUNCH_DEATH_IMPL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/*
 * The exit status of a job of which a rank called abort (a bug, CHECK), as shells report SIGABRT.
 */
enum { DEATH_ABORTED_STATUS = 134 };

enum death_kind {
    /* Of a rank: struct death names it, and the text is "rank 3 on n1 ...". */
    DEATH_NONE,     /* none: it ended in order */
    DEATH_UNSEEN,   /* ended, but signal and status were not seen: the launcher reaped it */
    DEATH_SIGNAL,   /* killed by `signal` */
    DEATH_EXIT,     /* exited with `status`, neither 0 nor ERR_REQUEUE */
    DEATH_NOT_LEFT, /* exited with `status`, 0 or ERR_REQUEUE, without launch_leave */
    DEATH_ABORT,    /* reported its failure itself: launch_abort, MPI_Abort; `status` and `text` */
    DEATH_FAILED,   /* the same, seen by a watcher: the launcher has the text */
    DEATH_HANG,     /* no progress for `seconds` */
    DEATH_GPU,      /* its GPU needs a reset */
    DEATH_GPU_HANG, /* the same, and the rank does not exit */

    /* Of a node, a daemon or a launcher: `host` names it. */
    DEATH_NODE,           /* node lost with n_ranks ranks from first_rank on: see there */
    DEATH_DAEMON_STOPPED, /* daemon `pid` stopped by a signal for `seconds` */
    DEATH_DAEMON_SILENT,  /* no message of the daemon for `seconds` */
    DEATH_LAUNCHER,       /* the launcher `pid` of the ranks on `host` has ended */

    /* Of the job: a user or a batch system stopped it by `signal`; 0: which one is not known. */
    DEATH_STOP_UNSTARTED, /* before any rank was started */
    DEATH_STOP_EARLY,     /* before the ranks could react to a signal */
    DEATH_STOP_NOW,       /* immediately, as ranks have nothing to save; `text` says so */
    DEATH_STOP_TWICE,     /* immediately, by a second signal */
    DEATH_KINDS
};

struct death {
    enum death_kind kind;
    int rank;         /* world rank, of the first kinds */
    const char *host; /* as users name it */
    int signal, status, pid;
    double seconds;
    int first_rank, n_ranks; /* of DEATH_NODE */
    /*
     * DEATH_ABORT: what the rank reported. DEATH_NODE: why its link was closed; NULL: no message
     * for `seconds`, or its daemon was killed by `signal`. DEATH_STOP_NOW: the message for the
     * user.
     */
    const char *text;
    const char *last_message; /* DEATH_NODE: the last line of ssh or the daemon, or NULL */

    bool was_forwarded; /* DEATH_SIGNAL: the head had forwarded this signal to the ranks */
    bool has_begun;     /* DEATH_SIGNAL: the rank was in a step, so it had something to save */
    bool after_sigterm; /* the launcher had sent SIGTERM: it may be the cause */

    const char *last_seen; /* the rank's last activity (progress_describe), or NULL */
    const char *gpu;       /* what its GPU reported (rank_gpu_death): "" or NULL: no error */
    bool gpu_is_broken;    /* it needs a reset */
    bool gpu_is_reusable;  /* its error was contained: a restart may use it */
    bool has_other_hosts;  /* a restart can do without this host: the job has a list of hosts */
};

/*
 * How much a death explains. A stronger cause replaces a weaker one until the ranks are terminated.
 */
enum death_weight {
    WEIGHT_NONE, /* no failure */
    WEIGHT_PEER, /* the rank saw another one die: perhaps only a consequence */
    WEIGHT_OWN,  /* a cause */
};

/* Whether it is the death of a rank, so that rank is set. */
bool death_is_of_rank(const struct death *death);

struct death_verdict {
    enum death_weight weight;
    int status;       /* the job's exit status if this is the cause */
    bool may_restart; /* the failure may not recur */
};

/*
 * The death of a rank from its wait status; in_order: it had called launch_leave. Sets kind, signal
 * and status, and nothing else.
 */
struct death death_of_rank(int wait_status, bool in_order);

struct death_verdict death_judge(const struct death *death);

/*
 * Whether a failure with this exit status would recur: a wrong job, wrong data or a wrong device.
 */
bool death_would_recur(int status);

/* Whether a job that ended with this status may be restarted: it failed, and that may not recur. */
bool death_may_restart(int status);

/*
 * Whether a rank that is not the cause is counted as terminated as a result: it is still running,
 * or did not end in order with 0 or ERR_REQUEUE.
 */
bool death_is_consequence(bool is_running, int wait_status, bool in_order);

/*
 * A job's exit status from srun's wait status, which is the highest of its tasks and so often that
 * of a task that srun killed. first_status: how the first bad task ended according to srun's
 * messages (its exit status, DEATH_ABORTED_STATUS, or ERR_PEER for another signal), 0: srun did not
 * report one.
 */
int death_status_of_srun(int wait_status, int first_status, bool has_lost_nodes);

/* What such a message says, "Exited with exit code 3" or "Killed", as first_status. */
int death_status_of_srun_task(const char *how);

/* ---- texts; all return buffer, cut at its size ---- */

/*
 * "was killed by signal 9 (Killed)", "made no progress for 30 s"; of other than ranks the whole
 * sentence.
 */
const char *death_predicate(const struct death *death, char *buffer, size_t size);

/*
 * The message for the user: "rank 3 on n1 was killed by signal 9 (Killed) (last seen: in attention
 * layers.9, step 7); GPU 1 (...): Xid 79, ... (hint: out of memory? see dmesg)".
 */
const char *death_sentence(const struct death *death, char *buffer, size_t size);

/*
 * The short form for the watchers of other nodes: "rank 3 on n1 failed", "the launcher on n1 is
 * gone".
 */
const char *death_notice(const struct death *death, char *buffer, size_t size);

/* What WEIGHT_PEER may be a consequence of: "; no heartbeat from node b for 12 s". */
const char *death_silent_node(const char *host, double seconds, char *buffer, size_t size);

/*
 * "3 other ranks terminated as a result", "1 other rank of n1 terminated as a result"; host may be
 * NULL.
 */
const char *death_consequences(int n_ranks, const char *host, char *buffer, size_t size);

#endif
