/*
 * family_impl.h - what the family files of the catalogue share
 *
 * A family file has, for each of its kinds, the functions that its row points to and then the row,
 * and at its end the table of its rows by kind. OP_FAMILIES lists the families.
 */
#ifndef OPS_FAMILY_IMPL_H
#define OPS_FAMILY_IMPL_H

#include "ops/backward.h"
#include "ops/op_info.h"

/* All families: X(linear) is what the linear ones are called, whose rows are linear_ops. */
#define OP_FAMILIES(X) \
    X(linear) \
    X(linear_fp8) \
    X(attention) \
    X(attention_part) \
    X(collective_window) \
    X(collective_experts) \
    X(expert_lora) \
    X(norm) \
    X(embed) \
    X(elementwise) \
    X(router) \
    X(experts) \
    X(experts_fp8) \
    X(pages) \
    X(head) X(collective) X(copy) X(optimizer) X(muon) X(compress) X(low_rank) X(ema) X(row_codec)

/* The rows of each family, by kind; NULL for kinds of other families. */
#define DECLARE(family) extern const struct op_info *const family##_ops[N_OP_KINDS];
OP_FAMILIES(DECLARE)
#undef DECLARE

/* A set of inputs. */
#define IN(input) (1u << (input))

/* The outputs of a row's codes_output, of columns as the output that is rounded. */
#define CODED(kind, columns) \
    [kind##_CODES] = { "codes", DIM_T, columns, TYPE_U8, OPERAND_OPTIONAL }, \
    [kind##_MOST] = { "most", DIM_T, DIM_FREE, TYPE_F32, OPERAND_OPTIONAL }

/*
 * For a row's check: an input whose rows the dimensions do not say (DIM_FREE) has so many, if it is
 * given. Returns 0, or -1 and ERR_FAILED.
 */
int check_rows(const struct op_shape *op, int input, int64_t rows, struct err *err);

/* Of op_check: whether the kind takes runs of rows, where the op has them, and operands are of
 * such. Likewise. */
int check_row_runs(const struct op_shape *op, struct err *err);

/* The arguments of op_spread, as the rules of kinds see them. */
struct spread_query {
    const struct op_shape *op;
    const struct op_info *info;
    int on_axis; /* the op is a collective over this very axis */
    const enum spread *in;
    enum spread *out; /* SPREAD_SAME at first */
    struct err *err;
};

/* Is the input given? */
int spread_given(const struct spread_query *q, int input);

/* All outputs lie so. */
void spread_give_all(const struct spread_query *q, enum spread spread);

/* The following return 0, or -1 and ERR_FAILED with what was expected. */

/* The input lies so, or is absent. */
int spread_want(const struct spread_query *q, int input, enum spread spread);

/* Always -1: the input lies otherwise than these choices (enum spread_choice) or the text allow. */
int spread_refuse(const struct spread_query *q, int input, unsigned allowed);
int spread_refuse_text(const struct spread_query *q, int input, const char *wanted);

/* The common form (op_info.h). */
int spread_alike(const struct spread_query *q, unsigned data, unsigned rowwise, unsigned allowed);

/* dw = dy' x, db = column sums of dy, with the operands of linear_dw. */
int spread_linear_dw(const struct spread_query *q);

#endif
