#!/bin/sh
# test/cli/mpirun.sh - ranks that mpirun starts: the same bits, wrong counts, deaths, stalls, signals, Ctrl-Z
# shellcheck disable=SC2317 # functions that expect and wait_until call
. test/cli/support/check.sh
. test/cli/support/tiny.sh
. test/cli/support/left.sh

if ! command -v mpirun >/dev/null; then
    echo 'skip mpirun: there is none here'
    finish
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Several ranks share a core here.
export OMPI_MCA_mpi_yield_when_idle=0 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
# What is left in /tmp is looked for in a folder of our own (with a short name: it is that of sockets, too).
mkdir "$dir/tmp"
export TMPDIR="$dir/tmp"
host=$(hostname)
# How many ranks there are is for each start to say.
sed -i '/^ranks: 1$/d' "$dir/job.yaml"

# under N RUN ARGUMENTS... - the job as N ranks of mpirun
under() {
    under_n=$1 under_run=$2
    shift 2
    timeout --foreground 100 mpirun -n "$under_n" "$lmtrain" pretrain "$dir/job.yaml" \
        --set "output=$dir/$under_run" "$@"
}
# start_under: the same in the background, mpirun as $pid, its output in $dir/RUN.out
start_under() {
    under_n=$1 under_run=$2
    shift 2
    mpirun -n "$under_n" "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$under_run" "$@" \
        >"$dir/$under_run.out" 2>&1 &
    pid=$!
}
# ranks RUN - its ranks' processes, "NUMBER PROCESS" a line; mpirun starts them, a watcher is a rank's child
ranks() {
    for process in $(processes "$1"); do
        parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$process/status" 2>/dev/null)
        [ "$parent" != "$pid" ] || tr '\0' '\n' <"/proc/$process/environ" | sed -n "s/^PMIX_RANK=\(.*\)/\1 $process/p"
    done
}
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
said() { expect "$1" 0 "$2" cat "$dir/$3.out"; }
# clean NAME RUN - nothing of it is left: processes (soon), files in our $TMPDIR and in /dev/shm
clean() {
    expect "$1: no process is left" 0 '' wait_until 25 is_gone "$2"
    left="$(find "$TMPDIR" -mindepth 1) $(shared_left)"
    expect "nor a file: $left" 0 '' test "$left" = ' '
}

# ---- the same bits ----

plain='--set eval.every_steps=0'
long="$plain --set train.steps=300 --set checkpoint.every_steps=0"
for ranks in 2 4; do
    # shellcheck disable=SC2086 # words
    expect "$ranks ranks of our own server" 0 '^done: step 12 in' pretrain own$ranks --ranks $ranks $plain
    # shellcheck disable=SC2086
    expect "mpirun -n $ranks" 0 '^done: step 12 in' under $ranks mpi$ranks $plain
    same_bits 'the same bits' own$ranks mpi$ranks 12
done
expect 'each rank has its log' 0 '^rank-0.log rank-1.log rank-2.log rank-3.log $' \
    sh -c "ls '$dir/mpi4/log' | tr '\n' ' '"
# shellcheck disable=SC2086
pretrain whole --ranks 2 $long >"$dir/whole.out" 2>&1
said 'a run of our own server that is left alone' '^done: step 300' whole

# ---- wrongly ----

expect 'more ranks than mpirun started' 2 'ranks is 4, but the launcher started 2 \(hint: start 4\)' \
    under 2 wrong --ranks 4
expect 'fewer' 2 'ranks is 2, but the launcher started 3 \(hint: start 2\)' under 3 wrong --ranks 2
expect 'a count that is not the product of the degrees' 2 'dp 2 is 2, but there are 3 ranks' \
    under 3 wrong --set parallel.dp=2
expect 'nothing was begun' 0 '' test ! -e "$dir/wrong/metrics.jsonl"

# ---- deaths ----

# kill_under NAME RUN DEADLINE-MS WHOM - SIGKILL to a rank by its number or to mpirun; then all ends in time
kill_under() {
    # shellcheck disable=SC2086
    start_under 4 "$2" $long --set train.steps=100000 --set train.log_every=1
    expect "$1: it was at work" 0 '' wait_until 60 has_logged "$2" 5
    note_shared "$2"
    expect 'with files in shared memory' 0 '/dev/shm/lmtrain-.*vader_segment' cat "$dir/shm"
    if [ "$4" = mpirun ]; then victim=$pid; else victim=$(ranks "$2" | sed -n "s/^$4 //p"); fi
    since=$(date +%s%N)
    kill -KILL "$victim"
    wait "$pid"
    status=$?
    wait_until 25 is_gone "$2"
    took=$((($(date +%s%N) - since) / 1000000))
    echo "# all gone after $took ms"
    expect 'all end within seconds' 0 '' test "$took" -lt "$3"
    clean "$1" "$2"
}
for victim_rank in 2 0; do
    run=killed$victim_rank
    kill_under "rank $victim_rank is killed" $run 5000 $victim_rank
    expect 'mpirun fails' 0 '' test "$status" -ne 0
    expect "the run's record has the cause, once" 0 '^1$' grep -c '"event":"died"' "$dir/$run/metrics.jsonl"
    expect 'with its step' 0 "\"step\":[1-9][0-9]*,.*\"event\":\"died\",\"text\":\"rank $victim_rank on $host " cat "$dir/$run/metrics.jsonl"
    said 'the first cause is named, with host and place' \
        "lmtrain: error: rank $victim_rank on $host (died|was killed by signal 9 .Killed.) \(last seen: .*step [0-9]+" $run
    said 'and signal' "(rank $victim_rank .* killed by signal 9|process rank $victim_rank .* exited on signal 9 .Killed)" $run
    # Of what is said late mpirun does not show all.
    expect 'others are its consequence' 0 "3 other ranks of $host terminated as a result" cat "$dir/$run/log/watcher-$host.log"
    expect 'and are not named' 0 '' test "$(grep -c 'last seen' "$dir/$run.out")" = 1
