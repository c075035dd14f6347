/*
 * options.c - command lines by table
 */
#include "base/options.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define HELP_COLUMN 28
#define HELP_WIDTH 100

/* ---- rows of a table ---- */

struct option option_flag(const char *name, int *value, const char *help)
{
    return (struct option){ .name = name, .kind = OPTION_FLAG, .value = value, .help = help };
}

struct option option_int(const char *name, int *value, const char *argument, double min, double max,
                         const char *help)
{
    return (struct option){ .name = name,
                            .kind = OPTION_INT,
                            .value = value,
                            .argument = argument,
                            .help = help,
                            .min = min,
                            .max = max };
}

struct option option_i64(const char *name, int64_t *value, const char *argument, double min,
                         double max, const char *help)
{
    struct option o = option_int(name, NULL, argument, min, max, help);

    o.kind = OPTION_I64;
    o.value = value;
    return o;
}

struct option option_float(const char *name, double *value, const char *argument, double min,
                           double max, const char *help)
{
    struct option o = option_int(name, NULL, argument, min, max, help);

    o.kind = OPTION_FLOAT;
    o.value = value;
    return o;
}

struct option option_text(const char *name, const char **value, const char *argument,
                          const char *help)
{
    return (struct option){
        .name = name, .kind = OPTION_TEXT, .value = value, .argument = argument, .help = help
    };
}

struct option option_choice(const char *name, const char **value, const char *argument,
                            const char *const *choices, const char *help)
{
    struct option o = option_text(name, value, argument, help);

    o.kind = OPTION_CHOICE;
    o.choices = choices;
    return o;
}

struct option option_list(const char *name, struct option_list *value, const char *argument,
                          const char *help)
{
    return (struct option){
        .name = name, .kind = OPTION_LIST, .value = value, .argument = argument, .help = help
    };
}

/* ---- parsing ---- */

struct parser {
    const struct options *options;
    struct arena *arena;
    struct err *err;
};

