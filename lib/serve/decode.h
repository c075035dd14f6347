/*
 * decode.h - a model that continues sequences, a token at a time, over a KV cache
 *
 * The program has two entries that share weights and cache: PREFILL takes a prompt in pieces of
 * prefill_len tokens, DECODE one token of each sequence.
 *
 * All ranks of served->replica have a decoder each, and make the same calls with the same numbers;
 * creating and feeding are collective over them. Each has the cache of its own layers and heads.
 */
#ifndef SERVE_DECODE_H
#define SERVE_DECODE_H

#include "serve/served.h"

struct decoder;

/* Memory for n_sequences side by side, each of at most cache_len tokens in all. */
int decoder_create(struct decoder **decoder, struct served *served, struct kernels *kernels,
                   int n_sequences, int cache_len, struct err *err);
/* The same with PREFILL's pieces of `piece` tokens, where prompts are short: padding is computed too. */
int decoder_create_pieces(struct decoder **decoder, struct served *served, struct kernels *kernels,
                          int n_sequences, int cache_len, int piece, struct err *err);
void decoder_destroy(struct decoder *decoder);

/* The weights of another model of the same shape and type; all sequences are forgotten. */
int decoder_load(struct decoder *decoder, struct served *served, struct err *err);

/* Bytes of all segments. */
size_t decoder_bytes(const struct decoder *decoder);
/* Those of keys and values. */
size_t decoder_cache_bytes(const struct decoder *decoder);

/*
 * Feed sequence s the n_tokens[s] >= 1 tokens at tokens[s], behind what it has. All n_sequences are
 * fed at once; one with n_tokens 0 is left as it is. Returns 0, or -1 and ERR_CONFIG when a
 * sequence would grow beyond cache_len. Then decoder_logits are those after each sequence's last
 * token.
 */
int decoder_feed(struct decoder *decoder, const int32_t *const *tokens, const int *n_tokens,
                 struct err *err);

/* [vocab_size] of one sequence; only of those that the last feed gave tokens, and only on the ranks
 * of the last stage. */
const float *decoder_logits(const struct decoder *decoder, int sequence);

int decoder_length(const struct decoder *decoder, int sequence);

/* Forget all sequences. */
void decoder_reset(struct decoder *decoder);

/* Forget all of a sequence but its first `length` tokens, of which it has as many. */
void decoder_truncate(struct decoder *decoder, int sequence, int length);

/*
 * Sequence s becomes what from[s] was, for n sequences from the first on: how beams go on. Logits
 * stay where they are. Returns 0, or -1 and ERR_DEVICE.
 */
int decoder_reorder(struct decoder *decoder, const int *from, int n, struct err *err);

#endif
