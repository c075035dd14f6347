/*
 * bpe.h - a BPE vocabulary and its merges
 *
 * Of bytes: tokens are spelled in tokenizer.json with one printable character a byte (GPT-2's
 * bytes_to_unicode: "Ġ" is the space), and a word starts as one token a byte. Or of characters, as
 * SentencePiece has it ("▁" is the space): a word starts as one token a character, and what is in
 * no token becomes its bytes' tokens (<0x0A>) in the end, or the unknown token. The neighbours
 * whose merge has the least rank are joined, the leftmost first, until none can be.
 */
#ifndef TOKENIZER_BPE_BPE_H
#define TOKENIZER_BPE_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "tokenizer/added.h"

#define BPE_SPACE "\xe2\x96\x81" /* how a space is spelled in tokens of characters */

struct bpe_token {
    const char *spelling; /* NULL: no token has this id */
    const char *bytes;
    uint32_t n_spelling, n_bytes;
};

struct bpe_merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: free */
    int32_t rank, id;
};

struct bpe_word {
    uint32_t hash;
    int32_t id; /* -1: free */
};

struct bpe_byte_pair {
    int32_t rank, id; /* id -1: there is no merge */
};

struct bpe {
    struct arena *arena; /* borrowed; all tables are in it */
    struct bpe_token *tokens;
    int n_ids;            /* greatest id + 1 */
    int32_t *by_spelling; /* hash table of ids, -1: free */
    size_t spelling_mask;
    struct bpe_merge *merges; /* hash table */
    size_t merge_mask;
    uint64_t *merge_filter; /* bits: most pairs that have no merge are seen here, in fast memory */
    size_t filter_mask;
    int32_t byte_ids[256]; /* of each byte; of characters: -1 if there is no byte_fallback */
    int ignore_merges;     /* a word that is a token is that token */
    bool is_byte_level;
    bool lacks_bytes; /* of bytes: some have no token, -1 in byte_ids, and are left out of texts */
    /* Of bytes, once bpe_index_words has been called: */
    struct bpe_word *words; /* hash table of what encodes to one token, by its bytes */
    size_t word_mask;
    size_t word_bytes_max;
    struct bpe_byte_pair
        *byte_pairs; /* [256 * 256]: the merges of two bytes; of characters, of two of ASCII */
    /* Of characters: */
    int32_t ascii_ids[128];    /* -1: no token */
    bool takes_spaces;         /* a space in a word is BPE_SPACE */
    int n_visible;             /* ids from here on only help to merge: they come out as unknown */
    int32_t unknown;           /* -1: what is unknown is left out */
    int fuse_unknown;          /* several in a row become one */
    struct added_tokens whole; /* characters that are one symbol from the start, never merged */
    int n_unused, n_parts_max; /* tokens that only help to merge: they come out as what they were */
    int32_t *unused;           /* merged of (SentencePiece); by id, -1: none. See bpe_set_unused */
};

/* Tables for n_tokens tokens with ids below n_ids. */
void bpe_init(struct bpe *bpe, struct arena *arena, bool is_byte_level, int n_tokens, int n_ids);
/* The table for n_merges merges. */
void bpe_init_merges(struct bpe *bpe, int n_merges);

/* Add a token by its spelling (valid UTF-8, copied). Returns 0, or -1 if its id or spelling is
 * taken. */
int bpe_add_token(struct bpe *bpe, int32_t id, const char *spelling, size_t n_bytes);

/* Of bytes: the same by what it stands for. */
int bpe_add_bytes(struct bpe *bpe, int32_t id, const unsigned char *bytes, size_t n_bytes);

/* Id by spelling, or -1. */
int32_t bpe_find(const struct bpe *bpe, const char *spelling, size_t n_bytes);

/* Once all tokens are in: -1, or the least byte that no token stands for; lacks_bytes is then
 * set. */
int bpe_find_bytes(struct bpe *bpe);
/* Of characters, once all tokens are in: index those of one ASCII character. */
void bpe_find_ascii(struct bpe *bpe);
/* Of characters, once all merges are in: index those of ASCII. has_spaces: words will have a space
 * for each BPE_SPACE, and bpe_encode is to take them so, if it can (takes_spaces). */
void bpe_index_ascii(struct bpe *bpe, bool has_spaces);
/*
 * Of characters: a token that comes out of merging is replaced by the two that it was made of,
 * those likewise; a character is unknown then. Which two depends on all texts of the same call: it
 * is the pair that was looked at last, as in SentencePiece. So texts must not be cut into words.
 */
void bpe_set_unused(struct bpe *bpe, int32_t id);
/* Of characters, once all tokens are in: take <0x00>..<0xFF> for the bytes of what is in no token.
 * Returns -1, or the least byte that has none. */
int bpe_find_fallback(struct bpe *bpe);

#define BPE_RANKS_MAX (1 << 25)

/* left and right join to id, ranked (below BPE_RANKS_MAX); a pair that is there already gets the
 * new rank. */
void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);

/*
 * Of bytes, where ids are ranks (tiktoken): add the merges, for each token the one pair that it is
 * made of when all lesser tokens are merged before it. Exact: what a merge joins are two such parts
 * whatever is around them. A token that is no such pair is only ever a whole word. Returns 0, or -1
 * if there is no memory.
 */
int bpe_derive_merges(struct bpe *bpe);

/* Of bytes, once all merges are in: find the words that are one token. ignore_merges must be set
 * before. Returns 0, or -1 if there is no memory. */
int bpe_index_words(struct bpe *bpe);

/* Memory that merging needs; grows as words do. All zero is empty. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    struct bpe_candidate *candidates;
    size_t capacity;
    int32_t *parts; /* [2 * n_unused], then ids that wait to be replaced; NULL if none is unused */
};

void bpe_scratch_release(struct bpe_scratch *scratch);

#define BPE_WORD_BYTES_MAX ((size_t)1 << 28)

/*
 * The ids of one word of 1..BPE_WORD_BYTES_MAX bytes: a pointer into scratch, and how many. NULL if
 * there is no memory. Takes n log n.
 */
const int32_t *bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word,
                          size_t n_bytes, size_t *n_ids);

#endif
