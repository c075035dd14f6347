// curves.js - what is measured at steps, over steps, tokens or time
const CURVES = [
  // column, title, unit, how a value is written, log at first
  { name: "lr", title: "Learning rate", text: (v) => numberText(v, 4), zero: true },
  { name: "grad_norm", title: "Gradient norm", text: numberText, zero: true, canLog: true },
  { name: "tokens_per_s", title: "Speed", unit: "tokens/s", text: countText, zero: true },
  { name: "mfu", title: "MFU", unit: "of the peak", text: percentText, zero: true },
  { name: "step_s", title: "Time of a step", text: secondsText, zero: true },
  { name: "exposed_s", title: "Exposed communication", unit: "of a step, rank 0", text: secondsText, zero: true },
  { name: "loss_scale", title: "Loss scale", text: countText, canLog: true, stepped: true },
  { name: "skipped", title: "Skipped steps", unit: "so far", text: countText, zero: true, stepped: true, onlyPositive: true },
  { name: "balance", title: "Router balance", unit: "1 is even", text: numberText },
  { name: "most_used", title: "Most used expert", unit: "load; 1 is an equal share", text: numberText },
  { name: "least_used", title: "Least used expert", unit: "load; 1 is an equal share", text: numberText, zero: true },
  { name: "dropped", title: "Dropped choices of experts", text: countText, zero: true, onlyPositive: true },
  { name: "reruns", title: "Steps run again", unit: "so far, for want of memory", text: countText, zero: true, stepped: true, onlyPositive: true },
  { name: "z_loss", title: "z-loss", text: numberText },
  { name: "compress_error", title: "Compression error", unit: "relative", text: numberText },
  { name: "gpu_memory_bytes", title: "GPU memory in use", unit: "rank 0's", text: bytesText, zero: true },
  { name: "gpu_sm_mhz", title: "GPU clock", unit: "MHz, rank 0's", text: countText },
  { name: "gpu_power_w", title: "GPU power", unit: "W, rank 0's", text: countText },
  { name: "gpu_temperature_c", title: "GPU temperature", unit: "°C, rank 0's", text: countText },
];
// Columns that are axes, or parts of other charts.
const NOT_CURVES = ["step", "tokens", "time", "elapsed_s", "useful_s", "loss", "loss_mean", "memory_bytes", "exposed_max_s"];

function hasValues(name, onlyPositive) {
  return runs.some((run) => (run.steps.columns[name] || []).some((v) => v !== null && (!onlyPositive || v > 0)));
}

function line(run, label, points, more) {
  const few = points.length <= 60;
  return {
    label, data: points, run, borderColor: runColour(run), backgroundColor: runColour(run), borderWidth: 1.6,
    borderDash: runDash(run), pointRadius: few ? 2 : 0, pointHoverRadius: 4, pointHitRadius: 0, tension: 0, order: 2, spanGaps: false, ...more,
  };
}

// A smoothed line over the points themselves, which are faint then.
function linesOf(run, label, points, more) {
  if (!state.smoothing || points.length < 8) return [line(run, label, points, more)];
  return [
    line(run, `${label} (each)`, points, { ...more, borderColor: faded(runColour(run), 0.22), borderWidth: 1, pointRadius: 0, isGuide: true, order: 3 }),
    line(run, label, smooth(points, state.smoothing), { ...more, isSmoothed: true }),
  ];
}

function xScale() {
  const extent = state.zoom || axisExtent();
  return scaleOptions({
    type: "linear", min: extent.min, max: extent.max, grid: { display: false },
    ticks: { callback: (v) => (state.axis === "time" ? secondsText(v) : countText(v)), maxTicksLimit: 8, includeBounds: false },
  });
}

// The events at the pointer, under the values.
function eventsAt(items) {
  if (!items.length) return [];
  const chart = items[0].chart, x = items[0].element.x;
  return marksOf(chart).filter((m) => Math.abs(m.x - x) < 7).slice(0, 4)
    .map((m) => `${eventName(m.event.event)} at step ${m.event.step}: ${m.event.text}`.slice(0, 110));
}

function curveOptions(text, isLog, fromZero, isWide) {
  return {
    animation: false, parsing: false, normalized: true, responsive: true, maintainAspectRatio: false, isCurve: true, isWide,
    interaction: { mode: "nearestX", intersect: false },
    scales: {
      x: xScale(),
      y: scaleOptions({
        type: isLog ? "logarithmic" : "linear", beginAtZero: !!fromZero, grace: isLog || fromZero ? 0 : "4%",
        afterFit: (scale) => { scale.width = Math.max(scale.width, 52); },
        ticks: { callback: (v) => (isLog && !/^[125]/.test(v.toExponential()) ? null : text(v)), maxTicksLimit: 6 },
      }),
    },
    plugins: {
      legend: { display: false },
      tooltip: tooltipOptions({
        title: (items) => (items.length ? `${state.axis} ${axisText(items[0].parsed.x, state.axis)}` : ""),
        label: (item) => ` ${item.dataset.label}  ${text(item.parsed.y)}${item.dataset.isSmoothed ? "  (smoothed)" : ""}`,
        footer: eventsAt,
      }),
    },
  };
}

