// The picture: where bands lie and how they are drawn.

const GUTTER = 128, MARGIN_RIGHT = 118;
const view = { from: 0, to: 1, top: 0, scale: 1 };
const shown = { classes: data.classes.map(() => true), memory: true, phases: true, idle: true, predicted: true, measured: true, path: false };
let selected = null; // {panel, device, queue, i}
let hovered = null;
let bands = [], blocks = [], contentHeight = 0;

// Which classes occur, and which parts there are to switch.
const occurring = data.classes.map(() => false);
for (const panel of panels) for (const queues of panel.queues) {
  const spans = queues[0];
  for (let i = 0; i < spans.n; i++) occurring[classOf(spans.code[i])] = true;
  if (queues[1].n) occurring[SEND] = true;
  if (queues[2].n) occurring[RECEIVE] = true;
}
const hasBoth = panels.some(p => p.source === "predicted") && panels.some(p => p.source === "measured");
const hasPhases = panels.some(p => p.phases.length);

function classOf(code) { return code === 0 ? FORWARD : code === 1 ? INPUT : code === 2 ? WEIGHT : code === 3 ? BACKWARD : STEP; }

function arrange() {
  bands = [];
  blocks = [];
  let y = 6;
  const most = Math.max(1, ...panels.map(p => p.devices));
  const both = hasBoth && shown.predicted && shown.measured;
  const high = Math.max(3, Math.round((most <= 8 ? (both ? 19 : 24) : most <= 16 ? 15 : 11) * view.scale));
  const peak = Math.max(1e-9, ...panels.map(p => p.peak));
  for (const entry of entries) {
    const visible = entry.panels.filter(p => shown[p.source]);
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
        y += high;
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

// Draws everything between `view.top` and `view.top + height`.
function paint(pen, width, height, color) {
  pen.box(0, 0, width, height, color.ground);
  const right = GUTTER + plotWidth(width), dy = -view.top;
  const inSight = item => item.bottom + dy > 0 && item.top + dy < height;
  pen.clip(GUTTER, 0, right - GUTTER, height, () => {
    for (const block of blocks.filter(inSight)) grid(pen, block, width, dy, color);
    for (const band of bands.filter(inSight)) paintBand(pen, band, width, dy, color);
    if (shown.path) for (const band of bands.filter(inSight)) paintPath(pen, band, width, dy, color);
    if (selected) paintSelection(pen, width, dy, color);
    else if (hovered) outline(pen, hovered, width, dy, color.text, 1.5);
  });
  for (const block of blocks.filter(inSight)) heading(pen, block, width, dy, color);
  for (const band of bands.filter(inSight)) labels(pen, band, width, dy, color);
  if (contentHeight > height) {
    const part = height / contentHeight;
    pen.box(width - 6, view.top * part, 4, Math.max(12, height * part), color.line);
  }
  if (view.to - view.from < 1) pen.box(GUTTER + view.from * (right - GUTTER), height - 5, Math.max(12, (view.to - view.from) * (right - GUTTER)), 4, color.line);
}

function ticks(from, to, count) {
  const raw = Math.max((to - from) / count, 1e-12), base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(f => f * base).find(s => s >= raw * 0.999), found = [];
  for (let k = Math.max(0, Math.ceil(from / step - 1e-9)); k * step <= to * (1 + 1e-12) && found.length < 100; k++) found.push(k * step);
  return { found, decimals: Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))) };
}

function grid(pen, block, width, dy, color) {
  const panel = block.visible[0];
  if (!panel) return;
  const { found } = ticks(view.from * panel.end, view.to * panel.end, plotWidth(width) / 90);
  for (const t of found) {
    const x = Math.round(toX(panel, t, width)) + 0.5;
    pen.line(x, block.first + dy, x, block.axis + dy, color.grid, 1);
  }
}

