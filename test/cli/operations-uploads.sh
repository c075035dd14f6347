#!/bin/sh
# test/cli/operations-uploads.sh - checkpoint.upload: a command for each checkpoint, which fails, does not end, or loses its run
. test/cli/support/check.sh
. test/cli/support/tiny.sh

plain="--set eval.every_steps=0 --set eval.data="
# said NAME PATTERN RUN
said() { expect "$1" 0 "$2" cat "$dir/$3.out"; }
# shellcheck disable=SC2016 # $1 is the inner shell's
# none_left NAME SECONDS - no process sleeps for so long any more
none_left() { expect "$1" 0 '' wait_until 30 sh -c '! pgrep -f "^sleep $1"' sh "$2"; }

# ---- runs that end meanwhile: each command is a list and a pipe; the number of seconds names its run ----

# shellcheck disable=SC2086
start endless --ranks 2 $plain --set train.steps=4 --set checkpoint.upload_wait_seconds=1 \
    --set 'checkpoint.upload=sleep 1234561 | cat && true'
endless=$pid
# shellcheck disable=SC2086
start limit --ranks 2 $plain --set train.steps=4 --set checkpoint.upload_seconds=1.5 --set checkpoint.upload_wait_seconds=4 \
    --set 'checkpoint.upload=sleep 1234562 | cat && true'
limit=$pid
# shellcheck disable=SC2086
start term --ranks 2 $plain --set train.steps=1000000 --set checkpoint.every_steps=20 --set train.log_every=100 \
    --set "checkpoint.upload=touch $dir/term.begun; sleep 1234563 | cat && true" --set checkpoint.upload_wait_seconds=1
term=$pid
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank0:step:7:sleep2,rank0:step:8 start killed --ranks 2 $plain \
    --set "checkpoint.upload=touch $dir/killed.begun; sleep 1234564 | cat && true"
killed=$pid
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank0:step:10:sleep1,rank0:step:11:sleep1,rank1:gradients:11:spike start rewind --ranks 2 $plain \
    --set train.steps=16 --set train.on_spike=rewind --set train.spike_window=5 --set train.spike_z=30 \
    --set train.spike_margin=3 --set checkpoint.upload_wait_seconds=60 \
    --set "checkpoint.upload=test \$LMTRAIN_STEP != 8 || test -e $dir/once || {
        touch $dir/once; sleep 1234565 | cat && true; }"
rewind=$pid
# The manifest of a checkpoint whose step is still evaluated will be replaced.
LMTRAIN_FAULT=rank0:evaluate:12:sleep1 start evaluated --set checkpoint.every_steps=0 --set eval.every_steps=0 \
    --set "checkpoint.upload=cd \$LMTRAIN_CHECKPOINT; cp manifest.json $dir/; sleep 3; cmp manifest.json $dir/manifest.json"
evaluated=$pid

expect 'an upload begins' 0 '' wait_until 60 test -e "$dir/term.begun"
kill -TERM $term

pid=$endless
ended 'an upload that does not end is no failure of the run' 0 endless
said 'it is said' 'the checkpoint of step 4 is not uploaded: the run has ended' endless
none_left 'and ended' 1234561
pid=$term
ended 'a signal saves as without an upload' 75 term
said 'which is ended with the run' 'the checkpoint of step [0-9]+ is not uploaded: the run has ended \(1 try' term
none_left 'all of it' 1234563
pid=$killed
ended 'rank 0 is killed during an upload' 5 killed
expect 'which had begun' 0 '' test -e "$dir/killed.begun"
none_left 'and ends with it' 1234564
pid=$limit
ended 'a try has a time limit' 0 limit
said 'of which it is said' 'step 4: the command takes more than 1.5 s; tried again in 1 s' limit
none_left 'and all of it is ended' 1234562
pid=$rewind
ended 'a run goes back during an upload' 0 rewind
said 'of a checkpoint that will be another' 'the checkpoint of step 8 is not uploaded: the run has gone back to step 4' rewind
none_left 'which is ended' 1234565
said 'later ones are uploaded' 'the checkpoint of step 16 is uploaded' rewind
pid=$evaluated
ended 'a last checkpoint is uploaded after its evaluation' 0 evaluated
said 'as it is said' 'the checkpoint of step 12 is uploaded' evaluated
expect 'nothing of it is replaced meanwhile' 1 '' grep 'tried again' "$dir/evaluated.out"
expect 'nor later' 0 '' cmp "$dir/evaluated/checkpoints/step-00000012/manifest.json" "$dir/manifest.json"

# ---- runs whose uploads end well ----

# shellcheck disable=SC2086
pretrain quiet --ranks 2 $plain >"$dir/quiet.out" 2>&1
expect 'a run without uploads' 0 '^done' cat "$dir/quiet.out"
cat >"$dir/copy.sh" <<'END'
set -e
cd "$1"
env | grep -v '^LMTRAIN_[CS]' >others
nice >niceness
cp -r "$LMTRAIN_CHECKPOINT" "copy-$LMTRAIN_STEP"
if mkdir again 2>/dev/null; then
    until test -e uploaded/checkpoints/step-00000012; do sleep 0.05; done
    exit 7
fi
sleep 0.5
cmp "$LMTRAIN_CHECKPOINT/manifest.json" "copy-$LMTRAIN_STEP/manifest.json"
END
# shellcheck disable=SC2086
pretrain uploaded --ranks 2 $plain --set checkpoint.keep=1 --set "checkpoint.upload=sh $dir/copy.sh $dir" \
    >"$dir/uploaded.out" 2>&1
expect 'a run with uploads ends well' 0 '^done' cat "$dir/uploaded.out"
said 'one that fails is tried again' 'uploading the checkpoint of step 4: the command exits with status 7; tried again in 1 s' uploaded
said 'and is uploaded while a run would have removed it' 'the checkpoint of step 4 is uploaded' uploaded
said 'of those that wait only the newest is' 'the checkpoint of step 8 is not uploaded: a newer one comes first' uploaded
said 'the run waits for the last' 'the checkpoint of step 12 is uploaded' uploaded
expect 'metrics tell' 0 '"event":"uploaded"' cat "$dir/uploaded/metrics.jsonl"
expect 'its environment is without those of launchers' 1 '' grep -E '^(PMIX|LMTRAIN)_' "$dir/others"
expect 'at low priority' 0 '^10$' cat "$dir/niceness"
same_bits 'no bit changes' quiet uploaded 12
finish
