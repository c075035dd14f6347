/*
 * state_convert.h - an optimizer's moments that a checkpoint has as codes of 8 bits and the run as
 * numbers, or the other way round
 *
 * Codes and their scales (ops/state_codes.h) are of blocks of 256 elements of a rank's part of a
 * parameter. Numbers become codes as a step makes them, codes become value times scale; of bf16 it
 * is rounded to nearest. fp32 and bf16 among each other are store_read's.
 */
#ifndef WEIGHTS_STATE_CONVERT_H
#define WEIGHTS_STATE_CONVERT_H

#include "ckpt/store.h"
#include "run/run.h"

/* Whether the slice is of such a moment, or its scales: store_read cannot fill it. */
bool state_convert_wants(const struct store *store, const struct store_slice *slice);

/*
 * Fill those that the rank has, of all parameters. Returns how many moments that were, or -1:
 * store_read's errors, and ERR_CONFIG where codes are of blocks of other parts (tp, cp) than here.
 */
int state_convert(struct run *run, const struct program *program, const struct mesh_place *place,
                  struct store *store, struct err *err);

#endif
