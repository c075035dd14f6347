#!/bin/sh
# test/cli/train.sh - lmtrain pretrain as people call it: runs, stops, resumes, kills, refusals
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# ---- a run ----

expect 'a run ends' 0 '^done: step 12 in' pretrain one
refuse 'no terminal: no control characters' "$(printf '[\r\033]')"
expect 'a line a step' 0 '' test "$(printf '%s\n' "$output" | grep -cE '^step [0-9]+/12  loss')" = 12
expect 'its log begins with who wrote it' 0 '^---- .*, process [0-9]+, rank 0 of 1' cat "$dir/one/log/rank-0.log"
expect 'and has what was on the screen' 0 '^12$' grep -cE '^step [0-9]+/12  loss' "$dir/one/log/rank-0.log"
expect 'to the end' 0 '^done: step 12 in' cat "$dir/one/log/rank-0.log"
expect 'a metrics line a step' 0 '' test "$(n_logged one)" = 12
# shellcheck disable=SC2016 # awk's
expect 'it learns' 0 '' awk -F '[:,]' '/loss_hex/ { last = $4 } END { exit !(last < 7.2) }' "$dir/one/metrics.jsonl"
expect 'the run folder' 0 '' test -f "$dir/one/job.yaml" -a -d "$dir/one/checkpoints/step-00000012"
expect 'files are for their owner alone' 0 '' test "$(find "$dir/one" -perm /077)" = ''
expect 'its job.yaml is the job' 0 '^  steps: 12$' "$lmtrain" config "$dir/one/job.yaml"
LC_ALL=C LANG=C pretrain ascii >"$dir/ascii.txt" 2>&1
expect 'plain ASCII where the locale is not valid UTF-8' 1 '' env LC_ALL=C grep "$(printf '[\200-\377]')" "$dir/ascii.txt"

expect 'two ranks' 0 '^done: step 12 in' pretrain two --ranks 2
expect 'each has a log' 0 '^rank-0.log rank-1.log $' sh -c "ls '$dir/two/log' | tr '\n' ' '"
expect 'two ranks again' 0 '^done: step 12 in' pretrain again --ranks 2
same_bits 'two ranks, the same bits each time' two again 12
expect 'poisoned memory' 0 '^done' pretrain poison --set debug.poison=true
same_bits 'poisoned memory leaves the bits' one poison 12
expect 'two threads' 0 '^done' pretrain threads --set threads=2
same_bits 'two threads leave the bits' one threads 12
expect 'recompute' 0 '^done' pretrain full --set recompute=full
same_bits 'recompute leaves the bits' one full 12
expect 'without AVX-512 bf16 is computed in fp32, and said so' 0 'bf16 is stored, but computed in fp32' \
    env LMTRAIN_CPU_ISA=avx2 "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/avx2" --set train.steps=3
expect 'a dry run' 0 '^memory of a rank' pretrain dry --dry-run
expect 'leaves nothing' 0 '' test ! -e "$dir/dry"

# ---- stopped, and gone on with ----

# shellcheck disable=SC2317 # wait_until calls it
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }

for ranks in 1 2; do
    long="--ranks $ranks --set train.steps=150 --set eval.every_steps=0 --set checkpoint.every_steps=20"
    # shellcheck disable=SC2086 # words
    pretrain whole$ranks $long >"$dir/whole.out" 2>&1
    for signal in TERM USR1; do
        run=stop$ranks$signal
        # shellcheck disable=SC2086
        start $run $long
        wait_until 60 has_logged $run 10
        kill -$signal "$pid"
        ended "$signal saves and leaves, $ranks ranks" 75 $run
        expect "and says how to go on, $ranks ranks" 0 'saved step [0-9]+ of 150.*the same command continues' \
            cat "$dir/$run.out"
        n=$(n_logged $run)
        expect "before its end ($n steps), $ranks ranks" 0 '' test "$n" -lt 150
        # shellcheck disable=SC2086
        expect "it goes on, $ranks ranks" 0 "resuming from .*step $n\$" pretrain $run $long
        same_bits "with the bits of a run that was not stopped, $ranks ranks, $signal" whole$ranks $run 150
    done
