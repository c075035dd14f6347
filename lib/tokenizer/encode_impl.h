/*
 * encode_impl.h - one call of tokenizer_encode: what encode.c cuts and encode_words.c makes ids of
 */
#ifndef TOKENIZER_ENCODE_IMPL_H
#define TOKENIZER_ENCODE_IMPL_H

#include "tokenizer/tokenizer_impl.h"

#define CACHE_WORD_BYTES 30
#define CACHE_IDS 8

typedef uint64_t word_half __attribute__((vector_size(16)));

struct cached_word {
    union {
        int32_t ids[CACHE_IDS];
        struct {
            int32_t ids_too[CACHE_IDS - 1];
            float reach; /* of a unigram model: see unigram_reach */
        };
    };
    union {
        word_half halves[2];
        struct {
            char word[CACHE_WORD_BYTES]; /* then zeros */
            uint8_t n_bytes;             /* 0: free */
            uint8_t n_ids;
        };
    };
};

/* A word that waits for its line of the cache to come from memory. */
struct waiting_word {
    word_half key; /* its first 16 bytes, then zeros */
    const char *word;
    size_t n_bytes;
    struct cached_word *slot; /* NULL: not to be cached */
};

enum { WAITING_MAX = 16 };

struct encoder {
    const struct tokenizer *tokenizer;
    struct tokenizer_cache *cache; /* may be NULL */
    struct bpe_scratch scratch;
    struct unigram_scratch way;
    struct tokenizer_budget budget;
    struct str normalized, marked, spelled;
    const char *end;       /* of the text that pieces are of: how far may be read */
    const char *plain_end; /* the same before a mark was put in front of a piece */
    struct waiting_word waiting[WAITING_MAX];
    int n_waiting;
    int after_unknown; /* the id before is of what is unknown, in the same piece of text */
    struct token_list *out;
    struct token_sections *sections; /* or NULL */
    struct err *err;
};

/* Append the ids of a piece that is split no more. Of bytes: text must live until encoder_flush. */
int encoder_add_piece(struct encoder *e, const char *text, size_t n_bytes);

/* Append the ids of the words that wait. */
int encoder_flush(struct encoder *e);

#endif
