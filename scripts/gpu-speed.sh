# shellcheck shell=sh
# gpu-speed.sh - the stages of scripts/gpu-check that measure: ceilings, speed, profile, long; it is sourced there
#
# shellcheck disable=SC2154 # models, work, folder, python ... are gpu-check's

# ---- ceilings ----

# What the GPU drew and at which clocks, of lines "watts, MHz, MHz, degrees".
power_of() {
    awk -F ', *' 'NF >= 4 { n++; w += $1; if ($1 > top) top = $1; if (!low || $2 < low) low = $2; if ($2 > high) high = $2; if ($4 > t) t = $4 }
        END { if (n) printf "%.0f W on average, %.0f at most; SM clock %d to %d MHz; up to %d C; %d readings\n", w / n, top, low, high, t, n }' "$1"
}

stage_ceilings() {
    make_data
    item='product and copies' limit=60 seconds=10
    [ "$gpu" != emulated ] || seconds=1
    wanted "$item" "$limit" || return 0
    : >"$work/power"
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=power.draw,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader,nounits -lms 200 >"$work/power" 2>/dev/null &
        watcher=$!
    fi
    status=0
    timeout -k 10 "$limit" "$lmtrain" bench ceilings "$work/job.yaml" --seconds "$seconds" >"$work/log" 2>&1 || status=$?
    stop_watcher
    keep_failed
    record "$item" "$(verdict)" "$(took)" "$(grep '^product ' "$work/log"); $(grep '^memory ' "$work/log")
$(cat "$work/log")
$(power_of "$work/power")"
}

# ---- speed ----

# Sets what a model is: its fields, as YAML's and JSON's common part wants them, micro-batch in tokens, and how it is trained.
choose_model() {
    llama='"norm":"rmsnorm","norm_eps":1e-6,"position":"rope","rope_theta":1000000.0,"activation":"swiglu","bias":false,"attention_bias":"qkv"'
    recipe='' weights=fp32 compile=whole micro_tokens=16384 step_tokens=65536 lengths='4096 1024'
    case $1 in
    gpt2-124m)
        fields='"vocab_size":50257,"hidden_size":768,"n_layers":12,"n_heads":12,"n_kv_heads":12,"ffn_size":3072,"max_seq_len":1024,"norm":"layernorm","norm_eps":1e-5,"position":"learned","rope_theta":10000.0,"activation":"gelu","bias":true,"attention_bias":"all","tied_embeddings":true'
        lengths=1024 micro_tokens=65536
        ;;
    qwen2.5-1.5b)
        fields="\"vocab_size\":151936,\"hidden_size\":1536,\"n_layers\":28,\"n_heads\":12,\"n_kv_heads\":2,\"ffn_size\":8960,\"max_seq_len\":32768,$llama,\"tied_embeddings\":true"
        compile=layer
        ;;
    qwen2.5-7b)
        fields="\"vocab_size\":152064,\"hidden_size\":3584,\"n_layers\":28,\"n_heads\":28,\"n_kv_heads\":4,\"ffn_size\":18944,\"max_seq_len\":32768,$llama,\"tied_embeddings\":false"
        compile=layer weights=bf16 micro_tokens=8192
        recipe=' optimizer.states=bf16 train.gradient_dtype=bf16'
        ;;
    tiny)
        fields="\"vocab_size\":384,\"hidden_size\":64,\"n_layers\":2,\"n_heads\":4,\"n_kv_heads\":2,\"ffn_size\":128,\"max_seq_len\":128,$llama,\"tied_embeddings\":false"
        lengths=64 micro_tokens=128 step_tokens=256
        ;;
    esac
    if [ "$1" != tiny ]; then lengths=${only_lengths:-$lengths}; fi
}

number() { printf '{%s}' "$fields" | sed -n "s/.*\"$1\":\([0-9.e-]*\)[,}].*/\1/p"; }

