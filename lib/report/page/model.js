// model.js - the data of the page: runs, their series on any of three axes, what is shown
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs.map((run, index) => ({ ...run, index, shown: true }));
const state = { axis: "step", smoothing: 0, zoom: null, marks: {} };

// Seconds since the run began at each row: elapsed_s, or what its steps took.
function secondsOf(columns) {
  return columns.elapsed_s || columns.useful_s || null;
}

// The column that an axis is of, or null where the run does not have it.
function axisColumn(columns, axis) {
  return axis === "step" ? columns.step : axis === "tokens" ? columns.tokens : secondsOf(columns);
}

function hasAxis(axis) {
  return runs.some((run) => axisColumn(run.steps.columns, axis));
}

// A value of column `to` at a value of the ascending column `from`, between rows in proportion.
function interpolate(from, to, at) {
  let low = 0, high = from.length - 1;
  if (high < 0) return NaN;
  if (at <= from[0]) return to[0];
  if (at >= from[high]) return to[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= at) low = middle; else high = middle;
  }
  const share = (at - from[low]) / (from[high] - from[low] || 1);
  return to[low] + share * (to[high] - to[low]);
}

// Where a step is on the present axis.
function stepPosition(run, step) {
  const columns = run.steps.columns, axis = axisColumn(columns, state.axis);
  if (state.axis === "step") return step;
  return axis && columns.step && columns.step.length ? interpolate(columns.step, axis, step) : NaN;
}

// [{x, y}] of a column of the run's steps; a row without a value is a gap.
function stepSeries(run, name) {
  const columns = run.steps.columns, x = axisColumn(columns, state.axis), y = columns[name];
  if (!x || !y) return [];
  return y.map((value, i) => ({ x: x[i] === null ? NaN : x[i], y: value === null ? NaN : value }));
}

// The same of a held-out set.
function evalSeries(run, set) {
  const columns = set.columns, y = columns.eval_loss || [];
  return y.map((value, i) => ({ x: stepPosition(run, columns.step[i]), y: value === null ? NaN : value }))
    .filter((p) => !Number.isNaN(p.x));
}

// An exponential mean whose reach is a share of the axis, so that it does not depend on how many rows are drawn.
function smooth(points, share) {
  const finite = points.filter((p) => Number.isFinite(p.y) && Number.isFinite(p.x));
  if (!share || finite.length < 3) return points;
  const reach = share * (finite[finite.length - 1].x - finite[0].x) || 1;
  let mean = 0, weight = 0, last = finite[0].x;
  return points.map((p) => {
    if (!Number.isFinite(p.y)) return p;
    const keep = Math.exp(-(p.x - last) / reach);
    mean = mean * keep + p.y;
    weight = weight * keep + 1;
    last = p.x;
    return { x: p.x, y: mean / weight };
  });
}

// The extent of the axis over runs that are shown.
function axisExtent() {
  let low = Infinity, high = -Infinity;
  for (const run of runs.filter((r) => r.shown)) {
    for (const x of axisColumn(run.steps.columns, state.axis) || []) {
      if (x === null) continue;
      low = Math.min(low, x);
      high = Math.max(high, x);
    }
  }
  return low <= high ? { min: low === high ? low - 1 : low, max: low === high ? high + 1 : high } : { min: 0, max: 1 };
}

// ---- numbers as text ----

function countText(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return trim(value / size) + unit;
  return trim(value);
}

function trim(value) {
  return String(Number(value.toPrecision(4)));
}

function numberText(value, digits) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(digits ? digits - 1 : 2).replace(/\.?0*e/, "e");
  return String(Number(value.toPrecision(digits || 5)));
}

function bytesText(bytes) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (bytes >= size) return `${trim(bytes / size)} ${unit}`;
  return `${bytes} B`;
}

function secondsText(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${trim(seconds * 1e3)} ms`;
  if (seconds < 120) return `${trim(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function msText(ns) {
  return `${trim(ns / 1e6)} ms`;
}

function percentText(share) {
  return share === null || share === undefined || !Number.isFinite(share) ? "–" : `${trim(Number((100 * share).toFixed(2)))} %`;
}

function axisText(value, axis) {
  if (axis === "time") return secondsText(value);
  return axis === "tokens" ? countText(value) : String(Math.round(value));
}

function dateText(seconds) {
  const d = new Date(seconds * 1000), two = (n) => String(n).padStart(2, "0");
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}