done
# Ranks that print nothing don't miss it.
kill_under 'mpirun is killed' orphans 5000 mpirun
expect 'a log has the cause' 0 "the launcher of the ranks on $host \(pid $pid\) is gone: terminating them" \
    cat "$dir/orphans/log/watcher-$host.log"

# ---- stalls, and ranks that are stopped together ----

# shellcheck disable=SC2086
LMTRAIN_FAULT='rank1:op:attention layers.1:3:stall' \
    expect 'a rank that stalls ends the job' 5 "no progress on $host for 2 s" \
    under 2 stall $plain --set train.hang_seconds=2 --set train.hang_abort_seconds=5
printf '%s\n' "$output" >"$dir/stall.out"
said 'it is named, with op, layer and micro-batch' "rank 1 on $host .*: in attention layers\.1, step 3, micro-batch 0 since" stall
said 'and who waits for it' \
    "rank 0 on $host .*: waits in .* dp .*step 3.*; rank 1 on $host has not reached it: it is in attention layers\.1" stall
expect 'the status that watch reads has both ranks, and the op' 0 \
    '"rank":0,.*"rank":1,.*"state":"ended","step":3,"micro_batch":0,"doing":"attention layers.1"' cat "$dir/stall/status/ranks-$host.json"
expect "the run's record has the hang" 0 '"event":"hung","text":" *rank 1 on .*attention layers.1' cat "$dir/stall/metrics.jsonl"
expect 'and the end' 0 '"event":"died","text":"rank 1 on .* made no progress for' cat "$dir/stall/metrics.jsonl"
expect 'which watch shows' 0 'died|no progress' "$lmtrain" watch "$dir/stall" --once
said 'and why it ended' "rank 1 on $host made no progress for [5-9] s: terminating the ranks of $host" stall

# mpirun keeps Ctrl-Z to itself unless told.
# shellcheck disable=SC2086
OMPI_MCA_orte_forward_job_control=1 start_under 2 stopped $long --set train.hang_seconds=2 --set train.hang_abort_seconds=8
expect 'ranks at work' 0 '' wait_until 60 has_logged stopped 5
rank_pids=$(ranks stopped | cut -d' ' -f2)
# are STATE - all ranks' state in /proc is that
are() { for process in $rank_pids; do grep -q "^State:[[:space:]]*$1" "/proc/$process/status" || return 1; done; }
kill -TSTP "$pid"
expect 'Ctrl-Z stops them' 0 '' wait_until 25 are T
sleep 9
n_before=$(n_logged stopped)
expect 'for longer than a stall may last' 0 '' are T
kill -CONT "$pid"
ended 'continued, they end well' 0 stopped
expect 'they stood still' 0 '' test "$n_before" -lt 300
same_bits 'with the same bits' whole stopped 300
expect 'nobody took it for a stall' 0 '' test "$(grep -c 'made no progress' "$dir/stopped.out")" = 0

# ---- signals ----

# shellcheck disable=SC2086
start_under 2 saved $long
expect 'ranks at work' 0 '' wait_until 60 has_logged saved 5
kill -USR1 "$pid"
ended 'SIGUSR1 to mpirun saves' 75 saved
said 'and says so' 'saved step [0-9]+ of 300 on a signal' saved
# shellcheck disable=SC2086
expect 'the same command goes on' 0 'resuming from .*, step [0-9]+$' under 2 saved $long
same_bits 'with the same bits' whole saved 300

# ---- numbers ----

# shellcheck disable=SC2086
LMTRAIN_FAULT=rank1:gradients:6:nan expect 'a NaN in one rank skips the step' 0 'step 6: gradients are not finite' \
    under 2 nan $plain --set train.compare_every=1
expect 'on all, who still are equal' 0 '"step":12,.*"skipped":1,' cat "$dir/nan/metrics.jsonl"
refuse 'and were at each step' diverged
expect 'a bench of two ranks' 0 '^family ' timeout --foreground 100 mpirun -n 2 "$lmtrain" bench step "$dir/job.yaml" \
    --steps 2 --set "output=$dir/benched"
expect 'leaves nothing where a run would be' 0 '' test ! -e "$dir/benched"
expect 'a text by one process' 0 '.' "$lmtrain" generate --model "$dir/own2" --prompt 'And God said' --max-new-tokens 8
written=$output
expect 'by four ranks: two copies of two stages' 0 '.' timeout --foreground 100 mpirun -n 4 "$lmtrain" generate --model "$dir/own2" \
    --prompt 'And God said' --max-new-tokens 8 --pp 2
expect 'is the same' 0 '' test "$output" = "$written"
expect 'three are no such copies, which one of them says' 2 '^lmtrain: 3 ranks are not a multiple of the 2 .*tp 1 . pp 2$' \
    timeout --foreground 100 mpirun -n 3 "$lmtrain" generate --model "$dir/own2" --prompt a --pp 2
# shellcheck disable=SC2016 # sh expands it
expect 'and no other' 0 '^1$' sh -c 'printf "%s\n" "$1" | grep -c "^lmtrain: 3 ranks"' sh "$output"
expect 'at last nothing is left in the folder for temporary files' 0 '' test -z "$(ls "$TMPDIR")"
finish