# Our convention's FLOPs of a token.
flops_per_token() {
    awk -v h="$(number hidden_size)" -v l="$(number n_layers)" -v f="$(number ffn_size)" -v v="$(number vocab_size)" \
        -v n="$(number n_heads)" -v k="$(number n_kv_heads)" -v t="$1" -v m="$(printf %s "$fields" | grep -c swiglu)" \
        'BEGIN { printf "%.0f", 6 * (l * (2 * h * h + 2 * h * h * k / n + (m ? 3 : 2) * h * f) + h * v) + 6 * l * h * t }'
}

make_speed_job() {
    printf '{%s}\n' "$fields" >"$work/$1.json"
    awk -v fields="$fields" 'BEGIN { gsub(/"/, "", fields); gsub(/:/, ": ", fields); gsub(/,/, ", ", fields)
        gsub(/norm_eps: 1e-/, "norm_eps: 1.0e-", fields); print "model: {" fields "}" }' >"$work/$1.yaml"
    cat >>"$work/$1.yaml" <<END
data: {train: $work/none, tokenizer: $work/none, seq_len: $2}
train: {steps: 1, global_batch: $3, micro_batch: $4, dtype: bf16}
device: cuda
ranks: 1
output: $work/none
END
}

stop_watcher() {
    [ -z "${watcher:-}" ] || { kill "$watcher" 2>/dev/null && wait "$watcher" 2>/dev/null; } || true
    watcher=''
}

speed_seconds=${GPU_CHECK_SPEED_SECONDS:-270}
# Runs COMMAND within what is left of the item's time, output to $work/answer, and finds the most memory of the GPU in use meanwhile.
with_memory() {
    : >"$work/used"
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 250 >"$work/used" 2>/dev/null &
        watcher=$!
    fi
    status=0
    timeout -k 10 $((speed_seconds - $(took))) "$@" >"$work/answer" 2>"$work/log" || status=$?
    stop_watcher
    used=$(sort -n "$work/used" | tail -n 1)
    used=$(awk -v mib="${used:-0}" 'BEGIN { printf "%.0f", mib * 1048576 }')
}

lmtrain_turn() {
    # shellcheck disable=SC2046 # words without spaces
    with_memory "$lmtrain" bench ops "$work/$model-$length.yaml" --json --steps 3 --set "train.micro_batch=$1" \
        $(for pair in $recipe ${2:+recompute=selective}; do printf -- '--set %s ' "$pair"; done)
}

torch_turn() {
    with_memory env TORCHINDUCTOR_CACHE_DIR="$folder/inductor" "$python" "$scripts/$torch_script" "$work/$model-$length.json" \
        --seq-len "$length" --global-batch "$batch" --micro-batch "$1" --steps 3 --weights "$weights" --compile "$compile" ${2:+--checkpoint}
}

