#!/bin/sh
# test/dist/gpu-first.sh - scripts/gpu-first whole, on the emulated GPU: few items of each stage, and what becomes of
# failures, of calls that end too soon, and of a new machine
# shellcheck disable=SC2317 # expect calls functions
. test/cli/support/check.sh

export LMTRAIN_EMULATE_DEVICES=1 GPU_CHECK_LMTRAIN=build/lmtrain-emulated GPU_CHECK_TESTS=build/gpu-tests-emulated
# The others are test/cuda/law_test's and test/cli/gpu.sh's.
GPU_CHECK_TRAININGS='fp32|^one rank|resume|^two replicas$|zero 1|generate|memory'
export GPU_CHECK_STEPS=2 GPU_CHECK_TRAININGS GPU_CHECK_ONLY=rope GPU_CHECK_LARGE_ONLY=' 64: rope ' OUT="$dir/out" XDG_CACHE_HOME="$dir/cache"
mkdir -p "$OUT" "$dir/bin"

# NVIDIA's tools: what they run is run, what they say is said.
cat >"$dir/bin/compute-sanitizer" <<'END'
#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --tool | --target-processes | --error-exitcode | --print-limit) shift 2 ;; *) break ;; esac
done
"$@" || exit 86
echo '========= ERROR SUMMARY: 0 errors'
END
cat >"$dir/bin/ncu" <<'END'
#!/bin/sh
case "$*" in *--clock-control\ none*bench\ ops*) ;; *) exit 2 ;; esac
cat <<'TEXT'
  void elements_kernel<swiglu_grad<__nv_bfloat16, 8>>(swiglu_grad<__nv_bfloat16, 8>, long, long, int) (37888, 1, 1)x(256, 1, 1), Context 1, Stream 13, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    DRAM Throughput                   %        71.25
    Duration                         us       512.10
    Compute (SM) Throughput           %        40.20
    Registers Per Thread             register/thread              52
TEXT
END
chmod +x "$dir"/bin/*
PATH=$dir/bin:$PATH

expect 'an unknown call' 2 'what is 7' scripts/gpu-first 7
expect 'no GPU' 4 'there is no GPU here' env -u LMTRAIN_EMULATE_DEVICES scripts/gpu-first --folder "$dir/none"
expect 'nothing is begun that may not end in time' 3 'libraries may take 20 s, and 0 s are left' scripts/gpu-first --minutes 0 --folder "$dir/kept"
expect 'the first call' 0 '^start +3 +0 +0' scripts/gpu-first 1 --folder "$dir/kept"
expect 'tests before trainings, then all the rest' 0 '^large +2 +0 +0' scripts/gpu-first --folder "$dir/kept" --minutes 30
printf '%s\n' "$output" >"$dir/whole"
expect 'nothing failed' 1 '' grep -q '^failed:' "$dir/whole"
expect 'what was done is not done again' 1 '' grep -q 'pass doctor' "$dir/whole"
expect 'in this order' 0 '^start tests sanitize speed profile ceilings long large speed $' sh -c "sed -n 's/^-- \([a-z]*\).*/\1/p' '$dir/whole' | tr '\n' ' '"
expect 'each stage has its verdicts' 0 '^sanitize +1 +0 ' cat "$dir/whole"
expect 'a kernel in ncu' 0 'swiglu_grad.*Duration 512.10 us; SM 40.20 %; registers 52' sh -c "cat '$OUT'/gpu-*.md"
expect 'speeds' 0 'speed, tiny 64 lmtrain 1: [0-9.]+ tokens/s.* a step [0-9.]+ ms, [0-9.]+ with each op waited for' cat "$dir/whole"
expect 'ceilings' 0 'ceilings, product and copies: product 512 x 512 x 512 bf16: [0-9.]+ GFLOP/s over 1.[0-9] s' cat "$dir/whole"
expect 'the summary is kept' 0 '^large +2 ' sh -c "cat '$OUT'/gpu-emulated-*.txt"
expect 'and is small' 0 '' sh -c "[ \$(cat '$OUT'/* | wc -c) -lt 100000 ] && [ \$(ls '$OUT' | wc -l) -le 4 ]"

# On a machine that knows nothing, from the report.
report=$(find "$OUT" -name 'gpu-*.json')
expect 'a report says what is done' 0 '^start +3 ' scripts/gpu-first --folder "$dir/fresh" --from "$report"
refuse 'so that nothing is begun' '^(pass|fail|skip) '

# A test that fails is looked at with memcheck at once; where none passes, all ends there.
cat >"$dir/bin/gpu-tests" <<'END'
#!/bin/sh
[ $# -gt 0 ] || { echo kernels/rope_test; exit 0; }
echo "row 7 is wrong in $1"
exit 1
END
chmod +x "$dir/bin/gpu-tests"
export GPU_CHECK_TESTS="$dir/bin/gpu-tests" OUT="$dir/wrong"
mkdir -p "$OUT"
expect 'where no test passes nothing else is begun' 1 'no test of a single op passes' scripts/gpu-first --folder "$dir/bad"
expect 'but memcheck of what failed' 0 'fail memcheck kernels/rope_test' printf '%s\n' "$output"
refuse 'no other stage' '^-- tests'
expect 'its log is in one file' 0 'row 7 is wrong in kernels/rope_test' sh -c "cat '$OUT'/gpu-*.failed.txt"

# A training that fails is done again op by op, and under memcheck; here it is only said to have failed.
export GPU_CHECK_TESTS=build/gpu-tests-emulated OUT="$dir/training"
mkdir -p "$OUT" "$dir/said/done"
echo '{"stage":"tests","name":"law recompute full","status":"fail","seconds":1,"detail":"status 1"}' >"$dir/said/done/tests.law_recompute_full.json"
expect 'of a training that fails, each op alone' 0 'pass two steps, each op waited for' scripts/gpu-first 3 --folder "$dir/said"
expect 'and memcheck' 0 'pass memcheck two steps of training' printf '%s\n' "$output"
finish
