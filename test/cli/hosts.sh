#!/bin/sh
# test/cli/hosts.sh - one job on several hosts through ssh: the same bits, and every way to lose a host
. test/cli/support/check.sh
. test/cli/support/hosts.sh
reason=$(hosts_missing)
if [ -n "$reason" ]; then
    echo "skip several hosts: $reason"
    exit 0
fi
. test/cli/support/tiny.sh
if ! hosts_start a b c; then
    echo 'not ok three hosts start:'
    cat "$dir"/*.log
    exit 1
fi
# Long enough to tell a break from a hiccup, short enough for a test.
LMTRAIN_LINK_SECONDS=4
export LMTRAIN_LINK_SECONDS
long='--set train.steps=100000 --set eval.every_steps=0 --set checkpoint.every_steps=20 --set checkpoint.keep=2'

# train_on HOST RUN ARGUMENTS... - the job, its head on HOST
train_on() {
    train_host=$1 train_run=$2
    shift 2
    on "$train_host" "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$train_run" "$@"
}

# begin HOST RUN ARGUMENTS... - the same in the background, until it has done some steps
begin() {
    begin_run=$2
    train_on "$@" >"$dir/$begin_run.out" 2>&1 &
    pid=$!
    wait_until 60 has_begun "$begin_run" 5 || kill "$pid"
}

# shellcheck disable=SC2317 # wait_until calls it
has_begun() { ! kill -0 "$pid" || [ "$(n_logged "$1")" -ge "$2" ]; }
# shellcheck disable=SC2317
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
# shellcheck disable=SC2317
nothing_left() { [ -z "$(hosts_left "$@")" ]; }

# of_host HOST - those of these processes that run there
of_host() {
    of_host_space=$(on "$1" readlink /proc/self/ns/pid)
    while read -r process; do
        [ "$(readlink "/proc/$process/ns/pid")" != "$of_host_space" ] || echo "$process"
    done
}

# rank N, head, daemon HOST - their process
rank() {
    for process in $(hosts_processes); do
        tr '\0' '\n' <"/proc/$process/environ" | grep -qx "PMIX_RANK=$1" && echo "$process"
    done
}
# The head has forked its own daemon, whose command line is the same: the older one it is.
head() {
    for process in $(hosts_processes | sort -n); do
        tr '\0' ' ' <"/proc/$process/cmdline" | grep -q -e '--hosts' && echo "$process" && return
    done
}
# Of the two that are called so the younger, which the other guards.
daemon() {
    for process in $(hosts_processes | of_host "$1" | sort -nr); do
        tr '\0' ' ' <"/proc/$process/cmdline" | grep -q ' daemon $' && echo "$process" && return
    done
}

now() { date +%s.%N; }
# gone NAME WANTED HOST... - nothing is left there, at most five times WANTED seconds after $since: what is wanted is
# for an idle machine
gone() {
    gone_name=$1 gone_wanted=$2
    shift 2
    gone_limit=$((${since%.*} + 5 * gone_wanted + 1))
    until nothing_left "$@" || [ "$(date +%s)" -gt "$gone_limit" ]; do
        sleep 0.05
    done
    gone_after=$(echo "$(now) $since" | awk '{ printf "%.2f", $1 - $2 }')
    expect "$gone_name: nothing is left after $gone_after s, wanted: $gone_wanted s" 0 '' nothing_left "$@"
    expect "$gone_name: in time" 0 '' test "${gone_after%.*}" -lt $((5 * gone_wanted)) || hosts_left "$@"
}

# ---- the same bits ----

expect 'four ranks on one machine' 0 '^done' pretrain one --ranks 4
expect 'four ranks on two hosts' 0 '^done' train_on a two --hosts a,b --ranks 4
same_bits 'have the same bits' one two 12
printf 'a slots=1 # the first\nb:2\nc\n' >"$dir/hosts"
expect 'on three, from a file, the head being none of them' 0 '^done' train_on c three --hosts "$dir/hosts" --ranks 4
same_bits 'have the same bits as well' one three 12
expect 'nothing is left' 0 '' nothing_left
expect 'each rank has its log' 0 '' test -f "$dir/two/log/rank-3.log"

# ---- generate and eval ----

. test/cli/support/serving.sh
serving_alone "$dir/one"
serving_like 'two hosts, two copies of two stages' '--hosts a,b --ranks 4 --pp 2 --threads 1' on a
serving_like 'three hosts, a list in a file' "--hosts $dir/hosts --threads 1" on c
expect 'a talk needs one process' 2 'hint' on a "$lmtrain" generate --model "$dir/one" --chat --hosts a,b --ranks 2
expect 'a host that is not there' 1 'host nowhere: ssh: Could not resolve hostname nowhere' \
    on a "$lmtrain" eval --model "$dir/one" --data "$dir/held" --hosts a,nowhere
expect 'ranks that are no copies' 2 '3 ranks are not a multiple of the 2' \
    on a "$lmtrain" generate --model "$dir/one" --prompt a --hosts a,b --ranks 3 --pp 2
expect 'nothing is left of these' 0 '' wait_until 10 nothing_left

# ---- what is wrong before the start ----

expect 'a host that is not there' 1 'host nowhere: ssh: Could not resolve hostname nowhere' \
    train_on a wrong --hosts a,nowhere --ranks 4
expect 'nothing has started' 0 '' test ! -e "$dir/wrong/metrics.jsonl"
expect 'too few slots' 2 '4 ranks, but 2 hosts with room for 3' train_on a wrong --hosts a:2,b:1 --ranks 4
expect 'a bad list' 2 "begins with a dash" train_on a wrong --hosts=-oProxyCommand=x
cable c down
since=$(now)
expect 'a host whose cable is out' 1 'host c: ssh: connect to host .*(timed out|No route to host)' \
    train_on a wrong --hosts a,c --ranks 2
cable c up
gone 'and then' 12

# ---- a rank dies ----

# shellcheck disable=SC2086 # words
begin a killed --hosts a,b --ranks 4 $long
victim=$(rank 3)
since=$(now)
kill -KILL "$victim"
ended 'a killed rank ends the job' 5 killed
gone 'a rank killed' 3
expect 'which names rank and host' 0 'rank 3 on b was killed by signal 9' cat "$dir/killed.out"

# ---- a daemon dies ----

# shellcheck disable=SC2086
begin a orphaned --hosts a,b --ranks 4 $long
victim=$(daemon b)
since=$(now)
kill -KILL "$victim"
ended 'a killed daemon ends the job' 5 orphaned
gone 'a daemon killed' 3
expect 'which names its host' 0 'error: .*\bb\b' cat "$dir/orphaned.out"

# ---- the head dies ----

# shellcheck disable=SC2086
begin a headless --hosts a,b --ranks 4 $long
victim=$(head)
since=$(now)
kill -KILL "$victim"
gone 'the head killed' 3
wait "$pid"

# ---- the network fails ----

# shellcheck disable=SC2086
begin a cut --hosts a,b --ranks 4 $long
since=$(now)
cable b down
ended 'a cable pulled ends the job' 5 cut
gone 'a cable pulled' $((LMTRAIN_LINK_SECONDS + 3))
cable b up
expect 'which names the host' 0 'error: .*\bb\b' cat "$dir/cut.out"

# ---- on without a host ----

# shellcheck disable=SC2086
begin a elastic --hosts a,b --ranks 4 --set restarts=1 --set train.steps=400 --set eval.every_steps=0 \
    --set checkpoint.every_steps=20 --set checkpoint.keep=2
wait_until 60 test -d "$dir/elastic/checkpoints/step-00000020"
host_kill b
ended 'a host lost: it goes on with the other' 0 elastic
expect 'saying so' 0 '2 of 4 ranks are left' cat "$dir/elastic.out"
expect 'to the last step' 0 '^done: step 400' cat "$dir/elastic.out"
# shellcheck disable=SC2016
expect 'all losses finite' 0 '' awk -F '[:,]' '/loss_hex/ { n++; if ($4 + 0 != $4 || $4 > 20) exit 1 } END { exit n < 400 }' \
    "$dir/elastic/metrics.jsonl"
since=$(now)
gone 'at its end' 3 a c
finish
