/*
 * host_pool_impl.h - the hosts of a job over its attempts: which are used, and why not the others
 *
 * Before each attempt its owner may list the hosts again (--hosts, or a Slurm allocation), and the
 * pool reads the file of excluded hosts (excluded.h) and chooses: of the hosts that are listed, all
 * but n_spares are used, in the list's order; one that is excluded or lost is replaced by the next
 * that can be used. A host that was lost is tried again
 * at a restart, after all others, unless the attempt in which it was lost completed no step: then
 * it is left out of the next one.
 *
 *     list      a  b  c  d    n_spares 1
 *     first     a  b  c  -    d is a spare
 *     c lost    a  b  -  d    d takes its place
 *     c back    a  b  -  d    c is a spare now
 *
 * Nothing here starts or connects to anything.
 */
#ifndef LAUNCH_HOST_POOL_IMPL_H
#define LAUNCH_HOST_POOL_IMPL_H

#include <stdbool.h>

#include "base/arena.h"
#include "launch/supervise.h"

/* Of a host in an attempt. The pool sets the first two, the attempt the others. */
enum host_state {
    HOST_USED, /* may get ranks */
    HOST_OUT,  /* gets none */
    HOST_LOST, /* could not be reached, or was lost with its ranks */
    HOST_UNFIT /* has a broken GPU */
};

struct pool_host {
    bool was_used;        /* in the last choice */
    bool was_lost;        /* since the last choice */
    bool is_new;          /* listed since the last choice */
    bool is_unfit;        /* its GPU is broken, and there is no file of excluded hosts */
    int n_losses;         /* how often it was lost */
    int out_until;        /* left out of attempts before this one */
    const char *left_out; /* why it cannot be used, for messages; NULL: it can */
};

struct host_pool {
    const struct supervise_options *options;
    const char *source; /* of the list, for messages; NULL: it is this machine alone */
    struct arena arena;
    struct host_list list; /* as it was last read */
    struct pool_host *hosts;
    enum host_state *states; /* of list, for the attempt */
    int n_first;             /* used at first: a shorter list takes spares, not ranks */
    int n_used;
    int n_ranks_open; /* of a host without a number in the list: what it got at first */
    int told_attempt; /* for which the excluded hosts are logged */
    bool some_excluded;
};

/*
 * Take the first list and deal the job to it. options and source are borrowed, also what the list
 * points to. ERR_CONFIG: too few hosts or slots.
 */
int host_pool_open(struct host_pool *pool, const struct supervise_options *options,
                   const struct host_list *list, const char *source, struct err *err);
void host_pool_close(struct host_pool *pool);

/* Another list from now on, which is copied but for the names; what is known of hosts that are in
 * both is kept. */
void host_pool_list(struct host_pool *pool, const struct host_list *list);

/* Where a host is in the list; -1: it is not. */
int host_pool_find(const struct host_pool *pool, const char *name);

/*
 * Choose the hosts of an attempt, with a log line for each that is left out, replaced, new or used
 * again. Returns the number of ranks that they have room for: 0 if no host is left, with err.
 */
int host_pool_choose(struct host_pool *pool, int attempt, struct err *err);

/* Whether as many hosts are used as the list and n_spares say. */
bool host_pool_is_whole(const struct host_pool *pool);

/*
 * Note which hosts an attempt has lost (states): attempts before out_until do not try them again.
 * Those with a broken GPU are excluded, in the file if there is one. Returns how many both are.
 */
int host_pool_note(struct host_pool *pool, int out_until);

#endif
