# shellcheck shell=sh
# gpu-trainings.sh - small trainings on a GPU, beside the processor's and to the bit; scripts/gpu-check sources it
#
# shellcheck disable=SC2154 # lmtrain, work, folder, stage ... are gpu-check's

# ---- a tiny model and its tokens ----

make_tokenizer() {
    LC_ALL=C awk '
    function utf(c) { return c < 128 ? sprintf("%c", c) : sprintf("%c%c", 192 + int(c / 64), 128 + c % 64) }
    BEGIN {
        printf "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":0,\"content\":\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,"
        printf "\"rstrip\":false,\"normalized\":false,\"special\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        printf "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\","
        printf "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"vocab\":{\"<|endoftext|>\":0"
        for (b = 0; b < 256; b++) {
            s = utf((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : 256 + n++)
            if (s == "\"" || s == "\\") s = "\\" s
            printf ",\"%s\":%d", s, b + 1
        }
        print "},\"merges\":[]}}"
    }'
}

make_text() {
    awk 'function draw(n) { x = (x * 69069 + 12345) % 16777216; return int(x / 256) % n }
    BEGIN {
        for (i = 0; i < 1500; i++) {
            line = ""
            for (j = 0; j < 12; j++) { for (k = draw(4) + 1; k >= 0; k--) line = line substr("etaoinshrdlu", 1 + draw(12), 1); line = line " " }
            print line
        }
    }'
}

steps=${GPU_CHECK_STEPS:-20}
make_data() {
    [ -e "$work/toy.idx" ] && [ -e "$work/job.yaml" ] && return
    mkdir -p "$work/tokenizer"
    make_tokenizer >"$work/tokenizer/tokenizer.json"
    make_text >"$work/toy.txt"
    "$lmtrain" data tokenize --tokenizer "$work/tokenizer" --out "$work/toy" "$work/toy.txt" >"$work/log" 2>&1 ||
        fail 1 "data tokenize: $(tail -n 3 "$work/log")"
    cat >"$work/job.yaml" <<END
model: {hidden_size: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, ffn_size: 96, vocab_size: 257, max_seq_len: 64, tied_embeddings: true}
data: {train: $work/toy, tokenizer: $work/tokenizer, seq_len: 32}
train: {steps: $steps, global_batch: 4, micro_batch: 2, dtype: bf16, seed: 1, log_every: 1}
optimizer: {lr: 1.0e-3, schedule: constant}
device: cuda
ranks: 1
output: $work/none
END
}

# train RUN KEY=VALUE...: into a fresh folder; what it prints goes on
train() {
    run=$work/$1
    shift
    rm -rf "$run"
    go_on "$run" "$@"
}

go_on() {
    run=$1
    shift
    for pair in "$@"; do
        set -- "$@" "--set=$pair"
        shift
    done
    "$lmtrain" pretrain "$work/job.yaml" --set "output=$run" "$@"
}

# Step, loss and norm of each line of metrics, to the bit.
bits() { sed -n 's/.*"step":\([0-9]*\),.*"loss_hex":"\([^"]*\)".*"grad_norm_hex":"\([^"]*\)".*/\1 \2 \3/p' "$work/$1/metrics.jsonl"; }

same_bits() {
    bits "$1" >"$work/bits.$2.like"
    bits "$2" >"$work/bits.$2"
    n=$(wc -l <"$work/bits.$2.like")
    [ "$n" -eq "$steps" ] || { echo "$1 has $n steps, not $steps" && return 1; }
    cmp -s "$work/bits.$2.like" "$work/bits.$2" || { echo "$1 and $2 differ:" && diff "$work/bits.$2.like" "$work/bits.$2" | head -n 6 && return 1; }
    echo "gpu-check: $n steps equal to $1's, loss and norm to the bit"
}

# near A B TOLERANCE: relative, of each step's loss
near() {
    for run in "$1" "$2"; do
        sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$work/$run/metrics.jsonl" >"$work/losses.$run"
    done
    awk -v tolerance="$3" -v steps="$steps" 'NR == FNR { a[$1] = $2; next }
    {
        n++; d = ($2 - a[$1]) / a[$1]; if (d < 0) d = -d
        if (d > worst) { worst = d; step = $1 }
        if (!(d <= tolerance)) bad = 1
    }
    END {
        equal = n == steps && !bad
        printf "gpu-check: losses of %d steps differ by at most %.2g (step %d; allowed: %.0e)\n", n, worst, step, tolerance
        exit !equal
    }' "$work/losses.$1" "$work/losses.$2"
}

# ---- the parts of `tests`, each called as a command of its own (check gives it its time) ----

part() {
    case $1 in
    libraries) libraries ;;
    dtype)
        train "gpu-$2" "train.dtype=$2" && train "cpu-$2" "train.dtype=$2" device=cpu && near "gpu-$2" "cpu-$2" "$3"
        ;;
    law)
        base=$2 other=$3
        shift 3
        train "$other" "$@" && same_bits "$base" "$other"
        ;;
    base)
        base=$2
        shift 2
        train "$base" "$@" && [ "$(bits "$base" | wc -l)" -eq "$steps" ]
        ;;
    resume)
        train resumed "train.steps=$((steps / 2))" && go_on "$work/resumed" && same_bits base resumed
        ;;
    generate)
        for device in cuda cpu; do
            "$lmtrain" generate --model "$work/gpu-fp32" --prompt 'ta hin' --max-new-tokens 24 --temperature 0 \
                --device "$device" >"$work/text.$device" || return 1
        done
        cmp "$work/text.cuda" "$work/text.cpu" || { head "$work/text.cuda" "$work/text.cpu" && return 1; }
        echo "gpu-check: both say: $(head -n 1 "$work/text.cuda")"
        ;;
    memory)
        train account >"$work/account.log" 2>&1 || { cat "$work/account.log" && return 1; }
        "$lmtrain" plan "$work/job.yaml" --json >"$work/plan.json" || { echo "plan ended with status $?" && return 1; }
        planned=$(sed -n 's/.*"total_bytes":[[:space:]]*\([0-9]*\).*/\1/p' "$work/plan.json")
        held=$(sed -n 's/.*"memory_bytes":\([0-9]*\).*/\1/p' "$work/account/metrics.jsonl" | tail -n 1)
        # What the device itself counts, where the log says it.
        grep -o 'device account: .*' "$work/account.log" | sed 's/^/gpu-check: /' || true
        echo "gpu-check: metrics say $held bytes, the plan $planned"
        [ "${held:-0}" -gt 0 ] && [ "$held" = "$planned" ]
        ;;
    esac
}

