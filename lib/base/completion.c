/*
 * completion.c - the shells there are, and what a value can be
 */
#include <string.h>

#include "base/completion_impl.h"

const char *const completion_kind_names[COMPLETION_N_KINDS] = {
    [COMPLETION_FOLDER] = "folder", [COMPLETION_FILE] = "file", [COMPLETION_PREFIX] = "prefix",
    [COMPLETION_KEY] = "key",       [COMPLETION_SET] = "set",   [COMPLETION_YAML] = "yaml",
};

const struct completion_shell *completion_shell_find(const char *name)
{
    static const struct completion_shell *const shells[] = { &completion_bash, &completion_zsh,
                                                             &completion_fish };

    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (!strcmp(name, shells[i]->name))
            return shells[i];
    return NULL;
}

static void add_word(struct completion_value *value, const char *text, size_t length)
{
    CHECK(value->n_words < COMPLETION_WORDS_MAX);
    value->words[value->n_words++] = (struct completion_word){ text, (int)length };
}

/* What a value's name in the help stands for. */
static void add_name(struct completion_value *value, const char *name)
{
    static const struct {
        const char *name;
        enum completion_kind kind;
    } kinds[] = {
        { "DIR", COMPLETION_FOLDER },    { "FILE", COMPLETION_FILE },
        { "IN...", COMPLETION_FILE },    { "PREFIX", COMPLETION_PREFIX },
        { "KEY", COMPLETION_KEY },       { "KEY=VALUE", COMPLETION_SET },
        { "JOB.yaml", COMPLETION_YAML }, { "[JOB.yaml]", COMPLETION_YAML },
    };

    while (name && *name) {
        size_t length = strcspn(name, "|"), i;

        for (i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (strlen(kinds[i].name) == length && !strncmp(name, kinds[i].name, length))
                break;
        if (i < sizeof kinds / sizeof *kinds)
            value->kinds[kinds[i].kind] = true;
        else if (name[0] >= 'a' && name[0] <= 'z' && !memchr(name, ',', length))
            add_word(value, name, length);
        name += length + (name[length] == '|');
    }
}

struct completion_value completion_value_of_option(const struct option *option)
{
    struct completion_value value = { 0 };

    for (int i = 0; option->choices && option->choices[i]; i++)
        add_word(&value, option->choices[i], strlen(option->choices[i]));
    for (const struct choice *c = option->named; c && c->word; c++)
        add_word(&value, c->word, strlen(c->word));
    if (option->kind != OPTION_CHOICE)
        add_name(&value, option->argument);
    return value;
}

struct completion_value completion_value_of_arguments(const struct options *options)
{
    struct completion_value value = { 0 };

    if (options->max_arguments > 0)
        add_name(&value, options->arguments);
    return value;
}

struct completion_command completion_command_of(const struct options *options)
{
    const char *name = strchr(options->command, ' ');

    CHECK(name);
    const char *member = strchr(++name, ' ');
    return (struct completion_command){ name, (int)strcspn(name, " "), member ? member + 1 : NULL };
}
