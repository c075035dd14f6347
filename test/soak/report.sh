#!/bin/sh
# test/soak/report.sh - the page of `lmtrain report` in headless Chromium (Debian's chromium); skipped without
#
# PICTURES names a folder in which screenshots are kept, of 1280 and 400 pixels, light and dark.
. test/cli/support/check.sh
. test/cli/support/tiny.sh

if ! python3 -c 'import sys; sys.path.insert(0, "test/soak/support"); import browser; sys.exit(not browser.find())'; then
    echo 'skip the page: no chromium (apt-get install chromium)'
    finish
fi
expect 'a run with a pipeline' 0 '^done' pretrain one --ranks 2 --set 'parallel={pp: 2}' --set 'trace.steps=[6]' --set restarts=1
LMTRAIN_FAULT=rank1:step:9 expect 'one that died' 0 '^done' pretrain two --ranks 2 --set 'parallel={zero: 1}' --set optimizer.lr=5.0e-3 \
    --set restarts=1
expect 'one with experts' 0 '^done' pretrain three --ranks 2 --set model.n_experts=4 --set model.n_active_experts=2 \
    --set model.expert_ffn_size=32 --set parallel.ep=2
echo '{"model":"two","tasks":[{"task":"boolq","style":"lmeval","shots":0,"scores":{"items":4,"acc":0.75,"acc_stderr":0.25}}]}' \
    >"$dir/two/boolq.json"
expect 'a page' 0 'the page' "$lmtrain" report "$dir/one" "$dir/two" "$dir/three" --device h100-sxm --to "$dir/page.html"
timeout 300 python3 test/soak/support/report_page.py "$dir/page.html" "$dir/one" "$dir/two" "$dir/three" || n_wrong=$((n_wrong + 1))

# A sweep of them.
mkdir "$dir/sweep"
mv "$dir/one" "$dir/sweep/trial-000"
mv "$dir/two" "$dir/sweep/trial-001"
cat >"$dir/sweep/sweep.jsonl" <<'END'
{"event":"sweep","time":1,"version":1,"metric":"eval.loss","goal":"minimize","rungs":[4,12],"trials":3}
{"event":"trial","trial":0,"settings":{"optimizer.lr":0.01,"optimizer.name":"adamw"}}
{"event":"trial","trial":1,"settings":{"optimizer.lr":0.005,"optimizer.name":"muon"}}
{"event":"trial","trial":2,"settings":{"optimizer.lr":1,"optimizer.name":"muon"}}
{"event":"value","trial":0,"rung":0,"step":4,"value":6.5}
{"event":"value","trial":1,"rung":1,"step":12,"value":6.25}
{"event":"fail","trial":2,"rung":0,"text":"the loss is not finite"}
END
expect 'a page of a sweep' 0 'the page' "$lmtrain" report "$dir/sweep" --to "$dir/sweep.html"
timeout 100 python3 test/soak/support/sweep_page.py "$dir/sweep.html" || n_wrong=$((n_wrong + 1))
finish
