#!/bin/sh
# scripts/golden/checkpoint.sh - a small checkpoint of today's format, into test/golden/checkpoints/FORMAT
#
# Run once for each format (STORE_VERSION of lib/ckpt/store.h), at the first release that has it; what it wrote is
# then kept as it is, and test/cli/golden-checkpoints.sh reads it with every later lmtrain. A run of two ranks with
# ZeRO 1 (so its optimizer states are in two files), and one that trains LoRA adapters over it. Two runs of this script
# write the same tensors. The paths in the checkpoints' jobs are those of $work.
set -eu
cd "$(dirname "$0")/../.."
lmtrain=$PWD/build/lmtrain
format=$(build/lmtrain --version | sed -n 's/.*checkpoint \([0-9]*\),.*/\1/p')
to=$PWD/test/golden/checkpoints/$format
work=/tmp/lmtrain-golden
export LMTRAIN_CPU_ISA=plain

[ ! -e "$to" ] || { echo "$to exists: a format's checkpoint is never written again" >&2; exit 1; }
rm -rf "$work"
mkdir -m 0700 "$work"
cd "$work"

# 600 tokens below 32, as one document of Megatron's format.
python3 - <<'END'
import struct
tokens = [(i * i * 7 + i * 3 + i // 9) % 32 for i in range(600)]
open("tokens.bin", "wb").write(struct.pack("<600H", *tokens))
open("tokens.idx", "wb").write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(tokens))
                               + struct.pack("<q", 0) + struct.pack("<qq", 0, 1))
END
cat >job.yaml <<END
model: {vocab_size: 32, hidden_size: 8, n_layers: 2, n_heads: 2, n_kv_heads: 1, ffn_size: 16, max_seq_len: 16}
data: {train: $work/tokens, seq_len: 8}
train: {steps: 3, global_batch: 4, micro_batch: 1, dtype: fp32, log_every: 1}
optimizer: {lr: 1.0e-2, schedule: constant, warmup_steps: 1}
checkpoint: {every_steps: 2, keep: 0}
parallel: {zero: 1}
device: cpu
ranks: 2
threads: 1
output: $work/run
END
loss_of() { sed -n 's/.*"step":3,.*"loss_hex":"\([^"]*\)".*/\1/p' "$1/metrics.jsonl"; }

"$lmtrain" pretrain job.yaml
"$lmtrain" convert --from run/checkpoints/step-00000002 --to base
"$lmtrain" pretrain job.yaml --set model="$work/base" --set train.init="$work/base" --set lora.rank=2 --set output="$work/adapter"
"$lmtrain" pretrain job.yaml --ranks 1 --set output="$work/alone" --resume run/checkpoints/step-00000002

mkdir -p "$to"
for run in run adapter; do
    mkdir -p "$to/$run/checkpoints"
    cp -r "$run/job.yaml" "$run/metrics.jsonl" "$to/$run/"
    cp -r "$run/checkpoints/step-00000002" "$to/$run/checkpoints/"
done
cp -r base tokens.bin tokens.idx "$to/"
{
    echo "lmtrain $("$lmtrain" --version | sed -n 's/^lmtrain \([^ ]*\).*/\1/p')"
    sed -n 's/.*\\nkernels \([^\\]*\)\\n.*/kernels \1/p' run/checkpoints/step-00000002/manifest.json
    sed -n 's/.*"numerics_text":"version \([0-9]*\)\\n.*/version \1/p' run/checkpoints/step-00000002/manifest.json
    echo "run $(loss_of run)"
    echo "alone $(loss_of alone)"
    echo "adapter $(loss_of adapter)"
} >"$to/expected.txt"
chmod -R u+rwX,go+rX "$to"
rm -rf "$work"
find "$to" -type f -printf "%s %p\n" | awk "{ n += \$1 } END { print n, \"bytes\" }"
