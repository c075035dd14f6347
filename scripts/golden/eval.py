#!/usr/bin/env python3
"""scripts/golden/eval.py [DATA] [OUT] - the prompts that lm-evaluation-harness 0.4.13 builds, as hashes.

DATA is the folder of the benchmarks (../shared/data), OUT is test/eval/golden/prompts.txt. The tasks are the package's
own, but for where their data lies: DATA's files, rewritten as the JSONL of the sets on the hub. A line is

    TASK SHOTS PART ITEM XXH3(prompt) XXH3(choices, each with a zero byte behind it) or -

C-Eval, HellaSwag and PIQA aren't in DATA: sets of their published forms are made of what is there (derive), so that the
package and we are asked the same. AGIEval's query is made as AGIEval's src/dataset_loader.py does (convert_zero_shot), since hails/agieval-* hold it so.
"""
import csv
import glob
import json
import os
import sys
import tempfile

import xxhash

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CHINESE = ["gaokao-biology", "gaokao-mathqa", "gaokao-mathcloze"]
CLOZE = ["math", "gaokao-mathcloze"]


def write_rows(folder, name, rows):
    path = os.path.join(folder, name.replace("/", "-") + ".jsonl")
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def read_lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def mmlu(path):
    with open(path, encoding="utf-8", newline="") as f:
        return [{"question": r["question"], "choices": [r[f"choice{i}"] for i in range(4)],
                 "answer": int(r["answer"])} for r in csv.DictReader(f)]


def boolq(path):
    rows = []
    for r in read_lines(path):
        passage, question = r["query"][len("Passage: "):].rsplit("\nQuestion: ", 1)
        rows.append({"passage": passage, "question": question.removesuffix("?"), "label": r["gold"]})
    return rows


def agieval(path, part):
    rows = []
    for r in read_lines(path):
        passage = r["passage"] or ""
        zh = part in CHINESE
        if part in CLOZE:
            query = passage + ("问题：" + r["question"] + "\n答案：" if zh else "Q: " + r["question"] + "\nA: The answer is")
            rows.append({"query": query, "answer": r["answer"]})
            continue
        n = len(r["options"])
        last = "ABCDEFG"[(n if n > 1 else (4 if zh else 5)) - 1]
        if zh:
            query = f"{passage}问题：{r['question']} 选项：{' '.join(r['options'])}\n答案：从A到{last}, 我们应选择"
        else:
            query = (f"{passage}Q: {r['question']} Answer Choices: {' '.join(r['options'])}\n"
                     f"A: Among A through {last}, the answer is")
        labels = [letter for letter in "".join(r["label"]) if letter.isalpha()]
        rows.append({"query": query, "choices": r["options"], "gold": [ord(x) - ord("A") for x in labels]})
    return rows


def options_without_letters(row):
    return [o[3:] for o in row["options"]]


