#!/bin/sh
# test/cli/operations-launch.sh - hosts over months: excluded, replaced by spares, lost and taken in again
# shellcheck disable=SC2016,SC2317 # sh's; functions that expect and wait_until call
. test/cli/support/check.sh
. test/cli/support/hosts.sh
reason=$(hosts_missing)
if [ -n "$reason" ]; then
    echo "skip several hosts: $reason"
    finish
fi
. test/cli/support/tiny.sh
if ! hosts_start a b c d; then
    echo 'not ok four hosts start:'
    cat "$dir"/*.log
    exit 1
fi
sed -i '/^ranks: 1$/d' "$dir/job.yaml"
steps=60
plain="--set train.steps=$steps --set eval.every_steps=$steps --set checkpoint.every_steps=10 --set restarts=3"

# train_on HOST RUN ARGUMENTS... - the job, its head on HOST
train_on() {
    train_host=$1 train_run=$2
    shift 2
    # shellcheck disable=SC2086 # words
    on "$train_host" "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$train_run" $plain "$@"
}
# begin HOST RUN STEP ARGUMENTS... - the same in the background, until it has logged STEP; LMTRAIN_FAULT makes it wait there
begin() {
    begin_host=$1 begin_run=$2 begin_step=$3
    shift 3
    train_on "$begin_host" "$begin_run" "$@" >"$dir/$begin_run.out" 2>&1 &
    pid=$!
    wait_until 60 has_logged "$begin_run" "$begin_step" || kill "$pid"
}
has_logged() { [ "$(n_logged "$1")" -ge "$2" ]; }
has_said() { grep -qE "$2" "$dir/$1.out"; }
# rank RUN N - its process
rank() {
    for process in $(hosts_processes); do
        tr '\0' '\n' <"/proc/$process/environ" | grep -qx "PMIX_RANK=$2" &&
            tr '\0' '\n' <"/proc/$process/cmdline" | grep -qx "output=$dir/$1" && echo "$process" && return
    done
    return 1
}
kill_rank() { kill -KILL "$(rank "$1" "$2")"; }
# halt HOST - end all that runs there, sshd as well; boot HOST - sshd runs again
halt() { on "$1" sh -c '[ "$(hostname)" = "$0" ] && kill -KILL -1' "$1" || true; }
boot() {
    eval "boot_ip=$hosts_net.\$hosts_number_$1"
    # shellcheck disable=SC2154 # of the eval
    on "$1" /usr/sbin/sshd -f "$dir/sshd_config" -o "ListenAddress=$boot_ip" -E "$dir/sshd-$1.log"
}
# said NAME PATTERN RUN
said() { expect "$1" 0 "$2" cat "$dir/$3.out"; }
# held_out RUN - the last held-out loss
held_out() { sed -n 's/.*"eval_loss":\([0-9.]*\).*/\1/p' "$dir/$1/metrics.jsonl" | tail -n 1; }
# tail_bits NAME RUN OTHER FROM - the steps after FROM have the same bits
tail_bits() {
    bits "$2" | awk -v from="$4" '$1 > from' | sort -u >"$dir/tail.a"
    bits "$3" | awk -v from="$4" '$1 > from' >"$dir/tail.b"
    expect "$1" 0 '' sh -c 'test -s "$0" && diff "$0" "$1"' "$dir/tail.a" "$dir/tail.b"
}

expect 'two ranks of one machine' 0 '^done' train_on a whole2 --ranks 2
expect 'four ranks of one machine' 0 '^done' train_on a whole4 --ranks 4

# ---- a host that is excluded, and one that takes its place ----

expect 'as many spares as hosts' 2 'launch.spares is 2, but --hosts has 2 hosts \(hint: at most 1' \
    train_on a wrong --hosts a,b --ranks 2 --set launch.spares=2
