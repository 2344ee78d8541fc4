// How bands are drawn: boxes, strips of boxes too narrow for that, curves, labels, what is selected, the critical path.

// Draws everything between `view.top` and `view.top + height`.
function paint(pen, width, height, color) {
  pen.box(0, 0, width, height, color.ground);
  inkCauses(color.ground);
  idleMean = mixed(rgbOf(color.ground), rgbOf(color.hatch), 0.22);
  edges = data.classes.map(({ shades }) => shades.map(([fill]) => edgeOf(fill, color)));
  const right = GUTTER + plotWidth(width), dy = -view.top;
  const inSight = item => item.bottom + dy > 0 && item.top + dy < height, seen = bands.filter(inSight);
  pen.clip(GUTTER, 0, right - GUTTER, height, () => {
    for (const block of blocks.filter(inSight)) grid(pen, block, width, dy, color);
    pen.beginStrips(Math.ceil(plotWidth(width) * pen.ratio));
    for (const band of seen) paintBand(pen, band, width, dy, color);
    pen.finishStrips();
    if (shown.path) for (const band of seen) paintPath(pen, band, width, dy, color);
    if (selected) paintSelection(pen, width, dy, color);
    if (hovered && !(selected && same(hovered, selected))) outline(pen, hovered, width, dy, color.text, 1.5);
  });
  for (const block of blocks.filter(inSight)) heading(pen, block, width, dy, color);
  for (const band of seen) labels(pen, band, width, dy, color);
}
const same = (a, b) => a && b && a.panel === b.panel && a.device === b.device && a.queue === b.queue && a.i === b.i;

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
  const name = shorten(block.entry.name, Math.min(300, width * 0.4), 15);
  pen.text(12, y + 17, name, color.text, 15, "start", true);
  if (!panel) { pen.text(12 + textWidth(name, 15) * 1.1 + 12, y + 17, block.entry.panels.length ? "hidden" : "no timeline", color.muted, 12); return; }
  let x = 12 + textWidth(name, 15) * 1.1 + 14;
  const sizes = panel.devices + " devices · " + panel.microbatches + " micro-batches" + (panel.slices > 1 ? " of " + panel.slices + " slices" : "") + (panel.chunks > 1 ? " · " + panel.chunks + " chunks per device" : "");
  if (width >= 700) {
    pen.text(x, y + 17, sizes, color.muted, 12);
    x += textWidth(sizes, 12) + 18;
  }
  block.visible.forEach((p, i) => {
    const m = p.metrics;
    let line = (block.entry.panels.length > 1 ? p.title + ": " : "") + "makespan " + quantity(m.makespan, p.unit) + " · bubble " + percent(m.bubble) + " · span bubble " + percent(m.span_bubble) + " · bubble over ideal " + percent(m.bubble_over_ideal);
    if (p.source === "measured" && !p.onRequest && block.entry.error) line += " · makespan error " + signed(block.entry.error.makespan);
    pen.text(x, y + 17 + 15 * i, shorten(line, width - x - 12, 12), color.text, 12);
  });
  const right = GUTTER + plotWidth(width);
  if (bands.length && bands[0].high >= 8) {
    pen.text(width - BUSY, block.first + dy - 3, "busy", color.muted, 10, "right");
    pen.text(width - 14, block.first + dy - 3, "peak", color.muted, 10, "right");
  }
  const form = formOf(panel, bands.find(band => band.panel === panel), width);
  if (!form.fits) pen.text(GUTTER, block.first + dy - 3, shorten(form.blended ? "Boxes are too narrow for letters; colours are mixed by area: zoom in" : "Some boxes have no room for letters: zoom in", right - GUTTER - 100, 10), color.muted, 10);
  const end = Math.max(...block.visible.map(p => p.iteration / p.end));
  if (end > view.to * 1.0001) pen.text(right, block.first + dy - 3, "continues to " + quantity(end * panel.end, panel.unit) + " »", color.muted, 10, "right");
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
  if (band.top === band.rowTop) pen.text(12, base, band.high >= 13 && (width >= 700 || !hasBoth) ? "device " + band.device : String(band.device), color.text, size);
  if ((hasBoth || shown.workers) && band.panel.entry.panels.length > 1 && band.high >= 9) pen.text(GUTTER - 6, base - 0.5, band.panel.brief_, color.muted, 9.5, "right");
  labelLanes(pen, band, dy, color);
  const m = band.panel.metrics.per_device.find(d => d.device === band.device);
  if (!m || band.high < 8) return;
  const total = band.panel.metrics.makespan;
  pen.text(width - BUSY, base, percent(total > 0 ? m.busy / total : 0), color.muted, size - 1, "right");
  pen.text(width - 14, base, number(m.peak_activations), color.muted, size - 1, "right");
}

