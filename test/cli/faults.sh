#!/bin/sh
# test/cli/faults.sh - what breaks while a job runs, on demand (LMTRAIN_FAULT): deaths at each stage of a save, stalls,
# gradients and parameters that go wrong, ranks that do not belong together, full disks; and how the job goes on
. test/cli/support/check.sh
. test/cli/support/tiny.sh

steps=12
plain="--set eval.every_steps=0 --set eval.data= --set train.steps=$steps"

# broken NAME RULES STATUS RUN ARGUMENTS... - the job with these faults ends with STATUS
broken() {
    broken_name=$1 broken_rules=$2 broken_status=$3
    shift 3
    broken_run=$1
    rm -rf "${dir:?}/$broken_run"
    # shellcheck disable=SC2086 # words
    LMTRAIN_FAULT=$broken_rules pretrain "$@" $plain >"$dir/$broken_run.out" 2>&1
    broken_got=$?
    # shellcheck disable=SC2016 # sh's
    expect "$broken_name" "$broken_status" '' sh -c 'tail -n 30 "$1"; exit "$2"' sh "$dir/$broken_run.out" $broken_got
}

# said NAME PATTERN RUN
said() { expect "$1" 0 "$2" cat "$dir/$3.out"; }

# shellcheck disable=SC2086
for ranks in 2 4; do
    pretrain whole$ranks --ranks $ranks $plain >"$dir/whole.out" 2>&1
    expect "a run of $ranks ranks that is left alone" 0 '^done' cat "$dir/whole.out"
done

# ---- a rule that cannot be read ----

broken 'a fault that is none' rank1:lunch 2 none --ranks 2
said 'is refused once, with what there is' "unknown place or action in 'rank1:lunch'.*save:before_rename.*sigkill" none
expect 'before any rank is started' 0 '' test ! -e "$dir/none/log"

# ---- killed at each stage of a save, and gone on with ----

# killed RANK PLACE STEP - at the save of step 8; the run then goes on from STEP
killed() {
    broken "rank $1 is killed at $2" "rank$1:$2:8" 5 killed --ranks 2
    said "it was there, $1 $2" "LMTRAIN_FAULT: rank $1 at $2:8: sigkill" killed
    # shellcheck disable=SC2086
    expect "nothing but the steps since step $3 is lost, $1 $2" 0 "resuming from .*, step $3\$" \
        pretrain killed --ranks 2 $plain
    same_bits "and the bits are those of a whole run, $1 $2" whole2 killed $steps
}
for place in begin writing before_rename renamed before_manifest before_commit; do
    killed 0 save:$place 4
done
for place in begin writing before_rename renamed; do
    killed 1 save:$place 4
done
killed 0 save:committed 8
killed 1 save:committed 8
expect 'no part of a checkpoint is left' 0 '' test "$(find "$dir/killed/checkpoints" -type d -name 'step-*.*')" = ''

# ---- started again by itself ----

broken 'a job that may restart ends well' rank1:save:writing:8,attempt1:rank0:step11:segv 0 again \
    --ranks 2 --set restarts=2
said 'the second time from the next checkpoint' 'resuming from .*, step 8$' again
same_bits 'and with the same bits' whole2 again $steps
broken 'one restart is not two' rank1:step6,attempt1:rank0:step7:abort 134 once --ranks 2 --set restarts=1

# ---- killed at random (test/soak/kills.sh does it for longer) ----

seed=${FAULTS_SEED:-$(date +%s)}
echo "# FAULTS_SEED=$seed"
# shellcheck disable=SC2317 # wait_until calls these
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
# kill_rank RUN RANK - status 1 if there is no such process now
# shellcheck disable=SC2317
kill_rank() {
    # shellcheck disable=SC2013 # numbers
    for process in $(grep -lsaF "output=$dir/$1" /proc/[0-9]*/cmdline | cut -d/ -f3); do
        tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx "PMIX_RANK=$2" && kill -KILL "$process" && return
    done
    return 1
}
long="--ranks 2 --set eval.every_steps=0 --set eval.data= --set train.steps=300 --set checkpoint.every_steps=20
    --set checkpoint.keep=2"
