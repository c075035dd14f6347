/*
 * decode.h - autoregressive decoding of several sequences with a KV cache
 *
 * The program has two entries that share weights and cache: PREFILL processes prompts in chunks of
 * prefill_len tokens, DECODE one token per sequence.
 *
 * All ranks of served->replica have a decoder each, and make the same calls with the same
 * arguments; creating and feeding are collective over them. Each rank caches the keys and values of
 * its own layers and heads.
 */
#ifndef SERVE_DECODE_H
#define SERVE_DECODE_H

#include "serve/served.h"

struct decoder;

/* With memory for n_sequences in parallel, each of at most cache_len tokens. */
int decoder_create(struct decoder **decoder, struct served *served, struct kernels *kernels,
                   int n_sequences, int cache_len, struct err *err);
/* The same with PREFILL chunks of `piece` tokens, for short prompts (padding is computed, too). */
int decoder_create_pieces(struct decoder **decoder, struct served *served, struct kernels *kernels,
                          int n_sequences, int cache_len, int piece, struct err *err);
void decoder_destroy(struct decoder *decoder);

/* Load the weights of another model with the same shapes and dtype; discards all sequences. */
int decoder_load(struct decoder *decoder, struct served *served, struct err *err);

/* Memory of all segments. */
size_t decoder_bytes(const struct decoder *decoder);
/* Memory of the KV cache. */
size_t decoder_cache_bytes(const struct decoder *decoder);

/*
 * Append the n_tokens[s] tokens at tokens[s] to sequence s, for all n_sequences
 * at once; a sequence with n_tokens 0 is unchanged. Returns 0, or -1 and ERR_CONFIG when a
 * sequence would grow beyond cache_len. Then decoder_logits are those after each sequence's last
 * token.
 */
int decoder_feed(struct decoder *decoder, const int32_t *const *tokens, const int *n_tokens,
                 struct err *err);

/* [vocab_size] fp32 of one sequence; only for sequences that got tokens in the last feed, and only
 * on ranks of the last pipeline stage. Valid until the next feed. */
const float *decoder_logits(const struct decoder *decoder, int sequence);

int decoder_length(const struct decoder *decoder, int sequence);

/* Discard all sequences. */
void decoder_reset(struct decoder *decoder);

/* Truncate a sequence to its first `length` tokens; length must not exceed its length. */
void decoder_truncate(struct decoder *decoder, int sequence, int length);

/*
 * Copy sequence from[s] to sequence s, for the first n sequences (beam search). Logits
 * are not moved. Returns 0, or -1 and ERR_DEVICE.
 */
int decoder_reorder(struct decoder *decoder, const int *from, int n, struct err *err);

#endif