function paintBand(pen, band, width, dy, color) {
  const panel = band.panel, queues = panel.queues[band.device], left = GUTTER, right = GUTTER + plotWidth(width);
  const end = Math.min(right, toX(panel, panel.iteration, width)), begin = Math.max(left, toX(panel, 0, width));
  if (shown.idle && end > begin) pen.hatch(begin, band.compute + dy, end - begin, band.high, "idle");
  paintSpans(pen, band, queues[0], 0, band.compute + dy, band.high, width);
  paintLanes(pen, band, width, dy);
  if (band.send) paintSpans(pen, band, queues[1], 1, band.send + dy, band.lane, width);
  if (band.receive) paintSpans(pen, band, queues[2], 2, band.receive + dy, band.lane, width);
  if (band.memory) paintMemory(pen, band, width, dy, color);
  if (hasPhases && shown.phases && band.high >= 8) paintPhases(pen, band, queues[0], width, dy, color);
}

// Boxes narrower than this are mixed by area, without lines between them; those below LETTERS go the same way, with lines.
const NARROW = 2.5, LETTERS = 9;
const strip = new Strip();
let idleMean = [0, 0, 0];

// By class and shade: the edge of boxes that all but vanish on a dark ground; null for the others.
let edges = [];
const light = color => { const [r, g, b] = rgbOf(color).map(c => (c / 255) ** 2.2); return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05; };
const edgeOf = (fill, { ground, text }) => light(text) > light(ground) && light(fill) < 3 * light(ground) ? hexOf(mixed(rgbOf(fill), rgbOf(text), 0.45)) : null;
function paintSpans(pen, band, spans, queue, y, high, width) {
  const panel = band.panel, plot = plotWidth(width), scale = plot / (view.to - view.from) / panel.end, shift = GUTTER - view.from * panel.end * scale;
  const right = GUTTER + plot, ratio = pen.ratio;
  strip.begin(Math.ceil(plot * ratio));
  if (queue === 0 && shown.why && panel.explained) paintGaps(pen, panel, panel.gaps[band.device], scale, shift, y, high, right);
  const form = queue === 0 && high >= 9 ? formOf(panel, band, width) : null;
  for (let i = spans.from(view.from * panel.end); i < spans.n; i++) {
    const x = spans.start[i] * scale + shift;
    if (x > right) break;
    const w = spans.end[i] * scale + shift - x, cls = queue === 0 ? classOf(spans.code[i]) : queue === 1 ? SEND : RECEIVE;
    if (!shown.classes[cls]) continue;
    const shade = queue === 0 ? spans.shade(i) : 0, lanes = queue === 0 ? spans.laneCount(i) : 1;
    if (w < NARROW || w < LETTERS && lanes === 1) {
      const gap = w < NARROW ? 0 : Math.min(0.7, w * 0.08);
      strip.add((x - GUTTER) * ratio, (x + w - gap - GUTTER) * ratio, cls * SHADES + shade, 1 / lanes);
      continue;
    }
    const [fill, ink] = data.classes[cls].shades[shade], part = high / lanes, top = lanes > 1 ? y + part * spans.lane(i) : y;
    if (data.classes[cls].hatch) pen.hatch(x, top, w - 0.7, part, `class${cls}.${shade}`);
    else pen.box(x, top, w - 0.7, part, fill);
    if (edges[cls][shade]) pen.frame(x + 0.5, top + 0.5, w - 1.7, part - 1, edges[cls][shade], 1);
    if (form && part >= 9) {
      const from = Math.max(x, GUTTER), to = Math.min(x + w, right), text = label(panel, spans, i, to - from - 2.5, form);
      if (text) pen.text((from + to) / 2, top + part / 2 + form.size * 0.36, text, ink, form.size, "center");
    }
  }
  if (!strip.used) return;
  const idle = queue === 0 && shown.idle ? { from: (shift - GUTTER) * ratio, to: (panel.iteration * scale + shift - GUTTER) * ratio, rgb: idleMean } : null;
  pen.strip(strip, idle, GUTTER, y, strip.n / ratio, high);
}

