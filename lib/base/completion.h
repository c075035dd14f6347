/*
 * completion.h - what a shell offers when Tab is pressed, from the tables that parse command lines
 *
 * One row a shell. A script is begin, options of each command, key for each key that --set takes,
 * and end. Pure text.
 */
#ifndef BASE_COMPLETION_H
#define BASE_COMPLETION_H

#include "base/options.h"
#include "base/str.h"

struct completion_shell {
    const char *name;
    void (*begin)(struct str *out);
    /* Of one command, "lmtrain NAME" or "lmtrain NAME MEMBER". */
    void (*options)(const struct options *options, struct str *out);
    /* words: what the key's value can be, split by blanks; "" if any text. */
    void (*key)(const char *key, const char *words, struct str *out);
    void (*end)(struct str *out);
};

/* bash, zsh or fish; NULL for another name. */
const struct completion_shell *completion_shell_find(const char *name);

#endif
