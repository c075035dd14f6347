/*
 * op_case.h - one op with guarded operands, run on the CPU's kernels and on the reference
 *
 * Operands lie in rows with a gap behind each and guard words around; outputs and what may not be
 * read start as NaN. op_case_check runs the kernel with 1, 2, 3 and 7 threads and for each
 * instruction set, wants equal bits from all (of instruction sets where no products are),
 * untouched guards and inputs, and results near the reference's; where the op accumulates, both
 * from poison with first and on top of random contents without.
 */
#ifndef TEST_SUPPORT_OP_CASE_H
#define TEST_SUPPORT_OP_CASE_H

#include "ops/op_info.h"
#include "support/acts.h"

struct op_case {
    struct op_shape op; /* kernel's operands, guarded; filled after op_case_create */
    size_t in_bytes[OPS_MAX_INPUTS], out_bytes[OPS_MAX_OUTPUTS];
    int dense; /* set before operands are added: no gaps */
    int gap;   /* likewise: columns of the gaps, where 0 is 3 */
    int skew;  /* likewise: bytes by which an operand is off a multiple of 64; less than those */
};

struct op_case *op_case_create(enum op_kind kind, const struct op_attributes *attributes);
void op_case_destroy(struct op_case *c);

/* Floats are standard normal times scale, seeded by kind and index; integers are zero: fill them.
 */
void op_case_input(struct op_case *c, int i, int64_t rows, int64_t cols, enum dtype dtype,
                   double scale);
void op_case_output(struct op_case *c, int i, int64_t rows, int64_t cols, enum dtype dtype);

/*
 * What attention, its gradient and attention over a cache always have: q, k and v, out and the rest,
 * by the attributes; not the cache, nor what is optional.
 */
void op_case_attention(struct op_case *c, int64_t rows, enum dtype act);
/* The same, with value heads of another width than head_dim. */
void op_case_attention_values(struct op_case *c, int64_t rows, enum dtype act, int value_dim);
/* The same, with other rows of keys and values than of queries. */
void op_case_attention_keys(struct op_case *c, int64_t rows, int64_t key_rows, enum dtype act);

/* One element as a double, and set from one. */
double tensor_get(const struct tensor *t, int64_t row, int64_t col);
void tensor_set(const struct tensor *t, int64_t row, int64_t col, double value);

/*
 * All of what is said above. tolerance: of max|kernel - reference| / max|reference| for outputs of
 * fp32 and fp64; bf16 ones may err by 2^-8 of the element besides, fp16 ones by 2^-11 of
 * it, or 2^-25.
 */
void op_case_check(struct op_case *c, double tolerance);

/* Run once with this many threads; outputs are poisoned first if first is set. */
void op_case_run(struct op_case *c, int n_threads, int first);

/* The same shape with dense double operands holding the same numbers; free with reference_release.
 */
void op_case_to_reference(const struct op_case *c, struct op_shape *reference);
void reference_release(struct op_shape *reference);

/* Every element of `to`, which has from's shape, maybe other strides or another dtype. */
void op_case_copy(const struct tensor *to, const struct tensor *from);

/* out and lse of an attention gradient's case as the forward's reference leaves them, on the
 * gradient's own q, k and v. forward is destroyed. */
void op_case_fill_saved(struct op_case *grad, struct op_case *forward);

#endif
