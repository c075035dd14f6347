/*
 * live_line.h - a run's figures in one line, as many as fit: for the run itself and for who watches
 *
 * The line is made of parts in a fixed order; where it is too narrow for all, those with the lowest
 * need stay. Parts are plain text of characters one column wide.
 */
#ifndef REPORT_LIVE_LINE_H
#define REPORT_LIVE_LINE_H

#include <stdbool.h>

#include "base/str.h"
#include "report/metrics.h"

enum { LIVE_PART_BYTES = 256, N_LIVE_PARTS_MAX = 12 };

/* What the line may say. The lower its need, the sooner it gets its place. */
struct live_part {
    int need;
    bool is_shown;
    char text[LIVE_PART_BYTES];
};

struct live_line {
    struct live_part parts[N_LIVE_PARTS_MAX]; /* in the order of the line */
    int n;
};

/* How a run is. Texts are borrowed. */
struct live_facts {
    const struct metrics_step *step; /* the last one; before the first only its number */
    bool has_step;
    int64_t total_steps;
    double left_s;      /* nan: not known */
    const char *status; /* what it does between steps; "": nothing else */
    const char *note;   /* a straggler; "": none */
};

/* step 40/300  loss 5.213  12.4k tok/s  MFU 41 %  1.2 GiB  left 1:07 */
void live_line_of(struct live_line *line, const struct live_facts *facts);

/* One part more, at its end. */
void live_line_add(struct live_line *line, int need, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Add those that fit `width` columns; false if some do not. */
bool live_line_print(struct live_line *line, struct str *out, int width);

/* Add a bar of n_cells, of which a share (0 to 1) is full; in UTF-8 or ASCII, green if coloured. */
void live_line_bar(struct str *out, double share, int n_cells, bool is_utf8, bool has_colour);

/* Columns of a text: its characters of UTF-8. */
int live_line_width(const char *text);

/* Add text, cut after `width` characters. */
void live_line_add_cut(struct str *out, const char *text, int width);

/* Whether the locale of the environment is UTF-8; main need not have called setlocale. */
bool live_line_is_utf8(void);

#endif
