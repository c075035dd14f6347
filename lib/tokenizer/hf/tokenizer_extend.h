/*
 * tokenizer_extend.h - more tokens for a tokenizer that is a folder's files
 */
#ifndef TOKENIZER_HF_TOKENIZER_EXTEND_H
#define TOKENIZER_HF_TOKENIZER_EXTEND_H

#include "base/err.h"

/*
 * Add tokens to the tokenizer of a folder, whose files are changed: each is one id wherever its
 * text stands, the first of them the one behind all that are there. They are no special tokens:
 * decoding shows them. Those that the tokenizer has already stay what they are. In tokenizer.json
 * nothing but the list of added tokens is touched; beside vocab.json and merges.txt it is
 * added_tokens.json. *n_added: how many are new. Returns 0, or -1: ERR_CONFIG for a text that
 * cannot be a token, ERR_DATA for files of another kind, ERR_FAILED if they cannot be written.
 */
int tokenizer_extend(const char *folder, const char *const *tokens, int n, int *n_added,
                     struct err *err);

#endif