done
expect 'and its weights' 0 '' cmp "$dir/whole1/checkpoints/step-00000150/rank-00000.safetensors" \
    "$dir/stop1TERM/checkpoints/step-00000150/rank-00000.safetensors"
long2=$long

# ---- stopped at a step that is given ----

for ranks in 1 2; do
    until="--set train.steps=150 --set eval.every_steps=0 --set checkpoint.every_steps=20"
    # shellcheck disable=SC2086 # words
    expect "--stop-at stops at its step, $ranks ranks" 75 'saved step 30 of 150 and stopped, as --stop-at says' \
        pretrain at$ranks --ranks $ranks $until --stop-at 30
    expect 'with a checkpoint of it' 0 '' test -d "$dir/at$ranks/checkpoints/step-00000030"
    expect 'and no further step' 0 '' test "$(n_logged at$ranks)" = 30
    # shellcheck disable=SC2086
    expect "stays there, $ranks ranks" 75 'saved step 30 of 150' pretrain at$ranks --ranks $ranks $until --stop-at 20
    # shellcheck disable=SC2086
    expect "and goes on to a later one, $ranks ranks" 75 'saved step 45 of 150' pretrain at$ranks --ranks $ranks $until --stop-at 45
    # shellcheck disable=SC2086
    expect "and to the end, $ranks ranks" 0 '^done: step 150' pretrain at$ranks --ranks $ranks $until --stop-at 200
    same_bits "with the bits of a run that was not stopped, $ranks ranks" whole$ranks at$ranks 150
done

# ---- stopped in an evaluation: saved before it, left at its next batch, done by the resumed run ----

# evals RUN - each evaluation with its loss, exactly
evals() {
    sed -n 's/.*"step":\([0-9]*\),"eval_loss".*"eval_loss_hex":"\([^"]*\)".*/\1 \2/p' "$dir/$1/metrics.jsonl"
}
same_evals() {
    expect "$1" 0 '^12 ' evals "$2"
    expect_evals=$output
    expect "$1, $3" 0 '' test "$(evals "$3")" = "$expect_evals"
}
for action in sigterm sigkill; do
    status=$([ $action = sigterm ] && echo 75 || echo 137)
    expect "$action in the last evaluation" "$status" '' env LMTRAIN_FAULT=rank0:evaluate:12:$action \
        "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/last$action"
    expect "$action: the training is saved before it" 0 '' test -d "$dir/last$action/checkpoints/step-00000012"
    expect "$action: there is no result" 0 '^2$' grep -c eval_loss "$dir/last$action/metrics.jsonl"
    expect "$action: the same command evaluates" 0 '^step 12  held-out loss .*' pretrain last$action
    same_evals "$action: as a run that was not stopped" one last$action
    expect "$action: once" 2 'the run is finished, step 12 of 12' pretrain last$action
done
expect 'a signal is answered at once' 0 'lmtrain: SIGTERM: the run stops this evaluation' \
    env LMTRAIN_FAULT=rank0:evaluate:12:sigterm sh -c '"$@"; test $? = 75' sh \
    "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/answered"
expect 'and how to go on is said' 0 'step 12 of 12 is saved, its evaluation was interrupted .*the same command' printf '%s\n' "$output"
for step in 4 8; do
    # Every second step: one with a save of its own, one without.
    often='--ranks 2 --set checkpoint.every_steps=8'
    # shellcheck disable=SC2086
    expect "another rank's signal in the evaluation of step $step" 75 "saved step $step of 12 on a signal" \
        env LMTRAIN_FAULT=rank1:evaluate:$step:sigterm "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/mid$step" $often
    # shellcheck disable=SC2086
    expect 'the resumed run begins with it' 0 "step $step  held-out loss" pretrain mid$step $often
    same_evals 'and has the evaluations of one that was not stopped' two mid$step
    same_bits "and its bits, step $step" two mid$step 12
