/*
 * signals.h - SIGTERM, SIGINT, SIGHUP and SIGUSR1 as a request to save and leave
 */
#ifndef TRAIN_SIGNALS_H
#define TRAIN_SIGNALS_H

/*
 * Catch the four, but leave SIGHUP ignored where it is (nohup). The first only raises a flag; a
 * second SIGTERM, SIGINT or SIGHUP ends the process at once, as it would have without us, unless it
 * comes so soon that it is the same request (stop.h). And ignore SIGPIPE: Ctrl-C ends the `tee`
 * behind us too, and that must not cost what is about to be saved.
 *
 * A second call changes nothing.
 */
void signals_catch(void);

/* The signal that was caught, or 0. */
int signals_pending(void);

/*
 * What the first signal is answered with at once, as "lmtrain: SIGTERM: TEXT" on standard error:
 * what happens next and when. TEXT is borrowed until the next call. NULL, as at the start: no
 * answer, which is right for all ranks but one.
 */
void signals_answer(const char *text);

#endif
