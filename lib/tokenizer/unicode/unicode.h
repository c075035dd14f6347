/*
 * unicode.h - general categories, and what canonical composition needs
 *
 * The tables are generated from HF tokenizers itself (scripts/data/unicode-tables.py), so that they
 * are of the Unicode version it uses: a letter too many would change ids.
 */
#ifndef TOKENIZER_UNICODE_UNICODE_H
#define TOKENIZER_UNICODE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNICODE_CODES 0x110000u

/* In the order of the table. */
enum unicode_category {
    UNICODE_CN,
    UNICODE_LU,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_MN,
    UNICODE_MC,
    UNICODE_ME,
    UNICODE_ND,
    UNICODE_NL,
    UNICODE_NO,
    UNICODE_PC,
    UNICODE_PD,
    UNICODE_PS,
    UNICODE_PE,
    UNICODE_PI,
    UNICODE_PF,
    UNICODE_PO,
    UNICODE_SM,
    UNICODE_SC,
    UNICODE_SK,
    UNICODE_SO,
    UNICODE_ZS,
    UNICODE_ZL,
    UNICODE_ZP,
    UNICODE_CC,
    UNICODE_CF,
    UNICODE_CO,
    UNICODE_CS,
    UNICODE_N_CATEGORIES
};

/* Runs of equal value: first code point << 8 | value, in order; the first begins at 0. */
extern const int unicode_n_category_runs, unicode_n_class_runs;
extern const uint32_t unicode_category_runs[];
extern const uint32_t unicode_class_runs[]; /* canonical combining classes */

/* What a code point does in a grapheme cluster; others just begin one. (Hangul is left out: it
 * takes three bytes a letter, and only clusters of fewer than six matter to anyone.) */
enum unicode_cluster { CLUSTER_OTHER, CLUSTER_ATTACHES, CLUSTER_CONTROLS, CLUSTER_PREPENDS };
extern const int unicode_n_cluster_runs;
extern const uint32_t unicode_cluster_runs[];

/* A canonical decomposition by one step, in order of code. */
struct unicode_pair {
    uint32_t code, first, second; /* second is 0 if code stands for one code point */
    uint32_t composes;            /* the two become code again */
};
extern const int unicode_n_pairs;
extern const struct unicode_pair unicode_pairs[];
/* Places in unicode_pairs of those that compose, in order of first and second. */
extern const int unicode_n_composed;
extern const uint16_t unicode_composed[];

/* A bit a code point: it is no mark, composition keeps it, and nothing before it changes it. */
#define UNICODE_N_BLOCKS 4352 /* of 256 code points */
extern const uint8_t unicode_inert_index[UNICODE_N_BLOCKS];
extern const uint8_t unicode_inert_blocks[][32];

static inline bool unicode_is_inert(uint32_t code)
{
    const uint8_t *block = unicode_inert_blocks[unicode_inert_index[code >> 8]];

    return block[(code & 255) >> 3] >> (code & 7) & 1;
}

/* The value at code in a table of runs. */
static inline uint32_t unicode_run_value(const uint32_t *runs, int n, uint32_t code)
{
    int low = 0, high = n;

    while (high - low > 1) {
        int middle = low + (high - low) / 2;

        if (runs[middle] >> 8 <= code)
            low = middle;
        else
            high = middle;
    }
    return runs[low] & 255;
}

/* White space as Rust's char::is_whitespace and \s have it. */
static inline bool unicode_is_space(uint32_t code)
{
    return code == ' ' || (code >= 9 && code <= 13) || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* The code point at text, which must be valid UTF-8, and its length in bytes. */
static inline uint32_t unicode_decode(const unsigned char *text, size_t *n_bytes)
{
    uint32_t lead = text[0];

    if (lead < 0x80) {
        *n_bytes = 1;
        return lead;
    }
    if (lead < 0xe0) {
        *n_bytes = 2;
        return (lead & 0x1f) << 6 | (text[1] & 0x3fu);
    }
    if (lead < 0xf0) {
        *n_bytes = 3;
        return (lead & 0xf) << 12 | (text[1] & 0x3fu) << 6 | (text[2] & 0x3fu);
    }
    *n_bytes = 4;
    return (lead & 7) << 18 | (text[1] & 0x3fu) << 12 | (text[2] & 0x3fu) << 6 | (text[3] & 0x3fu);
}

/* Put code as UTF-8; how many bytes that took. */
static inline size_t unicode_encode(char *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

#endif
