/*
 * charsmap.h - SentencePiece's normalizer
 *
 * A table of replacements (a Darts double array and the texts that its values point at), the
 * longest match first; then spaces are stripped and joined, and one is put in front, as the model
 * says. User-defined pieces are passed on as they are. All is as sentencepiece's normalizer.cc does
 * it, for a model was trained on just that; but spaces are left for the encoder to mark.
 */
#ifndef TOKENIZER_UNIGRAM_CHARSMAP_H
#define TOKENIZER_UNIGRAM_CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"
#include "tokenizer/added.h"

struct charsmap {
    const uint32_t *units; /* NULL: nothing is replaced */
    size_t n_units;
    const char *texts; /* each ends with 0, the last one too */
    size_t n_texts;
    const struct added_tokens *whole; /* user-defined pieces; may be empty */
    int add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces, dummy_is_suffix;
    uint8_t plain[128]; /* by ASCII: it stays as it is if the next byte is ASCII too, or none */
    bool is_within;     /* the text goes on: nothing is put in front or taken from there */
};

/* Take units and texts from a precompiled_charsmap (copied); all else stays. -1: it is broken, or
 * makes what is not valid UTF-8. */
int charsmap_read(struct charsmap *map, struct arena *arena, const void *data, size_t n_bytes);

/* Set plain, once all else is. */
void charsmap_index(struct charsmap *map);

/* Append what text (valid UTF-8) becomes by the table alone, as HF's Precompiled does it: by
 * grapheme clusters, of which a short one becomes what its shortest prefix does. Stops, and
 * returns -1, once out is longer than n_max by more than a replacement, of which the table has
 * at most n_texts bytes. */
int charsmap_apply_clusters(const struct charsmap *map, const char *text, size_t n_bytes,
                            size_t n_max, struct str *out);

/* Append what text (valid UTF-8) becomes. With escape_whitespaces a space of it stands for
 * BPE_SPACE. n_max as above. */
int charsmap_apply(const struct charsmap *map, const char *text, size_t n_bytes, size_t n_max,
                   struct str *out);

#endif
