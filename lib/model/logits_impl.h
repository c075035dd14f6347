/*
 * logits_impl.h - what follows the final norm: the head, and the losses of its logits
 *
 * x is the normed hidden state of a micro-batch's rows, all of them on each tensor-parallel rank.
 */
#ifndef MODEL_LOGITS_IMPL_H
#define MODEL_LOGITS_IMPL_H

#include "model/emitter_impl.h"

/* The matrix of logits: the rank's rows of the head's weight, or these normalised to length 1. */
int logits_rows(const struct emitter *e);

/*
 * Add the loss to port `loss`, and the head's gradient to its accumulator. Returns the gradient of
 * x, or of the value that x was gathered from.
 */
int logits_train(const struct emitter *e, int x);

/* Add the loss to port `eval_loss`. */
void logits_evaluate(const struct emitter *e, int x);

/* Emit the logits of row last_rows of each sequence into port `logits`; creates both ports if they
 * do not exist. */
void logits_last(const struct emitter *e, int x);

#endif