static int fail(const struct parser *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int fail(const struct parser *p, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set(p->err, ERR_CONFIG, "%s: %s", p->options->command, text);
}

static const struct option *find_long(const struct parser *p, const char *name, size_t length)
{
    for (int i = 0; i < p->options->n_options; i++) {
        const struct option *o = &p->options->table[i];

        if (strlen(o->name) == length && !memcmp(o->name, name, length))
            return o;
    }
    return NULL;
}

static int unknown(const struct parser *p, const char *given)
{
    const char *name = given + strspn(given, "-");
    int n = p->options->n_options;
    const char **names = arena_array(p->arena, const char *, n + 1);
    char *plain = arena_strndup(p->arena, name, strcspn(name, "="));

    for (int i = 0; i < n; i++)
        names[i] = p->options->table[i].name;
    names[n] = "help";
    const char *near = str_nearest(plain, names, n + 1);
    if (near)
        return fail(p, "unknown option %.64s (hint: --%s)", given, near);
    return fail(p, "unknown option %.64s (hint: -h lists all)", given);
}

static int bad_value(const struct parser *p, const struct option *o, const char *text)
{
    const char *what = o->kind == OPTION_FLOAT ? "a number" : "a whole number";

    if (o->min == 0 && o->max == 0)
        return fail(p, "--%s is %.64s, not %s", o->name, text, what);
    return fail(p, "--%s is %.64s, not %s from %.15g to %.15g", o->name, text, what, o->min,
                o->max);
}

static int set_number(const struct parser *p, const struct option *o, const char *text)
{
    int64_t whole = 0;
    double value = 0;

    if (o->kind == OPTION_FLOAT ? str_to_f64(text, &value) : str_to_i64(text, &whole))
        return bad_value(p, o, text);
    if (o->kind != OPTION_FLOAT)
        value = (double)whole;
    if ((o->min != 0 || o->max != 0) && (value < o->min || value > o->max))
        return bad_value(p, o, text);
    if (o->kind == OPTION_FLOAT) {
        *(double *)o->value = value;
    } else if (o->kind == OPTION_I64) {
        *(int64_t *)o->value = whole;
    } else {
        if (whole < INT_MIN || whole > INT_MAX)
            return bad_value(p, o, text);
        *(int *)o->value = (int)whole;
    }
    return 0;
}

static int set_choice(const struct parser *p, const struct option *o, const char *text)
{
    struct str all = { 0 };

    for (int i = 0; o->choices[i]; i++) {
        if (!strcmp(o->choices[i], text)) {
            *(const char **)o->value = o->choices[i];
            str_release(&all);
            return 0;
        }
        str_printf(&all, i ? ", %s" : "%s", o->choices[i]);
    }
    fail(p, "--%s is %.64s, not one of %s", o->name, text, str_text(&all));
    str_release(&all);
    return -1;
}

static int set_value(const struct parser *p, const struct option *o, const char *text)
{
    struct option_list *list = o->value;

    switch (o->kind) {
    case OPTION_FLAG:
        *(int *)o->value = 1;
        return 0;
    case OPTION_INT:
    case OPTION_I64:
    case OPTION_FLOAT:
        return set_number(p, o, text);
    case OPTION_TEXT:
        *(const char **)o->value = text;
        return 0;
    case OPTION_CHOICE:
        return set_choice(p, o, text);
    case OPTION_LIST:
        list->items =
            arena_grow(p->arena, list->items, sizeof *list->items, &list->capacity, list->n + 1);
        list->items[list->n++] = text;
        return 0;
    }
    CHECK(!"an option kind");
    return -1;
}

/* One option at argv[*at]; *at moves to its last word. */
static int take_option(const struct parser *p, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    int is_long = word[1] == '-';
    const char *equals = is_long ? strchr(word, '=') : NULL;
    size_t length = equals ? (size_t)(equals - word) - 2 : strlen(word) - 2;
    const struct option *o = is_long ? find_long(p, word + 2, length) : NULL;

    if (!o)
        return unknown(p, word);
    if (o->kind == OPTION_FLAG) {
        if (equals)
            return fail(p, "--%s takes no value", o->name);
        return set_value(p, o, NULL);
    }
    if (equals)
        return set_value(p, o, equals + 1);
    if (*at + 1 >= argc)
        return fail(p, "--%s needs a value (hint: --%s %s)", o->name, o->name, o->argument);
    return set_value(p, o, argv[++*at]);
}

static int is_help(const char *word)
{
    return !strcmp(word, "-h") || !strcmp(word, "--help");
}

/* "-" and "-5" are arguments. */
static int is_option(const char *word)
{
    return word[0] == '-' && word[1] && !(word[1] >= '0' && word[1] <= '9');
}

int options_parse(const struct options *options, int argc, char **argv,
                  struct option_arguments *arguments, struct arena *arena, struct err *err)
{
    struct parser p = { options, arena, err };
    int ended = 0;

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (is_help(argv[i]))
            return OPTIONS_HELP;
    *arguments = (struct option_arguments){ .items = arena_array(arena, const char *, argc + 1) };
    for (int i = 1; i < argc; i++) {
        if (!ended && !strcmp(argv[i], "--"))
            ended = 1;
        else if (ended || !is_option(argv[i]))
            arguments->items[arguments->n++] = argv[i];
        else if (take_option(&p, argc, argv, &i))
            return -1;
    }
    if (arguments->n < options->min_arguments)
        return fail(&p, "%s (usage: %s %s)",
                    arguments->n ? "too few arguments" : "an argument is missing", options->command,
                    options->arguments);
    if (arguments->n > options->max_arguments)
        return fail(&p, "%.128s is one argument too many (usage: %s %s)",
                    arguments->items[options->max_arguments], options->command,
                    options->arguments ? options->arguments : "");
    return 0;
}

/* Help text from the column on, broken at spaces. */
static void add_wrapped(struct str *out, const char *text, int column)
{
    int at = column;

    while (*text) {
        int length = (int)strcspn(text, " ");

        if (at > column && at + 1 + length > HELP_WIDTH) {
            str_printf(out, "\n%*s", column, "");
            at = column;
        } else if (at > column) {
            str_add_char(out, ' ');
            at++;
        }
        str_add_bytes(out, text, (size_t)length);
        at += length;
        text += length;
        text += strspn(text, " ");
    }
    str_add_char(out, '\n');
}

static void add_option(struct str *out, const char *dashes, const char *name, const char *argument,
                       const char *help)
{
    size_t begin = out->length;

    str_printf(out, "  %s%s", dashes, name);
    if (argument)
        str_printf(out, " %s", argument);
    int width = (int)(out->length - begin);
    if (width + 2 > HELP_COLUMN) {
        str_add_char(out, '\n');
        width = 0;
    }
    str_printf(out, "%*s", HELP_COLUMN - width, "");
    add_wrapped(out, help, HELP_COLUMN);
}

void options_help(const struct options *options, struct str *out)
{
    str_printf(out, "usage: %s%s%s%s\n\n", options->command, options->arguments ? " " : "",
               options->arguments ? options->arguments : "",
               options->n_options ? " [OPTIONS]" : "");
    str_printf(out, "%s.\n\noptions:\n", options->summary);
    for (int i = 0; i < options->n_options; i++) {
        const struct option *o = &options->table[i];

        add_option(out, "--", o->name, o->argument, o->help);
    }
    add_option(out, "-h, --", "help", NULL, "show this");
    if (options->details)
        str_printf(out, "\n%s", options->details);
}
