# shellcheck shell=sh
# gpu-report.sh - what scripts/gpu-check has done, and the report of it; it is sourced there
#
# A thing that is done is a file of one line of JSON in FOLDER/done; all of them are the report.
# shellcheck disable=SC2154 # stage, folder, minutes, gpu ... are gpu-check's

# Reports are committed: they name no folder of a machine.
escape() { sed -e "s|$root|.|g" -e "s|${HOME:-/root}|~|g" | LC_ALL=C tr -cd '\n\t -~' | awk '{ gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); gsub(/\t/, " "); printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }'; }

key_of() { echo "$1" | tr '/ ' '__'; }

# record NAME pass|fail|skip SECONDS DETAIL [MORE]: MORE is further fields of JSON
record() {
    printf '{"stage":"%s","name":"%s","status":"%s","seconds":%s,"detail":"%s"%s}\n' "$stage" "$1" "$2" "$3" \
        "$(printf '%s' "$4" | escape)" "${5:+,$5}" >"$folder/new.$(key_of "$1")"
    mv "$folder/new.$(key_of "$1")" "$folder/done/$stage.$(key_of "$1").json"
    [ -n "${beside:-}" ] || write_report
    echo "$2 $1 ($3 s) $(printf '%s' "$4" | head -n 1 | cut -c 1-150)"
}

is_done() {
    file=$folder/done/$stage.$(key_of "$1").json
    [ -e "$file" ] || return 1
    [ "$retry" = 1 ] && grep -q '"status":"fail"' "$file" && return 1
    return 0
}

more=0
# wanted NAME SECONDS - whether it is to be done now: it is not, and may take so long before the call's end.
wanted() {
    is_done "$1" && return 1
    left=$((minutes * 60 - ($(date +%s) - begin)))
    if [ $(($2 + 15)) -gt "$left" ]; then # 15 for its end and the report
        [ "$more" = 1 ] || echo "gpu-check: $1 may take $2 s, and $left s are left of --minutes $minutes"
        more=1
        return 1
    fi
    started=$(date +%s)
}

verdict() { if [ "$status" -eq 0 ]; then echo pass; else echo fail; fi; }

took() { echo $(($(date +%s) - started)); }

