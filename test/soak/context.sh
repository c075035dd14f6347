#!/bin/sh
# test/soak/context.sh - sequences of 65,536 tokens on 4 ranks of one thread, which exchange heads or gather keys: they train, and
# no rank ever holds more than was planned and what a process has beside
#
# bench/results/context.md has what came of it; the table's rows are as this prints them.
# shellcheck disable=SC2016 # texts of awk
. test/cli/support/check.sh
. test/cli/support/tiny.sh

seq_len=${CONTEXT_SEQ_LEN:-65536}
steps=${CONTEXT_STEPS:-2}
xz -dc data/kjv/train.txt.xz >"$dir/long.txt"
expect 'tokens of the whole text' 0 'tokens in 1 document,' "$lmtrain" data tokenize "$dir/long.txt" --tokenizer data/kjv-tokenizer \
    --out "$dir/long"
cat >"$dir/job.yaml" <<END
model: {vocab_size: 4096, hidden_size: 32, n_layers: 2, n_heads: 4, n_kv_heads: 4, ffn_size: 64, max_seq_len: $seq_len,
        tied_embeddings: true}
data: {train: $dir/long, tokenizer: data/kjv-tokenizer, seq_len: $seq_len}
train: {steps: $steps, global_batch: 1, micro_batch: 1, log_every: 1, dtype: fp32}
optimizer: {lr: 1.0e-2, warmup_steps: 1}
checkpoint: {every_steps: 0}
parallel: {cp: 4}
ranks: 4
threads: 1
END

# peak_of RUN - the most that a rank of it has held, in bytes, of what is its own: anonymous and shared memory, asked for ten
# times a second
peak_of() {
    for peak_process in $(children_of "$(children_of "$pid")"); do # the daemon's
        awk '/^RssAnon:|^RssShmem:/ { n += $2 } END { printf "%.0f\n", n * 1024 }' "/proc/$peak_process/status" 2>/dev/null
    done
}

# long KIND - trains, and says what a rank held
long() {
    planned=$("$lmtrain" plan "$dir/job.yaml" --set "parallel.cp_kind=$1" --json | sed -n 's/.*"total_bytes":[^0-9]*\([0-9]*\).*/\1/p')
    begin=$(date +%s) most=0
    start "$1" --set "parallel.cp_kind=$1"
    while kill -0 "$pid" 2>/dev/null; do
        for now in $(peak_of); do
            [ "$now" -le "$most" ] || most=$now
        done
        sleep 0.1
    done
    ended "$1: $steps steps of $seq_len tokens" 0 "$1"
    expect 'whose losses fall' 0 '' awk -v n="$steps" '
        match($0, /"loss":[0-9.]+/) { loss = substr($0, RSTART + 7, RLENGTH - 7); if (!first) first = loss; n_losses++ }
        END { exit !(n_losses >= n && loss + 0 > 0 && (n < 2 || loss < first)) }' "$dir/$1/metrics.jsonl"
    expect "$1: $((most / 1000000)) MB held at most, $((planned / 1000000)) MB planned" 0 '' awk -v plan="$planned" -v held="$most" \
        'BEGIN { exit !(held > plan / 2 && held <= 1.03 * plan + 80e6) }'
    echo "| $1 | $seq_len | $((planned / 1000000)) MB | $((most / 1000000)) MB | $(($(date +%s) - begin)) s |"
}

long ulysses
long gather
finish
