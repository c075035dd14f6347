"""sweep_page.py PAGE - the parallel coordinates and the table of a sweep of three trials, in headless Chromium"""
import os
import sys

from browser import Browser

wrong = 0


def check(name, is_right, why):
    global wrong
    wrong += not is_right
    print(f"{'ok' if is_right else 'not ok'} {name}{'' if is_right else f': {why}'}")


def main():
    with Browser() as browser:
        for width in (1280, 400):
            browser.open(f"file://{os.path.abspath(sys.argv[1])}", width=width)
            check(f"{width} pixels: no wider than the window", browser.evaluate("document.documentElement.scrollWidth") <= width, "it is")
        lines = browser.evaluate("""report.charts.find((c) => c.options.coordinates).data.datasets.map(
            (d) => [d.trial.trial, ...d.data])""")
        check("a line for each trial with a value, the best last", lines == [[0, lines[0][1], 0, 1], [1, 0, 1, 0]], lines)
        rows = browser.evaluate("[...document.querySelectorAll('.sweep tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")
        check("a row for each trial, the best first", [row[:2] for row in rows] == [["1", "finished"], ["0", "paused"], ["2", "failed"]] and
              rows[2][-1] == "the loss is not finite", rows)
        check("the runs of its trials", browser.evaluate("report.runs.map((run) => run.name)") == ["trial-001", "trial-000"], "other runs")
        check("no error in the console", not browser.errors, browser.errors)
    sys.exit(wrong > 0)


main()
