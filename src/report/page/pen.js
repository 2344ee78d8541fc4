// The pen that draws on a canvas, and the widths of texts. The pen in svg.js has the same strokes.

const FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif";
const measure = document.createElement("canvas").getContext("2d");
const widths = new Map();
// Width of a text; remembered, since the same labels are drawn in every frame.
function textWidth(text, size) {
  const key = size + "|" + text;
  let width = widths.get(key);
  if (width === undefined) {
    if (widths.size > 20000) widths.clear();
    measure.font = size + "px " + FONT;
    widths.set(key, width = measure.measureText(text).width);
  }
  return width;
}
function shorten(text, width, size) {
  if (textWidth(text, size) <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(text.slice(0, middle) + "…", size) <= width) low = middle; else high = middle - 1;
  }
  return low ? text.slice(0, low) + "…" : "";
}

// Hatches by name: what is idle, each cause of it, and each shade of a class whose palette asks for one. Lines lie as / \ | - x or +.
function hatches(color) {
  const all = { idle: { ink: color.hatch, lines: "/", gap: 7 } };
  data.causes.forEach((cause, c) => { const rgb = causeRgb(cause, color.ground); all["cause" + c] = { ink: hexOf(rgb), ground: hexOf(mixed(rgbOf(color.ground), rgb, 0.3)), lines: cause.hatch, gap: 5, width: 1.8 }; });
  data.classes.forEach((cls, c) => { if (cls.hatch) cls.shades.forEach(([, , ground, ink], s) => { all[`class${c}.${s}`] = { ink, ground, lines: cls.hatch, gap: 5, width: 1.4 }; }); });
  return all;
}
// The lines of one tile, as [x1, y1, x2, y2]; they reach beyond it, so that tiles meet.
function hatchLines(lines, s) {
  const rising = [-s, 0, s].map(shift => [shift - 1, s + 1, shift + s + 1, -1]), falling = [-s, 0, s].map(shift => [shift - 1, -1, shift + s + 1, s + 1]);
  const upright = [[s / 2, -1, s / 2, s + 1]], level = [[-1, s / 2, s + 1, s / 2]];
  return { "/": rising, "\\": falling, x: rising.concat(falling), "|": upright, "-": level, "+": upright.concat(level) }[lines] || rising;
}

class CanvasPen {
  // A pen for a canvas that has `ratio` pixels a unit of length.
  constructor(context, color, ratio) {
    Object.assign(this, { context, ratio, fill: "", patterns: {}, sheet: new StripSheet(256), hatched: hatches(color) });
  }
  box(x, y, w, h, color) {
    if (this.fill !== color) this.context.fillStyle = this.fill = color;
    this.context.fillRect(x, y, w, h);
  }
  hatch(x, y, w, h, name) {
    if (!this.patterns[name]) this.patterns[name] = pattern(this.context, this.hatched[name], this.ratio);
    if (this.fill !== name) { this.context.fillStyle = this.patterns[name]; this.fill = name; }
    this.context.fillRect(x, y, w, h);
  }
  frame(x, y, w, h, color, width, dashed) {
    const c = this.context;
    c.strokeStyle = color;
    c.lineWidth = width;
    c.setLineDash(dashed ? [3, 2] : []);
    c.strokeRect(x, y, w, h);
    c.setLineDash([]);
  }
  line(x1, y1, x2, y2, color, width, dashed) {
    const c = this.context;
    c.strokeStyle = color;
    c.lineWidth = width;
    c.setLineDash(dashed ? [4, 3] : []);
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x2, y2);
    c.stroke();
    c.setLineDash([]);
  }
  text(x, y, text, color, size, align, bold) {
    const c = this.context;
    c.font = (bold ? "600 " : "") + size + "px " + FONT;
    c.textAlign = align || "start";
    c.fillStyle = color;
    this.fill = "";
    c.fillText(text, x, y);
  }
  // Starts to collect strips of `n` columns; `finishStrips` draws them.
  beginStrips(n) { this.sheet.begin(n); }
  strip(strip, idle, x, y, w, h) {
    if (this.sheet.isFull) this.finishStrips();
    this.sheet.add(strip, idle, x, y, w, h);
  }
  finishStrips() { this.sheet.draw(this.context); }
  // Draws `inside` only within the rectangle.
  clip(x, y, w, h, inside) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(x, y, w, h);
    c.clip();
    this.fill = "";
    inside();
    c.restore();
    this.fill = "";
  }
  // Draws `inside` moved by so much.
  shift(x, y, inside) {
    this.context.save();
    this.context.translate(x, y);
    inside();
    this.context.restore();
    this.fill = "";
  }
}

function pattern(context, { ink, ground, lines, gap, width = 1 }, ratio) {
  const tile = document.createElement("canvas"), s = tile.width = tile.height = Math.round(gap * ratio), c = tile.getContext("2d");
  if (ground) { c.fillStyle = ground; c.fillRect(0, 0, s, s); }
  c.strokeStyle = ink;
  c.lineWidth = ratio * width;
  c.beginPath();
  for (const [x1, y1, x2, y2] of hatchLines(lines, s)) { c.moveTo(x1, y1); c.lineTo(x2, y2); }
  c.stroke();
  const made = context.createPattern(tile, "repeat");
  made.setTransform(new DOMMatrix([gap / s, 0, 0, gap / s, 0, 0]));
  return made;
}
