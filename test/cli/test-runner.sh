#!/bin/sh
# test/cli/test-runner.sh - scripts/test-runner counts what passed, failed, crashed, hung or was not built; scripts/oracle-forks
# tells tests apart that share what one process imported
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

# Tests that mostly waited in a former run do not keep others from running; those that computed do.
printf '1.0 0.1 test/unit/waits%s\n' 1 2 3 >"$dir/order"
for name in waits1 waits2 waits3; do
    program $name "echo begins >>$dir/began" 'sleep 1' "echo ends >>$dir/began" 'echo "ok one"'
done
expect 'tests that wait' 0 '^3 passed, 0 failed$' $runner --jobs 2 --order "$dir/order" "$at/waits1" "$at/waits2" "$at/waits3"
expect 'run at the same time' 0 '^begins begins begins ends ends ends $' sh -c "tr '\n' ' ' <'$dir/began'"
rm "$dir/began"
sed 's/0\.1/1.0/' "$dir/order" >"$dir/order.busy"
expect 'tests that compute' 0 '^3 passed, 0 failed$' $runner --jobs 2 --order "$dir/order.busy" "$at/waits1" "$at/waits2" "$at/waits3"
expect 'run one a core' 0 '^begins begins ends ' sh -c "tr '\n' ' ' <'$dir/began'"
rm "$dir/began"

# What runs alone is not run beside others, but for those of a list.
mkdir "$dir/lists"
echo test/unit/alone >"$dir/lists/EXCLUSIVE"
echo test/unit/beside >"$dir/lists/BESIDE"
for name in alone beside other; do
    program $name "echo $name \$(nice) >>$dir/began" 'sleep 1' "echo $name >>$dir/ended" 'echo "ok one"'
done
expect 'exclusive tests' 0 '^3 passed, 0 failed$' $runner --jobs 2 --lists "$dir/lists" "$at/beside" "$at/alone" "$at/other"
expect 'are begun when others have ended' 0 '^other ' sed -n 1p "$dir/began"
expect 'at the ordinary priority' 0 "^alone $(nice)\$" cat "$dir/began"
expect 'with those of the list at the lowest priority' 0 '^beside 19$' cat "$dir/began"
expect 'which were not waited for' 0 '^other$' sed -n 1p "$dir/ended"
rm "$dir/began" "$dir/ended"
expect 'without exclusive ones those are like others' 0 '^2 passed, 0 failed$' $runner --lists "$dir/lists" "$at/beside" "$at/other"
expect 'at the ordinary priority' 0 "^beside $(nice)\$" cat "$dir/began"
rm "$dir/began"
expect 'one at a time means that' 0 '^2 passed, 0 failed$' $runner --jobs 1 --lists "$dir/lists" "$at/beside" "$at/alone"
expect 'of all' 0 "^beside $(nice)\$" sed -n 1p "$dir/began"

# ---- forks of one process that imported the libraries ----

if ! command -v python3 >/dev/null || ! python3 -P -c '' 2>/dev/null; then
    echo 'skip forks: there is no Python 3.11'
    finish
fi
mkdir "$dir/modules" "$dir/forks"
echo 'import os; print("imported", os.getpid(), flush=True); mark = []' >"$dir/modules/torch.py"
# script NAME LINES... - a Python test of these lines
script() {
    script_name=$1
    shift
    printf '%s\n' "$@" >"$dir/forks/$script_name.py"
}
script good 'import sys, torch' 'assert __name__ == "__main__" and len(sys.argv) == 1 and not torch.mark' 'torch.mark.append(1)' \
    'print("1 passed, 0 failed")'
script other 'import torch' 'assert not torch.mark' 'torch.mark.append(1)'
script bad 'import sys' 'sys.exit(3)'
script wrong 'import nowhere'
script crash 'import os' 'os.abort()'
script hang 'import subprocess' 'child = subprocess.Popen(["sleep", "600"])' 'print(child.pid, flush=True)' 'child.wait()'
# shellcheck disable=SC2317 # expect calls it, as it does left_behind
forks() { PYTHONPATH=$dir/modules python3 -P scripts/oracle-forks "$@"; }
# left_behind NUMBER WHAT - of a test
# shellcheck disable=SC2317
left_behind() { cat "$dir/$1.$2"; }
at=$dir/forks
expect 'forks of tests, three at a time' 0 '' forks 3 5 "$dir" "$at/good.py" "$at/other.py" "$at/bad.py" "$at/wrong.py" "$at/crash.py" "$at/hang.py"
printf '%s\n' "$output" | sed 's/^imported .*/imported/' | sort >"$dir/said"
expect 'all were run, and one process imported' 0 '^0 1 2 3 4 5 imported $' tr '\n' ' ' <"$dir/said"
expect 'one passes' 0 '^0$' left_behind 0 status
expect 'what it prints is kept' 0 '^1 passed, 0 failed$' left_behind 0 out
expect 'nothing of one is seen by another' 0 '^0$' left_behind 1 status
expect 'an exit status' 0 '^3$' left_behind 2 status
expect 'a module that is missing' 0 '^1$' left_behind 3 status
expect 'is named last' 0 "^ModuleNotFoundError: No module named 'nowhere'\$" tail -n 1 "$dir/3.out"
expect 'a crash' 0 '^134$' left_behind 4 status
expect 'a timeout' 0 '^124$' left_behind 5 status
expect 'ends what was started, too' 1 '' test -e "/proc/$(cat "$dir/5.out")/cwd"
expect 'seconds, and seconds of CPU' 0 '^[0-9]+\.[0-9] [0-9]+\.[0-9]$' left_behind 0 time
rm "$dir/loaded"
echo 'raise ImportError("no libcudart")' >"$dir/modules/torch.py"
expect 'torch that does not load' 1 'ImportError: no libcudart$' forks 1 5 "$dir" "$at/good.py"
expect 'leaves no mark' 1 '' test -e "$dir/loaded"
finish
