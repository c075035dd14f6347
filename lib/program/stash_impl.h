/*
 * stash_impl.h - how many micro-batches of what are held at one time
 */
#ifndef PROGRAM_STASH_IMPL_H
#define PROGRAM_STASH_IMPL_H

#include "program/program.h"

/*
 * Put the marked values (bases; by id) into stashes, by space and the functions that touch them, and count
 * each one's slots from the entries' actions: the fewest n where no two micro-batches that differ by
 * a multiple of n live at one time, from their first touch to their last. Sizes are place's.
 */
void divide_stash(struct program *program, const char *marked);

#endif
