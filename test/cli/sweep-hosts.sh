#!/bin/sh
# test/cli/sweep-hosts.sh - lmtrain sweep over hosts through ssh: a share of them each, and hosts that are lost
# shellcheck disable=SC2016,SC2317 # sh -c has parameters of its own; functions that expect and wait_until call
. test/cli/support/check.sh
. test/cli/support/hosts.sh
reason=$(hosts_missing)
if [ -n "$reason" ]; then
    echo "skip several hosts: $reason"
    exit 0
fi
. test/cli/support/tiny.sh
if ! hosts_start a b c d; then
    echo 'not ok four hosts start:'
    cat "$dir"/*.log
    exit 1
fi
LMTRAIN_LINK_SECONDS=4
export LMTRAIN_LINK_SECONDS
sed -i '/^ranks: 1$/d' "$dir/job.yaml"

# sweep NAME KEYS ARGUMENTS... - the job with sweep: {KEYS}, in $dir/NAME, its supervisor on host a
sweep() {
    sweep_name=$1
    { cat "$dir/job.yaml" && printf 'sweep: {%s}\n' "$2"; } >"$dir/$sweep_name.yaml"
    shift 2
    on a "$lmtrain" sweep "$dir/$sweep_name.yaml" --set "output=$dir/$sweep_name" "$@"
}
has_begun() { [ "$(n_logged "$1")" -ge 3 ]; }

rates='search: grid, parameters: {optimizer.lr: [1.0e-3, 3.0e-3, 1.0e-2, 3.0e-2]}'

expect 'trials on two hosts each' 0 '^4 trials: 4 finished$' sweep paired "$rates, parallel: 2" --hosts a,b,c,d --set train.steps=4
for host in a b c d; do
    expect "$host had ranks" 0 '' grep -qE "\"host\":\"$host\"" -r "$dir/paired" --include='ranks*.json' --include='status.json'
done
expect 'a pair is that of neighbours' 0 '^2$' sh -c 'grep -lE "\"host\":\"a\"" -r "$1" --include="*.json" | xargs grep -lE "\"host\":\"b\"" | wc -l' sh "$dir/paired"
on a "$lmtrain" pretrain "$dir/job.yaml" --hosts c,d --set "output=$dir/alone" --set train.steps=4 --set optimizer.lr=0.01 >"$dir/alone.out" 2>&1
same_bits 'a trial is the job on such hosts' alone paired/trial-002 4
expect 'more trials than hosts' 2 'sweep.parallel is 2, but --hosts has 1 host \(hint: parallel: 1\)' sweep no "$rates, parallel: 2" --hosts a
expect 'nothing was begun' 0 '' test ! -e "$dir/no"

# ---- a host is lost ----

more='search: grid, parameters: {optimizer.lr: {log: [1.0e-3, 3.0e-2], points: 10}}'
sweep lost "$more, parallel: 2, retries: 3" --hosts b,c --set train.steps=120 --set eval.every_steps=0 >"$dir/lost.out" 2>&1 &
pid=$!
expect 'trials on b and c' 0 '' wait_until 60 has_begun lost/trial-001
host_kill c
ended 'a sweep that loses a host ends' 0 lost
expect 'the trial starts again' 0 'trial 1 died: .*; it starts again \(1 of 3\)' cat "$dir/lost.out"
expect 'the host gets no more after two' 0 '2 trials in a row died on c: it gets no more of them' cat "$dir/lost.out"
expect 'none failed for it' 0 '^10 trials: 10 finished$' cat "$dir/lost.out"
finish
