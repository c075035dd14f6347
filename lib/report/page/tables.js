// tables.js - runs at a glance, scores, events, jobs
function runCell(run, place) {
  const dot = element("span", { class: "dot" });
  const paint = () => dot.style.setProperty("--c", runColour(run));
  paint();
  onTheme(paint);
  return element("td", { title: run.folder, class: place || "" }, dot, run.name);
}

// The row with the best value of a column is bold, where there are several.
function bestOf(values, isLow) {
  const finite = values.filter((v) => Number.isFinite(v));
  return finite.length > 1 ? (isLow ? Math.min(...finite) : Math.max(...finite)) : NaN;
}

const number = (v) => (v === null || v === undefined ? NaN : v);

function addOverview(page) {
  const columns = [["ranks", (r) => number(r.summary.ranks) || NaN, countText], ["step", (r) => number(r.summary.step), (v) => (Number.isFinite(v) ? String(v) : "–")],
    ["loss", (r) => number(r.summary.loss), (v) => numberText(v, 5), true]];
  for (const set of setsOf())
    columns.push([`best ${setName(set)}`, (r) => number((r.evaluations.find((s) => (s.set || "") === set) || {}).best_loss), (v) => numberText(v, 5), true]);
  columns.push(["tokens", (r) => number(r.summary.tokens), countText], ["tokens/s", (r) => number(r.summary.tokens_per_s), countText, false],
    ["MFU", (r) => number(r.summary.mfu), percentText, false], ["step time", (r) => number(r.summary.step_s), secondsText, true]);
  if (runs.some((r) => r.predicted)) columns.push(["predicted", (r) => number(r.predicted && r.predicted.step_ns) / 1e9, secondsText]);
  columns.push(["elapsed", (r) => number(r.summary.elapsed_s), secondsText], ["restarts", (r) => number(r.summary.restarts), countText]);
  if (runs.some((r) => r.summary.pauses)) columns.push(["pauses", (r) => number(r.summary.pauses), countText]);
  columns.push(["skipped", (r) => number(r.summary.skipped), countText]);
  const best = columns.map(([, value, , isLow]) => (isLow === undefined ? NaN : bestOf(runs.map(value), isLow)));
  page.append(element("section", { id: "overview" }, element("h2", {}, "Overview", element("small", {}, "speeds are medians of the steps that are logged")),
    element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, element("th", {}, "run"), columns.map(([name]) => element("th", {}, name)))),
      element("tbody", {}, runs.map((run) => element("tr", {}, runCell(run), columns.map(([, value, text], i) =>
        element("td", { class: value(run) === best[i] ? "best" : "" }, text(value(run)))))))))));
}

// ---- scores ----

function addScores(page) {
  const keys = new Map();
  for (const run of runs)
    for (const s of run.scores) keys.set([s.task, s.style, s.shots ?? "", s.metric].join("\u0000"), s);
  if (!keys.size) return;
  const find = (run, key) => run.scores.filter((s) => [s.task, s.style, s.shots ?? "", s.metric].join("\u0000") === key).pop();
  page.append(element("section", { id: "scores" }, element("h2", {}, "Benchmarks", element("small", {}, "that lmtrain eval --output wrote into the run's folder; ± standard error")),
    element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, element("th", {}, "task"), element("th", { class: "left" }, "style"), element("th", {}, "shots"), element("th", { class: "left" }, "metric"),
        element("th", {}, "items"), runs.map((run) => element("th", {}, run.name)))),
      element("tbody", {}, [...keys].map(([key, s]) => {
        const best = bestOf(runs.map((run) => number((find(run, key) || {}).value)), false);
        return element("tr", {}, element("td", {}, s.task), element("td", { class: "left" }, s.style), element("td", {}, s.shots === undefined ? "–" : String(s.shots)),
          element("td", { class: "left" }, s.metric), element("td", {}, countText(s.items)), runs.map((run) => {
            const score = find(run, key);
            return element("td", { class: score && score.value === best ? "best" : "", title: score ? `${score.file}: ${score.model}` : null },
              score ? [numberText(score.value, 4), score.stderr !== null ? element("small", {}, ` ±${numberText(score.stderr, 2)}`) : null] : "–");
          }));
      }))))));
}

