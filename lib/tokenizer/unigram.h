/*
 * unigram.h - the most likely pieces of a text (SentencePiece's unigram model)
 *
 * Viterbi over the whole text, in sentencepiece's own order and precision (float sums): where two
 * ways are nearly equal, rounding decides, and ids must be the library's. In a single text of some
 * hundred thousand bytes the sums grow so large that a few choices in a hundred thousand still
 * differ from sentencepiece 0.2.3's, whose rounding there is not known.
 */
#ifndef TOKENIZER_UNIGRAM_H
#define TOKENIZER_UNIGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

struct unigram_piece {
    const char *text;
    size_t n_bytes;
    int32_t id;
    float score;
    int is_user_defined;
};

/* A trie, by hash of node and byte. */
struct unigram {
    struct unigram_node *nodes; /* hash table */
    size_t mask;
    const struct unigram_piece *pieces; /* borrowed */
    float least_score, greatest_score;  /* of the normal pieces */
};

/* Index n pieces (they stay the caller's, and live as long). */
void unigram_init(struct unigram *unigram, struct arena *arena, const struct unigram_piece *pieces,
                  int n);

/* One piece on the way: where it starts and its id, -1 for a character that no piece is. */
struct unigram_step {
    size_t start;
    int32_t id;
    float score;
};

/*
 * The pieces of text, n_bytes of it: fills steps[0 .. n_bytes], of which steps[end] is the piece
 * that ends there on the best way; the last is steps[n_bytes], the one before it
 * steps[steps[n_bytes].start].
 */
void unigram_encode(const struct unigram *unigram, const char *text, size_t n_bytes,
                    struct unigram_step *steps);

#endif
