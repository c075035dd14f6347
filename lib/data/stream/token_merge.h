/*
 * token_merge.h - several token files to one, in their order
 *
 * Tokens, sequences and documents of the inputs stand one behind the other, as if one run had
 * written them: what is made of the parts of one tokenization (token_part.h) is what that would
 * have been, byte for byte. Any token files of one type and one tokenizer can be merged.
 *
 * Memory is bounded: tokens are copied by the kernel where it can (sharing blocks on file systems
 * that do), the index is written as it is read. Inputs stay. The output replaces an older one at
 * the end; after a kill the same merge can be done again.
 */
#ifndef DATA_STREAM_TOKEN_MERGE_H
#define DATA_STREAM_TOKEN_MERGE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

struct token_merge_report {
    int n_files;
    int64_t n_documents, n_tokens, n_bytes; /* of the output; bytes of .bin */
};

/*
 * Prefixes of the parts of `prefix` in order, in arena; n_parts 0: as many as there are. Returns 0,
 * or -1 and ERR_DATA: there are none, or those of several divisions, or some are missing: all are
 * named.
 */
int token_merge_find_parts(const char *prefix, int n_parts, const char ***prefixes, int *n,
                           struct arena *arena, struct err *err);

/*
 * Merge n token files into prefix.bin, .idx and (if they have one) .json. progress is called with
 * the bytes of tokens copied so far and of all; NULL is allowed. Returns 0, or -1: ERR_DATA if an
 * input cannot be read, or two do not belong together (which and why), ERR_CONFIG if the output is
 * an input or has another program's .json, ERR_FAILED if it cannot be written.
 */
int token_merge(const char *prefix, const char *const *prefixes, int n,
                void (*progress)(void *context, int64_t done_bytes, int64_t all_bytes),
                void *context, struct token_merge_report *report, struct err *err);

#endif