// Why the device idles, in the causes' colours; the narrow ones go to the strip.
function paintGaps(pen, panel, gaps, scale, shift, y, high, right) {
  for (let i = gaps.from(view.from * panel.end); i < gaps.n; i++) {
    const x = gaps.start[i] * scale + shift, w = gaps.end[i] * scale + shift - x;
    if (x > right) break;
    if (w >= NARROW) pen.hatch(Math.max(x, GUTTER), y, Math.min(x + w, right) - Math.max(x, GUTTER), high, "cause" + gaps.cause[i]);
    else strip.add((x - GUTTER) * pen.ratio, (x + w - GUTTER) * pen.ratio, CAUSE_INK + gaps.cause[i], 1);
  }
}

// The form that all labels of a panel have: the longest that most of its boxes have room for. {parts, size, fits, blended}
function formOf(panel, band, width) {
  const high = band ? band.high : 11, size = Math.min(12, high * 0.62), room = panel.brief / panel.end * plotWidth(width) / (view.to - view.from);
  const digits = number => "0".repeat(String(Math.max(0, number - 1)).length), m = digits(panel.microbatches) + (panel.slices > 1 ? "." + digits(panel.slices) : "");
  // By number of parts: micro-batch, with its slice, after the letter, after the stage.
  const forms = [digits(panel.microbatches), m, "W" + m, digits(panel.stages) + "W" + m];
  const tried = [...(panel.chunks > 1 ? [3] : []), 2, 1, ...(panel.slices > 1 ? [0] : [])];
  const at = tried.findIndex(parts => textWidth(forms[parts], size) <= room - 2.5), parts = tried[at < 0 ? tried.length - 1 : at];
  return { parts, size, fits: high >= 9 && at >= 0, blended: room < NARROW };
}
function label(panel, spans, i, room, { parts, size }) {
  const code = spans.code[i], unit = panel.unitName(spans.microbatch[i]), m = parts > 0 ? unit : String(unit).split(".")[0], named = panel.names[code - KINDS.length];
  const tries = code >= KINDS.length ? [named, named.slice(0, 1)] : [(parts > 2 ? spans.stage[i] : "") + (parts > 1 ? OP_LETTERS[code] : "") + m];
  return tries.find(text => textWidth(text, size) <= room);
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
  const { cap } = band.panel;
  if (cap) {
    const y = base - cap / band.peak * band.memoryHigh;
    pen.line(GUTTER, y, Math.min(right, toX(band.panel, band.panel.iteration, width)), y, color.path, 1, true);
  }
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
  if (a === b && x2 - x1 > 12) { // along the row's edge, not through its letters
    const edge = a.compute + dy - 1;
    pen.line(x1, y1, x1, edge, ink, 1.6);
    pen.line(x1, edge, x2, edge, ink, 1.6);
    pen.line(x2, edge, x2, y2, ink, 1.6);
    for (const side of [-3, 3]) pen.line(x2, y2, x2 + side, y2 - 6, ink, 1.6);
    return;
  }
  pen.line(x1, y1, x2, y2, ink, 1.6);
  const turn = Math.atan2(y2 - y1, x2 - x1);
  for (const side of [2.6, -2.6]) pen.line(x2, y2, x2 + 8 * Math.cos(turn + side), y2 + 8 * Math.sin(turn + side), ink, 1.6);
}

function paintSelection(pen, width, dy, color) {
  outline(pen, selected, width, dy, color.text, 2.5);
  for (const twin of twins(selected)) outline(pen, twin, width, dy, color.text, 2, true);
  if (selected.queue !== 0) return;
  const panel = selected.panel, of = list => list.map(ref => ({ ...ref, panel }));
  for (const need of of(panel.needs(selected))) { outline(pen, need, width, dy, color.path, 2); arrow(pen, need, selected, width, dy, color.path); }
  for (const next of of(panel.unblocks(selected))) { outline(pen, next, width, dy, color.accent, 2); arrow(pen, selected, next, width, dy, color.accent); }
}

// Neighbours on the path that all but touch are framed together.
function paintPath(pen, band, width, dy, color) {
  const { panel } = band, edge = GUTTER + plotWidth(width);
  let from = NaN, to = NaN;
  const flush = () => { if (to >= GUTTER && from <= edge) pen.frame(from - 0.5, band.compute + dy - 0.5, Math.max(1.5, to - from) + 0.5, band.high + 1, color.path, 2); };
  for (const ref of criticalPath(panel)[band.device]) {
    const x = toX(panel, panel.start(ref), width), end = toX(panel, panel.end_(ref), width);
    if (x - to < 2 && end - x < 4) { to = end; continue; }
    flush();
    [from, to] = [x, end];
  }
  flush();
}
