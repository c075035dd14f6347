/*
 * interrupt.h - a command that a signal ends at once, with a word, leaving no half-written file
 *
 * For commands with nothing to save. SIGINT, SIGTERM and SIGHUP (unless it is ignored: nohup) print
 *     lmtrain: interrupted by SIGINT: ADVICE
 * on standard error, remove the files that are marked, and end the process as the signal would have
 * without us, so that a shell sees status 130, 143 or 129 and ends its loop. Nothing is waited for.
 * Training, which has something to save, replaces the handlers by its own (train/signals.h).
 */
#ifndef BASE_INTERRUPT_H
#define BASE_INTERRUPT_H

/* Catch the signals. advice: what happens to the work and how to go on, borrowed; NULL: says
 * none. */
void interrupt_catch(const char *advice);

/*
 * Mark a file as half-written, or a folder with files alone in it as scratch, until it is
 * forgotten: path, borrowed until then, is removed at a signal that was caught. Of more than 16 at
 * a time the rest is not marked.
 */
void interrupt_mark(const char *path);
void interrupt_forget(const char *path);

#endif
