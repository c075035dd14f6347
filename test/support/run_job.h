/*
 * run_job.h - a test binary that supervises ranks of itself
 *
 * main() first calls run_job_as_daemon, then asks run_job_is_rank() and, if so, plays the rank that
 * argv[1] names. The test calls run_job, which supervises such ranks in a child process of its own.
 *
 * With hosts, each "host" is another daemon on this machine, which a stand-in for ssh starts, so
 * links are real TCP connections and PMIx sees several nodes.
 */
#ifndef SUPPORT_RUN_JOB_H
#define SUPPORT_RUN_JOB_H

#include <sys/types.h>

#include "launch/launch.h"
#include "launch/supervise.h"

struct job_result {
    int status; /* the supervisor's exit status; 100: supervise failed, 101: deadline */
    double seconds;
    char *out, *err; /* what came on its stdout and stderr */
    char folder[64]; /* logs are in it, and what ranks leave in $TEST_FOLDER */
    pid_t supervisor;
};

enum job_victim { VICTIM_HEAD, VICTIM_DAEMON, VICTIM_BOTH };

struct job_plan {
    const char *scenario;
    int n_ranks;
    double hang_seconds, hang_abort_seconds;
    int signal;             /* sent when rank 0 has printed something; 0: none */
    enum job_victim victim; /* to whom; VICTIM_DAEMON: that of the last rank, both: daemon first */
    int n_restarts;
    const char *hosts; /* "a,b"; NULL: this machine */
    int (*again)(void *context, int attempt, int n_possible, char *const **argv, struct err *err);
    int is_twice; /* the signal is sent again 20 ms later */
};

/* If this process was started as a daemon, it is one and does not return. */
void run_job_as_daemon(int argc, char **argv);

int run_job_is_rank(void);

/* Run the job to its end, at most 200 s. */
void run_job(const struct job_plan *plan, struct job_result *result);

/*
 * Fails the test if something of the job is left a few seconds after its end: its folders in
 * /dev/shm, or a process that was noted. Then removes the folder.
 */
void run_job_check_clean(struct job_result *result);

/* Waits until the job's processes that were noted are gone; fails the test if they stay. */
void run_job_await_processes(const struct job_result *result);

/* Fails the test unless words are in what came on stderr. */
void run_job_check_says(const struct job_result *result, const char *words);

/* For ranks: this is what they are doing (in step 7, micro-batch 3), and this how they end. */
void run_job_publish(const struct launch_rank *rank, const char *text, int waits);
int run_job_leave(int status);

/*
 * For ranks and what they start: note a process that must be gone in the end, as must the job's
 * folder in /dev/shm and the daemon.
 */
void run_job_note_pid(pid_t pid);

#endif
