/*
 * run_job.h - a test binary that supervises ranks of itself
 *
 * main() asks run_job_is_rank() first and, if so, plays the rank that argv[1] names. The test calls
 * run_job, which supervises such ranks in a child process of its own, as PMIx has one server a
 * process.
 */
#ifndef SUPPORT_RUN_JOB_H
#define SUPPORT_RUN_JOB_H

#include <sys/types.h>

#include "launch/supervise.h"

struct job_result {
    int status; /* the supervisor's exit status; 100: supervise failed, 101: deadline */
    double seconds;
    char *out, *err; /* what came on its stdout and stderr */
    char folder[64]; /* logs are in it, and what ranks leave in $TEST_FOLDER */
    pid_t supervisor;
};

struct job_plan {
    const char *scenario;
    int n_ranks;
    double hang_seconds, hang_abort_seconds;
    int signal; /* sent to the supervisor when rank 0 has printed something; 0: none */
};

int run_job_is_rank(void);

/* Run the job to its end, at most 60 s. */
void run_job(const struct job_plan *plan, struct job_result *result);

/*
 * Fails the test if something of the job is left: its folder in /dev/shm, or a process whose number
 * ranks have written to $TEST_FOLDER (run_job_note_pid). Then removes the folder.
 */
void run_job_check_clean(struct job_result *result);

/* For ranks and what they start: note a process that must be gone in the end. */
void run_job_note_pid(pid_t pid);

#endif
