// charts.js - what all charts share: figures, legends, hover, marks of events, zoom
const charts = [];

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "style") made.style.cssText = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  for (const child of children.flat())
    if (child !== null && child !== undefined && child !== false) made.append(child);
  return made;
}

// A figure with its title, room for a legend and tools, and a canvas.
function figure(title, unit, isWide) {
  const legend = element("div", { class: "legend" }), tools = element("div", { class: "tools" });
  const canvas = element("canvas", { role: "img", "aria-label": title });
  const plot = element("div", { class: "plot" }, canvas);
  const made = element("figure", { class: isWide ? "wide" : "" },
    element("figcaption", {}, element("b", {}, title, unit ? element("small", {}, unit) : null), legend, tools), plot);
  return { figure: made, legend, tools, plot, canvas };
}

// A legend's entry: a button that shows and hides.
function chip(label, colour, isShown, onToggle, shape, title) {
  const swatch = element("i", { class: shape || "" });
  const button = element("button", { class: "chip", type: "button", "aria-pressed": String(isShown), title },
    swatch, element("span", {}, label));
  const paint = () => button.style.setProperty("--c", typeof colour === "function" ? colour() : colour);
  paint();
  onTheme(paint);
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    onToggle(shown);
  });
  return button;
}

// ---- hover: of each line the point nearest to the pointer ----

Chart.Interaction.modes.nearestX = function (chart, event) {
  const x = Chart.helpers.getRelativePosition(event, chart).x, items = [];
  const area = chart.chartArea;
  if (x < area.left - 4 || x > area.right + 4) return items;
  chart.data.datasets.forEach((dataset, datasetIndex) => {
    if (!chart.isDatasetVisible(datasetIndex) || dataset.isGuide) return;
    const elements = chart.getDatasetMeta(datasetIndex).data;
    let best = -1, distance = Infinity;
    for (let i = 0; i < elements.length; i++) {
      const d = Math.abs(elements[i].x - x);
      if (!elements[i].skip && d < distance) { best = i; distance = d; }
    }
    if (best >= 0 && distance < 60) items.push({ element: elements[best], datasetIndex, index: best });
  });
  return items;
};

// ---- marks: a line for each event, the crosshair, the range that is dragged ----

function marksOf(chart) {
  const marks = [];
  for (const run of runs.filter((r) => r.shown)) {
    for (const event of run.events) {
      if (!state.marks[event.event] || (event.event === "started" && isFirstStart(run, event))) continue;
      const x = chart.scales.x.getPixelForValue(stepPosition(run, event.step));
      if (x >= chart.chartArea.left - 1 && x <= chart.chartArea.right + 1) marks.push({ x, event, run });
    }
  }
  // What matters most is drawn last.
  const weight = (mark) => (eventKind(mark.event.event).isFrequent ? 0 : mark.event.event === "started" ? 1 : 2);
  return marks.sort((a, b) => weight(a) - weight(b));
}

function isFirstStart(run, event) {
  return run.events.find((e) => e.event === "started") === event;
}

const overlay = {
  id: "overlay",
  beforeDatasetsDraw(chart) {
    if (!chart.options.isCurve) return;
    const { ctx, chartArea: area } = chart;
    ctx.save();
    ctx.lineWidth = 1;
    for (const mark of marksOf(chart)) {
      const { colour, isFrequent } = eventKind(mark.event.event);
      ctx.strokeStyle = faded(colour, 0.6);
      ctx.fillStyle = faded(colour, isFrequent ? 0.7 : 1);
      if (chart.options.isWide && !isFrequent) {
        ctx.setLineDash([2, 2]);
        ctx.beginPath();
        ctx.moveTo(Math.round(mark.x) + 0.5, area.top);
        ctx.lineTo(Math.round(mark.x) + 0.5, area.bottom);
        ctx.stroke();
      }
      ctx.beginPath();
      ctx.arc(mark.x, area.top, isFrequent ? 1.8 : 2.8, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  },
  afterDraw(chart) {
    if (!chart.options.isCurve) return;
    const { ctx, chartArea: area } = chart, active = chart.tooltip && chart.tooltip.getActiveElements();
    ctx.save();
    if (active && active.length) {
      ctx.strokeStyle = faded(css("--soft"), 0.5);
      ctx.beginPath();
      ctx.moveTo(Math.round(active[0].element.x) + 0.5, area.top);
      ctx.lineTo(Math.round(active[0].element.x) + 0.5, area.bottom);
      ctx.stroke();
    }
    if (chart.drag && chart.drag.to !== null) {
      ctx.fillStyle = faded(css("--focus"), 0.15);
      ctx.fillRect(Math.min(chart.drag.from, chart.drag.to), area.top, Math.abs(chart.drag.to - chart.drag.from), area.bottom - area.top);
    }
    ctx.restore();
  },
};

// Drag along x to look closer, double-click for all of it. onZoom gets {min, max} or null.
function enableZoom(chart, onZoom) {
  const canvas = chart.canvas, place = (e) => e.clientX - canvas.getBoundingClientRect().left;
  const end = (e) => {
    const drag = chart.drag;
    chart.drag = null;
    if (!drag || drag.to === null || Math.abs(drag.to - drag.from) < 6) return chart.draw();
    const values = [drag.from, drag.to].map((x) => chart.scales.x.getValueForPixel(
      Math.max(chart.chartArea.left, Math.min(chart.chartArea.right, x)))).sort((a, b) => a - b);
    onZoom({ min: values[0], max: values[1] });
    e.preventDefault();
  };
  canvas.addEventListener("pointerdown", (e) => {
    if (e.button === 0 && e.pointerType === "mouse") chart.drag = { from: place(e), to: null };
  });
  canvas.addEventListener("pointermove", (e) => {
    if (chart.drag) { chart.drag.to = place(e); chart.draw(); }
  });
  window.addEventListener("pointerup", end);
  canvas.addEventListener("dblclick", () => onZoom(null));
}

// ---- options ----

function fonts(size) {
  return { family: getComputedStyle(document.body).fontFamily, size: size || 11 };
}

function tooltipOptions(callbacks) {
  return {
    mode: "nearestX", intersect: false, animation: false, caretSize: 0, caretPadding: 10, cornerRadius: 6,
    backgroundColor: css("--panel"), titleColor: css("--soft"), bodyColor: css("--ink"), footerColor: css("--soft"),
    borderColor: css("--line"), borderWidth: 1, padding: 8, titleFont: { ...fonts(), weight: "normal" },
    bodyFont: fonts(12), footerFont: { ...fonts(), weight: "normal" }, boxWidth: 9, boxHeight: 9, boxPadding: 4,
    callbacks,
  };
}

function scaleOptions(extra) {
  const { ticks, grid, ...rest } = extra || {};
  return {
    ...rest,
    grid: { color: css("--line"), borderColor: css("--line"), drawTicks: false, ...grid },
    ticks: { color: css("--soft"), font: fonts(), padding: 6, maxRotation: 0, autoSkipPadding: 16, ...ticks },
  };
}

// A chart whose options are made again whenever light and dark change. make() gives {type, data, options}.
function addChart(canvas, make) {
  const chart = new Chart(canvas, { ...make(), plugins: [overlay] });
  chart.rebuild = () => {
    const made = make();
    chart.data = made.data;
    chart.options = made.options;
    chart.update("none");
  };
  charts.push(chart);
  onTheme(chart.rebuild);
  return chart;
}
