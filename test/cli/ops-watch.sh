#!/bin/sh
# test/cli/ops-watch.sh - what a run says of itself for months: logs that are rotated
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
finish