function zoomCurves(zoom) {
  state.zoom = zoom;
  refreshCurves();
}

function refreshCurves() {
  for (const chart of charts.filter((c) => c.options.isCurve)) chart.rebuild();
}

// A chart of curves; datasets() gives its lines.
function addCurves(grid, title, unit, isWide, settings, datasets) {
  const made = figure(title, unit, isWide);
  let isLog = false;
  grid.append(made.figure);
  const chart = addChart(made.canvas, () => ({
    type: "line", data: { datasets: datasets() }, options: curveOptions(settings.text, isLog, settings.zero, isWide),
  }));
  if (settings.canLog) {
    const button = element("button", { class: "tool", type: "button", "aria-pressed": "false" }, "log");
    button.addEventListener("click", () => {
      isLog = !isLog;
      button.setAttribute("aria-pressed", String(isLog));
      chart.rebuild();
    });
    made.tools.append(button);
  }
  enableZoom(chart, zoomCurves);
  return { ...made, chart };
}

// ---- losses ----

const setsOf = () => [...new Set(runs.flatMap((run) => run.evaluations.map((set) => set.set || "")))];
const setName = (set) => (set ? `held-out ${set}` : "held-out");
const SET_DASHES = [[6, 3], [2, 2], [10, 3, 2, 3], [1, 3]];

function lossName(run) {
  return run.steps.columns.loss_mean ? "loss_mean" : "loss";
}

function addLoss(grid) {
  const parts = { training: true }, sets = setsOf();
  for (const set of sets) parts[setName(set)] = true;
  const label = (run, part) => (runs.length > 1 ? `${run.name} ${part}` : part);
  const made = addCurves(grid, "Loss", "nats/token", true, { text: (v) => numberText(v, 5), canLog: true }, () => {
    const lines = [];
    for (const run of runs.filter((r) => r.shown)) {
      if (parts.training)
        lines.push(...linesOf(run, label(run, "training"), stepSeries(run, lossName(run)),
          sets.length && !state.smoothing ? { borderColor: faded(runColour(run), 0.6), borderWidth: 1.2 } : {}));
      for (const set of run.evaluations) {
        const part = setName(set.set || "");
        if (parts[part])
          lines.push(line(run, label(run, part), evalSeries(run, set), {
            borderDash: SET_DASHES[sets.indexOf(set.set || "") % SET_DASHES.length],
            pointRadius: set.columns.step.length <= 60 ? 3 : 0, pointBorderColor: css("--panel"), pointBorderWidth: 1, borderWidth: 2.2, order: 1,
          }));
      }
    }
    return lines;
  });
  for (const part of Object.keys(parts))
    made.legend.append(chip(part, () => css("--soft"), true, (shown) => {
      parts[part] = shown;
      made.chart.rebuild();
    }, part === "training" ? "solid" : sets.length > 1 && part === setName(sets[1]) ? "dash dots" : "dash"));
}

function addCurveSection(page) {
  const grid = element("div", { class: "grid" });
  const thinned = runs.filter((run) => run.steps.columns.step && run.steps.lines > run.steps.columns.step.length);
  page.append(element("section", { id: "training" }, element("h2", {}, "Training",
    element("small", {}, "drag over a chart to look closer, double-click for all of it")), markLegend(),
    thinned.length ? element("p", { class: "note" }, thinned.map((run) =>
      `${run.name}: ${run.steps.columns.step.length} of ${run.steps.lines} lines are drawn, with the lowest and the highest value of every range.`).join(" ")) : null,
    grid));
  addLoss(grid);
  const known = CURVES.filter((c) => hasValues(c.name, c.onlyPositive));
  const others = [...new Set(runs.flatMap((run) => Object.keys(run.steps.columns)))]
    .filter((name) => !NOT_CURVES.includes(name) && !CURVES.some((c) => c.name === name) && hasValues(name))
    .map((name) => ({ name, title: name, text: numberText }));
  for (const curve of [...known, ...others])
    addCurves(grid, curve.title, curve.unit, false, curve, () => runs.filter((r) => r.shown).flatMap((run) =>
      linesOf(run, run.name, stepSeries(run, curve.name), curve.stepped ? { stepped: true } : {})));
}

// ---- which events are marked ----

function markLegend() {
  const counts = {};
  for (const run of runs)
    for (const event of run.events)
      if (!(event.event === "started" && isFirstStart(run, event))) counts[event.event] = (counts[event.event] || 0) + 1;
  const kinds = Object.keys(counts).sort();
  if (!kinds.length) return null;
  const row = element("div", { class: "filter" }, element("span", { class: "note", style: "margin:0" }, "marks"));
  for (const kind of kinds) {
    state.marks[kind] = eventKind(kind).isMarked;
    row.append(chip(eventName(kind), () => eventKind(kind).colour, state.marks[kind], (shown) => {
      state.marks[kind] = shown;
      for (const chart of charts.filter((c) => c.options.isCurve)) chart.draw();
    }, "", `${counts[kind]} in all`));
  }
  return row;
}
