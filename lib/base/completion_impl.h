/*
 * completion_impl.h - what the shells' scripts have in common (internal to base/completion*.c)
 *
 * What a value can be follows from its name in the help: DIR, FILE, PREFIX (of .bin and .idx),
 * KEY, KEY=VALUE, JOB.yaml, or words with | between them; other names (N, TEXT) get no offer.
 */
#ifndef BASE_COMPLETION_IMPL_H
#define BASE_COMPLETION_IMPL_H

#include "base/completion.h"

enum completion_kind {
    COMPLETION_FOLDER,
    COMPLETION_FILE,
    COMPLETION_PREFIX,
    COMPLETION_KEY,
    COMPLETION_SET,
    COMPLETION_YAML,
    COMPLETION_N_KINDS,
};
extern const char *const completion_kind_names[COMPLETION_N_KINDS]; /* "folder", "file", ... */

enum { COMPLETION_WORDS_MAX = 64 };

struct completion_value {
    bool kinds[COMPLETION_N_KINDS];
    int n_words;
    struct completion_word {
        const char *text; /* not ended by 0 */
        int length;
    } words[COMPLETION_WORDS_MAX];
};

struct completion_value completion_value_of_option(const struct option *option);
/* None where the command takes no arguments. */
struct completion_value completion_value_of_arguments(const struct options *options);

struct completion_command {
    const char *name;   /* "pretrain", "data tokenize" */
    int family_length;  /* of its first word */
    const char *member; /* "tokenize", or NULL */
};
struct completion_command completion_command_of(const struct options *options);

extern const struct completion_shell completion_bash, completion_zsh, completion_fish;

#endif
