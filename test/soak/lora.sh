#!/bin/bash
# test/soak/lora.sh - SmolLM2-135M learns a task from 500 rows by LoRA; accuracy on other rows before and after
#
# LMTRAIN_SMOLLM names the model's Hugging Face folder (SmolLM2-135M-Instruct in bf16); without it nothing is done. Rows are
# scripts/data/orders.py's. After training the merged folder must give the adapter's answers, in transformers too where
# LMTRAIN_VENV has it. What it prints goes into bench/results/lora.md by hand.
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}
model=${LMTRAIN_SMOLLM:-}
if [ -z "$model" ]; then
    echo "# LMTRAIN_SMOLLM is not set: nothing is done"
    finish
fi

scripts/data/orders.py "$dir" >/dev/null || exit 1
python3 - "$dir" <<'END'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/test.jsonl")]
open(sys.argv[1] + "/prompts.jsonl", "w").writelines(json.dumps(row["instruction"]) + "\n" for row in rows)
END
cat >"$dir/job.yaml" <<END
model: $model
data: {train: $dir/train.jsonl, seq_len: 256}
train: {epochs: ${SOAK_EPOCHS:-2}, global_batch: 8, micro_batch: 4, dtype: bf16, log_every: 5, hang_seconds: 1000, hang_abort_seconds: 0}
optimizer: {lr: 1.0e-3}
lora: {rank: 16}
output: $dir/run
END

# answers NAME ARGUMENT... - of the 100 rows held out, greedily
answers() {
    "$lmtrain" generate --chat --prompts "$dir/prompts.jsonl" --temperature 0 --max-new-tokens 24 --batch 25 --json \
        "${@:2}" >"$dir/$1.answers" || return 1
    scripts/data/orders-score.py "$dir/test.jsonl" "$dir/$1.answers"
}

before=$(answers before --model "$model")
echo "# before: $before"
SECONDS=0
expect trained 0 '' "$lmtrain" lora "$dir/job.yaml"
echo "# trained in $SECONDS s: $(grep -o 'samples in.*' "$dir/run/log"* 2>/dev/null | head -n 1)"
tail -n 1 "$dir/run/metrics.jsonl" | cut -c 1-200 | sed 's/^/# /'
after=$(answers after --model "$model" --adapter "$dir/run/adapter")
echo "# after: $after"
expect merged 0 'merged' "$lmtrain" merge --base "$model" --adapter "$dir/run/adapter" --to "$dir/merged"
merged=$(answers merged --model "$dir/merged")
echo "# merged: $merged"
expect 'answers are right after, and were not before' 0 '' \
    test "${after%% *}" -ge 80 -a "${before%% *}" -le 10 -a "${merged%% *}" -ge 80
if [ -n "${LMTRAIN_VENV:-}" ]; then
    expect 'transformers gives the same answers' 0 '' "$LMTRAIN_VENV/bin/python" - "$dir" <<'END'
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder + "/merged")
model = AutoModelForCausalLM.from_pretrained(folder + "/merged", dtype=torch.float32).eval()
rows = [json.loads(line) for line in open(folder + "/test.jsonl")][:20]
ours = [json.loads(line)["text"].strip() for line in open(folder + "/merged.answers")][:20]
same = 0
for row, answer in zip(rows, ours):
    ids = tokenizer.apply_chat_template([{"role": "user", "content": row["instruction"]}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=True)
    out = model.generate(**ids, max_new_tokens=24, do_sample=False)
    same += tokenizer.decode(out[0, ids["input_ids"].shape[1]:], skip_special_tokens=True).strip() == answer
print(f"{same} of {len(rows)} answers are the same")
# bf16 and fp32 may part where two tokens are about as likely.
sys.exit(same < len(rows) - 2)
END
    echo "# $output"
fi
finish
