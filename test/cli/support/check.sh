# shellcheck shell=sh
# check.sh - what the scripts in test/cli share; they source it, call expect, and end with finish
#
# Each check prints `ok NAME` or `not ok NAME` with the output behind it, which scripts/test-runner counts.
# $dir is a folder of this script's own, removed at its end.

n_wrong=0
output=
dir=$(mktemp -d "${TMPDIR:-/tmp}/lmtrain-cli.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
# dash does not run that at a signal by itself.
trap 'exit 143' HUP TERM
trap 'exit 130' INT

# expect NAME STATUS PATTERN COMMAND... - it ends with STATUS and its output (both streams) matches the
# extended regular expression PATTERN; '' matches anything. The output stays in $output.
expect() {
    expect_name=$1 expect_status=$2 expect_pattern=$3
    shift 3
    output=$("$@" 2>&1)
    expect_got=$?
    if [ "$expect_got" != "$expect_status" ]; then
        echo "not ok $expect_name: status $expect_got, not $expect_status; it said:"
    elif [ -n "$expect_pattern" ] && ! printf '%s\n' "$output" | grep -qE -e "$expect_pattern"; then
        echo "not ok $expect_name: nothing matches '$expect_pattern' in:"
    else
        echo "ok $expect_name"
        return 0
    fi
    printf '%s\n' "$output" | sed 's/^/    /'
    n_wrong=$((n_wrong + 1))
    return 1
}

# refuse NAME PATTERN - the last output must not match PATTERN.
refuse() {
    if printf '%s\n' "$output" | grep -qE -e "$2"; then
        echo "not ok $1: '$2' is in:"
        printf '%s\n' "$output" | sed 's/^/    /'
        n_wrong=$((n_wrong + 1))
        return 1
    fi
    echo "ok $1"
}

# promised COMMAND - the last output, JSON, has all fields that test/golden/promises/json_fields.txt lists for it
promised() {
    promised_missing=$(sed -n "s/^$1: //p" test/golden/promises/json_fields.txt | while read -r promised_field; do
        printf '%s\n' "$output" | grep -qE "\"$promised_field\"[[:space:]]*:" || printf ' %s' "$promised_field"
    done)
    if grep -q "^$1: " test/golden/promises/json_fields.txt && [ -z "$promised_missing" ]; then
        echo "ok $1 --json has the promised fields"
    else
        echo "not ok $1 --json lacks promised fields:$promised_missing"
        n_wrong=$((n_wrong + 1))
    fi
}

finish() {
    [ "$n_wrong" = 0 ]
    exit
}