# turn WHO ROUND: where memory is too small (status 4) a micro-batch is halved, then the forward computed again, and it
# stays so.
turn() {
    who=$1 item="$model $length $1 $2" small=$work/micro.$model.$length.$1
    wanted "$item" "$speed_seconds" || return 0
    micro=$((micro_tokens / length)) again=''
    # shellcheck disable=SC1090 # what is set below
    [ ! -e "$small" ] || . "$small"
    while :; do
        "${who}_turn" "$micro" $again
        if [ "$status" -ne 4 ] || [ "$(took)" -ge $((speed_seconds - 60)) ]; then break; fi
        if [ "$micro" -gt 1 ]; then
            micro=$((micro / 2))
        elif [ -z "$again" ]; then
            again=recomputed
        else
            break
        fi
        echo "micro=$micro again=$again" >"$small"
    done
    if [ "$status" -ne 0 ]; then
        keep_failed
        record "$item" fail "$(took)" "status $status, micro-batch $micro: $(tail -n 1 "$work/log")
$(tail -n 8 "$work/log")"
        return
    fi
    [ "$who" = torch ] || cp "$work/answer" "$work/ops.$model.$length"
    seconds=$(tr ',' '\n' <"$work/answer" | sed -n 's/.*"median_step_seconds":[[:space:]]*\([0-9.e-]*\).*/\1/p')
    timed=$(sed -n 's/.*"timed_step_seconds":[[:space:]]*\([0-9.e-]*\).*/\1/p' "$work/answer" | head -n 1)
    speed=$(awk -v n=$((batch * length)) -v s="$seconds" 'BEGIN { printf "%.1f", n / s }')
    if [ "$who" = lmtrain ]; then how="bf16, masters fp32" && [ -z "$recipe" ] || how="bf16,$recipe"
    else how="compiled ($compile), SDPA, fused AdamW, $([ "$weights" = bf16 ] && echo 'all in bf16' || echo 'autocast')"; fi
    record "$item" pass "$(took)" "$speed tokens/s, $batch x $length a step, micro-batch $micro, $how${again:+, $([ "$who" = torch ] && echo 'layers checkpointed' || echo 'recompute selective')}${timed:+; $(awk -v a="$seconds" -v b="$timed" 'BEGIN { printf "a step %.1f ms, %.1f with each op waited for", a * 1e3, b * 1e3 }')}" \
        "\"what\":\"$model $length\",\"who\":\"$who\",\"tokens_per_s\":$speed,\"step_seconds\":$seconds,\"micro_batch\":$micro,\"memory_bytes\":$used,\"flops_per_token\":$(flops_per_token "$length"),\"peak\":$peak"
}

# The ops that lose most against their speed of light, as the last turn measured them.
profile() {
    item="$model $length profile" ops=$work/ops.$model.$length
    if [ ! -e "$ops" ] || ! wanted "$item" 5; then return 0; fi
    record "$item" pass 0 "$(gaps <"$ops")"
}

gaps() {
    awk -F '\t+' '
    function value(    s) { s = $0; sub(/^[^:]*:[ \t]*/, "", s); sub(/,$/, "", s); gsub(/"/, "", s); return s }
    /"median_step_seconds"/ { step = value() }
    /"ops_seconds"/ { ops = value() }
    /"peak_flops_per_s"/ { peak = value() }
    /"memory_bytes_per_s"/ { bytes = value() }
    /^\t"light_seconds"/ { light = value() }
    /"op":/ { n++; op[n] = value() }
    n && /"phase":/ { phase[n] = value() }
    n && /"runs":/ { runs[n] = value() }
    n && /"in":/ { shape[n] = value() }
    n && /"seconds":/ { s[n] = value() }
    n && /"light_seconds":/ { l[n] = value() }
    END {
        printf "step %.2f ms, ops %.2f, at the speed of light %.2f (%.0f TFLOP/s, %.0f GB/s measured)\n", step * 1e3, ops * 1e3, light * 1e3, peak / 1e12, bytes / 1e9
        printf "%9s %9s %9s %8s %6s  %s\n", "lost ms", "ms", "light ms", "reached", "runs", "op"
        for (k = 1; k <= 15 && k <= n; k++) {
            best = 0
            for (i = 1; i <= n; i++) if (!told[i] && (!best || s[i] - l[i] > s[best] - l[best])) best = i
            told[best] = 1
            printf "%9.3f %9.3f %9.3f %6.0f %% %6d  %s %s %s\n", (s[best] - l[best]) * 1e3, s[best] * 1e3, l[best] * 1e3, (s[best] > 0 ? 100 * l[best] / s[best] : 0), runs[best], op[best], phase[best], shape[best]
        }
    }'
}

stage_speed() {
    torch_script=gpu_torch.py
    [ -e "$scripts/gpu_torch.py" ] || torch_script=bench/gpu_torch.py
    contenders='lmtrain torch'
    if [ "$gpu" = emulated ]; then
        contenders=lmtrain
    elif [ -z "$python" ] || [ ! -e "$scripts/$torch_script" ]; then
        contenders=lmtrain
        is_done 'no PyTorch' || { started=$(date +%s) && record 'no PyTorch' skip 0 'no python3 here has PyTorch: lmtrain is measured alone'; }
    fi
    case $gpu in *H100* | *H200* | *H800*) peak=989.4e12 ;; *A100*) peak=312e12 ;; *) peak=0 ;; esac
    for model in ${models:-gpt2-124m qwen2.5-1.5b qwen2.5-7b}; do
        choose_model "$model"
        for length in $lengths; do
            batch=$((step_tokens / length))
            make_speed_job "$model-$length" "$length" "$batch" $((micro_tokens / length))
            round=1
            while [ "$round" -le "$rounds" ]; do
                for contender in $contenders; do turn "$contender" "$round"; done
                round=$((round + 1))
            done
            profile
        done
    done
}

