// theme.js - colours, light and dark; a run has one, a part of a step's time, and a segment of memory
const RUN_COLOURS = {
  light: ["#2563c9", "#d9480f", "#2b8a3e", "#9333b8", "#b8860b", "#0b7285", "#c2255c", "#5f6b76"],
  dark: ["#74a7ff", "#ff9248", "#5fd07a", "#d38cf0", "#f2c14e", "#4ccfe0", "#ff8fb3", "#aab4be"],
};

// Parts of a step: compute blue, communication orange, waiting for stages violet, offload green.
const PART_COLOURS = {
  "products": ["#1f5fbf", "#5b95ee"],
  "attention": ["#4d8be6", "#86b4fb"],
  "memory bound": ["#83b0f2", "#a9caf9"],
  "recompute": ["#17708f", "#45a3c4"],
  "update": ["#0f9aa8", "#56c7d2"],
  "overlap": ["#a8bfd9", "#7f93ad"],
  "tensor parallel": ["#e8590c", "#ff8a47"],
  "context parallel": ["#f08c3a", "#ffab70"],
  "expert parallel": ["#c9711a", "#e39a4f"],
  "gradients": ["#d9a406", "#f0c23c"],
  "gathers": ["#a87b0a", "#cfa13a"],
  "stages": ["#8a63d2", "#ad8cf0"],
  "transfers": ["#b79ae6", "#cbb5f5"],
  "copies": ["#2f9e44", "#5fce76"],
  "issue": ["#d6336c", "#f783ac"],
  "idle": ["#d0d5da", "#4a525b"],
  "not hidden": ["#e8590c", "#ff8a47"],
  "all else": ["#4d8be6", "#86b4fb"],
};

// Segments of memory, by their order in the program.
const SEGMENT_COLOURS = {
  light: ["#1f5fbf", "#e8590c", "#2f9e44", "#8a63d2", "#d9a406", "#0f9aa8", "#c2255c", "#868e96", "#5b95ee", "#f5a97a", "#8ccf98", "#bfa6ee", "#a87b0a", "#7bc4cc", "#e79ab5"],
  dark: ["#5b95ee", "#ff8a47", "#5fce76", "#ad8cf0", "#f0c23c", "#56c7d2", "#f783ac", "#adb5bd", "#a9caf9", "#ffc09b", "#a8e3b4", "#d3c1f7", "#cfa13a", "#9adbe2", "#fbb8cd"],
};

const EVENT_KINDS = {
  // kind: [colour light, dark, whether it is marked on curves at first]
  "died": ["#c92a2a", "#ff8787", true],
  "hung": ["#c92a2a", "#ff8787", true],
  "diverged": ["#c92a2a", "#ff8787", true],
  "recheck": ["#c92a2a", "#ff8787", true],
  "save failed": ["#c92a2a", "#ff8787", true],
  "started": ["#7048e8", "#b197fc", true],
  "paused": ["#1971c2", "#74c0fc", false],
  "resumed": ["#1971c2", "#74c0fc", true],
  "spike": ["#b35c00", "#ffb454", true],
  "skipped": ["#b35c00", "#ffb454", true],
  "rewind": ["#b35c00", "#ffb454", true],
  "straggler": ["#b35c00", "#ffb454", true],
  "flat loss": ["#b35c00", "#ffb454", true],
  "rising loss": ["#b35c00", "#ffb454", true],
  "saved": ["#2b8a3e", "#69db7c", true],
};
const OTHER_EVENT = ["#5c6670", "#a0a9b3", false];

const darkness = window.matchMedia("(prefers-color-scheme: dark)");
let isPrinted = false;

function isDark() {
  return darkness.matches && !isPrinted;
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function runColour(run) {
  const colours = RUN_COLOURS[isDark() ? "dark" : "light"];
  return colours[run.index % colours.length];
}

// The ninth run has the first one's colour and is dashed.
function runDash(run) {
  return run.index < RUN_COLOURS.light.length ? [] : [6, 2];
}

function partColour(name) {
  const pair = PART_COLOURS[name] || ["#868e96", "#adb5bd"];
  return pair[isDark() ? 1 : 0];
}

function segmentColour(index) {
  const colours = SEGMENT_COLOURS[isDark() ? "dark" : "light"];
  return colours[index % colours.length];
}

function eventKind(kind) {
  const row = EVENT_KINDS[kind] || OTHER_EVENT;
  return { colour: row[isDark() ? 1 : 0], isMarked: row[2], isFrequent: kind === "saved" };
}

// Of a run's first start nothing is shown; the others are restarts.
function eventName(kind) {
  return kind === "started" ? "restarted" : kind;
}

function faded(colour, share) {
  return colour + Math.round(255 * share).toString(16).padStart(2, "0");
}

// Calls of everything that has colours, when light and dark change.
const themed = [];

function onTheme(call) {
  themed.push(call);
}

function applyTheme() {
  for (const call of themed) call();
}

darkness.addEventListener("change", applyTheme);
