/*
 * tokenizer_impl.h - what reading a tokenizer and using it share
 *
 * Text goes through: added tokens of the first pass, normalizing, added tokens of the second pass,
 * a mark instead of the spaces, the splits one within the other, then the model, word by word.
 */
#ifndef TOKENIZER_TOKENIZER_IMPL_H
#define TOKENIZER_TOKENIZER_IMPL_H

#include <stdbool.h>

#include "base/arena.h"
#include "tokenizer/added.h"
#include "tokenizer/bpe/bpe.h"
#include "tokenizer/pattern.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram/charsmap.h"
#include "tokenizer/unigram/unigram.h"

enum { TOKENIZER_STEPS_MAX = 8, TOKENIZER_FRAME_MAX = 16 };

enum normal_kind {
    NORMAL_NFC,
    NORMAL_PREPEND,  /* a, unless the text is empty */
    NORMAL_REPLACE,  /* a by b */
    NORMAL_CHARSMAP, /* SentencePiece's own; the only step then */
    NORMAL_CLUSTERS, /* its table only, as HF's Precompiled */
    NORMAL_STRIP,    /* white space at the left (n_a) and at the right (n_b) */
    NORMAL_PATTERN,  /* what pattern matches by b */
};

struct normal_step {
    enum normal_kind kind;
    const char *a, *b;
    size_t n_a, n_b;
    const struct pattern *pattern;
};

/* What becomes of the matches of a pattern and of the text between them, as HF names it. */
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

struct split_step {
    struct pattern pattern;
    enum split_behavior behavior;
    int inverted; /* matches and the rest change places */
};

enum prepend { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

/* What one call may do for its text: a tokenizer is data from outside, and its replacements and
 * patterns could make gigabytes of little, or read a text again from each of its characters. */
struct tokenizer_budget {
    size_t n_text;    /* bytes of the text */
    size_t n_written; /* bytes that the normalizing steps have written */
    size_t n_vain;    /* bytes that patterns have read without matching them */
};

/* NFKC writes 11 bytes for one at most, Llama's two steps 6. */
static inline size_t budget_written_max(const struct tokenizer_budget *budget)
{
    return 64 * budget->n_text + ((size_t)1 << 20);
}

static inline size_t budget_vain_max(const struct tokenizer_budget *budget)
{
    return 64 * budget->n_text + ((size_t)1 << 24);
}

struct tokenizer {
    struct arena arena; /* holds all that follows */
    const char *name;   /* the file, for errors */
    struct bpe bpe;     /* of a unigram model: its vocabulary only */
    bool is_unigram;
    struct unigram unigram;
    struct charsmap charsmap;

    struct added_token *added; /* all, of both passes */
    int n_added;
    struct added_tokens passes[2]; /* the plain ones, then the normalized */
    const struct added_token *
        *added_by_id; /* [vocab_size], NULL where the id is no added token's */
    struct normal_step normal[TOKENIZER_STEPS_MAX];
    int n_normal;
    int add_prefix_space;
    bool marks_spaces; /* " " becomes BPE_SPACE before the splits, and one is put in front: */
    enum prepend prepend;
    struct split_step splits[TOKENIZER_STEPS_MAX];
    int n_splits;
    /* if not 0: what this many splits leave gets a mark in front, unless it has one */
    int mark_step;
    /* Of characters. A space in text that is split stands for BPE_SPACE, which may be in it too:
     * words are spelled out only to be encoded. There are no splits then. */
    bool keeps_spaces;
    /* What no token has side by side no merge joins, so that words may end there: a bit for
     * every two bytes, set within characters; and by the last byte of a character, whether a
     * token has it before BPE_SPACE, whose first byte begins many other characters. */
    uint8_t joins[256][32], joins_space[256];
    size_t token_bytes_max;

