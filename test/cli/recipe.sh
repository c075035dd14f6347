#!/bin/sh
# test/cli/recipe.sh - learning-rate schedules, a z-loss and an average of weights as users meet them
# shellcheck disable=SC2016,SC2317 # texts of inner shells; functions called by name
. test/cli/support/check.sh
. test/cli/support/tiny.sh

number_of() {
    sed -n "s/.*\"$1\":\([-+.e0-9]*\).*/\1/p"
}
less() {
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a < b) }'
}
close_to() {
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= 1e-6 * b) }'
}

# ---- schedules ----

lr() {
    "$lmtrain" config "$dir/job.yaml" --lr "$@"
}
expect 'the schedule as a plot' 0 '^ +12  0.001 +#####$' lr
expect 'of every step of a short run' 0 '^12$' sh -c '"$1" config "$2" --lr | wc -l' sh "$lmtrain" "$dir/job.yaml"
expect 'as JSON' 0 '^\[\{"step":1,"lr":0.005' lr --json
expect 'three cycles' 0 '^4$' sh -c '"$1" config "$2" --lr --set train.steps=33 --set optimizer.cycles=3 |
    grep -c " 0.01  *#\{50\}$"' sh "$lmtrain" "$dir/job.yaml" # the warm-up's last step, and those that begin one
expect 'of more steps than lines' 0 '^33$' sh -c '"$1" config "$2" --lr --set train.steps=1000000007 | wc -l' sh "$lmtrain" "$dir/job.yaml"
expect 'up to the last one' 0 '^ +1000000007  0.001 ' lr --set train.steps=1000000007
expect 'without a job' 2 'without JOB.yaml|give one of' "$lmtrain" config --lr
expect 'a run with cycles' 0 '^done' pretrain cycles --set optimizer.cycles=2 --set optimizer.warmup_steps=0
expect 'which says so in each step' 0 '"step":7,.*"lr":0\.0[0-9]*,' cat "$dir/cycles/metrics.jsonl"

# ---- z-loss ----

expect 'a run without' 0 '^done' pretrain plain --set train.dtype=fp32 --set model.max_seq_len=32
expect 'and with a z-loss' 0 '^done' pretrain z --set train.dtype=fp32 --set train.z_loss=1e-2
expect 'which each step tells' 0 '^12$' grep -c '"z_loss":0\.[0-9]' "$dir/z/metrics.jsonl"
expect 'and none without' 1 '' grep -q z_loss "$dir/plain/metrics.jsonl"
first=$(number_of z_loss <"$dir/z/metrics.jsonl" | head -n 1)
# Of 4,096 words, all as likely at first: log(4096)^2 / 100.
expect "at first as of even logits ($first)" 0 '' awk -v z="$first" 'BEGIN { exit !(z > 0.68 && z < 0.71) }'
expect 'it falls' 0 '' less "$(number_of z_loss <"$dir/z/metrics.jsonl" | tail -n 1)" "$first"

# ---- an average of weights ----

expect 'a run with an average' 0 '^done' pretrain average --set train.dtype=fp32 --set train.ema=0.9 --set model.max_seq_len=32
same_bits 'trains as without' plain average 12
# loss RUN ARGUMENTS... - its held-out loss
loss() {
    loss_of=$1
    shift
    "$lmtrain" eval --model "$dir/$loss_of" --data "$dir/held" --json "$@" 2>/dev/null | number_of loss
}
trained=$(loss average)
averaged=$(loss average --weights ema)
expect "weights are the last ones ($trained)" 0 '' close_to "$trained" "$(loss plain)"
expect "of a short run, whose loss falls, averages lag ($averaged)" 0 '' less "$trained" "$averaged"
expect 'a HF folder of averages' 0 'as a Hugging Face folder' "$lmtrain" convert --from "$dir/average" --to "$dir/hf" \
    --weights ema --verify
expect 'has their loss' 0 '' close_to "$averaged" "$(loss hf --tokenizer data/kjv-tokenizer)"
expect 'one of weights' 0 'as a Hugging Face folder' "$lmtrain" convert --from "$dir/average" --to "$dir/hf-trained"
expect 'has theirs' 0 '' close_to "$trained" "$(loss hf-trained --tokenizer data/kjv-tokenizer)"
expect 'text' 0 '^And God' "$lmtrain" generate --model "$dir/average" --weights ema --prompt 'And God' --max-new-tokens 4
expect 'a checkpoint has both' 2 'has all of them \(hint: --as hf' "$lmtrain" convert --from "$dir/average" --to "$dir/other" \
    --as checkpoint --weights ema
expect 'cut for two ranks' 0 'as a checkpoint of 2 files' "$lmtrain" convert --from "$dir/average" --to "$dir/cut" --tp 2 --verify
expect 'it still has the averages' 0 '' close_to "$averaged" "$(loss cut --weights ema)"
expect 'without any' 3 'no moving average of weights \(hint: train.ema' "$lmtrain" eval --model "$dir/plain" --weights ema \
    --data "$dir/held"
expect 'none of adapters' 2 'train.ema is 0.9, which averages weights that are trained in full' "$lmtrain" config "$dir/job.yaml" \
    --set train.ema=0.9 --set kind=lora --set train.init="$dir/plain"

expect 'a run goes on with an average' 0 'train.ema: the checkpoint has no average of weights: it begins with them' pretrain plain \
    --set train.dtype=fp32 --set train.ema=0.9 --set train.steps=16 --set model.max_seq_len=32 --resume auto
expect 'and has one then' 0 '' test -n "$(loss plain --weights ema)"
expect 'a stop in between changes no bit' 0 '^done' pretrain stopped --set train.dtype=fp32 --set train.ema=0.9 --set train.steps=8 \
    --set optimizer.schedule=constant
expect 'which goes on' 0 '^done' pretrain stopped --set train.dtype=fp32 --set train.ema=0.9 --set train.steps=12 \
    --set optimizer.schedule=constant --resume auto
expect 'as the whole run' 0 '^done' pretrain whole --set train.dtype=fp32 --set train.ema=0.9 --set train.steps=12 \
    --set optimizer.schedule=constant
expect 'to the same average' 0 '' cmp "$dir/stopped/checkpoints/step-00000012/rank-00000.safetensors" \
    "$dir/whole/checkpoints/step-00000012/rank-00000.safetensors"
finish