function heading(pen, block, width, dy, color) {
  const y = block.top + dy, panel = block.visible[0];
  const name = shorten(block.entry.name, 300, 15);
  pen.text(12, y + 17, name, color.text, 15, "start", true);
  if (!panel) { pen.text(12 + textWidth(name, 15) * 1.1 + 12, y + 17, block.entry.panels.length ? "hidden" : "no timeline", color.muted, 12); return; }
  let x = 12 + textWidth(name, 15) * 1.1 + 14;
  const sizes = panel.devices + " devices · " + panel.microbatches + " micro-batches" + (panel.chunks > 1 ? " · " + panel.chunks + " chunks a device" : "");
  pen.text(x, y + 17, sizes, color.muted, 12);
  x += textWidth(sizes, 12) + 18;
  block.visible.forEach((p, i) => {
    const m = p.metrics;
    let line = (block.entry.panels.length > 1 ? p.source + ": " : "") + "makespan " + quantity(m.makespan, p.unit) + " · bubble " + percent(m.bubble) + " · span bubble " + percent(m.span_bubble) + " · bubble over ideal " + percent(m.bubble_over_ideal);
    if (p.source === "measured" && block.entry.error) line += " · makespan error " + signed(block.entry.error.makespan);
    pen.text(x, y + 17 + 15 * i, shorten(line, width - x - 12, 12), color.text, 12);
  });
  const right = GUTTER + plotWidth(width);
  if (bands.length && bands[0].high >= 8) {
    pen.text(width - 62, block.first + dy - 3, "busy", color.muted, 10, "right");
    pen.text(width - 14, block.first + dy - 3, "peak", color.muted, 10, "right");
  }
  const end = Math.max(...block.visible.map(p => p.iteration / p.end));
  if (end > view.to * 1.0001) pen.text(right, block.first + dy - 3, "goes on to " + quantity(end * panel.end, panel.unit) + " »", color.muted, 10, "right");
  const at = block.axis + dy, { found, decimals } = ticks(view.from * panel.end, view.to * panel.end, plotWidth(width) / 90);
  pen.line(GUTTER, at + 0.5, right, at + 0.5, color.muted, 1);
  for (const t of found) {
    const px = Math.round(toX(panel, t, width)) + 0.5;
    pen.line(px, at, px, at + 4, color.muted, 1);
    pen.text(px, at + 15, trimmed(t, decimals), color.muted, 10.5, "center");
  }
  pen.text(right + 8, at + 4, shorten(panel.unit, MARGIN_RIGHT - 20, 10.5), color.muted, 10.5);
}

function labels(pen, band, width, dy, color) {
  const size = Math.min(12, Math.max(8, band.high)), base = band.compute + dy + band.high / 2 + size * 0.36;
  const step = band.high >= 9 ? 1 : Math.ceil(12 / Math.max(1, band.bottom - band.top));
  if (band.device % step) return;
  if (band.top === band.rowTop) pen.text(12, base, band.high >= 13 ? "device " + band.device : String(band.device), color.text, size);
  if (hasBoth && band.panel.entry.panels.length > 1 && band.high >= 9) pen.text(GUTTER - 6, base - 0.5, band.panel.source, color.muted, 9.5, "right");
  const m = band.panel.metrics.per_device.find(d => d.device === band.device);
  if (!m || band.high < 8) return;
  const total = band.panel.metrics.makespan;
  pen.text(width - 62, base, percent(total > 0 ? m.busy / total : 0), color.muted, size - 1, "right");
  pen.text(width - 14, base, number(m.peak_activations), color.muted, size - 1, "right");
}

function paintBand(pen, band, width, dy, color) {
  const panel = band.panel, queues = panel.queues[band.device], left = GUTTER, right = GUTTER + plotWidth(width);
  const end = Math.min(right, toX(panel, panel.iteration, width)), begin = Math.max(left, toX(panel, 0, width));
  if (shown.idle && end > begin) pen.hatch(begin, band.compute + dy, end - begin, band.high);
  paintSpans(pen, band, queues[0], 0, band.compute + dy, band.high, width);
  if (band.send) paintSpans(pen, band, queues[1], 1, band.send + dy, band.lane, width);
  if (band.receive) paintSpans(pen, band, queues[2], 2, band.receive + dy, band.lane, width);
  if (band.memory) paintMemory(pen, band, width, dy, color);
  if (hasPhases && shown.phases && band.high >= 8) paintPhases(pen, band, queues[0], width, dy, color);
}

