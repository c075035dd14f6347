/*
 * added.h - the tokens that are looked for in text before it is split
 *
 * As HF tokenizers does it: of the tokens that match at the leftmost place, the longest. Those that
 * are marked normalized are looked for in a second pass, in what the first one left.
 */
#ifndef TOKENIZER_ADDED_H
#define TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
    const char *text; /* valid UTF-8, not empty; as it is looked for */
    size_t n_bytes;
    const char *shown; /* as it was given, before normalizing */
    size_t n_shown;
    int32_t id;
    int normalized;
    bool takes_left, takes_right; /* the white space beside it goes with it */
    int single_word;              /* not within a word */
    bool is_special;              /* a control token for the model, not text */
};

/* The tokens of one pass, in order of their bytes. */
struct added_tokens {
    const struct added_token *items;
    int n;
    int start[257]; /* items that begin with byte b: start[b] .. start[b + 1] - 1 */
};

/* Sort items (they stay the caller's) and index them. */
void added_init(struct added_tokens *added, struct added_token *items, int n);

/* The longest that text begins with, or NULL. */
const struct added_token *added_match(const struct added_tokens *added, const char *text,
                                      size_t n_bytes);

/* The first match in text, or NULL; *at is where it is. */
const struct added_token *added_find(const struct added_tokens *added, const char *text,
                                     size_t n_bytes, size_t *at);

#endif
