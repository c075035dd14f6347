#!/bin/sh
# test/cli/best.sh - several held-out sets; the checkpoints that are kept by their losses
# shellcheck disable=SC2016 # of the shells that it starts
. test/cli/support/check.sh
. test/cli/support/tiny.sh

xz -dc data/kjv/train.txt.xz | tail -n 20 >"$dir/late.txt"
expect 'tokens of another set' 0 'tokens in 1 document,' "$lmtrain" data tokenize "$dir/late.txt" \
    --tokenizer data/kjv-tokenizer --out "$dir/late"

# sets RUN ARGUMENTS... - a run that evaluates two sets by name, and no other
sets() {
    sets_run=$1
    shift
    sed "s|data: $dir/held|sets: {late: $dir/late, held-1: $dir/held}|" "$dir/job.yaml" >"$dir/sets.yaml"
    "$lmtrain" pretrain "$dir/sets.yaml" --set "output=$dir/$sets_run" "$@"
}
# losses RUN SET - step and loss of each evaluation of a set, exactly
losses() {
    sed -n 's/.*"step":\([0-9]*\),"eval_loss".*"eval_loss_hex":"\([^"]*\)".*"eval_set":"'"$2"'".*/\1 \2/p' "$dir/$1/metrics.jsonl"
}
saved() { find "$dir/$1/checkpoints" -name 'step-????????' | sed 's/.*-0*//' | sort -n | tr '\n' ' '; }

# ---- sets ----

expect 'two sets and no other' 0 'step 12  held-out late loss' sets two
expect 'the mean' 0 '^step 12  held-out loss [0-9.]+ nats/token, the mean of 2 sets$' cat "$dir/two/log/rank-0.log"
expect 'each three times' 0 '^3 3$' sh -c 'echo $(grep -c "\"eval_set\":\"late\"" "$1") $(grep -c "\"eval_set\":\"held-1\"" "$1")' \
    sh "$dir/two/metrics.jsonl"
expect 'a set is what it is alone' 0 '^done' pretrain alone
alone=$(sed -n 's/.*"step":\([0-9]*\),"eval_loss".*"eval_loss_hex":"\([^"]*\)".*/\1 \2/p' "$dir/alone/metrics.jsonl")
expect 'to the bit' 0 '' test "$(losses two held-1)" = "$alone"
expect 'beside eval.data' 0 '^done' sets three --set "eval.data=$dir/held"
expect 'which has no name' 0 '^3$' sh -c 'grep eval_loss "$1" | grep -vc eval_set' sh "$dir/three/metrics.jsonl"
same_bits 'no bit of training depends on sets' two three 12
expect 'on two ranks' 0 '^done' sets ranks --ranks 2
for action in sigterm sigkill; do
    status=$([ $action = sigterm ] && echo 75 || echo 137)
    expect "$action in the evaluation of step 8" "$status" '' env LMTRAIN_FAULT=rank0:evaluate:8:$action \
        "$lmtrain" pretrain "$dir/sets.yaml" --set "output=$dir/$action"
    expect 'it goes on' 0 '^done' sets $action
    expect "$action: the same losses, once" 0 '' test "$(losses $action late)$(losses $action held-1)" = \
        "$(losses two late)$(losses two held-1)"
done

# ---- the best ----

# The loss rises again with this rate: the best are in the middle.
best="--set train.steps=48 --set optimizer.lr=1 --set optimizer.schedule=constant --set checkpoint.keep=1
    --set checkpoint.keep_best=2 --set checkpoint.metric=eval.late.loss"
# shellcheck disable=SC2086 # words
expect 'a run keeps its best' 0 '^done' sets best $best
wanted=$(losses best late | python3 -c '
import sys
rows = sorted((float.fromhex(loss), int(step)) for step, loss in (line.split() for line in sys.stdin))
print(*sorted({48, rows[0][1], rows[1][1]}), end=" ")')
expect 'that is the newest, and the two of the lowest loss' 0 '' test "$(saved best)" = "$wanted"
expect 'some of which are not the newest' 0 '' test "$(saved best | wc -w)" = 3
expect 'watch says which is best' 0 'best checkpoint step [0-9]+ \(' "$lmtrain" watch "$dir/best"
for at in step:21:sigkill evaluate:16:sigkill evaluate:24:sigterm save:committed:28:sigkill; do
    run=best-$(echo $at | tr -d :)
    # shellcheck disable=SC2086
    LMTRAIN_FAULT=rank0:$at sets "$run" $best >"$dir/out" 2>&1
    # shellcheck disable=SC2086
    sets "$run" $best >"$dir/out" 2>&1
    expect "stopped at $at: the same are kept" 0 '' test "$(saved "$run")" = "$wanted"
done
# shellcheck disable=SC2086
sets removed $best --set train.steps=24 >"$dir/out" 2>&1
# shellcheck disable=SC2086
expect 'a best one that was removed by hand' 0 '^done' sh -c 'ls -d "$1"/checkpoints/step-???????? | head -n 1 | xargs rm -r; shift; "$@"' \
    sh "$dir/removed" "$lmtrain" pretrain "$dir/sets.yaml" --set "output=$dir/removed" $best
expect 'leaves its place to another' 0 '' test "$(saved removed | wc -w)" -ge 2

# ---- mistakes ----

expect 'a metric of no set' 2 "checkpoint.metric is eval.lat.loss \(hint: eval.loss or eval.late.loss or eval.held-1.loss\)" \
    sets wrong --set checkpoint.metric=eval.lat.loss
expect 'the best without evaluations' 2 'keep_best .* there are no evaluations \(hint' sets wrong --set checkpoint.keep_best=1 --set eval.every_steps=0
expect 'evaluations and checkpoints that never meet' 2 'one a multiple of the other' sets wrong --set checkpoint.keep_best=1 --set eval.every_steps=3
expect 'a name that is none' 2 'eval.sets has a set by the name a/b \(hint' sets wrong --set 'eval.sets={a/b: x}'
expect 'a set that is not there' 3 'eval.sets: there is no .*nothing.idx \(hint' sets wrong --set "eval.sets={a: $dir/nothing}"
finish
