/*
 * unicode.h - what the GPT-2 split asks of a code point
 *
 * A two-level table, two bits a code point, behind unicode_class. It is generated from HF
 * tokenizers itself (scripts/data/unicode-tables.py), so that the classes are of the Unicode
 * version it uses.
 */
#ifndef TOKENIZER_UNICODE_H
#define TOKENIZER_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum unicode_class { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };

#define UNICODE_N_BLOCKS 804 /* of 256 code points; all behind them are UNICODE_OTHER */

extern const uint8_t unicode_block_index[UNICODE_N_BLOCKS];
extern const uint8_t unicode_blocks[][64];

/* \p{L}, \p{N}, \s or none of them. */
static inline enum unicode_class unicode_class(uint32_t code)
{
    if (code >= UNICODE_N_BLOCKS * 256)
        return UNICODE_OTHER;
    uint8_t four = unicode_blocks[unicode_block_index[code >> 8]][(code & 255) >> 2];

    return (enum unicode_class)(four >> (code & 3) * 2 & 3);
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

#endif
