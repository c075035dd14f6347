/*
 * encode.h - contexts and continuations as tokens, as lm-evaluation-harness 0.4.13 cuts them
 * (api/model.py, _encode_pair and loglikelihood)
 */
#ifndef EVAL_ENCODE_H
#define EVAL_ENCODE_H

#include <stdbool.h>

#include "tokenizer/tokenizer.h"

/*
 * Append a text's ids with what the tokenizer puts around texts (BOS), but for a text that begins
 * with BOS already. cache may be NULL.
 */
int encode_text(const struct tokenizer *tokenizer, struct tokenizer_cache *cache, const char *text,
                size_t n_bytes, struct token_list *out, struct err *err);

/*
 * A prompt as it is, to be gone on from. is_framed: what the tokenizer puts around texts is in it
 * already. One without tokens is the end of text.
 */
int encode_prompt(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                  const char *text, bool is_framed, struct token_list *out, struct err *err);

/*
 * A context, of which white space at the end goes to its continuations: its ids, and in *n_bytes
 * where they end. An empty one is BOS, or the end of text where there is none.
 */
int encode_context(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                   const char *context, size_t *n_bytes, struct token_list *out, struct err *err);

/*
 * The ids of a continuation: those of the whole text beyond as many as the context has. whole: the
 * context with its continuation.
 */
int encode_continuation(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                        const char *whole, size_t n_bytes, int64_t n_context, bool has_context,
                        struct token_list *out, struct err *err);

#endif