// Narrow boxes are added up by column; a column gets the colour that covers most of it, as strong as all
// that covers it.
const NARROW = 2.5;
const columns = { best: new Int16Array(0), most: new Float32Array(0), total: new Float32Array(0) };
function paintSpans(pen, band, spans, queue, y, high, width) {
  const panel = band.panel, plot = plotWidth(width), scale = plot / (view.to - view.from) / panel.end, shift = GUTTER - view.from * panel.end * scale;
  const right = GUTTER + plot, size = Math.min(12, high * 0.62), wide = Math.ceil(plot) + 1;
  if (columns.best.length < wide) Object.assign(columns, { best: new Int16Array(wide), most: new Float32Array(wide), total: new Float32Array(wide) });
  const { best, most, total } = columns, cover = new Float32Array(28);
  let narrow = false, column = -1;
  for (let i = spans.from(view.from * panel.end); i < spans.n; i++) {
    const x = spans.start[i] * scale + shift;
    if (x > right) break;
    const w = spans.end[i] * scale + shift - x;
    const cls = queue === 0 ? classOf(spans.code[i]) : queue === 1 ? SEND : RECEIVE;
    if (!shown.classes[cls]) continue;
    const shade = queue === 0 ? spans.shade(i) : 0;
    if (w < NARROW) {
      if (!narrow) { narrow = true; total.fill(0); }
      const ink = cls * 4 + shade, from = x - GUTTER, to = from + Math.max(w, 0.02);
      for (let at = Math.max(0, Math.floor(from)); at < to && at < wide; at++) {
        if (at !== column) { cover.fill(0); column = at; most[at] = 0; }
        const part = Math.min(to, at + 1) - Math.max(from, at);
        cover[ink] += part;
        total[at] += part;
        if (cover[ink] > most[at]) { most[at] = cover[ink]; best[at] = ink; }
      }
      continue;
    }
    const [fill, ink] = data.classes[cls].shades[shade];
    const lanes = queue === 0 ? spans.laneCount(i) : 1, part = high / lanes, top = lanes > 1 ? y + part * spans.lane(i) : y;
    pen.box(x, top, w > 3 ? w - 0.7 : w, part, fill);
    if (part >= 9 && w >= 9) {
      const text = label(panel, spans, i, w - 2.5, size);
      if (text) pen.text(Math.max(x, Math.min(x + w / 2, right - 4)), top + part / 2 + size * 0.36, text, ink, size, "center");
    }
  }
  if (narrow) pen.columns(GUTTER, y, high, best, total, wide);
}

function label(panel, spans, i, room, size) {
  const code = spans.code[i], m = String(spans.microbatch[i]);
  const tries = code >= 4 ? [panel.names[code - 4], panel.names[code - 4].slice(0, 1)]
    : panel.chunks > 1 ? [spans.stage[i] + KINDS[code] + m, KINDS[code] + m, m] : [KINDS[code] + m, m];
  // Letters and digits count as the widest, so that boxes of one width are labelled alike.
  return tries.find(text => textWidth(code >= 4 ? text : text.replace(/[FIWB]/, "W").replace(/\d/g, "0"), size) <= room);
}

