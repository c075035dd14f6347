/*
 * comm_process.h - ranks that are processes under our server, whatever comm they talk by
 *
 * A test of such a comm supervises ranks of itself, which comm_process_play plays; its other
 * functions are the tests.
 */
#ifndef SUPPORT_COMM_PROCESS_H
#define SUPPORT_COMM_PROCESS_H

#include "comm/comm.h"
#include "launch/launch.h"

/* Makes the comm of a rank that has joined, in pieces of 1000 bytes. */
typedef int (*comm_process_fn)(struct comm **comm, const struct launch_rank *rank, struct err *err);

/* For main where run_job_is_rank; returns its status. */
int comm_process_play(const char *scenario, comm_process_fn create);

/* Every call among 2, 3 and 4 ranks, and on so many more; nothing is left or said. */
void comm_process_test_calls(const char *hosts, int n_more);

/* A rank that is killed and one that fails end the job with their own reason. */
void comm_process_test_failures(const char *hosts);

/* One rank leaves when the others have given up waiting for it. */
void comm_process_test_late(void);

#endif
