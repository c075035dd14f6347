/*
 * unigram.h - the most likely pieces of a text (the unigram model of SentencePiece and HF)
 *
 * Viterbi over the whole text, in the library's own order and precision: where two ways are nearly
 * equal, rounding decides, and ids must be the library's. SentencePiece keeps the sum up to a place
 * as a float and compares it with a double; HF keeps doubles.
 */
#ifndef TOKENIZER_UNIGRAM_UNIGRAM_H
#define TOKENIZER_UNIGRAM_UNIGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

struct unigram_piece {
    const char *text;
    size_t n_bytes;
    int32_t id;
    double score; /* SentencePiece's are floats */
    bool is_user_defined;
};

/* A trie as a double array. */
struct unigram {
    const struct unigram_node
        *nodes;           /* [n_nodes + 256], so that no step needs its bounds checked */
    const double *scores; /* by piece */
    const int32_t *ids;
    const double *id_scores; /* by id */
    bool has_positive;       /* scores above 0 */
    double unknown;          /* score of a character that no piece is */
    bool keeps_floats;
};

#define UNIGRAM_BYTES_MAX ((size_t)1 << 24) /* of all pieces */

/* Index n pieces, whose texts differ. keeps_floats: as SentencePiece does. Returns 0, or -1 if
 * there is no memory. */
int unigram_init(struct unigram *unigram, struct arena *arena, const struct unigram_piece *pieces,
                 int n, bool keeps_floats);

/* A piece of the best way: where it starts and its id, -1 for a character that no piece is. */
struct unigram_step {
    double score;  /* of the best way to its end; while searching */
    double second; /* of the best one but it */
    uint32_t start, end;
    int32_t id;
};

/* SentencePiece resets its score sum below this value, because large floats lose precision. */
#define UNIGRAM_SUM_LEAST (-100000.0)

/* Memory that searching needs. All zero is empty. */
struct unigram_scratch {
    struct unigram_step *steps;
    size_t capacity;
    double score; /* of what lies before the text; 0 at its start */
    double gap;   /* of the last search: how much the best way was better, where that was least */
    double least; /* and the least score at a place, on the way or not */
};

void unigram_scratch_release(struct unigram_scratch *scratch);

/*
 * The best way through text (n_bytes >= 1, fewer than 2^32) as far as all ways go through one place
 * again, mostly the end of a word: *n_done bytes of it. scratch->score is carried on. The pieces,
 * in order, and how many; they are in scratch. NULL if there is no memory.
 */
const struct unigram_step *unigram_encode(const struct unigram *unigram,
                                          struct unigram_scratch *scratch, const char *text,
                                          size_t n_bytes, size_t *n_done, size_t *n_steps);

/*
 * After a search for the whole of n_bytes of text from a score of 0: up to which score before it,
 * less than 0, rounding can't have another way win. 0: that isn't known.
 */
float unigram_reach(const struct unigram *unigram, const struct unigram_scratch *scratch,
                    size_t n_bytes);

/* Whether scratch->score is within that reach. */
static inline bool unigram_is_within(const struct unigram *unigram,
                                     const struct unigram_scratch *scratch, float reach)
{
    double score = scratch->score;

    return -score < (double)reach || (unigram->keeps_floats && score < UNIGRAM_SUM_LEAST);
}

/* Then its ids are those of the best way: add their scores as searching does. */
void unigram_add(const struct unigram *unigram, struct unigram_scratch *scratch, const int32_t *ids,
                 size_t n);

#endif
