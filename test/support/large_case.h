/*
 * large_case.h - one op at a real model's shapes: operands that are made where they lie, samples of
 * what comes out
 *
 * Operands are gigabytes, so the host never has them. A table of random numbers of prime length
 * fills each operand on the device by copies of what is filled already; so the host knows every
 * element from the table alone, and elements that are 2^31 or 2^32 apart differ. Results are
 * compared on a sample with what the reference makes of those rows and columns that the sample
 * needs; that every element was written, and that a second run has the same bits, is told by sums
 * of squares of blocks, which the device makes.
 */
#ifndef SUPPORT_LARGE_CASE_H
#define SUPPORT_LARGE_CASE_H

#include "kernels/kernels.h"
#include "ops/op_info.h"

/* What to run: an op's shapes, and contents where numbers are not random. */
struct large_item {
    char name[160]; /* "qwen2-7b 8192: linear [8192 x 3584] bf16 ..." */
    struct op_shape shape;
    const void
        *content[OPS_MAX_INPUTS]; /* dense elements of the operand's dtype; NULL: made here */
    const char *attention;        /* LMTRAIN_ATTENTION while it runs; NULL: as it is */
};

struct large_input {
    int64_t offset; /* in the table of the operand's first element */
    double scale;   /* a power of two: products with the table's numbers stay exact */
    int is_positive;
    struct tensor host; /* with data: the elements, which are not the table's */
};

struct large_case {
    const struct large_item *item;
    struct op_shape op; /* operands on the device */
    struct large_input in[OPS_MAX_INPUTS];
    struct kernels *kernels;
    struct kernel_call call;
    size_t scratch_bytes;
    double seconds; /* of the best of the timed runs */
    /* The comparison so far. */
    int64_t n_samples;
    double error2, reference2; /* sums of squares */
    char worst[120];           /* "" or the first element that is off */
};

enum large_verdict { LARGE_OK = 1, LARGE_FAILED, LARGE_SKIPPED };

/* The table, once a process, before all else: of n (prime) numbers. */
void large_make_table(int64_t n);

/*
 * Run the item on the kernels' device, time it, compare it. text says what came of it: figures, or
 * what is wrong. *is_lost: the device failed and is of no further use.
 */
enum large_verdict large_run(const struct large_item *item, struct kernels *kernels, int *is_lost,
                             char *text, size_t size);

/* ---- for the references (large_reference.c, large_softmax.c) ---- */

/* n elements of an input's row from column col on. */
void large_input_row(const struct large_case *c, int input, int64_t row, int64_t col, int64_t n,
                     double *out);

/* Which rows, or columns, of a tensor: all where `at` is NULL. */
struct large_picks {
    int64_t n;
    const int64_t *at;
};

/* Those rows and columns of an input as a dense operand of the reference (integers stay such); free
 * its data. Absent inputs stay absent. */
struct tensor large_part(const struct large_case *c, int input, const struct large_picks *rows,
                         const struct large_picks *cols);

/*
 * Compare those rows and columns of a tensor on the device with wanted, of that size: each within
 * tolerance of the largest wanted, n_roundings roundings to the tensor's dtype, and slack, which is
 * for sums whose terms cancel.
 */
void large_compare(struct large_case *c, const char *name, const struct tensor *got,
                   const struct large_picks *rows, const struct large_picks *cols,
                   const struct tensor *wanted, double tolerance, int n_roundings, double slack);

/* All elements of a small or needed operand of the device, dense; free it. */
void *large_fetch(const struct large_case *c, const struct tensor *tensor);

/* Returns 0, or -1 where the kind has no reference here. */
int large_check(struct large_case *c);

#endif
