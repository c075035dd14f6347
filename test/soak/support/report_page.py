"""report_page.py PAGE RUN... - what a reader of the page does, in headless Chromium; prints `ok NAME` or `not ok NAME`"""
import json
import math
import os
import sys

from browser import Browser

WIDTHS = (1280, 400)
wrong = 0


def check(name, is_right, why=""):
    global wrong
    wrong += not is_right
    print(f"{'ok' if is_right else 'not ok'} {name}{'' if is_right else f': {why}'}")


def recorded(run):
    return [json.loads(line) for line in open(f"{run}/metrics.jsonl", encoding="utf-8")]


CHART = """(title) => report.charts.find((c) => c.canvas.getAttribute("aria-label") === title)"""
POINTS = f"""(() => {{ const chart = ({CHART})(%s); return chart && chart.data.datasets.map((d) => ({{
    label: d.label, run: d.run.name, points: d.data.map((p) => [p.x, Number.isNaN(p.y) ? null : p.y]),
    drawn: chart.getDatasetMeta(chart.data.datasets.indexOf(d)).data.filter((e) => !e.skip).length }})); }})()"""


def curve(browser, title):
    return browser.evaluate(POINTS % json.dumps(title))


def near(a, b):
    return a is None and b is None or math.isclose(a, b, rel_tol=1e-6)


def check_curves(browser, runs):
    names = {"Gradient norm": "grad_norm", "Learning rate": "lr", "Speed": "tokens_per_s", "MFU": "mfu", "Time of a step": "step_s"}
    for title, name in names.items():
        lines = curve(browser, title)
        expected = [[[r["step"], r[name]] for r in recorded(run) if "loss" in r] for run in runs]
        is_same = len(lines) == len(runs) and all(
            len(line["points"]) == len(points) == line["drawn"] and all(near(a[0], b[0]) and near(a[1], b[1]) for a, b in zip(line["points"], points))
            for line, points in zip(lines, expected))
        check(f"{title} has the points of metrics.jsonl", is_same, lines)
    losses = curve(browser, "Loss")
    for run in runs:
        of = recorded(run)
        own = [line for line in losses if line["run"] == os.path.basename(run)]
        training = [[r["step"], r.get("loss_mean", r["loss"])] for r in of if "loss" in r]
        held = [[r["step"], r["eval_loss"]] for r in of if "eval_loss" in r]
        check(f"losses of {os.path.basename(run)}, training and held-out",
              [[p for p in line["points"]] != [] for line in own] == [True, True] and
              all(near(a[1], b[1]) for line, points in zip(own, (training, held)) for a, b in zip(line["points"], points)) and
              [len(line["points"]) for line in own] == [len(training), len(held)], own)


def check_axes(browser, runs):
    for axis, name in (("tokens", "tokens"), ("time", "elapsed_s")):
        browser.evaluate(f"document.querySelector('#axis [data-axis={axis}]').click()")
        line = curve(browser, "Gradient norm")[0]
        expected = [r.get(name, r["useful_s"]) for r in recorded(runs[0]) if "loss" in r]
        check(f"over {axis}", all(near(p[0], x) for p, x in zip(line["points"], expected)), line["points"][:3])
    browser.evaluate("document.querySelector('#axis [data-axis=step]').click()")


def place_of(browser, title, dataset, index):
    browser.evaluate(f"({CHART})({json.dumps(title)}).canvas.scrollIntoView({{block: 'center'}})")
    return browser.evaluate(f"""(() => {{ const chart = ({CHART})({json.dumps(title)}), box = chart.canvas.getBoundingClientRect();
        const e = chart.getDatasetMeta({dataset}).data[{index}]; return [box.left + e.x, box.top + e.y]; }})()""")


def tooltip(browser, title):
    browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return browser.evaluate(f"""(() => {{ const t = ({CHART})({json.dumps(title)}).tooltip;
        return t.opacity ? [...t.title, ...t.body.flatMap((b) => b.lines), ...t.footer].join("\\n") : ""; }})()""")


def check_hover(browser, runs):
    steps = [r for r in recorded(runs[0]) if "loss" in r]
    x, y = place_of(browser, "Gradient norm", 0, 7)
    browser.mouse("mouseMoved", x, y)
    text = tooltip(browser, "Gradient norm")
    check("hover shows the step and each run's value", "step 8" in text and f"{steps[7]['grad_norm']:.5g}".rstrip("0") in text and
          text.count("\n") >= len(runs), text)
    x, y = place_of(browser, "Parts of a step", 0, 0)
    browser.mouse("mouseMoved", x - 2, y)
    text = tooltip(browser, "Parts of a step")
    check("hover shows the part of a step", " ms" in text and "%" in text, text)
    x, y = place_of(browser, "Segments by pipeline stage", 0, 0)
    browser.mouse("mouseMoved", x - 2, y)
    text = tooltip(browser, "Segments by pipeline stage")
    check("hover shows bytes", "weights" in text and "iB" in text, text)
    restarted = [r["step"] for r in recorded(runs[1]) if r.get("event") == "started"][-1]
    x, y = place_of(browser, "Loss", 2, max(1, restarted) - 1)
    browser.mouse("mouseMoved", x, y)
    text = tooltip(browser, "Loss")
    check("hover at a mark shows the event", "restarted at step" in text or "died at step" in text, text)


