/*
 * completion_zsh.c - a zsh script: a function of _arguments for each command
 *
 * It may be sourced, or lie as _lmtrain in a folder of fpath.
 */
#include <string.h>

#include "base/completion_impl.h"

static void begin(struct str *out)
{
    str_add(out, "#compdef lmtrain\n"
                 "# zsh completion of lmtrain, made by `lmtrain completion zsh`\n\n"
                 "typeset -gA _lmtrain_words _lmtrain_commands _lmtrain_members\n"
                 "typeset -ga _lmtrain_keys\n"
                 "_lmtrain_words=() _lmtrain_commands=() _lmtrain_members=() _lmtrain_keys=()\n\n");
}

/* Within single quotes; in `specials` of _arguments and _describe a backslash goes before. */
static void add_quoted(const char *text, size_t length, const char *specials, struct str *out)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\'')
            str_add(out, "'\\''");
        else if (strchr(specials, text[i]) || text[i] == '\\')
            str_printf(out, "\\%c", text[i]);
        else
            str_add_char(out, text[i]);
}

/* ":NAME: _lmtrain_value KINDS WORDS..." of a spec; its blank keeps _arguments from adding any. */
static void add_value(const char *name, const struct completion_value *value, struct str *out)
{
    str_add_char(out, ':');
    add_quoted(name, strlen(name), ":", out);
    str_add(out, ": _lmtrain_value \"");
    for (int i = 0; i < COMPLETION_N_KINDS; i++)
        if (value->kinds[i])
            str_printf(out, " %s", completion_kind_names[i]);
    str_add_char(out, '"');
    for (int i = 0; i < value->n_words; i++) {
        str_add_char(out, ' ');
        add_quoted(value->words[i].text, (size_t)value->words[i].length, ":", out);
    }
}

static void add_option(const struct option *option, struct str *out)
{
    struct completion_value value = completion_value_of_option(option);
    bool is_flag = option->kind == OPTION_FLAG;

    str_printf(out, " \\\n        '%s--%s%s[", option->kind == OPTION_LIST ? "*" : "", option->name,
               is_flag ? "" : "=");
    add_quoted(option->help, strlen(option->help), "[]:", out);
    str_add_char(out, ']');
    if (!is_flag)
        add_value(option->argument, &value, out);
    str_add_char(out, '\'');
}

/* name: of the function, where a blank of the command is _. */
static void add_options(const struct options *options, struct str *out)
{
    struct completion_command c = completion_command_of(options);
    struct completion_value value = completion_value_of_arguments(options);

    str_printf(out, "_lmtrain_commands[%.*s]='", c.family_length, c.name);
    if (!c.member)
        add_quoted(options->summary, strlen(options->summary), "", out);
    str_add(out, "'\n");
    if (c.member) {
        str_printf(out, "_lmtrain_members[%.*s/%s]='", c.family_length, c.name, c.member);
        add_quoted(options->summary, strlen(options->summary), "", out);
        str_add(out, "'\n");
    }
    str_printf(out, "_lmtrain__%.*s%s%s()\n{\n    _arguments", c.family_length, c.name,
               c.member ? "__" : "", c.member ? c.member : "");
    for (int i = 0; i < options->n_options; i++)
        if (!options->table[i].successor)
            add_option(&options->table[i], out);
    str_add(out, " \\\n        '(-h --help)'{-h,--help}'[show the help]'");
    if (options->max_arguments > 0) {
        str_add(out, " \\\n        '*");
        add_value(options->arguments, &value, out);
        str_add_char(out, '\'');
    }
    str_add(out, "\n}\n\n");
}

static void add_key(const char *key, const char *words, struct str *out)
{
    str_printf(out, "_lmtrain_keys+=(%s)\n", key);
    if (*words)
        str_printf(out, "_lmtrain_words[%s]='%s'\n", key, words);
}

static const char script[] =
    "\n"
    "# KEY=VALUE\n"
    "_lmtrain_set()\n"
    "{\n"
    "    local key=${PREFIX%%=*}\n"
    "    if compset -P 1 '*='; then\n"
    "        compadd -- ${=_lmtrain_words[$key]}\n"
    "    else\n"
    "        compadd -q -S = -- $_lmtrain_keys\n"
    "    fi\n"
    "}\n"
    "\n"
    "# A value of the kinds $1, or one of the other words.\n"
    "_lmtrain_value()\n"
    "{\n"
    "    local kind\n"
    "    local -a kinds=(${=1}) prefixes\n"
    "    shift\n"
    "    (( ! $# )) || compadd -- \"$@\"\n"
    "    for kind in $kinds; do\n"
    "        case $kind in\n"
    "        folder) _files -/ ;;\n"
    "        file) _files ;;\n"
    "        yaml) _files -g '*.(yaml|yml|json)(-.)' ;;\n"
    "        prefix)\n"
    "            prefixes=(${~PREFIX}*.idx(N:r))\n"
    "            compadd -f -- $prefixes\n"
    "            _files -/ ;;\n"
    "        key) compadd -- $_lmtrain_keys ;;\n"
    "        set) _lmtrain_set ;;\n"
    "        esac\n"
    "    done\n"
    "}\n"
    "\n"
    "_lmtrain()\n"
    "{\n"
    "    local name command=$words[2]\n"
    "    local -a described\n"
    "    if (( CURRENT == 2 )); then\n"
    "        for name in ${(ok)_lmtrain_commands}; do\n"
    "            described+=(\"$name:${_lmtrain_commands[$name]}\")\n"
    "        done\n"
    "        described+=('--help:show the help' '--version:show the version')\n"
    "        _describe command described\n"
    "        return\n"
    "    fi\n"
    "    if (( ${#${(M)${(k)_lmtrain_members}:#$command/*}} )); then\n"
    "        if (( CURRENT == 3 )); then\n"
    "            for name in ${(M)${(ok)_lmtrain_members}:#$command/*}; do\n"
    "                described+=(\"${name#*/}:${_lmtrain_members[$name]}\")\n"
    "            done\n"
    "            described+=('--help:show the help')\n"
    "            _describe command described\n"
    "            return\n"
    "        fi\n"
    "        command+=__$words[3]\n"
    "        shift words\n"
    "        (( CURRENT-- ))\n"
    "    fi\n"
    "    shift words\n"
    "    (( CURRENT-- ))\n"
    "    (( ! $+functions[_lmtrain__$command] )) || _lmtrain__$command\n"
    "}\n"
    "\n"
    "if [[ $funcstack[1] == _lmtrain ]]; then\n"
    "    _lmtrain \"$@\"\n"
    "else\n"
    "    compdef _lmtrain lmtrain\n"
    "fi\n";

static void end(struct str *out)
{
    str_add(out, script);
}

const struct completion_shell completion_zsh = { "zsh", begin, add_options, add_key, end };