# shellcheck disable=SC2086
pretrain long $long >"$dir/long.out" 2>&1
# shellcheck disable=SC2086
start random $long --set restarts=10
# Three ranks and steps, in increasing order.
awk -v seed="$seed" 'BEGIN { srand(seed); for (i = 0; i < 3; i++) print int(2 * rand()), int(90 * (i + rand())) + 5 }' >"$dir/kills"
while read -r rank step; do
    expect "rank $rank is killed after step $step" 0 '' wait_until 60 has_logged random "$step"
    expect 'it was alive' 0 '' wait_until 60 kill_rank random "$rank"
done <"$dir/kills"
ended 'three kills, and the job ends well' 0 random
expect 'restarted' 0 '' test "$(grep -c 'restarting (' "$dir/random.out")" -ge 2
same_bits 'with the bits of a run that nobody killed' long random 300

# ---- how ranks end ----

broken 'a crash' rank1:step3:segv 5 crash --ranks 2
said 'is named' 'rank 1 on .* was killed by signal 11 \(Segmentation fault\)' crash
broken 'an abort' rank1:gradients:3:abort 134 crash --ranks 2
said 'is named too' 'rank 1 on .* was killed by signal 6 \(Aborted\)' crash
broken 'an exit' rank1:step3:exit 1 crash --ranks 2
said 'and an exit' 'rank 1 on .* exited with status 1' crash
broken 'a death before joining' rank0:start 5 crash --ranks 2
said 'is named as well' 'rank 0 on .* was killed by signal 9' crash
broken 'a death within an op' 'rank1:op:linear_dw layers.0:3' 5 crash --ranks 2
said 'tells which' 'rank 1 on .* was killed by signal 9 .*in linear_dw layers\.0, step 3, micro-batch 0' crash

# ---- gradients and parameters that go wrong ----

broken 'a NaN in the gradients of one rank' rank1:gradients:6:nan 0 nan --ranks 2 --set train.compare_every=1
said 'skips the step' 'step 6: gradients are not finite: the step is skipped' nan
expect 'on all, who still are equal' 0 '"step":12,.*"skipped":1,' cat "$dir/nan/metrics.jsonl"
refuse 'and were at each step' diverged

broken 'a bit of one rank flips' rank2:step6:flip 5 flip --ranks 4 --set restarts=0
said 'it is named before the next save' \
    "step 8: the replica of embedding.weight.* on rank 2 \($(hostname)\) differs from that of the 3 other ranks" flip
expect 'which is not made' 0 '' test ! -e "$dir/flip/checkpoints/step-00000008"
expect 'and the metrics tell' 0 '"step":8,"event":"diverged","text":"step 8: the replica of' cat "$dir/flip/metrics.jsonl"
broken 'with a restart the run goes on' rank2:step7:flip 0 flip --ranks 4 --set restarts=1 --set train.compare_every=1
said 'it is found at once' 'step 7: the replica of' flip
same_bits 'and ends with the bits that it should have' whole4 flip $steps
expect 'the event stays' 0 '"step":7,"event":"diverged"' cat "$dir/flip/metrics.jsonl"
broken 'of two ranks' rank1:step6:flip 5 flip --ranks 2
said 'both are named' 'step 8: the replicas of .* on rank 0 \(.*\), rank 1 \(.*\) differ .*2 copies are too few to identify it' flip

broken 'under zero 1, where weights are gathered' rank1:gradients:7:flip 0 flip --ranks 2 --set parallel.zero=1 \
    --set restarts=1 --set train.compare_every=1
said 'it is found before the update' 'step 7: the replicas of .*weight on rank 0 .*, rank 1 .* differ' flip
same_bits 'and mended' whole2 flip $steps

# ---- ranks that do not belong together ----

