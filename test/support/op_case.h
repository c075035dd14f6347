/*
 * op_case.h - the rig of kernels' tests: one op with guarded operands, on the device under test and
 * on the reference
 *
 * A test states the op, its attributes and the shapes, dtypes and contents of its operands;
 * op_case_check does the rest. Operands lie in rows with a gap behind each and guard bytes around;
 * outputs, scratch and what may not be read start as NaN. The device under test is the CPU, or GPU
 * 0 (support/test_device.h), which in builds without one is emulated:
 *
 *   against the double-precision reference (support/op_facts.h), by one tolerance rule
 *   guard bytes, gaps and inputs that are no outputs are untouched
 *   CPU: 1, 2, 3 and 7 threads have the same bits; so have the instruction sets, where no products are
 *   emulated GPU: the same bits where threads and blocks run in another order and copies land early
 *
 * Where the op accumulates, all of it twice: from NaN as the first, and on top of random contents.
 * What is special to an op (a bit-for-bit law, an edge) is a test beside, by the functions below.
 */
#ifndef TEST_SUPPORT_OP_CASE_H
#define TEST_SUPPORT_OP_CASE_H

#include <stdbool.h>

#include "ops/op_info.h"
#include "support/acts.h"
#include "support/op_facts.h"

enum { OP_CASE_GUARD_BYTES = 64, OP_CASE_GUARD = 0xa5 };

struct op_case {
    struct op_shape op; /* kernel's operands, guarded; filled after op_case_create */
    size_t in_bytes[OPS_MAX_INPUTS], out_bytes[OPS_MAX_OUTPUTS];
    bool dense;  /* set before operands are added: no gaps */
    int gap;     /* likewise: columns of the gaps, where 0 is 3 */
    bool leaves; /* some elements of outputs are left as they were, by the reference, too */
    int skew;    /* likewise: bytes by which an operand is off a multiple of 64; less than those */
};

struct op_case *op_case_create(enum op_kind kind, const struct op_attributes *attributes);
void op_case_destroy(struct op_case *c);

/* Floats are standard normal times scale, seeded by kind and index; integers are zero: fill
 * them. */
void op_case_input(struct op_case *c, int i, int64_t rows, int64_t cols, enum dtype dtype,
                   double scale);
void op_case_output(struct op_case *c, int i, int64_t rows, int64_t cols, enum dtype dtype);

/*
 * What attention, its gradient and attention over a cache always have: q, k and v, out and the
 * rest, by the attributes; not the cache, nor what is optional.
 */
void op_case_attention(struct op_case *c, int64_t rows, enum dtype act);
/* The same, with value heads of another width than head_dim. */
void op_case_attention_values(struct op_case *c, int64_t rows, enum dtype act, int value_dim);
/* The same, with other rows of keys and values than of queries. */
void op_case_attention_keys(struct op_case *c, int64_t rows, int64_t key_rows, enum dtype act);
/* Both. */
void op_case_attention_sizes(struct op_case *c, int64_t rows, int64_t key_rows, enum dtype act,
                             int value_dim);

/* One element as a double, and set from one. */
double tensor_get(const struct tensor *t, int64_t row, int64_t col);
void tensor_set(const struct tensor *t, int64_t row, int64_t col, double value);

/*
 * All of what is said above. tolerance: of max|kernel - reference| / max|reference| for outputs of
 * fp32 and fp64; bf16 ones may err by 2^-8 of the element besides, fp16 ones by 2^-11 of
 * it, or 2^-25.
 */
void op_case_check(struct op_case *c, double tolerance);

/* What the op writes has the bits of the CPU with one thread. Contents are left as they were. */
void op_case_check_cpu_bits(struct op_case *c, enum run_turn turn);

/* Run once with this many threads of the CPU; outputs are poisoned before RUN_FIRST. */
void op_case_run(struct op_case *c, int n_threads, enum run_turn turn);

/* The same by the CPU's kernels, whatever the device under test is. */
void op_case_run_on_cpu(struct op_case *c, enum run_turn turn);

/* Fails the test at the first element whose bits differ; `what` completes "these of two cases
 * ..". */
void op_case_same(const struct tensor *a, const struct tensor *b, const char *what);
void op_case_same_outputs(const struct op_case *a, const struct op_case *b, const char *what);

/* The same shape with dense double operands holding the same numbers; free with reference_release.
 */
void op_case_to_reference(const struct op_case *c, struct op_shape *reference);
void reference_release(struct op_shape *reference);

/* The same elements, dense, in memory of their own: free its data. */
struct tensor op_case_keep(const struct tensor *t);

/* Standard normal numbers times scale, by place and element. */
void op_case_fill(const struct tensor *t, uint64_t place, double scale);

/* Every element of `to`, which has from's shape, maybe other strides or another dtype. */
void op_case_copy(const struct tensor *to, const struct tensor *from);

/* out and lse of an attention gradient's case as the forward's reference leaves them, on the
 * gradient's own q, k and v. forward is destroyed. */
void op_case_fill_saved(struct op_case *grad, struct op_case *forward);

#endif
