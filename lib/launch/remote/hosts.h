/*
 * hosts.h - several plain machines: which, how many ranks on each, and a link to each
 *
 * A list is a file (one host a line, `#` comments) or "a,b:4,user@c": a host as ssh takes it, and
 * after a colon how many ranks it gets (slots=N in a file, as Open MPI writes it, is read too).
 * Without counts the ranks are dealt out evenly in blocks, in the list's order.
 */
#ifndef LAUNCH_REMOTE_HOSTS_H
#define LAUNCH_REMOTE_HOSTS_H

#include <sys/types.h>

#include "base/arena.h"
#include "base/err.h"

enum { HOSTS_MAX = 4096 };

struct host {
    const char *name; /* as ssh takes it */
    int n_slots;      /* 0: not given */
};

struct host_list {
    int n_hosts;
    const struct host *hosts;
    const char *build; /* set by the caller: the build that daemons must have; NULL: not compared */
};

/* text: a path if such a file exists, else a list. ERR_CONFIG with FILE:LINE or the entry. */
int hosts_read(struct host_list *list, const char *text, struct arena *arena, struct err *err);

/*
 * Distribute n_ranks: n_ranks_of[i] for each host (0 for hosts without ranks). ERR_CONFIG with the
 * number of slots if there are too few.
 */
int hosts_deal(const struct host_list *list, int n_ranks, int *n_ranks_of, struct err *err);

/*
 * One daemon (`lmtrain daemon`) started on a host through ssh, or through $LMTRAIN_SSH with the
 * same arguments (it is cut at blanks; there is no shell). It gets the head's addresses and a
 * random cookie on its stdin (never on a command line), connects to us, and both sides prove that
 * they know the cookie (keyed hash of a challenge). The head listens on all its addresses that are
 * not loopback (if it has no others, there), or on those of $LMTRAIN_INTERFACE, a name or an
 * address. A link that falls silent breaks after $LMTRAIN_LINK_SECONDS (10) on both sides.
 */
struct host_link {
    const char *host;
    pid_t ssh;    /* its process; -1: none, or reaped (set by the caller that reaps it) */
    int fd;       /* connected and authenticated, blocking, close-on-exec; -1: could not be had */
    int stdin_fd; /* closing it ends the daemon, too; -1 */
    int words_fd; /* the stderr of ssh and the daemon, see hosts_link_words; -1 */
};

/*
 * Start a daemon on each host with a rank and wait (timeout_seconds in all) until each has
 * connected. links is the caller's, one for each host of the list, all to be closed by hosts_close
 * also after a failure. A host that fails leaves fd -1 and its reason in reasons[i] (512 bytes
 * each), a sentence: "host b: ssh: connect to host b port 22: Connection refused". Returns how many
 * are connected, or -1 for what is wrong here, or when a blocked SIGTERM, SIGINT or SIGHUP is
 * pending. The caller has SIGPIPE blocked or ignored. Call it from the main thread, whose death
 * ends the ssh processes; processes forked without exec hold the lifelines open.
 */
int hosts_connect(const struct host_list *list, const int *n_ranks_of, double timeout_seconds,
                  struct host_link *links, char (*reasons)[512], struct err *err);

/*
 * Close the descriptors and reap ssh, which ends when its daemon does; what has not ended after a
 * second is killed.
 */
void hosts_close(struct host_link *links, int n_links);

/* The last line that ssh or the daemon wrote to stderr (why a link was lost), or NULL. */
const char *hosts_link_words(const struct host_link *link, char words[256]);

/*
 * The daemon's side, of that build: read stdin, connect, authenticate. Returns the descriptor
 * (blocking, close-on-exec) and what the head has for $LMTRAIN_LINK_SECONDS, or -1 with err. From
 * then on the connection is shut down when stdin ends; a thread keeps a copy of the descriptor for
 * that, so that only shutdown or exit tells the head that this side is done.
 */
int hosts_answer(int stdin_fd, const char *build, double *link_seconds, struct err *err);

#endif
