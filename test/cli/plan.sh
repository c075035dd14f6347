#!/bin/sh
# test/cli/plan.sh - lmtrain plan: counts of known models, the program as text, JSON; for any number of ranks
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}
cat >"$dir/job.yaml" <<END
model: llama-tiny
data: {train: nowhere}
train: {steps: 10, global_batch: 8, micro_batch: 2}
output: nowhere
END

# plan ARGUMENTS...
plan() {
    "$lmtrain" plan "$dir/job.yaml" "$@"
}

while read -r model count; do
    expect "$model" 0 "^model $model: $count parameters\$" plan --set "model=$model"
done <<END
gpt2 124,439,808
gpt2-medium 354,823,168
gpt2-large 774,030,080
gpt2-xl 1,557,611,200
llama-7b 6,738,415,616
llama-13b 13,015,864,320
llama-30b 32,528,943,616
llama-65b 65,285,660,672
llama2-7b 6,738,415,616
llama2-13b 13,015,864,320
llama2-70b 68,976,648,192
llama3-8b 8,030,261,248
llama3-70b 70,553,706,496
END

expect "GPT-3's FLOPs as its paper counts" 0 "^Megatron-LM +4.51[0-9]* EFLOP" plan --set model=gpt3-175b --set recompute=full \
    --set train.global_batch=1536 --set train.micro_batch=1 --set data.seq_len=2048
expect "Muon's steps, by as many ranks as one would need" 0 "^Newton-Schulz +684 TFLOP" plan --set model=llama-7b \
    --set optimizer.name=muon --set ranks=8 --set parallel.zero=1 --set train.global_batch=64
