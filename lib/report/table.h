/*
 * table.h - small text tables for people: plan, doctor, eval, bench
 *
 * Columns are as wide as their widest cell, two blanks apart; a heading has a rule under it, a
 * total one above. Widths count characters, not bytes. Only ASCII is added, so that it serves any
 * locale and any file; nothing knows of terminals.
 *
 *     memory            rank 0
 *     --------------  --------
 *     parameters       1.2 GiB
 *     gradients        2.4 GiB
 *     --------------  --------
 *     total            3.6 GiB
 */
#ifndef REPORT_TABLE_H
#define REPORT_TABLE_H

#include "base/arena.h"
#include "base/str.h"

#define REPORT_TABLE_COLUMNS_MAX 32

struct report_table_line;

struct report_table {
    const char *align; /* a letter a column */
    int n_columns;
    struct arena arena;
    struct report_table_line *first, *last;
};

/* align has 'l' (left) or 'r' (right) for each column, "lrr"; it is borrowed. */
void report_table_init(struct report_table *table, const char *align);
void report_table_release(struct report_table *table);

/*
 * A line whose cells are separated by tabs in the formatted text; missing ones at the end are
 * empty, more than there are columns is a bug.
 */
void report_table_heading(struct report_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void report_table_row(struct report_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void report_table_total(struct report_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Add the table to out, each line with `indent` blanks in front and without any at its end. */
void report_table_print(const struct report_table *table, int indent, struct str *out);

#endif
