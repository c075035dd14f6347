/*
 * options.h - the options of one command, as a table
 *
 * The table is all there is to know: it parses the command line and writes the help, and a test
 * holds the man page against that help. Options are --name VALUE or --name=VALUE, of short ones
 * there is -h alone; "--" ends options; what is no option is an argument, wherever it stands.
 * Nothing is printed here.
 */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/choice.h"
#include "base/err.h"
#include "base/str.h"

enum option_kind {
    OPTION_FLAG,   /* bool: becomes true */
    OPTION_INT,    /* int */
    OPTION_I64,    /* int64_t */
    OPTION_FLOAT,  /* double */
    OPTION_TEXT,   /* const char * */
    OPTION_CHOICE, /* const char *: one of choices */
    OPTION_LIST,   /* struct option_list: may be given again */
};

struct option_list {
    const char **items;
    int n, capacity;
};

struct option {
    const char *name; /* without the dashes */
    enum option_kind kind;
    void *value;                /* set when given; holds its default before */
    const char *argument;       /* what help calls the value: "N", "DIR"; NULL for a flag */
    const char *help;           /* without a full stop */
    double min, max;            /* of numbers; both 0: any */
    const char *const *choices; /* ended by NULL; or */
    const struct choice *named; /* a table, of which the word is the value */
    /* Of a deprecated option: the option of the same table that it is read as, the version since
     * which it has one, and the version that will remove it. */
    const char *successor, *since, *removed_in;
};

/* Rows of a table; what is not named is 0. A flag is set to true, a number is in min .. max. */
struct option option_flag(const char *name, bool *value, const char *help);
struct option option_int(const char *name, int *value, const char *argument, double min, double max,
                         const char *help);
struct option option_i64(const char *name, int64_t *value, const char *argument, double min,
                         double max, const char *help);
struct option option_float(const char *name, double *value, const char *argument, double min,
                           double max, const char *help);
struct option option_text(const char *name, const char **value, const char *argument,
                          const char *help);
struct option option_choice(const char *name, const char **value, const char *argument,
                            const char *const *choices, const char *help);
struct option option_named(const char *name, const char **value, const char *argument,
                           const struct choice *choices, const char *help);
struct option option_list(const char *name, struct option_list *value, const char *argument,
                          const char *help);

/* An old name of the option `successor` (above it in the table). Help says so, completion omits
 * it. */
struct option option_deprecated(const char *name, const struct option *successor, const char *since,
                                const char *removed_in);

struct options {
    const char *command;   /* "lmtrain config" */
    const char *arguments; /* what help calls them: "JOB.yaml", "IN..." */
    const char *summary;   /* a sentence without a full stop */
    const char *details;   /* more for the help, lines that end in \n, or NULL */
    const struct option *table;
    int n_options;
    int min_arguments, max_arguments;

    /*
     * What else an option may mean that the table lacks, or NULL: the hint for --NAME VALUE, in
     * arena, or NULL if it knows none. VALUE is NULL where none follows. exact: only names that it
     * knows as they stand, which win over an option of nearly that name; else the nearest.
     */
    const char *(*suggest)(const char *name, const char *value, bool exact, struct arena *arena);
};

/* What options_parse found that is no option. */
struct option_arguments {
    const char **items;
    int n;
    const char **warnings; /* "--world is deprecated since 0.1, ...", for the log */
    int n_warnings;
};

#define OPTIONS_HELP 1

/*
 * Read argv[1] to argv[argc - 1] into the values of the table. Texts point into argv. Returns 0; or
 * OPTIONS_HELP if -h or --help stands among them (the values are then not to be used); or -1 and
 * ERR_CONFIG: an unknown option (with the nearest), a value missing, no number or out of range, a
 * deprecated option beside its successor, too few or too many arguments.
 */
int options_parse(const struct options *options, int argc, char **argv,
                  struct option_arguments *arguments, struct arena *arena, struct err *err);

#define OPTIONS_HELP_WIDTH 100 /* where the reader is no terminal */

/*
 * Usage, summary, options and details, as -h shows them, in lines of at most width columns, from 40
 * on (a longer word has a line of its own). Lines of details that begin with a blank stay lines.
 */
void options_help(const struct options *options, int width, struct str *out);

/* Text broken at blanks: the first line begins at column `at`, the others are indented by
 * indent. */
void options_wrap(struct str *out, const char *text, int at, int indent, int width);

#endif
