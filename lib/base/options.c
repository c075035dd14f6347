/*
 * options.c - command lines by table
 */
#include "base/options.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define HELP_COLUMN 28
#define HELP_COLUMN_NARROW 8 /* of less than HELP_NARROW columns: below the option's name */
#define HELP_NARROW 80

/* ---- rows of a table ---- */

struct option option_flag(const char *name, bool *value, const char *help)
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

struct option option_named(const char *name, const char **value, const char *argument,
                           const struct choice *choices, const char *help)
{
    struct option o = option_text(name, value, argument, help);

    o.kind = OPTION_CHOICE;
    o.named = choices;
    return o;
}

struct option option_list(const char *name, struct option_list *value, const char *argument,
                          const char *help)
{
    return (struct option){
        .name = name, .kind = OPTION_LIST, .value = value, .argument = argument, .help = help
    };
}

struct option option_deprecated(const char *name, const struct option *successor, const char *since,
                                const char *removed_in)
{
    struct option o = *successor;

    o.name = name;
    o.successor = successor->name;
    o.since = since;
    o.removed_in = removed_in;
    return o;
}

/* ---- parsing ---- */

struct options_parser {
    const struct options *options;
    struct option_arguments *arguments;
    const struct option **given; /* [n_options]: the row that gave the value of each, or NULL */
    struct arena *arena;
    struct err *err;
};