function paintMemory(pen, band, width, dy, color) {
  const { time, held } = band.panel.memory[band.device], base = band.memory + band.memoryHigh + dy, right = GUTTER + plotWidth(width);
  // Within a pixel the highest value counts; what is equally high is one box.
  let x = -Infinity, top = 0, runFrom = 0, runTo = 0, runTop = 0;
  const flush = () => {
    const h = runTop / band.peak * band.memoryHigh;
    if (runTop > 0 && runTo > GUTTER) pen.box(Math.max(runFrom, GUTTER - 1), base - h, Math.min(runTo, right) - Math.max(runFrom, GUTTER - 1), h, color.memory);
  };
  for (let i = 0; i <= time.length && x <= right; i++) {
    const next = toX(band.panel, i < time.length ? time[i] : band.panel.iteration, width);
    if (next - x < 1 && i < time.length) { top = Math.max(top, held[i]); continue; }
    if (x > -Infinity) {
      if (top !== runTop || x !== runTo) { flush(); runFrom = x; runTop = top; }
      runTo = next;
    }
    x = next;
    top = held[i];
  }
  flush();
}

function paintPhases(pen, band, spans, width, dy, color) {
  const panel = band.panel;
  let i = spans.from(view.from * panel.end), count = 0;
  while (i < spans.n) {
    const phase = spans.phase(i), x = toX(panel, spans.start[i], width);
    if (x > GUTTER + plotWidth(width)) break;
    let j = i;
    while (j + 1 < spans.n && spans.phase(j + 1) === phase) j++;
    if (phase >= 0 && count++ < 500) pen.box(x, band.top + dy, Math.max(1, toX(panel, spans.end[j], width) - x - 2), 1.5, phase % 2 ? color.memory : color.muted);
    i = j + 1;
  }
}

const bandOf = ref => bands.find(band => band.panel === ref.panel && band.device === ref.device);

function outline(pen, ref, width, dy, ink, thick, dashed) {
  const band = bandOf(ref), y = band && (ref.queue === 0 ? band.compute : ref.queue === 1 ? band.send : band.receive);
  if (!y) return;
  const x = toX(ref.panel, ref.panel.start(ref), width), w = Math.max(2, toX(ref.panel, ref.panel.end_(ref), width) - x);
  pen.frame(x - 0.5, y + dy - 0.5, w + 0.5, (ref.queue === 0 ? band.high : band.lane) + 1, ink, thick, dashed);
}

function arrow(pen, from, to, width, dy, ink) {
  const a = bandOf(from), b = bandOf(to);
  if (!a || !b) return;
  const x1 = toX(from.panel, from.panel.end_(from), width), y1 = a.compute + a.high / 2 + dy;
  const x2 = toX(to.panel, to.panel.start(to), width), y2 = b.compute + b.high / 2 + dy;
  pen.line(x1, y1, x2, y2, ink, 1.6);
  const turn = Math.atan2(y2 - y1, x2 - x1);
  for (const side of [2.6, -2.6]) pen.line(x2, y2, x2 + 8 * Math.cos(turn + side), y2 + 8 * Math.sin(turn + side), ink, 1.6);
}

const twins = ref => ref.queue !== 0 ? [] : ref.panel.entry.panels.filter(p => p !== ref.panel).map(panel => {
  const found = panel.byName(ref.panel.name(ref));
  return found && { ...found, panel };
}).filter(Boolean);

function paintSelection(pen, width, dy, color) {
  outline(pen, selected, width, dy, color.text, 2.5);
  for (const twin of twins(selected)) outline(pen, twin, width, dy, color.text, 2, true);
  if (selected.queue !== 0) return;
  const panel = selected.panel, of = list => list.map(ref => ({ ...ref, panel }));
  for (const need of of(panel.needs(selected))) { outline(pen, need, width, dy, color.path, 2); arrow(pen, need, selected, width, dy, color.path); }
  for (const next of of(panel.unblocks(selected))) { outline(pen, next, width, dy, color.accent, 2); arrow(pen, selected, next, width, dy, color.accent); }
}

function paintPath(pen, band, width, dy, color) {
  for (const ref of band.panel.criticalPath()) if (ref.device === band.device) outline(pen, { ...ref, panel: band.panel }, width, dy, color.path, 1.6);
}

