#!/bin/sh
# test/dist/dist.sh - the folder of `make dist`: it starts, plans and trains with nothing of ours installed, and where
# there is no GPU it says so
. test/cli/support/check.sh
folder=build/dist/lmtrain
lmtrain=$folder/bin/lmtrain

# Elsewhere, under another name, without an environment: all is found relative to itself.
cp -r "$folder" "$dir/moved" || exit 1
moved=$dir/moved/bin/lmtrain
expect 'it starts' 0 '^lmtrain [0-9]' env -i "$moved" --version
expect 'it is under 50 MiB' 0 '' sh -c "[ \$(du -sm '$folder' | cut -f 1) -le 50 ]"
expect 'its libraries' 0 'libyaml' ldd "$moved"
refuse 'none is missing' 'not found'
refuse "NVIDIA's are not linked" 'libcu|libnccl'
expect "all but the C library's are its own" 1 '' sh -c "ldd '$moved' | grep '=> /' | grep -v '/moved/' |
    grep -vE 'lib(c|m|dl|pthread|rt|resolv|util)\.so'"
expect 'it has machine code of a GPU' 0 'sm_90a' sh -c "command -v cuobjdump >/dev/null || { echo 'sm_90a: not looked at'; exit 0; }; cuobjdump --list-elf '$lmtrain' | head -n 20"
expect 'tests are there' 0 'kernels/norm_test' env -i "$dir/moved/bin/gpu-tests"
expect 'and by their short names' 2 'there is no test norms' env -i "$dir/moved/bin/gpu-tests" norms
expect 'the script for a first hour on a GPU' 0 'usage: scripts/gpu-first' "$dir/moved/scripts/gpu-first" --help
expect 'without a GPU they fail' 1 'no GPU 0' sh -c "env -i '$dir/moved/bin/gpu-tests' kernels/rope_test || exit 1"

for document in 1 2 3 4 5 6 7 8; do
    echo "{\"text\": \"in the beginning was the word $document, and the word was with everybody\"}"
done >"$dir/text.jsonl"
expect 'text becomes tokens' 0 'tokens' env -i "$moved" data tokenize --tokenizer data/kjv-tokenizer --out "$dir/toy" "$dir/text.jsonl"
cat >"$dir/job.yaml" <<END
model: {hidden_size: 32, n_layers: 2, n_heads: 4, n_kv_heads: 2, ffn_size: 48, vocab_size: 4096, max_seq_len: 32}
data: {train: $dir/toy, seq_len: 16}
train: {steps: 2, global_batch: 2, micro_batch: 1, dtype: bf16}
output: $dir/run
END
expect 'it trains on the CPU' 0 'done: step 2' env -i "$moved" pretrain "$dir/job.yaml"
expect 'and on two ranks' 0 'done: step 2' env -i PATH="$PATH" "$moved" pretrain "$dir/job.yaml" --ranks 2 --set output="$dir/two" --set threads=1
expect 'a GPU that is not there' 4 'device is cuda, but there is no GPU' env -i "$moved" pretrain "$dir/job.yaml" --set device=cuda --set output="$dir/gpu"
expect "its plan needs none" 0 'vendor' env -i "$moved" plan "$dir/job.yaml" --set device=cuda
finish
