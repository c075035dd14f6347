/*
 * indexed_impl.h - the checks of indexed.h apart from files, for the fuzzer
 */
#ifndef DATA_STREAM_INDEXED_IMPL_H
#define DATA_STREAM_INDEXED_IMPL_H

#include "data/stream/indexed.h"

/* Given prefix, bin and idx, check them and fill in all else. Returns 0, or -1 and ERR_DATA. */
int indexed_check(struct indexed *indexed, struct err *err);

/* The same for indexed_open_tokens: with more sequences or documents than whole_sequences, places
 * only. */
int indexed_check_tokens(struct indexed *indexed, int64_t whole_sequences, struct err *err);

#endif
