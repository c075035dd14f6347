/*
 * progress_line.h - how far a command is, on standard error
 *
 * In a terminal one line is rewritten in place, five times a second at most, and is gone at the
 * end. Where it is too narrow, the last parts are left out, so the caller gives what changes first.
 * Elsewhere a line is printed each time 15 seconds have passed: a command that is soon done is
 * silent.
 */
#ifndef REPORT_PROGRESS_LINE_H
#define REPORT_PROGRESS_LINE_H

#include <stdbool.h>
#include <stdint.h>

struct progress_line {
    int fd;
    bool is_terminal, is_drawn;
    double begin; /* on the monotonic clock */
    double shown; /* when last, or begin */
    double pace;  /* seconds between two: the caller may change it */
};

/* Take the time. fd: usually 2. */
void progress_line_begin(struct progress_line *line, int fd);

/* Whether it is time to show something: false costs nothing but a look at the clock. */
bool progress_line_is_due(const struct progress_line *line);

/* Show texts [n], two blanks between; "" are left out. */
void progress_line_show(struct progress_line *line, const char *const *texts, int n);

/* "left 2:10" for done of total since the beginning, "" where nothing is known yet. */
enum { PROGRESS_LEFT_BYTES = 40 };
const char *progress_line_left(const struct progress_line *line, double done, double total,
                               char text[PROGRESS_LEFT_BYTES]);

/* Take it off the terminal. */
void progress_line_end(struct progress_line *line);

#endif
