/*
 * completion_bash.c - a bash script: the tables, and one function that reads them
 */
#include <string.h>

#include "base/completion_impl.h"

static void begin(struct str *out)
{
    str_add(out, "# bash completion of lmtrain, made by `lmtrain completion bash`\n\n"
                 "unset _lmtrain_commands _lmtrain_options _lmtrain_kinds _lmtrain_words\n"
                 "declare -gA _lmtrain_commands _lmtrain_options _lmtrain_kinds _lmtrain_words\n"
                 "_lmtrain_keys=''\n\n");
}

/* " folder =auto =none" */
static void add_value(const struct completion_value *value, struct str *out)
{
    for (int i = 0; i < COMPLETION_N_KINDS; i++)
        if (value->kinds[i])
            str_printf(out, " %s", completion_kind_names[i]);
    for (int i = 0; i < value->n_words; i++)
        str_printf(out, " =%.*s", value->words[i].length, value->words[i].text);
}

static void add_option(const char *command, const struct option *option, struct str *out)
{
    if (option->kind == OPTION_FLAG)
        return;
    struct completion_value value = completion_value_of_option(option);
    str_printf(out, "_lmtrain_kinds['%s --%s']='", command, option->name);
    add_value(&value, out);
    str_add(out, "'\n");
}

static void add_options(const struct options *options, struct str *out)
{
    struct completion_command c = completion_command_of(options);
    struct completion_value value = completion_value_of_arguments(options);

    str_printf(out, "_lmtrain_commands[lmtrain]+=' %.*s'\n", c.family_length, c.name);
    if (c.member)
        str_printf(out, "_lmtrain_commands['%.*s']+=' %s'\n", c.family_length, c.name, c.member);
    str_printf(out, "_lmtrain_options['%s']='", c.name);
    for (int i = 0; i < options->n_options; i++)
        if (!options->table[i].successor)
            str_printf(out, "--%s ", options->table[i].name);
    str_printf(out, "--help'\n_lmtrain_kinds['%s']='", c.name);
    add_value(&value, out);
    str_add(out, "'\n");
    for (int i = 0; i < options->n_options; i++)
        if (!options->table[i].successor)
            add_option(c.name, &options->table[i], out);
    str_add_char(out, '\n');
}

static void add_key(const char *key, const char *words, struct str *out)
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

static void end(struct str *out)
{
    str_add(out, script);
}

const struct completion_shell completion_bash = { "bash", begin, add_options, add_key, end };
