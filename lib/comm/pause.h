/*
 * pause.h - asking again without burning the core
 *
 * On CPUs the cores that waiting comm threads would burn are the ones that compute: some quick
 * polls for peers that are nearly there, then sleeps that grow to a fifth of a millisecond. Where
 * other processes need the cores, sleeps at once.
 */
#ifndef COMM_PAUSE_H
#define COMM_PAUSE_H

struct comm_pause {
    int n_polls;
    int n_yields; /* since the last sleep */
    long nanoseconds;
};

void comm_pause_begin(struct comm_pause *pause); /* again after every progress */

/* For how long to sleep before asking again; 0: only let others run. progress is enum
 * comm_progress: the most urgent of what is waited for. */
long comm_pause_next(struct comm_pause *pause, int progress);

/* Let others run. */
void comm_pause_yield(void);

/* Sleep for that long, or let others run. */
void comm_pause(struct comm_pause *pause, int progress);

#endif
