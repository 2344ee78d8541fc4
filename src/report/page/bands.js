// Where things lie: bands of rows, blocks of schedules, the part of time that is seen, what is shown of it.

// Width next to the plot, by the width of the picture.
let GUTTER = 128, MARGIN_RIGHT = 118, BUSY = 62;
function gutters(width) { [GUTTER, MARGIN_RIGHT, BUSY] = width < 700 ? [hasBoth ? 96 : 72, 92, 48] : [128, 118, 62]; }
const view = { from: 0, to: 1, top: 0, scale: 1 };
const hidden = data.hidden || {};
const shown = { classes: data.classes.map((_, i) => !(hidden.waits && (i === SEND || i === RECEIVE))), memory: !hidden.memory, phases: true, idle: true, why: Boolean(data.why), predicted: true, measured: true, workers: false, path: false };
let selected = null; // pinned: {panel, device, queue, i}
let hovered = null; // under the pointer, or where arrow keys have walked
let bands = [], blocks = [], contentHeight = 0;

// Which classes occur, and which parts there are to switch.
const occurring = data.classes.map(() => false);
for (const panel of panels) for (const queues of panel.queues) {
  const spans = queues[0];
  for (let i = 0; i < spans.n; i++) occurring[classOf(spans.code[i])] = true;
  if (queues[1].n) occurring[SEND] = true;
  if (queues[2].n) occurring[RECEIVE] = true;
}
for (const panel of panels) for (const lane of panel.lanes.flat()) lane.cls.forEach(cls => { occurring[cls] = true; });
const hasBoth = panels.some(p => p.source === "predicted") && panels.some(p => p.source === "measured");
const hasWorkers = panels.some(p => p.onRequest);
const isVisible = panel => shown[panel.source] && (shown.workers || !panel.onRequest);
const hasPhases = panels.some(p => p.phases.length);
const explained = panels.some(p => p.explained);
const causesOccurring = data.causes.map((_, c) => panels.some(p => p.gaps.some(gaps => gaps.cause.includes(c))));

function classOf(code) { return Math.min(code, STEP); }

function arrange() {
  bands = [];
  blocks = [];
  let y = 6;
  const most = Math.max(1, ...panels.map(p => p.devices));
  const both = hasBoth && shown.predicted && shown.measured || hasWorkers && shown.workers;
  const high = Math.max(3, Math.round((most <= 8 ? (both ? 19 : 24) : most <= 16 ? 15 : 11) * view.scale));
  const peak = Math.max(1e-9, ...panels.map(p => p.peak));
  for (const entry of entries) {
    const visible = entry.panels.filter(isVisible);
    const block = { entry, visible, top: y };
    y += 20 + 15 * Math.max(1, visible.length);
    block.first = y;
    const devices = Math.max(0, ...visible.map(p => p.devices));
    for (let device = 0; device < devices; device++) {
      const rowTop = y;
      for (const panel of visible) {
        if (device >= panel.devices) continue;
        const band = { panel, device, top: y, high, peak, rowTop };
        if (hasPhases && shown.phases && high >= 8) y += 3;
        band.compute = y;
        y = arrangeLanes(band, y + high);
        const lane = high >= 14 ? 5 : 3;
        if (panel.hasSend && shown.classes[SEND]) { band.send = y + 0.5; y += lane; }
        if (panel.hasReceive && shown.classes[RECEIVE]) { band.receive = y + 0.5; y += lane; }
        band.lane = lane - 0.5;
        if (shown.memory && high >= 8) { band.memoryHigh = Math.max(6, high * 0.55); band.memory = y + 1; y += band.memoryHigh + 1; }
        y += 1;
        band.bottom = y;
        bands.push(band);
      }
      y += high >= 14 ? 6 : high >= 8 ? 3 : 0;
    }
    block.axis = y;
    y += 26;
    block.bottom = y;
    blocks.push(block);
  }
  contentHeight = y;
}

const plotWidth = width => Math.max(50, width - GUTTER - MARGIN_RIGHT);
const toX = (panel, time, width) => GUTTER + (time / panel.end - view.from) / (view.to - view.from) * plotWidth(width);
const toTime = (panel, x, width) => ((x - GUTTER) / plotWidth(width) * (view.to - view.from) + view.from) * panel.end;

function colors() {
  const style = getComputedStyle(document.documentElement), get = name => style.getPropertyValue("--" + name).trim();
  return { ground: get("ground"), text: get("text"), muted: get("muted"), line: get("line"), grid: get("grid"), hatch: get("hatch"), memory: get("memory"), accent: get("accent"), path: get("path") };
}

// The part of time that is seen at first: what was asked for, or as much as can be read.
function firstView() {
  const panel = panels[0];
  if (!data.window || !panel) return { from: 0, to: data.start };
  const [from, to] = data.window.map(time => time === null ? 1 : Math.min(1, Math.max(0, time / panel.end))); // null: to the end
  return to > from ? { from, to } : { from: 0, to: data.start };
}

const bandOf = ref => bands.find(band => band.panel === ref.panel && band.device === ref.device);
const twins = ref => ref.queue !== 0 ? [] : ref.panel.entry.panels.filter(p => p !== ref.panel && (shown.workers || !p.onRequest)).map(panel => {
  const found = panel.byName(ref.panel.name(ref));
  return found && { ...found, panel };
}).filter(Boolean);

function ticks(from, to, count) {
  const raw = Math.max((to - from) / count, 1e-12), base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(f => f * base).find(s => s >= raw * 0.999), found = [];
  for (let k = Math.max(0, Math.ceil(from / step - 1e-9)); k * step <= to * (1 + 1e-12) && found.length < 100; k++) found.push(k * step);
  return { found, decimals: Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))) };
}
