#!/bin/bash
# test/soak/needles.sh - a needle in a haystack of 8,192 tokens is found by a tiny model that four ranks finetuned together
#
# Names and digits first, then needles in 512 tokens, then RoPE scaled by 16 and each text divided among four ranks, two by
# heads and two by keys. Some minutes of two cores. What it prints goes into bench/results/context.md by hand. NEEDLES_TOKENS
# and the others make it small: test/cli/context-needles.sh.
# shellcheck disable=SC2317 # functions called by name
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}
tokens=${NEEDLES_TOKENS:-8192} short=${NEEDLES_SHORT:-512} n_test=${NEEDLES_TEST:-20}
read -r steps_pairs steps_short steps_long <<<"${NEEDLES_STEPS:-800 400 60}"

# needles WHAT ARGUMENT... - scripts/data/needles.py
needles() { scripts/data/needles.py "$dir" "$1" --lmtrain "$lmtrain" "${@:2}"; }
# tune NAME STEPS LENGTH BATCH ARGUMENT... - finetune on NAME.jsonl, in $dir/NAME
tune() {
    cat >"$dir/$1.yaml" <<END
kind: finetune
model: $6
data: {train: $dir/$1.jsonl, tokenizer: $dir/tokenizer, seq_len: $3}
train: {steps: $2, global_batch: $4, dtype: fp32, log_every: 10, hang_seconds: 1000, hang_abort_seconds: 0}
optimizer: {lr: $5, weight_decay: 0.0}
output: $dir/$1
END
    "$lmtrain" finetune "$dir/$1.yaml" "${@:7}"
}

SECONDS=0
expect 'a tokenizer in which a name is a token' 0 'tokens' needles tokenizer
expect 'pairs' 0 '' needles train --name pairs --pairs --needles 6 --questions 18 --n $((32 * steps_pairs))
expect 'short texts' 0 '' needles train --name short --tokens "$short" --needles 8 --questions 16 --n $((8 * steps_short))
expect 'long texts' 0 '' needles train --name long --tokens $((tokens - 1)) --needles 16 --questions 48 --n $((2 * steps_long))
expect 'and others' 0 '' needles test --tokens $((tokens - 1)) --needles 8 --n "$n_test"

model="{vocab_size: 864, hidden_size: 64, n_layers: 2, n_heads: 4, n_kv_heads: 4, ffn_size: 128, max_seq_len: $short,
        rope_theta: 100000.0, tied_embeddings: false, window: 4, window_period: 2, attention_bias: qkv, init_std: 0.06}"
expect 'pairs are learned' 0 '^done' tune pairs "$steps_pairs" 72 32 3.0e-3 "$model" \
    --set train.init=random --set train.micro_batch=32 --set optimizer.warmup_steps=$((steps_pairs / 16))
expect 'needles in short texts' 0 '^done' tune short "$steps_short" "$short" 8 2.0e-3 "$dir/pairs" --set train.micro_batch=8
factor=$((tokens / short))
expect "and in long ones, over four ranks" 0 '^done' tune long "$steps_long" "$tokens" 2 1.0e-3 \
    "{from: $dir/short, max_seq_len: $tokens, rope_scaling: {type: yarn, factor: $factor, original_max_seq_len: $short}}" \
    --set train.micro_batch=1 --ranks 4 --set threads=1 --set 'parallel={cp: 4, cp_kind: {ulysses: 2, gather: 2}}'
echo "# trained in $SECONDS s"
for run in pairs short long; do
    sed -n 's/^.*"step":\([0-9]*\),.*"loss":\([^,]*\),.*/# step \1: loss \2/p' "$dir/$run/metrics.jsonl" | sed -n '1p;$p'
done

# found RUN - the share of needles that are found, in percent; the table as comments
found() {
    "$lmtrain" eval --model "$dir/$1" --task needle --data "$dir" >"$dir/$1.scores" 2>&1 || return 1
    sed 's/^/# /' "$dir/$1.scores" >&2
    awk '$1 == "needle" { print int(100 * $3) }' "$dir/$1.scores"
}
echo '# needles in long texts, before:'
before=$(found short)
echo '# and after:'
after=$(found long)
expect "needles are found: $before % before, $after % after" 0 '' test "$after" -ge "${NEEDLES_LEAST:-90}"
finish
