/*
 * pattern_impl.h - the program between a pattern's text and its states
 *
 * A program for a backtracking machine: its threads, best first, are what a state stands for.
 */
#ifndef TOKENIZER_PATTERN_IMPL_H
#define TOKENIZER_PATTERN_IMPL_H

#include <stdbool.h>

#include "tokenizer/pattern.h"

enum { PATTERN_INSTRUCTIONS_MAX = 1024, PATTERN_SETS_MAX = 64, PATTERN_RANGES_MAX = 96 };

enum pattern_op {
    PATTERN_SET,   /* a code point of the set */
    PATTERN_SPLIT, /* go on at x, or else at y */
    PATTERN_JUMP,  /* go on at x */
    PATTERN_LOOK,  /* the next code point is of the set, or the text ends and at_end is set */
    PATTERN_MATCH,
};

struct pattern_instruction {
    enum pattern_op op;
    int set, x, y;
    bool at_end;
};

struct pattern_set {
    uint32_t categories; /* a bit each */
    int n_ranges;
    uint32_t ranges[PATTERN_RANGES_MAX][2]; /* first and last */
    bool negated;
};

struct pattern_program {
    struct pattern_instruction items[PATTERN_INSTRUCTIONS_MAX];
    int n;
    struct pattern_set sets[PATTERN_SETS_MAX];
    int n_sets;
};

int pattern_parse(struct pattern_program *program, const char *text, struct err *err);

#endif