static int fail(const struct options_parser *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int fail(const struct options_parser *p, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set(p->err, ERR_CONFIG, "%s: %s", p->options->command, text);
}

static const struct option *find_long(const struct options_parser *p, const char *name,
                                      size_t length)
{
    for (int i = 0; i < p->options->n_options; i++) {
        const struct option *o = &p->options->table[i];

        if (strlen(o->name) == length && !memcmp(o->name, name, length))
            return o;
    }
    return NULL;
}

/* The option whose name is nearest: at_most letters away, any if at_most is 0. */
static const char *nearest_option(const struct options_parser *p, const char *name, int at_most)
{
    int n = p->options->n_options;
    const char **names = arena_array(p->arena, const char *, n + 1);

    for (int i = 0; i < n; i++)
        names[i] = p->options->table[i].name;
    names[n] = "help";
    const char *near = str_nearest(name, names, n + 1);
    if (near && at_most && str_distance(name, near) > at_most)
        return NULL;
    /* A slip is not corrected to a deprecated name. */
    for (int i = 0; i < n; i++)
        if (names[i] == near && p->options->table[i].successor)
            return p->options->table[i].successor;
    return near;
}

/* next: the word behind it, or NULL. A slip of one letter, then another name, then what is near. */
static int unknown(const struct options_parser *p, const char *given, const char *next)
{
    char *name = arena_strndup(p->arena, given + strspn(given, "-"),
                               strcspn(given, "=") - strspn(given, "-"));
    const char *equals = strchr(given, '=');
    const char *value = equals ? equals + 1 : next && next[0] != '-' ? next : NULL;
    const char *other = NULL, *near;
    bool is_long = given[1] == '-';

    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    near = nearest_option(p, name, 1);
    if (!near && is_long && p->options->suggest)
        other = p->options->suggest(name, value, 1, p->arena);
    if (!near && !other)
        near = nearest_option(p, name, 0);
    if (!near && !other && is_long && p->options->suggest)
        other = p->options->suggest(name, value, 0, p->arena);
    if (near)
        return fail(p, "unknown option %.64s (hint: --%s)", given, near);
    return fail(p, "unknown option %.64s (hint: %s)", given, other ? other : "-h lists all");
}

static int bad_value(const struct options_parser *p, const struct option *o, const char *text)
{
    const char *what = o->kind == OPTION_FLOAT ? "a number" : "a whole number";

    if (o->min == 0 && o->max == 0)
        return fail(p, "--%s is %.64s, not %s", o->name, text, what);
    return fail(p, "--%s is %.64s, not %s from %.15g to %.15g", o->name, text, what, o->min,
                o->max);
}

static int set_number(const struct options_parser *p, const struct option *o, const char *text)
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

static int set_choice(const struct options_parser *p, const struct option *o, const char *text)
{
    const char *const *words = o->named ? choice_words(o->named, p->arena) : o->choices;
    struct str all = { 0 };

    for (int i = 0; words[i]; i++) {
        if (!strcmp(words[i], text)) {
            *(const char **)o->value = words[i];
            str_release(&all);
            return 0;
        }
        str_printf(&all, i ? ", %s" : "%s", words[i]);
    }
    fail(p, "--%s is %.64s, not one of %s", o->name, text, str_text(&all));
    str_release(&all);
    return -1;
}

static int set_value(const struct options_parser *p, const struct option *o, const char *text)
{
    struct option_list *list = o->value;

    switch (o->kind) {
    case OPTION_FLAG:
        *(bool *)o->value = true;
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

/* A deprecated option is given for its successor: not with it, and with a warning. */
static int note_given(const struct options_parser *p, const struct option *o)
{
    const char *name = o->successor ? o->successor : o->name;
    const struct option *main = find_long(p, name, strlen(name));

    CHECK(main);
    const struct option **given = &p->given[main - p->options->table];
    if (*given && *given != o)
        return fail(p,
                    "--%s and --%s are both given: the former is the deprecated name of the "
                    "latter (hint: leave --%s out)",
                    o->successor ? o->name : (*given)->name, name,
                    o->successor ? o->name : (*given)->name);
    if (o->successor && !*given)
        p->arguments->warnings[p->arguments->n_warnings++] = arena_printf(
            p->arena, "--%s is deprecated since %s, use --%s; it will be removed in %s", o->name,
            o->since, o->successor, o->removed_in);
    *given = o;
    return 0;
}

/* One option at argv[*at]; *at moves to its last word. */
static int take_option(const struct options_parser *p, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    bool is_long = word[1] == '-';
    const char *equals = is_long ? strchr(word, '=') : NULL;
    size_t length = equals ? (size_t)(equals - word) - 2 : strlen(word) - 2;
    const struct option *o = is_long ? find_long(p, word + 2, length) : NULL;

    if (!o)
        return unknown(p, word, *at + 1 < argc ? argv[*at + 1] : NULL);
    if (note_given(p, o) < 0)
        return -1;
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

static bool is_help(const char *word)
{
    return !strcmp(word, "-h") || !strcmp(word, "--help");
}

/* "-" and "-5" are arguments. */
static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] && !(word[1] >= '0' && word[1] <= '9');
}

static int too_many(const struct options_parser *p, const char *argument)
{
    const struct options *o = p->options;
    const char *equals = strchr(argument, '=');
    char *name = arena_strndup(p->arena, argument, equals ? (size_t)(equals - argument) : 0);
    const char *other = equals && o->suggest ? o->suggest(name, equals + 1, 1, p->arena) : NULL;

    if (other)
        return fail(p, "unexpected argument %.128s (hint: %s)", argument, other);
    return fail(p, "unexpected argument %.128s (usage: %s%s%s)", argument, o->command,
                o->arguments ? " " : "", o->arguments ? o->arguments : "");
}

int options_parse(const struct options *options, int argc, char **argv,
                  struct option_arguments *arguments, struct arena *arena, struct err *err)
{
    struct options_parser p = { options, arguments,
                                arena_array(arena, const struct option *, options->n_options),
                                arena, err };
    bool ended = false;

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (is_help(argv[i]))
            return OPTIONS_HELP;
    *arguments = (struct option_arguments){
        .items = arena_array(arena, const char *, argc + 1),
        .warnings = arena_array(arena, const char *, options->n_options),
    };
    for (int i = 1; i < argc; i++) {
        if (!ended && !strcmp(argv[i], "--"))
            ended = true;
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
        return too_many(&p, arguments->items[options->max_arguments]);
    return 0;
}

void options_wrap(struct str *out, const char *text, int at, int indent, int width)
{
    bool is_first = true;

    while (*text) {
        int length = (int)strcspn(text, " ");

        if (!is_first && at + 1 + length > width) {
            str_printf(out, "\n%*s", indent, "");
            at = indent;
        } else if (!is_first) {
            str_add_char(out, ' ');
            at++;
        }
        str_add_bytes(out, text, (size_t)length);
        at += length;
        is_first = false;
        text += length;
        text += strspn(text, " ");
    }
    str_add_char(out, '\n');
}

static void add_option(struct str *out, const char *dashes, const struct option *option, int width)
{
    int column = width < HELP_NARROW ? HELP_COLUMN_NARROW : HELP_COLUMN;
    size_t begin = out->length;
    struct str text = { 0 };

    str_printf(out, "  %s%s", dashes, option->name);
    if (option->argument)
        str_printf(out, " %s", option->argument);
    int used = (int)(out->length - begin);
    if (used + 2 > column) {
        str_add_char(out, '\n');
        used = 0;
    }
    str_printf(out, "%*s", column - used, "");
    if (!option->successor) {
        options_wrap(out, option->help, column, column, width);
        return;
    }
    str_printf(&text, "deprecated since %s: use --%s; it will be removed in %s", option->since,
               option->successor, option->removed_in);
    options_wrap(out, str_text(&text), column, column, width);
    str_release(&text);
}

/*
 * Lines that begin with a blank are to be copied, as commands are: they stay as they are. Of the
 * others those that do not end a sentence are joined.
 */
static void add_details(struct str *out, const char *text, int width)
{
    struct str line = { 0 };

    while (*text) {
        size_t length = strcspn(text, "\n");
        const char *next = text + length + (text[length] == '\n');

        if (*text == ' ') {
            str_add_bytes(out, text, length);
            str_add_char(out, '\n');
            text = next;
            continue;
        }
        str_add_bytes(&line, text, length);
        if (length && text[length - 1] != '.' && text[length - 1] != ':' && *next && *next != ' ' &&
            *next != '\n') {
            str_add_char(&line, ' ');
        } else {
            options_wrap(out, str_text(&line), 0, 0, width);
            str_clear(&line);
        }
        text = next;
    }
    str_release(&line);
}

void options_help(const struct options *options, int width, struct str *out)
{
    const struct option help = { .name = "help", .help = "show this" };
    struct str line = { 0 };

    str_printf(&line, "usage: %s%s%s%s", options->command, options->arguments ? " " : "",
               options->arguments ? options->arguments : "",
               options->n_options ? " [OPTIONS]" : "");
    options_wrap(out, str_text(&line), 0, 7, width);
    str_clear(&line);
    str_printf(&line, "%s.", options->summary);
    str_add_char(out, '\n');
    options_wrap(out, str_text(&line), 0, 0, width);
    str_add(out, "\noptions:\n");
    for (int i = 0; i < options->n_options; i++)
        add_option(out, "--", &options->table[i], width);
    add_option(out, "-h, --", &help, width);
    if (options->details) {
        str_add_char(out, '\n');
        add_details(out, options->details, width);
    }
    str_release(&line);
}
