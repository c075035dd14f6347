/*
 * spike.h - is a step's loss or gradient norm out of line with those of the steps before?
 *
 * By their z-scores: how many standard deviations a value lies above the mean of the last `window`
 * values. Pure arithmetic on numbers that all ranks have alike, in one order, so ranks agree
 * without talking; the state goes into checkpoints, so a resumed run decides as one that was not
 * stopped.
 */
#ifndef TRAIN_SPIKE_H
#define TRAIN_SPIKE_H

#include "base/str.h"

#define SPIKE_WINDOW_MAX 10000

enum spike_measure { SPIKE_LOSS, SPIKE_NORM, N_SPIKE_MEASURES };

struct spikes {
    double z;                         /* above which a value is a spike */
    int window;                       /* values that are kept, 2 .. SPIKE_WINDOW_MAX */
    int n;                            /* kept so far; no value is a spike until it is window */
    int next;                         /* where the next one goes, and the oldest is */
    double *values[N_SPIKE_MEASURES]; /* [window] each, on the heap */
};

void spikes_init(struct spikes *spikes, double z, int window);
void spikes_release(struct spikes *spikes);

/*
 * Whether a step with these values is a spike; z gets their z-scores, 0 until there are enough. A
 * spread below a thousandth of the mean counts as that. Values that are not finite are none.
 */
int spikes_find(const struct spikes *spikes, const double values[N_SPIKE_MEASURES],
                double z[N_SPIKE_MEASURES]);

/* Keep a step's values, if they are finite, in the place of the oldest. */
void spikes_add(struct spikes *spikes, const double values[N_SPIKE_MEASURES]);

/*
 * The values as JSON, oldest first, "[[losses], [norms]]", each a string of %a: numbers lose bits
 * where JSON is printed again. And back, also numbers; anything else leaves no values. Of more than
 * the window the newest are kept.
 */
void spikes_print(const struct spikes *spikes, struct str *out);
void spikes_read(struct spikes *spikes, const char *text);

#endif
