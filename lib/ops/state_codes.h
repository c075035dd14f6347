/*
 * state_codes.h - what the codes of an optimizer's 8-bit states stand for
 *
 * Dettmers et al. 2022 (arXiv 2110.02861), bitsandbytes' dynamic map: seven decades below 1, each
 * with twice as many values, evenly spaced, as the one below it, so that small numbers are as
 * precise as they can be and large ones more. A code stands for a part of its block's largest
 * magnitude. Of m: code k up to STATE_CODES_SIGNED - 1 is the signed map's k-th value, code 256 - k
 * its negative (1 has none, and rounds to the largest that has). Of v, which is never negative:
 * code k is the unsigned map's. So bytes of 0 are zeros: what is padding, or cleared, has no part
 * in a block. A number takes the nearest value, of two as near the smaller magnitude; NaN the
 * largest. But v that is not 0 takes at least the least value that is not: a step divides by its
 * root, and m, whose codes reach further down than the root of v's, would be divided by 0.
 */
#ifndef OPS_STATE_CODES_H
#define OPS_STATE_CODES_H

enum {
    STATE_CODES_SIGNED = 129,   /* values of the signed map that are not negative */
    STATE_CODES_UNSIGNED = 256, /* values of the unsigned one */
};

/* The values are in state_codes_signed.inc and state_codes_unsigned.inc, for tables of the host and
 * of a GPU. Above this a number takes the next value. */
#define STATE_CODES_EDGE(value, next) (0.5f * ((value) + (next)))

#endif
