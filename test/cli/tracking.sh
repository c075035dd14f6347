#!/bin/sh
# test/cli/tracking.sh - a run in MLflow: what a server gets, one that fails, refuses, hangs or is not there
# shellcheck disable=SC2317 # functions that wait_until calls
. test/cli/support/check.sh
. test/cli/support/tiny.sh

# serve NAME MODE... - a server as $server, its files in $dir/NAME, its address $url
serve() {
    mkdir "$dir/$1"
    folder=$dir/$1
    shift
    python3 test/cli/support/mlflow_server.py "$folder" "$@" 2>"$folder/errors" &
    server=$!
    wait_until 60 test -s "$folder/port"
    url=http://127.0.0.1:$(cat "$folder/port")
}
end_server() {
    kill "$server"
    wait "$server" 2>/dev/null
}
tracked() { pretrain "$@" --set "tracking.mlflow=$url" --set 'tracking.experiment=a & b'; }

serve good
expect 'a run is tracked' 0 '^tracking.mlflow: run one of experiment a & b, http://127.0.0.1:[0-9]*/#/experiments/7/runs/abc123$' tracked one
expect 'it ends' 0 '^done: step 12' printf '%s\n' "$output"
expect 'the server got it all' 0 '' python3 -c '
import json, sys
requests = [json.loads(line) for line in open(sys.argv[1])]
names = [request["name"] for request in requests]
assert names[:4] == ["experiments/get-by-name", "experiments/create", "runs/create", "runs/log-batch"], names
assert requests[0]["query"] == {"experiment_name": ["a & b"]}
created = requests[2]["body"]
assert created["experiment_id"] == "7" and created["run_name"] == "one" and created["start_time"] > 1.7e12
batches = [request["body"] for request in requests if request["name"] == "runs/log-batch"]
assert all(batch["run_id"] == "abc123" for batch in batches)
params = {param["key"]: param["value"] for batch in batches for param in batch.get("params", ())}
assert params["train.steps"] == "12" and params["model.hidden_size"] == "32" and params["train.dtype"] == "bf16", params
assert max(len(batch.get("params", ())) for batch in batches) == 100
metrics = [metric for batch in batches for metric in batch.get("metrics", ())]
lines = [json.loads(line) for line in open(sys.argv[2])]
for key, tag in (("loss", "train/loss"), ("grad_norm", "train/grad_norm"), ("eval_loss", "eval/loss")):
    sent = [(metric["step"], metric["value"]) for metric in metrics if metric["key"] == tag]
    assert sent == [(line["step"], line[key]) for line in lines if key in line], tag
assert all(metric["timestamp"] > 1.7e12 for metric in metrics)
assert requests[-1]["name"] == "runs/update" and requests[-1]["body"]["status"] == "FINISHED" and "end_time" in requests[-1]["body"]
' "$folder/requests" "$dir/one/metrics.jsonl"
expect 'without it' 0 '^done' pretrain plain
same_bits 'the same bits' one plain 12
: >"$folder/requests"
expect 'stopped' 75 '' env LMTRAIN_FAULT=rank0:step:6:sigterm "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/stopped" \
    --set "tracking.mlflow=$url"
expect 'the run is killed there' 0 '"status": "KILLED"' cat "$folder/requests"
: >"$folder/requests"
expect 'and goes on' 0 '^done' pretrain stopped --set "tracking.mlflow=$url"
expect 'as the same run' 0 '' python3 -c '
import json, sys
requests = [json.loads(line) for line in open(sys.argv[1])]
names = [request["name"] for request in requests]
assert "runs/create" not in names, names
assert requests[0]["body"]["status"] == "RUNNING" and requests[-1]["body"]["status"] == "FINISHED"' "$folder/requests"
end_server

serve failing fail=2
expect 'a server that fails at first' 0 'warn: tracking.mlflow: .*status 503: not now; training continues, and it is tried again$' tracked failing-run
expect 'is told to be back' 0 '^tracking.mlflow: .* answers again$' printf '%s\n' "$output"
expect 'and got it all' 0 '"FINISHED"' cat "$folder/requests"
end_server

