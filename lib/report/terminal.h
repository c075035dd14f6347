/*
 * terminal.h - a run's face: one live line in a terminal, plain lines elsewhere
 *
 * In a terminal the line is rewritten in place, and log lines appear above it; where it is too
 * narrow for all, what changes stays: the step, what is done between steps, the time that is left.
 * Elsewhere a plain line is printed now and then. Only ASCII where the locale is not UTF-8; no
 * colour when $NO_COLOR is set or the output is no terminal.
 */
#ifndef REPORT_TERMINAL_H
#define REPORT_TERMINAL_H

#include "report/metrics.h"

struct terminal;

/* Takes over the log's sink until terminal_close. total_steps: of the whole run. fd: usually 2. */
struct terminal *terminal_open(int fd, int64_t first_step, int64_t total_steps);

/*
 * step 40/300  loss 5.213  12.4k tok/s  MFU 41 %  1.2 GiB  left 1:07   (a bar where there is room)
 * Live: at most ten times a second. Plain: when logged is set.
 */
void terminal_step(struct terminal *terminal, const struct metrics_step *step, int logged);

/* What it does between steps ("saving step 200"); NULL to clear. */
void terminal_status(struct terminal *terminal, const char *text);

/* What is wrong and lasts ("rank 3 (node2) x1.34"), as a part of the line; "": nothing is. */
void terminal_note(struct terminal *terminal, const char *text);

/*
 * The time that is left counts the evaluations to come: one each `every` steps (0: none) and one
 * after the last. Each is taken to last as long as `steps` steps until one was timed.
 */
void terminal_expect_evaluations(struct terminal *terminal, int64_t every, double steps);

/*
 * An evaluation has done so many of its batches, first 0; total 0: it is over, and was timed if it
 * came to its end. Live: at most ten times a second. Plain: a line each time so many seconds have
 * passed, 15 unless terminal_set_pace says otherwise.
 */
void terminal_evaluating(struct terminal *terminal, int64_t done, int64_t total);
void terminal_set_pace(struct terminal *terminal, double seconds);

/* What the line says besides the last step's figures. From any thread. */
struct terminal_view {
    double left_s; /* nan: not known */
    char status[256], note[96];
};
void terminal_look(struct terminal *terminal, struct terminal_view *view);

void terminal_close(struct terminal *terminal);

#endif
