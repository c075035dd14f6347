#!/bin/sh
# test/cli/sweep.sh - lmtrain sweep as people call it: a trial is the job, kills, failures, decisions, mistakes
# shellcheck disable=SC2016,SC2086,SC2317 # expect calls functions; sh -c has parameters of its own
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# sweep NAME KEYS ARGUMENTS... - the job with sweep: {KEYS}, in $dir/NAME
sweep() {
    sweep_name=$1
    { cat "$dir/job.yaml" && printf 'sweep: {%s}\n' "$2"; } >"$dir/$sweep_name.yaml"
    shift 2
    "$lmtrain" sweep "$dir/$sweep_name.yaml" --set "output=$dir/$sweep_name" "$@"
}

# decisions NAME - values and decisions of a sweep, in an order that does not depend on time
decisions() {
    sed -n 's/, "time": [0-9.]*//; /"event": "value"/p; /"event": "go_on"/p; /"event": "stop"/p; /"event": "fail"/p' \
        "$dir/$1/sweep.jsonl" | sed 's/, "text".*//' | sort
}

# starts NAME - how many processes of trials were started
starts() {
    cat "$dir/$1"/trial-*/metrics.jsonl | grep -cE '"event":"(started|resumed)"'
}

rates='optimizer.lr: {log: [1.0e-4, 1.0e-1]}, train.seed: {uniform: [1, 5]}'
halving="parameters: {$rates}, trials: 9, stop: asha, eta: 3, min_steps: 4"
long="--set train.steps=36"

# ---- a trial is a run of the job ----

expect 'the job alone' 0 '^done: step 12' pretrain alone --set optimizer.lr=0.003
expect 'a sweep of one trial' 0 'best: trial 0, eval.loss [0-9.]+: optimizer.lr 0.003$' sweep single \
    'search: list, parameters: [{optimizer.lr: 3.0e-3}]'
same_bits 'is the job, to the bit' alone single/trial-000 12
expect 'and to its weights' 0 '' cmp "$dir/alone/checkpoints/step-00000012/rank-00000.safetensors" \
    "$dir/single/trial-000/checkpoints/step-00000012/rank-00000.safetensors"
expect "its job is the trial's alone" 0 '^  parameters: none$' "$lmtrain" config "$dir/single/trial-000/job.yaml"
expect 'the same command again runs nothing' 0 'best: trial 0' sweep single 'search: list, parameters: [{optimizer.lr: 3.0e-3}]'
expect 'one process in all' 0 '^1$' starts single

expect 'a job with a sweep trains as without it' 0 '^done: step 12' "$lmtrain" pretrain "$dir/single.yaml" \
    --set "output=$dir/heedless" --set optimizer.lr=0.003
same_bits 'with the same bits' alone heedless 12

expect 'a grid' 0 '^6 trials: 6 finished$' sweep grid \
    'search: grid, parallel: 2, parameters: {optimizer.lr: {log: [1.0e-3, 1.0e-2], points: 3}, train.dtype: [bf16, fp32]}' \
    --set train.steps=4
expect 'its JSON' 0 '"state": "finished", "step": 4, "value": [0-9.]+, "folder": ".*/trial-00' "$lmtrain" sweep "$dir/grid" --json
promised sweep
expect 'with all trials' 0 '^6$' sh -c "printf '%s\n' \"\$1\" | grep -c '\"trial\":'" sh "$output"

# ---- decisions ----

expect 'one trial at a time' 0 '^9 trials: 1 finished, 8 stopped$' sweep serial "$halving" $long
expect 'two at a time' 0 '^9 trials: 1 finished, 8 stopped$' sweep paired "$halving, parallel: 2" $long
expect 'say what goes on' 0 '^step 4: 3 of 9 trials go on: [0-9], [0-9], [0-9]$' printf '%s\n' "$output"
decisions serial >"$dir/serial.decisions"
decisions paired >"$dir/paired.decisions"
expect 'and decide alike, by the same values' 0 '' cmp "$dir/serial.decisions" "$dir/paired.decisions"
expect 'nine values, three and one' 0 '^13$' grep -c '"value_hex"' "$dir/serial.decisions"
best=$(sed -n 's/.*"best": \([0-9]*\).*/\1/p' "$dir/serial/sweep.jsonl")
settings=$(sed -n "s/.*\"trial\": $best, \"settings\": {\(.*\)}}/\1/p" "$dir/serial/sweep.jsonl")
lr=$(printf '%s' "$settings" | sed 's/.*"optimizer.lr": \([^,]*\).*/\1/')
seed=$(printf '%s' "$settings" | sed 's/.*"train.seed": \([^,]*\).*/\1/')
expect 'the best trial without pauses' 0 '^done: step 36' pretrain straight $long --set "optimizer.lr=$lr" --set "train.seed=$seed"
same_bits 'has the bits of the one that paused' straight "serial/trial-00$best" 36
expect 'pauses at rungs are no restarts' 0 '"restarts":	0,' "$lmtrain" report "$dir/serial/trial-00$best" --json
expect 'and are counted' 0 '"pauses":	2,' printf '%s\n' "$output"
expect 'of which its status has the number' 0 '"restarts":0,"pauses":2,' cat "$dir/serial/trial-00$best/status/run.json"
expect 'the decisions are those of the rules' 0 '^12 decisions, all as the rules make them$' "$lmtrain" sweep "$dir/serial" --replay
mkdir "$dir/forged"
sed 's/"stop", \(.*\), "trial": 0,/"go_on", \1, "trial": 0,/' "$dir/serial/sweep.jsonl" >"$dir/forged/sweep.jsonl"
expect 'others are noticed' 3 'trial 0, rung 0: it went on, which by the rules it did not' "$lmtrain" sweep "$dir/forged" --replay
expect 'the median rule' 0 '^6 trials: [1-5] finished, [1-5] stopped$' sweep median \
    "parameters: {$rates}, trials: 6, stop: median, min_steps: 4, parallel: 2"
