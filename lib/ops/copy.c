/*
 * copy.c - copies between the device's memory and the host's, or a file
 *
 * A copy is another value: with a lifetime and a place of its own, in the other space. So the first
 * may end as soon as the copy is done, and what reads it again reads one that came back. Where that
 * is, `await` says (elementwise.c).
 */
#include "ops/family_impl.h"

/* Bytes are bytes: the copy, to or fro, lies over ranks as its original. */
_Static_assert((int)TO_DEVICE_X == (int)TO_HOST_X, "copies have one operand");
static int copy_spread(const struct spread_query *q)
{
    spread_give_all(q, q->in[TO_HOST_X]);
    return 0;
}

static const struct op_info to_host = {
    .name = "to_host",
    .n_inputs = 1,
    .inputs = {
        [TO_HOST_X] = { "x", DIM_T, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .n_outputs = 1,
    .outputs = {
        [TO_HOST_Y] = { "y", DIM_T, DIM_D, TYPE_ANY, OPERAND_AWAY },
    },
    .traits = TRAIT_COPY,
    .spread = copy_spread,
};

static const struct op_info to_device = {
    .name = "to_device",
    .n_inputs = 1,
    .inputs = {
        [TO_DEVICE_X] = { "x", DIM_T, DIM_D, TYPE_ANY, OPERAND_AWAY },
    },
    .n_outputs = 1,
    .outputs = {
        [TO_DEVICE_Y] = { "y", DIM_T, DIM_D, TYPE_ANY, OPERAND_PLAIN },
    },
    .traits = TRAIT_COPY,
    .spread = copy_spread,
};

const struct op_info *const copy_ops[N_OP_KINDS] = {
    [OP_TO_HOST] = &to_host,
    [OP_TO_DEVICE] = &to_device,
};