write_report() {
    {
        printf '{"gpu":"%s","date":"%s","lmtrain":"%s","results":[\n' "$gpu" "$(cat "$folder/date")" \
            "$(echo "$version" | escape)"
        cat "$folder"/done/*.json | sed '$!s/$/,/'
        echo ']}'
    } >"$report.json.new"
    mv "$report.json.new" "$report.json"
    markdown "$report.json" >"$report.md.new"
    mv "$report.md.new" "$report.md"
    [ ! -e "$folder/failed.txt" ] || tail -c 200000 "$folder/failed.txt" >"$report.failed.txt"
}

# The report for people, from the one for programs. Tables are of first lines of details, blocks of the rest.
markdown() {
    awk -v gpu="$gpu" -v date="$(cat "$folder/date")" '
    function field(key,    rest) {
        if (!match($0, "\"" key "\":")) return ""
        rest = substr($0, RSTART + RLENGTH)
        if (substr(rest, 1, 1) != "\"") { sub(/[,}].*/, "", rest); return rest }
        match(rest, /^"([^"\\]|\\.)*"/)
        rest = substr(rest, 2, RLENGTH - 2)
        gsub(/\\"/, "\"", rest)
        return rest
    }
    function median(text,    a, n, i, k, t) {
        n = split(text, a, " ")
        for (i = 1; i <= n; i++) for (k = i + 1; k <= n; k++) if (a[k] + 0 < a[i] + 0) { t = a[i]; a[i] = a[k]; a[k] = t }
        return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }
    /^\{"stage"/ {
        stage = field("stage"); detail = field("detail"); status = field("status")
        if (!(stage in rows)) stages[++n_stages] = stage
        count[stage, status]++
        at = index(detail, "\\n"); first = at ? substr(detail, 1, at - 1) : detail
        gsub(/\|/, "/", first)
        rows[stage] = rows[stage] sprintf("| %s | %s | %s | %s |\n", field("name"), status, field("seconds"), first)
        if (at) {
            gsub(/\\n/, "\n", detail); gsub(/\\\\/, "\\", detail)
            blocks[stage] = blocks[stage] sprintf("\n%s:\n\n```\n%s\n```\n", field("name"), detail)
        }
        if (field("tokens_per_s") != "") {
            key = field("what"); who = field("who")
            if (!(key in seen)) { seen[key] = 1; keys[++n_keys] = key }
            speeds[key, who] = speeds[key, who] " " field("tokens_per_s")
            flops[key] = field("flops_per_token"); peak[key] = field("peak")
            if (field("memory_bytes") + 0 > memory[key, who] + 0) memory[key, who] = field("memory_bytes")
        }
    }
    END {
        printf "# lmtrain on %s\n\n%s, `scripts/gpu-check`.\n", gpu, date
        if (n_keys) {
            print "\n## Tokens per second, lmtrain and PyTorch taking turns\n"
            print "MFU: 6 FLOPs a parameter in products (with the head) and 6 x layers x width x length of causal attention, a token,"
            print "of 989.4 TFLOP/s on Hopper (312 on A100). Medians of rounds, each the median of its steps after warming up."
            print "Memory is what nvidia-smi saw in use.\n"
            print "| model, length | lmtrain tokens/s | MFU | GB | PyTorch tokens/s | MFU | GB | lmtrain is |\n|---|---|---|---|---|---|---|---|"
        }
        for (i = 1; i <= n_keys; i++) {
            k = keys[i]; line = "| " k
            for (w = 1; w <= 2; w++) {
                who = w == 1 ? "lmtrain" : "torch"
                if (!((k, who) in speeds)) { line = line " | - | - | -"; s[w] = 0; continue }
                s[w] = median(speeds[k, who])
                line = line sprintf(" | %.0f | %s | %.1f", s[w], peak[k] > 0 ? sprintf("%.1f %%", 100 * s[w] * flops[k] / peak[k]) : "-", memory[k, who] / 1e9)
            }
            print line (s[1] && s[2] ? sprintf(" | %.2fx |", s[1] / s[2]) : " | - |")
        }
        for (i = 1; i <= n_stages; i++) {
            k = stages[i]
            printf "\n## %s: %d passed, %d failed, %d skipped\n\n| | | s | |\n|---|---|---|---|\n%s%s", k, count[k, "pass"], count[k, "fail"], count[k, "skip"], rows[k], blocks[k]
        }
    }' "$1"
}

# The end of a log whose command failed, beside the report.
log=$work/log
keep_failed() {
    [ "$status" -eq 0 ] && return
    {
        echo "== $stage: $item: status $status"
        tail -n 60 "$log" | cut -c 1-300
    } >>"$folder/failed.txt"
}

run_check() {
    status=0
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 || status=$?
    keep_failed
    case $status in
    0) record "$item" pass "$(took)" "$(grep '^gpu-check: ' "$log" | sed 's/^gpu-check: //' | tail -n 3)" ;;
    124 | 137) record "$item" fail "$(took)" "over $limit s
$(tail -n 15 "$log")" ;;
    *) record "$item" fail "$(took)" "status $status: $(sed '/^ *$/d' "$log" | tail -n 1)
$(tail -n 15 "$log")" ;;
    esac
}

# in_turn COMMAND...: the item's, with --jobs beside others: as many as there are tokens in a pipe; `join` waits for all.
in_turn() {
    if [ "$jobs" = 1 ]; then
        "$@"
        return
    fi
    if [ ! -p "$work/tokens" ]; then
        mkfifo "$work/tokens"
        exec 9<>"$work/tokens"
        for _ in $(seq "$jobs"); do echo >&9; done
    fi
    read -r _ <&9
    if ! wanted "$item" "$limit"; then
        echo >&9
        return 0
    fi
    # shellcheck disable=SC2030 # its own log
    {
        beside=1 log=$work/log.$(key_of "$item")
        "$@" 9>&- || true
        echo >&9
    } &
}

# check NAME SECONDS COMMAND...: passes if the command ends well in that time.
check() {
    item=$1 limit=$2
    shift 2
    wanted "$item" "$limit" || return 0
    in_turn run_check "$@"
}

join() {
    wait
    write_report
}

# told NAME SECONDS COMMAND...: what it prints is its detail
# shellcheck disable=SC2031 # of no item beside others
told() {
    item=$1 limit=$2
    shift 2
    wanted "$item" "$limit" || return 0
    status=0
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 || status=$?
    keep_failed
    record "$item" "$(verdict)" "$(took)" "$(head -n 60 "$log" | cut -c 1-200)"
}