expect 'and its replay' 0 'all as the rules make them' "$lmtrain" sweep "$dir/median" --replay
expect 'asynchronous halving' 0 '^9 trials: [1-3] finished, [6-8] stopped$' sweep free "$halving, parallel: 2, asynchronous: true"
expect 'and its replay' 0 'all as the rules make them' "$lmtrain" sweep "$dir/free" --replay
expect 'the largest instead' 0 'best: trial [0-9], loss' sweep large \
    "parameters: {$rates}, trials: 3, metric: loss, goal: maximize" --set train.steps=2
expect 'is that of the most' 0 '' sh -c 'values=$(sed -n "s/.*\"value\": \([0-9.]*\).*/\1/p" "$1" | sort -g | tail -n 1)
    best=$(sed -n "s/.*\"best\": \([0-9]*\).*/\1/p" "$1"); grep -q "\"trial\": $best,.*\"value\": $values" "$1"' sh "$dir/large/sweep.jsonl"

# ---- killed, and gone on with ----

has_values() { [ "$(grep -cs '"event": "value"' "$dir/$1/sweep.jsonl")" -ge "$2" ]; }

# begin NAME KEYS - in the background, as $pid
begin() {
    { cat "$dir/job.yaml" && printf 'sweep: {%s}\n' "$2"; } >"$dir/$1.yaml"
    "$lmtrain" sweep "$dir/$1.yaml" --set "output=$dir/$1" $long >"$dir/$1.out" 2>&1 &
    pid=$!
}
for signal in KILL TERM; do
    status=$([ $signal = KILL ] && echo 137 || echo 75)
    run=killed$signal
    for values in 2 8 11; do
        begin $run "$halving, parallel: 2"
        wait_until 60 has_values $run $values
        kill -$signal "$pid"
        ended "SIG$signal after $values values" "$status" $run
    done
    expect "SIG$signal: the same command continues" 0 '^9 trials: 1 finished, 8 stopped$' sweep $run "$halving, parallel: 2" $long
    decisions $run >"$dir/$run.decisions"
    expect "SIG$signal: the decisions of a sweep that was not interrupted" 0 '' cmp "$dir/serial.decisions" "$dir/$run.decisions"
    expect "SIG$signal: the history replays" 0 'all as the rules make them' "$lmtrain" sweep "$dir/$run" --replay
    same_bits "SIG$signal: each step once" straight "$run/trial-00$best" 36
done
expect 'a sweep has one process' 2 'another|is used by|process' sh -c 'flock "$1/lock" "$2" sweep "$1.yaml" --set "output=$1"' sh \
    "$dir/serial" "$lmtrain"
expect 'the last line of a history may be torn' 0 '' sh -c "printf '{\"event\": \"val' >>'$dir/killedTERM/sweep.jsonl'"
expect 'which is cut off' 0 '^9 trials: 1 finished, 8 stopped$' sweep killedTERM "$halving, parallel: 2" $long

# ---- failures ----

expect 'a trial that fails is reported' 0 '^trial 2 failed: .*micro_batch' sweep failing \
    'search: grid, parameters: {train.micro_batch: [2, 3], optimizer.lr: [1.0e-3, 1.0e-2]}' --set train.steps=4
expect 'and counts as worst' 0 '^4 trials: 1 failed' sweep failed 'search: list, stop: asha, eta: 2, min_steps: 4,
  parameters: [{optimizer.lr: 1.0e-3}, {train.global_batch: 7}, {optimizer.lr: 1.0e-2}, {optimizer.lr: 1.0e-4}]'
