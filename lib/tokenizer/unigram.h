/*
 * unigram.h - the most likely pieces of a text (the unigram model of SentencePiece and HF)
 *
 * Viterbi over the whole text, in the library's own order and precision: where two ways are nearly
 * equal, rounding decides, and ids must be the library's. SentencePiece keeps the sum up to a place
 * as a float and compares it with a double; HF keeps doubles.
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
    double score; /* SentencePiece's are floats */
    int is_user_defined;
};

/* A trie as a double array. */
struct unigram {
    const struct unigram_node
        *nodes;           /* [n_nodes + 256], so that no step needs its bounds checked */
    const double *scores; /* by piece */
    const int32_t *ids;
    double unknown; /* score of a character that no piece is */
    int keeps_floats;
};

#define UNIGRAM_BYTES_MAX ((size_t)1 << 24) /* of all pieces */

/* Index n pieces, whose texts differ. keeps_floats: as SentencePiece does. Returns 0, or -1 if
 * there is no memory. */
int unigram_init(struct unigram *unigram, struct arena *arena, const struct unigram_piece *pieces,
                 int n, int keeps_floats);

/* A piece of the best way: where it starts and its id, -1 for a character that no piece is. */
struct unigram_step {
    double score; /* of the best way to its end; while searching */
    uint32_t start, end;
    int32_t id;
};

/* Memory that searching needs. All zero is empty. */
struct unigram_scratch {
    struct unigram_step *steps;
    size_t capacity;
    double score; /* of what lies before the text; 0 at its start */
};

void unigram_scratch_release(struct unigram_scratch *scratch);

/*
 * The best way through text (n_bytes >= 1, fewer than 2^32) as far as all ways go through one place
 * again, mostly the end of a word: *n_done bytes of it. scratch->score is carried on. The pieces, in
 * order, and how many; they are in scratch. NULL if there is no memory.
 */
const struct unigram_step *unigram_encode(const struct unigram *unigram,
                                          struct unigram_scratch *scratch, const char *text,
                                          size_t n_bytes, size_t *n_done, size_t *n_steps);

#endif
