"""mlflow_server.py FOLDER [MODE...] - answers what a run asks of an MLflow server, on a loopback port

The port is written to FOLDER/port, each request that was taken to FOLDER/requests, a line of JSON. Modes: fail=N: 503 to the
first N requests; token=T: 401 without that bearer; hang: takes connections and never answers; refuse: 400 to batches of metrics.
"""
import http.server
import json
import os
import sys
import time
import urllib.parse

folder, modes = sys.argv[1], dict((mode + "=").split("=")[:2] for mode in sys.argv[2:])
state = {"experiments": {}, "failures": int(modes.get("fail") or 0)}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, reply):
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def take(self, body):
        url = urllib.parse.urlsplit(self.path)
        name = url.path.removeprefix("/api/2.0/mlflow/")
        if "hang" in modes:
            time.sleep(1000)
        if modes.get("token") and self.headers.get("Authorization") != "Bearer " + modes["token"]:
            return self.answer(401, {"message": "no \x1b[31mtoken"})
        if state["failures"]:
            state["failures"] -= 1
            return self.answer(503, {"message": "not now"})
        with open(folder + "/requests", "a") as out:
            out.write(json.dumps({"name": name, "body": body, "query": urllib.parse.parse_qs(url.query)}) + "\n")
        if name == "experiments/get-by-name":
            wanted = urllib.parse.parse_qs(url.query)["experiment_name"][0]
            if wanted not in state["experiments"]:
                return self.answer(404, {"error_code": "RESOURCE_DOES_NOT_EXIST"})
            return self.answer(200, {"experiment": {"experiment_id": state["experiments"][wanted]}})
        if name == "experiments/create":
            state["experiments"][body["name"]] = "7"
            return self.answer(200, {"experiment_id": "7"})
        if name == "runs/create":
            return self.answer(200, {"run": {"info": {"run_id": "abc123"}}})
        if name == "runs/log-batch" and "refuse" in modes and body.get("metrics"):
            return self.answer(400, {"message": "no such metrics"})
        return self.answer(200, {})

    def do_GET(self):
        self.take(None)

    def do_POST(self):
        self.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(folder + "/port.part", "w") as out:
    out.write(str(server.server_address[1]))
os.rename(folder + "/port.part", folder + "/port")
server.serve_forever()
