/*
 * completion_fish.c - a fish script: `complete` once an option, and the functions that they call
 */
#include <string.h>

#include "base/completion_impl.h"

static const char functions[] =
    "# fish completion of lmtrain, made by `lmtrain completion fish`\n"
    "\n"
    "set -g __lmtrain_families\n"
    "set -g __lmtrain_keys\n"
    "complete -c lmtrain -e\n"
    "complete -c lmtrain -f\n"
    "\n"
    "# Whether the words before the cursor are those of the command $argv[1], \"data tokenize\".\n"
    "function __lmtrain_is\n"
    "    set -l words (commandline -opc)\n"
    "    set -l command $words[2]\n"
    "    if contains -- \"$command\" $__lmtrain_families\n"
    "        set command \"$command $words[3]\"\n"
    "    end\n"
    "    test \"$command\" = \"$argv[1]\"\n"
    "end\n"
    "\n"
    "# Whether there are no words behind lmtrain yet, or none but $argv[1].\n"
    "function __lmtrain_after\n"
    "    set -l words (commandline -opc)\n"
    "    test \"$words[2..]\" = \"$argv[1]\"\n"
    "end\n"
    "\n"
    "# What is typed of the value, without --option= before it.\n"
    "function __lmtrain_typed\n"
    "    string replace -r -- '^--[^=]*=' '' (commandline -ct)\n"
    "end\n"
    "\n"
    "# Folders, and files of the kind $argv[1].\n"
    "function __lmtrain_files\n"
    "    set -l typed (__lmtrain_typed)\n"
    "    for path in $typed*\n"
    "        if test -d $path\n"
    "            echo $path/\n"
    "            continue\n"
    "        end\n"
    "        switch $argv[1]\n"
    "            case file\n"
    "                echo $path\n"
    "            case yaml\n"
    "                string match -r -- '.*[.](?:ya?ml|json)$' $path\n"
    "            case prefix\n"
    "                string replace -fr -- '[.]idx$' '' $path\n"
    "        end\n"
    "    end\n"
    "end\n"
    "\n"
    "function __lmtrain_all_keys\n"
    "    string replace -r ' .*' '' -- $__lmtrain_keys\n"
    "end\n"
    "\n"
    "# KEY=VALUE\n"
    "function __lmtrain_set\n"
    "    set -l typed (__lmtrain_typed)\n"
    "    if not string match -q '*=*' -- $typed\n"
    "        printf '%s=\\n' (__lmtrain_all_keys)\n"
    "        return\n"
    "    end\n"
    "    set -l key (string replace -r '=.*' '' -- $typed)\n"
    "    for line in $__lmtrain_keys\n"
    "        set -l words (string split ' ' -- $line)\n"
    "        if test $words[1] = $key; and test (count $words) -gt 1\n"
    "            printf \"$key=%s\\n\" $words[2..]\n"
    "        end\n"
    "    end\n"
    "end\n"
    "\n";

static void begin(struct str *out)
{
    str_add(out, functions);
}

/* Within single quotes. */
static void add_quoted(const char *text, size_t length, struct str *out)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\'' || text[i] == '\\')
            str_printf(out, "\\%c", text[i]);
        else
            str_add_char(out, text[i]);
}

/* " -a '(__lmtrain_files ...) auto none'" */
static void add_value(const struct completion_value *value, struct str *out)
{
    static const char *const kinds[COMPLETION_N_KINDS] = {
        [COMPLETION_FOLDER] = "(__lmtrain_files folder)",
        [COMPLETION_FILE] = "(__lmtrain_files file)",
        [COMPLETION_PREFIX] = "(__lmtrain_files prefix)",
        [COMPLETION_KEY] = "(__lmtrain_all_keys)",
        [COMPLETION_SET] = "(__lmtrain_set)",
        [COMPLETION_YAML] = "(__lmtrain_files yaml)",
    };

    str_add(out, " -a '");
    for (int i = 0; i < COMPLETION_N_KINDS; i++)
        if (value->kinds[i])
            str_printf(out, "%s ", kinds[i]);
    for (int i = 0; i < value->n_words; i++) {
        add_quoted(value->words[i].text, (size_t)value->words[i].length, out);
        str_add_char(out, ' ');
    }
    str_add_char(out, '\'');
}

static void add_command(const struct options *options, const struct completion_command *c,
                        struct str *out)
{
    if (c->member)
        str_printf(out,
                   "contains -- %.*s $__lmtrain_families; or begin\n"
                   "    set -ga __lmtrain_families %.*s\n"
                   "    complete -c lmtrain -n '__lmtrain_after \"\"' -a %.*s\n"
                   "end\n"
                   "complete -c lmtrain -n '__lmtrain_after %.*s' -a %s -d '",
                   c->family_length, c->name, c->family_length, c->name, c->family_length, c->name,
                   c->family_length, c->name, c->member);
    else
        str_printf(out, "complete -c lmtrain -n '__lmtrain_after \"\"' -a %s -d '", c->name);
    add_quoted(options->summary, strlen(options->summary), out);
    str_add(out, "'\n");
}

static void add_options(const struct options *options, struct str *out)
{
    struct completion_command c = completion_command_of(options);
    struct completion_value value = completion_value_of_arguments(options);

    add_command(options, &c, out);
    for (int i = 0; i < options->n_options; i++) {
        const struct option *o = &options->table[i];

        if (o->successor)
            continue;
        str_printf(out, "complete -c lmtrain -n '__lmtrain_is \"%s\"' -l %s -d '", c.name, o->name);
        add_quoted(o->help, strlen(o->help), out);
        str_add_char(out, '\'');
        if (o->kind != OPTION_FLAG) {
            struct completion_value of_option = completion_value_of_option(o);

            str_add(out, " -x");
            add_value(&of_option, out);
        }
        str_add_char(out, '\n');
    }
    str_printf(out,
               "complete -c lmtrain -n '__lmtrain_is \"%s\"' -s h -l help -d 'show the help'\n",
               c.name);
    if (options->max_arguments > 0) {
        str_printf(out, "complete -c lmtrain -n '__lmtrain_is \"%s\"'", c.name);
        add_value(&value, out);
        str_add_char(out, '\n');
    }
    str_add_char(out, '\n');
}

static void add_key(const char *key, const char *words, struct str *out)
{
    str_printf(out, "set -ga __lmtrain_keys '%s%s%s'\n", key, *words ? " " : "", words);
}

static void end(struct str *out)
{
    str_add(out,
            "complete -c lmtrain -n '__lmtrain_after \"\"' -l help -d 'show the help'\n"
            "complete -c lmtrain -n '__lmtrain_after \"\"' -l version -d 'show the version'\n");
}

const struct completion_shell completion_fish = { "fish", begin, add_options, add_key, end };
