/*
 * slice_impl.h - the tasks of a function that is cut into slices, and their order
 */
#ifndef PROGRAM_SLICE_IMPL_H
#define PROGRAM_SLICE_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "program/passes.h"

struct view_entry;

struct slicer {
    struct program *program;
    const struct function *function;
    int number; /* of the function */
    const struct slice_options *options;
    int64_t period; /* rows of a rank */
    int n_pieces;   /* of all rows: ranks with such rows */
    int unit;       /* a slice's rows are a multiple of it, but for the last one's */
    int n_joined; /* ranks whose rows a product reads, gathered over heads (fastseq); 1: none does;
                       and the rows of a sequence that each has */
    int64_t joined_rows;
    struct arena arena;
    int64_t *slice_rows; /* by op: rows of the period in a slice; -n: it is cut into n groups of
                            experts; 0: it is not cut */
    bool has_exchange;   /* rows go to experts on other ranks */
    int *ends;           /* by value: of the experts that have these rows; 0: none */
    int *grouped;        /* by base value: groups in which the tasks at hand write it; 0 */
    struct view_entry **views;
    bool has_sequences; /* all ops are cut at whole sequences, those that need such, too */
    struct slice_access **of_base; /* by value: of the tasks at hand; else NULL */
};

/* ---- slice_cut.c ---- */

/* Operand k of an op, inputs first; NULL: the kind has none. */
const struct op_operand *slice_operand_info(const struct op *op, int k);
static inline int slice_operand(const struct op *op, int k)
{
    return k < OPS_MAX_INPUTS ? op->in[k] : op->out[k - OPS_MAX_INPUTS];
}

/* Whether an operand has a row for each token. */
static inline bool slice_has_rows(enum dim dim)
{
    return dim == DIM_T || dim == DIM_U;
}

/* Rows of the operands that are cut: all of one number; 0: they are not. */
int64_t slice_cut_rows(const struct slicer *slicer, const struct op *op);

/* Fill n_joined, joined_rows and unit. */
void slice_find_joined(struct slicer *slicer);

/* Whether it exchanges parts of sequences: gathers, sums, heads for rows; whether it is one op on
 * all pieces of a slice, as runs of rows (ops.h, run_rows); of a slice of an op, how many ops there
 * are, of pieces of rows that do not lie together. */
bool slice_is_of_sequences(const struct op *op);
bool slice_is_in_runs(const struct slicer *slicer, const struct op *op);
int slice_n_pieces(const struct slicer *slicer, const struct op *op);

/*
 * Whether the op is on the rows that several ranks have of sequences, joined; and where those of a
 * slice of so many rows of the period lie among them: in how many runs (0: not cut so), and row and
 * number of the k-th, of `rows` rows of this rank from `first` on. Of a sequence's rows those of
 * each rank are a run; of whole sequences, those of all.
 *
 *     joined: | rank 0 | rank 1 | rank 0 | rank 1 |      sequences 0 and 1
 */
bool slice_is_joined(const struct slicer *slicer, const struct op *op);
int slice_n_runs(const struct slicer *slicer, int64_t rows);
struct slice_rows {
    int64_t first, n;
};
struct slice_rows slice_run(const struct slicer *slicer, int64_t first, int64_t rows, int k);

/* Whether an op can be cut into slices of so many rows of the period. */
bool slice_is_cut(const struct slicer *slicer, const struct op *op, int64_t rows);

/* Whether it gives rows, which it can be asked for without the sums over rows that it gives, too,
 * and those without the rows: norms' gradients. */
bool slice_is_split(const struct op *op);

/* Whether the op gives nothing but sums that cells keep. */
bool slice_only_accumulates(const struct program *program, const struct op *op);

/* Of an op, as it is cut: how many slices there are, and the rows of one. The op of a task: where
 * it is split, on slices the rows', on all rows (slice -1) the sums'. */
int slice_count(const struct slicer *slicer, int op);
int64_t slice_n_rows(const struct slicer *slicer, int op, int slice);
struct op slice_op(const struct slicer *slicer, int op, int slice);

/* ---- slice_experts.c ---- */

struct slice_task;

/* Whether ops may write and read a value in groups (program.h). */
bool slice_can_be_groups(const struct program *program, int value);

/* Fill ends, has_exchange. */
void slice_find_experts(struct slicer *slicer);

/* How many experts a rank has, of an op that can be cut into groups of them; 0: it cannot. Into how
 * many groups: at most n, of equal numbers of experts; 0: it stays whole. */
int slice_experts(const struct slicer *slicer, const struct op *op);
bool slice_is_between_experts(const struct slicer *slicer, const struct op *op); /* or keeps rows */
int slice_groups_for(int n_experts, int n);

/* The op of one of n groups, its operands whole; and emit that of a task. */
struct op slice_group(const struct slicer *slicer, const struct op *op, int group, int n);
void slice_emit_group(struct slicer *slicer, int function, const struct slice_task *task);

/* ---- slice_tasks.c ---- */

/* An op on one slice of its rows, or on all of them. */
struct slice_task {
    int op;        /* its number in the function; tasks are in the order of ops, then slices */
    int slice;     /* -1: all rows */
    int stream;    /* enum stream; STREAM_COMPUTE: it runs at once */
    bool is_cheap; /* of those that run at once: no product */
    bool may_wait; /* nothing but the end of the step needs it: a gradient, also of the head */
    int64_t ns;
    double slowdown; /* posted: what runs meanwhile takes (1 + slowdown) times as long */
    int *after;      /* tasks that it comes after: all of a lower number */
    int n_after, capacity;
};

/* What of a value a task reads or writes: rows of the period. */
struct slice_access {
    int task;
    int64_t begin, end;
    bool writes;
    struct slice_access *next;
};

struct slice_tasks {
    struct slice_task *list;
    int n;
    struct arena arena;         /* of all of it */
    int last_posted[N_STREAMS]; /* 1 + the last on all rows */
    int last_sum;               /* likewise, of those that keep their order */
};

/* Of the function's ops begin .. end - 1, cut as slicer->slice_rows says. To be released. */
struct slice_tasks slice_list_tasks(struct slicer *slicer, int begin, int end);
void slice_release_tasks(struct slice_tasks *tasks);

/*
 * slice_order.c: order[n] becomes an order of the tasks; returns when the last of them ends.
 *
 * What runs at once runs one after the other; what is posted runs on its stream, in the order in
 * which it was posted, beside that, and slows it. The order is found by playing it: of what may
 * begin, that which can begin first, ahead of weights' gradients, which run where all else would
 * wait for long. No task is more than a few ops ahead of one that is left behind, so that little
 * memory is in use.
 */
int64_t slice_order(const struct slice_task *tasks, int n, int *order);

#endif
