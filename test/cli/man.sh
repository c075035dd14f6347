#!/bin/sh
# test/cli/man.sh - every command has a manual page, whose OPTIONS are those that -h shows
. test/cli/support/check.sh
lmtrain=build/lmtrain

# Long options of a help text, one a line with its argument: --setKEY=VALUE.
options_of_help() {
    sed -n 's/^  \(-[-A-Za-z].*\)$/\1/p' | sed 's/  .*//' | tr -d ' ,' | sed 's/^.*--/--/'
}

# The same of the manual page's OPTIONS: the line after each .TP, without roff. Only outermost ones
# (those that begin with a dash) count. Pages need not list --help.
options_of_page() {
    awk '/^\.SH/ { inside = $2 == "OPTIONS" } inside && tagged { print; tagged = 0 } /^\.TP/ { tagged = 1 }' |
        sed 's/^\.[BI][IRB]* //; s/\\-/-/g; s/\\f.//g' | tr -d '" ,[]' | grep '^-' | sed 's/^.*--/--/'
}

commands=$($lmtrain --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
expect 'commands are listed' 0 '' test -n "$commands"
for command in $commands; do
    page=man/lmtrain-$command.1
    if [ ! -f "$page" ]; then
        echo "not ok $command has a manual page"
        n_wrong=1
        continue
    fi
    # A command of commands, such as data, shows the options of each with `NAME SUB -h`.
    help=$($lmtrain "$command" -h)
    for sub in $(printf '%s\n' "$help" | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
        help="$help
$($lmtrain "$command" "$sub" -h)"
    done
    printf '%s\n' "$help" | options_of_help | grep -v -e --help | sort -u >"$dir/help"
    options_of_page <"$page" | grep -v -e --help | sort -u >"$dir/page"
    if cmp -s "$dir/help" "$dir/page"; then
        echo "ok the options of $command"
    else
        echo "not ok the options of $command: < only in -h, > only in $page"
        diff "$dir/help" "$dir/page" | sed 's/^/    /'
        n_wrong=1
    fi
done

# Where benchmarks' files are to be had stands in the table of tasks, in -h and in the manual.
roff() { sed 's/\\-/-/g; s/\\(aq/'"'"'/g' man/lmtrain-eval.1; }
$lmtrain eval -h | sed -n '/^How to download/,/^Exit/s/^  [a-z0-9]* *//p' >"$dir/gets"
expect 'each benchmark says where its files are' 0 '' test "$(grep -c . "$dir/gets")" = "$(find configs/tasks -name '*.yaml' | wc -l)"
roff >"$dir/eval.1"
while read -r get; do
    expect "the manual has: $get" 0 '' grep -qxF -e "$get" "$dir/eval.1"
done <"$dir/gets"
finish
