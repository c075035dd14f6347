#!/bin/bash
# test/soak/operations.sh - a run of hours on two cores with a fault every few minutes ends with the bits of a quiet one
#
# Two ranks run for OPERATIONS_MINUTES (480; 10 for a try). Every OPERATIONS_EVERY seconds (300) they meet a fault, each kind
# in turn, in random order: kill (a rank, or the head, which is then started again), stall (SIGSTOP of a rank), flip (of a bit
# of a parameter, LMTRAIN_FAULT), full (the disk of the checkpoints), slow (a save that sleeps). Each must be found and named
# in the log within OPERATIONS_WAIT seconds (120), and steps must go on; what the log reports without a fault is a false
# alarm. Then a quiet run of as many steps: its last checkpoint must be the same, file for file. OPERATIONS_SEED repeats the
# choices, OPERATIONS_KINDS limits them; OPERATIONS_TABLE=FILE gets the table appended. Full disks need root (a mount namespace with a tmpfs of its own).
# shellcheck disable=SC2317 # functions that expect and faults call
if [ "$(id -u)" = 0 ] && [ -z "${OPERATIONS_MOUNTS:-}" ] && unshare -m true 2>/dev/null; then
    OPERATIONS_MOUNTS=1 exec unshare -m "$0" "$@"
fi
. test/cli/support/check.sh
. test/soak/support/ranks.sh
lmtrain=${LMTRAIN:-build/lmtrain}
minutes=${OPERATIONS_MINUTES:-480} every=${OPERATIONS_EVERY:-300} patience=${OPERATIONS_WAIT:-120}
seed=${OPERATIONS_SEED:-$(date +%s)}
RANDOM=$seed
echo "# OPERATIONS_SEED=$seed OPERATIONS_MINUTES=$minutes OPERATIONS_EVERY=$every"

scripts/data/prepare-kjv >/dev/null || exit 1
cat >"$dir/job.yaml" <<END
model: {vocab_size: 4096, hidden_size: 128, n_layers: 4, n_heads: 4, n_kv_heads: 2, ffn_size: 256, max_seq_len: 64}
data: {train: build/data/kjv, tokenizer: data/kjv-tokenizer, seq_len: 64}
train: {steps: 1000000000, global_batch: 16, micro_batch: 2, dtype: fp32, seed: 5, log_every: 1,
        compare_every: 10, hang_seconds: 15, hang_abort_seconds: 30}
optimizer: {lr: 1.0e-3, schedule: constant, warmup_steps: 10}
ranks: 2
threads: 1
restarts: 1000000
checkpoint: {every_steps: 50, keep: 2}
END
broken=$dir/broken quiet=$dir/quiet log=$dir/broken.log
mkdir -p "$broken/checkpoints"
kinds=${OPERATIONS_KINDS:-kill kill stall flip slow}
if [ -n "${OPERATIONS_MOUNTS:-}" ] && mount -t tmpfs -o size=64m tmpfs "$broken/checkpoints"; then
    [ -n "${OPERATIONS_KINDS:-}" ] || kinds="$kinds full"
else
    echo '# no full disks: that needs root and mount namespaces'
fi

pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null; umount "$broken/checkpoints" 2>/dev/null; rm -rf "$dir"' EXIT
# start OUTPUT LOG ARGUMENTS... - in the background; $pid
start() {
    start_output=$1 start_log=$2
    shift 2
    "$lmtrain" pretrain "$dir/job.yaml" --set "output=$start_output" "$@" >>"$start_log" 2>&1 &
    pid=$!
}
last_step() { grep '"loss_hex"' "$broken/metrics.jsonl" 2>/dev/null | tail -n 1 | sed 's/.*"step":\([0-9]*\),.*/\1/'; }
# within SECONDS COMMAND...
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}
# What the log reports of trouble; each line is one alarm.
alarms='restarting \(|the replicas? of .* differ|is not saved|is still being written|still writes|no progress'
n_alarms() { grep -cE "$alarms" "$log"; }
# since PATTERN - the log says it behind the line $mark
since() { tail -n +"$((mark + 1))" "$log" | grep -qE "$1"; }
goes_on() { [ "$(last_step || echo 0)" != "$step_before" ] && [ -n "$(last_step)" ]; }
no_ranks() { [ -z "$(ranks "$broken")" ]; }
is_gone() { ! kill -0 "$pid" 2>/dev/null; }

# The run is ended with a checkpoint and goes on with a fault that waits for it.
again_with() {
    kill -TERM "$pid"
    within "$patience" is_gone || return 1
    wait "$pid"
    LMTRAIN_FAULT=$1 start "$broken" "$log"
}
one_rank() { ranks "$broken" | shuf -n 1 --random-source=<(yes "$RANDOM"); }

# Each fault: injects, and sets $named, the pattern of what must be said.
fault_kill() {
    local one
    one=$(one_rank)
    if [ $((RANDOM % 4)) = 0 ]; then
        kill -KILL "$pid"
        wait "$pid" 2>/dev/null
        within "$patience" no_ranks # they save and end by themselves, and hold the folder until then
        named='resuming from'
        start "$broken" "$log"
    else
        [ -n "$one" ] && kill -KILL "$one" 2>/dev/null
        named='rank [01] .*(SIGKILL|signal 9|killed)'
    fi
}
fault_stall() {
    local one
    one=$(one_rank)
    [ -n "$one" ] && kill -STOP "$one" 2>/dev/null
    named='rank [01] .*stopped by a signal'
}
fault_flip() {
    again_with "rank1:step:$(($(last_step) + 30)):flip"
    named='the replicas of .* on .* differ' # of two nobody knows which is right: both are named
}
fault_slow() {
    again_with 'rank0:save:writing:sleep20'
    named='the checkpoint of step [0-9]+ is still being written|step-[0-9]+ takes'
}
fault_full() {
    fill
    named='step [0-9]+ is not saved: .*No space left'
}
fill() { dd if=/dev/zero bs=64k status=none >>"$broken/checkpoints/ballast" 2>/dev/null; }
# Of a full disk: what an old checkpoint leaves free is filled, too.
is_found() {
    since "$named" && return 0
    [ "$1" != full ] || fill
    return 1
}
after_full() { rm -f "$broken/checkpoints/ballast"; }

