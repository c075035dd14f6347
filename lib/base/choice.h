/*
 * choice.h - the names of an enum's values, once
 *
 * The module that owns an enum has the table of its names; the table of a job's fields, options,
 * printers and parsers all use it, so that a value has one name wherever it is written or read.
 */
#ifndef BASE_CHOICE_H
#define BASE_CHOICE_H

#include "base/arena.h"

/* A row; a table ends with word NULL. */
struct choice {
    const char *word;
    int value;
};

/* The word of a value that the table has, the last one where there are several. */
const char *choice_word(const struct choice *choices, int value);

/* The row of a word, or NULL. */
const struct choice *choice_find(const struct choice *choices, const char *word);

/* All words in the arena, ended by NULL: for option_choice. */
const char *const *choice_words(const struct choice *choices, struct arena *arena);

#endif