# check_part NAME SECONDS WORDS...: a part under a time limit
check_part() {
    item=$1 limit=$2
    shift 2
    printf '%s\n' "$item" | grep -qE "${GPU_CHECK_TRAININGS:-}" || return 0
    check "$item" "$limit" env GPU_CHECK_PART="$*" GPU_CHECK_LMTRAIN="$lmtrain" GPU_CHECK_STEPS="$steps" \
        "$scripts/gpu-check" "$stage" --folder "$folder"
}

# A training that others are held against is done before these begin.
stage_trainings() {
    make_data
    check_part 'one rank' 120 base base
    check_part 'two replicas' 120 base zero0 ranks=2 parallel.dp=2 train.micro_batch=1
    # Zero 2 and 3 add over ranks first (gradient_sum: early), so their like is zero 0 that does so.
    check_part 'two replicas, early sums' 120 base early ranks=2 parallel.dp=2 train.micro_batch=1 parallel.gradient_sum=early
    for dtype in fp32:1e-4 fp16:2e-3 bf16:1e-2; do
        check_part "gpu beside cpu ${dtype%:*}" 120 dtype "${dtype%:*}" "${dtype#*:}"
    done
    join
    for how in selective full; do check_part "law recompute $how" 120 law base "recompute-$how" "recompute=$how"; done
    check_part 'law stop and resume' 120 resume
    check_part 'law pp 2 on one GPU' 120 law base pp2 ranks=2 parallel.pp=2
    for zero in 1:zero0 2:early 3:early; do
        check_part "law zero ${zero%:*} on one GPU" 120 law "${zero#*:}" "zero${zero%:*}" ranks=2 parallel.dp=2 train.micro_batch=1 \
            "parallel.zero=${zero%:*}"
    done
    check_part 'generate' 120 generate
    join
    check_part 'memory' 120 memory
    join
}