done
patient='--set eval.every_steps=1 --set eval.early_stop.patience=2 --set optimizer.lr=3 --set train.steps=40'
# shellcheck disable=SC2086
expect 'an early stop' 0 'stopping early$' pretrain patient $patient
last=$(evals patient | tail -n 1 | cut -d' ' -f1)
for step in $((last - 1)) "$last"; do
    # shellcheck disable=SC2086
    expect "a signal in evaluation $step of $last before one" 75 '' env LMTRAIN_FAULT=rank0:evaluate:"$step":sigterm \
        "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/patient$step" $patient
    # shellcheck disable=SC2086
    expect 'it stops there all the same' 0 "^step $last: held-out loss did not improve in 2 evaluations: stopping" pretrain patient"$step" $patient
    expect 'after the same evaluations' 0 '' test "$(evals patient)" = "$(evals patient"$step")"
    # shellcheck disable=SC2086
    expect 'and the checkpoint knows' 2 "was stopped early at step $last" pretrain patient"$step" $patient
done

# ---- a rank is killed ----

# rank_of DAEMON NUMBER - its process; a daemon is the only child of the head that was started
rank_of() {
    # shellcheck disable=SC2013 # numbers
    for process in $(children_of "$1"); do
        tr '\0' '\n' <"/proc/$process/environ" | grep -qx "PMIX_RANK=$2" && echo "$process"
    done
}
printf '%s' "$dir/job.yaml" >"$dir/pattern"
# A rank's command line has the job's path; the grep's own has not.
# shellcheck disable=SC2317
no_process() { ! grep -lsFf "$dir/pattern" /proc/[0-9]*/cmdline; }
# shellcheck disable=SC2317
nothing_shared() { ! find /dev/shm -name "lmtrain-*-$1-*" | grep .; }

# shellcheck disable=SC2086
start killed $long2
wait_until 60 test -d "$dir/killed/checkpoints/step-00000020"
daemon=$(children_of "$pid")
second=$(rank_of "$daemon" 1)
expect 'ps -e says which rank it is' 0 '^lmtrain:1$' cat "/proc/$second/comm"
# shellcheck disable=SC2016 # sh's
expect 'and ps -ef' 0 '^lmtrain\[1\] pretrain ' sh -c 'tr "\0" " " <"/proc/$1/cmdline"' sh "$second"
expect 'and that the daemon is one' 0 '^lmtrain-daemon$' cat "/proc/$daemon/comm"
kill -KILL "$second"
ended 'a killed rank ends the job' 5 killed
expect 'which names it as the first cause' 0 'rank 1 on .* was killed by signal 9 \(Killed\) \(last seen: ' cat "$dir/killed.out"
refuse 'and the other does not promise to save' 'the run completes this step'
expect 'once' 0 '' test "$(grep -c 'error: rank' "$dir/killed.out")" = 1
expect 'nothing is left in /dev/shm' 0 '' nothing_shared "$daemon"
expect 'nor a process' 0 '' wait_until 10 no_process
expect 'before its end' 0 '' test "$(n_logged killed)" -lt 150
# shellcheck disable=SC2086
expect 'it goes on from the last checkpoint' 0 'resuming from .*step [0-9]*0$' pretrain killed $long2
refuse 'nothing has changed' 'changed since'
same_bits 'with the bits of a run that nobody killed' whole2 killed 150

# ---- a damaged checkpoint ----

