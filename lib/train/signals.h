/*
 * signals.h - SIGTERM, SIGINT and SIGUSR1 as a request to save and leave
 */
#ifndef TRAIN_SIGNALS_H
#define TRAIN_SIGNALS_H

/*
 * Catch the three. The first only raises a flag; a second SIGTERM or SIGINT ends the process at
 * once, as it would have without us.
 */
void signals_catch(void);

/* The signal that was caught, or 0. */
int signals_pending(void);

#endif
