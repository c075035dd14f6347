#!/bin/sh
# test/soak/mlflow.sh - a run tracked by a real `mlflow server`: read back by mlflow's own client, over a stop, a kill and an outage
#
# bench/results/tracking.md has what came of it. MLFLOW_VENV: a virtual environment with mlflow in place of one that is made here.
# shellcheck disable=SC2317 # functions that wait_until calls
. test/cli/support/check.sh
. test/cli/support/tiny.sh

venv=${MLFLOW_VENV:-$dir/venv}
if [ ! -x "$venv/bin/mlflow" ]; then
    python3 -m venv "$venv"
    expect 'mlflow is installed' 0 '' "$venv/bin/pip" install --quiet --disable-pip-version-check mlflow || finish
fi
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port

# In a session of its own: it has workers, which end with it.
serve() {
    (cd "$dir" && exec setsid "$venv/bin/mlflow" server --host 127.0.0.1 --port "$port" --workers 1 \
        --backend-store-uri "sqlite:///$dir/mlflow.db") >>"$dir/server.log" 2>&1 &
    server=$!
    wait_until 240 answers
}
answers() { python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health", timeout=2)' "$url" 2>/dev/null; }
end_server() {
    kill -TERM -"$server" 2>/dev/null
    wait "$server" 2>/dev/null
}
tracked() { pretrain "$@" --set "tracking.mlflow=$url" --set tracking.experiment=soak; }

serve
trap 'end_server; rm -rf "$dir"' EXIT
"$venv/bin/mlflow" --version
expect 'a run is tracked' 0 '^tracking.mlflow: run one of experiment soak' tracked one --set train.steps=60
expect 'one that is stopped' 75 '' env LMTRAIN_FAULT=rank0:step:30:sigterm "$lmtrain" pretrain "$dir/job.yaml" \
    --set "output=$dir/two" --set train.steps=60 --set "tracking.mlflow=$url" --set tracking.experiment=soak
expect 'goes on' 0 '^done' tracked two --set train.steps=60
# Long enough that the run is there, and its id in the run folder, when the process is killed.
long='--set train.steps=4000 --set train.log_every=50 --set eval.every_steps=1000 --set checkpoint.every_steps=1000'
# shellcheck disable=SC2086 # words
LMTRAIN_FAULT=rank0:step:3500:sigkill tracked three $long >"$dir/out" 2>&1
# shellcheck disable=SC2086
expect 'so does one that is killed' 0 '^done' tracked three $long
end_server
start four --set train.steps=60 --set "tracking.mlflow=$url" --set tracking.experiment=soak
sleep 5
serve
ended 'a server that comes late' 0 four
expect 'a run whose rate is not finite somewhere fails' 1 'not finite' tracked five --set train.steps=60 --set optimizer.lr=100 \
    --set train.max_skipped=2 --set optimizer.weight_decay=100
expect 'mlflow reads what metrics.jsonl has' 0 '^5 runs agree$' "$venv/bin/python" -c '
import json, math, sys
from mlflow import MlflowClient
url, folder = sys.argv[1:]
client = MlflowClient(url)
experiment = client.get_experiment_by_name("soak")
runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
assert set(runs) == {"one", "two", "three", "four", "five"}, set(runs)
for name, run in runs.items():
    assert run.info.status == ("FAILED" if name == "five" else "FINISHED"), (name, run.info.status)
    assert run.data.params["train.steps"] in ("60", "4000") and run.data.params["optimizer.name"] == "adamw", run.data.params
    lines = [json.loads(line) for line in open(folder + "/" + name + "/metrics.jsonl")]
    for key, tag in (("loss", "train/loss"), ("lr", "train/lr"), ("eval_loss", "eval/loss")):
        sent = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, tag)}
        wanted = {line["step"]: line[key] for line in lines if line.get(key) is not None}
        # A killed process takes what waits with it: at most the steps of a second, which are not repeated.
        missing = set(wanted) - set(sent)
        assert not missing or name == "three", (name, tag, missing)
        assert all(sent[step] == value for step, value in wanted.items() if step in sent), (name, tag)
print(len(runs), "runs agree")' "$url" "$dir"

url=$dir/mlruns
expect 'a run in a folder' 0 '^done' tracked kept --set train.steps=60
expect 'which mlflow reads as its own' 0 '^agrees$' env MLFLOW_ALLOW_FILE_STORE=true "$venv/bin/python" -W ignore -c '
import json, sys
from mlflow import MlflowClient
client = MlflowClient("file://" + sys.argv[1])
(run,) = client.search_runs([client.get_experiment_by_name("soak").experiment_id])
assert run.info.run_name == "kept" and run.info.status == "FINISHED" and run.info.end_time >= run.info.start_time
assert run.data.params["train.steps"] == "60"
sent = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "train/loss")]
lines = [json.loads(line) for line in open(sys.argv[2] + "/kept/metrics.jsonl")]
assert sent == [(line["step"], line["loss"]) for line in lines if "loss" in line]
print("agrees")' "$url" "$dir"
finish
