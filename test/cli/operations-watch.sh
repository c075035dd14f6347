#!/bin/sh
# test/cli/operations-watch.sh - how a run of months is watched: logs that are rotated, ranks that are slow, goodput,
# the file for Prometheus
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# ---- logs ----

expect 'the size of logs has bounds' 2 'metrics.log_mb is 0, .*1 to' pretrain logs --set metrics.log_mb=0
mkdir -p "$dir/logs/log"
head -c 1048570 /dev/zero | tr '\0' 'x' >"$dir/logs/log/rank-0.log"
for old in 1 2 3; do echo "old $old" >"$dir/logs/log/rank-0.log.$old"; done
expect 'a run whose log is full' 0 '^done' pretrain logs --set metrics.log_mb=1 --set train.steps=2
expect 'begins another' 0 'process [0-9]+, rank 0' cat "$dir/logs/log/rank-0.log"
expect 'keeps the full one' 0 '' test "$(wc -c <"$dir/logs/log/rank-0.log.1")" = 1048570
expect 'and the older ones' 0 'old 1' cat "$dir/logs/log/rank-0.log.2"
expect 'three in all' 0 'old 2' cat "$dir/logs/log/rank-0.log.3"
expect 'and no more' 0 '' test ! -e "$dir/logs/log/rank-0.log.4"
# ---- stragglers ----

expect 'a ratio that is none' 2 'train.straggler_ratio is 0.9, not 0 or above 1' pretrain slow --set train.straggler_ratio=0.9
long="--ranks 2 --set train.steps=1100 --set train.global_batch=16 --set train.log_every=50 --set eval.every_steps=0 --set eval.data=
    --set checkpoint.every_steps=0 --set train.straggler_seconds=0.6"
# shellcheck disable=SC2086 # words
LMTRAIN_FAULT=rank1:step20:slow,rank1:step420:slow,rank0:load:700:slow pretrain slow $long >"$dir/slow.out" 2>&1
expect 'a rank that computes more slowly is named, with host and class' 0 \
    "warn: step [0-9]+: rank 1 \\($(hostname)\\) is a straggler: for [0-9]+ steps 1\\.[1-9][0-9]* times as long as its 1 peer, most of it in compute" \
    cat "$dir/slow.out"
expect 'in the live line' 0 'straggler rank 1 \(.*\) x1\.' cat "$dir/slow.out"
expect 'until it is over' 0 '^step [0-9]+: rank 1 .* is no straggler any more' cat "$dir/slow.out"
expect 'one whose data comes late is named as such' 0 'rank 0 .* is a straggler: .* most of it in input' cat "$dir/slow.out"
expect 'an event each' 0 '"event":"straggler","text":"rank 1 .*most of it in compute.*"time":[0-9]{10}}' \
    grep straggler "$dir/slow/metrics.jsonl"
expect 'and for its end' 0 '"event":"straggler over","text":"rank 1 ' cat "$dir/slow/metrics.jsonl"
expect 'once' 0 '' test "$(grep -c '"event":"straggler","text":"rank 1' "$dir/slow/metrics.jsonl")" = 1

# ---- goodput, and the file for Prometheus ----

# checked - what promtool, where it is installed, and our own reading of the format say
# shellcheck disable=SC2317 # expect calls it
checked() {
    if command -v promtool >/dev/null; then
        promtool check metrics <"$dir/run.prom" || return 1
    fi
    python3 test/cli/support/check_prometheus.py "$dir/run.prom" "$dir/good/metrics.jsonl"
}
LMTRAIN_FAULT=rank1:step11:sigkill pretrain good --ranks 2 --set restarts=1 --set metrics.prometheus="$dir/run.prom" \
    >"$dir/good.out" 2>&1
expect 'goodput is said at the end' 0 'goodput [0-9.]+ %: .* since the first start in steps that count; 1 restart$' cat "$dir/good.out"
expect 'each start is an event' 0 '' test "$(grep -c '"event":"started"' "$dir/good/metrics.jsonl")" = 2
expect 'the file is one for Prometheus' 0 '^running 0, restarts 1$' checked
expect 'for all to read' 0 '644' stat -c %a "$dir/run.prom"
expect 'a run that goes on' 0 '2 restarts$' pretrain good --ranks 2 --set train.steps=16 --set metrics.prometheus="$dir/run.prom"
expect 'goes on counting' 0 '^running 0, restarts 2$' checked
expect 'a file that cannot be written ends no run' 0 'warn: metrics.prometheus: .*training continues' \
    pretrain unwritten --set metrics.prometheus="$dir/none/run.prom" --set train.steps=2
finish
