#!/bin/sh
# test/cli/test-runner.sh - scripts/test-runner counts what passed, failed, crashed, hung or was not built
. test/cli/support/check.sh
runner=scripts/test-runner
mkdir -p "$dir/test/unit"

# program NAME LINES... - a test program that runs these lines
program() {
    path=$dir/test/unit/$1
    shift
    { echo '#!/bin/sh'; printf '%s\n' "$@"; } >"$path"
    chmod +x "$path"
}
program good 'echo "[       OK ] a"' 'echo "[       OK ] b"'
program bad 'echo "[       OK ] a"' 'echo "[  FAILED  ] b"' 'echo "the reason"' \
    'echo "[  FAILED  ] 1 test(s), listed below:"' 'echo "[  FAILED  ] b"' 'exit 1'
program skipped 'echo "[  SKIPPED ] a"' 'echo "[  SKIPPED ] 1 test(s), listed below:"' 'echo "[  SKIPPED ] a"'
program crash 'echo "[       OK ] a"' 'kill -SEGV $$'
program hang 'sleep 60'
program empty 'true'
program shell 'echo "ok one"' 'echo "not ok two: why"' 'echo "skip three: why"' 'exit 1'
program liar 'echo "ok one"' 'exit 3'

at="$dir/test/unit"
expect 'all pass' 0 '^2 passed, 0 failed$' $runner "$at/good"
expect 'one fails' 1 '^3 passed, 1 failed$' $runner "$at/good" "$at/bad"
expect 'its output is shown' 1 '^the reason$' $runner "$at/bad"
expect 'a skipped test is counted apart' 0 '^0 passed, 0 failed, 1 skipped$' $runner "$at/skipped"
expect 'a crash fails' 1 '^1 passed, 1 failed$' $runner "$at/crash"
expect 'a hang fails' 1 '^not ended after 1 s$' $runner --timeout 1 "$at/hang"
expect 'no test at all fails' 1 '^ran no test$' $runner "$at/empty"
expect 'what was not built fails' 1 'was not built' $runner "$at/nowhere_test"
expect 'lines of scripts count' 1 '^1 passed, 1 failed, 1 skipped$' $runner "$at/shell"
expect 'a status without a failed test fails' 1 'ended with status 3' $runner "$at/liar"
expect 'nothing to run' 0 '^0 passed, 0 failed$' $runner
expect 'an unknown option' 2 'unknown option --fast' $runner --fast
expect 'all together, three at a time' 1 '^6 passed, 6 failed, 2 skipped$' $runner --jobs 3 --timeout 1 \
    "$at/good" "$at/bad" "$at/skipped" "$at/crash" "$at/hang" "$at/empty" "$at/shell" "$at/liar"

# Lists of times are written and read as one: seconds, seconds of CPU, name.
# shellcheck disable=SC2016 # the program's own variable
program busy 'i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; echo "ok one"'
program idle 'sleep 0.7; echo "ok one"'
expect 'times are written' 0 '^2 passed' $runner --times "$dir/new/times" "$at/busy" "$at/idle"
expect 'with those of the CPU' 0 '^[0-9.]+ 0\.[1-9] test/unit/busy$|^[0-9.]+ [1-9][0-9]*\.[0-9] test/unit/busy$' cat "$dir/new/times"
expect 'of which waiting takes none' 0 '^[0-9.]+ 0\.0 test/unit/idle$' cat "$dir/new/times"
printf '%s\n' '# longest first' '9.0 1.0 test/unit/skipped' '5.5 1.0 test/unit/good' >"$dir/order"
expect 'the longest come first, the unknown last' 0 '^ *skipped good busy $' sh -c \
    "'$runner' --jobs 1 --order '$dir/order' '$at/busy' '$at/good' '$at/skipped' | sed -n 's|^  ok *test/unit/\([a-z]*\) .*|\1|p' | tr '\n' ' '"
finish
