/*
 * special_tokens.h - what a folder says of the tokens that begin, end and pad a text
 *
 * transformers reads them as ids from config.json and generation_config.json, and by name from
 * tokenizer_config.json; where they are missing it assumes the ids of the family's first model.
 */
#ifndef WEIGHTS_SPECIAL_TOKENS_H
#define WEIGHTS_SPECIAL_TOKENS_H

#include "base/err.h"

/*
 * Write what is missing of these into a folder with a config.json and a tokenizer, from what the
 * tokenizer's files say; keys that are there stay, and so does a file that is not a JSON object.
 * Without a tokenizer config.json says that there are none (null); with one that cannot be read
 * nothing is done. ERR_FAILED.
 */
int special_tokens_complete(const char *folder, struct err *err);

/*
 * Make a chat template the folder's: tokenizer_config.json gets its text in place of any other that
 * is there, and generation_config.json the token that ends its answers, if it is one. ERR_DATA,
 * ERR_FAILED.
 */
int special_tokens_set_template(const char *folder, const char *template, struct err *err);

#endif
