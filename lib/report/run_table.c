/*
 * run_table.c - columns that grow row by row, and the rows that are drawn
 */
#include "report/run_table.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/num.h"

void run_table_init(struct run_table *table, const char *name, struct arena *arena)
{
    *table = (struct run_table){ .name = arena_strdup(arena, name), .arena = arena };
}

static void fill_nan(double *values, int first, int end)
{
    for (int i = first; i < end; i++)
        values[i] = NAN;
}

static void grow_rows(struct run_table *table)
{
    int capacity = max_int(64, 2 * table->row_capacity);

    for (int c = 0; c < table->n_columns; c++) {
        int before = table->row_capacity;

        table->columns[c].values =
            arena_grow(table->arena, table->columns[c].values, sizeof(double), &before, capacity);
    }
    table->row_capacity = capacity;
}

void run_table_add_row(struct run_table *table)
{
    if (table->n_rows == table->row_capacity)
        grow_rows(table);
    for (int c = 0; c < table->n_columns; c++)
        table->columns[c].values[table->n_rows] = NAN;
    table->n_rows++;
}

static struct run_column *column_of(const struct run_table *table, const char *name)
{
    for (int c = 0; c < table->n_columns; c++)
        if (!strcmp(table->columns[c].name, name))
            return &table->columns[c];
    return NULL;
}

static struct run_column *add_column(struct run_table *table, const char *name)
{
    table->columns = arena_grow(table->arena, table->columns, sizeof *table->columns,
                                &table->column_capacity, table->n_columns + 1);
    struct run_column *column = &table->columns[table->n_columns++];

    column->name = arena_strdup(table->arena, name);
    column->values = arena_array(table->arena, double, table->row_capacity);
    fill_nan(column->values, 0, table->n_rows);
    return column;
}

void run_table_set(struct run_table *table, const char *name, double value)
{
    struct run_column *column = column_of(table, name);

    CHECK(table->n_rows > 0);
    if (!column)
        column = add_column(table, name);
    column->values[table->n_rows - 1] = isfinite(value) ? value : NAN;
}

const double *run_table_find(const struct run_table *table, const char *name)
{
    const struct run_column *column = column_of(table, name);

    return column ? column->values : NULL;
}

double run_table_last(const struct run_table *table, const char *name)
{
    const double *values = run_table_find(table, name);

    for (int i = table->n_rows - 1; values && i >= 0; i--)
        if (!isnan(values[i]))
            return values[i];
    return NAN;
}

static int compare_doubles(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;

    return (a > b) - (a < b);
}

double run_table_median(const struct run_table *table, const char *name)
{
    const double *values = run_table_find(table, name);
    double *sorted = calloc((size_t)table->n_rows + 1, sizeof *sorted), median = NAN;
    int n = 0;

    for (int i = 0; sorted && values && i < table->n_rows; i++)
        if (!isnan(values[i]))
            sorted[n++] = values[i];
    if (n) {
        qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
        median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
    }
    free(sorted);
    return median;
}

/* ---- rows that are drawn ---- */

/* Mark the rows of [first, end) where the column is lowest and highest, and the first without a
 * value if others have one. */
static void mark_range(bool *marked, const double *values, int first, int end)
{
    int low = -1, high = -1, gap = -1;

    for (int i = first; i < end; i++) {
        if (isnan(values[i])) {
            gap = gap < 0 ? i : gap;
            continue;
        }
        if (low < 0 || values[i] < values[low])
            low = i;
        if (high < 0 || values[i] > values[high])
            high = i;
    }
    if (low >= 0)
        marked[low] = marked[high] = true;
    if (low >= 0 && gap >= 0)
        marked[gap] = true;
}

/* Columns that are the same in all rows have no extremes. */
static bool varies(const struct run_table *table, const double *values)
{
    for (int i = 1; i < table->n_rows; i++)
        if (values[i] != values[0] && !(isnan(values[i]) && isnan(values[0])))
            return true;
    return false;
}

static int mark_rows(const struct run_table *table, int n_ranges, bool *marked)
{
    int n = 0;

    memset(marked, 0, (size_t)table->n_rows * sizeof *marked);
    marked[0] = marked[table->n_rows - 1] = true;
    for (int c = 0; c < table->n_columns; c++) {
        const double *values = table->columns[c].values;

        if (!varies(table, values))
            continue;
        for (int r = 0; r < n_ranges; r++)
            mark_range(marked, values, (int)((int64_t)table->n_rows * r / n_ranges),
                       (int)((int64_t)table->n_rows * (r + 1) / n_ranges));
    }
    for (int i = 0; i < table->n_rows; i++)
        n += marked[i];
    return n;
}

/* Fewer ranges until their rows are few enough; two ends at least. */
int run_table_thin(const struct run_table *table, int n_most, int **rows)
{
    bool *marked = calloc((size_t)table->n_rows + 1, sizeof *marked);
    int n = 0, n_marked = table->n_rows;

    CHECK(n_most >= 2);
    CHECK(marked != NULL);
    memset(marked, 1, (size_t)table->n_rows);
    for (int n_ranges = n_most / 2; n_marked > n_most && n_ranges > 0; n_ranges = n_ranges * 3 / 4)
        n_marked = mark_rows(table, n_ranges, marked);
    *rows = arena_array(table->arena, int, n_marked);
    for (int i = 0; i < table->n_rows; i++)
        if (marked[i])
            (*rows)[n++] = i;
    free(marked);
    return n;
}
