/*
 * gradient_check.h - references of gradients against central differences of the forward's
 *
 * The loss is the forward's first output times fixed numbers; a gradient's operands are found by
 * their names in the forward's row (x, dx).
 */
#ifndef TEST_SUPPORT_GRADIENT_CHECK_H
#define TEST_SUPPORT_GRADIENT_CHECK_H

#include "support/op_case.h"
#include "support/op_facts.h"

#define GRADIENT_STEP 1e-4
#define GRADIENT_TOLERANCE 1e-6

/* The gradient kind, of which the case is a forward, gives what differences give. */
void gradient_check(const struct op_case *forward, enum op_kind gradient);

/*
 * d (first output . cotangent) / d input by differences, against `gradient`; all of them dense
 * doubles, the forward as op_case_to_reference leaves it.
 */
void gradient_check_input(const struct op_shape *forward, const struct tensor *cotangent,
                          const char *name, const struct tensor *gradient);

/* Whether gradient_check has come to the kind. */
int gradient_was_checked(enum op_kind kind);

#endif
