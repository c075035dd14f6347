// sweep.js - the trials of a sweep: parallel coordinates, and a table
const STATE_COLOURS = { finished: ["#2b8a3e", "#69db7c"], runs: ["#2563c9", "#74a7ff"], failed: ["#c92a2a", "#ff8787"], stopped: ["#b35c00", "#ffb454"] };

function stateColour(name) {
  return (STATE_COLOURS[name] || ["#5c6670", "#a0a9b3"])[isDark() ? 1 : 0];
}

// From the best trial's colour to the worst one's: share 0 to 1.
function goodness(share) {
  const good = isDark() ? [116, 167, 255] : [23, 82, 190], bad = isDark() ? [120, 92, 60] : [240, 190, 140];
  return `rgb(${good.map((g, i) => Math.round(g + (bad[i] - g) * share)).join(",")})`;
}

// Where values of an axis lie, 0 to 1: numbers in proportion, by their logarithms if they span a decade and more; others one after the other.
function coordinate(name, values, text) {
  const known = values.filter((v) => v !== undefined && v !== null);
  if (known.length && known.every((v) => typeof v === "number")) {
    const low = Math.min(...known), high = Math.max(...known), isLog = low > 0 && high / low >= 10;
    const of = (v) => (isLog ? Math.log(v) : v);
    return { name, low: text(low), high: text(high), isLog, place: (v) => (typeof v === "number" ? (high === low ? 0.5 : (of(v) - of(low)) / (of(high) - of(low))) : NaN) };
  }
  const words = [...new Set(known.map(String))].sort();
  return { name, low: words[0] || "", high: words[words.length - 1] || "", words, place: (v) => (v === undefined ? NaN : words.length > 1 ? words.indexOf(String(v)) / (words.length - 1) : 0.5) };
}

function coordinatesOf(sweep) {
  const keys = [...new Set(sweep.trials.flatMap((trial) => Object.keys(trial.settings)))];
  const axes = keys.map((key) => ({ ...coordinate(key, sweep.trials.map((t) => t.settings[key]), (v) => numberText(v, 3)), of: (t) => t.settings[key] }));
  axes.push({ ...coordinate(sweep.metric, sweep.trials.map((t) => t.value), (v) => numberText(v, 4)), of: (t) => t.value });
  return axes;
}

// Trials with a value, the worst first, so that the best are drawn over them.
function rankTrials(sweep) {
  const sign = sweep.goal === "maximize" ? -1 : 1;
  return sweep.trials.filter((t) => Number.isFinite(t.value)).sort((a, b) => (a.rung ?? 0) - (b.rung ?? 0) || sign * (b.value - a.value));
}

const axisEnds = {
  id: "axisEnds",
  afterDraw(chart) {
    const { ctx, chartArea: area, scales } = chart;
    ctx.save();
    ctx.font = `11px ${fonts().family}`;
    chart.options.coordinates.forEach((axis, i) => {
      const x = scales.x.getPixelForValue(i);
      ctx.strokeStyle = css("--line");
      ctx.beginPath();
      ctx.moveTo(x, area.top);
      ctx.lineTo(x, area.bottom);
      ctx.stroke();
      ctx.fillStyle = css("--soft");
      ctx.textAlign = i === 0 ? "left" : i === chart.options.coordinates.length - 1 ? "right" : "center";
      ctx.fillText(axis.high + (axis.isLog && window.innerWidth >= 640 ? " (log)" : ""), x, area.top - 6);
      ctx.fillText(axis.low, x, area.bottom + 13);
    });
    ctx.restore();
  },
};

