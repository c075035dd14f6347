#!/bin/bash
# test/soak/kills.sh - a run that is killed again and again ends with the bits of one that never was
#
# Two ranks. Each time after a random while either one rank or the whole job gets SIGKILL, or the job SIGTERM; then it
# is started again. At least 8 kills (SOAK_KILLS) must have hit in 3000 steps (SOAK_STEPS), and nothing may be left in /dev/shm.
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}
n_kills=${SOAK_KILLS:-8}
RANDOM=${SOAK_SEED:-1}

scripts/data/prepare-kjv >/dev/null || exit 1
cat >"$dir/job.yaml" <<END
model: {vocab_size: 4096, hidden_size: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, ffn_size: 128, max_seq_len: 64}
data: {train: build/data/kjv, tokenizer: data/kjv-tokenizer, seq_len: 64}
train: {steps: ${SOAK_STEPS:-3000}, global_batch: 16, micro_batch: 2, dtype: fp32, seed: 5, log_every: 1}
optimizer: {lr: 1.0e-3, warmup_steps: 10}
ranks: 2
checkpoint: {every_steps: 20, keep: 2}
output: runs/none
END

pids=()
# start OUTPUT - in its own process group, in the background; $pid
start() {
    setsid "$lmtrain" pretrain "$dir/job.yaml" --set "output=$1" >>"$1.log" 2>&1 &
    pid=$!
    pids+=("$pid")
}
# The last logged step with everything of it that must be equal.
last() {
    grep '"loss_hex"' "$1/metrics.jsonl" | tail -n 1 |
        sed 's/.*"step":\([0-9]*\).*"loss_hex":"\([^"]*\)".*"grad_norm_hex":"\([^"]*\)".*/\1 \2 \3/'
}
start "$dir/whole"
wait $pid
expect 'the run that is left alone' 0 '' test $? = 0

hits=0
for _ in $(seq 100); do
    start "$dir/broken"
    sleep "$((RANDOM % 4)).$((RANDOM % 10))"
    if [ $hits -lt "$n_kills" ] && kill -0 $pid 2>/dev/null; then
        rank=$(pgrep -P $pid | shuf -n 1 --random-source=<(yes "$RANDOM"))
        case $((RANDOM % 3)) in
        0) [ -n "$rank" ] && kill -KILL "$rank" ;;
        1) kill -KILL $pid ;;
        2) kill -TERM $pid ;;
        esac
        hits=$((hits + 1))
        wait $pid 2>/dev/null
        continue
    fi
    wait $pid
    status=$?
    [ $status = 0 ] && break
done
echo "$hits kills, at the end status $status"
expect 'it was killed often enough' 0 '' test $hits -ge "$n_kills"
expect 'it ended' 0 '' test "$status" = 0
whole=$(last "$dir/whole") broken=$(last "$dir/broken")
echo "whole $whole, broken $broken"
expect 'with the same bits' 0 '' test -n "$whole" -a "$whole" = "$broken"
# What a killed launcher could not take away, the next one did.
left=0
for pid in "${pids[@]}"; do
    left=$((left + $(find /dev/shm -maxdepth 1 -name "lmtrain-$(id -u)-$pid-*" | wc -l)))
done
expect 'nothing is left in /dev/shm' 0 '' test $left = 0
[ "$n_wrong" = 0 ] || tail -n 40 "$dir/broken.log"
finish