serve locked token=T0ken-4711
LMTRAIN_FAULT=rank0:step:12:sigterm MLFLOW_TRACKING_TOKEN=wrong tracked locked-run >"$dir/out" 2>&1
expect 'a token that is wrong' 0 'status 401: no .*hint: MLFLOW_TRACKING_TOKEN' cat "$dir/out"
refuse 'nothing of the server reaches the terminal as it is' "$(printf '\033')"
expect 'and the right one' 0 '^tracking.mlflow: run' env MLFLOW_TRACKING_TOKEN=T0ken-4711 "$lmtrain" pretrain "$dir/job.yaml" \
    --set "output=$dir/open-run" --set "tracking.mlflow=$url"
expect 'which is written nowhere' 1 '' grep -rq T0ken-4711 "$dir/open-run"
end_server

serve refusing refuse
expect 'metrics that are refused' 0 'warn: tracking.mlflow: .* metrics are refused: status 400: no such metrics' tracked refused
expect 'end no run' 0 '^done' printf '%s\n' "$output"
end_server

serve hanging hang
expect 'a server that never answers' 75 '' env LMTRAIN_FAULT=rank0:step:12:sigterm timeout 60 "$lmtrain" pretrain "$dir/job.yaml" \
    --set "output=$dir/hung" --set train.steps=13 --set "tracking.mlflow=$url"
expect 'is given up at the end' 0 'warn: tracking.mlflow: .*metrics were not sent, nor the run.s end' printf '%s\n' "$output"
end_server
expect 'none at all' 75 'warn: tracking.mlflow: .*(onnect|refused).*training continues' env LMTRAIN_FAULT=rank0:step:12:sigterm \
    "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/none" --set train.steps=13 --set "tracking.mlflow=$url"
same_bits 'no bit depends on it' one plain 12

# ---- a folder in place of a server ----

url=$dir/mlruns
expect 'a run in a folder' 0 "^tracking.mlflow: run kept of experiment a & b, $url/[0-9]*/[0-9a-f]*\$" tracked kept
expect 'stopped there' 75 '' env LMTRAIN_FAULT=rank0:step:6:sigterm "$lmtrain" pretrain "$dir/job.yaml" --set "output=$dir/halved" \
    --set "tracking.mlflow=$url" --set 'tracking.experiment=a & b'
expect 'is killed there' 0 '^status: 5$' cat "$url"/*/"$(sed 's/.*run_id":"\([0-9a-f]*\).*/\1/' "$dir/halved/mlflow.json")/meta.yaml"
expect 'and goes on' 0 '^done' tracked halved
expect 'as two runs of one experiment, with all their values' 0 '' python3 -c '
import glob, json, os, sys
(experiment,) = glob.glob(sys.argv[1] + "/*")
assert "name: \x27a & b\x27" in open(experiment + "/meta.yaml").read()
names = ("kept", "halved")
assert len(glob.glob(experiment + "/*/")) == len(names)
for name in names:
    run = experiment + "/" + json.load(open(f"{sys.argv[2]}/{name}/mlflow.json"))["run_id"]
    meta = open(run + "/meta.yaml").read()
    assert "status: 3" in meta and f"run_name: \x27{name}\x27" in meta and "end_time: null" not in meta, meta
    assert open(run + "/params/train.steps").read() == "12"
    lines = [json.loads(line) for line in open(f"{sys.argv[2]}/{name}/metrics.jsonl")]
    wanted = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    stored = [line.split() for line in open(run + "/metrics/train/loss")]
    assert [(int(step), float(value)) for _, value, step in stored] == wanted, (stored, wanted)' "$url" "$dir"
same_bits 'no bit depends on it, either' kept plain 12
expect 'a folder that cannot be' 0 'warn: tracking.mlflow: /proc/none .*training continues' pretrain nowhere --set tracking.mlflow=/proc/none

# ---- mistakes ----

expect 'neither server nor folder' 2 'tracking.mlflow is sqlite:///a.db, neither the URL of a tracking server nor a folder' \
    pretrain wrong --set tracking.mlflow=sqlite:///a.db
expect 'a key that is none' 2 'unknown key tracking.mlfow \(hint: tracking.mlflow\)' pretrain wrong --set tracking.mlfow=x
finish
