#!/bin/sh
# test/cli/sweep-join.sh - lmtrain sweep --join: processes that take trials of one sweep in turn, and are killed
# shellcheck disable=SC2016,SC2086,SC2317 # expect calls functions; sh -c has parameters of its own
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# job NAME KEYS - the job with sweep: {KEYS}, with the output $dir/NAME
job() {
    { sed '/^output:/d' "$dir/job.yaml" && printf 'output: %s\nsweep: {%s}\n' "$dir/$1" "$2"; } >"$dir/$1.yaml"
}

# join NAME ARGUMENTS... - one more process of it
join() {
    join_name=$1
    shift
    "$lmtrain" sweep "$dir/$join_name.yaml" --join "$@"
}

# begin NAME I ARGUMENTS... - the same in the background, as $pid, its output in $dir/NAME.I
begin() {
    begin_name=$1 begin_i=$2
    shift 2
    "$lmtrain" sweep "$dir/$begin_name.yaml" --join "$@" >"$dir/$begin_name.$begin_i" 2>&1 &
    pid=$!
}

n_events() {
    grep -c "\"event\": \"$2\"" "$dir/$1/sweep.jsonl"
}

rates='optimizer.lr: {log: [1.0e-4, 1.0e-1]}, train.seed: {uniform: [1, 5]}'
halving="parameters: {$rates}, trials: 9, stop: asha, eta: 3, min_steps: 4, asynchronous: true"

# ---- three at a time ----

job three "$halving"
begin three 1 --set train.steps=36
first=$pid
begin three 2 --set train.steps=36
second=$pid
begin three 3 --set train.steps=36
wait "$pid"
expect 'one of three processes' 0 '' test $? = 0
wait "$first"
expect 'and another' 0 '' test $? = 0
wait "$second"
expect 'and the third' 0 '' test $? = 0
expect 'the last one has the table' 0 '^9 trials: [1-3] finished, [6-8] stopped$' cat "$dir/three.1" "$dir/three.2" "$dir/three.3"
expect 'more than one had trials' 0 '^[2-9]' sh -c 'grep -l "^trial [0-9]: step" "$1".[1-3] | wc -l' sh "$dir/three"
expect 'the end is one line' 0 '^1$' n_events three end
expect 'the decisions replay' 0 '^[0-9]+ decisions, all as the rules make them$' "$lmtrain" sweep "$dir/three" --replay
expect 'each trial began once' 0 '^9$' sh -c 'cat "$1"/trial-*/metrics.jsonl | grep -c "\"event\":\"started\""' sh "$dir/three"
best=$(sed -n 's/.*"best": \([0-9]*\).*/\1/p' "$dir/three/sweep.jsonl")
settings=$(sed -n "s/.*\"trial\": $best, \"settings\": {\(.*\)}}/\1/p" "$dir/three/sweep.jsonl")
lr=$(printf '%s' "$settings" | sed 's/.*"optimizer.lr": \([^,]*\).*/\1/')
seed=$(printf '%s' "$settings" | sed 's/.*"train.seed": \([^,]*\).*/\1/')
expect 'the best trial alone' 0 '^done: step 36' pretrain straight --set train.steps=36 --set "optimizer.lr=$lr" --set "train.seed=$seed"
same_bits 'has the same bits' straight "three/trial-00$best" 36
expect 'one more process finds nothing to do' 0 '^9 trials: ' join three --set train.steps=36
expect 'and says so in JSON' 0 "\"best\": $best," join three --set train.steps=36 --json

# ---- one that is killed ----

saved() { test -e "$dir/lost/trial-000/checkpoints/step-00000020/manifest.json"; }
slow='--set train.steps=400 --set eval.every_steps=0 --set checkpoint.every_steps=20'
job lost 'search: list, parameters: [{train.seed: 1}, {train.seed: 2}]'
begin lost 1 $slow
expect 'a process has begun' 0 '' wait_until 60 saved
expect 'a sweep of all trials is refused beside it' 2 "$dir/lost is in use by another job: process [0-9]+ on " \
    "$lmtrain" sweep "$dir/lost.yaml" $slow
kill -KILL "$pid"
wait "$pid"
expect 'another one takes its trial over' 0 '^trial 0 continues here: the process that ran it is gone$' join lost $slow
expect 'and runs the other' 0 '^2 trials: 2 finished$' printf '%s\n' "$output"
expect 'which the history has' 0 '"event": "take_over", .*"trial": 0, "rung": 0' cat "$dir/lost/sweep.jsonl"
expect 'each step is there once' 0 '^400$' sh -c 'grep -c grad_norm_hex "$1/metrics.jsonl"' sh "$dir/lost/trial-000"
expect 'and it replays' 0 'all as the rules make them' "$lmtrain" sweep "$dir/lost" --replay

# One that is asked to end saves its trial, for whoever comes next.
job asked 'search: list, parameters: [{train.seed: 1}]'
asked() { test -e "$dir/asked/trial-000/checkpoints/step-00000020/manifest.json"; }
begin asked 1 $slow
expect 'a process' 0 '' wait_until 60 asked
kill -TERM "$pid"
wait "$pid"
expect 'that is asked to end' 0 '' test $? = 75
expect 'the same command continues' 0 '^1 trial: 1 finished$' join asked $slow

# ---- mistakes ----

job waits "parameters: {$rates}, trials: 9, stop: asha, eta: 3, min_steps: 4"
expect 'decisions that wait for all' 2 'sweep.stop is asha, .*\(hint: --set sweep.asynchronous=true\)' join waits --set train.steps=36
expect 'a trial and whichever is next' 2 'one of the two' join three --trial 1
expect 'a folder' 2 '--join are of a job' "$lmtrain" sweep "$dir/three" --join
expect 'another job' 2 'began with another job: .*steps: 36' join three --set train.steps=40
finish
