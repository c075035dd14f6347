/*
 * hosts.h - several plain machines: which, how many ranks on each, and a link to each
 *
 * A list is a file (one host a line, `#` comments) or "a,b:4,user@c": a host as ssh takes it, and
 * after a colon how many ranks it gets (slots=N in a file, as Open MPI writes it, is read too).
 * Without counts the ranks are dealt out evenly in blocks, in the list's order.
 */
#ifndef LAUNCH_HOSTS_H
#define LAUNCH_HOSTS_H

#include <sys/types.h>

#include "base/arena.h"
#include "base/err.h"

enum { HOSTS_MAX = 4096 };

struct host {
    const char *name; /* as ssh takes it */
    int n_slots;      /* 0: not said */
};

struct host_list {
    int n_hosts;
    const struct host *hosts;
};

/* text: a path if such a file exists, else a list. ERR_CONFIG with FILE:LINE or the entry. */
int hosts_read(struct host_list *list, const char *text, struct arena *arena, struct err *err);

/*
 * Deal n_ranks out: n_ranks_of[i] for each host (0 for hosts that get none). ERR_CONFIG if the
 * slots don't suffice, saying how many there are.
 */
int hosts_deal(const struct host_list *list, int n_ranks, int *n_ranks_of, struct err *err);

/*
 * One daemon (`lmtrain daemon`) started on a host through ssh, or through $LMTRAIN_SSH with the
 * same arguments. It gets the head's addresses and a random cookie on its stdin (never on a command
 * line), connects to us, and both sides prove that they know the cookie (keyed hash of a
 * challenge).
 */
struct host_link {
    const char *host;
    pid_t ssh; /* the ssh process; the caller reaps it */
    int fd;    /* connected and authenticated, close-on-exec; -1 if it could not be had */
};

/*
 * Start a daemon on each host with a rank and wait (timeout_seconds in all) until each has
 * connected. links is the caller's, one for each host of the list, all to be closed by hosts_close
 * also after a failure. A host that fails leaves fd -1 and its reason in reasons[i] (512 bytes
 * each) with ssh's own words; returns how many are connected, or -1 for what is wrong here.
 */
int hosts_connect(const struct host_list *list, const int *n_ranks_of, double timeout_seconds,
                  struct host_link *links, char (*reasons)[512], struct err *err);
void hosts_close(struct host_link *links, int n_links);

/* The daemon's side: read stdin, connect, authenticate. Returns the descriptor, or -1 with err. */
int hosts_answer(int stdin_fd, struct err *err);

#endif