# differs NAME PATTERN ARGUMENTS... - what the second rank has more
differs() {
    differs_name=$1 differs_pattern=$2
    shift 2
    # shellcheck disable=SC2086 # words
    expect "$differs_name" 2 "$differs_pattern" "$lmtrain_mpirun" --oversubscribe \
        -n 1 "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/parted" : \
        -n 1 "$@" "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/parted" $differs_set
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
sed -i 's/^ranks: 1$//' "$dir/job.yaml"
if lmtrain_mpirun=$(command -v mpirun); then
    differs_set='--set optimizer.lr=0.5'
    differs 'another job' "the job differs between ranks: 'optimizer.lr: 0.01' on rank 0 \(.*\), 'optimizer.lr: 0.5' on rank 1"
    differs_set=
    differs 'other kernels' "the description of the kernels differs between ranks: 'cpu .*' on rank 0 \(.*\), 'cpu plain .*' on rank 1" \
        -x LMTRAIN_CPU_ISA=plain
else
    echo 'skip ranks of different jobs: there is no mpirun'
fi

# ---- ranks that stand still ----

slow="--ranks 2 --set train.hang_seconds=2 --set train.hang_abort_seconds=4"
# shellcheck disable=SC2086
LMTRAIN_FAULT='rank1:op:attention layers.1:3:stall' start stall $slow $plain
stall=$pid
# shellcheck disable=SC2086
LMTRAIN_FAULT='rank1:gradients:3:stop' start stop $slow $plain
ended 'a rank that is stopped ends the job' 5 stop
said 'and is named so' 'rank 1 .*: in reading data, step 3, micro-batch 1 since .*, stopped by a signal' stop
pid=$stall
ended 'a rank that stalls too' 5 stall
said 'with its op, layer and micro-batch' 'rank 1 .*: in attention layers\.1, step 3, micro-batch 0 since' stall
said 'and what others wait for' \
    'rank 0 .*: waits in .* dp .*, step 3.*rank 1 has not reached it: it is in attention layers\.1' stall

# All stopped together, by Ctrl-Z, are no stall. (A head stopped by SIGTSTP has stopped its ranks before.)
# shellcheck disable=SC2086
start suspended $long --set train.hang_seconds=2 --set train.hang_abort_seconds=8
expect 'ranks at work' 0 '' wait_until 60 has_logged suspended 5
# is STATE PROCESS... - all of them are in that state
# shellcheck disable=SC2317
is() {
    is_state=$1
    shift
    for process in "$@"; do grep -q "^State:[[:space:]]*$is_state" "/proc/$process/status" || return 1; done
}
kill -TSTP "$pid"
ranks=$(children_of "$(children_of "$pid")")
# shellcheck disable=SC2086
expect 'Ctrl-Z stops them all' 0 '' wait_until 25 is T "$pid" $ranks
stopped_at=$(n_logged suspended)
sleep 9
kill -CONT "$pid"
ended 'continued, the job ends well' 0 suspended
expect 'it had stood still in its midst' 0 '' test "$stopped_at" -lt 300
same_bits 'with the bits of a run that nobody stopped' long suspended 300
expect 'and no stall was seen' 0 '' test "$(grep -c 'made no progress' "$dir/suspended.out")" = 0

# ---- a full disk ----

# full NAME STATUS SIZE ARGUMENTS... - a run into a file system of that size; what it leaves is listed in $dir/full.list
full() {
    full_name=$1 full_status=$2 full_size=$3
    shift 3
    # shellcheck disable=SC2016 # sh's
    expect "$full_name" "$full_status" '' unshare -m sh -c 'mount -t tmpfs -o size="$1" tmpfs "$2/full" || exit 99
        shift 2
        "$@" >"$dir/full.out" 2>&1
        status=$?
        cd "$dir/full" || exit 99
        find checkpoints -mindepth 1 -maxdepth 1 -name "step-*" | sort >"$dir/full.list"
        cp metrics.jsonl "$dir/full.jsonl"
        exit $status' sh "$full_size" "$dir" "$@"
}
mkdir "$dir/full"
export dir
if [ "$(id -u)" = 0 ] && unshare -m mount -t tmpfs tmpfs "$dir/full" 2>/dev/null; then
    # shellcheck disable=SC2086
    full 'a disk that holds two checkpoints' 1 5m "$lmtrain" pretrain "$dir/job.yaml" --ranks 2 $plain \
        --set train.steps=20 --set "output=$dir/full"
    said 'is said to be full, with file and missing bytes' \
        'step 12 is not saved: .*/step-00000012.partial/rank-0000..safetensors: cannot write the last [0-9.]* KiB of .*No space left' full
    said 'the run goes on' 'the last checkpoint is of step 8, training continues' full
    expect 'to its last step' 0 '"step":20,"loss"' cat "$dir/full.jsonl"
    said 'and ends with the error' '^lmtrain: step 20 is not saved: .*; the last checkpoint is of step 8' full
    expect 'it has what it had' 0 '' test "$(tr '\n' ' ' <"$dir/full.list")" = 'checkpoints/step-00000004 checkpoints/step-00000008 '
    # shellcheck disable=SC2086
    full 'a disk that holds none' 1 1m "$lmtrain" pretrain "$dir/job.yaml" --ranks 2 $plain --set "output=$dir/full"
    said 'ends the run at its first save' '^lmtrain: step 4 is not saved: .*; there is no checkpoint' full
    said 'and says why' 'cannot write the last .*: No space left on device' full
else
    echo 'skip a full disk: a file system cannot be mounted here'
fi

# ---- the supervisor is killed ----

printf '%s' "$dir/job.yaml" >"$dir/pattern"
# shellcheck disable=SC2317
no_process() { ! grep -lsFf "$dir/pattern" /proc/[0-9]*/cmdline; }
# shellcheck disable=SC2317
nothing_shared() { ! find /dev/shm -name "lmtrain-*-$1-*" | grep .; }

start orphans --ranks 2 --set train.steps=100000 --set checkpoint.every_steps=0 --set eval.every_steps=0
wait_until 60 has_logged orphans 3
daemon=$(children_of "$pid")
expect 'a job has a folder in shared memory' 1 '' nothing_shared "$daemon"
before=$(date +%s%N)
kill -KILL "$pid"
expect 'ranks without supervisor end' 0 '' wait_until 10 no_process
took=$((($(date +%s%N) - before) / 1000000))
echo "# gone after $took ms"
expect 'within a second, five on a busy machine' 0 '' test "$took" -lt 5000
expect 'and leave nothing in /dev/shm' 0 '' wait_until 5 nothing_shared "$daemon"

# ---- what a job is started with ----

# shellcheck disable=SC2016,SC2086 # sh's; words
expect 'too few open files' 1 'the limit of open files is 40, but 4 ranks on a machine need 100 \(hint: ulimit -n 100\)' \
    sh -c 'ulimit -n 40; exec "$@"' sh "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/files" --ranks 4 $plain
if command -v script >/dev/null; then
    # Ranks write to a terminal that is not theirs.
    oneline=$(printf '%s' "$plain" | tr '\n' ' ')
    # shellcheck disable=SC2086 # words
    expect 'a terminal with tostop' 0 'done: step 12' timeout 60 script -qec \
        "stty tostop; $lmtrain pretrain $dir/job.yaml --set output=$dir/tostop --ranks 2 $oneline" /dev/null
else
    echo 'skip a terminal with tostop: there is no script(1)'
fi

# ---- nobody reads what it says, or nobody does any more ----

# A paused terminal: a pipe that is full.
mkfifo "$dir/full.pipe"
exec 9<>"$dir/full.pipe"
dd if=/dev/zero of="$dir/full.pipe" oflag=nonblock bs=4096 count=1024 2>/dev/null
"$lmtrain" pretrain "$dir/job.yaml" --ranks 2 --set "output=$dir/paused" >&9 2>&9 9>&- &
pid=$!
printf '%s' "output=$dir/paused" >"$dir/pattern" # grep must not find itself
# shellcheck disable=SC2317
head_is_alone() { ! grep -lsaFf "$dir/pattern" /proc/[0-9]*/cmdline | grep -vx "/proc/$pid/cmdline"; }
expect 'a rank dies while nobody reads' 0 '' wait_until 60 kill_rank paused 1
expect 'and all end' 0 '' wait_until 10 head_is_alone
tr -d '\0' <"$dir/full.pipe" 9>&- >"$dir/paused.out" &
reader=$!
exec 9>&-
wait "$reader"
ended 'with its status' 5 paused
said 'which is told as soon as somebody reads' 'rank 1 on .* was killed by signal 9' paused


# Ctrl-C ends the `tee` as well.
mkfifo "$dir/pipe"
cat "$dir/pipe" >"$dir/read" &
reader=$!
"$lmtrain" pretrain "$dir/job.yaml" --ranks 2 --set "output=$dir/unread" --set train.steps=100000 \
    --set checkpoint.every_steps=0 --set eval.every_steps=0 >"$dir/pipe" 2>&1 &
pid=$!
expect 'a job whose output is piped' 0 '' wait_until 60 has_logged unread 3
kill -KILL "$reader"
kill -INT "$pid"
wait "$pid"
expect 'saves although nobody reads any more' 0 '' test $? = 75
expect 'as it was asked to' 0 step- ls "$dir/unread/checkpoints"
finish