mkdir "$dir/excluded"
printf '# by hand\nb\t2026-11-26T16:00:00Z\tproduct of rank 1 is wrong\n' >"$dir/excluded/excluded_hosts"
LMTRAIN_FAULT=rank1:step30:stall begin a excluded 29 --hosts a,b,c --ranks 2 --set launch.spares=1
said 'an excluded host is named, with the file' \
    "b is excluded: product of rank 1 is wrong \\($dir/excluded/excluded_hosts\\)" excluded
said 'and its spare' 'host c, a spare, takes the place of b \(excluded\)' excluded
expect "a rank's host is called as in --hosts" 0 '^LMTRAIN_HOST=c$' sh -c 'tr "\0" "\n" <"/proc/$0/environ"' \
    "$(rank excluded 1)"
# Now the other way round: b is readmitted, and c is excluded while ranks are on it.
printf 'c slow\n' >"$dir/excluded/excluded_hosts"
kill_rank excluded 1
ended 'a line that is edited counts at the restart' 0 excluded
said 'for the new host' 'c is excluded: slow' excluded
said 'and for the old one' 'host b is used again|host b, a spare, takes the place of c \(excluded\)' excluded
expect 'the bits are those of a whole run' 0 '' test "$(bits excluded | sort -u | cksum)" = "$(bits whole2 | sort | cksum)"
printf 'a\nb\nc\n' >"$dir/excluded/excluded_hosts"
expect 'all are excluded' 5 "no host is left: a \\(excluded\\), b \\(excluded\\), c \\(excluded\\) \\(hint: a line removed from " \
    train_on a excluded --hosts a,b,c --ranks 2

# ---- hosts that are lost, and come back ----

printf 'a\nb\nc\nd\n' >"$dir/hosts"
LMTRAIN_FAULT=rank3:step15:stall,attempt1:rank1:step35:stall begin a grow 14 --hosts "$dir/hosts" --ranks 4
halt c
halt d
expect 'two of four hosts are lost' 0 '' wait_until 60 has_said grow 'restarting \(1 of 3\)'
expect 'it goes on with two' 0 '' wait_until 60 has_logged grow 34
said 'saying so' '2 of 4 ranks are left: parallel.dp is now 2' grow
boot c
boot d
# shellcheck disable=SC2086 # words
for host in c d; do expect "$host is back" 0 '' wait_until 30 on a $LMTRAIN_SSH -o BatchMode=yes "$host" true; done
kill_rank grow 1
ended 'at the next restart they are taken in' 0 grow
said 'by name' 'host d was lost and is tried again' grow
said 'with all ranks' 'all 4 ranks are back: parallel.dp is 4 again' grow
said 'in the log of the restart' 'restarting \(2 of 3\) from the newest checkpoint, with 4 ranks' grow
grown=$(sed -n 's/^.*resuming from .*, step \([0-9]*\)$/\1/p' "$dir/grow.out" | tail -n 1)
expect 'four ranks of one machine from there' 0 '^done' train_on a tail --ranks 4 \
    --resume "$dir/grow/checkpoints/step-000000$grown"
tail_bits 'have the same bits' grow tail "$grown"
held=$(held_out whole4) held_grow=$(held_out grow)
expect "and the held-out loss, $held_grow, is that of four ranks throughout, $held, but for noise" 0 '' \
    awk "BEGIN { d = $held - $held_grow; exit !(d * d < 0.05 * 0.05 && d != 0) }"

# ---- hosts that are added ----

echo a >"$dir/hosts"
LMTRAIN_FAULT=rank0:step15:stall begin a added 14 --hosts "$dir/hosts"
printf 'a\nb\n' >"$dir/hosts"
kill_rank added 0
ended 'a job that leaves the number of ranks open' 0 added
said 'takes a host that was added to the file' "host b is new in $dir/hosts and is used" added
said 'with a rank on it' '2 ranks instead of 1, as the hosts have room for them: parallel.dp is now 2' added
finish
