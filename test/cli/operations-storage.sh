#!/bin/sh
# test/cli/operations-storage.sh - file systems that are slow, hang or go away, and what a run does meanwhile
. test/cli/support/check.sh
. test/cli/support/tiny.sh

plain="--set eval.every_steps=0 --set eval.data="
# said NAME PATTERN RUN
said() { expect "$1" 0 "$2" cat "$dir/$3.out"; }
# line_of PATTERN FILE - its number
line_of() { grep -nE -m1 -e "$1" "$2" | cut -d: -f1; }

# shellcheck disable=SC2086
pretrain quiet --ranks 2 $plain >"$dir/quiet.out" 2>&1
expect 'a run of which nothing is disturbed' 0 '^done' cat "$dir/quiet.out"

# ---- a file system that stands still while a checkpoint is written ----

# shellcheck disable=SC2086
LMTRAIN_FAULT=rank1:save:writing:4:sleep8 start slow --ranks 2 $plain --set train.steps=12
slow=$pid
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank0:save:writing:4:sleep6 start waits --ranks 2 $plain --set checkpoint.copy_mb=0 --set train.steps=6
waits=$pid
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank0:data:stall start dead --ranks 2 $plain --set train.hang_seconds=2 --set train.hang_abort_seconds=4
dead=$pid
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank0:save:writing:12:stall start hangs --ranks 2 $plain --set train.hang_seconds=2 \
    --set train.hang_abort_seconds=4
ended 'a file system that does not come back ends the job' 5 hangs
said 'the report names what is written where' \
    "rank 0 .*: writing a checkpoint to $dir/hangs/checkpoints/step-00000012.* since" hangs
pid=$dead
ended 'data that cannot be opened end the job' 5 dead
said 'the report names them' "rank 0 .*: opening $dir/train since" dead
pid=$waits
ended 'without memory for copies the update waits' 0 waits
expect 'for what is slow' 0 '' test "$(line_of 'step-00000004 takes' "$dir/waits.out")" -lt "$(line_of '^step 5/6 ' "$dir/waits.out")"
pid=$slow
ended 'with it training goes on' 0 slow
said 'the slow checkpoint is named' \
    "writing a checkpoint to $dir/slow/checkpoints/step-00000004 takes [0-9.]+ s so far" slow
said 'a save that comes meanwhile is left out' 'step 8 is not saved: the checkpoint of step 4 is still being written' slow
expect 'the steps did not wait' 0 '' test "$(line_of '^step 12/12 ' "$dir/slow.out")" -lt "$(line_of 'step-00000004 is written after' "$dir/slow.out")"
expect 'metrics tell' 0 '"event":"save left out"' cat "$dir/slow/metrics.jsonl"
expect 'both checkpoints are there' 0 '' test "$(cd "$dir/slow/checkpoints" && echo step-*)" = 'step-00000004 step-00000012'
same_bits 'no bit changes' quiet slow 12
for step in 4 12; do
    expect "the checkpoint of step $step is that of a quiet run" 0 '' cmp \
        "$dir/quiet/checkpoints/step-000000$(printf %02d $step)/rank-00001.safetensors" \
        "$dir/slow/checkpoints/step-000000$(printf %02d $step)/rank-00001.safetensors"
done

# ---- opens and stats of a rank: few, and as many with 8 ranks as with 2, but for the files that it reads ----

# counted RUN RANKS STEPS - a run of that many ranks; its counts are in $dir/RUN.opens
counted() {
    mkdir -p "$dir/$1.opens"
    # shellcheck disable=SC2086
    LD_PRELOAD=$dir/count.so COUNT_OPENS=$dir/$1.opens COUNT_BELOW=$dir pretrain "$1" --ranks "$2" $plain \
        --set "train.steps=$3" --set train.micro_batch=1 >"$dir/$1.out" 2>&1
    expect "$2 ranks run to step $3, counted" 0 '^done' cat "$dir/$1.out"
}
# n_lines PATTERN FILE
n_lines() { grep -cE -e "$1" "$2" || true; }
if cc -O1 -shared -fPIC -o "$dir/count.so" test/cli/support/count_opens.c -ldl 2>/dev/null; then
    for ranks in 2 8; do
        counted opens$ranks $ranks 8
        opens=$dir/opens$ranks.opens/rank-1
        echo $(($(wc -l <"$opens") - $(n_lines 'step-.*partial' "$opens"))) >"$dir/start.$ranks"
        n_lines 'step-00000004.partial' "$opens" >"$dir/save.$ranks"
        rm -r "$dir/opens$ranks.opens"
        counted opens$ranks $ranks 9
        n_lines 'checkpoints/step-00000008' "$opens" >"$dir/resume.$ranks"
    done
    echo "# of rank 1 with 2 and 8 ranks: start $(cat "$dir/start.2" "$dir/start.8" | xargs), save $(cat "$dir/save.2" "$dir/save.8" |
        xargs), resume $(cat "$dir/resume.2" "$dir/resume.8" | xargs)"
    expect 'at the start at most 12' 0 '' test "$(cat "$dir/start.8")" -le 12
    expect 'as many with more ranks' 0 '' cmp "$dir/start.2" "$dir/start.8"
    expect 'a save at most 6' 0 '' test "$(cat "$dir/save.8")" -le 6
    expect 'a resume opens each file that it reads once' 0 '' test "$(cat "$dir/resume.8")" -le 10
else
    echo 'skip counting opens: a library cannot be preloaded here'
fi
finish
