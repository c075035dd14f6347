#!/bin/sh
# test/cli/replicas.sh - data-parallel ranks with different numbers of micro-batches
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# replicas RUN COUNTS PARALLEL RANKS OPTION... - the job with 8 sequences a step as micro-batches of one
# shellcheck disable=SC2317 # expect calls it
replicas() {
    replicas_run=$1 replicas_counts=$2 replicas_parallel=$3 replicas_ranks=$4
    shift 4
    pretrain "$replicas_run" --ranks "$replicas_ranks" --set train.micro_batch=1 \
        --set "parallel={replica_micro_batches: $replicas_counts$replicas_parallel}" --set model.n_layers=4 "$@"
}

expect 'ranks with as many' 0 '^done' replicas alike '[4, 4]' '' 2
expect 'as without saying so' 0 '^done' pretrain plain --ranks 2 --set train.micro_batch=1 --set model.n_layers=4
same_bits 'give the same bits' alike plain 12
expect 'ranks with five and three' 0 '^done' replicas uneven '[5, 3]' '' 2
expect 'see the same data' 0 '' python3 -c "
import json, sys
def losses(run): return [json.loads(line)['loss'] for line in open('$dir/' + run + '/metrics.jsonl') if 'grad_norm_hex' in line]
for a, b in zip(losses('plain'), losses('uneven')): assert abs(a - b) < 2e-2 * a, (a, b)
assert abs(losses('plain')[0] - losses('uneven')[0]) < 1e-5 * losses('plain')[0]"
expect 'the same again' 0 '^done' replicas again '[5, 3]' '' 2
same_bits 'with the same bits' uneven again 12
for parallel in 'zero: 1' 'pp: 2, schedule: 1f1b' 'pp: 2, schedule: zb-h1' 'pp: 2, schedule: interleaved' 'pp: 2, schedule: zb-v' 'zero: 1, pp: 2'; do
    rm -rf "$dir/other"
    ranks=2
    case $parallel in *pp*) ranks=4 ;; esac
    expect "the same with $parallel" 0 '^done' replicas other '[5, 3]' ", $parallel" $ranks
    same_bits "$parallel changes no bit" uneven other 12
done
# The order of ranks: which devices have which stages.
for order in tp-dp-pp-reversed tp-pp-dp; do
    for parallel in 'schedule: 1f1b' 'schedule: zb-h1' 'schedule: interleaved, zero: 1'; do
        rm -rf "$dir/other"
        expect "the order $order, $parallel" 0 '^done' replicas other '[5, 3]' ", pp: 2, order: $order, $parallel" 4
        same_bits 'changes no bit' uneven other 12
    done
done
rm -rf "$dir/other"
expect 'recomputation' 0 '^done' replicas other '[5, 3]' '' 2 --set recompute=full
same_bits 'changes no bit' uneven other 12
expect 'a run at one rate' 0 '^done' replicas steady '[5, 3]' '' 2 --set optimizer.schedule=constant
expect 'that ends early' 0 '^done: step 4 ' replicas stopped '[5, 3]' '' 2 --set optimizer.schedule=constant --set train.steps=4
expect 'is resumed' 0 '^done: step 12 ' replicas stopped '[5, 3]' '' 2 --set optimizer.schedule=constant
same_bits 'with the same bits' steady stopped 12
expect 'a pipeline' 0 '^done: step 4 ' replicas moved '[5, 3]' ', pp: 2, schedule: zb-h1' 4 --set optimizer.schedule=constant --set train.steps=4
expect 'is resumed in another order' 0 '^done: step 12 ' replicas moved '[5, 3]' ', pp: 2, order: tp-pp-dp' 4 --set optimizer.schedule=constant
same_bits 'with the same bits, too' steady moved 12
expect 'other numbers are other numerics' 0 'changed since the checkpoint: .*replica_micro_batches' \
    replicas stopped '[3, 5]' '' 2 --set train.steps=14

# Traces: each rank's program has its own micro-batches; predicted ranks meet in the sums.
printf 'islands:\n  - {nodes: 1, device: h100-sxm, per_node: 2}\n  - {nodes: 1, device: a100-sxm-80, per_node: 2}\n' >"$dir/two.yaml"
expect 'a traced run' 0 '^done' replicas traced '[5, 3]' ', pp: 2, order: tp-pp-dp' 4 --set train.steps=4 --set 'trace={steps: [3]}'
expect 'has a timeline' 0 'of 4 ranks, predicted and measured' "$lmtrain" report "$dir/traced" --trace "$dir/traced.json" --cluster "$dir/two.yaml"
expect 'whose flows are in order' 0 '4 ranks both predicted and measured' python3 test/cli/support/check_timeline.py "$dir/traced.json"
expect 'that of a plan' 0 '' "$lmtrain" plan "$dir/traced/job.yaml" --ranks 4 --cluster "$dir/two.yaml" --trace "$dir/plan.json"
"$lmtrain" plan "$dir/traced/job.yaml" --ranks 4 --cluster "$dir/two.yaml" --json >"$dir/table.json"
expect 'adds up to its table' 0 "2 ranks' slices add up" python3 test/cli/support/check_timeline.py "$dir/plan.json" "$dir/table.json"

expect 'its description' 0 'replica_micro_batches' cat "$dir/uneven/job.yaml"
expect 'a plan is of the rank with most' 0 '5 micro-batches of 1 x 32 tokens' "$lmtrain" plan "$dir/job.yaml" --ranks 2 \
    --set train.micro_batch=1 --set 'parallel={replica_micro_batches: [5, 3]}'
# shellcheck disable=SC2317 # likewise
plan() {
    "$lmtrain" plan "$dir/job.yaml" --ranks 2 --set train.micro_batch=1 --set "parallel={replica_micro_batches: $1}"
}
expect 'a number for each rank' 2 'replica_micro_batches has 3 numbers, but dp is 2' plan '[5, 2, 1]'
expect 'that add up' 2 'add up to 7, times micro_batch 1 is 7, but train.global_batch is 8 \(hint: numbers that add up to 8\)' plan '[4, 3]'
expect 'sums at the end alone' 2 'zero 2 sums the gradients of each micro-batch over the ranks \(hint: zero: 0 or 1\)' plan '[5, 3], zero: 2'
expect 'late' 2 'gradient_sum early sums the gradients of each micro-batch' plan '[5, 3], gradient_sum: early'
expect 'not searched' 2 'parallel.replica_micro_batches is given, but parallel.mode is semi' plan '[5, 3], mode: semi'
finish