# ---- single kernels, long sequences ----

# make_short_job LENGTH MICRO_BATCH: two layers of the model, one micro-batch a step
make_short_job() {
    choose_model "$model"
    make_speed_job "$model-$1-short" "$1" "$2" "$2"
    short="$work/$model-$1-short.yaml"
    settings=$(for pair in model.n_layers=2 $recipe; do printf -- '--set %s ' "$pair"; done)
}

# The five that cuda.md's estimates are most wanted of, each launch with its time and what it reached.
profiled='swiglu_grad|rope|norm_grad|adamw|dkv'
kernel_figures() {
    awk '
    /, Context [0-9]+, Stream / { if (line) print line; sub(/^ */, ""); sub(/, Context.*/, ""); name = $0; sub(/\(.*\) \(/, " (", name); line = substr(name, 1, 110) ":" }
    /^ +(Duration|DRAM Throughput|Compute \(SM\) Throughput|Registers Per Thread|Achieved Occupancy) / {
        value = $NF; unit = $(NF - 1); key = $1 == "Compute" ? "SM" : $1 == "Registers" ? "registers" : $1 == "Achieved" ? "occupancy" : $1
        if (unit == "register/thread") unit = ""
        line = line sprintf(" %s %s %s;", key, value, unit)
    }
    END { if (line) print line }' "$1"
}

stage_profile() {
    model=${models:-qwen2.5-7b} model=${model# }
    command -v ncu >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
    item="$model kernels" limit=200
    command -v ncu >/dev/null || { started=$(date +%s) && record "$item" skip 0 'there is no ncu here' && return; }
    wanted "$item" "$limit" || return 0
    length=4096
    [ "$model" != tiny ] || length=64
    make_short_job "$length" 2
    status=0
    # Own attention, whose kernels can be named; the clocks are left alone.
    # shellcheck disable=SC2086 # words without spaces
    timeout -k 10 "$limit" env LMTRAIN_ATTENTION=own ncu --clock-control none --set basic --kernel-name-base demangled \
        --kernel-name "regex:$profiled" --launch-count 30 "$lmtrain" bench ops "$short" --steps 1 $settings >"$work/log" 2>&1 || status=$?
    keep_failed
    figures=$(kernel_figures "$work/log")
    [ -n "$figures" ] || status=1
    record "$item" "$(verdict)" "$(took)" "status $status, $(printf '%s\n' "$figures" | grep -c .) launches
${figures:-$(tail -n 10 "$work/log")}"
}

# Attention's lines alone, of bench ops for people.
stage_long() {
    model=${models:-qwen2.5-7b} model=${model# }
    length=16384
    [ "$model" != tiny ] || length=128
    make_short_job "$length" 1
    for mib in 1024 4096; do
        item="$model $length, workspace $mib MiB" limit=150
        wanted "$item" "$limit" || continue
        status=0
        # shellcheck disable=SC2086 # words without spaces
        timeout -k 10 "$limit" env LMTRAIN_CUDNN_WORKSPACE_MIB="$mib" "$lmtrain" bench ops "$short" --steps 2 $settings >"$work/log" 2>&1 || status=$?
        keep_failed
        record "$item" "$(verdict)" "$(took)" "$(grep '^attention_grad ' "$work/log")
$(grep -E '^(op|attention) ' "$work/log" || tail -n 5 "$work/log")"
    done
}
