/*
 * pattern.h - the regular expressions that cut text into words, in linear time
 *
 * tokenizer.json brings a pattern of its own ("'s|'t| ?\p{L}+|\s+(?!\S)|..."), whose matches have
 * to be those of HF's engine (Oniguruma, leftmost, the first alternative that fits). Each pattern
 * becomes a table of states: from the state and the class of the next code point to the next state
 * and to whether a match ends before it. So a code point costs two look-ups, whatever the pattern.
 * PCRE2 would read more patterns, but its Unicode version is another one, hence ids too.
 *
 * What is read: literals, . \s \S \d \D \p{..} of general categories, [..] (with ^, ranges and
 * nested unions), (..), (?:..), (?i:..), |, the greedy ? * + and {m,n} behind one character, $, and
 * (?=c), (?!c) for one character or class c. Anything else is refused and named.
 */
#ifndef TOKENIZER_PATTERN_H
#define TOKENIZER_PATTERN_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "tokenizer/unicode/unicode.h"

#define PATTERN_MATCHES 0x80000000u /* in next: a match ends before this code point */

struct pattern {
    const char *text; /* what it was compiled from */
    /* [n_states][n_classes], of where the next state's row begins; state 0 has no way out, state 1
     * is the start. */
    const uint32_t *next;
    int n_states, n_classes; /* the last class is the end of the text */
    uint8_t starts[256];     /* whether a match may begin with this byte */
    uint8_t ascii[128];      /* classes */
    const uint8_t *index;    /* [UNICODE_N_BLOCKS] */
    const uint8_t (*blocks)[256];
};

/* Compile; tables are in arena. ERR_DATA names what cannot be read. A pattern that matches the
 * empty text is refused. */
int pattern_compile(struct pattern *pattern, const char *text, struct arena *arena,
                    struct err *err);

/* The first place from `at` on where a match may begin, or n_bytes. */
static inline size_t pattern_skip(const struct pattern *pattern, const char *text, size_t n_bytes,
                                  size_t at)
{
    while (at < n_bytes && !pattern->starts[(unsigned char)text[at]])
        at++;
    return at;
}

/*
 * Length of the match at the start of text (valid UTF-8), 0: none. Added to *n_vain: the bytes
 * behind the match that were read to find that it goes no further. A match is linear, but one
 * sought from every place of a text is not if each reads on to the end ((a+)+b where no b is): such
 * a search must keep *n_vain within bounds.
 */
size_t pattern_match(const struct pattern *pattern, const char *text, size_t n_bytes,
                     size_t *n_vain);

#endif