def check_controls(browser, runs):
    n = len(curve(browser, "Gradient norm"))
    browser.evaluate("document.querySelector('#runs .chip').click()")
    check("a run is hidden", len(curve(browser, "Gradient norm")) == n - 1)
    browser.evaluate("document.querySelector('#runs .chip').click()")
    check("and shown", len(curve(browser, "Gradient norm")) == n)
    browser.evaluate("[...document.querySelectorAll('figure .chip')].find((c) => c.textContent === 'held-out').click()")
    check("a legend hides what it names", len(curve(browser, "Loss")) == len(runs))
    browser.evaluate("[...document.querySelectorAll('figure .chip')].find((c) => c.textContent === 'held-out').click()")
    x0, y = place_of(browser, "Gradient norm", 0, 3)
    x1, _ = place_of(browser, "Gradient norm", 0, 8)
    browser.mouse("mouseMoved", x0, y)
    browser.mouse("mousePressed", x0, y, button="left", buttons=1, clickCount=1)
    browser.mouse("mouseMoved", x1, y, button="left", buttons=1)
    browser.mouse("mouseReleased", x1, y, button="left", clickCount=1)
    extent = browser.evaluate(f"(() => {{ const x = ({CHART})('Loss').scales.x; return [x.min, x.max]; }})()")
    check("a drag zooms all curves", abs(extent[0] - 4) < 0.2 and abs(extent[1] - 9) < 0.2, extent)
    browser.evaluate(f"({CHART})('Loss').canvas.dispatchEvent(new MouseEvent('dblclick'))")
    extent = browser.evaluate(f"(() => {{ const x = ({CHART})('Loss').scales.x; return [x.min, x.max]; }})()")
    check("a double click shows all", extent == [1, 12], extent)
    browser.evaluate("const s = document.getElementById('smoothing'); s.value = '0.05'; s.dispatchEvent(new Event('change'))")
    check("smoothing draws a line more each", len(curve(browser, "Gradient norm")) == 2 * n)
    browser.evaluate("const t = document.getElementById('smoothing'); t.value = '0'; t.dispatchEvent(new Event('change'))")
    rows = browser.evaluate("document.querySelectorAll('#job tbody tr').length")
    browser.evaluate("document.querySelector('#job input[type=checkbox]').click()")
    check("all keys of the jobs", browser.evaluate("document.querySelectorAll('#job tbody tr').length") > rows > 0)
    browser.evaluate("const j = document.querySelector('#job input[type=search]'); j.value = 'optimizer.lr'; j.dispatchEvent(new Event('input'))")
    check("searched", browser.evaluate("[...document.querySelectorAll('#job tbody td.key')].map((k) => k.textContent)")[:1] == ["optimizer.lr"])


def main():
    page, runs = os.path.abspath(sys.argv[1]), sys.argv[2:]
    pictures = os.environ.get("PICTURES")
    with Browser() as browser:
        for width in WIDTHS:
            for dark in (False, True):
                name = f"{width} pixels, {'dark' if dark else 'light'}"
                browser.open(f"file://{page}", width=width, dark=dark)
                check(f"{name}: no wider than the window", browser.evaluate("document.documentElement.scrollWidth") <= width)
                back = browser.evaluate("getComputedStyle(document.body).backgroundColor")
                check(f"{name}: its background", (sum(map(int, back[4:-1].split(","))) < 200) == dark, back)
                sections = browser.evaluate("[...document.querySelectorAll('section')].map((s) => s.id)")
                check(f"{name}: all sections", sections == ["overview", "training", "time", "timeline", "memory", "router", "scores", "events", "job"], sections)
                empty = browser.evaluate("report.charts.filter((c) => !c.width || !c.height || !c.data.datasets.length).length")
                check(f"{name}: all charts have a size and data", empty == 0, empty)
                if pictures:
                    browser.screenshot(f"{pictures}/report-{width}-{'dark' if dark else 'light'}.png")
        browser.open(f"file://{page}")
        check_curves(browser, runs)
        check_axes(browser, runs)
        check_hover(browser, runs)
        check_controls(browser, runs)
        pdf = browser.pdf()
        check("printed", pdf.startswith(b"%PDF") and len(pdf) > 20000, len(pdf))
        check("nothing but the file is loaded", set(browser.requests) == {f"file://{page}"}, browser.requests)
        check("no error in the console", not browser.errors, browser.errors)
    sys.exit(wrong > 0)


main()
