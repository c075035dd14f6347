// step.js - one step: what its time goes into, by part and by op, as lanes; what memory goes into; experts' load
const PART_NAMES = { "memory bound": "memory-bound ops", stages: "bubble", copies: "offload stall", issue: "host's issue", overlap: "slowed by overlap" };
const partName = (part) => PART_NAMES[part] || part;

function barOptions(text, labels, extra) {
  return {
    animation: false, indexAxis: "y", responsive: true, maintainAspectRatio: false,
    interaction: { mode: "nearest", axis: "xy", intersect: true },
    scales: {
      x: scaleOptions({ stacked: true, beginAtZero: true, ticks: { callback: (v) => text(v), maxTicksLimit: 7 }, ...(extra && extra.x) }),
      y: scaleOptions({ stacked: true, grid: { display: false }, ticks: { color: css("--ink"), autoSkip: false }, ...(extra && extra.y) }),
    },
    plugins: { legend: { display: false }, tooltip: { ...tooltipOptions({
      title: (items) => (items.length ? labels[items[0].dataIndex] : ""),
      label: (item) => ` ${item.dataset.label}  ${item.dataset.said ? item.dataset.said[item.dataIndex] : text(item.raw)}`,
    }), mode: "nearest", intersect: true } },
  };
}

function barHeight(plot, rows, each) {
  plot.style.height = `${Math.max(90, rows * (each || 26) + 34)}px`;
}

// A step of the axis of bytes of which all labels are short.
function bytesStep(most) {
  let unit = 1;
  while (unit * 1024 <= most) unit *= 1024;
  return [1, 2, 4, 8, 16, 32, 64, 128, 256].map((n) => (n * unit) / 2).find((step) => most / step <= 7) || unit;
}

