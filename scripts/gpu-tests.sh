# shellcheck shell=sh
# gpu-tests.sh - the stages of scripts/gpu-check that run gpu-tests: start, tests, large, sanitize; it is sourced there
#
# shellcheck disable=SC2154 # tests, work, folder, stage ... are gpu-check's

# ---- tests of ops, in programs of their own ----

need_tests() { [ -x "$tests" ] || fail 4 "there is no $tests (hint: make dist, or GPU_CHECK_TESTS)"; }

# Those of single ops, the smallest first.
small='rope elementwise norm linear optimizer head embed attention_tiles attention expert_linear lora'

is_named() { case $1 in *"${GPU_CHECK_ONLY:-}"*) return 0 ;; *) return 1 ;; esac }

# unit NAME SECONDS [SETTING...]: one test of gpu-tests
unit() {
    unit_name=$1 unit_seconds=$2
    shift 2
    is_named "$unit_name" || return 0
    check "$unit_name${*:+ $*}" "$unit_seconds" env "$@" "$tests" "$unit_name"
}

libraries() {
    for program in "$lmtrain" "$tests"; do ldd "$program"; done | grep 'not found' && return 1
    echo 'none is missing'
}

stage_start() {
    need_tests
    [ "$gpu" = emulated ] || told 'nvidia-smi' 20 nvidia-smi --format=csv \
        --query-gpu=name,driver_version,memory.total,memory.used,power.limit,clocks.max.sm,clocks.max.mem,temperature.gpu,compute_mode
    told 'libraries' 20 env GPU_CHECK_PART=libraries GPU_CHECK_LMTRAIN="$lmtrain" GPU_CHECK_TESTS="$tests" \
        "$scripts/gpu-check" "$stage" --folder "$folder"
    told 'doctor' 60 "$lmtrain" doctor
    for test in $small; do unit "kernels/${test}_test" 40 CUDA_LAUNCH_BLOCKING=1; done
    unit cuda/attention_cudnn_test 60 CUDA_LAUNCH_BLOCKING=1
    unit kernels/attention_test 40 CUDA_LAUNCH_BLOCKING=1 LMTRAIN_ATTENTION=own
    join
}

stage_tests() {
    need_tests
    for test in $small; do unit "kernels/${test}_test" 180; done
    unit kernels/attention_test 180 LMTRAIN_ATTENTION=own
    for test in $("$tests" | grep -v large_test); do
        short=${test#kernels/}
        case " $small " in *" ${short%_test} "*) ;; *) unit "$test" 180 ;; esac
    done
    join
    stage_trainings
}

stage_large() {
    need_tests
    for part in qwen2-7b llama3-70b; do
        item="ops of $part" limit=240
        wanted "$item" "$limit" || continue
        status=0
        timeout -k 10 "$limit" env LMTRAIN_LARGE_ONLY="$part${GPU_CHECK_LARGE_ONLY:-}" "$tests" large >"$work/log" 2>&1 || status=$?
        keep_failed
        record "$item" "$(verdict)" "$(took)" "status $status; $(grep '^large: ' "$work/log" | tail -n 1)
$(grep -E '^(FAIL|skip|ok  ) ' "$work/log" | sort -s -k 1,1 | cut -c 1-260)"
    done
}

# ---- sanitizers ----

run_sanitizer() {
    tool=$1
    shift
    status=0
    # Programs' own processes are looked at, too; what the libraries of NVIDIA leave unwritten is not ours.
    timeout -k 10 "$limit" compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 86 --print-limit 20 "$@" \
        >"$log" 2>&1 || status=$?
    summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//')
    case $status in
    0) record "$item" pass "$(took)" "${summary:-no summary}" ;;
    124 | 137) record "$item" skip "$(took)" "over $limit s under this tool; ${summary:-nothing found until then}" ;;
    *) keep_failed && record "$item" fail "$(took)" "${summary:-status $status}
$(grep '^=========' "$log" | head -n 25)
$(grep -v '^=========' "$log" | tail -n 5)" ;;
    esac
}

# sanitizer TOOL NAME COMMAND...
sanitizer_seconds=${GPU_CHECK_SANITIZER_SECONDS:-90}
sanitizer() {
    tool=$1 item="$1 $2" limit=$sanitizer_seconds
    shift 2
    wanted "$item" "$limit" || return 0
    in_turn run_sanitizer "$tool" "$@"
}

# Tests that failed by themselves.
failed_tests() {
    cat "$folder"/done/start.*.json "$folder"/done/tests.*.json 2>/dev/null |
        sed -n 's/.*"name":"\([a-z]*\/[a-z_]*_test\)[ "].*"status":"fail".*/\1/p' | sort -u
}

sanitize_training() {
    make_data
    sanitizer "$1" 'two steps of training' "$lmtrain" pretrain "$work/job.yaml" --resume none \
        --set "output=$work/sanitize-$1-$$" --set train.steps=2
}

# Where a training failed: the op, as a step without graphs that waits for each op names it, then memcheck.
training_by_op() {
    make_data
    check 'two steps, each op waited for' 60 env LMTRAIN_CUDA_SYNC=1 "$lmtrain" pretrain "$work/job.yaml" --resume none \
        --set "output=$work/by-op-$$" --set train.steps=2
    sanitize_training memcheck
}

# The quick ones: what took up to 5 s by itself; all where `tests` has not been run.
sanitize_all() {
    sanitizer_seconds=200
    for tool in memcheck racecheck initcheck synccheck; do sanitize_training "$tool"; done
    for test in $("$tests" | grep -v large_test); do
        is_named "$test" || continue
        file=$folder/done/tests.$(echo "$test" | tr / _).json
        if [ -e "$file" ] && [ "$(sed -n 's/.*"seconds":\([0-9]*\).*/\1/p' "$file")" -gt 5 ]; then continue; fi
        for tool in memcheck racecheck initcheck synccheck; do sanitizer "$tool" "$test" "$tests" "$test"; done
    done
}

stage_sanitize() {
    command -v compute-sanitizer >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
    need_tests
    if ! command -v compute-sanitizer >/dev/null; then
        started=$(date +%s)
        is_done 'no compute-sanitizer' || record 'no compute-sanitizer' skip 0 'it comes with the CUDA toolkit'
        return
    fi
    if [ "$all" = 1 ]; then sanitize_all; else sanitize_some; fi
    join
}

sanitize_some() {
    if grep -q '"name":"[^/"]*","status":"fail"' "$folder"/done/tests.*.json 2>/dev/null; then training_by_op; fi
    failed=$(failed_tests)
    for test in $failed; do sanitizer memcheck "$test" "$tests" "$test"; done
    [ -z "$failed" ] || return 0
    for test in attention_tiles expert_linear lora head; do
        ! is_named "kernels/${test}_test" || sanitizer racecheck "kernels/${test}_test" "$tests" "kernels/${test}_test"
    done
    ! is_named kernels/norm_test || sanitizer synccheck kernels/norm_test "$tests" kernels/norm_test
    sanitize_training memcheck
}