function addCoordinates(grid, sweep) {
  const axes = coordinatesOf(sweep), ranked = rankTrials(sweep);
  const made = figure("Parallel coordinates", `a line a trial; the bluer, the better by ${sweep.metric}`, true);
  grid.append(made.figure);
  made.canvas.setAttribute("aria-label", "Parallel coordinates");
  const chart = addChart(made.canvas, () => {
    const options = {
      animation: false, responsive: true, maintainAspectRatio: false, coordinates: axes, layout: { padding: { top: 20, left: 4, right: 4 } },
      interaction: { mode: "nearest", axis: "xy", intersect: false },
      scales: {
        x: scaleOptions({ type: "category", labels: axes.map((axis) => axis.name), grid: { display: false }, ticks: { color: css("--ink"), padding: 18, autoSkip: false, maxRotation: window.innerWidth < 640 ? 60 : 0 } }),
        y: { display: false, min: -0.03, max: 1.03 },
      },
      plugins: { legend: { display: false }, tooltip: { ...tooltipOptions({
        title: (items) => (items.length ? `trial ${items[0].dataset.trial.trial}, ${items[0].dataset.trial.state}` : ""),
        label: (item) => axes.map((axis) => ` ${axis.name}  ${settingText(axis.of(item.dataset.trial))}`),
      }), mode: "nearest", intersect: false, filter: (item, index) => index === 0 } },
    };
    const n = ranked.length;
    return { type: "line", options, data: { labels: axes.map((axis) => axis.name), datasets: ranked.map((trial, i) => ({
      label: `trial ${trial.trial}`, trial, data: axes.map((axis) => axis.place(axis.of(trial))), borderColor: goodness(n > 1 ? 1 - i / (n - 1) : 0),
      backgroundColor: goodness(n > 1 ? 1 - i / (n - 1) : 0), borderWidth: trial.trial === sweep.best ? 3 : 1.3, pointRadius: 2, pointHoverRadius: 4, spanGaps: true, order: n - i,
    })) } };
  });
  chart.config.plugins.push(axisEnds);
  chart.update("none");
}

function settingText(value) {
  return value === undefined ? "–" : typeof value === "number" ? numberText(value, 6) : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function trialTable(sweep) {
  const hasTexts = sweep.trials.some((trial) => trial.text);
  const keys = [...new Set(sweep.trials.flatMap((trial) => Object.keys(trial.settings)))];
  const ranked = rankTrials(sweep).reverse(), rows = [...ranked, ...sweep.trials.filter((t) => !ranked.includes(t))];
  return element("div", { class: "scroll tall" }, element("table", {},
    element("thead", {}, element("tr", {}, element("th", {}, "trial"), element("th", { class: "left" }, "state"), element("th", {}, "step"), element("th", {}, sweep.metric),
      keys.map((key) => element("th", {}, key)), hasTexts ? element("th", { class: "left" }, "why it failed") : null)),
    element("tbody", {}, rows.map((trial) => {
      const kind = element("span", { class: "kind" }, trial.state), paint = () => kind.style.setProperty("--c", stateColour(trial.state));
      paint();
      onTheme(paint);
      return element("tr", {}, element("td", { class: trial.trial === sweep.best ? "best" : "" }, String(trial.trial)), element("td", { class: "left" }, kind),
        element("td", {}, trial.step === undefined ? "–" : String(trial.step)), element("td", { class: trial.trial === sweep.best ? "best" : "" }, numberText(trial.value, 5)),
        keys.map((key) => element("td", {}, settingText(trial.settings[key]))), hasTexts ? element("td", { class: "text" }, trial.text || "") : null);
    }))));
}

function addSweeps(page) {
  for (const sweep of data.sweeps || []) {
    const grid = element("div", { class: "grid" }), n = (name) => sweep.trials.filter((t) => t.state === name).length;
    const counts = ["finished", "stopped", "failed", "runs", "paused", "waits"].filter(n).map((name) => `${n(name)} ${{ runs: "running", waits: "waiting" }[name] || name}`).join(", ");
    page.append(element("section", { class: "sweep" }, element("h2", {}, "Sweep", element("small", {}, `${sweep.folder}: ${sweep.trials.length} trials${counts ? `, ${counts}` : ""}${sweep.over ? "; it is over" : ""}`)),
      runs.length < sweep.trials.length ? element("p", { class: "note" }, `Below are the runs of the ${runs.length} best trials that have begun.`) : null, grid, element("div", { style: "height:12px" }), trialTable(sweep)));
    if (rankTrials(sweep).length) addCoordinates(grid, sweep);
  }
}