expect 'it does not start again' 0 '^4 trials: 1 failed' sweep failed 'search: list, stop: asha, eta: 2, min_steps: 4,
  parameters: [{optimizer.lr: 1.0e-3}, {train.global_batch: 7}, {optimizer.lr: 1.0e-2}, {optimizer.lr: 1.0e-4}]'
# ---- trials that die ----

one='search: list, parameters: [{optimizer.lr: 3.0e-3}]'
LMTRAIN_FAULT=rank0:save:committed:4 expect 'a trial that is killed starts again' 0 \
    '^lmtrain: trial 0 died: killed by signal 9 after ".*"; it starts again \(1 of 1\)$' sweep died "$one"
same_bits 'from its checkpoint, with the same bits' alone died/trial-000 12
expect 'its history says so' 0 '^1$' grep -c '"event": "retry", .*"trial": 0, "rung": 0, "text": "killed by signal 9' "$dir/died/sweep.jsonl"
expect 'and replays' 0 'all as the rules make them' "$lmtrain" sweep "$dir/died" --replay
LMTRAIN_FAULT=rank0:step:7 expect 'one that always dies fails in the end' 1 '^lmtrain: trial 0 failed: killed by signal 9' sweep dies "$one, retries: 2"
expect 'after two retries' 0 '^2$' grep -c '"event": "retry"' "$dir/dies/sweep.jsonl"
LMTRAIN_FAULT=rank0:save:committed:4 expect 'without retries at once' 1 'trial 0 failed: killed by signal 9' sweep once "$one, retries: 0"
expect 'a job that is refused is not started again' 0 '^0$' sh -c 'grep -c "\"retry\"" "$1"; true' sh "$dir/failed/sweep.jsonl"
LMTRAIN_FAULT=rank1:save:committed:4 expect 'a rank that dies' 0 '^lmtrain: trial 0 died: rank 1 on .* was killed by signal 9.*; it starts again' \
    sweep peers "$one" --set ranks=2

# ---- trials as tasks of an array ----

two='search: list, parameters: [{optimizer.lr: 3.0e-3}, {optimizer.lr: 1.0e-2}]'
expect 'a trial alone' 0 '^done: step 12' sweep array "$two" --trial 0
same_bits 'is the job' alone array/trial-000 12
expect 'without a history' 0 '' test ! -e "$dir/array/sweep.jsonl"
expect 'the sweep takes its value, and runs the others' 0 '^2 trials: 2 finished$' sweep array "$two"
expect 'each once' 0 '^2$' starts array
expect 'a trial that is not there' 2 'trials 0 to 1 \(hint: sbatch --array=0-1\)' sweep array "$two" --trial 2
expect 'trials that are compared on the way' 2 'sweep.stop is asha' sweep no "$halving" $long --trial 0
expect 'a trial of a folder' 2 '--join are of a job' "$lmtrain" sweep "$dir/array" --trial 0

# ---- all fail ----

expect 'if all fail, so does the sweep' 1 'no trial of 2 finished' sweep allfail \
    'search: list, parameters: [{data.train: none/a}, {data.train: none/b}]'
expect 'a metric that is not there' 1 'metrics.jsonl has no gain of its last step' sweep gainless \
    'search: list, metric: gain, parameters: [{optimizer.lr: 1.0e-3}]' --set train.steps=2

# ---- ensembles ----

# loss_of ARGUMENTS... - of lmtrain eval
loss_of() {
    "$lmtrain" eval "$@" --json 2>/dev/null | sed -n 's/.*"loss":\([0-9.]*\).*/\1/p'
}
three='search: grid, ensemble: 2, parameters: {optimizer.lr: [3.0e-3, 1.0e-2, 3.0e-2]}'
expect 'the best two are named' 0 '^ensemble: --ensemble .*/trial-00[0-2],.*/trial-00[0-2]$' sweep three "$three"
pair=$(printf '%s\n' "$output" | sed -n 's/^ensemble: --ensemble //p')
one=$(loss_of --model "${pair%,*}")
other=$(loss_of --model "${pair#*,}")
both=$(loss_of --ensemble "$pair")
echo "losses $one and $other, together $both"
expect 'the mean of probabilities is better than the mean of losses' 0 '' awk -v a="$one" -v b="$other" -v c="$both" \
    'BEGIN { exit !(c > 0 && c < (a + b) / 2 - 1e-6) }'
