/*
 * slurm_impl.h - what Slurm has given and what we ask of srun, as functions of what can be seen
 */
#ifndef LAUNCH_SLURM_SLURM_IMPL_H
#define LAUNCH_SLURM_SLURM_IMPL_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/str.h"
#include "launch/host_pool_impl.h"
#include "launch/launch_context_impl.h"
#include "launch/slurm/slurm.h"

struct slurm_allocation {
    int n_nodes;
    int *n_cpus; /* of each node, in the order of Slurm's list */
    int n_tasks; /* asked for; 0: not said */
    int n_tasks_per_node;
    int n_cpus_per_task;
    int n_gpus; /* of all nodes; 0: none, or not said */
};

/* Read SLURM_*. Returns 0, or -1 and ERR_FAILED for what Slurm does not write. */
int slurm_allocation_read(struct slurm_allocation *allocation, const struct context_view *view,
                          struct arena *arena, struct err *err);

/* The GPUs in the TRES= of `scontrol show job`: all of the job's. */
int slurm_count_gpus(const char *job_text);

/* What a lost node leaves of an allocation: is_gone[n_nodes]. */
struct slurm_allocation slurm_allocation_without(const struct slurm_allocation *allocation,
                                                 const bool *is_gone, struct arena *arena);

/*
 * Of a share of its nodes: its tasks, too, are those of these nodes. is_out[n_nodes].
 */
struct slurm_allocation slurm_allocation_share(const struct slurm_allocation *allocation,
                                               const bool *is_out, struct arena *arena);

/* Whether a name is in a list with commas between; how many names such a list has, 0: NULL. */
bool slurm_list_has(const char *names, const char *name);
int slurm_list_count(const char *names);

/*
 * "NodeList=n[1-2]" of `scontrol show job -o`, in the arena; NULL: it has none. *n_cpus is
 * NumCPUs=, 0 if it is not there.
 */
const char *slurm_job_nodes(const char *job_text, int *n_cpus, struct arena *arena);

/*
 * The nodes of the allocation over the attempts (host_pool_impl.h). Slurm may be asked for their
 * names and states, and for the nodes that the allocation has by now.
 */
struct slurm_nodes {
    struct host_pool pool;
    struct arena arena;
    struct slurm_allocation allocation; /* of pool.list's hosts, in its order */
    const char *node_list;              /* as Slurm writes it; NULL: names are not known */
    const char *share;                  /* $LMTRAIN_NODES, or NULL */
    const char *outside;                /* nodes that are not in it, with commas between; or "" */
    struct str excluded;                /* nodes that the attempt leaves out, for --exclude */
};

/* Returns 0, or -1 with err: no allocation, too few nodes. */
int slurm_nodes_open(struct slurm_nodes *nodes, const struct supervise_options *options,
                     struct err *err);
void slurm_nodes_close(struct slurm_nodes *nodes);

/*
 * Choose the nodes of an attempt; lost: those that failed in the one before, with commas between.
 * *left is the allocation of the chosen ones. Returns the number of ranks that they have room for,
 * or 0 and err: no node is left.
 */
int slurm_nodes_choose(struct slurm_nodes *nodes, int attempt, const char *lost,
                       struct slurm_allocation *left, struct err *err);

/* Ranks dealt out to nodes. */
struct slurm_step {
    int n_ranks, n_nodes;
    int n_ranks_per_node; /* at most; 0: as Slurm deals the tasks of this allocation */
    int n_cpus_per_rank;
};

/*
 * has_smt: cores have several CPUs, so that shares are kept even. Returns 0, or -1 and ERR_CONFIG
 * with the number of ranks that there is room for.
 */
int slurm_fit(struct slurm_step *step, const struct slurm_allocation *allocation, int n_ranks,
              bool has_smt, struct err *err);

/* What else goes into a command line of srun. */
struct slurm_command {
    int major;            /* Slurm's version */
    const char *excluded; /* nodes with commas between; "" or NULL: none */
    const char *const *srun_args;
    int n_srun_args;
    const char *binary; /* in the place of words[0] */
    char *const *words; /* ended by NULL */
};

/* The srun that runs the command: srun_args stand behind ours. */
char **slurm_argv(const struct slurm_step *step, const struct slurm_command *command,
                  struct arena *arena);

/*
 * The environment for it: without what would contradict the command line (SLURM_NTASKS and its
 * like are srun's defaults, too) or belongs to another launcher's ranks; with LMTRAIN_ATTEMPT.
 */
char **slurm_environment(char *const *environment, int attempt, struct arena *arena);

/* What srun reports while it runs, read from the lines of its stderr. */
struct srun_messages {
    char line[512];
    size_t length; /* of the line so far */
    /*
     * How the first bad task ended: its status, DEATH_ABORTED_STATUS or ERR_PEER; 0: not reported.
     * To srun a task that exits with ERR_REQUEUE is bad; it counts only as long as there is no
     * other.
     */
    int first_status;
    bool was_too_early; /* SIGUSR1 came before there was a task that could take it */
    struct str lost;    /* nodes that failed under it, with commas between */
};

void srun_messages_read(struct srun_messages *messages, const char *text, size_t n_bytes);

/* The job's status (supervise.h) from srun's, as wait() gives it. */
int slurm_status(int wait_status, const struct srun_messages *messages);

/*
 * Whether SIGUSR1, passed on as a request to stop, came before the ranks were there: it killed srun
 * (or Ctrl-C did) or a rank that could not yet take it, or srun gave up waiting for its turn.
 */
int slurm_was_too_early(int wait_status, const struct srun_messages *messages);

/* The major version in "slurm-wlm 22.05.8"; 0 if there is none. */
int slurm_major(const char *version_text);

/*
 * Which of names[n] are gone, by the lines "NAME STATE" of sinfo (a node stands in several
 * partitions) or because they stand in lost. Returns how many.
 */
int slurm_find_gone(const char *states, const char *lost, char *const *names, int n, bool *is_gone);

#endif