// ---- events ----

const EVENT_ROWS = 400;

function addEvents(page) {
  const rows = runs.flatMap((run) => run.events.map((event) => ({ run, event })))
    .sort((a, b) => (a.event.time || 0) - (b.event.time || 0) || a.event.step - b.event.step);
  if (!rows.length) return;
  const leftOut = runs.reduce((sum, run) => sum + (run.events_left_out || 0), 0);
  const body = element("tbody"), search = element("input", { type: "search", placeholder: "search events", "aria-label": "search events" });
  const fill = () => {
    const words = search.value.toLowerCase();
    const matching = rows.filter(({ run, event }) => run.shown && `${run.name} ${event.event} ${event.text}`.toLowerCase().includes(words));
    body.replaceChildren(...matching.slice(-EVENT_ROWS).map(({ run, event }) => {
      const kind = element("span", { class: "kind", style: `--c:${eventKind(event.event).colour}` }, event.event);
      return element("tr", {}, element("td", {}, event.time ? dateText(event.time) : "–"), runs.length > 1 ? runCell(run, "left") : null,
        element("td", {}, String(event.step)), element("td", { class: "left" }, kind), element("td", { class: "text" }, event.text));
    }));
  };
  search.addEventListener("input", fill);
  page.append(element("section", { id: "events" }, element("h2", {}, "Events", element("small", {}, rows.length > EVENT_ROWS || leftOut ? `the last ${Math.min(rows.length, EVENT_ROWS)} of ${rows.length + leftOut}` : `${rows.length} in all`)),
    element("div", { class: "filter" }, search),
    element("div", { class: "scroll tall" }, element("table", {}, element("thead", {}, element("tr", {}, element("th", {}, "time"), runs.length > 1 ? element("th", { class: "left" }, "run") : null,
      element("th", {}, "step"), element("th", { class: "left" }, "event"), element("th", { class: "left" }, "what"))), body))));
  fill();
  onTheme(fill);
  onRuns(fill);
}

// ---- jobs ----

function addJobs(page) {
  const differing = new Set(data.differences.map((d) => d.key));
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.job)))];
  if (!keys.length) return;
  const body = element("tbody"), search = element("input", { type: "search", placeholder: "search keys and values", "aria-label": "search keys and values" });
  const only = element("input", { type: "checkbox" });
  only.checked = runs.length > 1 && differing.size > 0;
  const fill = () => {
    const words = search.value.toLowerCase();
    body.replaceChildren(...keys.filter((key) => (!only.checked || differing.has(key)) &&
      `${key} ${runs.map((run) => run.job[key]).join(" ")}`.toLowerCase().includes(words)).map((key) =>
      element("tr", {}, element("td", { class: "key" }, key), runs.map((run) =>
        element("td", { class: differing.has(key) ? "value differs" : "value" }, run.job[key] ?? "–")))));
  };
  search.addEventListener("input", fill);
  only.addEventListener("change", fill);
  page.append(element("section", { id: "job" }, element("h2", {}, runs.length > 1 ? "Jobs" : "Job", element("small", {}, runs.length > 1 ? `resolved; ${differing.size} of ${keys.length} keys differ` : `resolved; ${keys.length} keys`)),
    element("div", { class: "filter" }, search, runs.length > 1 ? element("label", {}, only, "only what differs") : null),
    element("div", { class: "scroll tall" }, element("table", {}, element("thead", {}, element("tr", {}, element("th", {}, "key"), runs.map((run) => element("th", { class: "left" }, run.name)))), body))));
  fill();
}
