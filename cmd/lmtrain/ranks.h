/*
 * ranks.h - from a command to its ranks: where it runs, how many, how they are started
 *
 * A command that may have ranks calls ranks_find, which says where it runs. As a rank it joins
 * (ranks_join) and does its work. Else, if ranks_are_started says that there is more to do than to
 * be the only rank, ranks_start runs them to their end: through Slurm, through daemons on hosts, or
 * on this machine.
 */
#ifndef RANKS_H
#define RANKS_H

#include <stdbool.h>

#include "config/job.h"
#include "launch/launch.h"
#include "launch/launch_context.h"
#include "launch/remote/hosts.h"

struct ranks {
    enum launch_context context;
    struct host_list hosts; /* none: this machine, or Slurm's */
    const char *hosts_text; /* --hosts, or NULL */
    int n_ranks;  /* the number requested; a rank gets the real number from its launcher */
    bool is_open; /* the job leaves the number to the hosts: n_ranks is as many as they offer now */
};

/*
 * hosts: --hosts, or NULL. Returns 0, or -1 and ERR_CONFIG: no PMIx, hosts under a launcher, a list
 * that cannot be read.
 */
int ranks_find(struct ranks *ranks, const struct job *job, const char *hosts, struct arena *arena,
               struct err *err);

/* Whether the ranks are other processes than this one. */
int ranks_are_started(const struct ranks *ranks, const struct job *job);

/* Which rank PMIx says we are to be; alone, 0. For what comes before joining. */
int ranks_expected(void);

enum ranks_logs { RANKS_WITH_LOGS, RANKS_WITHOUT_LOGS };

/*
 * Join the job as a rank: progress page, PMIx, faults on demand, and as many ranks as the job says.
 * logs: whether ranks write logs to the job's output folder. Collective. Returns 0, or the exit
 * status after a message.
 */
int ranks_join(struct launch_rank *rank, const struct job *job, enum ranks_logs logs,
               struct err *err);

/*
 * This rank failed and others may be waiting for it: say why, and end them all. Returns the exit
 * status where there are no others.
 */
int ranks_fail(const struct launch_rank *rank, const struct err *err);

/* How a command is called again, as the ranks run it. */
struct ranks_command {
    const char *name, *subcommand, *job_path; /* the last two: NULL where there is none */
    const struct option_list *sets;
    const char *resume;      /* NULL: it has no such option */
    const char *const *more; /* further words, ended by NULL; or NULL */
    const char *stop_words;  /* supervise's; NULL: a signal is passed on to the ranks */
    bool keeps_nothing;      /* no logs in the job's output folder, and no restarts */
};

/* Start the ranks of a resolved job and wait for their end. Returns the exit status. */
int ranks_start(const struct ranks *ranks, const struct job *job,
                const struct ranks_command *command, struct arena *arena);

#endif
