/*
 * run_table.h - what a run recorded, as named columns of numbers
 *
 * A table has a row for each line of one kind of metrics.jsonl, in the file's order, and a column
 * for each number that any of them has. A value that a line lacks, or that is not finite, is NAN.
 * Nothing here knows what the columns mean.
 */
#ifndef REPORT_RUN_TABLE_H
#define REPORT_RUN_TABLE_H

#include "base/arena.h"

struct run_column {
    const char *name;
    double *values; /* [n_rows] */
};

struct run_table {
    const char *name; /* of a held-out set; "" for the steps and for a set without a name */
    struct run_column *columns;
    int n_columns, n_rows;
    int column_capacity, row_capacity;
    struct arena *arena; /* has all of it; the caller's */
};

/* An empty table, whose name is copied. */
void run_table_init(struct run_table *table, const char *name, struct arena *arena);

/* Add a row of NAN. */
void run_table_add_row(struct run_table *table);

/* Set a value of the last row; the column is added if it is not there. */
void run_table_set(struct run_table *table, const char *name, double value);

/* The column's values, or NULL if there is no such column. */
const double *run_table_find(const struct run_table *table, const char *name);

/* The last finite value of a column; NAN if there is none. */
double run_table_last(const struct run_table *table, const char *name);

/* The median of a column's finite values; NAN if there is none. */
double run_table_median(const struct run_table *table, const char *name);

/*
 * Choose at most about n_most rows of a long table to draw: the first and the last, and of each of
 * many equal ranges of rows those in which a column is lowest or highest, or first not finite, so
 * that no extreme value and no gap of any column is lost. What is chosen are rows of the table,
 * with all their values. Returns how many, ascending in *rows, in the table's arena; all rows if
 * there are no more than n_most. n_most >= 2.
 */
int run_table_thin(const struct run_table *table, int n_most, int **rows);

#endif