# damage RUN STEP FILE OFFSET_FROM_END - flip a byte
damage() {
    damage_file=$dir/$1/checkpoints/step-$2/$3
    damage_at=$(($(wc -c <"$damage_file") - $4))
    # shellcheck disable=SC2059 # an octal escape
    printf "\\$(printf %o $(($(od -An -tu1 -j $damage_at -N 1 "$damage_file") ^ 1)))" |
        dd of="$damage_file" bs=1 seek=$damage_at conv=notrunc 2>/dev/null
}
expect 'a run' 0 '^done' pretrain flipped --ranks 2
damage flipped 00000012 rank-00001.safetensors 7
expect 'one flipped byte of another rank' 0 'step-00000012 cannot be read: falling back to step 8' pretrain flipped --ranks 2
flipped=$output
expect 'is named' 0 'rank 1: .*step-00000012: .*rank-00001.safetensors: tensor .* is damaged' printf '%s\n' "$flipped"
expect 'the damaged one is kept' 0 'step-00000012 is kept as .*step-00000012.damaged$' printf '%s\n' "$flipped"
expect 'as it was' 0 '' test -f "$dir/flipped/checkpoints/step-00000012.damaged/rank-00001.safetensors"
expect 'the run ends again' 0 '^done: step 12' printf '%s\n' "$flipped"
same_bits 'with the same bits' two flipped 12
same_evals 'and evaluations' two flipped
damage flipped 00000012 manifest.json 9
damage flipped 00000008 rank-00000.safetensors 7
expect 'two of them, in different places' 0 'step-00000008 cannot be read: falling back to step 4$' pretrain flipped --ranks 2
expect 'neither of which takes the name of another' 0 '' test -d "$dir/flipped/checkpoints/step-00000012.damaged2" -a \
    -d "$dir/flipped/checkpoints/step-00000008.damaged"
same_bits 'the same bits once more' two flipped 12
for step in 04 08 12; do
    damage flipped 000000$step rank-00000.safetensors 7
done
expect 'all of them' 3 'step-00000004.*is damaged' pretrain flipped --ranks 2
expect 'are left as they are' 0 '' test -d "$dir/flipped/checkpoints/step-00000012"
# ---- a run whose folder is deleted ----

# shellcheck disable=SC2086
start gone $long2
wait_until 60 has_logged gone 10
first=$(rank_of "$(children_of "$pid")" 0)
kill -STOP "$first" # until its next look, a second after the last, is due: fast machines do all steps in less
mv "$dir/gone" "$dir/moved"
sleep 1.1
kill -CONT "$first"
is_made_again() { # RUN
    ended 'a run whose folder goes away ends well' 0 "$1"
    expect 'and has said that it makes it again' 0 "warn: .*/$1 was deleted or moved during the run: it is created again" \
        cat "$dir/$1.out"
    expect 'once' 0 '^1$' grep -c 'deleted or moved' "$dir/$1.out"
    expect 'with its weights' 0 '' cmp "$dir/whole2/checkpoints/step-00000150/rank-00001.safetensors" \
        "$dir/$1/checkpoints/step-00000150/rank-00001.safetensors"
}
is_made_again gone
expect 'and all else' 0 '' test -f "$dir/gone/job.yaml" -a -f "$dir/gone/log/rank-0.log" -a "$(n_logged gone)" -gt 0
# Beneath the first checkpoint, whose commit then fails.
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank0:save:before_commit:20:stop start beneath $long2
first=
# shellcheck disable=SC2317 # wait_until calls it
is_stopped() {
    first=$(rank_of "$(children_of "$pid")" 0)
    [ -n "$first" ] && grep -q '^State:.T' "/proc/$first/status"
}
wait_until 60 is_stopped
mv "$dir/beneath" "$dir/moved2"
kill -CONT "$first"
is_made_again beneath

# ---- a run whose folder is used ----

expect 'a finished run' 2 'the run is finished, step 12 of 12 \(hint: raise train.steps' pretrain one
expect '--resume none' 2 'resume none, but .*holds a run at step 12' pretrain one --resume none
expect 'another seed' 2 'train.seed is 2, but the run was started with 1' pretrain one --set train.steps=16 --set train.seed=2
expect 'another model' 2 'model.ffn_size is 96, but the run was started with 64' \
    pretrain one --set train.steps=16 --set model.ffn_size=96