expect "the sweep's folder is the same" 0 '' test "$both" = "$(loss_of --ensemble "$dir/three")"
twice=$(loss_of --ensemble "${pair%,*},${pair%,*}")
expect 'a model with itself is that model' 0 '' awk -v a="$one" -v b="$twice" 'BEGIN { d = a - b; exit !(b > 0 && d < 2e-5 && d > -2e-5) }'
expect 'on two ranks that hold them together' 0 "\"loss\":${both%???}" "$lmtrain" eval --ensemble "$pair" --pp 2 --json
expect 'a text' 0 'In the' "$lmtrain" generate --ensemble "$pair" --prompt 'In the beginning' --max-new-tokens 8 --temperature 0
expect 'a model and an ensemble' 2 'give --model or --ensemble' "$lmtrain" eval --ensemble "$pair" --model "${pair%,*}"
expect 'a model that is not there' 3 'nothere' "$lmtrain" eval --ensemble "$dir/nothere,$pair"
expect 'a sweep without an ensemble' 2 'hint: sweep.ensemble: 3' "$lmtrain" eval --ensemble "$dir/serial"
expect 'which it can be given later' 0 '^ensemble: ' sweep serial "$halving" $long --set sweep.ensemble=1

# ---- mistakes ----

expect 'no sweep' 2 'sweep.parameters is missing \(hint: sweep: \{trials' "$lmtrain" sweep "$dir/job.yaml"
expect 'an unknown parameter' 2 'unknown key optimizer.rl \(hint: optimizer.lr\)' sweep no 'trials: 2, parameters: {optimizer.rl: [1, 2]}'
expect 'a group' 2 'unknown key optimizer ' sweep no 'trials: 2, parameters: {optimizer: {lr: [1, 2]}}'
expect 'an empty range' 2 'optimizer.lr: log is \[1e-2, 1e-3\], an empty range' sweep no 'trials: 2, parameters: {optimizer.lr: {log: [1e-2, 1e-3]}}'
expect 'a logarithm of 0' 2 'no logarithm' sweep no 'trials: 2, parameters: {optimizer.weight_decay: {log: [0, 1e-3]}}'
expect 'out of the range of its key' 2 'optimizer.lr is -1' sweep no 'trials: 2, parameters: {optimizer.lr: {uniform: [-1, 1e-3]}}'
expect 'a value of another type' 2 'train.dtype is bf15' sweep no 'trials: 2, parameters: {train.dtype: [bf15, fp32]}'
expect 'a range of words' 2 'train.dtype is not a number' sweep no 'trials: 2, parameters: {train.dtype: {log: [1, 2]}}'
expect 'one value' 2 'nothing to vary' sweep no 'trials: 2, parameters: {optimizer.lr: 0.1}'
expect 'no trials' 2 'sweep.trials is missing' sweep no 'parameters: {optimizer.lr: [0.1, 0.2]}'
expect 'a grid of a range' 2 'points: 5' sweep no 'search: grid, parameters: {optimizer.lr: {log: [1e-3, 1e-2]}}'
expect 'a list that is a map' 2 'sweep.search is list, but' sweep no 'search: list, parameters: {optimizer.lr: [0.1, 0.2]}'
expect 'a map that is a list' 2 'hint: search: list' sweep no 'trials: 2, parameters: [{optimizer.lr: 0.1}]'
expect 'the output of a trial' 2 'has output, which is alike' sweep no 'trials: 2, parameters: {output: [a, b]}'
expect 'rungs at steps that differ' 2 'compares trials at the same steps' sweep no 'trials: 2, stop: asha, parameters: {train.steps: [8, 12]}'
expect 'rungs between evaluations' 2 'not a multiple of eval.every_steps 4 \(hint: 8\)' sweep no "trials: 2, stop: asha, min_steps: 6, parameters: {$rates}"
expect 'no held-out data' 2 'the job has no held-out data' sweep no "trials: 2, parameters: {$rates}" --set eval.data=null
expect 'more than a grid has' 2 'sweep.trials is 7, but the grid has 2' sweep no 'search: grid, trials: 7, parameters: {train.seed: [1, 2]}'
expect 'nothing was made' 0 '' test ! -e "$dir/no"
expect 'another job in its folder' 2 'began with another job: "steps: 36", now "steps: 16"' sweep serial "$halving" --set train.steps=16
expect 'another rule' 2 'sweep.eta is now 2, but the sweep in .* began with 3' sweep serial "$halving" $long --set sweep.eta=2
expect 'more trials where they decide' 2 'sweep.trials is now 10.* has 9' sweep serial "$halving" $long --set sweep.trials=10
expect 'more trials where they do not' 0 '^5 trials: 5 finished$' sweep large \
    "parameters: {$rates}, trials: 5, metric: loss, goal: maximize" --set train.steps=2
expect 'the folder of a run' 2 'is the folder of a run, not of a sweep' sweep alone "trials: 2, parameters: {$rates}"
expect 'a folder that is none' 3 'it has no sweep.jsonl' "$lmtrain" sweep "$dir/alone"
expect 'no such job' 2 'nowhere' "$lmtrain" sweep "$dir/nowhere.yaml"
finish