expect "and of one rank" 0 "^Newton-Schulz +684 TFLOP" plan --set model=llama-7b --set optimizer.name=muon --set ranks=1
expect 'a table of memory' 0 '^total +[0-9.]+ [KMG]iB +[0-9]+ ' plan
total=$(printf '%s\n' "$output" | sed -n 's/^total.*iB *\([0-9]*\) .*/\1/p')
sum=$(printf '%s\n' "$output" | awk '/^memory of a rank/ { inside = 1; next } /^total/ { inside = 0 }
    inside && match($0, /[KMG]?i?B +[0-9]+ /) { split(substr($0, RSTART), word, / +/); n += word[2] } END { print n }')
expect "which adds up ($sum)" 0 '' test "$sum" = "$total"
expect 'as JSON, the same' 0 "\"total_bytes\":[[:space:]]*$total" plan --json
promised plan
expect 'no file is read, none is made' 0 '' test ! -e nowhere
expect 'more ranks' 0 '^4 ranks \(dp 4\), 1 micro-batch of 2 x ' plan --ranks 4
expect 'by the old name of the option' 0 'warn: --world is deprecated since 0.1, use --ranks; it will be removed in 0.3' plan --world 4
expect 'zero 1' 0 '^4 ranks \(dp 4, zero 1\), ' plan --ranks 4 --set parallel.zero=1
expect 'zero 3' 0 '^4 ranks \(dp 4, zero 3 hold pass\), ' plan --ranks 4 --set parallel.zero=3
expect 'tensor parallel, chunks' 0 '^4 ranks \(dp 1, tp 2 with sequence parallel, pp 2 interleaved of 2 chunks\), ' plan --ranks 4 --set parallel.tp=2 \
    --set parallel.pp=2 --set parallel.schedule=interleaved --set model=llama-22m
expect 'the device' 0 '^device: cpu, 3 threads a rank$' plan --set device=cpu --set threads=3
expect 'a GPU that is not named' 0 '^device: a GPU of 80.0 GiB, assumed ' plan --set device=cuda
expect 'and that the job fits it' 0 '^fits: a rank needs [0-9.]+ MiB of the [0-9.]+ GiB that a job may use of the assumed GPU$' plan --set device=cuda
expect 'or not' 0 '^does not fit: a rank needs [0-9.]+ TiB of the ' plan --set device=cuda --set model=llama-65b
expect 'the layout as JSON' 0 '"schedule":[[:space:]]*"1f1b"' plan --json --ranks 2 --set parallel.pp=2
expect 'the pipeline ranks' 0 '"layers":[[:space:]]*"embedding, 0' plan --json --ranks 2 --set parallel.pp=2
expect 'and the bubble' 0 '"bubble":[[:space:]]*0\.' plan --json --ranks 2 --set parallel.pp=2
expect 'its program gathers weights' 0 'all_gather weights\.[0-9]+:shard  over dp' plan --ranks 4 --set parallel.zero=1 --print-program
expect 'a list of ops is one choice' 0 '"recompute":.*"rmsnorm, swiglu"' plan --json \
    --set 'recompute=[swiglu, rmsnorm]'
expect 'full recomputation takes less' 0 '' sh -c "'$lmtrain' plan '$dir/job.yaml' --json --set recompute=full |
    awk '/total_bytes/ { gsub(/[^0-9]/, \"\"); exit !(\$0 + 0 < $total) }'"

# ---- the time of a step ----

printf 'islands:\n  - {nodes: 1, device: h100-sxm, per_node: 8}\n' >"$dir/eight.yaml"

expect 'the time of a step' 0 '^predicted on 1 h100-sxm: [0-9.]+ s a step, [0-9]+ tokens/s, MFU [0-9.]+ %' plan --device h100-sxm
expect 'what it goes into' 0 '^products +[0-9.]+ ms +[0-9.]+ %' plan --device h100-sxm
expect 'what would make it faster' 0 '^10 % faster, one at a time, change the step by: products -[0-9.]+ %, memory -[0-9.]+ %, ' plan --device h100-sxm
expect 'or slower' 0 '^one slow rank, 1.1 times as long: \+[0-9.]+ %$' printf '%s\n' "$output"
expect 'or use more memory' 0 '^16 GiB more memory: no faster layout by one change$' printf '%s\n' "$output"
expect 'half as many micro-batches' 0 '^half as many micro-batches \(train.micro_batch: 4\): [-+][0-9.]+ %$' printf '%s\n' "$output"
expect 'with less memory' 0 '^16 GiB more memory: -[0-9.]+ % \(recompute: (none|selective)\)$' \
    "$lmtrain" plan configs/jobs/llama2-70b.yaml --cluster dgx-h100 --ranks 64 --set train.global_batch=128 --layout tp=2,pp=8,zero=1,recompute=full
expect 'as bars, each where the one before ends' 0 '^attention +[0-9.]+ ms +[0-9.]+ % {15,30}#+$' printf '%s\n' "$output"
expect 'of memory, too' 0 '^gradients +[0-9.]+ GiB +[0-9]+ {3,}#+ +accumulators' printf '%s\n' "$output"
expect 'the busiest rank' 0 '^time of a step of rank [0-9]+, the busiest ' printf '%s\n' "$output"
expect 'all of the run' 0 '^all 100000 steps: 314.6 G tokens, [0-9.]+ days, 2[0-9]{4} GPU-days, 3[0-9][0-9]\.?[0-9]* ZFLOP of the model$' \
    "$lmtrain" plan configs/jobs/gpt3-175b.yaml --ranks 1024 --device a100-sxm-80
expect 'and that it fits' 0 '^fits: a rank needs ' plan --device h100-sxm
expect "GPT-3 on 1,024 A100s: a model FLOPs utilization of 45 to 55 %, as papers say" 0 'MFU (4[5-9]|5[0-4])\.' \
    "$lmtrain" plan configs/jobs/gpt3-175b.yaml --ranks 1024 --device a100-sxm-80
expect 'GPT-3 on 64 A100s within 15 % of 13.75 s (Korthikanti et al. 2022, table 5)' 0 ': 1(1\.[7-9]|[2-4]\.|5\.[0-7])[0-9]* s a step' \
    "$lmtrain" plan configs/jobs/gpt3-175b.yaml --ranks 64 --device a100-sxm-80 --set train.global_batch=64 --set parallel.pp=8 \
    --set parallel.schedule=interleaved --set parallel.chunks=3 --set parallel.sequence_parallel=true
expect 'what does not fit' 2 '^does not fit: a rank needs [0-9.]+ [GT]iB of the ' plan --set model=llama-65b --device h100-sxm
expect 'and what to change' 0 '^\(hint: parallel.tp: 8 with parallel.pp: [0-9]+ with .*ranks: [0-9]+ needs [0-9.]+ GiB, or memory.offload: auto needs [0-9.]+ GiB and [0-9.]+ [GT]iB of the host.s memory\)$' printf '%s\n' "$output"
expect 'or what the host takes' 2 '^\(hint: memory.offload: auto needs [0-9.]+ GiB and [0-9.]+ TiB of the host.s memory\)$' \
    plan --set model=gpt3-175b --cluster "$dir/eight.yaml" --ranks 1
expect 'one change' 2 '^\(hint: recompute: full with train.gradient_dtype: bf16 needs [0-9.]+ GiB, or ranks: 32 needs [0-9.]+ GiB, or recompute: auto with memory.offload: auto needs [0-9.]+ GiB and [0-9.]+ GiB of the host.s memory\)$' \
    "$lmtrain" plan configs/jobs/llama2-70b.yaml --device h100-sxm --ranks 16
expect 'as JSON' 2 '"change":[[:space:]]*"ranks: 32"' "$lmtrain" plan configs/jobs/llama2-70b.yaml --device h100-sxm --ranks 16 --json
expect 'as JSON' 0 '"step_ns":' plan --device h100-sxm --json
for field in step_ns_if_10_percent_faster step_ns_if_a_rank_is_10_percent_slower if_half_the_micro_batches busiest_rank formula_share; do
    expect "with $field" 0 "\"$field\":" printf '%s\n' "$output"
done
expect 'as JSON, what does not fit' 2 '"fits":[[:space:]]*false' \
    "$lmtrain" plan configs/jobs/llama2-70b.yaml --device h100-sxm --ranks 16 --json

# ---- the search ----

searched() {
    "$lmtrain" plan configs/jobs/llama2-70b.yaml --device h100-sxm --set parallel=auto "$@"
}

expect 'a layout is searched' 0 '^best of [0-9]+ layouts \([0-9]+ do not fit, ' searched --ranks 64
printf '%s\n' "$output" >"$dir/search.txt"
expect 'it fits' 0 '^fits: a rank needs ' cat "$dir/search.txt"
expect 'ten are printed' 0 '^10 +[0-9]+ ' cat "$dir/search.txt"
expect 'and what others lack' 0 '^    tp 8 is slower, by [0-9.]+ % or more' cat "$dir/search.txt"
expect 'whole experts divide in each layout' 0 '^best of [0-9]+ layouts' \
    searched --ranks 16 --set model=mixtral-8x7b --set moe.expert_tp=1 --set train.global_batch=16
searched --ranks 64 >"$dir/again.txt"
expect 'the same each time' 0 '' cmp "$dir/search.txt" "$dir/again.txt"
expect 'the best is what the plan is of' 0 '' sh -c "'$lmtrain' plan configs/jobs/llama2-70b.yaml --device h100-sxm --set parallel=auto --ranks 64 --top 1 --json | python3 -c '
import json, sys
plan = json.load(sys.stdin)
best = plan[\"search\"][\"layouts\"][0]
assert best[\"step_ns\"] == plan[\"predicted\"][\"step_ns\"] and best[\"needed_bytes\"] == plan[\"predicted\"][\"needed_bytes\"]
assert all(best[key] == plan[\"layout\"][key] for key in (\"tp\", \"pp\", \"dp\", \"zero\", \"schedule\", \"chunks\", \"bucket_mb\"))
search = plan[\"search\"]
assert search[\"others\"]
for other in search[\"others\"]:
    assert other[\"value\"] != best[other[\"key\"]], other
    assert other[\"bound_ns\"] > 0 if other[\"fits\"] else other[\"needed_bytes\"] > search[\"available_bytes\"], other'"
grep -v '^recompute:' configs/jobs/llama2-7b.yaml >"$dir/open.yaml"
expect 'layers are recomputed where memory is short' 0 '^ *1 +1 +1 +4 .* auto: [0-9.]+ % ' \
    "$lmtrain" plan "$dir/open.yaml" --ranks 4 --device h100-sxm --set 'parallel={mode: semi, tp: 1, pp: 1, zero: 1, bucket_mb: 32}' --set search.within=0
expect 'what is given stays' 0 '^16 ranks \(dp 2, tp 8 ' "$lmtrain" plan configs/jobs/llama2-7b.yaml --ranks 16 --device h100-sxm --set 'parallel={mode: semi, tp: 8, dp: 2}'
expect 'nothing fits' 2 'none of [0-9]+ layouts of 8 ranks fits h100-sxm: the smallest \(tp 8, ' searched --ranks 8
expect 'and what would' 0 '; what fits: 32 ranks \(tp [0-9]+, pp [0-9]+, dp [0-9]+, zero [0-9], recompute [a-z]+: [0-9.]+ GiB a rank\)$' \
    printf '%s\n' "$output"
expect 'or with all of what is given' 2 '; what fits: [0-9]+ ranks with recompute: full, train.micro_batch: 1 \(' \
    searched --ranks 8 --set recompute=none --set train.micro_batch=8
expect 'nothing is known of the devices' 2 'parallel.mode is auto, which needs the devices that the layout is for \(hint: --cluster NAME' plan --set parallel=auto
expect 'a degree beside auto' 2 'parallel.tp is given, but parallel.mode is auto \(hint: mode: semi\)' plan --set 'parallel={mode: auto, tp: 2}'
expect 'layers of each stage' 0 'recompute none, full in 1\+0 layers, selective in 0\+1 layers$' plan --ranks 2 \
    --set parallel.pp=2 --set model.n_layers=4 --set 'recompute_layers={full: [1, 0], selective: [0, 1]}'
expect 'of too few stages' 2 'recompute_layers.full has 1 number, but the pipeline has 2 stages' plan --ranks 2 \
    --set parallel.pp=2 --set 'recompute_layers.full=[1]'
expect 'of a stage that has fewer' 2 'recompute_layers has 3 layers of stage 1, which has 2 \(hint: 2 or fewer' plan --ranks 2 \
    --set parallel.pp=2 --set model.n_layers=4 --set 'recompute_layers={full: [0, 2], selective: [0, 1]}'
expect 'stages of one layout' 2 'parallel.stages is given, but parallel.mode is semi: it is of one layout' plan --set 'parallel={mode: semi, stages: [1, 1]}'

# ---- one layout, many numbers of ranks, calibration ----

expect 'one layout' 0 '^32 ranks \(dp 1, tp 8 with sequence parallel, pp 4 interleaved of 4 chunks\), .* recompute full$' searched --ranks 32 \
    --layout tp=8,pp=4,schedule=interleaved,chunks=4,recompute=full --set train.global_batch=64
expect 'no layout' 2 'layout is tp, not KEY=VALUE,... \(hint: tp=8,pp=4,zero=1\)' searched --ranks 16 --layout tp
expect 'strong scaling' 0 '^ *64 +1024 +[0-9.]+ ms +[0-9]+ +[0-9.]+ % +100.0 % .* dp 4, tp 2' searched --sweep ranks=8,64,256
expect 'some do not fit' 0 '^ *8 .* none of [0-9]+ layouts of 8 ranks fits' printf '%s\n' "$output"
expect 'weak scaling' 0 '^ *32 +2048 ' searched --set model=llama2-7b --sweep ranks=16,32 --weak
expect 'as JSON' 0 '"efficiency":[[:space:]]*1,' searched --set model=llama2-7b --sweep ranks=16,32 --json
expect 'no numbers' 2 'sweep is ranks=8,x, not up to 64 numbers of ranks \(hint: ranks=8,16,32\)' searched --sweep ranks=8,x
expect 'no devices' 2 'sweep predicts times \(hint: --device NAME or' plan --sweep ranks=1,2
expect 'weak alone' 2 'weak is for --sweep' searched --ranks 64 --weak
sed 's/cores: 112/cores: 112, watts: 1000, price_per_hour: 2.5/' configs/clusters/dgx-h100.yaml >"$dir/mine.cluster.yaml"
calibrated() {
    "$lmtrain" plan configs/jobs/llama2-70b.yaml --cluster "$dir/mine.cluster.yaml" --ranks 8 --layout tp=8,pp=1,zero=0,recompute=full \
        --set model=llama2-7b "$@"
}
calibrated --rank 0 >"$dir/before.txt"
expect 'energy and price' 0 ' MWh, a price of [0-9.e+]+$' cat "$dir/before.txt"
expect 'a measured step calibrates' 0 '^calibration: \{bf16: [0-9.]+\}$' calibrated --calibrate 100
expect 'into the file' 0 '^calibration: \{bf16: ' cat "$dir/mine.cluster.yaml"
expect 'and then it is predicted' 0 'h100-sxm: (99.9|100.0)[0-9]* s a step' calibrated --rank 0
expect 'again' 0 'written to .*mine.cluster.yaml' calibrated --calibrate 110
expect 'one line of it' 0 '' test "$(grep -c calibration "$dir/mine.cluster.yaml")" = 1
expect 'nothing measured' 2 'calibrate is not a number of seconds' calibrated --calibrate x
expect 'too much' 2 'is this the job that was measured' calibrated --calibrate 10000
expect "GPT-3's training: 430 ZFLOP, 16,000 A100-days at 312 TFLOP/s" 0 '' sh -c "'$lmtrain' plan configs/jobs/gpt3-175b.yaml --cluster dgx-a100 \
    --set recompute=full --set train.steps=95000 --set train.global_batch=1536 --set data.seq_len=2048 --json | python3 -c '
import json, sys
run = json.load(sys.stdin)[\"predicted\"][\"run\"]
assert run[\"steps\"] == 95000 and run[\"tokens\"] == 95000 * 1536 * 2048
assert abs(run[\"megatron_flops\"] / 430e21 - 1) < 0.03, run
assert abs(run[\"device_days_at_peak\"] / 16000 - 1) < 0.03, run
assert abs(run[\"megatron_flops\"] / 312e12 / 86400 / run[\"device_days_at_peak\"] - 1) < 1e-9, run'"
expect 'as text' 0 '^at the peak of the data sheets: 1[56][0-9]{3} GPU-days for 4[23][0-9].[0-9] ZFLOP by' \
    "$lmtrain" plan configs/jobs/gpt3-175b.yaml --cluster dgx-a100 --set recompute=full --set train.steps=95000 --set train.global_batch=1536
expect 'and its checkpoints' 0 '^checkpoints: 95 of 1.9 TiB, one is written in 83.8 s, for which a step waits 0 s, a resume reads it in 52.4 s$' \
    printf '%s\n' "$output"

expect 'all devices of a cluster' 0 '^128 ranks \(dp 4, tp 8 with ' "$lmtrain" plan configs/jobs/llama2-70b.yaml --cluster dgx-h100 --set ranks=auto \
    --layout tp=8,pp=4,zero=1
expect 'which is said' 0 '^ranks: 128, all devices of the cluster \(--ranks N: less\)$' printf '%s\n' "$output"
expect 'of the cluster of the job' 0 '^ranks: 128, all devices ' plan --set cluster=dgx-a100 --set train.global_batch=256
expect 'and of a search' 0 '^ranks: 640, all devices ' plan --cluster two-kinds --set train.global_batch=1280 --set parallel=auto
expect 'but for --ranks' 0 '^64 ranks ' plan --cluster dgx-a100 --ranks 64 --set train.global_batch=128
refuse 'which is not said' '^ranks: '
expect 'or dp of the job' 0 '^4 ranks \(dp 4\)' plan --cluster dgx-a100 --set parallel.dp=4
expect 'a device has one copy' 0 '^2 ranks \(dp 1, tp 2 ' plan --device h100-sxm --set parallel.tp=2
expect 'on a cluster' 0 '^predicted on 64 h100-sxm: ' "$lmtrain" plan configs/jobs/llama2-70b.yaml --ranks 64 --cluster dgx-h100
expect 'whose nodes have one rank each of those that sum' 0 '^between nodes of 8 ranks: .* a node and step, all ranks at once: ' printf '%s\n' "$output"
expect 'or sum among their ranks first' 0 '^between nodes of 8 ranks: .* GiB a node and step, .* did not go by node' \
    "$lmtrain" plan configs/jobs/llama-7b.yaml --ranks 16 --cluster dgx-h100
expect 'which has more devices than the job ranks' 2 '256 ranks, but cluster dgx-h100 has 128 devices' \
    "$lmtrain" plan configs/jobs/llama2-70b.yaml --ranks 256 --cluster dgx-h100
expect 'a cluster, or a device' 2 'exclude each other' plan --device h100-sxm --cluster dgx-h100
expect 'an unknown cluster' 2 'no cluster is named dgx-h101 \(there are dgx-a100, dgx-b200, dgx-h100, dgx-h200, gb200-nvl72, two-kinds; or the path of a file\)' plan --cluster dgx-h101
printf 'islands:\n  - {nodes: 2, device: h100-sxm, per_node: 8}\n  - {nodes: 2, device: a100-sxm-80, per_node: 8}\n' >"$dir/two.yaml"
two() {
    "$lmtrain" plan configs/jobs/llama2-70b.yaml --ranks 32 --cluster "$dir/two.yaml" "$@"
}
two --layout tp=8,pp=4 >"$dir/even.txt"
expect 'devices of two kinds' 0 '^predicted on 16 h100-sxm and 16 a100-sxm-80: ' cat "$dir/even.txt"
expect 'of which stages get layers by their speed' 0 'pp 4 .* of 2[0-9]\+2[0-9]\+1[0-9]\+1[0-9] layers\)' \
    two --set 'parallel={mode: semi, tp: 8, order: tp-dp-pp}'
expect 'the slower ones first, too' 0 'pp 4 .* of 1[0-9]\+1[0-9]\+[23][0-9]\+2[0-9] layers in the order tp-dp-pp-reversed' \
    two --set 'parallel={mode: semi, tp: 8, order: tp-dp-pp-reversed}'
expect 'whichever is faster' 0 'pp 8 .* layers in the order tp-dp-pp-reversed' two --set parallel=auto
seconds_of() { printf '%s\n' "$1" | sed -n 's/^predicted on .*: \([0-9]*\).*/\1/p'; }
expect 'in less than two thirds of the time' 0 '' test "$(($(seconds_of "$output") * 3))" -lt "$(($(seconds_of "$(cat "$dir/even.txt")") * 2))"
printf 'islands:\n  - {nodes: 1, device: h100-sxm, per_node: 8}\n  - {nodes: 1, device: a100-sxm-80, per_node: 8}\n' >"$dir/two.yaml"
replicas() {
    "$lmtrain" plan configs/jobs/llama2-7b.yaml --ranks 16 --cluster "$dir/two.yaml" "$@"
}
replicas --layout zero=1 >"$dir/even.txt"
expect 'replicas on two kinds' 0 '^predicted on 8 h100-sxm and 8 a100-sxm-80: ' cat "$dir/even.txt"
expect 'get micro-batches by their speed' 0 'dp 16 of 8 x [89][0-9] \+ 8 x [34][0-9] micro-batches' replicas --set 'parallel={mode: data}'
expect 'in less than two thirds of the time, too' 0 '' test "$(($(seconds_of "$output") * 3))" -lt "$(($(seconds_of "$(cat "$dir/even.txt")") * 2))"
expect 'replicas that are pipelines on devices of one kind' 0 \
    'dp 4 of 2 x [34][0-9]+ \+ 2 x 1[0-9]+ micro-batches, pp 4 .* in the order tp-pp-dp' \
    "$lmtrain" plan configs/jobs/llama2-13b.yaml --ranks 16 --cluster "$dir/two.yaml" \
    --set 'parallel={mode: semi, pp: 4, zero: 1}' --set memory.recompute_early=0
expect 'which the table says' 0 ' order .* tp-pp-dp ' printf '%s' "$(printf '%s' "$output" | tr '\n' ' ')"
printf 'islands:\n  - {nodes: 1, device: a100-sxm-80, per_node: 8}\n  - {nodes: 1, device: a100-sxm-40, per_node: 8}\n' >"$dir/two.yaml"
sed '/^recompute/d' configs/jobs/llama2-13b.yaml >"$dir/open.yaml"
expect 'stages on smaller devices recompute more' 0 '^20-[0-9]+ .* swiglu' \
    "$lmtrain" plan "$dir/open.yaml" --ranks 16 --cluster "$dir/two.yaml" --set train.micro_batch=2 --set 'parallel={mode: semi, pp: 2, zero: 2}'
expect 'and others nothing' 0 '^0-19 +20 .* -  *-$' printf '%s\n' "$output"
expect 'each under its own limit' 0 '^limit +6[0-9.]+ GiB' printf '%s\n' "$output"
printf 'islands:\n  - {nodes: 0, device: h100-sxm, per_node: 8}\n' >"$dir/none.yaml"
sed -n '/^\.SH CLUSTER FILES/,/^\.SH EXIT/p' man/lmtrain-plan.1 | sed -n '/^\.nf/,/^\.fi/p' | sed '/^\./d; s/\\-/-/g' >"$dir/manual.yaml"
expect "the manual's example" 0 '^cluster: two kinds$' "$lmtrain" plan configs/jobs/llama2-70b.yaml --cluster "$dir/manual.yaml" --ranks 64
expect 'no nodes' 2 'none.yaml:2:13: nodes is not a value such as 132' plan --cluster "$dir/none.yaml"
expect 'an unknown device' 2 'no device is named h101 \(there are a100-sxm-40, a100-sxm-80, b200, gb200, gb300, h100-sxm, h200, mi300x, rtx4090; or' \
    plan --device h101
for device in a100-sxm-40 a100-sxm-80 h100-sxm h200; do
    expect "$device can run" 0 "^device: $device, [0-9.]+ GiB\$" plan --device "$device"
done
for device in b200 gb200 gb300 mi300x rtx4090; do
    expect "$device is for planning" 0 "^device: $device, [0-9.]+ GiB \(planning only: lmtrain cannot run on it\)\$" plan --device "$device"
done
expect 'as JSON' 0 '"planning_only":[[:space:]]*true' plan --device gb300 --json
expect 'a job is not run on it' 2 'job.yaml: cluster is gb200-nvl72, whose device gb200 is for planning only' \
    "$lmtrain" pretrain "$dir/job.yaml" --dry-run --set cluster=gb200-nvl72
expect 'nor searched for it' 2 'gb200 is for planning only' "$lmtrain" pretrain "$dir/job.yaml" --set cluster=gb200-nvl72 --set parallel=auto
expect 'one domain of 72' 0 '^predicted on 576 gb200: ' "$lmtrain" plan configs/jobs/llama2-70b.yaml --ranks 576 --cluster gb200-nvl72 \
    --set train.global_batch=1152 --layout tp=4,pp=2,zero=1
expect 'the devices that ranks are on' 0 '^device: h100-sxm, 79.6 GiB$' "$lmtrain" plan configs/jobs/llama2-70b.yaml --ranks 512 --cluster two-kinds
expect 'of both kinds' 0 '^device: h100-sxm, 79.6 GiB; a100-sxm-80, 74.5 GiB$' "$lmtrain" plan configs/jobs/llama2-70b.yaml --ranks 640 \
    --cluster two-kinds --set train.global_batch=1280
sed 's/^hbm: .*/hbm: fast/' configs/devices/h100-sxm.yaml >"$dir/mine.yaml"
expect "a device file's mistake" 2 'mine.yaml:5:6: hbm is not a value such as 3.35 TB/s' plan --device "$dir/mine.yaml"
expect 'the program' 0 '^ *F +.*= *attention' plan --print-program
expect 'has collectives only with ranks' 0 'all_reduce' plan --print-program --ranks 2
plan --print-program >"$dir/one.txt"
expect 'and not alone' 1 '' grep all_reduce "$dir/one.txt"
plan --print-program >"$dir/two.txt"
expect 'is the same each time' 0 '' cmp "$dir/one.txt" "$dir/two.txt"
expect 'the program before its backward is sharded' 0 '^# after recompute' plan --print-after recompute
expect 'has no update yet' 0 '' sh -c "'$lmtrain' plan '$dir/job.yaml' --print-after recompute | { ! grep -q adamw; }"
expect 'which it has after that pass' 0 '= *adamw|adamw ' plan --print-after update
expect 'after place it is the program' 0 '' sh -c "'$lmtrain' plan '$dir/job.yaml' --print-after place | tail -n +2 | cmp - '$dir/one.txt'"
expect 'a pass that is none' 2 'print-after is nope, wanted declare, forward, ' plan --print-after nope
expect 'a rank that is not there' 2 'rank is 2, but the job has ranks 0 to 1' plan --print-program --ranks 2 --rank 2
expect 'ranks that do not divide' 2 'not a multiple of' plan --ranks 3
expect 'no ranks' 2 'ranks is 0' plan --ranks 0
expect 'an unknown option' 2 'hint: --print-program' plan --print-progam
expect 'for a GPU, in any build' 0 '^vendor +[0-9.]+ [KMG]iB +[0-9]+ +estimate, in addition: cuDNN' plan --set device=cuda
expect 'and as JSON' 0 '"vendor_bytes":' plan --set device=cuda --json
mkdir -p "$dir/cache/lmtrain"
echo '1503238553 NVIDIA H100' >"$dir/cache/lmtrain/gpu-account"
plan --set device=cuda >"$dir/here.txt"
expect 'whatever ran here before' 0 '' sh -c "XDG_CACHE_HOME='$dir/cache' '$lmtrain' plan '$dir/job.yaml' --set device=cuda | cmp - '$dir/here.txt'"
plan --device h100-sxm --ranks 2 >"$dir/here.txt"
expect 'on whatever machine' 0 '' sh -c "XDG_CACHE_HOME='$dir/cache' taskset 1 '$lmtrain' plan '$dir/job.yaml' --device h100-sxm --ranks 2 | cmp - '$dir/here.txt'"

# ---- sums of gradients behind the backwards of other chunks ----

fold3d='parallel={pp: 2, dp: 2, schedule: fold3d, chunks: 2}'
expect 'Fold3D is breadth-first' 0 '^4 ranks \(dp 2, pp 2 breadth-first of 2 chunks\)' \
    plan --device h100-sxm --ranks 4 --set model.n_layers=4 --set "$fold3d"
expect 'of whose sums chunk 0 waits for its own' 0 \
    '^gradient sums: 2 chunks, [0-9.]+ of [0-9.]+ ms exposed \(of chunk 0; [0-9.]+ ms by Fold3D' printf '%s\n' "$output"
expect 'as JSON, too' 0 '"formula_ns":' plan --device h100-sxm --ranks 4 --set model.n_layers=4 --set "$fold3d" --json

# ---- slices of tensor parallelism, by prices ----

printf 'islands:\n  - {nodes: 2, device: h100-sxm, per_node: 1, nics: 1, nic: 25 GB/s}\n' >"$dir/two.yaml"
# shellcheck disable=SC2317 # expect calls it
sliced() {
    plan --cluster "$dir/two.yaml" --ranks 2 --set model=llama-100m --set 'parallel={tp: 2}' --set train.micro_batch=8 \
        --set train.global_batch=16 "$@"
}
expect 'each place, cut and not cut' 0 '^forward 0 +- +1 +[248] of (whole sequences|tokens) +([0-9.]+ +){3}[0-9.]+$' sliced
expect 'and what a run needs for it' 0 '^\(a run cuts so if the job has the key cluster\)$' printf '%s\n' "$output"
expect 'as JSON, too' 0 '"exposed_uncut_ns":' sliced --json

# ---- sizes of micro-batches ----

sizes='parallel={pp: 2, schedule: dynamic, chunks: 1, micro_batches: auto}'
expect 'sizes are chosen' 0 '^micro-batches: [0-9x ]+, the best of [0-9]+ lists? .*bubble [0-9.]+ ms .*; all of ' \
    plan --device h100-sxm --ranks 2 --set train.micro_batch=auto --set "$sizes"
expect 'as JSON, too' 0 '"even_bubble_ns":' plan --device h100-sxm --ranks 2 --set train.micro_batch=auto --set "$sizes" --json

# ---- recomputation while gradients are under way ----

early() {
    plan --device h100-sxm --ranks 2 --set model.n_layers=4 --set parallel.pp=2 --set recompute=full \
        --set "memory.recompute_early=$1"
}
expect 'layers are recomputed early' 0 \
    '^recomputed before the gradient arrives: [12] layers? of a stage \(the last one keeps them\); a step takes [0-9.]+ instead of ' early auto
expect 'and what a run needs for it' 0 '^\(a run does so if the job has the key cluster\)$' printf '%s\n' "$output"
expect 'as many as one likes' 0 '^recomputed before the gradient arrives: 2 layers of a stage ' early 2
early 0 >"$dir/late.txt"
expect 'or none' 1 '' grep 'recomputed before' "$dir/late.txt"

# ---- sequences over several ranks ----

cat >"$dir/long.yaml" <<END
model: llama3-8b
data: {train: nowhere, seq_len: 1048576}
device: cuda
train: {steps: 100, global_batch: 1, micro_batch: 1, dtype: bf16}
recompute: full
parallel: {tp: 8, cp: 8}
END
# long OPTION... - a million tokens on 64 ranks; measured: 0.2 s, and 1.3 s where it does not fit
# shellcheck disable=SC2317 # expect calls it
long() {
    timeout 15 "$lmtrain" plan "$dir/long.yaml" --ranks 64 --cluster dgx-h100 "$@"
}
expect 'a million tokens' 0 '^64 ranks \(dp 1, tp 8 with sequence parallel, cp 8 gather\), 1 micro-batch of 1 x 1048576 tokens' long
expect 'who has which rows' 0 '^context parallel: gather, 8 ranks with 131072 rows of each sequence of 1048576$' printf '%s\n' "$output"
expect 'how even their work is' 0 '^  attention: two chunks of each sequence, the most work of a rank is 1.000 of the mean' printf '%s\n' "$output"
expect 'what they send' 0 '^  sent by a rank: 448 MiB forward and 896 MiB backward, per layer and micro-batch$' printf '%s\n' "$output"
expect 'what is gathered again' 0 'in the backward: 512 MiB per layer and micro-batch, kept they would take 16.0 GiB more \(1 micro' printf '%s\n' "$output"
expect 'that it fits' 0 '^fits: a rank needs ' printf '%s\n' "$output"
expect 'as JSON, too' 0 '"forward_bytes":[[:space:]]*469762048' long --json
expect 'heads among neighbours, keys among others' 2 '^64 ranks \(dp 1, cp 64 ulysses 8 x gather 8\), ' \
    long --layout 'tp=1,cp=64,cp_kind={ulysses: 8, gather: 8}'
expect 'what does not fit is named' 2 '^does not fit: a rank needs [0-9.]+ GiB of the 73.0 GiB .* h100-sxm, 89.7 GiB states$' \
    long --layout tp=1,cp=64,cp_kind=gather
expect 'and what would' 0 '^\(hint: parallel.tp: [48] with parallel.cp: [0-9]+ needs ' printf '%s\n' "$output"
expect 'whole sequences do not fit' 2 'GiB stash$' long --set parallel.cp=1 --set train.global_batch=8
expect 'but parts do' 0 '^\(hint: parallel.cp: [248] needs ' printf '%s\n' "$output"
expect 'heads that are too few' 2 '64 ranks exchange heads, but do not divide the 32 heads' long --layout tp=1,cp=64,cp_kind=ulysses
expect 'a search keeps what is given' 0 '^64 ranks \(.*cp 16 gather' long --set 'parallel={mode: semi, cp: 16, cp_kind: gather}'
expect 'and divides sequences that do not fit' 0 '^64 ranks \(.*, cp [0-9]+ ' timeout 60 "$lmtrain" plan "$dir/long.yaml" --ranks 64 \
    --cluster dgx-h100 --set parallel=auto
expect 'a full disk' 1 'standard output' sh -c "'$lmtrain' plan '$dir/job.yaml' >/dev/full"
finish