def derive(data, folder):
    """Sets in the forms of C-Eval, HellaSwag and PIQA in folder, from questions and passages of other sets."""
    for name in ("ceval/val", "ceval/dev", "hellaswag", "piqa"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    rows = [r for r in read_lines(f"{data}/agieval/gaokao-biology.jsonl")
            if len(r["options"]) == 4 and len("".join(r["label"])) == 1]
    for split, some in (("dev", rows[-5:]), ("val", rows[:-5])):
        with open(f"{folder}/ceval/{split}/high_school_biology_{split}.csv", "w", encoding="utf-8", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(["id", "question", "A", "B", "C", "D", "answer", "explanation"])
            for i, r in enumerate(some):
                writer.writerow([i, r["question"], *options_without_letters(r), "".join(r["label"]), ""])
    passages = [r["passage"].split(". ") for r in boolq(f"{data}/boolq/boolq.jsonl")]
    passages = [p for p in passages if len(p) > 2][:400]
    write_rows(f"{folder}/hellaswag", "hellaswag_val", [
        {"activity_label": "Reading [title]", "ctx_a": passages[i][0] + " [step]", "ctx_b": passages[i][1].lower(),
         "endings": [passages[(i + k) % len(passages)][2] for k in range(4)], "label": str(i % 4)}
        for i in range(0, len(passages), 2)])
    rows = mmlu(f"{data}/mmlu/test/anatomy_test.csv") + mmlu(f"{data}/mmlu/test/astronomy_test.csv")
    write_rows(f"{folder}/piqa", "valid", [
        {"goal": r["question"], "sol1": r["choices"][i % 4], "sol2": r["choices"][(i + 1) % 4]} for i, r in enumerate(rows)])
    with open(f"{folder}/piqa/valid-labels.lst", "w", encoding="utf-8") as f:
        f.write("".join(f"{i % 2}\n" for i in range(len(rows))))


def derive_parquet(folder, to):
    """The same items as the hub has them: parquet files with the columns, types and names of the published sets."""
    import pyarrow
    import pyarrow.parquet

    def write(path, schema, rows):
        os.makedirs(os.path.dirname(f"{to}/{path}"), exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(schema)), f"{to}/{path}")

    text, texts = pyarrow.string(), pyarrow.list_(pyarrow.string())
    for split in ("dev", "val"):
        with open(f"{folder}/ceval/{split}/high_school_biology_{split}.csv", encoding="utf-8", newline="") as f:
            write(f"ceval/high_school_biology/{split}-00000-of-00001.parquet",
                  [("id", pyarrow.int32())] + [(name, text) for name in ("question", *"ABCD", "answer", "explanation")],
                  [{**r, "id": int(r["id"])} for r in csv.DictReader(f)])
    write("hellaswag/data/validation-00000-of-00001.parquet",
          [("ind", pyarrow.int32()), ("activity_label", text), ("ctx_a", text), ("ctx_b", text), ("ctx", text), ("endings", texts),
           ("source_id", text), ("split", text), ("split_type", text), ("label", text)],
          [{**r, "ind": i, "ctx": f"{r['ctx_a']} {r['ctx_b']}", "source_id": f"activitynet~{i}", "split": "val",
            "split_type": "indomain"} for i, r in enumerate(read_lines(f"{folder}/hellaswag/hellaswag_val.jsonl"))])
    labels = read_lines(f"{folder}/piqa/valid-labels.lst")
    write("piqa/plain_text/validation-00000-of-00001.parquet",
          [("goal", text), ("sol1", text), ("sol2", text), ("label", pyarrow.int64())],
          [{**r, "label": label} for r, label in zip(read_lines(f"{folder}/piqa/valid.jsonl"), labels)])


def derived_tasks(folder, base):
    with open(f"{folder}/ceval/val/high_school_biology_val.csv", encoding="utf-8", newline="") as f:
        test = list(csv.DictReader(f))
    with open(f"{folder}/ceval/dev/high_school_biology_dev.csv", encoding="utf-8", newline="") as f:
        shots = list(csv.DictReader(f))
    yield "ceval", "high_school_biology", make_task("ceval", f"{base}/ceval/ceval-valid_high_school_biology.yaml", test, shots,
                                                    folder)
    import datasets
    from lm_eval.tasks.hellaswag.utils import process_docs
    rows = list(process_docs(datasets.Dataset.from_list(read_lines(f"{folder}/hellaswag/hellaswag_val.jsonl"))))
    yield "hellaswag", "hellaswag", make_task("hellaswag", f"{base}/hellaswag/hellaswag.yaml", rows, None, folder)
    rows = read_lines(f"{folder}/piqa/valid.jsonl")
    for row, label in zip(rows, read_lines(f"{folder}/piqa/valid-labels.lst")):
        row["label"] = label
    yield "piqa", "piqa", make_task("piqa", f"{base}/piqa/piqa.yaml", rows, None, folder)


def make_task(name, yaml_path, test, shots, limit_folder):
    """A task of the package with its data from files."""
    from lm_eval.api.task import ConfigurableTask
    try:
        from lm_eval.utils import load_yaml_config
        config = load_yaml_config(yaml_path, mode="full")
    except ImportError:
        from lm_eval.tasks._yaml_loader import load_yaml
        config = load_yaml(yaml_path)
    for key in ("dataset_name", "tag", "group", "include", "process_docs"):
        config.pop(key, None)
    split = config.get("test_split") or config.get("validation_split")
    files = {split: write_rows(limit_folder, name + "-test", test)}
    if shots is not None:
        other = (config.get("fewshot_split") if config.get("fewshot_split") != split else None) or config.get("training_split")
        files[other] = write_rows(limit_folder, name + "-shots", shots)
    else:
        config.pop("training_split", None)
        config["training_split"] = None
    config["dataset_path"] = "json"
    config["dataset_kwargs"] = {"data_files": files}
    config["task"] = name
    return ConfigurableTask(config=config)


def tasks(data, folder, parts=3):
    """(task, part, ConfigurableTask) of what DATA has."""
    import lm_eval
    base = os.path.join(os.path.dirname(lm_eval.__file__), "tasks")
    for path in sorted(glob.glob(f"{data}/mmlu/test/*.csv"))[:: 57 // parts]:
        part = os.path.basename(path)[: -len("_test.csv")]
        yield "mmlu", part, make_task("mmlu-" + part, f"{base}/mmlu/default/mmlu_{part}.yaml", mmlu(path),
                                      mmlu(f"{data}/mmlu/dev/{part}_dev.csv"), folder)
    for path in sorted(glob.glob(f"{data}/bbh/bbh/*.json")):
        part = os.path.basename(path)[: -len(".json")]
        with open(path, encoding="utf-8") as f:
            rows = json.load(f)["examples"]
        yield "bbh", part, make_task("bbh-" + part, f"{base}/bbh/cot_fewshot/{part}.yaml", rows, None, folder)
    for path in sorted(glob.glob(f"{data}/agieval/*.jsonl")):
        part = os.path.basename(path)[: -len(".jsonl")]
        yield "agieval", part, make_task("agieval-" + part, f"{base}/agieval/{part}.yaml", agieval(path, part), None, folder)
    yield "boolq", "boolq", make_task("boolq", f"{base}/super_glue/boolq/default.yaml", boolq(f"{data}/boolq/boolq.jsonl"),
                                      None, folder)
    yield "gsm8k", "gsm8k", make_task("gsm8k", f"{base}/gsm8k/gsm8k.yaml", read_lines(f"{data}/gsm8k/test.jsonl"),
                                      read_lines(f"{data}/gsm8k/train.jsonl"), folder)
    derive(data, folder)
    yield from derived_tasks(folder, base)


SHOTS = {"mmlu": [0, 5], "bbh": [3], "agieval": [0], "boolq": [0], "gsm8k": [5], "ceval": [0, 5],
         "hellaswag": [0], "piqa": [0]}


def prompts(task, shots, limit):
    """[(context, [choice texts])] as the package asks."""
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=1234)
    task.build_all_requests(limit=limit)
    by_doc = {}
    for instance in task.instances:
        by_doc.setdefault(instance.doc_id, []).append(instance.args)
    out = []
    for doc in sorted(by_doc):
        args = by_doc[doc]
        choices = [a[1] for a in args] if isinstance(args[0][1], str) else []
        out.append((args[0][0], choices))
    return out


def main():
    data = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "..", "shared", "data")
    out = sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "test/eval/golden/prompts.txt")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, part, task in tasks(data, folder):
            # The package has no shots of answers that are lists.
            for shots in [0, 2] if part in CLOZE else SHOTS[name]:
                for i, (context, choices) in enumerate(prompts(task, shots, 4)):
                    joined = "".join(c + "\0" for c in choices).encode()
                    lines.append(f"{name} {shots} {part} {i} {xxhash.xxh3_64_hexdigest(context.encode())} "
                                 f"{xxhash.xxh3_64_hexdigest(joined) if choices else '-'}")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    print(f"{len(lines)} prompts")


if __name__ == "__main__":
    main()
