/*
 * stragglers.h - which rank is slower than its peers, from the times of all ranks
 *
 * In a synchronous job the steps of all ranks take equally long; what differs is how much of it a
 * rank does not wait for others. Peers are ranks with equal work. A rank is slow in a sample if its
 * work (compute and input) takes more than `ratio` times the median of its peers. It is a straggler
 * from the moment on that it was slow in STRAGGLER_SLOW of the last STRAGGLER_WINDOW samples, until
 * it was in fewer than STRAGGLER_FAST: noise with tails of any weight is not slow so often, and one
 * that is slow for good is found with the 20th sample at latest if noise leaves it above the ratio.
 *
 * Waiting for a core comes and goes on machines that others use, too, in bursts that last several
 * samples. A rank that is slow by that is compared in the same way by sums of STRAGGLER_MERGED
 * samples.
 *
 * Pure: it knows no clock and no communicator; a sample is of as many steps as the caller likes.
 */
#ifndef TRAIN_STRAGGLERS_H
#define TRAIN_STRAGGLERS_H

#include <stdbool.h>
#include <stdint.h>

enum { STRAGGLER_WINDOW = 20, STRAGGLER_SLOW = 18, STRAGGLER_FAST = 5, STRAGGLER_MERGED = 5 };

/* What a rank's own time goes into. */
enum straggler_class {
    STRAGGLER_COMPUTE,
    STRAGGLER_WAITING, /* for a core (others use it, or memory is paged), not for ranks */
    STRAGGLER_INPUT,   /* for the next micro-batch of the data */
    N_STRAGGLER_CLASSES
};

/* "compute" */
const char *straggler_class_name(enum straggler_class class);

/* A rank's own seconds in a sample, by class. */
struct straggler_times {
    float of[N_STRAGGLER_CLASSES];
};

struct straggler_finding {
    int rank, n_peers;
    bool is_over;               /* it is no straggler any more */
    double ratio;               /* of its own time in the window to that of its peers */
    enum straggler_class class; /* where most of the difference is */
    double own[N_STRAGGLER_CLASSES], peers[N_STRAGGLER_CLASSES]; /* seconds of a step */
    int64_t n_steps;                                             /* of the window */
};

struct stragglers;

/* work[n_ranks]: ranks with equal numbers are peers; copied. ratio: above 1. */
struct stragglers *stragglers_create(const int *work, int n_ranks, double ratio);
void stragglers_destroy(struct stragglers *stragglers);

/*
 * Add a sample of n_steps steps, times[n_ranks]. What begins or is over with it goes to
 * findings[2 * n_ranks]; returns how many that are. A sample in which a rank's peers took no time
 * says nothing about the rank: it counts as not slow.
 */
int stragglers_add(struct stragglers *stragglers, const struct straggler_times *times,
                   int64_t n_steps, struct straggler_finding *findings);

/* The rank with the largest ratio of work over the last window. false: there is no whole window
 * yet, or no rank has peers. */
bool stragglers_slowest(const struct stragglers *stragglers, struct straggler_finding *slowest);

/* How many ranks are stragglers now. */
int stragglers_count(const struct stragglers *stragglers);

#endif
