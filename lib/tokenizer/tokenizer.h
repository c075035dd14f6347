/*
 * tokenizer.h - text to ids and back, exactly as the model's own library does it
 *
 * Read from a folder's tokenizer.json (BPE of bytes or of characters, or Unigram, with its
 * normalizer, its splits and its added tokens), from a SentencePiece model (BPE or unigram), from
 * ranks (tiktoken), or from a vocabulary and merges. What would change
 * ids and isn't known is refused by name. Safe to use from several threads at once, each with its
 * own struct tokenizer_cache or none.
 */
#ifndef TOKENIZER_TOKENIZER_H
#define TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

struct tokenizer;

/* A folder with tokenizer.json, tokenizer.model, one *.tiktoken, or vocab.json and merges.txt (the
 * first of these), or such a file itself. ERR_DATA names file and an unsupported construct. */
int tokenizer_open(struct tokenizer **tokenizer, const char *path, struct err *err);
void tokenizer_close(struct tokenizer *tokenizer);

/* Whether path, a folder, has files that tokenizer_open would read. */
bool tokenizer_is_in(const char *path);

/*
 * The name by which tokenizer_open would find the file in a folder: "tokenizer.json",
 * "tokenizer.model", or its own where that says what it is (*.tiktoken, vocab.json, ...).
 * *other is the second file of a pair ("merges.txt"), else NULL. For a tokenizer that is named by
 * its file, when it is to be put into a folder.
 */
const char *tokenizer_file_name(const char *path, const char **other);

/*
 * Which tokenizer it is, as text: a version, a hash of what decides ids (vocabulary, merges or
 * scores, normalizer, splits), and one of the added tokens. The same tokenizer has the same text
 * wherever its files lie and however its JSON is laid out; what is put around texts, the end of
 * text and the chat template are no part of it. A SentencePiece model and the tokenizer.json made
 * of it differ.
 */
#define TOKENIZER_HASH_BYTES 32
void tokenizer_hash_text(const struct tokenizer *tokenizer, char text[TOKENIZER_HASH_BYTES]);

/* How two such texts compare. */
enum tokenizer_likeness {
    TOKENIZER_SAME,
    TOKENIZER_OTHER_ADDED, /* the same but for added tokens: text without those has the same ids */
    TOKENIZER_OTHER,
    TOKENIZER_UNKNOWN, /* of two versions */
};
enum tokenizer_likeness tokenizer_hash_compare(const char *a, const char *b);

/* Ids of added tokens included: the least vocab_size a model needs. */
int tokenizer_vocab_size(const struct tokenizer *tokenizer);
/* Id of the end-of-text token ("<|endoftext|>", "</s>", ... or as tokenizer_config.json says), or
 * -1. */
int tokenizer_end_of_text(const struct tokenizer *tokenizer);
/* Id of a token by its text, or -1. */
int tokenizer_find(const struct tokenizer *tokenizer, const char *token);

struct token_list {
    int32_t *ids; /* heap */
    int64_t n, capacity;
};
void token_list_release(struct token_list *list);
/* Append one id. Returns 0, or -1 and ERR_DEVICE if there is no memory. */
int token_list_add(struct token_list *list, int32_t id, struct err *err);

/*
 * Append the ids of text. Added tokens in it are recognised as such. Text that is not valid UTF-8
 * is ERR_DATA. On failure out is as it was.
 */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                     struct token_list *out, struct err *err);

/*
 * The same with a cache of words (4 MiB) for one thread and one tokenizer: for much text, several
 * times faster. A NULL cache is allowed, so that create need not be checked.
 */
struct tokenizer_cache;
struct tokenizer_cache *tokenizer_cache_create(void);
void tokenizer_cache_destroy(struct tokenizer_cache *cache);
int tokenizer_encode_cached(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                            const char *text, size_t n_bytes, struct token_list *out,
                            struct err *err);

/*
 * The same of text that goes on behind the ids which out has already: what tokenizers put in front
 * of a text (a space) is not put there. Part by part so gives the ids of the whole text, but for
 * words that a part's edge cuts. cache may be NULL.
 */
int tokenizer_encode_more(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                          const char *text, size_t n_bytes, struct token_list *out,
                          struct err *err);

/*
 * The stretches of a text that its added tokens cut it into, themselves among them, and the ids of
 * each: enough to find the token of a place later, at no cost for the rest of the text.
 */
struct token_section {
    size_t begin, end; /* bytes of the text */
    int64_t first, n;  /* of its ids in the list */
};
struct token_sections {
    struct token_section *items; /* heap */
    int64_t n, capacity;
};
void token_sections_release(struct token_sections *sections);

/* tokenizer_encode_cached, and the sections of text in *sections, whose memory is used again. */
int tokenizer_encode_sections(const struct tokenizer *tokenizer, struct tokenizer_cache *cache,
                              const char *text, size_t n_bytes, struct token_list *out,
                              struct token_sections *sections, struct err *err);

/*
 * Finds tokens by place in a text that tokenizer_encode_sections has encoded to ids (the list from
 * which it was given). All are borrowed. Fast if places are requested in increasing order.
 */
struct token_finder {
    const struct tokenizer *tokenizer;
    const struct token_sections *sections;
    const char *text;
    const int32_t *ids;
    int64_t section;   /* the one that the rest is about, -1: none */
    struct str normal; /* its text as words are made of it */
    bool is_same;      /* which is what stands in the text */
    size_t at;         /* in normal, how far the ids before `id` reach */
    int64_t id;
};
void token_finder_init(struct token_finder *finder, const struct tokenizer *tokenizer,
                       const struct token_sections *sections, const char *text, const int32_t *ids);
void token_finder_release(struct token_finder *finder);

/*
 * The index in ids of the first token that has a part of byte `at` of the text: what char_to_token
 * of HF's tokenizers gives for a character's first byte. Of what the tokenizer leaves out, the next
 * token. The end of the ids where there is none.
 */
int64_t token_finder_find(struct token_finder *finder, size_t at);

/*
 * What the tokenizer puts around a text for a model that was trained so (BOS, EOS): its template,
 * or what tokenizer_config.json says of a .model. tokenizer_encode does not. The ids belong to the
 * tokenizer.
 */
void tokenizer_frame(const struct tokenizer *tokenizer, const int32_t **before, int *n_before,
                     const int32_t **after, int *n_after);

/*
 * Append the bytes of ids, as they stand within a text: part by part gives the same as all at once.
 * They may end within a UTF-8 sequence: see tokenizer_whole_length.
 */
void tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int64_t n,
                      struct str *out);

/* The same for the ids of a whole text: without the space that the tokenizer put at its start. */
void tokenizer_decode_text(const struct tokenizer *tokenizer, const int32_t *ids, int64_t n,
                           struct str *out);

/* The same without special tokens: transformers' decode with skip_special_tokens. */
void tokenizer_decode_plain(const struct tokenizer *tokenizer, const int32_t *ids, int64_t n,
                            struct str *out);

/* How many bytes of text (n_bytes) can be shown now: all but a UTF-8 sequence cut off at the end.
 */
size_t tokenizer_whole_length(const char *text, size_t n_bytes);

#endif
