// report.js - the page put together, and its controls
const runCalls = [];

// Calls when runs are shown or hidden.
function onRuns(call) {
  runCalls.push(call);
}

function redrawRuns() {
  for (const chart of charts) chart.rebuild();
  for (const call of runCalls) call();
}

function buildBar() {
  document.title = `lmtrain report: ${[...(data.sweeps || []).map((sweep) => sweep.folder), ...runs.map((run) => run.name)].join(", ")}`;
  const place = document.getElementById("runs");
  for (const run of runs) {
    place.append(chip(run.name, () => runColour(run), true, (shown) => {
      run.shown = shown;
      redrawRuns();
    }, "", run.folder));
  }
  for (const button of document.querySelectorAll("#axis button")) {
    button.disabled = !hasAxis(button.dataset.axis);
    button.setAttribute("aria-pressed", String(button.dataset.axis === state.axis));
    button.addEventListener("click", () => {
      state.axis = button.dataset.axis;
      state.zoom = null;
      for (const other of document.querySelectorAll("#axis button")) other.setAttribute("aria-pressed", String(other === button));
      refreshCurves();
    });
  }
  document.getElementById("smoothing").addEventListener("change", (e) => {
    state.smoothing = Number(e.target.value);
    refreshCurves();
  });
}

function buildFooter() {
  document.getElementById("footer").append(
    element("p", {}, `Made ${dateText(data.made)} by lmtrain ${data.lmtrain}, lmtrain report ${runs.map((run) => run.folder).join(" ")}. Everything is in this file; it loads nothing.`),
    element("p", {}, `Charts: Chart.js ${Chart.version}, MIT licence, © 2014-2022 Chart.js Contributors; its text is at the end of this file.`));
}

// Widths of charts on paper, of A4 and letter: the page is laid out for it only when it is too late to draw.
const PAPER = { wide: 660, narrow: 312 };

// On paper it is light.
function enablePrinting() {
  const set = (printed) => {
    isPrinted = printed;
    document.documentElement.classList.toggle("printed", printed);
    applyTheme();
    for (const chart of charts) {
      const plot = chart.canvas.parentNode;
      if (printed) chart.resize(plot.parentNode.classList.contains("wide") ? PAPER.wide : PAPER.narrow, plot.clientHeight);
      else chart.resize();
    }
  };
  window.addEventListener("beforeprint", () => set(true));
  window.addEventListener("afterprint", () => set(false));
}

function build() {
  const page = document.getElementById("page");
  buildBar();
  addSweeps(page);
  if (runs.length) {
    addOverview(page);
    addCurveSection(page);
  }
  addTimeSection(page);
  addLaneSection(page);
  addMemorySection(page);
  addRouterSection(page);
  addScores(page);
  addEvents(page);
  addJobs(page);
  buildFooter();
  enablePrinting();
}

build();
window.report = { data, runs, charts, state };