    int32_t before[TOKENIZER_FRAME_MAX], after[TOKENIZER_FRAME_MAX]; /* around a text */
    int n_before, n_after;
    bool takes_frame;  /* from tokenizer_config.json's add_bos_token and add_eos_token */
    bool strips_space; /* a space at the start of a text was put there, and goes when decoded */
    int vocab_size;
    int end_of_text;
    uint64_t hash, hash_added; /* of what decides ids: tokenizer_hash.c */
};

#define TOKENIZER_JSON_BYTES_MAX ((size_t)64 << 20)
#define TOKENIZER_IDS_MAX (1 << 22)

/* Make a tokenizer of the text of a tokenizer.json (terminated); name is for errors. ERR_DATA. */
int tokenizer_parse(struct tokenizer **tokenizer, const char *name, const char *json,
                    size_t n_bytes, struct err *err);

/* The parts of tokenizer.json that say how text is normalized and split. */
struct cJSON;
int tokenizer_parse_normalizer(struct tokenizer *tokenizer, const char *name,
                               const struct cJSON *normalizer, struct err *err);
int tokenizer_parse_splits(struct tokenizer *tokenizer, const char *name,
                           const struct cJSON *pre_tokenizer, bool *is_byte_level, struct err *err);

/* Take the end of text, and what is put around a text, from a tokenizer_config.json. ERR_DATA. */
int tokenizer_read_config(struct tokenizer *tokenizer, const char *name, const struct cJSON *root,
                          struct err *err);
/* The same from its text. */
int tokenizer_parse_config(struct tokenizer *tokenizer, const char *name, const char *json,
                           size_t n_bytes, struct err *err);

/* Make a tokenizer of a SentencePiece model. ERR_DATA. */
int tokenizer_parse_spm(struct tokenizer **tokenizer, const char *name, const char *data,
                        size_t n_bytes, struct err *err);

/* Whether a file begins as one of ranks does. */
bool tokenizer_is_tiktoken(const char *data, size_t n_bytes);
/* Make a tokenizer of a file of ranks (tiktoken); config is tokenizer_config.json, or NULL.
 * ERR_DATA. */
int tokenizer_parse_tiktoken(struct tokenizer **tokenizer, const char *name, const char *data,
                             size_t n_bytes, const struct cJSON *config, struct err *err);

/* Take the hashes of the parts of a tokenizer.json that decide ids; and of a file of another kind,
 * whose parts the JSON has but for the vocabulary (NULL: it has all). */
void tokenizer_hash_json(struct tokenizer *tokenizer, const struct cJSON *root);
void tokenizer_hash_file(struct tokenizer *tokenizer, const char *data, size_t n_bytes,
                         const struct cJSON *root);

/* The files beside a vocabulary; each may be NULL. */
struct tokenizer_side {
    const struct cJSON *config;      /* tokenizer_config.json */
    const struct cJSON *special_map; /* special_tokens_map.json */
    const struct cJSON *added;       /* added_tokens.json */
};

/* Make a tokenizer of vocab.json and merges.txt (both terminated). ERR_DATA. */
int tokenizer_parse_merges(struct tokenizer **tokenizer, const char *name, const char *vocab_json,
                           size_t n_vocab, const char *merges, size_t n_merges,
                           const struct tokenizer_side *side, struct err *err);

/* Set the end of text by the names that it usually has, if it is not known. */
void tokenizer_guess_end_of_text(struct tokenizer *tokenizer);

/* Once all tokens are in, of characters: joins, joins_space and token_bytes_max. */
void tokenizer_index_words(struct tokenizer *tokenizer);

/* Append what text becomes by the normalizing steps; is_within: but for what they put in front.
 * Returns 0, or -1 and ERR_DATA where that exceeds the budget, of which it takes what it needs. */
int tokenizer_normalize(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                        bool is_within, struct tokenizer_budget *budget, struct str *out,
                        struct err *err);

/* ERR_DATA: the pattern has read too much in vain. Returns -1. */
int tokenizer_refuse_pattern(const struct tokenizer *tokenizer, const struct pattern *pattern,
                             const struct tokenizer_budget *budget, struct err *err);

/* Append a section; sections may be NULL. Returns 0, or -1 and ERR_DEVICE. */
int token_sections_add(struct token_sections *sections, size_t begin, size_t end, int64_t first,
                       int64_t n, struct err *err);

/* Append n ids. Returns 0, or -1 and ERR_DEVICE. */
int token_list_append(struct token_list *list, const int32_t *ids, size_t n, struct err *err);

/* Where text (n_bytes) stops being UTF-8, or n_bytes. */
size_t tokenizer_utf8_end(const char *text, size_t n_bytes);

#endif
