#!/bin/sh
# test/cli/gpu-check.sh - scripts/gpu-check, and with it the whole program on a GPU: on the emulated one
. test/cli/support/check.sh

export LMTRAIN_EMULATE_DEVICES=1 GPU_CHECK_LMTRAIN=build/lmtrain-emulated GPU_CHECK_TESTS=build/gpu-tests-emulated
export GPU_CHECK_STEPS=3 GPU_CHECK_ONLY=rope OUT="$dir" XDG_CACHE_HOME="$dir/cache"
# shellcheck disable=SC2317 # expect calls it
check() { scripts/gpu-check --folder "$dir/kept" --minutes 20 "$@"; }

expect 'a test, trainings beside the processor, the law, generation, memory' 0 '' check tests
expect 'it says so as JSON' 0 '"' sh -c "cat '$dir'/gpu-*.json"
refuse 'in which nothing failed' '"(fail|failed)"'
expect 'what is done is not done again' 0 '' check tests
cp -r "$dir/kept" "$dir/moved"
sed 's/lmtrain.*/lmtrain 0.0.1/' "$dir/kept/of" >"$dir/moved/of"
expect "another build's results are not taken for this one's" 2 'emulated: lmtrain 0.0.1; here is emulated: .*hint: --fresh' \
    scripts/gpu-check ceilings --folder "$dir/moved"
expect 'they are forgotten when asked' 3 '' scripts/gpu-check tests --folder "$dir/moved" --fresh --minutes 0
expect 'of all stages' 0 '' sh -c "! ls '$dir'/moved/done/*"
sed 's/"gpu":"emulated"/"gpu":"NVIDIA A100"/' "$dir"/gpu-*.json >"$dir/other.json"
expect "nor is another GPU's report" 2 'is of NVIDIA A100: lmtrain' scripts/gpu-check tests --folder "$dir/other" --from "$dir/other.json"
expect 'a GPU has a folder of its own' 3 '' scripts/gpu-check tests --minutes 0
expect 'by its name' 0 '^emulated: lmtrain' cat "$dir/cache/lmtrain/gpu-check/emulated/of"
expect 'what may not end in time is not begun' 3 'tiny 64 lmtrain 1 may take 270 s, and 2[34][0-9] s are left' check speed tiny --minutes 4
expect 'an unknown stage' 2 'what is speeed' check speeed
expect 'no GPU' 4 'GPU' env -u LMTRAIN_EMULATE_DEVICES scripts/gpu-check tests --folder "$dir/none"
finish