expect 'other data' 2 'data.train: the datasets' pretrain one --set train.steps=16 --set "data.train=$dir/held"
expect 'another batch' 2 'train.global_batch is 16' pretrain one --set train.steps=16 --set train.global_batch=16
expect 'another lr is logged' 0 'changed since the checkpoint: optimizer.lr is now 0.005, was 0.01' \
    pretrain one --set train.steps=14 --set optimizer.lr=0.005
expect 'and steps' 0 'train.steps is now 14, was 12' printf '%s' "$output"
expect 'and is in the metrics' 0 '' grep -q '"changed"' "$dir/one/metrics.jsonl"
expect 'from another run' 0 'resuming from .*/two/checkpoints/step-00000012, step 12' \
    pretrain branch --set train.steps=13 --resume "$dir/two"
expect 'from another run into a used folder' 2 'already holds another run, at step 13' \
    pretrain branch --set train.steps=14 --resume "$dir/two"
# Of other arithmetic it is resumed only if that is said, and on all ranks.
other="--set train.steps=13 --set train.dtype=fp32 --resume $dir/two"
# shellcheck disable=SC2086 # words
expect 'another dtype has to be accepted' 2 'train.dtype: there bf16, here fp32 \(dtype of weights and activations\)' pretrain dtype $other
expect 'by an option' 0 'hint: set back what was changed, or --accept-numerics' printf '%s' "$output"
# shellcheck disable=SC2086
expect 'on two ranks, too' 0 'warn: other numerics .* by --accept-numerics: train.dtype is now fp32, was bf16' \
    pretrain dtype $other --ranks 2 --accept-numerics
expect 'once' 0 '^1$' grep -c '"event": *"numerics"' "$dir/dtype/metrics.jsonl"
expect 'and in the checkpoint' 0 '"numerics_changes":\[\{"step":12,.*"accepted":\["train.dtype is now fp32, was bf16"\]' \
    grep -o '"numerics_changes".*' "$dir/dtype/checkpoints/step-00000013/manifest.json"
expect 'which resumes as it is' 0 '^done: step 14' pretrain dtype --ranks 2 --set train.steps=14 --set train.dtype=fp32
expect 'from nowhere' 3 'nowhere' pretrain fresh --resume "$dir/nowhere"

start busy --set train.steps=5000 --set eval.every_steps=0 --set checkpoint.every_steps=0
wait_until 60 has_logged busy 1
expect 'a second job in the same folder' 2 'is in use by another job' pretrain busy
expect 'also of two ranks' 2 'is in use by another job' pretrain busy --ranks 2
kill -TERM "$pid"
ended 'leaves the first alone' 75 busy

expect 'keep' 0 '^done' pretrain keep --set train.steps=10 --set checkpoint.every_steps=2 --set checkpoint.keep=2
expect 'keeps the newest two' 0 '' test "$(cd "$dir/keep/checkpoints" && echo *)" = 'step-00000008 step-00000010'

# ---- evaluations, and what goes wrong ----

expect 'early stop' 0 'held-out loss did not improve in 2 evaluations: stopping' pretrain early --set eval.every_steps=1 \
    --set eval.early_stop.patience=2 --set optimizer.lr=3 --set train.steps=40
expect 'saves where it stops' 0 '^done: step [0-9]+ in' printf '%s\n' "$output"
expect 'before the last step' 0 '' test "$(n_logged early)" -lt 40
expect 'a held-out share' 0 'held-out loss [0-9.]+ nats' pretrain split --set eval.data= --set eval.split=0.1
expect 'a run that explodes' 1 '^lmtrain: 3 steps in a row had non-finite gradients.*hint: a lower optimizer.lr' \
    pretrain wild --set train.steps=60 --set optimizer.lr=100 --set optimizer.weight_decay=100 --set train.max_skipped=2
expect 'says which steps were skipped' 0 'step [0-9]+: gradients are not finite: the step is skipped' \
    printf '%s\n' "$output"
expect 'on all ranks' 1 'not finite' pretrain wild2 --ranks 2 --set train.steps=60 --set optimizer.lr=100 \
    --set optimizer.weight_decay=100 --set train.max_skipped=2
finish