// Labels that fit 400 px.
function shortLabel(text) {
  const most = window.innerWidth < 640 ? 16 : 40;
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// Stacked bars: rows have a label, a run and the amounts of parts.
function addStacked(grid, title, unit, rowsOf, partsOf, colour, text, name) {
  const made = figure(title, unit, true), hidden = {};
  grid.append(made.figure);
  const chart = addChart(made.canvas, () => {
    const rows = rowsOf().filter((row) => row.run.shown), parts = partsOf(rows);
    const options = barOptions(text, rows.map((row) => row.label));
    barHeight(made.plot, rows.length);
    if (text === bytesText) options.scales.x.ticks.stepSize = bytesStep(Math.max(1, ...rows.map((row) => row.total)));
    return {
      type: "bar",
      data: {
        labels: rows.map((row) => (window.innerWidth < 640 && row.short ? row.short : shortLabel(row.label))),
        datasets: parts.map((part, i) => ({
          label: name(part), part, data: rows.map((row) => row.amounts[part] || 0), backgroundColor: colour(part, i), hidden: hidden[part],
          barPercentage: 0.82, categoryPercentage: 0.9, borderColor: css("--panel"), borderWidth: { right: 1 },
          said: rows.map((row) => `${text(row.amounts[part] || 0)}  (${percentText((row.amounts[part] || 0) / row.total)})`),
        })),
      },
      options,
    };
  });
  partsOf(rowsOf()).forEach((part, i) => made.legend.append(chip(name(part), () => colour(part, i), true, (shown) => {
    hidden[part] = !shown;
    chart.rebuild();
  })));
  return made;
}

// ---- where the time goes ----

const ROWS_A_RUN = 16;

// Of each stage and kind the first rank, as far as there are few.
function traceRows(run) {
  const ranks = (run.trace && run.trace.ranks) || [], seen = new Set();
  const rows = [];
  for (const rank of ranks) {
    const key = ranks.length > ROWS_A_RUN ? `${rank.kind} ${rank.step} ${rank.stage}` : `${rank.kind} ${rank.step} ${rank.rank}`;
    if (seen.has(key) || rows.length >= ROWS_A_RUN) continue;
    seen.add(key);
    const amounts = { ...rank.ns, idle: rank.idle_ns };
    rows.push({
      run, amounts, rank, total: Object.values(amounts).reduce((a, b) => a + b, 0),
      short: `${runs.length > 1 ? `${run.name} ` : ""}r${rank.rank} ${rank.kind.slice(0, 4)}.`,
      label: `${runs.length > 1 ? `${run.name} · ` : ""}rank ${rank.rank}${rank.step ? ` · step ${rank.step}` : ""} · ${rank.kind}`,
    });
  }
  return rows.sort((a, b) => a.rank.rank - b.rank.rank || a.rank.step - b.rank.step || (a.rank.kind < b.rank.kind ? -1 : 1));
}

// Without a trace: what nothing hid, of the mean step.
function exposedRow(run) {
  if (!run.exposed_s || !run.summary.step_s) return [];
  const amounts = {};
  let sum = 0;
  for (const [kind, seconds] of Object.entries(run.exposed_s)) {
    amounts[kind] = seconds * 1e9;
    sum += seconds * 1e9;
  }
  amounts["all else"] = Math.max(0, run.summary.step_s * 1e9 - sum);
  return [{ run, amounts, total: sum + amounts["all else"], short: runs.length > 1 ? run.name : "rank 0", label: `${runs.length > 1 ? `${run.name} · ` : ""}rank 0 · mean of all steps` }];
}

function usedParts(rows) {
  const used = [];
  for (const row of rows)
    for (const [part, amount] of Object.entries(row.amounts))
      if (amount > 0 && !used.includes(part)) used.push(part);
  const order = Object.keys(PART_COLOURS), rank = (part) => (order.indexOf(part) < 0 ? order.length : order.indexOf(part));
  return used.sort((a, b) => rank(a) - rank(b));
}

const COLLECTIVE_COLOURS = ["#e8590c", "#f08c3a", "#d9a406", "#a87b0a", "#c9711a", "#d6336c", "#8a63d2", "#2f9e44"];

function addKinds(grid) {
  const rows = [];
  for (const run of runs)
    for (const kind of (run.kinds || []).slice(0, 14)) rows.push({ run, kind });
  if (!rows.length) return;
  const made = figure("Time of ops by kind", "ms a step on the compute stream, mean of ranks; measured in traced steps, else in all steps of ranks on CPUs", true), shown = { measured: true, predicted: true };
  grid.append(made.figure);
  const chart = addChart(made.canvas, () => {
    const visible = rows.filter((row) => row.run.shown), ops = [...new Set(visible.map((row) => row.kind.op))].slice(0, 18);
    const shownRuns = runs.filter((run) => run.shown && run.kinds);
    const datasets = [];
    for (const run of shownRuns)
      for (const which of ["measured", "predicted"]) {
        const values = ops.map((op) => ((run.kinds.find((k) => k.op === op) || {})[`${which}_ns`]) ?? null);
        if (!shown[which] || values.every((v) => v === null)) continue;
        datasets.push({
          label: `${runs.length > 1 ? `${run.name} ` : ""}${which}`, data: values, borderColor: runColour(run), borderWidth: 1,
          backgroundColor: which === "measured" ? runColour(run) : faded(runColour(run), 0.25), barPercentage: 0.9, categoryPercentage: 0.78,
        });
      }
    barHeight(made.plot, ops.length, Math.max(20, 9 * datasets.length));
    const options = barOptions(msText, ops);
    options.scales.x.stacked = options.scales.y.stacked = false;
    options.plugins.tooltip.callbacks.title = (items) => (items.length ? ops[items[0].dataIndex] : "");
    return { type: "bar", data: { labels: ops, datasets }, options };
  });
  for (const which of ["measured", "predicted"])
    if (rows.some((row) => row.kind[`${which}_ns`] !== undefined))
      made.legend.append(chip(which, () => (which === "measured" ? css("--soft") : faded(css("--soft"), 0.35)), true, (on) => {
        shown[which] = on;
        chart.rebuild();
      }));
}

function pathText(run) {
  return ((run.trace && run.trace.critical_paths) || []).map((path) => {
    const parts = Object.entries(path.ns).filter(([, ns]) => ns * 100 > path.step_ns).sort((a, b) => b[1] - a[1])
      .map(([part, ns]) => `${partName(part)} ${msText(ns)}`);
    return `${runs.length > 1 ? `${run.name}, ` : ""}${path.kind}${path.step ? ` step ${path.step}` : ""}, ${msText(path.step_ns)}: ${parts.join(", ")}`;
  });
}

function addTimeSection(page) {
  const grid = element("div", { class: "grid" }), traced = runs.flatMap(traceRows), exposed = runs.flatMap(exposedRow);
  const measured = traced.some((row) => row.rank.kind === "measured");
  if (!traced.length && !exposed.length && !runs.some((run) => run.kinds)) return;
  const section = element("section", { id: "time" }, element("h2", {}, "Where a step's time goes"), grid);
  page.append(section);
  if (traced.length)
    addStacked(grid, "Parts of a step", measured ? "of traced steps" : "predicted; trace.steps in the job measures some",
      () => runs.flatMap(traceRows), usedParts, partColour, msText, partName);
  if (exposed.length)
    addStacked(grid, "Exposed communication", "of a step, by collective, from metrics.jsonl", () => runs.flatMap(exposedRow),
      (rows) => usedParts(rows).sort((a, b) => (a === "all else") - (b === "all else")),
      (part, i) => (part === "all else" ? faded(partColour("products"), 0.35) : COLLECTIVE_COLOURS[i % COLLECTIVE_COLOURS.length]), msText, (part) => part);
  addKinds(grid);
  const paths = runs.flatMap(pathText);
  if (paths.length)
    section.append(element("details", {}, element("summary", {}, "Critical paths: what each step waits for in the end"),
      paths.map((text) => element("p", { class: "note" }, text))));
  const rows = runs.flatMap((run) => ((run.trace && run.trace.ops) || []).map((op) => ({ run, op })));
  if (rows.length) section.append(differenceTable(rows));
}

function differenceTable(rows) {
  return element("details", {}, element("summary", {}, "Ops whose measured time differs most from the predicted"),
    element("div", { class: "scroll tall" }, element("table", {},
      element("thead", {}, element("tr", {}, [...(runs.length > 1 ? ["run"] : []), "op", "layer", "of", "stage", "runs", "predicted", "measured", "difference"].map((t) => element("th", {}, t)))),
      element("tbody", {}, rows.map(({ run, op }) => element("tr", {}, [
        ...(runs.length > 1 ? [run.name] : []), op.name, op.layer < 0 ? "" : String(op.layer), op.function, String(op.stage), String(op.runs),
        msText(op.predicted_ns), msText(op.measured_ns), msText(op.measured_ns - op.predicted_ns),
      ].map((t) => element("td", {}, t))))))));
}

// ---- lanes ----

function laneGroups(run) {
  const groups = new Map();
  for (const lane of (run.timeline && run.timeline.lanes) || []) {
    const key = `${lane.kind}${lane.step ? `, step ${lane.step}` : ""}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(lane);
  }
  return groups;
}

// All lanes of a run on one axis of time.
function addLanes(grid, run) {
  const groups = laneGroups(run), timeline = run.timeline, hidden = {};
  const made = figure(`Timeline of ${runs.length > 1 ? run.name : "a step"}`,
    timeline.joined_ns ? `neighbours shorter than ${msText(timeline.joined_ns)} are joined` : "every op", true);
  const labels = [], bars = new Map();
  for (const [key, lanes] of groups)
    for (const lane of lanes) {
      const row = `${lane.kind[0]} ${groups.size > 2 ? key.replace(/^\w+, /, "") + " " : ""}rank ${lane.rank} ${lane.stream}`;
      labels.push(row);
      for (const [begin, ns, part, kind, layer, n] of lane.slices) {
        const name = timeline.classes[part];
        if (!bars.has(name)) bars.set(name, []);
        bars.get(name).push({ x: [begin, begin + ns], y: row, lane, op: kind < 0 ? "waiting" : timeline.ops[kind], layer, n });
      }
    }
  const extent = Math.max(...[...bars.values()].flat().map((bar) => bar.x[1]));
  let zoom = null;
  grid.append(made.figure);
  barHeight(made.plot, labels.length, 17);
  const chart = addChart(made.canvas, () => {
    const options = barOptions(msText, labels);
    options.parsing = true;
    options.scales.x = scaleOptions({ type: "linear", min: zoom ? zoom.min : 0, max: zoom ? zoom.max : extent, ticks: { callback: (v) => msText(v), maxTicksLimit: 8 } });
    options.scales.y = scaleOptions({ type: "category", labels, grid: { display: false }, ticks: { color: css("--ink"), autoSkip: false, font: fonts(10), padding: 4,
      callback: (v) => (window.innerWidth < 640 ? labels[v].slice(0, 18) : labels[v]) } });
    options.isLanes = true;
    options.plugins.tooltip.callbacks = {
      title: (items) => (items.length ? `${items[0].raw.lane.kind} · rank ${items[0].raw.lane.rank} · ${items[0].raw.lane.stream}` : ""),
      label: (item) => {
        const bar = item.raw;
        return ` ${bar.op}${bar.layer >= 0 ? ` L${bar.layer}` : ""}${bar.n > 1 ? ` and ${bar.n - 1} more` : ""}, ${item.dataset.label}: ${msText(bar.x[1] - bar.x[0])} at ${msText(bar.x[0])}`;
      },
    };
    return {
      type: "bar",
      data: { datasets: [...bars].map(([part, slices]) => ({
        label: partName(part), data: slices, hidden: hidden[part], backgroundColor: partColour(part), grouped: false,
        barPercentage: 0.86, categoryPercentage: 1, borderWidth: 0, minBarLength: 1, borderSkipped: false,
      })) },
      options,
    };
  });
  for (const part of bars.keys())
    made.legend.append(chip(partName(part), () => partColour(part), true, (shown) => {
      hidden[part] = !shown;
      chart.rebuild();
    }));
  enableZoom(chart, (to) => { zoom = to; chart.rebuild(); });
}

function addLaneSection(page) {
  const traced = runs.filter((run) => run.timeline && run.timeline.lanes.length);
  if (!traced.length) return;
  const grid = element("div", { class: "grid" });
  page.append(element("section", { id: "timeline" }, element("h2", {}, "Timeline",
    element("small", {}, "m: measured, p: predicted; drag to look closer, double-click for all; lmtrain report RUN --trace FILE has every op, for Perfetto")), grid));
  for (const run of traced) addLanes(grid, run);
}

// ---- memory ----

function memoryRows(run) {
  return (run.memory || []).map((stage) => {
    const amounts = {};
    for (const s of stage.segments) if (s.space !== "file") amounts[s.segment] = s.bytes;
    return {
      run, amounts, total: Object.values(amounts).reduce((a, b) => a + b, 0),
      label: `${runs.length > 1 ? `${run.name} · ` : ""}${run.memory.length > 1 ? `stage ${stage.stage}` : "each rank"}`,
    };
  });
}

// What processes took at most, by the system: with the program, its libraries and data beside what is planned.
function measuredMemory() {
  const measured = runs.filter((run) => run.measured_memory);
  if (!measured.length) return null;
  const planned = (run, isHost) => Math.max(...(run.memory || []).map((stage) => stage.segments
    .filter((s) => s.space !== "file" && (s.space !== "device") === isHost).reduce((sum, s) => sum + s.bytes, 0)));
  const text = (bytes) => (Number.isFinite(bytes) ? bytesText(bytes) : "–");
  const memoryRow = (run) => {
    const peaks = run.measured_memory.ranks.map((r) => r.peak_bytes), most = run.measured_memory.ranks.find((r) => r.peak_bytes === Math.max(...peaks));
    return element("tr", {}, runCell(run), element("td", {}, text(planned(run, false))), element("td", {}, text(planned(run, true))),
      element("td", {}, countText(peaks.length)), element("td", {}, text(Math.min(...peaks))), element("td", {}, text(most && most.peak_bytes)),
      element("td", { class: "left" }, most ? `rank ${most.rank}${most.host ? ` on ${most.host}` : ""}` : "–"), element("td", {}, text(number(run.measured_memory.gpu_bytes))));
  };
  return element("div", { id: "measured-memory" }, element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ["run", "planned on the device", "planned on the host", "ranks measured", "least peak", "largest peak"].map((name) => element("th", {}, name)),
      element("th", { class: "left" }, "of"), element("th", {}, "GPU in use, rank 0"))),
    element("tbody", {}, measured.map(memoryRow)))),
  element("p", { class: "note" }, "Peaks are of processes in the host's memory (VmHWM): on a CPU that of the device, with the program, libraries and data beside what is planned. A GPU's is all that is in use on it."));
}

function addMemorySection(page) {
  const rows = runs.flatMap(memoryRows), failed = runs.filter((run) => run.plan_error), measured = measuredMemory();
  if (!rows.length && !failed.length && !measured) return;
  const grid = element("div", { class: "grid" }), section = element("section", { id: "memory" },
    element("h2", {}, "Memory", element("small", {}, "of a rank, as planned: allocated at the start, and nothing later")),
    failed.map((run) => element("p", { class: "note bad" }, `${run.name} ${run.memory ? "has no predicted times" : "cannot be planned"}: ${run.plan_error}`)), grid);
  page.append(section);
  if (measured) section.append(measured);
  if (!rows.length) return;
  const segments = [];
  for (const row of rows) for (const part of Object.keys(row.amounts)) if (!segments.includes(part)) segments.push(part);
  addStacked(grid, "Segments by pipeline stage", "", () => runs.flatMap(memoryRows), (some) => segments.filter((s) => some.some((row) => row.amounts[s] > 0)),
    (part) => segmentColour(segments.indexOf(part)), bytesText, (part) => part);
  const what = {};
  for (const run of runs) for (const stage of run.memory || []) for (const s of stage.segments) what[s.segment] = s.what;
  section.append(element("details", {}, element("summary", {}, "Bytes of each segment"), element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, element("th", {}, "segment"), rows.map((row) => element("th", {}, row.label)), element("th", { class: "left" }, "what"))),
    element("tbody", {}, segments.map((s) => element("tr", {}, element("td", {}, s),
      rows.map((row) => element("td", {}, row.amounts[s] === undefined ? "" : bytesText(row.amounts[s]))), element("td", { class: "text" }, what[s]))),
    element("tr", {}, element("td", {}, element("b", {}, "total")), rows.map((row) => element("td", {}, element("b", {}, bytesText(row.total)))), element("td")))))));
}

// ---- experts ----

// Equal share: no colour; more: orange; less: blue.
function loadColour(load, most) {
  const share = Math.min(1, load >= 1 ? (load - 1) / Math.max(0.5, most - 1) : 1 - load);
  return load >= 1 ? `rgba(232, 89, 12, ${(0.06 + 0.94 * share).toFixed(3)})` : `rgba(37, 99, 201, ${(0.06 + 0.94 * share).toFixed(3)})`;
}

function addRouterSection(page) {
  const routed = runs.filter((run) => run.experts);
  if (!routed.length) return;
  const grid = element("div", { class: "grid" });
  page.append(element("section", { id: "router" }, element("h2", {}, "Router load", element("small", {}, "of each expert in the last step that is logged; 1 is an equal share")), grid));
  for (const run of routed) {
    const most = Math.max(1.5, ...run.experts.flatMap((layer) => layer.load));
    const heat = element("div", { class: "heat" });
    for (const layer of run.experts)
      heat.append(element("span", {}, `layer ${layer.layer}`), element("div", { class: "cells" }, layer.load.map((load, expert) =>
        element("i", { style: `--c:${loadColour(load, most)}`, title: `layer ${layer.layer}, expert ${expert}: ${numberText(load, 3)}` }))));
    grid.append(element("figure", {}, element("figcaption", {}, element("b", {}, run.name),
      element("span", { class: "scale" }, "0", element("i", { style: `background:linear-gradient(90deg,${loadColour(0, most)},${loadColour(0.5, most)},${loadColour(1, most)},${loadColour((1 + most) / 2, most)},${loadColour(most, most)})` }), numberText(most, 3))), heat));
  }
}
