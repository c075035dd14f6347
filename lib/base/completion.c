/*
 * completion.c - a bash script from tables
 *
 * What an option's value can be follows from its name in the help: DIR, FILE, PREFIX (of .bin and
 * .idx), KEY, KEY=VALUE, or words with | between them; other names (N, TEXT) get no offer.
 */
#include "base/completion.h"

#include <string.h>

void completion_begin(struct str *out)
{
    str_add(out, "# bash completion of lmtrain, made by `lmtrain completion bash`\n\n"
                 "unset _lmtrain_commands _lmtrain_options _lmtrain_kinds _lmtrain_words\n"
                 "declare -gA _lmtrain_commands _lmtrain_options _lmtrain_kinds _lmtrain_words\n"
                 "_lmtrain_keys=''\n\n");
}

/* The kinds that a value's name in the help stands for, with blanks before them. */
static void add_kinds(const char *name, struct str *out)
{
    static const struct {
        const char *name, *kind;
    } kinds[] = {
        { "DIR", "folder" },    { "FILE", "file" },       { "IN...", "file" },
        { "PREFIX", "prefix" }, { "KEY", "key" },         { "KEY=VALUE", "set" },
        { "JOB.yaml", "yaml" }, { "[JOB.yaml]", "yaml" },
    };

    while (name && *name) {
        size_t length = strcspn(name, "|"), i;

        for (i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (strlen(kinds[i].name) == length && !strncmp(name, kinds[i].name, length))
                break;
        if (i < sizeof kinds / sizeof *kinds)
            str_printf(out, " %s", kinds[i].kind);
        else if (name[0] >= 'a' && name[0] <= 'z' && !memchr(name, ',', length))
            str_printf(out, " =%.*s", (int)length, name);
        name += length + (name[length] == '|');
    }
}

static void add_option(const char *command, const struct option *option, struct str *out)
{
    if (option->kind == OPTION_FLAG)
        return;
    str_printf(out, "_lmtrain_kinds['%s --%s']='", command, option->name);
    for (int i = 0; option->choices && option->choices[i]; i++)
        str_printf(out, " =%s", option->choices[i]);
    for (const struct choice *c = option->named; c && c->word; c++)
        str_printf(out, " =%s", c->word);
    if (option->kind != OPTION_CHOICE)
        add_kinds(option->argument, out);
    str_add(out, "'\n");
}

void completion_options(const struct options *options, struct str *out)
{
    const char *command = strchr(options->command, ' ');
    CHECK(command);
    command++;
    const char *sub = strchr(command, ' ');

    str_printf(out, "_lmtrain_commands[lmtrain]+=' %.*s'\n", (int)strcspn(command, " "), command);
    if (sub)
        str_printf(out, "_lmtrain_commands['%.*s']+=' %s'\n", (int)(sub - command), command,
                   sub + 1);
    str_printf(out, "_lmtrain_options['%s']='", command);
    for (int i = 0; i < options->n_options; i++)
        if (!options->table[i].successor)
            str_printf(out, "--%s ", options->table[i].name);
    str_add(out, "--help'\n");
    str_printf(out, "_lmtrain_kinds['%s']='", command);
    if (options->max_arguments > 0)
        add_kinds(options->arguments, out);
    str_add(out, "'\n");
    for (int i = 0; i < options->n_options; i++)
        if (!options->table[i].successor)
            add_option(command, &options->table[i], out);
    str_add_char(out, '\n');
}

void completion_key(const char *key, const char *words, struct str *out)
{
    str_printf(out, "_lmtrain_keys+=' %s'\n", key);
    if (*words)
        str_printf(out, "_lmtrain_words['%s']='%s'\n", key, words);
}

/*
 * bash takes = for the end of a word, so words are put together again, and what stands before the
 * last = is taken off the answers.
 */
static const char script[] =
    "\n"
    "# What fits $2, being of the kinds $1, goes to COMPREPLY.\n"
    "_lmtrain_offer()\n"
    "{\n"
    "    local kind key value=$2\n"
    "    for kind in $1; do\n"
    "        case $kind in\n"
    "        =*) COMPREPLY+=($(compgen -W \"${kind#=}\" -- \"$value\")) ;;\n"
    "        key) COMPREPLY+=($(compgen -W \"$_lmtrain_keys\" -- \"$value\")) ;;\n"
    "        set)\n"
    "            key=${value%%=*}\n"
    "            if [[ $value == *=* ]]; then\n"
    "                COMPREPLY+=($(compgen -P \"$key=\" -W \"${_lmtrain_words[$key]}\" -- "
    "\"${value#*=}\"))\n"
    "            else\n"
    "                COMPREPLY+=($(compgen -S = -W \"$_lmtrain_keys\" -- \"$value\"))\n"
    "                compopt -o nospace 2>/dev/null\n"
    "            fi ;;\n"
    "        *)\n"
    "            local found\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            while IFS= read -r found; do COMPREPLY+=(\"$found\"); done < <(\n"
    "                compgen -d -- \"$value\"\n"
    "                case $kind in\n"
    "                file) compgen -f -- \"$value\" ;;\n"
    "                yaml) compgen -f -X '!*.@(yaml|yml|json)' -- \"$value\" ;;\n"
    "                prefix) compgen -f -X '!*.idx' -- \"$value\" | sed 's/\\.idx$//' ;;\n"
    "                esac | sort -u | while IFS= read -r found; do\n"
    "                    [[ -d $found ]] || printf '%s\\n' \"$found\"\n"
    "                done)\n"
    "            ;;\n"
    "        esac\n"
    "    done\n"
    "}\n"
    "\n"
    "_lmtrain()\n"
    "{\n"
    "    local -a words=()\n"
    "    local i word command current previous before extglob\n"
    "    for ((i = 0; i <= COMP_CWORD; i++)); do\n"
    "        word=${COMP_WORDS[i]}\n"
    "        if ((i > 0)) && [[ $word == =* || ${words[-1]} == *= ]]; then\n"
    "            words[-1]+=$word\n"
    "        else\n"
    "            words+=(\"$word\")\n"
    "        fi\n"
    "    done\n"
    "    COMPREPLY=()\n"
    "    extglob=$(shopt -p extglob)\n"
    "    shopt -s extglob\n"
    "    current=${words[-1]} previous=${words[-2]} command=${words[1]}\n"
    "    if ((${#words[@]} == 2)); then\n"
    "        COMPREPLY=($(compgen -W \"${_lmtrain_commands[lmtrain]} --help --version\" -- "
    "\"$current\"))\n"
    "    elif [[ -n ${_lmtrain_commands[$command]} ]] && ((${#words[@]} == 3)); then\n"
    "        COMPREPLY=($(compgen -W \"${_lmtrain_commands[$command]} --help\" -- "
    "\"$current\"))\n"
    "    else\n"
    "        [[ -z ${_lmtrain_commands[$command]} ]] || command+=\" ${words[2]}\"\n"
    "        if [[ $current == --*=* ]]; then\n"
    "            _lmtrain_offer \"${_lmtrain_kinds[\"$command ${current%%=*}\"]}\" "
    "\"${current#*=}\"\n"
    "            [[ $COMP_WORDBREAKS == *=* ]] || "
    "COMPREPLY=(\"${COMPREPLY[@]/#/${current%%=*}=}\")\n"
    "            current=${current#*=}\n"
    "        elif [[ $previous == -* && $previous != *=* && "
    "-n ${_lmtrain_kinds[\"$command $previous\"]+x} ]]; then\n"
    "            _lmtrain_offer \"${_lmtrain_kinds[\"$command $previous\"]}\" \"$current\"\n"
    "        elif [[ $current == -* ]]; then\n"
    "            COMPREPLY=($(compgen -W \"${_lmtrain_options[$command]}\" -- \"$current\"))\n"
    "        else\n"
    "            _lmtrain_offer \"${_lmtrain_kinds[$command]}\" \"$current\"\n"
    "        fi\n"
    "    fi\n"
    "    if [[ $COMP_WORDBREAKS == *=* && $current == *=* ]]; then\n"
    "        before=${current%\"${current##*=}\"}\n"
    "        COMPREPLY=(\"${COMPREPLY[@]#\"$before\"}\")\n"
    "    fi\n"
    "    eval \"$extglob\"\n"
    "}\n"
    "complete -F _lmtrain lmtrain\n";

void completion_end(struct str *out)
{
    str_add(out, script);
}