declare -A injected found resumed
false_alarms=0 expected=0
# one FAULT
one() {
    local kind=$1 now
    now=$(n_alarms)
    if [ "$now" -gt "$expected" ]; then
        false_alarms=$((false_alarms + now - expected))
        echo "# false alarm: $(grep -E "$alarms" "$log" | tail -n $((now - expected)))"
    fi
    mark=$(wc -l <"$log") step_before=$(last_step)
    injected[$kind]=$((${injected[$kind]:-0} + 1))
    "fault_$kind"
    if within "$patience" is_found "$kind"; then
        found[$kind]=$((${found[$kind]:-0} + 1))
    else
        echo "# $kind was not found: nothing says '$named'; the log since then:"
        tail -n +"$((mark + 1))" "$log" | tail -n 15 | sed 's/^/#    /'
    fi
    [ "$kind" != full ] || after_full
    [ "$kind" != slow ] || within "$patience" since 'is written after|restarting'
    step_before=$(last_step)
    if within "$patience" goes_on; then resumed[$kind]=$((${resumed[$kind]:-0} + 1)); fi
    sleep 3 # what belongs to it is logged
    expected=$(n_alarms)
    echo "# $(date +%H:%M:%S) step $(last_step): $kind $((${found[$kind]:-0}))/$((injected[$kind])) found"
}

begin=$SECONDS
start "$broken" "$log"
step_before=0
within "$patience" goes_on
bag=()
while [ $((SECONDS - begin + every)) -lt $((minutes * 60)) ]; do
    sleep "$every" &
    wait $!
    if is_gone; then
        wait "$pid"
        echo "# the job ended by itself with status $?"
        tail -n 20 "$log" | sed 's/^/#    /'
        n_wrong=$((n_wrong + 1))
        step_before=$(last_step)
        start "$broken" "$log"
        within "$patience" goes_on
    fi
    [ ${#bag[@]} -gt 0 ] || mapfile -t bag < <(tr ' ' '\n' <<<"$kinds" | shuf --random-source=<(yes "$RANDOM"))
    one "${bag[0]}"
    bag=("${bag[@]:1}")
done
kill -TERM "$pid"
wait "$pid"
expect 'the run ends with a checkpoint' 0 '' test $? = 75
broken_seconds=$((SECONDS - begin))
step=$(find "$broken/checkpoints" -maxdepth 1 -name 'step-*' ! -name '*.partial' -printf '%f\n' | sort | tail -n 1)
steps=$((10#${step#step-}))

begin=$SECONDS
start "$quiet" "$dir/quiet.log" --set "train.steps=$steps" --set train.hang_abort_seconds=600
wait "$pid"
expect "a quiet run of $steps steps" 0 '' test $? = 0
pid=
quiet_seconds=$((SECONDS - begin))
for file in "$quiet/checkpoints/$step"/*.safetensors; do
    expect "the same $(basename "$file")" 0 '' cmp "$file" "$broken/checkpoints/$step/$(basename "$file")"
done
losses() { sed -n 's/.*"step":\([0-9]*\),.*"loss_hex":"\([^"]*\)".*"grad_norm_hex":"\([^"]*\)".*/\1 \2 \3/p' "$1/metrics.jsonl" | sort -n -u; }
losses "$quiet" >"$dir/losses.quiet"
losses "$broken" >"$dir/losses.broken"
expect 'no step is lost, and each has the same loss' 0 '' cmp "$dir/losses.quiet" "$dir/losses.broken"
expect 'no false alarm' 0 '' test $false_alarms = 0
expect 'no process is left' 0 '' test -z "$(ranks "$broken")"

goodput=$(awk -v q="$quiet_seconds" -v b="$broken_seconds" 'BEGIN { printf "%.1f", 100 * q / b }')
table=$(
    printf '%s, %s min, a fault every %s s, OPERATIONS_SEED=%s, commit %s: %s steps, goodput %s %% (%s s of a quiet run in %s s), ' \
        "$(date +%F)" "$minutes" "$every" "$seed" "$(git rev-parse --short HEAD 2>/dev/null)" "$steps" "$goodput" "$quiet_seconds" "$broken_seconds"
    printf '%s false alarms, final checkpoint %s.\n\n| fault | injected | found and named | went on |\n|---|---|---|---|\n' "$false_alarms" \
        "$([ "$n_wrong" = 0 ] && echo 'equal' || echo 'NOT, or something else is wrong')"
    for kind in kill stall flip full slow; do
        printf '| %s | %s | %s | %s |\n' $kind "${injected[$kind]:-0}" "${found[$kind]:-0}" "${resumed[$kind]:-0}"
    done
)
printf '%s\n' "$table"
[ -z "${OPERATIONS_TABLE:-}" ] || printf '\n%s\n' "$table" >>"$OPERATIONS_TABLE"
for kind in "${!injected[@]}"; do
    expect "each $kind is found and named" 0 '' test "${injected[$kind]}" = "${found[$kind]:-0}"
    expect "and steps go on after each $kind" 0 '' test "${injected[$kind]}" = "${resumed[$kind]:-0}"
done
finish
