#!/bin/sh
# test/cli/watch.sh - lmtrain watch: runs that go on, are done, were stopped, failed or killed
# shellcheck disable=SC2016 # of the shells that it starts
. test/cli/support/check.sh
. test/cli/support/tiny.sh

watch() { "$lmtrain" watch "$@"; }

# reaches RUN TEXT - what is said of the run has the text
# shellcheck disable=SC2317 # wait_until calls it
reaches() { watch "$dir/$1" --once --json 2>/dev/null | grep -q "$2"; }
# is_running RUN RANKS - it has said so, and the memory of its last rank is known
# shellcheck disable=SC2317
is_running() {
    reaches "$1" '"rank":'"$(($2 - 1))"',"host":"[^"]*","state":"running","step":[0-9].*"peak_bytes":[1-9]' &&
        watch "$dir/$1" | grep -q '^[^ ]*: running on '
}

# ---- of one process ----

expect 'there is nothing yet' 3 'hint: the job' watch "$dir/nothing"
mkdir "$dir/empty"
expect 'nor in an empty folder' 3 'has no run in it.*hint' watch "$dir/empty"
expect 'a run ends' 0 '^done' pretrain one
expect 'it is done' 0 ': done .* ago$' watch "$dir/one"
expect 'its last figures' 0 '^step 12/12  loss [0-9.]+  .*tok/s' watch "$dir/one"
expect 'and held-out loss' 0 'held-out [0-9.]+ \(step 12\)' watch "$dir/one"
refuse 'no control characters where there is no terminal' "$(printf '[\r\033]')"
expect 'as JSON' 0 '"state":"done".*"step":12,"steps":12' watch "$dir/one" --json
promised watch
expect 'which JSON reads' 0 '' python3 -c 'import json, sys; json.loads(sys.argv[1])' "$output"
expect 'stopped by a signal' 75 '' env LMTRAIN_FAULT=rank0:step:6:sigterm "$lmtrain" pretrain "$dir/job.yaml" \
    --set "output=$dir/stopped"
expect 'it says so' 75 'stopped .* ago: saved step 6 of 12' watch "$dir/stopped"
expect 'failed' 1 'not finite' pretrain wild --set train.steps=60 --set optimizer.lr=100 \
    --set optimizer.weight_decay=100 --set train.max_skipped=2
expect 'it says why' 1 'failed .* ago: .*non-finite' watch "$dir/wild"
rm -r "$dir/one/status"
expect 'without a status the metrics are shown' 0 'no status was written' watch "$dir/one"
expect 'with the loss' 0 'loss mean [0-9.]+  grad norm' watch "$dir/one"

# ---- that goes on, of one rank and of two ----

long='--set train.steps=1000000 --set eval.every_steps=0 --set checkpoint.every_steps=0 --set train.log_every=1000'
for ranks in 1 2; do
    run=long$ranks
    # shellcheck disable=SC2086 # words
    start $run $long --ranks $ranks
    head=$pid
    wait_until 60 is_running $run $ranks
    expect "$ranks: it is running" 0 "running on .*, process [0-9]+, $ranks rank" watch "$dir/$run"
    expect 'with a line a rank' 0 "^ +$((ranks - 1)) .*[0-9] [KMG]iB +[0-9.]+ s  [a-z]" watch "$dir/$run"
    first=$(watch "$dir/$run" --json | sed 's/.*"step":\([0-9]*\),"steps".*/\1/')
    wait_until 60 sh -c '[ "$("$1" watch "$2" --json | sed "s/.*\"step\":\([0-9]*\),\"steps\".*/\1/")" -gt "$3" ]' sh \
        "$lmtrain" "$dir/$run" "$first"
    expect 'again and again' 0 '' sh -c 'timeout 10 "$1" watch "$2" --interval 0.3 --json | head -n 3 | wc -l | grep -qx 3' sh \
        "$lmtrain" "$dir/$run"
    expect 'in a terminal it is drawn in place, and the screen is left' 0 "$(printf '\033')\[\?1049l" \
        sh -c 'script -qc "stty cols 50 rows 9; timeout 3 $1 watch $2; true" /dev/null </dev/null' sh "$lmtrain" "$dir/$run"
    expect 'in its width' 0 '' sh -c 'printf "%s\n" "$1" | sed "s/$(printf "\033")\[\(H\|?1049l\)/\n/g; s/$(printf "\033")[^A-Za-z]*[A-Za-z]//g" | tr -d "\r" |
        awk "length > 49 { print; bad = 1 } END { exit bad }"' sh "$output"
    ranks_of=$(children_of "$head")
    [ $ranks = 1 ] || ranks_of="$ranks_of $(children_of "$ranks_of")"
    # shellcheck disable=SC2086 # words
    kill -9 "$head" $ranks_of 2>/dev/null
    wait "$head" 2>/dev/null
    wait_until 60 reaches $run '"state":"silent"'
    expect 'killed: it is silent' 1 'nothing was heard of it for .*was killed.*\(hint: the same command continues' watch "$dir/$run"
done

# ---- mistakes ----

expect 'no folder is named' 2 'RUN|argument' watch
expect 'an interval of nothing' 2 'interval' watch "$dir/one" --interval 0
expect 'the job in place of its folder' 3 'no folder \(hint: the job.s output\)' watch "$dir/job.yaml"
finish
