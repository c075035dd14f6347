#!/bin/sh
# test/cli/operations-preflight.sh - the check of hosts before a run, and doctor --cluster: a quiet one, a throttled rank, flipped
# bits, a signal; and over hosts a spare that takes the place of the one that is excluded
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# What is measured is bounded by its time here; a busy machine must not be taken for a slow one.
quick='--set preflight=quick --set preflight.seconds=0.1 --set preflight.min_ratio=0.6 --set train.steps=4'
quick="$quick --set eval.every_steps=0 --set eval.data="
short='--set preflight.seconds=0.1 --set preflight.min_ratio=0.6'

# checked NAME FAULTS STATUS PATTERN RUN ARGUMENTS...
checked() {
    checked_name=$1 checked_faults=$2 checked_status=$3 checked_pattern=$4
    shift 4
    # shellcheck disable=SC2086 # words
    LMTRAIN_FAULT=$checked_faults expect "$checked_name" "$checked_status" "$checked_pattern" pretrain "$@" $quick
}

# ---- on this machine ----

# shellcheck disable=SC2086
expect 'a run without the check' 0 '^done' pretrain plain --ranks 2 $quick --set preflight=off
checked 'a quiet check' '' 0 '^done' quiet --ranks 2
expect 'finds no fault' 0 '"event":"preflight","text":"2 ranks on 1 host in .*: no fault"' cat "$dir/quiet/metrics.jsonl"
expect 'and keeps its figures' 0 '"state":[[:space:]]"ok"' cat "$dir/quiet/preflight.json"
same_bits 'it changes no bit' plain quiet 4
checked 'a throttled rank is named, and the run continues' rank1:preflight:slow 0 \
    'is slow, the run continues: rank 1 on .*: slow: the product runs at .*, [0-9]+ % of the median' slow --ranks 2
expect 'to its end' 0 '"step":4' cat "$dir/slow/metrics.jsonl"
checked 'a wrong operand' rank1:preflight:flip 4 \
    'is unfit: rank 1 on .*: wrong bits: [0-9]+ elements of a product are not' flip --ranks 2
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank1:preflight:slow expect 'a full check refuses what is slow' 4 'is unfit: rank 1 on .*: slow' \
    pretrain full --ranks 2 $quick --set preflight.mode=full
expect 'its metrics say so' 0 '"event":"preflight","text":".*rank 1 on .*: slow' cat "$dir/full/metrics.jsonl"
checked 'a wrong repetition' rank0:preflight:repeat:1:flip 4 \
    'rank 0 on .*: wrong bits: 1 of [0-9]+ repetitions of the same product differ' repeat
checked 'wrong memory' rank1:preflight:memory:flip 4 \
    'rank 1 on .*: wrong bits: 1 64-bit word of host memory .* at offset 0x[0-9a-f]+, where bits 0x0*8 differ' memory --ranks 2
checked 'no restart where this is the only host' rank1:preflight:flip 4 'is unfit: rank 1' only --ranks 2 --set restarts=2
refuse 'and none is tried' 'restarting'
expect 'a word that is none' 2 'preflight.mode is fast, not one of off, quick, full' pretrain none --set preflight=fast

# shellcheck disable=SC2317 # wait_until calls it
has_log() { [ -e "$dir/stopped/log/rank-0.log" ]; }
start stopped --ranks 2 --set preflight=quick --set preflight.seconds=600
wait_until 60 has_log
kill -TERM "$pid"
ended 'a signal ends the check' 75 stopped
expect 'before any step' 0 '' test ! -e "$dir/stopped/metrics.jsonl"

# ---- by the doctor ----

# shellcheck disable=SC2086
expect 'doctor --cluster' 0 '^2 ranks: no fault found' "$lmtrain" doctor --cluster --ranks 2 $short
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank1:preflight:slow expect 'something slow is status 1' 1 '"state":[[:space:]]"slow"' \
    "$lmtrain" doctor --cluster "$dir/job.yaml" --ranks 2 --json $short
promised 'doctor --cluster'
# shellcheck disable=SC2086
LMTRAIN_FAULT=rank0:preflight:flip expect 'wrong bits are status 4' 4 'wrong bits' "$lmtrain" doctor --cluster $short
expect 'options of it alone' 2 '--hosts is for --cluster' "$lmtrain" doctor --hosts a

# ---- over hosts ----

. test/cli/support/hosts.sh
reason=$(hosts_missing)
if [ -n "$reason" ]; then
    echo "skip several hosts: $reason"
    finish
fi
if ! hosts_start a b c; then
    echo 'not ok three hosts start:'
    cat "$dir"/*.log
    exit 1
fi
# on_hosts NAME FAULTS RUN - two ranks on three hosts, of which one is a spare
on_hosts() {
    # shellcheck disable=SC2086
    LMTRAIN_FAULT=$2 expect "$1" 0 '^done' on a "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/$3" \
        --hosts a,b,c --ranks 2 --set launch.spares=1 --set restarts=2 $quick
}
on_hosts 'a flipping host: its spare goes on' rank1:preflight:flip spared
expect 'the host is excluded' 0 '^b	.*	rank 1 on b .*: wrong bits' cat "$dir/spared/excluded_hosts"
expect 'the other ran' 0 '"host":[[:space:]]"c"' cat "$dir/spared/preflight.json"
same_bits 'with the same bits' plain spared 4
on_hosts 'a throttled host: its spare goes on' rank0:preflight:slow throttled
expect 'that is excluded as well' 0 '^a	.*	rank 0 on a .*: slow: the product' cat "$dir/throttled/excluded_hosts"
finish
