/*
 * completion.h - what a shell offers when Tab is pressed, from the tables that parse command lines
 *
 * The script for bash is a few tables and one function that reads them: completion_begin, the
 * tables of each command and whatever words others add, completion_end. Pure text.
 */
#ifndef BASE_COMPLETION_H
#define BASE_COMPLETION_H

#include "base/options.h"
#include "base/str.h"

void completion_begin(struct str *out);

/* The options of one command, "lmtrain NAME" or "lmtrain NAME SUBCOMMAND". */
void completion_options(const struct options *options, struct str *out);

/* A key that --set takes, and the words (split by blanks; "" if any text) that its value can be. */
void completion_key(const char *key, const char *words, struct str *out);

void completion_end(struct str *out);

#endif
